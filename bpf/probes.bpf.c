// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The probes: what tracked devices do, from the block layer's tracepoints.
 *
 * Happy path: a request is issued to the driver: its time since allocation goes into the queue
 * histogram, and a mark with the time under its tag; it completes: the mark says since when and of
 * what kind it was, and becomes one of a request that is over. All else follows from the marks:
 * - A flush passes as two requests, of which one is issued; a write with FUA or PREFLUSH completes
 *   twice. What is not marked and has no data was never issued; nor is news what began before
 *   tracking.
 * - A request that is requeued keeps its tag (that of the scheduler, where there is one), so when
 *   it is issued again there is a mark, and only the time is new.
 * - A partial completion adds bytes and leaves the mark.
 * - A device with more than PROBE_TAGS requests at once has no marks for the rest: their latency
 *   includes the queue, they are not seen in flight, and the next paragraph does not help them.
 * - The kernel leaves out a program that is running on this CPU already: below an interrupt, and on
 *   Linux 7.x, where it can be preempted, below any other task meanwhile, which may be many
 * requests. So a completion calls three programs, of which the first that runs counts. Where the
 * issue was left out, the latency includes the queue. What is in flight is the number of marks, and
 * an error there ends with the tag's next use.
 *
 * Costs: 4 atomic additions and 2 marks an I/O. Nothing here can fail; a device without a slot is
 * passed over after three loads and a comparison.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include <stdbool.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "bpf/kernel.h"
#include "bpf/probe_slot.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum { OP_READ, OP_WRITE, OP_FLUSH, OP_DISCARD }; /* enum probe_op */

struct probe_tracked tracked;

struct chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PROBE_CHUNK_SLOTS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct probe_slot));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, PROBE_CHUNKS);
	__uint(key_size, sizeof(__u32));
	__array(values, struct chunk);
} chunks SEC(".maps");

/* The slot of the request's device, NULL when it is not tracked. */
static __always_inline struct probe_slot *find_slot(struct request *rq)
{
	struct gendisk *disk = rq->q->disk;
	__u32 major = disk->major, row;
	if (major == 0) /* no disk */
		return NULL;
	if (major == tracked.majors[0])
		row = 0;
	else if (major == tracked.majors[1])
		row = 1;
	else
		return NULL;
	__u32 minor = disk->first_minor;
	if (minor >= PROBE_MINORS)
		return NULL;
	__u32 slot = tracked.slot[row][minor];
	if (slot == 0)
		return NULL;
	__u32 at = (slot - 1) / PROBE_CHUNK_SLOTS;
	struct chunk *chunk = bpf_map_lookup_elem(&chunks, &at);
	if (chunk == NULL)
		return NULL;
	at = (slot - 1) % PROBE_CHUNK_SLOTS;
	return bpf_map_lookup_elem(chunk, &at);
}

/* PROBE_SLOT_OPS for what is not counted. Zeroes written without data count with
 * discards: neither moves any. */
static __always_inline __u32 op_of(struct request *rq)
{
	switch (rq->cmd_flags & REQ_OP_MASK) {
	case REQ_OP_READ:
		return OP_READ;
	case REQ_OP_WRITE:
		return OP_WRITE;
	case REQ_OP_FLUSH:
		return OP_FLUSH;
	case REQ_OP_DISCARD:
	case REQ_OP_SECURE_ERASE:
	case REQ_OP_WRITE_ZEROES:
		return OP_DISCARD;
	default:
		return PROBE_SLOT_OPS;
	}
}

/* Tags are the hardware queue's. With a scheduler a request has its own for life, and the driver's
 * only while it is out. */
static __always_inline __u32 tag_of(struct request *rq)
{
	struct blk_mq_hw_ctx *hctx = rq->mq_hctx;
	__u32 queue = hctx->queue_num;
	__u32 tag = rq->internal_tag;
	if (tag != (__u32)-1)
		return queue == 0 ? tag : queue * hctx->sched_tags->nr_tags + tag;
	tag = rq->tag;
	return queue == 0 ? tag : queue * hctx->tags->nr_tags + tag;
}

static __always_inline void count(uint64_t hist[HIST_BUCKETS], __u64 ns)
{
	__u32 bucket = hist_bucket(ns);
	if (bucket < HIST_BUCKETS)
		__sync_fetch_and_add(&hist[bucket], 1);
}

/* Since the issue that left the mark, without one since the start. The low half of its time is
 * enough, as it was after the request's start and less than 4 s after. */
