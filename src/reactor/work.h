/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few threads for calls that block for a moment: loop and reflink ioctls, statfs of a healthy
 * pool, directory scans. A job touches its own struct and nothing of the reactor's.
 *
 * When a disk hangs, so do the calls on it. They hold up only their own lane (lane.h): its jobs
 * have WORK_THREADS threads at most, and there are that many for every lane.
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

/* threads: of each lane; they start when they are needed. A ring that runs inline (ring_engine.h)
 * has none. One work a ring. 0 or -errno. */
int work_open(struct work **ret_work, struct ring *ring, unsigned threads);
/* Waits for the running jobs; drops those still queued, without on_end. NULL is legal. */
void work_close(struct work *work);
/* True: a job of the lane waits, and no job of the lane has begun for so long. So those that run do
 * not end. */
bool work_lane_stuck(struct work *work, const struct lane *lane, uint64_t ms);
/* 0, or -EAGAIN at WORK_QUEUE_MAX; on_end is not called then. */
int work_submit(struct work *work, struct work_job *job);
/* Jobs of all lanes that have not ended. */
unsigned work_queue_depth(const struct work *work);

#endif
