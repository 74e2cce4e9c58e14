/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's part in a cluster: it joins each controller that it was told of, says what it has and
 * what changes, and asks before it makes a name. Nothing of the node waits for a controller, but
 * creates that came through one.
 *
 *   link.h     one controller: dialled, told everything, then what changes
 *   report.h   what is told, piece by piece
 *   changes.h  what was told, and what is to be told next: a walk and a log, no copy of it all
 *   classes.h  what GetCapacity would answer, told when it changes
 *   claim.h    names: asked of the other controllers before a routed create begins
 */
#ifndef RINGVOL_MEMBER_MEMBER_H
#define RINGVOL_MEMBER_MEMBER_H

#include "base/err.h"
#include "csi/csi.h"
#include "rpc/grpc.h"

enum {
	MEMBER_CONTROLLERS_MAX = 8,
	MEMBER_REDIAL_MS = 200, /* the first time; doubled up to the next */
	MEMBER_REDIAL_MAX_MS = 2000,
	MEMBER_HEARTBEAT_MS = 5000,
	MEMBER_SILENCE_MS = 15000, /* then the controller is dialled anew */
	MEMBER_LOOK_MS = 1000,     /* how often what was told is compared with what is */
	MEMBER_LOOK_OBJECTS = 256, /* in one turn of the loop */
};

struct member;
struct tls;

struct member_config {
	const char *controllers[MEMBER_CONTROLLERS_MAX]; /* HOST:PORT */
	unsigned n_controllers;
	const char *address; /* HOST:PORT: our --listen as others reach it (--advertise) */
	const char *version;
	const char *const *features; /* for Hello; ends with NULL. NULL: there are none */
	struct tls *tls;             /* NULL: controllers are unix sockets */
	/* What calls to controllers hold counts in its memory; it outlives the member. NULL:
	 * nowhere. */
	struct grpc_registry *registry;
};

/* Takes csi's hooks. The strings of config must outlive it. Nobody is dialled yet. 0, or -errno
 * with err. */
int member_open(
	struct member **ret, struct csi *csi, const struct member_config *config, struct err *err);
/* Dials the controllers, from the loop on. */
void member_start(struct member *member);
/* A pool has changed: the controllers are told now. */
void member_pool_changed(struct member *member);
/* Leaves: the controllers see it at once. Nothing is begun any more. */
void member_drain(struct member *member);
/* Nothing of it is under way, after a drain. */
bool member_idle(const struct member *member);
void member_close(struct member *member); /* after a drain and idle, or never run; NULL is legal */

/* For people and metrics. */
struct member_controller {
	const char *address;
	bool joined;     /* it was told everything */
	const char *why; /* it is not; "" */
	uint64_t joins;  /* since start */
};
/* False past the end. */
bool member_controller_at(const struct member *member, unsigned i, struct member_controller *ret);
/* Names that another node had, since start. */
uint64_t member_claims_refused(const struct member *member);

#endif