static __always_inline __u64 elapsed(__u64 now, __u64 start, __u32 mark)
{
	__u64 queued = mark == 0 ? 0 : (__u32)((mark | PROBE_MARK_BITS) - (__u32)start);
	if (start == 0) /* iostats are off */
		return mark == 0 ? 0 : (__u32)now - (mark & ~PROBE_MARK_BITS);
	return start + queued < now ? now - start - queued : 0;
}

/* Of a request that is over: told from the tag's former users by its start. */
static __always_inline __u32 done_mark(__u64 start, __u32 op)
{
	return ((__u32)start & ~PROBE_MARK_BITS) | (op & PROBE_MARK_OP);
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(rq_issue, struct request *rq)
{
	struct probe_slot *slot = find_slot(rq);
	if (slot == NULL)
		return 0;
	__u32 op = op_of(rq), tag = tag_of(rq);
	if (op >= PROBE_SLOT_OPS)
		return 0;
	__u64 now = bpf_ktime_get_ns(), start = rq->start_time_ns;
	if (tag < PROBE_TAGS) {
		__u32 before = slot->mark[tag];
		slot->mark[tag] = ((__u32)now & ~PROBE_MARK_BITS) | PROBE_MARK_ISSUED | op;
		if (before & PROBE_MARK_ISSUED)
			return 0;
	}
	count(slot->op[op].queue, start != 0 && start < now ? now - start : 0);
	return 0;
}

/* What a request that is not marked as issued is counted under: its tag is too high for a mark, or
 * its issue was left out. It was not issued if it has no data, or began before anybody looked. */
static __always_inline __u32 unmarked_op(struct probe_slot *slot, struct request *rq)
{
	__u32 op = op_of(rq);
	if ((op != OP_FLUSH && rq->__data_len == 0) || rq->start_time_ns < slot->since_ns)
		return PROBE_SLOT_OPS;
	return op;
}

static __always_inline void complete(struct request *rq, __u8 status, __u32 bytes, bool first)
{
	struct probe_slot *slot = find_slot(rq);
	if (slot == NULL)
		return;
	__u64 start = rq->start_time_ns;
	__u32 tag = tag_of(rq), mark = tag < PROBE_TAGS ? slot->mark[tag] : 0;
	bool last = bytes >= rq->__data_len;
	if (!first && (!last || tag >= PROBE_TAGS || mark == done_mark(start, mark)))
		return;
	bool issued = mark & PROBE_MARK_ISSUED;
	__u32 which = issued ? mark & PROBE_MARK_OP : unmarked_op(slot, rq);
	if (which >= PROBE_SLOT_OPS)
		return;
	struct probe_slot_op *op = &slot->op[which];
	if (status == BLK_STS_OK && bytes != 0)
		__sync_fetch_and_add(&op->bytes, bytes);
	if (!last)
		return;
	if (tag < PROBE_TAGS)
		slot->mark[tag] = done_mark(start, which);
	__u64 ns = elapsed(bpf_ktime_get_ns(), start, issued ? mark : 0);
	__sync_fetch_and_add(&op->busy_ns, ns);
	count(op->latency, ns);
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(rq_complete, struct request *rq, __u8 status, unsigned int bytes)
{
	complete(rq, status, bytes, true);
	return 0;
}

/* The same again, for when that was left out. */
SEC("tp_btf/block_rq_complete")
int BPF_PROG(rq_complete_2, struct request *rq, __u8 status, unsigned int bytes)
{
	complete(rq, status, bytes, false);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(rq_complete_3, struct request *rq, __u8 status, unsigned int bytes)
{
	complete(rq, status, bytes, false);
	return 0;
}

/* Fires for what the kernel itself puts into its log as an I/O error, issued or not. */
SEC("tp_btf/block_rq_error")
int BPF_PROG(rq_error, struct request *rq, __u8 status, unsigned int bytes)
{
	struct probe_slot *slot = find_slot(rq);
	if (slot == NULL)
		return 0;
	__u32 op = op_of(rq);
	if (op == OP_WRITE && rq->__data_len == 0)
		op = OP_FLUSH; /* a flush: a write of nothing */
	if (op >= PROBE_SLOT_OPS)
		return 0;
	/* An answer, not a failure: the caller does without. */
	if (status == BLK_STS_AGAIN || (op == OP_DISCARD && status == BLK_STS_NOTSUPP))
		return 0;
	__sync_fetch_and_add(&slot->op[op].errors, 1);
	slot->op[op].last_error_ns = bpf_ktime_get_ns();
	slot->op[op].last_status = status;
	struct gendisk *disk = rq->q->disk;
	__u64 at = __sync_fetch_and_add(&tracked.errors, 1) % PROBE_FAILED;
	tracked.failed[at] = (__u32)disk->major << 20 | (__u32)disk->first_minor;
	return 0;
}
