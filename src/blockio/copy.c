/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies.
 *
 * Happy path: the walk (copy_walk.h) looks up data extents in batches, one batch ahead. A buffer
 * takes the next chunk of an extent, reads it, writes it, and takes the next chunk; a chunk of
 * zeros is only written. A chunk that reads as zeros is not written, for a fresh or preallocated
 * dst reads so anyway. Where the bytes are in places (copy_places.h), a chunk ends where its place
 * does, at either end.
 *
 * A copy has up to COPY_IN_FLIGHT buffers under way, and shares them with all others
 * (copy_buffers.h).
 *
 * After a failure, or `stop`, no chunk is started. The copy ends when the last request and the last
 * job have come back, with the first error. Short transfers are continued. With direct I/O, a size
 * that is no multiple of 4096 leaves a tail, which is written last and through the page cache;
 * places have room for whole blocks, so there the rest of the last one is zeros.
 *
 * Some kernels would not keep a write apart from writes to other disks (see direct_writes). Such
 * writes are jobs of the copy's lane.
 */
#include "blockio/copy.h"
#include "blockio/copy_buffers.h"
#include "blockio/copy_walk.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COPY_SECTOR = 512 }; /* the least a short direct transfer can be continued at */

struct copy_state {
	struct copy *copy;
	struct copy_lane *lane;
	struct list busy;         /* buffers under way */
	struct list waiting_link; /* in copy_buffers_waiting() */
	unsigned in_flight;
	bool waiting;
	int res; /* the first failure */

	struct copy_walk walk;
	uint64_t next; /* everything before it was handed to a buffer or is a hole */
	bool direct_dst;
	struct copy_extent tail; /* unaligned end, empty if there is none */
};

/* ---- the copy ---- */

static void copy_go_on(struct copy_state *s);
static void buffers_hand_out(void);
static void chunk_on_read(struct ring_req *req, int res, uint32_t flags);
static void chunk_on_write(struct ring_req *req, int res, uint32_t flags);
static void chunk_written(struct copy_buf *buf, int res);

static const char *copy_doing(const struct copy *copy)
{
	return copy->kind == COPY_ZEROS ? "overwriting an image" : "copying an image";
}

static void copy_fail(struct copy_state *s, int res, const char *what)
{
	if (s->res < 0)
		return;
	s->res = res;
	if (res == -ECANCELED)
		err_sys(&s->copy->op.err, res, "%s was stopped", copy_doing(s->copy));
	else
		err_sys(&s->copy->op.err, res, "%s: %s", copy_doing(s->copy), what);
}

static bool copy_stopped(struct copy_state *s)
{
	if (s->copy->stop)
		copy_fail(s, -ECANCELED, "");
	else if (s->walk.res < 0)
		copy_fail(s, s->walk.res, "looking for data");
	return s->res < 0;
}

static void progress_update(struct copy_state *s)
{
	uint64_t looked =
		copy_walk_at_end(&s->walk) && s->tail.start == s->tail.end ? s->walk.size : s->next;
	list_for_each (l, &s->busy) {
		const struct copy_buf *buf = container_of(l, struct copy_buf, link);
		if (buf->offset < looked)
			looked = buf->offset;
	}
	s->copy->looked_bytes = looked;
}

static void chunk_submit(
	struct copy_buf *buf, const struct copy_place *place, bool write, unsigned len)
{
	struct op *op = &buf->owner->copy->op;
	bool fixed = buf->fixed >= 0;
	io_uring_prep_rw(write ? (fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE)
			       : (fixed ? IORING_OP_READ_FIXED : IORING_OP_READ),
		&buf->req.sqe, place->fd, buf->mem + buf->done, len, place->offset + buf->done);
	if (fixed)
		buf->req.sqe.buf_index = (uint16_t)buf->fixed;
	buf->req.fn = write ? chunk_on_write : chunk_on_read;
	buf->req.lane = op->lane;
	ring_submit(op->reactor->ring, &buf->req);
}

