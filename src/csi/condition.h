/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wrong with a volume or a pool, since when, and what to do about it: the one place that
 * knows. The condition of CSI 1.12, the health RPCs of 1.13, /metrics and the tools all say what is
 * found here. It is computed from memory when it is asked for; memory is kept true by the watch
 * (watch.h), the node operations and the pools. docs/health.md describes each.
 */
#ifndef RINGVOL_CSI_CONDITION_H
#define RINGVOL_CSI_CONDITION_H

#include "csi/csi.h"

#include <stdint.h>

/* Worst first: the order in which they are told. */
enum csi_condition_kind {
	CSI_QUARANTINED,
	CSI_IMAGE_MISSING,
	CSI_IMAGE_TRUNCATED,
	CSI_POOL_MISSING, /* or not read yet */
	CSI_POOL_SICK,
	CSI_DEVICE_GONE,
	CSI_DEVICE_UNSERVED, /* who serves it in user space is away */
	CSI_HANGING,
	CSI_FS_SHUT_DOWN,
	CSI_FS_READ_ONLY,
	CSI_IO_ERRORS,
	CSI_POOL_FULL,
	CSI_POOL_NEARLY_FULL,
	CSI_SLOW,
	CSI_LOOP_NODE, /* a pod holds a loop node, as earlier versions published them */
	CSI_CONDITION_KINDS,
};

/* "IOErrors": for machines. */
extern const char *const csi_condition_names[CSI_CONDITION_KINDS];

struct csi_condition {
	enum csi_condition_kind kind;
	uint64_t since_ns;  /* ring_now_ns(), which no clock jump moves; 0: since before this run */
	int64_t since_unix; /* the same in seconds by the wall clock; 0 likewise */
	const char *reason; /* a sentence with the remedy; static or in the arena */
};

/* Each kind at most once. Out of memory costs the details of the reasons, never a condition.
 * Returns how many; 0: the volume is well. volume may be quarantined. */
unsigned csi_volume_conditions(struct arena *arena, const struct csi *csi,
	const struct pool_object *volume, struct csi_condition ret[CSI_CONDITION_KINDS]);
/* Likewise of a pool by itself: missing, sick, full or nearly. */
unsigned csi_pool_conditions(struct arena *arena, const struct csi *csi, const struct pool *pool,
	struct csi_condition ret[CSI_CONDITION_KINDS]);
/* The reason of the worst condition; NULL when the volume is well. */
const char *csi_volume_abnormal(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume);

/* Notes in a node_health that a condition has come or gone, and logs it when that is new. */
struct node_volume;
void csi_find(struct csi *csi, struct node_volume *node, enum csi_condition_kind kind,
	uint64_t *since_ns, bool wrong);
/* Likewise of a call on the volume: it has overstayed, or come back in time. node may be NULL. */
void csi_find_hanging(struct csi *csi, struct node_volume *node, bool wrong);

/* A moment of ring_now_ns() in seconds of the wall clock: always the same number for the same
 * moment, until the clock jumps. */
int64_t csi_unix_time(const struct csi *csi, uint64_t ns);
/* Looks whether it has jumped. */
void csi_follow_clock(struct csi *csi);

#endif
