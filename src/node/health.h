/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Health: what is wrong with a volume or a pool, since when, and what to do about it. Each reason
 * is a condition; docs/health.md describes them. The condition of CSI 1.12, the health RPCs
 * of 1.13, /metrics and the tools all say what is found here. It is computed from memory when
 * somebody asks; the watch (watch.h), the node operations and the pools keep memory true.
 */
#ifndef RINGVOL_NODE_HEALTH_H
#define RINGVOL_NODE_HEALTH_H

#include "base/arena.h"
#include "pool/pool.h"
#include "pool/room.h"

#include <stdint.h>

struct node;
struct node_volume;

/* Worst first: the order in which they are told. */
enum node_condition_kind {
	NODE_QUARANTINED,
	NODE_IMAGE_MISSING,
	NODE_IMAGE_TRUNCATED,
	NODE_POOL_MISSING, /* or not read yet */
	NODE_POOL_SICK,
	NODE_THIN_POOL, /* the thin pool of a raw pool cannot be used, or not written to */
	NODE_DEVICE_GONE,
	NODE_DEVICE_UNSERVED, /* the data process that serves it is away */
	NODE_HANGING,
	NODE_FS_SHUT_DOWN,
	NODE_FS_READ_ONLY,
	NODE_IO_ERRORS,
	NODE_POOL_FULL,
	NODE_POOL_NEARLY_FULL,
	NODE_THIN_POOL_LOW, /* it cannot be grown, and has little left */
	NODE_SLOW,
	NODE_LOOP_NODE, /* a pod holds a loop node, as earlier versions published them */
	NODE_LIMIT_NOT_ENFORCED,
	NODE_CONDITION_KINDS,
};

/* "IOErrors": for machines. */
extern const char *const node_condition_names[NODE_CONDITION_KINDS];

struct node_condition {
	enum node_condition_kind kind;
	uint64_t since_ns;  /* ring_now_ns(), which no clock jump moves; 0: since before this run */
	int64_t since_unix; /* the same in seconds by the wall clock; 0 likewise */
	const char *reason; /* a sentence with the remedy; static or in the arena */
};

/* Each kind at most once. Out of memory costs the details of the reasons, never a condition.
 * Returns how many; 0: the volume is well. volume may be quarantined. */
unsigned node_volume_conditions(struct arena *arena, const struct node *node,
	const struct pool_object *volume, struct node_condition ret[NODE_CONDITION_KINDS]);
/* Likewise of a pool by itself: missing, sick, full or nearly. */
unsigned node_pool_conditions(struct arena *arena, const struct node *node, const struct pool *pool,
	struct node_condition ret[NODE_CONDITION_KINDS]);
/* The reason of the worst condition; NULL when the volume is well. */
const char *node_volume_abnormal(
	struct arena *arena, const struct node *node, const struct pool_object *volume);

/* Notes in a node_health that a condition has come or gone, and logs it when that is new. */
void node_note(
	struct node *node, struct node_volume *nv, enum node_condition_kind kind, bool wrong);
/* Likewise of a call on the volume: it has overstayed, or come back in time. nv NULL: nothing to
 * note. */
void node_note_hanging(struct node *node, struct node_volume *nv, bool wrong);

/* The key of a checkup's helper calls, and of those for statistics: a call with the same key begins
 * when none of them is under way. */
void node_stats_key(const char *id, char ret_key[HELPER_KEY_BYTES]);
/* Since when (ring_now_ns) a call on the volume has been hanging, of an operation or of a checkup;
 * 0: none is. */
uint64_t node_hung_since(const struct node *node, const struct pool_object *volume);

/* A moment of ring_now_ns() in seconds of the wall clock: always the same number for the same
 * moment, until the clock jumps. */
int64_t node_unix_time(const struct node *node, uint64_t ns);
/* Looks whether it has jumped. */
void node_follow_clock(struct node *node);

#endif
