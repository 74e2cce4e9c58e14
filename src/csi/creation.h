/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CreateVolume and CreateSnapshot share. Both are idempotent by name, may copy a source that
 * is quiesced meanwhile, and have a build whose link is the commit. A source is released whatever
 * happens.
 */
#ifndef RINGVOL_CSI_CREATION_H
#define RINGVOL_CSI_CREATION_H

#include "csi/rpc.h"
#include "node/source.h"
#include "pool/build.h"

/* The start of either operation's struct. */
struct csi_creation {
	struct csi_task task;
	const char *name;
	const char *source_id; /* "": it is made from nothing */
	struct node_source source;
	struct pool_object *object; /* found or made */
	struct pool_measure measure;
	struct pool_resync settle;
	struct pool_build build;
	bool building;
};

#define creation_of(op_ptr) csi_task_of(op_ptr, struct csi_creation)

/* Locks what source_id names. A drain stops its copy. */
void creation_lock_source(struct csi_creation *c, enum record_kind kind);
/* The object that has the name, NULL: none. ERR_EXISTS: a damaged one has it. */
int creation_find(const struct csi_creation *c, struct pool_object **ret, struct err *err);
/* Prepares c->build. */
int creation_init_build(
	struct csi_creation *c, struct pool *pool, const struct record *rec, struct err *err);

/* ---- steps ---- */

bool creation_exists(struct op *op);
/* What was found may lack a sync. */
bool creation_durable(struct op *op);
int creation_make_durable(struct op *op);
/* What was found may have been made by an attempt that left the source frozen. */
int creation_thaw_leftover(struct op *op);
/* A live volume: what it holds decides whether it can be quiesced, and how much room is needed. The
 * build measures by itself when the last measure is too old for its admission. */
bool creation_measured(struct op *op);
int creation_measure(struct op *op);
bool creation_sourceless(struct op *op);
int creation_quiesce(struct op *op);
bool creation_released(struct op *op);
int creation_release(struct op *op);
int creation_build_end(struct op *op, int res);

/* The rows' cleanup. */
void creation_cleanup(struct csi_task *task);

#endif
