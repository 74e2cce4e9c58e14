/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GetMetadataAllocated and GetMetadataDelta: where a snapshot has data, and in what it differs from
 * an earlier one. No data is read: the file system tells where the images' blocks lie, and blocks
 * that two images share are equal (blockio/extents.h). In a raw pool dm-thin's metadata tell the
 * same (disk/thin_blocks.h).
 *
 * Happy path: both images are opened -> a window of their extents is looked at on a thread -> what
 * was found is sent; when the client has room, the next window. A range that reaches the end of a
 * window is kept back, so that it comes out whole. Behind the end of a base that was smaller all of
 * the target is new. Of an encrypted volume the ranges are moved by its header's room, as a volume
 * made of the snapshot shows what is behind that.
 *
 * How it can fail: the snapshots share no extents (another pool, or a file system that cannot); the
 * file system is moving data about; the client does not read, or goes (stream.h). What was sent
 * stays true, and the client goes on behind it.
 */
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"

#include "base/fd.h"
#include "blockio/extents.h"
#include "blockio/fs_moves.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/thin_snapshots.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum {
	RANGES_PER_MESSAGE = 1024,
	STREAMS_MAX = 32, /* at once; each has 40 KiB and a job on a thread */
};

struct metadata {
	struct csi_task task;
	const struct pool_object *base, *target; /* base NULL: what target has is asked for */
	int base_fd, target_fd;
	uint64_t header_bytes; /* of the image, before the volume's first byte */
	uint64_t size_bytes;   /* the volume's */
	uint64_t at, both_end,
		end; /* of the images: the next byte; where one of them ends, and target */
	unsigned max_results;
	struct extents_window window;
	struct pool_thin_snapshots thin; /* instead, in a raw pool */
	struct extent_ranges found;      /* in [at, to) */
	uint64_t to;
	bool mapped; /* found is new */
	char moves[FS_MOVES_WHAT_BYTES];
	struct extent_range kept; /* it ended where the last window did; empty: there is none */
	struct extent_ranges ready;
	unsigned sent; /* of ready */
};

#define metadata_of(op_ptr) csi_task_of(op_ptr, struct metadata)

/* ---- open ---- */