/* A direct read has to ask for whole blocks; past the end it stops by itself. */
static void chunk_read(struct copy_buf *buf)
{
	buf->zeros = false;
	chunk_submit(buf, &buf->src, false, (unsigned)copy_round_up(buf->len) - buf->done);
}

/* A write that could not begin; it ends like others, never inside the call. */
static void chunk_refuse(struct copy_buf *buf, int res)
{
	buf->req.fn = chunk_on_write;
	ring_post(buf->owner->copy->op.reactor->ring, &buf->req, res);
}

/* What is left to write; to places, whole blocks. */
static unsigned chunk_left(const struct copy_buf *buf)
{
	uint64_t len = buf->owner->copy->dst_places != NULL ? copy_round_up(buf->len) : buf->len;
	return (unsigned)len - buf->done;
}

static int chunk_job_run(struct work_job *job)
{
	struct copy_buf *buf = container_of(job, struct copy_buf, job);
	ssize_t n;
	do
		n = pwrite(buf->dst.fd, buf->mem + buf->done, chunk_left(buf),
			(off_t)(buf->dst.offset + buf->done));
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : (int)n;
}

static void chunk_job_end(struct work_job *job, int res)
{
	chunk_written(container_of(job, struct copy_buf, job), res);
}

static bool chunk_by_ring(const struct copy_buf *buf)
{
	const struct copy_state *s = buf->owner;
	return s->direct_dst && !buf->tail &&
	       ring_features(s->copy->op.reactor->ring)->direct_writes;
}

static void chunk_write(struct copy_buf *buf)
{
	struct copy_state *s = buf->owner;
	if (!chunk_by_ring(buf)) {
		buf->job = (struct work_job){
			.run = chunk_job_run, .on_end = chunk_job_end, .lane = s->copy->op.lane};
		int r = work_submit(s->copy->op.reactor->work, &buf->job);
		if (r < 0)
			chunk_refuse(buf, r);
		return;
	}
	chunk_submit(buf, &buf->dst, true, chunk_left(buf));
}

static int set_flag(int fd, int flag, bool on)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0)
		return -errno;
	flags = on ? flags | flag : flags & ~flag;
	return fcntl(fd, F_SETFL, flags) < 0 ? -errno : 0;
}

/* Switches dst between direct I/O and the page cache, which the tail needs. */
static int dst_set_direct(struct copy_state *s, bool direct)
{
	return set_flag(s->copy->dst_fd, O_DIRECT, direct);
}

static void chunk_write_start(struct copy_buf *buf)
{
	struct copy_state *s = buf->owner;
	buf->done = 0;
	memset(buf->mem + buf->len, 0, copy_round_up(buf->len) - buf->len);
	int r = buf->tail ? dst_set_direct(s, false) : 0;
	if (r < 0) {
		copy_fail(s, r, "leaving direct I/O");
		chunk_refuse(buf, r);
		return;
	}
	chunk_write(buf);
}

/* The chunk is over, well or not: its buffer goes to the copy that has waited longest. */
static void chunk_end(struct copy_buf *buf)
{
	struct copy_state *s = buf->owner;
	if (buf->tail) {
		int r = dst_set_direct(s, true);
		if (r < 0)
			copy_fail(s, r, "going back to direct I/O");
	}
	list_remove(&buf->link);
	copy_buffers_give(s->lane, buf);
	buf->owner = NULL;
	s->in_flight--;
	copy_go_on(s);
	buffers_hand_out();
	copy_buffers_trim();
}

/* How far a direct transfer that came up short can count: it goes on at an aligned place. */
static uint32_t short_progress(const struct copy_buf *buf, int fd, uint32_t done)
{
	int flags = fcntl(fd, F_GETFL);
	if (done >= buf->len || flags < 0 || !(flags & O_DIRECT))
		return done;
	uint32_t aligned = (uint32_t)copy_round_down(done);
	return aligned > buf->done ? aligned : done & ~(uint32_t)(COPY_SECTOR - 1);
}

