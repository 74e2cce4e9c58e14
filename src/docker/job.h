/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job is one request of docker's under way: an operation whose steps are calls of CSI. It goes on
 * when docker has hung up. Jobs of one volume run one after the other, as docker sends them side by
 * side where two containers start at once.
 */
#ifndef RINGVOL_DOCKER_JOB_H
#define RINGVOL_DOCKER_JOB_H

#include "docker/request.h"
#include "reactor/op.h"
#include "rpc/grpc_local.h"

struct csi;
struct pool_object;

enum {
	DOCKER_MESSAGE_MAX = 512, /* bytes of an error that are told */
	DOCKER_JOBS_MAX = 1024,   /* at once, those that wait included */
};

/* What the jobs of a driver share. */
struct docker_jobs {
	struct csi *csi;
	struct grpc_registry *registry;
	const char *mounts; /* an absolute path without links in it */
	struct list list;   /* docker_job.link, in the order they came */
	unsigned count;
	bool draining; /* nothing is tried again */
};

struct docker_job {
	struct op op;
	struct docker_jobs *jobs;
	struct list link;
	bool started;
	struct arena *arena;
	struct docker_request request; /* in the arena */
	const char *stage_path, *mount_path;
	/* Told the outcome, from the loop: op.err, and of a mount mount_path. Then the job is gone.
	 * NULL: nobody wants to hear of it. */
	void (*on_end)(struct docker_job *job, void *arg);
	void *arg;
	/* the call of CSI under way (call.h) */
	const char *path;
	uint8_t *data;
	size_t len;
	struct grpc_local local;
	enum grpc_status status;
	char message[DOCKER_MESSAGE_MAX];
	uint64_t patience_end_ns;
	bool pauses;
};

void docker_jobs_init(struct docker_jobs *jobs, struct csi *csi, struct grpc_registry *registry,
	const char *mounts);
/* Of Create, Remove, Mount or Unmount; takes a reference of the arena. It is started, or waits.
 * -ENOMEM; -EBUSY: there are DOCKER_JOBS_MAX. */
int docker_job_new(struct docker_job **ret, struct docker_jobs *jobs, struct arena *arena,
	const struct docker_request *request, void (*on_end)(struct docker_job *job, void *arg),
	void *arg);

#endif
