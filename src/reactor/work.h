/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few threads for calls that block but do not hang: loop and reflink ioctls, statfs of a healthy
 * pool, directory scans. A job touches its own struct and nothing of the reactor's.
 */
#ifndef RINGVOL_REACTOR_WORK_H
#define RINGVOL_REACTOR_WORK_H

#include "base/list.h"
#include "reactor/ring.h"

enum {
	WORK_THREADS = 4,
	WORK_QUEUE_MAX = 4096, /* jobs waiting or running */
};

struct work;

/* Embed it; lives until on_end. */
struct work_job {
	int (*run)(struct work_job *job);              /* on a thread; 0 or -errno */
	void (*on_end)(struct work_job *job, int res); /* on the loop */
	struct list link;
	int res;
	struct ring_req posted; /* carries the result in a simulation */
};

/* In a simulated ring, jobs run on the loop's thread at a seeded moment. 0 or -errno. */
int work_open(struct work **ret_work, struct ring *ring, unsigned threads);
/* Waits for the running jobs; those still queued are dropped without on_end. NULL is legal. */
void work_close(struct work *work);
/* 0, or -EAGAIN when WORK_QUEUE_MAX is reached (on_end is not called then). */
int work_submit(struct work *work, struct work_job *job);
unsigned work_queue_depth(const struct work *work);

#endif
