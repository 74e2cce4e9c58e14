/* SPDX-License-Identifier: Apache-2.0 */
/* A queue of work that is full, of jobs that do nothing. For one test program each. */
#ifndef RINGVOL_TESTS_FULL_QUEUE_H
#define RINGVOL_TESTS_FULL_QUEUE_H

#include "reactor/work.h"

static unsigned queue_jobs_ended;

static inline int queue_job_run(struct work_job *job)
{
	(void)job;
	return 0;
}

static inline void queue_job_on_end(struct work_job *job, int res)
{
	(void)job;
	(void)res;
	queue_jobs_ended++;
}

/* Until no more fits. How many did; they have to end before it is called again. */
static inline unsigned fill_queue(struct work *work)
{
	static struct work_job jobs[WORK_QUEUE_MAX + 1]; /* the last one is refused */
	unsigned count = 0;
	do
		jobs[count] = (struct work_job){.run = queue_job_run, .on_end = queue_job_on_end};
	while (work_submit(work, &jobs[count++]) == 0);
	return count - 1;
}

#endif
