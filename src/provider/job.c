/* SPDX-License-Identifier: Apache-2.0 */
/* Makes jobs and runs them in line; finds the volumes that may be let go. Of steps.c are the
 * stories. A job fails with the error of its step. */
#include "provider/job.h"

#include "csi/csi.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/prefixed.h"
#include "provider/steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define job_of(op_ptr) container_of(op_ptr, struct provider_job, op)

enum { ARENA_MAX_BYTES = 256 << 10 };

void provider_jobs_init(struct provider_jobs *jobs, struct csi *csi, struct grpc_registry *registry,
	const char *mounts, unsigned idle_s)
{
	*jobs = (struct provider_jobs){
		.csi = csi, .registry = registry, .mounts = mounts, .idle_s = idle_s};
	line_init(&jobs->line);
}

static void job_free(struct provider_job *job)
{
	if (job->fd >= 0)
		close(job->fd);
	arena_unref(job->arena);
	free(job);
}

static void on_op_end(struct op *op)
{
	struct provider_job *job = job_of(op);
	if (job->on_end != NULL)
		job->on_end(job, job->arg);
	line_leave(&job->jobs->line, &job->place);
	job_free(job);
}

static int job_new(struct provider_job **ret, struct provider_jobs *jobs, struct arena *arena,
	const struct provider_acquire *request, uint64_t patience_ms)
{
	if (jobs->line.count == PROVIDER_JOBS_MAX)
		return -EBUSY;
	struct provider_job *job = calloc(1, sizeof(*job));
	if (job == NULL)
		return -ENOMEM;
	job->jobs = jobs;
	job->arena = arena_ref(arena);
	job->request = *request;
	job->fd = -1;
	job->dir = arena_printf(arena, "%s/%s", jobs->mounts, request->name);
	job->stage_path = arena_printf(arena, "%s/%s/stage", jobs->mounts, request->name);
	job->target_path = arena_printf(arena, "%s/%s/volume", jobs->mounts, request->name);
	if (job->dir == NULL || job->stage_path == NULL || job->target_path == NULL) {
		job_free(job);
		return -ENOMEM;
	}
	job->call = (struct csi_own_call){.op = &job->op,
		.arena = arena,
		.registry = jobs->registry,
		.patience_ms = patience_ms,
		.draining = &jobs->draining};
	*ret = job;
	return 0;
}

int provider_acquire(struct provider_jobs *jobs, struct arena *arena,
	const struct provider_acquire *request, void (*on_end)(struct provider_job *job, void *arg),
	void *arg)
{
	struct provider_job *job;
	int r = job_new(&job, jobs, arena, request, CSI_OWN_PATIENCE_MS);
	if (r < 0)
		return r;
	job->on_end = on_end;
	job->arg = arg;
	op_init(&job->op, jobs->csi->reactor, "provider acquire", provider_acquire_steps,
		on_op_end);
	line_join(&jobs->line, &job->place, &job->op, job->request.name);
	return 0;
}

/* ---- release ---- */

static bool is_below(const char *path, const char *mounts, const char *name)
{
	size_t len = strlen(mounts), name_len = strlen(name);
	return strncmp(path, mounts, len) == 0 && path[len] == '/' &&
	       strncmp(path + len + 1, name, name_len) == 0 && path[len + 1 + name_len] == '/';
}

/* Or was, and its device is left. A block volume that somebody else has staged looks alike; it has
 * no directory of ours, as the step "look" finds. */
static bool is_handed_over(const struct pool_object *volume, const char *mounts, const char *name)
{
	const struct node_volume *node = node_volume_find(volume);
	if (node == NULL)
		return false;
	if (list_empty(&node->mounts))
		return node->dev.attached;
	list_for_each (link, &node->mounts)
		if (is_below(container_of(link, struct node_mount, link)->path, mounts, name))
			return true;
	return false;
}

/* For want of memory it is done the next time. */
static void release(struct provider_jobs *jobs, const struct pool_object *volume)
{
	const struct node_volume *node = node_volume_find(volume);
	struct provider_acquire request = {.template = ""};
	struct provider_job *job;
	struct arena *arena = arena_new(ARENA_MAX_BYTES);
	request.name = arena == NULL
			       ? NULL
			       : arena_strdup(arena, prefixed_name_of(volume, PROVIDER_PREFIX));
	if (request.name != NULL && job_new(&job, jobs, arena, &request, 0) == 0) {
		job->block = volume->rec->fs == FSIMG_NONE;
		job->major = node->dev.major;
		job->minor = node->dev.minor;
		op_init(&job->op, jobs->csi->reactor, "provider release", provider_release_steps,
			on_op_end);
		line_join(&jobs->line, &job->place, &job->op, job->request.name);
	}
	arena_unref(arena);
}

void provider_release_unused(struct provider_jobs *jobs)
{
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(jobs->csi->pools, i)) != NULL; i++)
		for (struct pool_object *v = prefixed_next(pool, PROVIDER_PREFIX, ""); v != NULL;
			v = prefixed_next(pool, PROVIDER_PREFIX, v->key)) {
			const char *name = prefixed_name_of(v, PROVIDER_PREFIX);
			if (is_handed_over(v, jobs->mounts, name) && !line_has(&jobs->line, name))
				release(jobs, v);
		}
}
