/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job is one request of docker's under way: an operation whose steps are calls of CSI. It goes on
 * when docker has hung up. Jobs of one volume run one after the other, as docker sends them side by
 * side where two containers start at once.
 */
#ifndef RINGVOL_DOCKER_JOB_H
#define RINGVOL_DOCKER_JOB_H

#include "csi/own_call.h"
#include "docker/request.h"
#include "reactor/line.h"
#include "reactor/op.h"

struct csi;
struct pool_object;

enum { DOCKER_JOBS_MAX = 1024 }; /* at once, those that wait included */

/* What the jobs of a driver share. */
struct docker_jobs {
	struct csi *csi;
	struct grpc_registry *registry;
	const char *mounts; /* an absolute path without links in it */
	struct line line;   /* docker_job.place; jobs of one volume wait for each other */
	bool draining;      /* nothing is tried again */
};

struct docker_job {
	struct op op;
	struct docker_jobs *jobs;
	struct line_place place;
	struct arena *arena;
	struct docker_request request; /* in the arena */
	const char *stage_path, *mount_path;
	/* Told the outcome, from the loop: op.err, and of a mount mount_path. Then the job is gone.
	 * NULL: nobody wants to hear of it. */
	void (*on_end)(struct docker_job *job, void *arg);
	void *arg;
	struct csi_own_call call; /* the one under way */
};

void docker_jobs_init(struct docker_jobs *jobs, struct csi *csi, struct grpc_registry *registry,
	const char *mounts);
/* Of Create, Remove, Mount or Unmount; takes a reference of the arena. It is started, or waits.
 * -ENOMEM; -EBUSY: there are DOCKER_JOBS_MAX. */
int docker_job_new(struct docker_job **ret, struct docker_jobs *jobs, struct arena *arena,
	const struct docker_request *request, void (*on_end)(struct docker_job *job, void *arg),
	void *arg);

#endif
