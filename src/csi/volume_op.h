/* SPDX-License-Identifier: Apache-2.0 */
/* What the operations on a volume share: looking it up, inspecting paths, calling helpers for it.
 */
#ifndef RINGVOL_CSI_VOLUME_OP_H
#define RINGVOL_CSI_VOLUME_OP_H

#include "csi/access.h"
#include "csi/rpc.h"
#include "mount/mnt.h"
#include "node/clean_log.h"
#include "node/first_stage.h"
#include "node/limits.h"
#include "node/volume.h"
#include "pool/sync.h"

/* The start of the struct of every operation on a volume. */
struct volume_op {
	struct csi_task task;
	struct pool_object *volume; /* NULL where the operation works from the path alone */
	const struct backend *backend;
	struct csi_access access;
	/* The file system to mount. FSIMG_NONE: the use is block; or the volume's mode changes and
	 * the request names no type: that of the image. */
	enum fsimg_type fs;
	bool takes_inline; /* the operation is for inline volumes, too: set before the find */
	bool changes_mode; /* a volume made for block is mounted, as its record allows */
	struct mnt_path_req path; /* what is being inspected */
	struct mnt_info info;     /* what was found */
	struct mnt_result result; /* of the last helper call that changes something */
	struct backend_req dev;
	struct secret *key; /* of an encrypted one, where the request brings it */
	struct node_clean_log clean;
	struct node_limits_look limits;
	struct pool_resync settle;
	struct node_first_stage *first; /* under way */
	struct mnt_grow_req grow;
	/* Of the job of volume_op_mark_writer() and volume_op_mark_whole(). */
	int dirfd;
	const char *writer_path;
	bool whole;
};

#define volume_op_of(op_ptr) csi_task_of(op_ptr, struct volume_op)

/* Looks the volume up, and checks that the capability fits the way the volume was made or what its
 * record allows besides. cap NULL: nothing is checked. */
int volume_op_find(struct volume_op *n, const Csi__V1__VolumeCapability *cap, struct err *err);
/* For RPCs that look for a volume at a path. No volume is at what cannot be a path: ERR_NOT_FOUND
 * (csi-sanity asks for that). */
int volume_op_check_path(const struct volume_op *n, const char *path, struct err *err);

/* A helper call for this volume, which changes something: n->result. */
int volume_op_helper(
	struct op *op, enum mnt_call call, const void *req, size_t req_len, uint64_t timeout_ms);
/* One by another key than the volume's id; it lives until the step's end. */
int volume_op_helper_by(struct op *op, const char *key, enum mnt_call call, const void *req,
	size_t req_len, void *resp, size_t resp_cap, uint64_t timeout_ms);
/* MNT_INSPECT of path into n->info. Its end is volume_op_inspect_end. */
int volume_op_inspect(struct op *op, const char *path);
int volume_op_inspect_end(struct op *op, int res);
/* The known volume in whose mount the inspected path lies. NULL: it lies in none. */
const struct pool_object *volume_op_nested_in(const struct volume_op *n);
/* 0, or a failure that names that volume. */
int volume_op_check_not_nested(struct op *op, const char *field);
/* The message of a failed helper call: what was tried on what, and what the helper said. */
int volume_op_fail(struct op *op, int res, const char *what, const char *path);

/* The first step: takes the key out of the request's secrets, if the volume is encrypted. The row's
 * cleanup frees it. */
int volume_op_take_key(struct op *op);
/* The same, of an operation that knows by itself whether the volume is. */
int volume_op_take_key_if(struct op *op, bool encrypted);
void volume_op_cleanup(struct csi_task *task);

/* Two steps before any other use, for whoever brings the key: an encrypted volume that was never
 * used gets its header and file system (node/first_stage.h). The one before makes durable what an
 * earlier attempt has done of that. */
bool volume_op_durable_done(struct op *op);
int volume_op_durable_run(struct op *op);
bool volume_op_first_done(struct op *op);
int volume_op_first_run(struct op *op);
int volume_op_first_end(struct op *op, int res);

/* Fills n->dev for the volume (n->volume must be set). */
void volume_op_prepare_backend(struct volume_op *n);

/* ---- steps, or parts of them ---- */

/* What fails here keeps nobody from the volume. */
int volume_op_ignore(struct op *op, int res);
/* The end of a backend's call about n->dev, which becomes the volume's device. */
int volume_op_device_end(struct op *op, int res);
/* The growth of the file system at path to its device's size, what has to be done before, and a
 * clean log after it (node/clean_log.h). */
int volume_op_prepare_growth(struct op *op);
int volume_op_grow(struct op *op, const char *path, enum fsimg_type fs);
int volume_op_clean_log(struct op *op);
/* Puts the I/O limits in force where the volume is used now. What cannot be is a condition. */
bool volume_op_limits_done(struct op *op);
int volume_op_limits(struct op *op);
/* Marks the image for the next run of the driver: the path is its only writer's. NULL: nobody is
 * the only writer any more. */
int volume_op_mark_writer(struct op *op, const char *path);
/* Likewise: it is published without having been staged, or is not any more. */
int volume_op_mark_whole(struct op *op, bool whole);

#endif
