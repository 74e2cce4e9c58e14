/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operations on a volume share. Those of the Node service *converge*: they look at what is
 * attached and mounted, do what is missing, and can be repeated after any failure.
 */
#include "csi/volume_op.h"

#include "base/fd.h"
#include "base/secret.h"
#include "blockio/boot_mark.h"
#include "csi/key.h"
#include "csi/request.h"
#include "mount/mnt_scan.h"
#include "node/health.h"
#include "pool/index.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

int volume_op_check_path(const struct volume_op *n, const char *path, struct err *err)
{
	struct err why = {0};
	if (csi_check_path("volume_path", path, &why) == 0)
		return 0;
	return err_set(err, ERR_NOT_FOUND, "volume %s is not there: %.300s", n->volume->rec->name,
		why.message);
}

int volume_op_find(struct volume_op *n, const Csi__V1__VolumeCapability *cap, struct err *err)
{
	int r = pools_find_id(n->task.csi->pools, RECORD_VOLUME, n->task.id, &n->volume, err);
	if (r < 0)
		return r;
	const struct record *rec = n->volume->rec;
	csi_task_names(&n->task, rec);
	r = n->takes_inline ? 0 : pool_check_not_inline(n->volume, err);
	if (r < 0)
		return r;
	n->backend = backend_get(rec->device);
	if (n->backend == NULL)
		return err_set(err, ERR_PRECONDITION,
			"volume %s: its device type is not available on this node", rec->name);
	if (cap == NULL)
		return 0;
	r = csi_access_parse_many(cap, rec->fs == FSIMG_NONE ? FSIMG_EXT4 : rec->fs,
		n->task.csi->config.attach, &n->access, err);
	if (r == 0)
		r = csi_access_check_nodes(&n->access, rec->attach == RECORD_ATTACH_REMOTE, err);
	if (r < 0)
		return r;
	n->fs = rec->fs;
	n->changes_mode = rec->fs == FSIMG_NONE && !n->access.block;
	if (n->changes_mode && rec->allow_mode_change)
		n->fs = n->access.fs_given ? n->access.fs : FSIMG_NONE;
	else if (n->access.block != (rec->fs == FSIMG_NONE))
		return err_set(err, ERR_PRECONDITION,
			"volume %s was made as a %s volume and cannot be used as a %s volume%s",
			rec->name, rec->fs == FSIMG_NONE ? "block" : "mount",
			n->access.block ? "block" : "mount",
			n->changes_mode
				? ", as its class did not say allowVolumeModeChange: \"true\" when it was made"
				: "");
	else if (!n->access.block && n->access.fs != rec->fs)
		return err_set(err, ERR_PRECONDITION, "volume %s holds %s, fs_type asks for %s",
			rec->name, fsimg_name(rec->fs), fsimg_name(n->access.fs));
	return pool_check_ready(n->volume->pool, err);
}

int volume_op_helper_by(struct op *op, const char *key, enum mnt_call call, const void *req,
	size_t req_len, void *resp, size_t resp_cap, uint64_t timeout_ms)
{
	struct volume_op *n = volume_op_of(op);
	memset(resp, 0, resp_cap);
	int r = op_helper(op, call, key, req, req_len, resp, resp_cap, timeout_ms);
	if (r == -EAGAIN)
		return op_fail(op, ERR_NO_ROOM, "too many calls wait for a helper process");
	if (r < 0)
		return op_fail_sys(op, r, "volume %s: helper process", n->task.id);
	return r;
}

int volume_op_helper(
	struct op *op, enum mnt_call call, const void *req, size_t req_len, uint64_t timeout_ms)
{
	struct volume_op *n = volume_op_of(op);
	return volume_op_helper_by(
		op, n->task.id, call, req, req_len, &n->result, sizeof(n->result), timeout_ms);
}