static bool all_zero(const uint8_t *mem, size_t len)
{
	if (len == 0 || mem[0] != 0)
		return len == 0;
	return memcmp(mem, mem + 1, len - 1) == 0;
}

static void chunk_on_read(struct ring_req *req, int res, uint32_t flags)
{
	struct copy_buf *buf = container_of(req, struct copy_buf, req);
	struct copy_state *s = buf->owner;
	(void)flags;
	if (res < 0)
		copy_fail(s, res, "reading");
	if (copy_stopped(s)) {
		chunk_end(buf);
		return;
	}
	if (res == 0) {
		/* src ends here; what was asked for beyond reads as zeros, like a hole. */
		memset(buf->mem + buf->done, 0, buf->len - buf->done);
		buf->done = buf->len;
	} else {
		uint32_t done = short_progress(buf, buf->src.fd, buf->done + (uint32_t)res);
		if (done <= buf->done) {
			copy_fail(s, -EIO, "a direct read made no progress");
			chunk_end(buf);
			return;
		}
		buf->done = done;
	}
	if (buf->done < buf->len) {
		chunk_read(buf);
		return;
	}
	if (all_zero(buf->mem, buf->len)) {
		s->copy->done_bytes += buf->len;
		chunk_end(buf);
		return;
	}
	chunk_write_start(buf);
}

static void chunk_on_write(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	chunk_written(container_of(req, struct copy_buf, req), res);
}

static void chunk_written(struct copy_buf *buf, int res)
{
	struct copy_state *s = buf->owner;
	if (res <= 0) {
		copy_fail(s, res < 0 ? res : -EIO, "writing");
	} else if (!copy_stopped(s)) {
		uint32_t done = short_progress(buf, buf->dst.fd, buf->done + (uint32_t)res);
		if (done > buf->done) {
			buf->done = done;
			if (done < buf->len) {
				chunk_write(buf);
				return;
			}
			s->copy->done_bytes += buf->len;
		} else {
			copy_fail(s, -EIO, "a direct write made no progress");
		}
	}
	chunk_end(buf);
}

/* Where the image's byte is at one end of the copy: in one file, or in places. */
static struct copy_place place_at(const struct copy_places *places, int fd, uint64_t offset)
{
	if (places != NULL)
		return copy_places_at(places, offset);
	return (struct copy_place){fd, offset, UINT64_MAX - offset};
}

/* The longest chunk from `offset` on. */
static uint64_t chunk_most(const struct copy *copy, uint64_t offset)
{
	uint64_t src = place_at(copy->src_places, copy->src_fd, offset).bytes;
	uint64_t dst = place_at(copy->dst_places, copy->dst_fd, offset).bytes;
	uint64_t most = src < dst ? src : dst;
	return most < COPY_BUFFER_BYTES ? most : COPY_BUFFER_BYTES;
}

/* What the next chunk is, 0 bytes if there is none (yet). Cuts an unaligned end off into `tail`,
 * which has its turn when nothing else is in flight. */
static uint64_t chunk_next(struct copy_state *s, struct copy_extent **ret)
{
	struct copy_extent *e;
	while ((e = copy_walk_extent(&s->walk)) != NULL) {
		if (s->direct_dst && s->copy->dst_places == NULL &&
			e->end != copy_round_down(e->end)) {
			s->tail = (struct copy_extent){copy_round_down(e->end), e->end};
			if (s->tail.start < e->start)
				s->tail.start = e->start;
			e->end = s->tail.start;
		}
		if (e->start < e->end) {
			uint64_t len = e->end - e->start, most = chunk_most(s->copy, e->start);
			*ret = e;
			return len < most ? len : most;
		}
		copy_walk_next(&s->walk);
	}
	if (copy_walk_at_end(&s->walk) && s->in_flight == 0 && s->tail.start < s->tail.end) {
		*ret = &s->tail;
		return s->tail.end - s->tail.start;
	}
	return 0;
}

