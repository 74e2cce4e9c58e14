/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few threads for calls that block but do not hang: loop and reflink ioctls, statfs of a healthy
 * pool, directory scans. A job touches its own struct and nothing of the reactor's.
 *
 * They hang all the same when a disk does. So that this holds up nobody else, jobs come in lanes:
 * those of one lane have WORK_THREADS threads at most, and there are as many for every lane. What
 * may hang together shares a lane, such as all calls on one pool, be they jobs or requests of the
 * ring.
 */
#ifndef RINGVOL_REACTOR_WORK_H
#define RINGVOL_REACTOR_WORK_H

#include "base/list.h"
#include "reactor/ring.h"

enum {
	WORK_THREADS = 4,      /* that one lane may have */
	WORK_QUEUE_MAX = 4096, /* jobs of one lane waiting or running */
};

struct work;

/* Embed it; lives until on_end. */
struct work_job {
	int (*run)(struct work_job *job);              /* on a thread; 0 or -errno */
	void (*on_end)(struct work_job *job, int res); /* on the loop */
	struct lane *lane;                             /* NULL: the shared lane */
	struct list link;
	int res;
	struct ring_req posted; /* the job's turn in a ring that runs it inline */
};

/* threads: of each lane; they start when they are needed. In a ring that runs inline
 * (ring_engine.h) there are none. 0 or -errno. */
int work_open(struct work **ret_work, struct ring *ring, unsigned threads);
/* Waits for the running jobs; those still queued are dropped without on_end. NULL is legal. */
void work_close(struct work *work);
/* True: a job of the lane waits, and none of the lane has begun for so long. Those that run do not
 * end, then. */
bool work_lane_stuck(struct work *work, const struct lane *lane, uint64_t ms);
/* 0, or -EAGAIN when WORK_QUEUE_MAX is reached (on_end is not called then). */
int work_submit(struct work *work, struct work_job *job);
/* Of all lanes. */
unsigned work_queue_depth(const struct work *work);

#endif
