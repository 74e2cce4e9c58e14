/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding a volume still while it is copied or shared (quiesce.c), and thawing it (thaw.c). Child
 * operations; the caller holds the volume's lock (exclusive where it is to be frozen), so nothing
 * is attached or mounted meanwhile.
 */
#ifndef RINGVOL_NODE_QUIESCE_H
#define RINGVOL_NODE_QUIESCE_H

#include "node/mounts.h"
#include "pool/pool.h"

struct node;

/* A mounted volume without reflink is copied under a freeze only up to this much data. */
#define NODE_FREEZE_COPY_MAX (256ULL << 20)

struct node_quiesce {
	struct op op;
	/* set by node_quiesce_init() */
	struct node *node;
	struct pool_object *volume;
	bool reflink;
	/* private */
	int dirfd;
	char id[RECORD_ID_MAX], thaw_key[RECORD_ID_MAX + sizeof(" thaw")];
	struct backend_dev dev;
	bool adopting;            /* node_thaw_leftover_init()'s */
	bool freeze;              /* decided: a freeze is needed */
	bool brief;               /* decided: thawed at once, it is for the log alone */
	bool marked;              /* the image carries our mark (also from an earlier attempt) */
	bool moved;               /* the device is not mounted where memory says */
	bool overstayed;          /* the freeze did; it may still come about */
	bool frozen;              /* node_thaw has to run */
	bool cleaned;             /* the freeze has come about: the log is clean */
	uint64_t allocated_bytes; /* of the image after the sync */
	unsigned attempts;        /* of the lock or of thaws, and the pauses between */
	struct mnt_on_req on;     /* what is synced or frozen; path "" for nothing */
	struct mnt_info info;
	struct mnt_result result;
	struct node_others others;
};

/*
 * reflink: the bytes will be shared, at one instant by the kernel's doing: a sync is enough, unless
 * the volume's snapshotFreeze wants a freeze, or its log is not clean after a growth. Otherwise
 * they will be read over some time: a mounted volume is frozen where that lasts no longer than
 * NODE_FREEZE_COPY_MAX bytes do. What is attached is measured after its sync
 * (volume->allocated_bytes). ERR_PRECONDITION: it cannot be held still (names the remedy), or
 * somebody else has frozen it. ERR_TIMEOUT: it does not answer.
 */
void node_quiesce_init(
	struct node_quiesce *q, struct node *node, struct pool_object *volume, bool reflink);
/* Ends what node_quiesce began; nothing to do unless q->frozen. Uses q's memory, whose own
 * operation must have ended. Tries until it is thawed; when it fails all the same (refused, or the
 * driver shuts down) the mark stays, and the next attempt or start thaws. */
void node_thaw_init(struct node_quiesce *q);
/* For who finds that its work was done by an earlier attempt: thaws what that one may have left
 * frozen. Nothing to do where nothing is mounted. Errors as node_quiesce_init(). adopting: what
 * memory says of its mounts was read from the kernel just now, and is not looked at again; a thaw
 * that overstays is not tried again either. */
void node_thaw_leftover_init(
	struct node_quiesce *q, struct node *node, struct pool_object *volume, bool adopting);

#endif
