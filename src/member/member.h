/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's part in a cluster: it joins each controller that it was told of, says what it has and
 * what changes, and asks before it makes a name. Nothing of the node waits for a controller, but
 * creates that came through one.
 *
 *   report.h   what was told to a controller, and what is to be told next: a walk, no copy of it all
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
	struct tls *tls;
};

int member_open(struct member **ret, struct csi *csi, const struct member_config *config);
/* Leaves: the controllers see it at once. */
void member_drain(struct member *member);
void member_close(struct member *member); /* NULL is legal */

#endif
