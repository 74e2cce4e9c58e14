/* SPDX-License-Identifier: Apache-2.0 */
/* Connects a socket to an address: a path, numbers, or a name that is resolved on a work thread. */
#ifndef RINGVOL_RPC_DIAL_H
#define RINGVOL_RPC_DIAL_H

#include "base/err.h"
#include "reactor/ring.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct work;

enum { DIAL_ADDRESSES_MAX = 8 }; /* of one name, tried in the resolver's order */

struct dial_address {
	struct sockaddr_storage address;
	socklen_t len;
};

/* Where to: a path or numbers in `known`, or a name. */
struct dial_target {
	char text[320]; /* as it was given, for messages */
	bool is_unix;
	struct dial_address known; /* len 0: a name */
	char host[256], port[6];
};

/* unix:///PATH, HOST:PORT or [V6]:PORT. 0, or -EINVAL with what is wrong. */
int dial_parse(const char *text, struct dial_target *ret, struct err *err);
/* Numbers of this host's loopback. */
bool dial_is_loopback(const struct dial_target *target);

struct dial;
/* fd: connected and the receiver's, or -errno with `why`, which names the address. */
typedef void dial_fn(void *arg, int fd, const char *why);

struct dial_config {
	struct ring *ring;
	struct work *work;                /* NULL: names cannot be resolved */
	struct lane *lane;                /* of work; NULL: the shared lane */
	const struct dial_target *target; /* lives as long as the dial */
	uint64_t timeout_ms;              /* all in all */
	dial_fn *on_end;
	void *arg;
};

/* 0 or -ENOMEM. on_end is called once from the loop, and the dial is gone then. */
int dial_start(struct dial **ret, const struct dial_config *config);
/* Gives it up: on_end is not called. NULL is legal. */
void dial_cancel(struct dial *dial);

#endif
