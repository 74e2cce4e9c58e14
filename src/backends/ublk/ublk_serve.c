/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request after another, flat: the kernel completes a fetch, the request becomes one read,
 * write, sync or fallocate of the image, and its result goes back with a commit that is at the same
 * time the next fetch.
 *
 * The happy path of a small read or write costs one completion: I/O and commit are submitted
 * together as a link, the commit with the result the I/O will have if all goes well, and the I/O's
 * own completion is left out (IOSQE_CQE_SKIP_SUCCESS). The kernel runs the commit as soon as the
 * I/O has ended, and what arrives here is the next request. At queue depth 1 that is one system
 * call for a request.
 *
 * When the I/O fails or is short, the kernel drops the commit and completes the I/O after all, and
 * the commit is sent with what really came: a short transfer is continued by the block layer, an
 * error goes to that request only and is counted.
 *
 * Linked I/O must not sleep (RWF_NOWAIT; -EAGAIN sends it again, alone). A write sleeps when the
 * file's time of change is to be noted: with the first write in each tick of the kernel's coarse
 * clock, which can be read here. So a write is linked only in a tick in which another one, alone,
 * has come through.
 *
 * I/O that sleeps ends in a thread of the kernel's, and from there Linux 6.12 would still run a
 * linked commit while the process is being killed: after it has taken the tag back and perhaps
 * given it to another request, which would then count as done and be lost. A commit behind I/O that
 * does not sleep runs in our own thread or, if that is being killed, not at all.
 */
#include "backends/ublk/ublk_serve.h"

#include "base/clock.h"

#include <errno.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <string.h>
#include <time.h>

enum {
	OP_URING_CMD = 46, /* IORING_OP_URING_CMD, Linux 5.19 */
	/* Larger transfers are split on their way down, which RWF_NOWAIT does not allow, and the
	 * cost of another system call is nothing to them. */
	LINK_BYTES_MAX = 32 << 10,
	LINK_ALONE_MAX = 256,
};

/* ---- submission ---- */

static uint8_t *tag_data(const struct ublk_tag *tag)
{
	const struct ublk_queue *q = tag->queue;
	return q->data != NULL ? q->data + (size_t)tag->number * UBLK_IO_BYTES : NULL;
}

/* Not by the table of files: until Linux 6.12 a file leaves that only when everything has completed
 * that was submitted before, on any file of the table, and a fetch completes when it likes. */
static void prep_command(
	struct io_uring_sqe *sqe, struct ublk_tag *tag, uint32_t command, int32_t result)
{
	const struct ublk_queue *q = tag->queue;
	const struct ublk_abi_io io = {
		.queue_id = q->spec.id,
		.tag = tag->number,
		.result = result,
		.addr = (uintptr_t)tag_data(tag),
	};
	*sqe = (struct io_uring_sqe){
		.opcode = OP_URING_CMD,
		.fd = q->spec.char_fd,
		.cmd_op = command,
		.addr = q->spec.zero_copy ? q->first_buf + tag->number : 0,
		.user_data = (uintptr_t)tag,
	};
	memcpy(&sqe->addr3, &io, sizeof(io));
}

/* A lent entry keeps all that never changes from its tag's fetch. */
static void push_command(struct ublk_tag *tag, uint32_t command, int32_t result)
{
	struct ublk_queue *q = tag->queue;
	struct ublk_sq *sq = &q->thread->sq;
	if (q->first_sqe == UINT32_MAX) {
		prep_command(ublk_sq_next(sq), tag, command, result);
		return;
	}
	unsigned index = q->first_sqe + tag->number;
	struct io_uring_sqe *sqe = ublk_sq_lent(sq, index);
	sqe->cmd_op = command;
	((struct ublk_abi_io *)&sqe->addr3)->result = result;
	ublk_sq_push(sq, index);
}

static void commit(struct ublk_tag *tag, int32_t result)
{
	ublk_sq_room(&tag->queue->thread->sq, 1);
	tag->linked = false;
	push_command(tag, UBLK_ABI_COMMIT_AND_FETCH, result);
}

