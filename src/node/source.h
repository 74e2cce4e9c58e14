/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source of a clone, a restore or a snapshot: finding it, keeping it still (quiesce.h), its
 * bytes as what pool_build fills the new image with, and stopping a long copy.
 */
#ifndef RINGVOL_NODE_SOURCE_H
#define RINGVOL_NODE_SOURCE_H

#include "node/lock.h"
#include "node/quiesce.h"
#include "pool/fill.h"
#include "pool/pool.h"

struct node;

struct node_source {
	struct node *node;
	struct pool_object *object; /* NULL: there is none, or it is on another node */
	/* What the bytes are: the object's record, or what the other node says. NULL: none. */
	const struct record *rec;
	bool share;   /* by sharing extents, not by a copy */
	bool stopped; /* shutting down: the copy is to stop */
	struct node_quiesce quiesce;
	struct pool_clone clone;
};

/* How what the id names is to be locked: shared, but exclusively a volume that may be in use and so
 * has to be quiesced. */
enum node_lock_mode node_source_lock_mode(
	const struct node *node, enum record_kind kind, const char *id);
/* Finds and checks it. thick: the target's. Errors as pools_find_id(), ERR_UNAVAILABLE, and
 * ERR_DATA_LOSS (its image is short). */
int node_source_find(struct node_source *source, struct node *node, enum record_kind kind,
	const char *id, bool thick, struct err *err);
/* Whether what is made of the object may share its extents. thick: the target's. */
bool node_can_share(const struct pool_object *object, bool thick);
/* Room that sharing a volume takes, as node_source_shared_room() of a source that is shared. */
uint64_t node_share_room(const struct pool_object *object);
/* Room that sharing takes beyond the new object's own size: blocks of the source's that may be
 * needed a second time once it is written to. */
uint64_t node_source_shared_room(const struct node_source *source);

/* For steps: before and after the build. thaw is the undo of quiesce as well. */
int node_source_quiesce(struct op *op, struct node_source *source);
int node_source_thaw(struct op *op, struct node_source *source);
/* Instead of all these where an earlier attempt has built it already: that may have left the volume
 * of the id frozen. */
int node_source_leftover(
	struct op *op, struct node_source *source, struct node *node, const char *id);
/* Makes the source's bytes the build's. */
void node_source_fill(struct node_source *source, struct pool_build *build);
/* The end of the build's step. */
int node_source_end(struct op *op, const struct node_source *source, int res);
/* Stops a copy, also one that has not begun. source: a struct node_source. */
void node_source_stop(void *source);
/* Bytes looked at and in all; false while nothing is copied. source: a struct node_source. */
bool node_source_progress(const void *source, uint64_t *ret_done, uint64_t *ret_total);

#endif
