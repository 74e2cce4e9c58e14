/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Node service for borrowed volumes: those of another node, whose device comes over the network
 * (attach/calls.h). They have rows of services.c in common with the node's own volumes, and
 * operations of their own. A call is about one if its publish_context says how its device is
 * reached; those that have no context, if the volume is in use here as one.
 */
#ifndef RINGVOL_CSI_BORROW_H
#define RINGVOL_CSI_BORROW_H

#include "attach/borrowed.h"
#include "csi/volume_op.h"
#include "node/health.h"

struct borrow_crypt;

/* The start of every operation on a borrowed volume. n.volume is NULL; n.dev.dev is its cover, or
 * what was opened over that. */
struct borrow_op {
	struct volume_op n;
	struct borrows *borrows;
	char tag[ATTACH_TAG_BYTES];
	const char *path, *field; /* what the call is about */
	bool counted;             /* in borrows->busy */
	struct attach_take_req take;
	struct attach_volume_req ask;
	struct attach_info info;    /* of the last call of attach */
	struct borrow_crypt *crypt; /* of an encrypted one, in the task's arena */
	bool found;                 /* info.found, of the call before */
	struct node_others others;
	struct mnt_on_req on;
	struct mnt_unmount_req unmount;
};

#define borrow_of(op_ptr) container_of(volume_op_of(op_ptr), struct borrow_op, n)

/* Whether the request is about a borrowed volume. */
bool csi_is_borrowed(
	const struct csi *csi, const struct csi_rpc *rpc, const ProtobufCMessage *request);

/* For prepare(): finds the tag in the id, and the volume if it is in use: n.dev.dev. ERR_NOT_FOUND:
 * no id of ours. */
int borrow_find(struct borrow_op *b, struct err *err);
/* Likewise of calls that bring a context and a capability. The key is in take.terms afterwards;
 * whoever ends wipes it. */
int borrow_find_terms(struct borrow_op *b, const Csi__V1__VolumeCapability *cap, struct err *err);
/* The entry; NULL: it is not in use (any more). */
struct borrowed *borrow_entry(const struct borrow_op *b);
/* For calls that bring a key, after the terms are known: refuses those that do not, if the volume
 * is encrypted. what: as in csi_key_check(). */
int borrow_check_key(struct borrow_op *b, Csi__V1__StringPair **secrets, size_t n, const char *what,
	struct err *err);
/* Whether its device is the cover, and the volume's bytes can be had only once it is opened. */
bool borrow_is_closed(const struct borrow_op *b);
/* The cleanup of all other rows: no key stays. */
void borrow_cleanup(struct csi_task *task);

/* ---- steps, or parts of them ---- */

/* A helper call of attach about the volume, into info; what it says is op's error. */
int borrow_call(struct op *op, enum attach_call call, uint64_t timeout_ms);
int borrow_call_end(struct op *op, int res, const char *what);
/* Connects, and makes the cover; afterwards the volume is in use. */
int borrow_take_run(struct op *op);
int borrow_take_end(struct op *op, int res);
int borrow_take_undo(struct op *op);
/* Of what was found or taken: the entry is as info says. */
int borrow_put(struct op *op);
/* The opposite. */
int borrow_give_run(struct op *op);
int borrow_give_end(struct op *op, int res);
/* An encrypted one's (borrow_crypt.c): the key is taken out of the request; what stands open is
 * opened with it, or grown, and looked at. The child's device is opened first. */
int borrow_key_run(struct op *op);
bool borrow_open_done(struct op *op);
int borrow_hold_call(struct op *op);
int borrow_hold_end(struct op *op, int res);
int borrow_hold_undo(struct op *op);
int borrow_open_run(struct op *op);
int borrow_open_end(struct op *op, int res);
int borrow_opened_run(struct op *op);
int borrow_opened_end(struct op *op, int res);
/* The cleanup of rows with these steps. */
void borrow_open_cleanup(struct csi_task *task);
/* A file system that grew has a clean log afterwards: volume_op's is about images. */
bool borrow_clean_done(struct op *op);
int borrow_clean_run(struct op *op);
int borrow_clean_end(struct op *op, int res);

/* ---- how it is ---- */

/* What is wrong with it, as ATTACH_LOOK and a look at its file system (info NULL: none) say; each
 * kind once. Returns how many. */
unsigned borrow_conditions(struct arena *arena, const struct borrow_op *b,
	const struct mnt_info *info, struct node_condition ret[NODE_CONDITION_KINDS]);

extern const struct csi_operation csi_borrow_stage, csi_borrow_publish, csi_borrow_release,
	csi_borrow_stats, csi_borrow_health, csi_borrow_expand;

#endif
