/* SPDX-License-Identifier: Apache-2.0 */
/* What the node operations share: looking up, inspecting paths, calling helpers for a volume. */
#ifndef RINGVOL_CSI_NODE_H
#define RINGVOL_CSI_NODE_H

#include "csi/fields.h"
#include "csi/task.h"
#include "mount/mnt.h"
#include "node/owner.h"
#include "node/volume.h"

/* The start of every node operation's struct. */
struct node_op {
	struct csi_task task;
	const char *id;             /* the volume's, from the request */
	struct pool_object *volume; /* NULL where the operation works from the path alone */
	const struct backend *backend;
	struct csi_access access;
	/* What is mounted by this use. FSIMG_NONE: it is for block; for who changes the volume's
	 * mode without naming a type: that of the image. */
	enum fsimg_type fs;
	bool changes_mode;        /* a mount of what was made for block, which its record allows */
	struct mnt_path_req path; /* what is being inspected */
	struct mnt_info info;     /* what was found */
	struct mnt_result result; /* of the last helper call that changes something */
	struct backend_req dev;
};

#define node_op_of(op_ptr) csi_task_of(op_ptr, struct node_op)

/* Takes the volume's lock, whether the volume is known or not, so that operations by id and by name
 * meet. */
void node_op_lock(struct node_op *n);
/* What csi_task_start() asks for, known volume or not. */
struct lane *node_lane(const struct node_op *n);
/* Looks the volume up and checks that the capability asked for fits what it was made as, or what
 * its record allows besides. */
int node_op_find(struct node_op *n, const Csi__V1__VolumeCapability *cap, struct err *err);
/* 0, or ERR_INVALID naming the field: an absolute path of sane length. */
int node_check_path(const char *field, const char *path, struct err *err);

/* For RPCs that look for a volume at a path: one that cannot be a path is where no volume is,
 * ERR_NOT_FOUND (csi-sanity asks so). */
int node_check_volume_path(const struct node_op *n, const char *path, struct err *err);

/* A helper call for this volume; the result goes to the step's end. */
int node_helper(struct op *op, enum mnt_call call, const void *req, size_t req_len, void *resp,
	size_t resp_cap, uint64_t timeout_ms);
/* The same by another key than the volume's id; it lives until the step's end. */
int node_helper_by(struct op *op, const char *key, enum mnt_call call, const void *req,
	size_t req_len, void *resp, size_t resp_cap, uint64_t timeout_ms);
/* MNT_INSPECT of path into n->info. Its end is node_inspect_end. */
int node_inspect(struct op *op, const char *path);
int node_inspect_end(struct op *op, int res);
/* The known volume whose mount the path lies in that node_inspect() looked at; NULL: none's. */
const struct pool_object *node_nested_in(const struct node_op *n);
/* 0, or a failure that names it. */
int node_check_not_nested(struct op *op, const char *field);
/* The message of a failed helper call: what was tried on what, and what the helper said. */
int node_fail(struct op *op, int res, const char *what, const char *path);

/* Fills n->dev for the volume (n->volume must be set). */
void node_prepare_backend(struct node_op *n);

#endif
