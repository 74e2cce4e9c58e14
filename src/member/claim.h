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

struct member_claims {
	struct list list;
	struct csi *csi;
	struct changes *changes;
	/* Bits of the links that hear of claims. */
	unsigned (*who)(void *arg);
	/* These have not answered in time. They are given up before anything else happens, so
	 * that a late answer is never taken for one to a later claim. */
	void (*give_up)(void *arg, unsigned links);
	void (*tell)(void *arg); /* a call waits until the claim is told */
	void *arg;
	bool one_controller; /* the one that asks is the only one */
	bool draining;
	uint64_t refused; /* since start */
};

void member_claims_open(struct member_claims *c, struct csi *csi, struct changes *changes);
/* Calls that wait are ended with UNAVAILABLE. Nothing is claimed any more. */
void member_claims_drain(struct member_claims *c);
void member_claims_close(struct member_claims *c);

/* csi_hooks.on_create's. */
bool member_claims_on_create(struct member_claims *c, struct grpc_call *call,
	const ProtobufCMessage *request, enum record_kind kind, const char *name);
/* A task that made, or failed to make, something of this name has ended. What became of it is in
 * the log already. */
void member_claims_on_task_end(struct member_claims *c, enum record_kind kind, const char *name);
/* A controller's answer. False: it is none. */
bool member_claims_verdict(
	struct member_claims *c, unsigned link, const Ringvol__V1__NameVerdict *verdict);
/* The link does not answer any more. */
void member_claims_left(struct member_claims *c, unsigned link);
/* Appends all names that are being made, but for those that the log tells from `next` on. 0 or
 * -ENOMEM. */
int member_claims_report(const struct member_claims *c, uint64_t next, struct buf *b);

#endif
