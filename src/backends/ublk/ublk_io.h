/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data path: threads with a ring each, which serve the queues of ublk devices.
 *
 * A thread serves many queues; a queue stays with its thread, for the kernel takes a queue's
 * commands from one task only. Everything a request needs is set up when its queue starts: no
 * request allocates, takes a lock or makes a system call of its own.
 *
 * Threads run without CAP_SYS_ADMIN in effect. The kernel then does not look for partitions on a
 * device that starts (as for loop), and a process killed at that moment cannot wait for its own
 * reads for ever.
 */
#ifndef RINGVOL_BACKENDS_UBLK_IO_H
#define RINGVOL_BACKENDS_UBLK_IO_H

#include "backends/ublk/ublk_abi.h"
#include "backends/ublk/ublk_throttle.h"
#include "backends/ublk/ublkd_proto.h"
#include "reactor/ring.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	UBLK_IO_THREADS_MAX = 16,
	UBLK_IO_BYTES = 256 << 10, /* the largest request; a copying queue has that much a tag */
	UBLK_IO_BUFS_MAX = 16384,  /* tags of zero copy queues in one thread: the kernel's limit */
	UBLK_IO_FILES_MAX = 2048,  /* queues of one thread: each has its image in a table */
};

struct ublk_io;
struct ublk_queue;

struct ublk_queue_spec {
	int char_fd, image_fd; /* /dev/ublkcN and the image; open until the queue has ended */
	uint16_t id, depth;
	bool zero_copy;   /* the device was made with UBLK_ABI_F_AUTO_BUF and _F_ZERO_COPY */
	bool direct_io;   /* the image is open with O_DIRECT */
	bool keep_blocks; /* zeroes are written, not punched: thick volumes */
	struct ublk_throttle *throttle; /* the device's, for all its queues */
	/* From the loop. The kernel has been asked for requests, or why not (then it has ended). */
	void (*on_served)(struct ublk_queue *queue, int res);
	/* From the loop, after on_served: the kernel has given every tag back. res: 0 when the
	 * device was stopped, else what the kernel said when it broke. */
	void (*on_end)(struct ublk_queue *queue, int res);
	void *owner;
};

/* ring: the loop that callbacks run on. Blocks while the threads start. 0 or -errno. */
int ublk_io_open(struct ublk_io **ret, struct ring *ring, unsigned threads);
/* With no queue left. NULL is legal. */
void ublk_io_close(struct ublk_io *io);

/* Whether a queue of this depth finds a thread with room: files, and buffers if zero copy. */
bool ublk_io_has_room(struct ublk_io *io, unsigned depth, bool zero_copy);

/* Maps the kernel's descriptors and, unless zero_copy, memory for the data (touched as it is used).
 * Blocking, for work jobs. 0 or -errno. */
int ublk_queue_new(struct ublk_queue **ret, const struct ublk_queue_spec *spec);
/* Gives it to the thread with the fewest queues. 0, or -ENOSPC without room anywhere. */
int ublk_queue_start(struct ublk_io *io, struct ublk_queue *queue);
/* One that was never started, or has ended. NULL is legal. */
void ublk_queue_free(struct ublk_queue *queue);
void *ublk_queue_owner(const struct ublk_queue *queue);
/* Adds the queue's counters to *sum; the later error wins. */
void ublk_queue_count(const struct ublk_queue *queue, struct ublk_counters *sum);
void ublk_queue_count_throttled(const struct ublk_queue *queue, struct ublk_throttled *sum);
/* The throttle has changed: what waits in the threads asks it anew. */
void ublk_io_throttles_changed(struct ublk_io *io);

#endif