static int open_image(const struct pool_object *snapshot, int *ret_fd)
{
	int fd = openat(pool_dirfd(snapshot->pool, RECORD_SNAPSHOT), snapshot->key,
		O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	if (fstat(fd, &st) < 0)
		return -errno;
	return (uint64_t)st.st_size < record_image_bytes(snapshot->rec) ? -ENODATA : 0;
}

static int open_target(struct op *op)
{
	struct metadata *m = metadata_of(op);
	return open_image(m->target, &m->target_fd);
}

static int open_base(struct op *op)
{
	struct metadata *m = metadata_of(op);
	return open_image(m->base, &m->base_fd);
}

/* The bytes are in the thin pool, and not in the files. */
static bool is_thin(struct op *op)
{
	return pool_is_raw(metadata_of(op)->target->pool);
}

static bool has_no_base(struct op *op)
{
	return metadata_of(op)->base == NULL;
}

static int opened(struct op *op, const struct pool_object *snapshot, int res)
{
	if (res == -ENODATA)
		return op_fail(op, ERR_DATA_LOSS, "snapshot %s: its image is shorter than it was",
			snapshot->rec->name);
	return res < 0 ? op_fail_sys(
				 op, res, "opening the image of snapshot %s", snapshot->rec->name)
		       : 0;
}

static int target_end(struct op *op, int res)
{
	return opened(op, metadata_of(op)->target, res);
}

static int base_end(struct op *op, int res)
{
	return opened(op, metadata_of(op)->base, res);
}

static int open_run(struct op *op)
{
	static const struct op_call calls[] = {
		{"open target", .fn = open_target, .end = target_end},
		{"open base", .fn = open_base, .end = base_end, .done = has_no_base},
	};
	return op_calls(op, calls, sizeof(calls) / sizeof(calls[0]));
}

/* ---- a window ---- */

static int map_window(void *arg)
{
	struct metadata *m = arg;
	m->window.map = extents_map;
	m->window.base_fd = m->base_fd;
	m->window.target_fd = m->target_fd;
	m->found.count = 0;
	m->to = m->at;
	int r = m->at < m->both_end
			? extents_window(&m->window, m->at, m->both_end, &m->found, &m->to)
			: 0;
	if (r == 0 && m->base != NULL && fs_moves(m->target_fd, "/sys/fs/btrfs", m->moves))
		r = -EBUSY;
	return r;
}

static int map_thin_window(void *arg)
{
	struct metadata *m = arg;
	m->found.count = 0;
	m->to = m->at;
	return m->at < m->both_end
		       ? pool_thin_snapshots_window(&m->thin, m->at, m->both_end, &m->found, &m->to)
		       : 0;
}

static int map_run(struct op *op)
{
	struct metadata *m = metadata_of(op);
	if (m->at == m->end)
		return 0;
	int r = is_thin(op) ? pool_thin_snapshots_take(&m->thin, m->base, m->target, &op->err) : 0;
	if (r < 0)
		return r;
	m->mapped = true;
	return op_work(op, is_thin(op) ? map_thin_window : map_window, m);
}

static int fail_thin_window(struct op *op, int res)
{
	const struct metadata *m = metadata_of(op);
	const char *pool = pool_name(m->target->pool);
	if (res == -EAGAIN)
		return op_fail(op, ERR_UNAVAILABLE,
			"pool %s: the metadata of its thin pool changed whenever they were read; try again",
			pool);
	if (res == -EBADMSG || res == -ENXIO)
		return op_fail(op, ERR_DATA_LOSS,
			"pool %s: the metadata of its thin pool %s snapshot %s: look at them with ringvol check",
			pool, res == -EBADMSG ? "are damaged, and do not tell of" : "do not know",
			m->target->rec->name);
	return op_fail_sys(op, res, "finding the blocks of snapshot %s", m->target->rec->name);
}

static int fail_window(struct op *op, int res)
{
	const struct metadata *m = metadata_of(op);
	const char *pool = pool_name(m->target->pool);
	if (is_thin(op))
		return fail_thin_window(op, res);
	if (res == -EBUSY)
		return op_fail(op, ERR_UNAVAILABLE,
			"pool %s: its btrfs moves data about (%s), so it cannot be told what has changed; try again when that is over, or back up all of the snapshot",
			pool, m->moves);
	if (res == -EAGAIN)
		return op_fail(op, ERR_UNAVAILABLE,
			"pool %s: its file system is moving the blocks of snapshot %s (a defragmentation?); try again when that is over",
			pool, m->base->rec->name);
	if (res == -EOPNOTSUPP)
		return op_fail(op, ERR_PRECONDITION,
			"pool %s: its file system does not tell where files lie (FIEMAP); back up all of the snapshot",
			pool);
	return op_fail_sys(op, res, "finding the extents of snapshot %s", m->target->rec->name);
}

/* What was found is ready to be sent, but for what may go on in the next window. */
static void take_found(struct metadata *m)
{
	struct extent_range *kept = &m->kept;
	m->ready.count = m->sent = 0;
	m->at = m->to;
	if (m->at == m->both_end && m->both_end < m->end) {
		extent_ranges_add(&m->found, m->at, m->end);
		m->at = m->end;
	}
	for (unsigned i = 0; i < m->found.count; i++) {
		const struct extent_range *range = &m->found.at[i];
		if (kept->start < kept->end && kept->end == range->start) {
			kept->end = range->end;
			continue;
		}
		if (kept->start < kept->end)
			extent_ranges_add(&m->ready, kept->start, kept->end);
		*kept = *range;
	}
	if (kept->start < kept->end && (kept->end < m->at || m->at == m->end)) {
		extent_ranges_add(&m->ready, kept->start, kept->end);
		kept->start = kept->end;
	}
}

/* ---- a message ---- */

static Csi__V1__BlockMetadata **ranges_message(
	struct arena *arena, const struct metadata *m, unsigned count)
{
	Csi__V1__BlockMetadata **list = arena_alloc(arena, count * sizeof(*list));
	Csi__V1__BlockMetadata *blocks = arena_alloc(arena, count * sizeof(*blocks));
	if (list == NULL || blocks == NULL)
		return NULL;
	for (unsigned i = 0; i < count; i++) {
		const struct extent_range *range = &m->ready.at[m->sent + i];
		csi__v1__block_metadata__init(&blocks[i]);
		blocks[i].byte_offset = (int64_t)(range->start - m->header_bytes);
		blocks[i].size_bytes = (int64_t)(range->end - range->start);
		list[i] = &blocks[i];
	}
	return list;
}

static int send_delta(struct metadata *m, unsigned count, Csi__V1__BlockMetadata **ranges)
{
	Csi__V1__GetMetadataDeltaResponse message = CSI__V1__GET_METADATA_DELTA_RESPONSE__INIT;
	message.block_metadata_type = CSI__V1__BLOCK_METADATA_TYPE__VARIABLE_LENGTH;
	message.volume_capacity_bytes = (int64_t)m->size_bytes;
	message.n_block_metadata = count;
	message.block_metadata = ranges;
	return csi_stream_send(&m->task.stream, &message.base);
}

static int send_allocated(struct metadata *m, unsigned count, Csi__V1__BlockMetadata **ranges)
{
	Csi__V1__GetMetadataAllocatedResponse message =
		CSI__V1__GET_METADATA_ALLOCATED_RESPONSE__INIT;
	message.block_metadata_type = CSI__V1__BLOCK_METADATA_TYPE__VARIABLE_LENGTH;
	message.volume_capacity_bytes = (int64_t)m->size_bytes;
	message.n_block_metadata = count;
	message.block_metadata = ranges;
	return csi_stream_send(&m->task.stream, &message.base);
}

/* The next message of what is ready. It is packed when it is sent, so its memory goes at once. */
static int send_some(struct op *op, struct metadata *m)
{
	struct arena *arena = arena_new(0);
	unsigned count = m->ready.count - m->sent;
	if (count > m->max_results)
		count = m->max_results;
	Csi__V1__BlockMetadata **ranges = arena != NULL ? ranges_message(arena, m, count) : NULL;
	if (ranges == NULL) {
		arena_unref(arena);
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	}
	int r = m->base != NULL ? send_delta(m, count, ranges) : send_allocated(m, count, ranges);
	m->sent += count;
	arena_unref(arena);
	return r;
}

/* After a window, and each time the client has made room. */
static int map_end(struct op *op, int res)
{
	struct metadata *m = metadata_of(op);
	const struct csi_stream *stream = &m->task.stream;
	pool_thin_snapshots_release(&m->thin);
	int r = csi_stream_check(stream, res);
	if (r < 0)
		return op_failed(op) ? r : fail_window(op, r);
	if (m->mapped)
		take_found(m);
	m->mapped = false;
	while (r == 0 && m->sent < m->ready.count && !csi_stream_is_over(stream))
		r = send_some(op, m);
	return r != 0 || csi_stream_is_over(stream) ? r : map_run(op);
}

static const struct op_step steps[] = {
	{"open images", .run = open_run, .done = is_thin},
	{"map extents", .run = map_run, .end = map_end},
	{NULL},
};

static void cleanup(struct csi_task *task)
{
	struct metadata *m = container_of(task, struct metadata, task);
	pool_thin_snapshots_release(&m->thin);
	fd_close(&m->base_fd);
	fd_close(&m->target_fd);
}

/* ---- what is asked ---- */

static int find_snapshot(
	struct metadata *m, const char *field, const struct pool_object **ret, struct err *err)
{
	struct pool_object *object;
	const char *id = csi_field(m->task.request, field);
	int r = pools_find_id(m->task.csi->pools, RECORD_SNAPSHOT, id, &object, err);
	if (r == 0)
		r = pool_check_ready(object->pool, err);
	if (r == 0)
		r = node_check_whole(object, err);
	if (r == 0)
		*ret = object;
	return r;
}

/* 0: blocks that both share are all that is equal in them. */
static int check_pair(const struct metadata *m, struct err *err)
{
	const struct record *base = m->base->rec, *target = m->target->rec;
	const char *pool = pool_name(m->target->pool);
	if (m->base->pool != m->target->pool)
		return err_set(err, ERR_PRECONDITION,
			"base_snapshot_id: snapshot %s is in pool %s, and %s in pool %s, so they share nothing; back up all of the target",
			base->name, pool_name(m->base->pool), target->name, pool);
	const struct fs_features *features = pool_features(m->target->pool);
	bool shares = features->reflink && extents_comparable(features->fs_type);
	if (!shares && !pool_is_raw(m->target->pool))
		return err_set(err, ERR_PRECONDITION,
			"pool %s: on its file system snapshots share no blocks, or nobody knows which, so it cannot be told what has changed; back up all of the target, or keep volumes in a pool on XFS or btrfs",
			pool);
	/* With another key what was never written reads otherwise. */
	if (base->encryption != target->encryption ||
		(base->encryption != RECORD_PLAIN &&
			strcmp(base->source_id, target->source_id) != 0))
		return err_set(err, ERR_PRECONDITION,
			"base_snapshot_id: snapshots %s and %s are of different volumes, and encrypted; back up all of the target",
			base->name, target->name);
	return 0;
}

/* starting_offset and max_results, which are the same in both requests. */
static int take_limits(struct metadata *m, int64_t offset, int32_t max_results, struct err *err)
{
	const struct record *target = m->target->rec;
	m->size_bytes = target->size_bytes;
	if (max_results < 0)
		return err_set(err, ERR_INVALID, "max_results: is negative");
	if (offset < 0 || (uint64_t)offset > m->size_bytes)
		return err_set(err, ERR_RANGE,
			"starting_offset: %lld is not within the %llu bytes of snapshot %s",
			(long long)offset, (unsigned long long)m->size_bytes, target->name);
	m->max_results = max_results == 0 || max_results > RANGES_PER_MESSAGE
				 ? RANGES_PER_MESSAGE
				 : (unsigned)max_results;
	m->end = m->both_end = record_image_bytes(target);
	m->header_bytes = m->end - m->size_bytes;
	m->at = m->header_bytes + (uint64_t)offset;
	if (m->base != NULL && record_image_bytes(m->base->rec) < m->end)
		m->both_end = record_image_bytes(m->base->rec);
	if (m->both_end < m->at)
		m->both_end = m->at;
	return 0;
}

static int prepare_pair(struct metadata *m, struct err *err)
{
	const Csi__V1__GetMetadataDeltaRequest *request = (const void *)m->task.request;
	int r = find_snapshot(m, "base_snapshot_id", &m->base, err);
	if (r == 0)
		r = check_pair(m, err);
	if (r == 0)
		r = take_limits(m, request->starting_offset, request->max_results, err);
	if (r == 0)
		csi_task_lock_id(
			&m->task, NODE_SHARED, RECORD_SNAPSHOT, csi_str(request->base_snapshot_id));
	return r;
}

static int prepare(struct csi_task *task, struct err *err)
{
	struct metadata *m = container_of(task, struct metadata, task);
	const Csi__V1__GetMetadataAllocatedRequest *request = (const void *)task->request;
	bool delta = task->request->descriptor == &csi__v1__get_metadata_delta_request__descriptor;
	unsigned streams = 0;
	m->base_fd = m->target_fd = -1;
	list_for_each (link, &task->csi->tasks)
		streams +=
			container_of(link, struct csi_task, link)->rpc->operation == &csi_metadata;
	if (streams >= STREAMS_MAX)
		return err_set(err, ERR_NO_ROOM,
			"%u clients are told of snapshots' blocks already; try again later",
			streams);
	int r = find_snapshot(m, task->rpc->id, &m->target, err);
	if (r < 0)
		return r;
	csi_task_names(task, m->target->rec);
	return delta ? prepare_pair(m, err)
		     : take_limits(m, request->starting_offset, request->max_results, err);
}

const struct csi_operation csi_metadata = {sizeof(struct metadata), prepare, steps, cleanup};
