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
 *
 * Devices of the device mapper take bios and have no requests. Of them, what was queued is noted by
 * the bio's address, and is over when that bio completes:
 * - The device mapper splits a bio by cutting its beginning off and queueing the rest of the *same*
 *   bio once more, which the kernel tells of only once; and that bio completes, with the first
 *   error of any part, when all parts have. What was cut off completes, too, as a bio that nobody
 *   queued. So size and time are those of the first queueing, and a bio that is not noted is none.
 * - A flush is a bio without data. One with data that asks for a flush besides is a write.
 * - A program that is left out has two more here, too, for both ends. A bio whose end all have
 *   missed stays in flight until its address is queued again.
 * Notes lie in sets of four, found by the address, and in a hash table where a set is full: that
 * one costs 700 instructions an I/O (Linux 6.12), a set 60. Costs: 2 atomic exchanges and 5 atomic
 * additions an I/O.
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
enum { ENOENT = 2, EEXIST = 17, LAST_PROGRAM = 3 };

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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PROBE_BIOS_MAX);
	__type(key, __u64);
	__type(value, struct probe_bio);
} bios SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PROBE_BIO_SETS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct probe_bio_set));
} bio_sets SEC(".maps");

/* The bio that a program has just seen on this CPU, for the one after it. */
struct memo {
	__u64 queued, completed;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct memo);
} memos SEC(".maps");

/* What the table has of that number; 0: nothing. */
static __always_inline __u32 slot_number(__u32 row, struct gendisk *disk)
{
	__u32 minor = disk->first_minor;
	return minor < PROBE_MINORS ? tracked.slot[row][minor] : 0;
}

static __always_inline struct probe_slot *slot_at(__u32 slot)
{
	if (slot == 0)
		return NULL;
	__u32 at = (slot - 1) / PROBE_CHUNK_SLOTS;
	struct chunk *chunk = bpf_map_lookup_elem(&chunks, &at);
	if (chunk == NULL)
		return NULL;
	at = (slot - 1) % PROBE_CHUNK_SLOTS;
	return bpf_map_lookup_elem(chunk, &at);
}

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
	return slot_at(slot_number(row, disk));
}

/* PROBE_SLOT_OPS for what is not counted. Zeroes written without data count with
 * discards: neither moves any. */