static void copy_end(struct copy_state *s)
{
	struct copy *copy = s->copy;
	int res = s->res;
	if (s->waiting)
		list_remove(&s->waiting_link);
	copy_buffers_leave(s->lane);
	copy->state = NULL;
	free(s);
	op_complete(&copy->op, res);
}

/* Starts the next chunk in `buf`; false if there is none. */
static bool chunk_start(struct copy_state *s, struct copy_buf *buf)
{
	struct copy_extent *e;
	uint64_t len = chunk_next(s, &e);
	if (len == 0)
		return false;
	buf->owner = s;
	buf->offset = e->start;
	buf->src = place_at(s->copy->src_places, s->copy->src_fd, e->start);
	buf->dst = place_at(s->copy->dst_places, s->copy->dst_fd, e->start);
	buf->len = (uint32_t)len;
	buf->done = 0;
	buf->tail = e == &s->tail;
	copy_buffers_use(buf, buf->len);
	list_push(&s->busy, &buf->link);
	s->in_flight++;
	e->start += len;
	s->next = e->start;
	if (s->copy->kind == COPY_DATA) {
		chunk_read(buf);
		return true;
	}
	if (!buf->zeros)
		memset(buf->mem, 0, COPY_BUFFER_BYTES);
	buf->zeros = true;
	chunk_write_start(buf);
	return true;
}

static bool copy_wants_buffer(struct copy_state *s)
{
	struct copy_extent *e;
	return !copy_stopped(s) && s->in_flight < COPY_IN_FLIGHT && chunk_next(s, &e) > 0;
}

/* Ends the copy when nothing is under way and nothing is left. */
static void copy_end_if_done(struct copy_state *s)
{
	bool failed = copy_stopped(s);
	progress_update(s);
	if (s->in_flight > 0 || s->walk.running || (s->waiting && !failed))
		return;
	assert(failed || (copy_walk_at_end(&s->walk) && s->tail.start == s->tail.end));
	copy_end(s);
}

/* Starts what can be started; gets in line where others wait or all buffers are out. */
static void copy_go_on(struct copy_state *s)
{
	while (!s->waiting && copy_wants_buffer(s)) {
		bool first = list_empty(copy_buffers_waiting()) ||
			     s->lane->in_flight < COPY_LANE_BUFFERS;
		struct copy_buf *buf = first ? copy_buffers_take(s->lane) : NULL;
		if (buf != NULL) {
			chunk_start(s, buf);
		} else if (s->lane->in_flight == 0) {
			/* Not the limit, and what other lanes have may never come back. */
			copy_fail(s, -ENOMEM, "no memory for buffers");
		} else {
			list_push(copy_buffers_waiting(), &s->waiting_link);
			s->waiting = true;
		}
	}
	copy_end_if_done(s);
}

/* The copy that has waited longest among those that may have a buffer now; *ret_buf is its. */
static struct copy_state *buffers_next(struct copy_buf **ret_buf)
{
	list_for_each (l, copy_buffers_waiting()) {
		struct copy_state *s = container_of(l, struct copy_state, waiting_link);
		*ret_buf = copy_buffers_take(s->lane);
		if (*ret_buf != NULL)
			return s;
	}
	return NULL;
}

/* Gives free buffers to the copies that wait, one each, in turn. */
static void buffers_hand_out(void)
{
	struct copy_buf *buf;
	struct copy_state *s;
	while ((s = buffers_next(&buf)) != NULL) {
		list_remove(&s->waiting_link);
		s->waiting = false;
		if (!copy_wants_buffer(s) || !chunk_start(s, buf))
			copy_buffers_give(s->lane, buf);
		copy_go_on(s);
	}
}

