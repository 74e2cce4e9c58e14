/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs docker's jobs: one after the other for each volume, each a table of steps (steps.h). A job
 * fails with the error of its step; those that wait for it run all the same.
 */
#include "docker/job.h"

#include "csi/csi.h"
#include "docker/names.h"
#include "docker/steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define job_of(op_ptr) container_of(op_ptr, struct docker_job, op)

void docker_jobs_init(struct docker_jobs *jobs, struct csi *csi, struct grpc_registry *registry,
	const char *mounts)
{
	*jobs = (struct docker_jobs){.csi = csi, .registry = registry, .mounts = mounts};
	line_init(&jobs->line);
}

static void on_op_end(struct op *op)
{
	struct docker_job *job = job_of(op);
	struct docker_jobs *jobs = job->jobs;
	if (job->on_end != NULL)
		job->on_end(job, job->arg);
	line_leave(&jobs->line, &job->place);
	arena_unref(job->arena);
	free(job);
}

int docker_job_new(struct docker_job **ret, struct docker_jobs *jobs, struct arena *arena,
	const struct docker_request *request, void (*on_end)(struct docker_job *job, void *arg),
	void *arg)
{
	static const struct {
		const char *name;
		const struct op_step *steps;
	} operations[DOCKER_VERBS] = {
		[DOCKER_CREATE] = {"docker create", docker_create_steps},
		[DOCKER_REMOVE] = {"docker remove", docker_remove_steps},
		[DOCKER_MOUNT] = {"docker mount", docker_mount_steps},
		[DOCKER_UNMOUNT] = {"docker unmount", docker_unmount_steps},
	};
	if (jobs->line.count == DOCKER_JOBS_MAX)
		return -EBUSY;
	struct docker_job *job = calloc(1, sizeof(*job));
	if (job == NULL)
		return -ENOMEM;
	job->jobs = jobs;
	job->arena = arena_ref(arena);
	job->request = *request;
	job->on_end = on_end;
	job->arg = arg;
	job->stage_path = docker_stage_path(arena, jobs->mounts, request->name);
	job->mount_path = docker_mount_path(arena, jobs->mounts, request->name, request->id);
	if (job->stage_path == NULL || job->mount_path == NULL) {
		arena_unref(job->arena);
		free(job);
		return -ENOMEM;
	}
	op_init(&job->op, jobs->csi->reactor, operations[request->verb].name,
		operations[request->verb].steps, on_op_end);
	job->call = (struct csi_own_call){.op = &job->op,
		.arena = arena,
		.registry = jobs->registry,
		.patience_ms = CSI_OWN_PATIENCE_MS,
		.draining = &jobs->draining};
	line_join(&jobs->line, &job->place, &job->op, job->request.name);
	*ret = job;
	return 0;
}