int volume_op_fail(struct op *op, int res, const char *what, const char *path)
{
	struct volume_op *n = volume_op_of(op);
	struct node_volume *node = n->volume == NULL ? NULL : node_volume_find(n->volume);
	n->result.why[sizeof(n->result.why) - 1] = '\0';
	if (res == -ETIMEDOUT) {
		node_note_hanging(n->task.csi->node, node, true);
		return op_fail(op, ERR_TIMEOUT,
			"volume %s: %s of %s hangs; see the kernel log for its device", n->task.id,
			what, path);
	}
	if (res == -ENOTEMPTY)
		return op_fail(op, ERR_PRECONDITION,
			"%s of %s: it is not empty, and what it holds would be hidden; move that away",
			what, path);
	if (n->result.why[0] != '\0' && (res == -EINVAL || res == -ENOTDIR || res == -ELOOP))
		return op_fail(op, ERR_INVALID, "%s of %s: %s", what, path, n->result.why);
	if (n->result.why[0] != '\0')
		return op_fail_sys(op, res, "%s of %s: %s", what, path, n->result.why);
	return op_fail_sys(op, res, "%s of %s", what, path);
}

int volume_op_inspect(struct op *op, const char *path)
{
	struct volume_op *n = volume_op_of(op);
	snprintf(n->path.path, sizeof(n->path.path), "%s", path);
	return volume_op_helper_by(op, n->task.id, MNT_INSPECT, &n->path, sizeof(n->path), &n->info,
		sizeof(n->info), NODE_STAT_TIMEOUT_MS);
}

int volume_op_inspect_end(struct op *op, int res)
{
	struct volume_op *n = volume_op_of(op);
	if (res == 0)
		return 0;
	memcpy(n->result.why, n->info.why, sizeof(n->result.why));
	if (res == -ELOOP)
		return op_fail(op, ERR_INVALID,
			"%s: a component is a symbolic link, which is refused", n->path.path);
	return volume_op_fail(op, res, "inspection", n->path.path);
}

const struct pool_object *volume_op_nested_in(const struct volume_op *n)
{
	if (n->info.on_major == 0)
		return NULL;
	list_for_each (link, &n->task.csi->node->attached) {
		const struct node_volume *node = container_of(link, struct node_volume, attached);
		if (node->dev.major == n->info.on_major && node->dev.minor == n->info.on_minor)
			return node->volume;
	}
	return NULL;
}

int volume_op_check_not_nested(struct op *op, const char *field)
{
	const struct volume_op *n = volume_op_of(op);
	const struct pool_object *volume = volume_op_nested_in(n);
	bool borrowed =
		borrows_at(n->task.csi->borrows, n->info.on_major, n->info.on_minor) != NULL;
	if (volume == NULL && !borrowed)
		return 0;
	if (borrowed)
		return op_fail(op, ERR_INVALID,
			"%s: %s lies inside the mount of a volume of another node; give a path outside of volumes",
			field, n->path.path);
	return op_fail(op, ERR_INVALID,
		"%s: %s lies inside the mount of volume %s; give a path outside of volumes", field,
		n->path.path, volume->rec->name);
}

void volume_op_prepare_backend(struct volume_op *n)
{
	node_volume_request(n->volume, &n->dev);
	n->dev.raw &= !n->changes_mode;
	n->dev.secret = n->key;
}

/* The requests that have secrets have them as one field of one type. */
int volume_op_take_key_if(struct op *op, bool encrypted)
{
	struct volume_op *n = volume_op_of(op);
	const ProtobufCMessage *request = n->task.request;
	const ProtobufCFieldDescriptor *secrets =
		protobuf_c_message_descriptor_get_field_by_name(request->descriptor, "secrets");
	assert(secrets != NULL);
	size_t count = *(const size_t *)((const char *)request + secrets->quantifier_offset);
	Csi__V1__StringPair **pairs =
		*(Csi__V1__StringPair * *const *)((const char *)request + secrets->offset);
	int r = csi_key_take(pairs, count, encrypted ? &n->key : NULL);
	return r < 0 ? op_fail_sys(op, r, "volume %s: taking its key", n->task.id) : 0;
}

int volume_op_take_key(struct op *op)
{
	return volume_op_take_key_if(op, volume_op_of(op)->volume->rec->encryption != RECORD_PLAIN);
}

void volume_op_cleanup(struct csi_task *task)
{
	struct volume_op *n = container_of(task, struct volume_op, task);
	secret_free(n->key);
	n->key = NULL;
}

/* ---- the first time ---- */

bool volume_op_durable_done(struct op *op)
{
	return !volume_op_of(op)->volume->unsynced;
}