static void copy_on_extents(struct copy_walk *walk)
{
	copy_go_on(container_of(walk, struct copy_state, walk));
}

/*
 * An image is opened with O_NONBLOCK, for what is no image must not make us wait. But then the ring
 * does not wait for its disk either, and some disks (most of device mapper: crypt, thin) cannot be
 * asked without waiting: their direct I/O ends with EAGAIN each time it is tried.
 */
static int set_waiting(const struct copy_places *places, int fd)
{
	if (places == NULL)
		return set_flag(fd, O_NONBLOCK, false);
	int r = 0;
	for (unsigned i = 0; i < places->count && r == 0; i++)
		r = set_flag(places->at[i].fd, O_NONBLOCK, false);
	return r;
}

/* Whether the copy can be: 0, or -errno. Looks at the flags of its ends, and sets them. */
static int copy_prepare(struct copy *copy, bool *ret_direct_dst)
{
	const struct copy_places *src = copy->src_places, *dst = copy->dst_places;
	assert(copy->kind == COPY_DATA || (src == NULL && dst == NULL));
	if (copy->size > INT64_MAX - COPY_ALIGN)
		return -EFBIG;
	if ((src != NULL && copy_places_bytes(src) < copy->size) ||
		(dst != NULL && copy_places_bytes(dst) < copy->size))
		return -ERANGE;
	if (copy->size == 0)
		return 0;
	int flags = fcntl(dst != NULL ? dst->at[0].fd : copy->dst_fd, F_GETFL);
	if (flags < 0)
		return -errno;
	*ret_direct_dst = flags & O_DIRECT;
	int r = dst == NULL ? 0 : set_waiting(dst, -1);
	return r < 0 ? r : set_waiting(src, copy->kind == COPY_ZEROS ? copy->dst_fd : copy->src_fd);
}

static int walk_begin(struct copy_state *s)
{
	struct copy *copy = s->copy;
	struct reactor *reactor = copy->op.reactor;
	if (copy->src_places != NULL)
		return copy_walk_start_all(
			&s->walk, reactor->work, copy->op.lane, copy->size, copy_on_extents);
	return copy_walk_start(&s->walk, reactor->work, copy->op.lane,
		copy->kind == COPY_ZEROS ? copy->dst_fd : copy->src_fd, 0, copy->size,
		copy_on_extents);
}

static int copy_run(struct op *op)
{
	struct copy *copy = container_of(op, struct copy, op);
	bool direct_dst = false;
	copy->done_bytes = copy->looked_bytes = 0;
	if (copy->stop)
		return op_fail_sys(op, -ECANCELED, "%s was stopped", copy_doing(copy));
	int r = copy_prepare(copy, &direct_dst);
	if (r < 0)
		return op_fail_sys(op, r, "%s", copy_doing(copy));
	if (copy->size == 0)
		return 0;
	struct copy_state *s = calloc(1, sizeof *s);
	if (s == NULL)
		return op_fail_sys(op, -ENOMEM, "%s", copy_doing(copy));
	s->copy = copy;
	s->direct_dst = direct_dst;
	list_init(&s->busy);
	list_init(&s->waiting_link);
	s->lane = copy_buffers_enter(op->reactor->ring, op->lane);
	if (s->lane == NULL) {
		free(s);
		return op_fail_sys(op, -ENOMEM, "%s", copy_doing(copy));
	}
	r = walk_begin(s);
	if (r < 0) {
		copy_buffers_leave(s->lane);
		free(s);
		return op_fail_sys(op, r, "%s: looking for data", copy_doing(copy));
	}
	copy->state = s;
	return op_wait(op);
}

static const struct op_step copy_steps[] = {
	{"copy", .run = copy_run},
	{NULL},
};

void copy_init(struct copy *copy, struct reactor *reactor)
{
	copy->state = NULL;
	copy->done_bytes = copy->looked_bytes = 0;
	op_init(&copy->op, reactor, "copy", copy_steps, NULL);
}
