/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What docker's requests are in calls of CSI.
 *
 *   Create:  CreateVolume, whose parameters are docker's options; the same again is no error.
 *   Mount:   directories -> NodeStageVolume (with --staging on) -> NodePublishVolume at a place of
 *            the container's own.
 *   Unmount: NodeUnpublishVolume -> where that was the last one: NodeUnstageVolume -> directories.
 *   Remove:  NodeUnstageVolume of what a Mount cut short has left -> directories -> DeleteVolume.
 *
 * How they can fail: with what CSI says. Mount and Unmount can be repeated after any failure; what
 * a failed Mount has staged goes with its undo, with the next Unmount, or with Remove.
 */
#include "docker/steps.h"

#include "base/options.h"
#include "csi/csi.h"
#include "csi/messages.h"
#include "csi/own_use.h"
#include "csi/params.h"
#include "csi/request.h"
#include "docker/job.h"
#include "docker/names.h"
#include "pool/index.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct docker_job *job_of(struct op *op)
{
	return container_of(op, struct docker_job, op);
}

static int call_end(struct op *op, int res)
{
	return csi_own_call_end(&job_of(op)->call, res);
}

/* ---- the volume ---- */

static struct pool_object *volume_of(const struct docker_job *job)
{
	return docker_find(job->jobs->csi->pools, job->arena, job->request.name);
}

static bool volume_gone(struct op *op)
{
	return volume_of(job_of(op)) == NULL;
}

/* Its id, in the arena. NULL, and the operation has failed: it is not there, or in quarantine. */
static const char *id_of(struct op *op)
{
	const struct docker_job *job = job_of(op);
	const struct pool_object *volume = volume_of(job);
	if (volume != NULL)
		return csi_own_id(op, job->arena, volume, job->request.name);
	op_fail(op, ERR_NOT_FOUND, "there is no volume %s", job->request.name);
	return NULL;
}

static bool whole(struct op *op)
{
	return !job_of(op)->jobs->csi->config.staging;
}

static struct csi_own_use use_of(struct op *op)
{
	const struct docker_job *job = job_of(op);
	return (struct csi_own_use){
		.id = id_of(op),
		.stage_path = job->stage_path,
		.target_path = job->mount_path,
		.staged = !whole(op),
	};
}

/* ---- Create ---- */

struct create {
	Csi__V1__CreateVolumeRequest req;
	Csi__V1__CapacityRange range;
	Csi__V1__VolumeCapability *caps[1];
	Csi__V1__StringPair pairs[DOCKER_OPTIONS_MAX], *parameters[DOCKER_OPTIONS_MAX];
	Csi__V1__VolumeContentSource source;
	Csi__V1__VolumeContentSource__VolumeSource of;
	char source_id[RECORD_ID_MAX];
};

static int set_size(struct create *c, const char *value, struct err *err)
{
	uint64_t size;
	if (!options_quantity(value, &size) || size == 0 || size > CSI_SIZE_MAX)
		return err_set(
			err, ERR_INVALID, "option size takes bytes, as 1073741824, 10G or 10Gi");
	c->range = (Csi__V1__CapacityRange)CSI__V1__CAPACITY_RANGE__INIT;
	c->range.required_bytes = (int64_t)size;
	c->req.capacity_range = &c->range;
	return 0;
}

static int set_from(
	struct create *c, const struct docker_job *job, const char *name, struct err *err)
{
	const struct pool_object *volume = docker_find(job->jobs->csi->pools, job->arena, name);
	if (volume == NULL || volume->rec == NULL)
		return err_set(err, ERR_NOT_FOUND, "option from: there is no volume %.64s", name);
	pool_object_id(volume, c->source_id);
	c->of = (Csi__V1__VolumeContentSource__VolumeSource)
		CSI__V1__VOLUME_CONTENT_SOURCE__VOLUME_SOURCE__INIT;
	c->of.volume_id = csi_bytes(c->source_id);
	c->source = (Csi__V1__VolumeContentSource)CSI__V1__VOLUME_CONTENT_SOURCE__INIT;
	c->source.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_VOLUME;
	c->source.volume = &c->of;
	c->req.volume_content_source = &c->source;
	return 0;
}

/* The others are parameters of classes, and CSI says what is wrong with them. */
static int set_option(struct create *c, const struct docker_job *job,
	const struct docker_option *option, struct err *err)
{
	const char *key = option->key;
	if (strcmp(key, "size") == 0)
		return set_size(c, option->value, err);
	if (strcmp(key, "from") == 0)
		return set_from(c, job, option->value, err);
	if (strcmp(key, "encryption") == 0)
		return err_set(err, ERR_INVALID,
			"option encryption: docker has no way to bring a key; use CSI");
	bool fs = strcmp(key, "fsType") == 0 || strcmp(key, "fstype") == 0;
	Csi__V1__StringPair *pair = &c->pairs[c->req.n_parameters];
	*pair = (Csi__V1__StringPair)CSI__V1__STRING_PAIR__INIT;
	pair->key = csi_bytes(fs ? CSI_PARAM_FSTYPE : key);
	pair->value = csi_bytes(option->value);
	c->parameters[c->req.n_parameters++] = pair;
	return 0;
}

