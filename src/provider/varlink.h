/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Varlink, the server's side of one connection: JSON objects that end with a NUL byte, calls and
 * their answers, in turn. No sockets: a session (rpc/session.h) that conn.c, tests and fuzzers
 * feed.
 */
#ifndef RINGVOL_PROVIDER_VARLINK_H
#define RINGVOL_PROVIDER_VARLINK_H

#include "rpc/session.h"

#include <jansson.h>

enum { VARLINK_MESSAGE_MAX = 64 << 10 }; /* bytes of a call; more ends the connection */

struct varlink_call; /* a call, until it is answered */

/* Many answers to one call. Embed it. */
struct varlink_source {
	/* The next answer's parameters, a reference; NULL: there is none left, or no memory. */
	json_t *(*next)(struct varlink_source *source);
	void (*free)(struct varlink_source *source); /* read to its end, or not wanted any more */
	/* The error that says that there was not even one. */
	const char *none;
};

/* Answers the call before it returns, with one of the functions below, or says varlink_later().
 * method: "INTERFACE.METHOD". parameters: an object, until the call is answered. */
typedef void varlink_call_fn(
	struct varlink_call *call, const char *method, json_t *parameters, void *arg);

/* The client takes more than one answer. */
bool varlink_wants_more(const struct varlink_call *call);
/* Takes the reference; NULL: out of memory, which ends the connection. fd: goes along with the
 * answer, and is taken over; -1: none. */
void varlink_reply(struct varlink_call *call, json_t *parameters, int fd);
/* Of an error's own parameters; NULL: none. Takes the reference. */
void varlink_error(struct varlink_call *call, const char *error, json_t *parameters);
/* For a client that takes more than one. */
void varlink_stream(struct varlink_call *call, struct varlink_source *source);
/* The answer comes later, from the loop. on_gone: the connection is no more, nor is the call. */
void varlink_later(struct varlink_call *call, void (*on_gone)(void *arg), void *arg);

int varlink_session_new(varlink_call_fn *on_call, void *arg, session_wake_fn *on_wake,
	void *wake_arg, struct session **ret);

#endif
