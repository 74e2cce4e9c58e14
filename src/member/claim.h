/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that are being made. A create that came from a controller waits until the others that this
 * node is joined to have agreed; one that waits for nobody is only told to them. A name that is
 * made already needs no agreement.
 */
#ifndef RINGVOL_MEMBER_CLAIM_H
#define RINGVOL_MEMBER_CLAIM_H

#include "cluster.pb-c.h"
#include "csi/csi.h"
#include "member/changes.h"

#include <stdbool.h>
#include <stdint.h>

enum { CLAIM_WAIT_MS = 2000 }; /* for a controller; then it is taken as left */

struct claims {
	struct list list;
	struct csi *csi;
	struct changes *changes;
	/* Bits of the links that hear of claims. */
	unsigned (*who)(void *arg);
	/* These have not answered in time. They are given up before anything else happens, so
	 * that a late answer is never taken for one to a later claim. */
	void (*give_up)(void *arg, unsigned links);
	void *arg;
	bool one_controller; /* the one that asks is the only one */
	bool draining;
	uint64_t refused; /* since start */
};

void claims_open(struct claims *c, struct csi *csi, struct changes *changes);
/* Calls that wait are ended with UNAVAILABLE. Nothing is claimed any more. */
void claims_drain(struct claims *c);
void claims_close(struct claims *c);

/* csi_hooks.on_create's. */
bool claims_on_create(struct claims *c, struct grpc_call *call, const ProtobufCMessage *request,
	enum record_kind kind, const char *name);
/* A task that made, or failed to make, something of this name has ended. What became of it is in
 * the log already. */
void claims_on_task_end(struct claims *c, enum record_kind kind, const char *name);
/* A controller's answer. False: it is none. */
bool claims_verdict(struct claims *c, unsigned link, const Ringvol__V1__NameVerdict *verdict);
/* The link does not answer any more. */
void claims_left(struct claims *c, unsigned link);
/* Appends all names that are being made, but for those that the log tells from `next` on. 0 or
 * -ENOMEM. */
int claims_report(const struct claims *c, uint64_t next, struct buf *b);

#endif