void ublk_serve_fetch(struct ublk_queue *q)
{
	struct ublk_sq *sq = &q->thread->sq;
	q->link_of[false].next = q->link_of[true].next = 1;
	for (unsigned i = 0; i < q->spec.depth; i++) {
		ublk_sq_room(sq, 1);
		if (q->first_sqe != UINT32_MAX)
			prep_command(
				ublk_sq_lent(sq, q->first_sqe + i), &q->tags[i], UBLK_ABI_FETCH, 0);
		push_command(&q->tags[i], UBLK_ABI_FETCH, 0);
		q->out++;
	}
}

/* ---- a request ---- */

static void prep_transfer(struct io_uring_sqe *sqe, struct ublk_tag *tag,
	const struct ublk_abi_desc *desc, bool write, uint32_t len)
{
	const struct ublk_queue *q = tag->queue;
	sqe->off = desc->start_sector << 9;
	sqe->len = len;
	if (q->spec.zero_copy) {
		sqe->opcode = write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
		sqe->buf_index = (uint16_t)(q->first_buf + tag->number);
	} else {
		sqe->opcode = write ? IORING_OP_WRITE : IORING_OP_READ;
		sqe->addr = (uintptr_t)tag_data(tag);
	}
	if (write && desc->op_flags & UBLK_ABI_IO_FUA)
		sqe->rw_flags = RWF_DSYNC;
}

/* Zeroes keep their blocks where the sender asks for it, or the volume has promised it. */
static void prep_discard(
	struct io_uring_sqe *sqe, const struct ublk_tag *tag, const struct ublk_abi_desc *desc)
{
	bool zeroes = (desc->op_flags & 0xff) == UBLK_ABI_OP_WRITE_ZEROES;
	bool keep = tag->queue->spec.keep_blocks || desc->op_flags & UBLK_ABI_IO_NOUNMAP;
	sqe->opcode = IORING_OP_FALLOCATE;
	sqe->off = desc->start_sector << 9;
	sqe->addr = (uint64_t)desc->sectors << 9;
	sqe->len = FALLOC_FL_KEEP_SIZE |
		   (zeroes && keep ? FALLOC_FL_ZERO_RANGE : FALLOC_FL_PUNCH_HOLE);
}

static void prep_io(struct io_uring_sqe *sqe, struct ublk_tag *tag)
{
	const struct ublk_queue *q = tag->queue;
	const struct ublk_abi_desc *desc = &q->descs[tag->number];
	uint32_t op = desc->op_flags & 0xff;
	*sqe = (struct io_uring_sqe){
		.flags = IOSQE_FIXED_FILE,
		.fd = (int)q->image_slot,
		.user_data = (uintptr_t)tag | UBLK_TAG_IO,
	};
	if (op == UBLK_ABI_OP_READ || op == UBLK_ABI_OP_WRITE) {
		prep_transfer(sqe, tag, desc, op == UBLK_ABI_OP_WRITE, desc->sectors << 9);
	} else if (op == UBLK_ABI_OP_FLUSH) {
		sqe->opcode = IORING_OP_FSYNC;
		sqe->fsync_flags = IORING_FSYNC_DATASYNC;
	} else {
		prep_discard(sqe, tag, desc);
	}
}

static void serve_alone(struct ublk_tag *tag)
{
	struct ublk_sq *sq = &tag->queue->thread->sq;
	ublk_sq_room(sq, 1);
	tag->linked = false;
	prep_io(ublk_sq_next(sq), tag);
}

static void serve_linked(struct ublk_tag *tag)
{
	struct ublk_sq *sq = &tag->queue->thread->sq;
	ublk_sq_room(sq, 2);
	tag->linked = true;
	struct io_uring_sqe *sqe = ublk_sq_next(sq);
	prep_io(sqe, tag);
	sqe->flags |= IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS;
	sqe->rw_flags |= RWF_NOWAIT;
	push_command(tag, UBLK_ABI_COMMIT_AND_FETCH, tag->want);
}

#define COUNT(counter, n) __atomic_store_n(&(counter), (counter) + (n), __ATOMIC_RELAXED)

static uint64_t tick_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What else makes I/O sleep, blocks to be allocated above all, cannot be known. So each failure in
 * a row makes twice as many go without a link, and a success makes them few again. */