static __always_inline __u32 op_of(__u32 flags)
{
	switch (flags & REQ_OP_MASK) {
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

/* The same, with a flush for what it is: a write of nothing. */
static __always_inline __u32 op_with_data(__u32 flags, __u32 bytes)
{
	__u32 op = op_of(flags);
	return op == OP_WRITE && bytes == 0 ? OP_FLUSH : op;
}

/* To be loaded before anything branches: for each way to such a load the verifier looks through the
 * names of all the kernel's types. */
static __always_inline struct blk_mq_hw_ctx *queue_of(struct request *rq)
{
	struct blk_mq_hw_ctx *hctx = rq->mq_hctx;
	asm volatile("" : "+r"(hctx));
	return hctx;
}

/* Tags are the hardware queue's. With a scheduler a request has its own for life, and the driver's
 * only while it is out. */
static __always_inline __u32 tag_of(struct request *rq, struct blk_mq_hw_ctx *hctx)
{
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

/* Of an operation below PROBE_SLOT_OPS, in a way that the verifier of Linux 6.1 follows, which
 * forgets the bounds of what lay on the stack. */
static __always_inline struct probe_slot_op *slot_op(struct probe_slot *slot, __u32 op)
{
	asm volatile("" : "+r"(op));
	return &slot->op[op & (PROBE_SLOT_OPS - 1)];
}

static __always_inline void add_in_flight(struct probe_slot *slot, __u32 op, __s32 change)
{
	asm volatile("" : "+r"(op));
	__sync_fetch_and_add(&slot->in_flight[op & (PROBE_SLOT_OPS - 1)], change);
}

static __always_inline void failed(
	struct probe_slot_op *at, __u32 op, __u8 status, struct gendisk *disk)
{
	/* An answer, not a failure: the caller does without. */
	if (status == BLK_STS_AGAIN || (op == OP_DISCARD && status == BLK_STS_NOTSUPP))
		return;
	__sync_fetch_and_add(&at->errors, 1);
	at->last_error_ns = bpf_ktime_get_ns();
	at->last_status = status;
	__u64 next = __sync_fetch_and_add(&tracked.errors, 1) % PROBE_FAILED;
	tracked.failed[next] = (__u32)disk->major << 20 | (__u32)disk->first_minor;
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
	struct blk_mq_hw_ctx *hctx = queue_of(rq);
	struct probe_slot *slot = find_slot(rq);
	if (slot == NULL)
		return 0;
	__u32 op = op_of(rq->cmd_flags), tag = tag_of(rq, hctx);
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
	__u32 op = op_of(rq->cmd_flags);
	if ((op != OP_FLUSH && rq->__data_len == 0) || rq->start_time_ns < slot->since_ns)
		return PROBE_SLOT_OPS;
	return op;
}

static __always_inline void complete(struct request *rq, __u8 status, __u32 bytes, bool first)
{
	struct blk_mq_hw_ctx *hctx = queue_of(rq);
	struct probe_slot *slot = find_slot(rq);
	if (slot == NULL)
		return;
	__u64 start = rq->start_time_ns;
	__u32 tag = tag_of(rq, hctx), mark = tag < PROBE_TAGS ? slot->mark[tag] : 0;
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
	__u32 op = op_with_data(rq->cmd_flags, rq->__data_len);
	if (op < PROBE_SLOT_OPS)
		failed(slot_op(slot, op), op, status, rq->q->disk);
	return 0;
}

/* ---- bios ---- */

/* What the table has of a bio's device; 0: it takes requests, or nobody has asked for it. */
static __always_inline __u32 bio_slot(struct gendisk *disk)
{
	__u32 major = disk->major;
	if (major == 0 || major != tracked.majors[PROBE_BIO_ROW])
		return 0;
	return slot_number(PROBE_BIO_ROW, disk);
}

/* The verifier does no arithmetic with addresses; the lower half of one is a number to it. */
static __always_inline struct probe_bio_set *bio_set(__u64 address)
{
	__u32 half;
	asm volatile("%0 = %1" : "=w"(half) : "w"((__u32)address));
	__u32 at = half * 0x9E3779B1u >> (32 - PROBE_BIO_SETS_LOG2);
	return bpf_map_lookup_elem(&bio_sets, &at);
}

static __always_inline bool take_spilled(__u64 address, struct probe_bio *ret)
{
	if (tracked.spilled == 0)
		return false;
	struct probe_bio *noted = bpf_map_lookup_elem(&bios, &address);
	if (noted == NULL)
		return false;
	*ret = *noted;
	if (bpf_map_delete_elem(&bios, &address) != 0)
		return false;
	__sync_fetch_and_add(&tracked.spilled, -1);
	return true;
}

/* Takes out what is noted under the address: true for one of the programs alone. */
static __always_inline bool take_bio(__u64 address, struct probe_bio *ret)
{
	struct probe_bio_set *set = bio_set(address);
	if (set == NULL)
		return false;
#pragma unroll
	for (int i = 0; i < PROBE_BIO_WAYS; i++)
		if (set->way[i].address == address) {
			*ret = set->way[i];
			return __sync_val_compare_and_swap(&set->way[i].address, address, 0) ==
			       address;
		}
	return take_spilled(address, ret);
}

/* -EEXIST: the address is noted already. */
static __always_inline long note_bio(__u64 address, const struct probe_bio *bio)
{
	struct probe_bio_set *set = bio_set(address);
	if (set == NULL)
		return -ENOENT;
#pragma unroll
	for (int i = 0; i < PROBE_BIO_WAYS; i++)
		if (set->way[i].address == address)
			return -EEXIST;
	if (tracked.spilled != 0 && bpf_map_lookup_elem(&bios, &address) != NULL)
		return -EEXIST;
#pragma unroll
	for (int i = 0; i < PROBE_BIO_WAYS; i++) {
		struct probe_bio *way = &set->way[i];
		if (way->address != 0 ||
			__sync_val_compare_and_swap(&way->address, 0, address) != 0)
			continue;
		/* Nobody looks before the bio goes on from here. */
		way->start_ns = bio->start_ns;
		way->bytes = bio->bytes;
		way->slot = bio->slot;
		way->op = bio->op;
		return 0;
	}
	__sync_fetch_and_add(&tracked.spilled, 1);
	long r = bpf_map_update_elem(&bios, &address, bio, BPF_NOEXIST);
	if (r != 0)
		__sync_fetch_and_add(&tracked.spilled, -1);
	return r;
}

/* The slot of a bio that was taken out. It may have been given to another device meanwhile. */
static __always_inline struct probe_slot *slot_of(const struct probe_bio *noted)
{
	struct probe_slot *slot = slot_at(noted->slot);
	if (slot == NULL || noted->start_ns < slot->since_ns)
		return NULL;
	add_in_flight(slot, noted->op, -1);
	return slot;
}

/* Whether the program before has just done the same on this CPU. If not, it may have been left out,
 * or somebody came in between: what it did is looked up. */
static __always_inline bool done_already(__u64 *memo, __u64 address, int n)
{
	bool done = n != 1 && *memo == address;
	*memo = n == LAST_PROGRAM ? 0 : address;
	return done;
}

static __always_inline void queue_bio(struct bio *bio, int n)
{
	__u32 number = bio_slot(bio->bi_bdev->bd_disk), zero = 0;
	if (number == 0 || number == PROBE_LEFT)
		return;
	struct memo *memo = bpf_map_lookup_elem(&memos, &zero);
	__u64 address = (__u64)bio;
	if (memo == NULL || done_already(&memo->queued, address, n))
		return;
	struct probe_slot *slot = slot_at(number);
	__u32 bytes = bio->bi_iter.bi_size, op = op_with_data(bio->bi_opf, bytes);
	if (slot == NULL || op >= PROBE_SLOT_OPS)
		return;
	const struct probe_bio noted = {.address = address,
		.start_ns = bpf_ktime_get_ns(),
		.bytes = bytes,
		.slot = number,
		.op = op};
	long r = note_bio(address, &noted);
	struct probe_bio missed; /* its end, by all programs */
	if (r == -EEXIST && n == 1 && take_bio(address, &missed)) {
		(void)slot_of(&missed);
		r = note_bio(address, &noted);
	}
	if (r == 0)
		add_in_flight(slot, op, 1);
}

static __always_inline void complete_bio(struct bio *bio, int n)
{
	struct probe_bio noted;
	__u32 zero = 0;
	__u64 address = (__u64)bio;
	struct gendisk *disk = bio->bi_bdev->bd_disk;
	if (bio_slot(disk) == 0)
		return;
	struct memo *memo = bpf_map_lookup_elem(&memos, &zero);
	if (memo == NULL || done_already(&memo->completed, address, n) ||
		!take_bio(address, &noted))
		return;
	struct probe_slot *slot = slot_of(&noted);
	if (slot == NULL)
		return;
	struct probe_slot_op *op = slot_op(slot, noted.op);
	__u64 now = bpf_ktime_get_ns(), ns = noted.start_ns < now ? now - noted.start_ns : 0;
	__u8 status = bio->bi_status;
	if (status != BLK_STS_OK)
		failed(op, noted.op, status, disk);
	else if (noted.bytes != 0)
		__sync_fetch_and_add(&op->bytes, noted.bytes);
	__sync_fetch_and_add(&op->busy_ns, ns);
	count(op->latency, ns);
}

#define BIO_PROGRAMS(n)                                                                            \
	SEC("tp_btf/block_bio_queue")                                                              \
	int BPF_PROG(bio_queue_##n, struct bio *bio)                                               \
	{                                                                                          \
		queue_bio(bio, n);                                                                 \
		return 0;                                                                          \
	}                                                                                          \
	SEC("tp_btf/block_bio_complete")                                                           \
	int BPF_PROG(bio_complete_##n, struct request_queue *queue, struct bio *bio)               \
	{                                                                                          \
		complete_bio(bio, n);                                                              \
		return 0;                                                                          \
	}
BIO_PROGRAMS(1)
BIO_PROGRAMS(2)
BIO_PROGRAMS(3)
