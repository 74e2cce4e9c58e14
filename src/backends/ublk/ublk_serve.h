/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads (ublk_io.c) and the requests (ublk_serve.c) share. */
#ifndef RINGVOL_BACKENDS_UBLK_SERVE_H
#define RINGVOL_BACKENDS_UBLK_SERVE_H

#include "backends/ublk/ublk_io.h"
#include "backends/ublk/ublk_sq.h"
#include "base/list.h"

#include <pthread.h>

enum { UBLK_IO_UNIT = 16 }; /* buffers and lent entries are handed out in runs of so many */

/* A request's place. Its address is the user_data of its two SQEs; the lowest bit tells them
 * apart. */
struct ublk_tag {
	struct ublk_queue *queue;
	uint16_t number;
	bool linked;      /* the commit was submitted together with the I/O */
	bool write;       /* which of the queue's two ublk_link it belongs to */
	int32_t want;     /* what the I/O's result has to be for the commit to follow */
	uint64_t tick_ns; /* of a write: CLOCK_REALTIME_COARSE when it came */
	/* While it waits for a limit: */
	struct ublk_tag *behind;
	uint64_t came_ns, due_ns;
};

/* Requests of one direction that wait for a limit, in the order of their moments. */
struct ublk_waiting {
	struct ublk_tag *first, *last;
};

/* Whether reads (or writes) are worth a link: one that would have had to sleep was tried in vain.
 */
struct ublk_link {
	uint16_t alone; /* so many more go without */
	uint16_t next;  /* that many after the next failure */
};

enum { UBLK_TAG_IO = 1 }; /* in user_data: the I/O's completion, not the commit's */

struct ublk_queue {
	struct ublk_queue_spec spec;
	/* Written by its thread, read by any; each is consistent by itself. */
	struct ublk_counters counters;
	struct ublk_throttled throttled;
	struct ublk_io_thread *thread;
	const struct ublk_abi_desc *descs;
	uint8_t *data;       /* depth * UBLK_IO_BYTES; NULL with zero copy */
	unsigned image_slot; /* in the ring's table of files */
	uint32_t first_buf;  /* in the ring's table of buffers; with zero copy */
	uint32_t first_sqe;  /* lent entries for its commands, one a tag; UINT32_MAX: none */
	struct ublk_link link_of[2];    /* reads, writes */
	uint64_t noted_ns;              /* the tick in which the image's time of change is noted */
	unsigned out;                   /* tags the kernel has, or that are being served */
	struct ublk_waiting waiting[2]; /* reads, writes */
	uint32_t throttle_version;      /* of the moments that they have */
	struct list held;               /* thread->held while any wait */
	int broken;                     /* the first refusal of the kernel that was no stop */
	struct list link;               /* on its thread's inbox, or on the loop's news */
	unsigned news;                  /* what the loop is to be told; under io->mutex */
	int served;
	struct ublk_tag tags[]; /* depth */
};

struct ublk_io_thread {
	struct ublk_io *io;
	pthread_t thread;
	void (*on_ended)(struct ublk_queue *queue); /* a queue's last completion was served */
	struct ublk_sq sq;
	bool bufs_registered;
	int opened;       /* what setting the ring up said */
	struct list held; /* ublk_queue.held: queues in which requests wait for a limit */
	/* the loop's: what is handed out */
	unsigned queues;
	uint64_t files_used[UBLK_IO_FILES_MAX / 64];        /* a bit for each */
	uint8_t bufs_used[UBLK_IO_BUFS_MAX / UBLK_IO_UNIT]; /* for each run */
	uint8_t sqes_used[UBLK_SQ_LENT / UBLK_IO_UNIT];
	/* shared */
	pthread_mutex_t mutex;
	struct list inbox; /* ublk_queue.link: to be started */
	bool stop;
	int event_fd;
	uint64_t event_count; /* where the ring reads the eventfd to */
};

/* ---- ublk_serve.c: on the queue's thread ---- */

/* Asks the kernel for the queue's requests. */
void ublk_serve_fetch(struct ublk_queue *queue);
/* One completion; the queue's last one ends in its thread's on_ended. */
void ublk_serve_cqe(uint64_t user_data, int res);
/* Serves what has waited long enough for its limit. How long the next one has to wait (ns);
 * UINT64_MAX: none waits. */
uint64_t ublk_serve_due(struct ublk_io_thread *thread);

#endif
