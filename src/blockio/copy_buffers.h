/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The buffers that all copies share, and who may have one. For copy.c.
 *
 * A copy that gives a buffer back goes behind those that wait, so that a long copy does not delay a
 * short one. A disk that hangs keeps the buffers of its copies; the copies of another lane have
 * COPY_LANE_BUFFERS, however many are out.
 *
 * The buffers belong to the loop's thread, of which there is one. Those that are used again are
 * registered with its ring where the kernel lets us, which saves looking up 256 pages for each
 * transfer. But it clears and maps all of a buffer, which is more work than a small copy has.
 */
#ifndef RINGVOL_BLOCKIO_COPY_BUFFERS_H
#define RINGVOL_BLOCKIO_COPY_BUFFERS_H

#include "base/list.h"
#include "blockio/copy_places.h"
#include "reactor/ring.h"
#include "reactor/work.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	COPY_BUFFERS = 32,     /* of all copies together: 32 MiB */
	COPY_LANE_BUFFERS = 2, /* of a lane's beyond that: one is read into, one written from */
};

struct copy_state;

/* A buffer and its chunk: `len` bytes from `offset`, `done` of them read, or written. */
struct copy_buf {
	struct list link;    /* in the free ones, or the copy's `busy` */
	struct ring_req req; /* what is under way with it: one of these */
	struct work_job job;
	struct copy_state *owner;
	uint8_t *mem;
	uint64_t offset;
	uint32_t len, done;
	struct copy_place src, dst; /* where the chunk is */
	bool tail;
	bool zeros;    /* `mem` is all zeros */
	unsigned uses; /* chunks that filled it */
	int fixed;     /* its place among the ring's registered buffers, or negative */
};

/* The copies of one lane of work threads. */
struct copy_lane {
	struct list link;
	struct lane *of;
	unsigned copies, in_flight;
};

/* For a copy that begins, and ends. NULL when out of memory. */
struct copy_lane *copy_buffers_enter(struct ring *ring, struct lane *of);
void copy_buffers_leave(struct copy_lane *lane);

/* A buffer, or NULL: at the limit, or out of memory. */
struct copy_buf *copy_buffers_take(struct copy_lane *lane);
void copy_buffers_give(struct copy_lane *lane, struct copy_buf *buf);
/* Its next chunk has so many bytes. */
void copy_buffers_use(struct copy_buf *buf, uint32_t bytes);
/* Frees those beyond COPY_BUFFERS that nobody uses. */
void copy_buffers_trim(void);

/* The copies that wait for a buffer, in their order. */
struct list *copy_buffers_waiting(void);

#endif
