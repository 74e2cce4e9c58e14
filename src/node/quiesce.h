/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding a volume still while it is copied or shared, and thawing it. Child operations; the caller
 * has locked the volume (exclusively where it is to be frozen), so nothing is attached or mounted
 * meanwhile.
 */
#ifndef RINGVOL_NODE_QUIESCE_H
#define RINGVOL_NODE_QUIESCE_H

#include "node/owner.h"
#include "pool/pool.h"

struct node;

/* A mounted volume without reflink is copied under a freeze only up to this much data. */
#define NODE_FREEZE_COPY_MAX (256ULL << 20)

enum node_quiesce_why {
	/* Its bytes will be read over some time: a mounted volume is frozen where that lasts no
	 * longer than NODE_FREEZE_COPY_MAX bytes do. */
	NODE_QUIESCE_COPY,
	/* They will be shared, at one instant by the kernel's doing: a sync is enough, unless the
	 * volume's snapshotFreeze wants a freeze, or its log is not clean after a growth. */
	NODE_QUIESCE_SHARE,
	/* Likewise, beside other volumes that are shared at the same moment: a mounted volume is
	 * frozen. */
	NODE_QUIESCE_GROUP,
	/* Its log is to be clean: frozen and thawed at once if it has grown. */
	NODE_QUIESCE_LOG,
	/* An earlier attempt did the caller's work, and may have left it frozen: it is thawed.
	 * Nothing to do where nothing is mounted. */
	NODE_QUIESCE_LEFTOVER,
	/* Likewise an earlier run. What memory says of its mounts was read from the kernel just
	 * now, and is not looked at again; a thaw that overstays is not tried again either. */
	NODE_QUIESCE_ADOPTED,
};
enum node_quiesce_plan {
	NODE_PLAN_SYNC,
	NODE_PLAN_CLEAN, /* frozen and thawed in one call, for the log alone */
	NODE_PLAN_FREEZE,
};
enum node_freeze_state {
	NODE_NOT_FROZEN,
	NODE_FREEZE_OVERSTAYED, /* it may still come about */
	NODE_FROZEN,            /* node_thaw has to run */
	NODE_FREEZE_OVER,       /* thawed; the log is clean */
};

struct node_quiesce {
	struct op op;
	enum node_freeze_state freeze; /* out */
	/* private */
	struct node *node;
	struct pool_object *volume;
	int dirfd; /* of its image */
	enum node_quiesce_why why;
	char id[RECORD_ID_MAX], thaw_key[RECORD_ID_MAX + sizeof(" thaw")];
	struct backend_dev dev;
	enum node_quiesce_plan plan;
	bool marked;              /* the image carries our mark (also from an earlier attempt) */
	bool later;               /* the freeze is left to node_freeze_init() */
	bool moved;               /* the device is not mounted where memory says */
	uint64_t allocated_bytes; /* of the image after the sync */
	unsigned attempts;        /* of the lock or of thaws, and the pauses between */
	struct mnt_on_req on;     /* what is synced or frozen; path "" for nothing */
	struct mnt_info info;
	struct mnt_result result;
	struct node_others others;
};

/*
 * What is attached is measured after its sync (volume->allocated_bytes). ERR_PRECONDITION: it
 * cannot be held still (names the remedy), or somebody else has frozen it. ERR_TIMEOUT: it does not
 * answer.
 */
void node_quiesce_init(struct node_quiesce *q, struct node *node, struct pool_object *volume,
	enum node_quiesce_why why);
/* The same but for the freeze, which is left to node_freeze_init(): all that takes long is done
 * then. Where the volume is to be frozen, its image carries our mark afterwards: either a freeze
 * follows, or node_thaw_init(), which then only takes the mark away. */
void node_quiesce_ready_init(struct node_quiesce *q, struct node *node, struct pool_object *volume,
	enum node_quiesce_why why);
/* Freezes what is ready, if it is to be frozen. Uses q's memory, as node_thaw_init() does. */
void node_freeze_init(struct node_quiesce *q);
/* Whether the volume is mounted, so that it can be frozen. */
bool node_can_freeze(const struct pool_object *volume);
/* Ends what node_quiesce began; nothing to do unless q->freeze is NODE_FROZEN, or q has marked the
 * image. Uses q's memory: its own operation must have ended. Tries until it is thawed; when it
 * fails all the same (refused, or the driver shuts down) the mark stays, and the next attempt or
 * start thaws. */
void node_thaw_init(struct node_quiesce *q);

#endif