static int create_run(struct op *op)
{
	struct docker_job *job = job_of(op);
	const struct docker_request *req = &job->request;
	struct create *c = arena_alloc(job->arena, sizeof(*c));
	const char *name = docker_volume_name(job->arena, req->name);
	if (c == NULL || name == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	c->req = (Csi__V1__CreateVolumeRequest)CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	c->req.name = csi_bytes(name);
	c->caps[0] = csi_own_capability(false);
	c->req.volume_capabilities = c->caps;
	c->req.n_volume_capabilities = 1;
	c->req.parameters = c->parameters;
	for (unsigned i = 0; i < req->n_options; i++) {
		int r = set_option(c, job, &req->options[i], &op->err);
		if (r < 0)
			return r;
	}
	return csi_own_call_run(&job->call, "/csi.v1.Controller/CreateVolume", &c->req.base);
}

const struct op_step docker_create_steps[] = {
	{"create", .run = create_run, .end = call_end, .flags = OP_COMMIT},
	{NULL},
};

/* ---- directories ---- */

/* For root alone: what is mounted there has the modes that its owner gave it. The last name of a
 * path may be missing. */
static int make_dirs(struct op *op)
{
	const struct docker_job *job = job_of(op);
	char path[PATH_MAX];
	int len = snprintf(path, sizeof(path), "%s/%s", job->jobs->mounts, job->request.name);
	if (len >= (int)sizeof(path) - (int)sizeof("/mounts"))
		return -ENAMETOOLONG;
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	strcpy(path + len, "/mounts");
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	return mkdir(job->stage_path, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

static int make_dirs_end(struct op *op, int res)
{
	const struct docker_job *job = job_of(op);
	return res == 0 ? 0
			: op_fail_sys(op, res, "making the directories of volume %s below %s",
				  job->request.name, job->jobs->mounts);
}

/* Those that are empty. */
static int remove_dirs(struct op *op)
{
	const struct docker_job *job = job_of(op);
	char path[PATH_MAX];
	int len = snprintf(path, sizeof(path), "%s/%s", job->jobs->mounts, job->request.name);
	if (len >= (int)sizeof(path) - (int)sizeof("/mounts"))
		return 0;
	(void)rmdir(job->stage_path);
	strcpy(path + len, "/mounts");
	(void)rmdir(path);
	path[len] = '\0';
	(void)rmdir(path);
	return 0;
}

static int ignore(struct op *op, int res)
{
	(void)op;
	(void)res;
	return 0;
}

/* ---- Mount ---- */

static int stage_run(struct op *op)
{
	const struct csi_own_use use = use_of(op);
	return csi_own_stage(&job_of(op)->call, &use);
}

static int unstage_run(struct op *op)
{
	const struct csi_own_use use = use_of(op);
	return csi_own_unstage(&job_of(op)->call, &use);
}

/* Another container has it, or it was never staged. */
static bool unstage_done(struct op *op)
{
	const struct docker_job *job = job_of(op);
	const struct pool_object *volume = volume_of(job);
	return whole(op) || volume == NULL ||
	       docker_mounted_at(volume, job->jobs->mounts, job->request.name) != NULL;
}

static int stage_undo(struct op *op)
{
	return unstage_done(op) ? 0 : unstage_run(op);
}

static int publish_run(struct op *op)
{
	const struct csi_own_use use = use_of(op);
	return csi_own_publish(&job_of(op)->call, &use);
}

static int check_there(struct op *op)
{
	return id_of(op) != NULL ? 0 : -ENOENT;
}

const struct op_step docker_mount_steps[] = {
	{"find", .run = check_there},
	{"directories", .call = make_dirs, .end = make_dirs_end},
	{"stage", .done = whole, .run = stage_run, .end = call_end, .undo = stage_undo},
	{"publish", .run = publish_run, .end = call_end, .flags = OP_COMMIT},
	{NULL},
};

/* ---- Unmount ---- */

static int unpublish_run(struct op *op)
{
	const struct csi_own_use use = use_of(op);
	return csi_own_unpublish(&job_of(op)->call, &use);
}

const struct op_step docker_unmount_steps[] = {
	{"unpublish", .done = volume_gone, .run = unpublish_run, .end = call_end},
	{"unstage", .done = unstage_done, .run = unstage_run, .end = call_end},
	{"directories", .call = remove_dirs, .end = ignore},
	{NULL},
};

/* ---- Remove ---- */

static int unused_run(struct op *op)
{
	const struct docker_job *job = job_of(op);
	const char *at = docker_mounted_at(volume_of(job), job->jobs->mounts, job->request.name);
	return at == NULL ? 0
			  : op_fail(op, ERR_PRECONDITION, "volume %s is mounted at %s",
				    job->request.name, at);
}

static bool remove_unstage_done(struct op *op)
{
	return volume_gone(op) || whole(op);
}

static int delete_run(struct op *op)
{
	const char *id = id_of(op);
	if (id == NULL)
		return -ENOENT;
	Csi__V1__DeleteVolumeRequest req = CSI__V1__DELETE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(id);
	return csi_own_call_run(&job_of(op)->call, "/csi.v1.Controller/DeleteVolume", &req.base);
}

const struct op_step docker_remove_steps[] = {
	{"unused", .done = volume_gone, .run = unused_run},
	{"unstage", .done = remove_unstage_done, .run = unstage_run, .end = call_end},
	{"directories", .call = remove_dirs, .end = ignore},
	{"delete", .done = volume_gone, .run = delete_run, .end = call_end},
	{NULL},
};