int volume_op_durable_run(struct op *op)
{
	struct volume_op *n = volume_op_of(op);
	pool_resync_init(&n->settle, op->reactor, n->volume->pool, RECORD_VOLUME, n->volume);
	return op_child(op, &n->settle.op);
}

bool volume_op_first_done(struct op *op)
{
	return !volume_op_of(op)->volume->rec->unformatted;
}

int volume_op_first_run(struct op *op)
{
	struct volume_op *n = volume_op_of(op);
	n->first = node_first_stage_new(n->task.csi->node, n->volume, n->key);
	return n->first != NULL ? op_child(op, &n->first->op)
				: op_fail(op, ERR_NO_ROOM, "out of memory");
}

int volume_op_first_end(struct op *op, int res)
{
	struct volume_op *n = volume_op_of(op);
	node_first_stage_free(n->first);
	n->first = NULL;
	return res;
}

/* ---- steps, or parts of them ---- */

int volume_op_ignore(struct op *op, int res)
{
	(void)op;
	(void)res;
	return 0;
}

int volume_op_device_end(struct op *op, int res)
{
	struct volume_op *n = volume_op_of(op);
	int r = backend_end(op, &n->dev, res);
	struct node_volume *node = node_volume_find(n->volume);
	if (r == 0 && node != NULL)
		node_volume_set_dev(n->task.csi->node, node, &n->dev.dev);
	return r;
}

int volume_op_prepare_growth(struct op *op)
{
	struct volume_op *n = volume_op_of(op);
	node_clean_log_prepare_init(&n->clean, n->task.csi->node, n->volume);
	return op_child(op, &n->clean.op);
}

int volume_op_grow(struct op *op, const char *path, enum fsimg_type fs)
{
	struct volume_op *n = volume_op_of(op);
	node_on(&n->grow.on, path, &n->dev.dev);
	n->grow.type = fs;
	n->grow.size_bytes = n->dev.dev.size_bytes;
	return volume_op_helper(op, MNT_GROW, &n->grow, sizeof(n->grow), CSI_GROW_TIMEOUT_MS);
}

int volume_op_clean_log(struct op *op)
{
	struct volume_op *n = volume_op_of(op);
	node_clean_log_init(&n->clean, n->result.grown);
	return op_child(op, &n->clean.op);
}

bool volume_op_limits_done(struct op *op)
{
	const struct volume_op *n = volume_op_of(op);
	const struct node_volume *node = n->volume != NULL ? node_volume_find(n->volume) : NULL;
	return node == NULL || !node->dev.attached || !node_limits_matter(node);
}

int volume_op_limits(struct op *op)
{
	struct volume_op *n = volume_op_of(op);
	node_limits_look_init(&n->limits, n->task.csi->node, n->volume);
	return op_child(op, &n->limits.op);
}

/* The next run knows the path from the kernel's list of mounts. */
static int mark_job(void *arg)
{
	const struct volume_op *n = arg;
	_cleanup_free_ char *path = n->writer_path == NULL ? NULL : mnt_scan_name(n->writer_path);
	if (path == NULL && n->writer_path != NULL)
		return -ENOMEM;
	_cleanup_fd_ int fd = openat(n->dirfd, n->volume->key, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return path == NULL ? boot_mark_remove(fd, BOOT_MARK_WRITER)
			    : boot_mark_set(fd, BOOT_MARK_WRITER, path);
}

static int mark_whole_job(void *arg)
{
	const struct volume_op *n = arg;
	_cleanup_fd_ int fd = node_open_image(n->dirfd, n->volume);
	if (fd < 0)
		return fd;
	return n->whole ? boot_mark_set(fd, BOOT_MARK_WHOLE, "")
			: boot_mark_remove(fd, BOOT_MARK_WHOLE);
}

int volume_op_mark_whole(struct op *op, bool whole)
{
	struct volume_op *n = volume_op_of(op);
	n->dirfd = pool_dirfd(n->volume->pool, RECORD_VOLUME);
	n->whole = whole;
	return op_work(op, mark_whole_job, n);
}

int volume_op_mark_writer(struct op *op, const char *path)
{
	struct volume_op *n = volume_op_of(op);
	/* The volume's lock keeps it from being deleted meanwhile. */
	n->dirfd = pool_dirfd(n->volume->pool, RECORD_VOLUME);
	n->writer_path = path;
	return op_work(op, mark_job, n);
}
