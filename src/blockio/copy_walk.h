/* SPDX-License-Identifier: Apache-2.0 */
/* The data extents of an image in order, looked up on work threads, one batch ahead. For copy.c. */
#ifndef RINGVOL_BLOCKIO_COPY_WALK_H
#define RINGVOL_BLOCKIO_COPY_WALK_H

#include "blockio/differ.h"
#include "reactor/work.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	COPY_ALIGN = 4096, /* bytes: of offsets, lengths and memory */
	COPY_WALK_BATCH = 64,
};

static inline uint64_t copy_round_down(uint64_t n)
{
	return n & ~(uint64_t)(COPY_ALIGN - 1);
}

static inline uint64_t copy_round_up(uint64_t n)
{
	return copy_round_down(n + COPY_ALIGN - 1);
}

/* How far a transfer of `len` bytes is that was at `done` and moved `moved` more: one with direct
 * I/O that came up short goes on at an aligned place. The same as before: it cannot go on. */
static inline uint32_t copy_advance(bool direct, uint32_t done, uint32_t moved, uint32_t len)
{
	uint32_t now = done + moved, aligned = (uint32_t)copy_round_down(now);
	if (!direct || now >= len)
		return now;
	return aligned > done ? aligned : now & ~511u;
}

struct copy_extent {
	uint64_t start, end;
};

struct copy_walk {
	int fd;
	uint64_t size; /* bytes; nothing past it is looked at */
	bool running;  /* a job is under way: the walk may not go yet */
	int res;       /* negative: why no more extents come */
	/* From the loop: there is another batch, or res is negative. */
	void (*on_extents)(struct copy_walk *walk);
	/* private */
	struct work *work;
	struct lane *lane;
	struct work_job job;
	bool all; /* there is nothing to look up: one extent */
	struct differ *differ;
	bool done;
	uint64_t from;
	struct copy_batch {
		struct copy_extent extents[COPY_WALK_BATCH];
		unsigned count, at;
		bool ready;
	} batches[2];
	unsigned batch; /* the one being taken from; the other is looked up meanwhile */
};

/* lane: its threads look. from: a multiple of COPY_ALIGN, what lies before it is left out. 0, or
 * -EAGAIN when the work queue is full. */
int copy_walk_start(struct copy_walk *walk, struct work *work, struct lane *lane, int fd,
	uint64_t from, uint64_t size, void (*on_extents)(struct copy_walk *walk));
/* The same, for an image without a file: one extent, all of [0, size). */
int copy_walk_start_all(struct copy_walk *walk, struct work *work, struct lane *lane, uint64_t size,
	void (*on_extents)(struct copy_walk *walk));
/* The same of what differs, as differ says; it is open, and of images of that size. */
int copy_walk_start_differ(struct copy_walk *walk, struct work *work, struct lane *lane,
	struct differ *differ, uint64_t from, uint64_t size,
	void (*on_extents)(struct copy_walk *walk));
/* The extent to take from: the caller moves its start. NULL: none now, or none at all. Keeps the
 * lookup going, which may set res. */
struct copy_extent *copy_walk_extent(struct copy_walk *walk);
/* That extent is used up. */
void copy_walk_next(struct copy_walk *walk);
/* True when all extents are used up and there are no more. */
bool copy_walk_at_end(const struct copy_walk *walk);

#endif