static bool wants_link(struct ublk_tag *tag, uint32_t len)
{
	struct ublk_queue *q = tag->queue;
	struct ublk_link *link = &q->link_of[tag->write];
	if (len > LINK_BYTES_MAX || !q->spec.direct_io || q->first_sqe == UINT32_MAX)
		return false;
	if (tag->write && tag->tick_ns != q->noted_ns)
		return false;
	if (link->alone == 0)
		return true;
	link->alone--;
	return false;
}

static void link_failed(struct ublk_link *link)
{
	link->alone = link->next;
	link->next = (uint16_t)(link->next < LINK_ALONE_MAX ? link->next * 2 : LINK_ALONE_MAX);
}

static void serve_now(struct ublk_tag *tag)
{
	uint32_t len = tag->queue->descs[tag->number].sectors << 9;
	if (tag->want != 0 && wants_link(tag, len))
		serve_linked(tag);
	else
		serve_alone(tag);
}

/* ---- limits ---- */

static uint64_t now_monotonic(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What carries data counts by it. */
static uint32_t bytes_of(const struct ublk_tag *tag)
{
	return (uint32_t)tag->want;
}

/* Takes the request's moment; true: that has not come, and the request waits for it. Who came
 * before it waits before it: moments of one direction never go back. A flush counts nothing. */
static bool must_wait(struct ublk_tag *tag)
{
	struct ublk_queue *q = tag->queue;
	struct ublk_throttle *throttle = q->spec.throttle;
	uint32_t op = q->descs[tag->number].op_flags & 0xff;
	bool write = op != UBLK_ABI_OP_READ;
	struct ublk_waiting *waiting = &q->waiting[write];
	if (throttle == NULL || op == UBLK_ABI_OP_FLUSH ||
		(waiting->first == NULL && !ublk_throttle_limits(throttle, write)))
		return false;
	uint32_t version = atomic_load(&throttle->version);
	tag->came_ns = now_monotonic();
	tag->due_ns = ublk_throttle_take(throttle, write, bytes_of(tag), tag->came_ns);
	if (waiting->first == NULL && tag->due_ns <= tag->came_ns)
		return false;
	if (q->waiting[0].first == NULL && q->waiting[1].first == NULL) {
		q->throttle_version = version;
		list_push(&q->thread->held, &q->held);
	}
	tag->behind = NULL;
	if (waiting->first == NULL)
		waiting->first = tag;
	else
		waiting->last->behind = tag;
	waiting->last = tag;
	COUNT(q->throttled.requests[write], 1);
	return true;
}

/* A request has come. */
static void serve(struct ublk_tag *tag)
{
	struct ublk_queue *q = tag->queue;
	const struct ublk_abi_desc *desc = &q->descs[tag->number];
	struct ublk_counters *c = &q->counters;
	uint32_t len = desc->sectors << 9;

	tag->want = 0;
	tag->write = false;
	switch (desc->op_flags & 0xff) {
	case UBLK_ABI_OP_READ:
		COUNT(c->reads, 1);
		COUNT(c->read_bytes, len);
		tag->want = (int32_t)len;
		break;
	case UBLK_ABI_OP_WRITE:
		COUNT(c->writes, 1);
		COUNT(c->written_bytes, len);
		tag->write = true;
		tag->tick_ns = tick_now();
		tag->want = (int32_t)len;
		break;
	case UBLK_ABI_OP_FLUSH:
		COUNT(c->flushes, 1);
		break;
	case UBLK_ABI_OP_DISCARD:
	case UBLK_ABI_OP_WRITE_ZEROES:
		COUNT(c->discards, 1);
		break;
	default:
		commit(tag, -EOPNOTSUPP);
		return;
	}
	if (must_wait(tag))
		return;
	serve_now(tag);
}

/* ---- what has waited ---- */

static uint64_t serve_due_of(struct ublk_queue *q, bool write, uint64_t now_ns)
{
	struct ublk_waiting *waiting = &q->waiting[write];
	struct ublk_tag *tag;
	while ((tag = waiting->first) != NULL && tag->due_ns <= now_ns) {
		waiting->first = tag->behind;
		COUNT(q->throttled.wait_ns[write], now_ns - tag->came_ns);
		if (write)
			tag->tick_ns = tick_now();
		serve_now(tag);
	}
	return tag != NULL ? tag->due_ns : UINT64_MAX;
}

/* Other limits: whoever waits gets another moment, in the same order. */
static void ask_anew(struct ublk_queue *q, uint64_t now_ns)
{
	q->throttle_version = atomic_load(&q->spec.throttle->version);
	for (unsigned write = 0; write < 2; write++)
		for (struct ublk_tag *tag = q->waiting[write].first; tag != NULL; tag = tag->behind)
			tag->due_ns =
				ublk_throttle_take(q->spec.throttle, write, bytes_of(tag), now_ns);
}

uint64_t ublk_serve_due(struct ublk_io_thread *thread)
{
	uint64_t next_ns = UINT64_MAX;
	if (list_empty(&thread->held))
		return next_ns;
	uint64_t now_ns = now_monotonic();
	list_for_each_safe (link, &thread->held) {
		struct ublk_queue *q = container_of(link, struct ublk_queue, held);
		if (q->throttle_version != atomic_load(&q->spec.throttle->version))
			ask_anew(q, now_ns);
		for (unsigned write = 0; write < 2; write++) {
			uint64_t due_ns = serve_due_of(q, write, now_ns);
			next_ns = due_ns < next_ns ? due_ns : next_ns;
		}
		if (q->waiting[0].first == NULL && q->waiting[1].first == NULL)
			list_remove(&q->held);
	}
	return next_ns == UINT64_MAX ? next_ns : next_ns > now_ns ? next_ns - now_ns : 0;
}

/* ---- completion ---- */

static void count_error(struct ublk_queue *q, int res)
{
	COUNT(q->counters.errors, 1);
	__atomic_store_n(&q->counters.last_errno, (uint32_t)-res, __ATOMIC_RELAXED);
	__atomic_store_n(&q->counters.last_error_ns, clock_now_ns(), __ATOMIC_RELAXED);
}

/* Of linked I/O it comes only when the link was broken. */
static void io_ended(struct ublk_tag *tag, int res)
{
	/* Linked I/O that would have to sleep, or a file system that has no such promise. */
	if (res == -EAGAIN || res == -EINTR || (res == -EOPNOTSUPP && tag->linked)) {
		if (tag->linked)
			link_failed(&tag->queue->link_of[tag->write]);
		serve_alone(tag);
		return;
	}
	if (res > 0 && tag->write)
		tag->queue->noted_ns = tag->tick_ns;
	/* Nothing at all of a transfer: the image is shorter than its device. */
	if (res == 0 && tag->want > 0)
		res = -EIO;
	if (res == -EDQUOT)
		res = -ENOSPC;
	/* To the kernel this one would mean that we have gone. */
	if (res == -ENODEV || res == -ECANCELED)
		res = -EIO;
	/* A file system that cannot punch or zero; the block layer writes zeroes instead. */
	if (res < 0 && res != -EOPNOTSUPP)
		count_error(tag->queue, res);
	commit(tag, res);
}

static void tag_retire(struct ublk_tag *tag)
{
	if (--tag->queue->out == 0)
		tag->queue->thread->on_ended(tag->queue);
}

static void command_ended(struct ublk_tag *tag, int res)
{
	struct ublk_queue *q = tag->queue;
	if (res == 0) {
		if (tag->linked)
			q->link_of[tag->write].next = 1;
		serve(tag);
	} else if (res == -ENODEV) {
		tag_retire(tag);
	} else if (res == -ECANCELED && tag->linked) {
		/* Its I/O failed, and says so in a completion of its own. */
		return;
	} else {
		if (q->broken == 0)
			q->broken = res < 0 ? res : -EPROTO;
		tag_retire(tag);
	}
}

void ublk_serve_cqe(uint64_t user_data, int res)
{
	struct ublk_tag *tag = (struct ublk_tag *)(uintptr_t)(user_data & ~(uint64_t)UBLK_TAG_IO);
	if (user_data & UBLK_TAG_IO)
		io_ended(tag, res);
	else
		command_ended(tag, res);
}
