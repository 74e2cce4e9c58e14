/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the provider's jobs are in calls of CSI.
 *
 *   acquire: CreateVolume, where it is missing and may be made -> directories -> NodeStageVolume
 *            (with --staging on) -> NodePublishVolume -> a descriptor of what is there: of a file
 *            system a mount of its own that is nowhere, of a block volume the device.
 *   release: is it used? -> NodeUnpublishVolume -> NodeUnstageVolume -> directories.
 *
 * How they can fail: with what CSI says, or with an error of the interface. Both can be repeated
 * after any failure. A volume that was made and could not be handed over stays.
 *
 * Used is a volume that was handed over or had somebody a short while ago (the directory's time
 * says so, and survives the driver), whose device is mounted in any namespace, or of which somebody
 * has the descriptor of a block device. A mount that nobody has put anywhere yet is not seen: then
 * the kernel keeps the device for it, and until it is gone nobody else gets the volume.
 */
#include "provider/steps.h"

#include "base/clock.h"
#include "csi/csi.h"
#include "csi/messages.h"
#include "csi/own_use.h"
#include "csi/params.h"
#include "mount/mnt_elsewhere.h"
#include "node/volume.h"
#include "pool/golden.h"
#include "pool/index.h"
#include "pool/prefixed.h"
#include "provider/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BLOCK        "block"
#define DEFAULT_TYPE PROVIDER_DIR

static const char *const templates[] = {"ext4", "xfs", "btrfs", BLOCK, NULL};

const char *provider_template_at(unsigned i)
{
	return templates[i];
}

static bool is_fixed(const char *name)
{
	for (unsigned i = 0; templates[i] != NULL; i++)
		if (strcmp(templates[i], name) == 0)
			return true;
	return false;
}

enum provider_type provider_template_type(const struct provider_jobs *jobs, const char *name)
{
	struct err unread = {0};
	struct pool_object *image = NULL;
	if (is_fixed(name))
		return strcmp(name, BLOCK) == 0 ? PROVIDER_BLK : PROVIDER_DIR;
	if (!golden_name_valid(name) ||
		pools_find_golden(jobs->csi->pools, name, &image, &unread) < 0 || image == NULL)
		return PROVIDER_TYPE_ANY;
	return image->rec->fs == FSIMG_NONE ? PROVIDER_BLK : PROVIDER_DIR;
}

static struct provider_job *job_of(struct op *op)
{
	return container_of(op, struct provider_job, op);
}

static int call_end(struct op *op, int res)
{
	return csi_own_call_end(&job_of(op)->call, res);
}

/* An error of the interface. */
static int refuse(struct op *op, const char *error, enum err_code code, const char *why)
{
	job_of(op)->error = error;
	return op_fail(op, code, "volume %s: %s", job_of(op)->request.name, why);
}

/* ---- the volume ---- */

static struct pool_object *volume_of(const struct provider_job *job)
{
	char name[RECORD_NAME_MAX + 1];
	snprintf(name, sizeof(name), PROVIDER_PREFIX "%s", job->request.name);
	return pools_find_name(job->jobs->csi->pools, RECORD_VOLUME, name);
}

static bool is_there(struct op *op)
{
	return volume_of(job_of(op)) != NULL;
}

/* Its id, in the arena. NULL, and the operation has failed: it is not there, or in quarantine. */
static const char *id_of(struct op *op)
{
	const struct provider_job *job = job_of(op);
	const struct pool_object *volume = volume_of(job);
	if (volume != NULL)
		return csi_own_id(op, job->arena, volume, job->request.name);
	refuse(op, PROVIDER_ERROR("NoSuchVolume"), ERR_NOT_FOUND, "it is gone");
	return NULL;
}

static bool whole(struct op *op)
{
	return !job_of(op)->jobs->csi->config.staging;
}

static struct csi_own_use use_of(struct op *op)
{
	const struct provider_job *job = job_of(op);
	return (struct csi_own_use){
		.id = id_of(op),
		.stage_path = job->stage_path,
		.target_path = job->target_path,
		.block = job->block,
		.staged = !whole(op),
	};
}

/* ---- find ---- */

/* A pool that cannot say what it has may have it. */
static int find_missing(struct op *op)
{
	const struct pool *pool;
	const struct csi *csi = job_of(op)->jobs->csi;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++)
		if (pool_state(pool) != POOL_READY)
			return op_fail(op, ERR_UNAVAILABLE,
				"pool %s may have volume %s, and cannot be read: %s",
				pool_name(pool), job_of(op)->request.name, pool_why(pool));
	return refuse(op, PROVIDER_ERROR("NoSuchVolume"), ERR_NOT_FOUND, "there is none");
}

/* What the request does not say about a volume that is to be made follows from the template. */
static int find_new(struct op *op)
{
	struct provider_job *job = job_of(op);
	const struct provider_acquire *req = &job->request;
	enum provider_type made = DEFAULT_TYPE;
	if (req->create == PROVIDER_CREATE_OPEN)
		return find_missing(op);
	if (req->template[0] != '\0')
		made = provider_template_type(job->jobs, req->template);
	else if (req->type != PROVIDER_TYPE_ANY)
		made = req->type;
	if (req->type != PROVIDER_TYPE_ANY && req->type != made)
		return refuse(op, PROVIDER_ERROR("BadTemplate"), ERR_INVALID,
			"the template makes another type than was asked for");
	if (req->size_bytes == 0)
		return refuse(op, PROVIDER_ERROR("CreateSizeRequired"), ERR_INVALID,
			"it is made with a size, createSizeBytes");
	job->block = made == PROVIDER_BLK;
	return 0;
}

static int find_run(struct op *op)
{
	struct provider_job *job = job_of(op);
	const struct provider_acquire *req = &job->request;
	const struct pool_object *volume = volume_of(job);
	if (req->type == PROVIDER_REG)
		return refuse(op, PROVIDER_ERROR("TypeNotSupported"), ERR_INVALID,
			"volumes are directories or block devices, and no files");
	if (req->template[0] != '\0' &&
		provider_template_type(job->jobs, req->template) == PROVIDER_TYPE_ANY)
		return refuse(op, PROVIDER_ERROR("NoSuchTemplate"), ERR_NOT_FOUND,
			"the template is no file system, 'block' or golden image");
	if (volume == NULL)
		return find_new(op);
	if (volume->rec == NULL)
		return op_fail(op, ERR_DATA_LOSS,
			"volume %s is quarantined in pool %s: %s; see ringvol check", req->name,
			pool_name(volume->pool), volume->why);
	if (req->create == PROVIDER_CREATE_NEW)
		return refuse(op, PROVIDER_ERROR("VolumeExists"), ERR_EXISTS, "it exists");
	job->block = volume->rec->fs == FSIMG_NONE;
	if (req->type != PROVIDER_TYPE_ANY && (req->type == PROVIDER_BLK) != job->block)
		return refuse(op, PROVIDER_ERROR("WrongType"), ERR_INVALID,
			job->block ? "it is a block device" : "it is a directory");
	return 0;
}

/* ---- create ---- */

struct create {
	Csi__V1__CreateVolumeRequest req;
	Csi__V1__CapacityRange range;
	Csi__V1__VolumeCapability *caps[1];
	Csi__V1__StringPair pair, *parameters[1];
};

static int create_run(struct op *op)
{
	struct provider_job *job = job_of(op);
	const char *template = job->request.template;
	struct create *c = arena_alloc(job->arena, sizeof(*c));
	char *name = arena_printf(job->arena, PROVIDER_PREFIX "%s", job->request.name);
	if (c == NULL || name == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	c->req = (Csi__V1__CreateVolumeRequest)CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	c->req.name = csi_bytes(name);
	c->range = (Csi__V1__CapacityRange)CSI__V1__CAPACITY_RANGE__INIT;
	c->range.required_bytes = (int64_t)job->request.size_bytes;
	c->req.capacity_range = &c->range;
	c->caps[0] = csi_own_capability(job->block);
	c->req.volume_capabilities = c->caps;
	c->req.n_volume_capabilities = 1;
	if (template[0] != '\0' && strcmp(template, BLOCK) != 0) {
		c->pair = (Csi__V1__StringPair)CSI__V1__STRING_PAIR__INIT;
		c->pair.key = csi_bytes(is_fixed(template) ? CSI_PARAM_FSTYPE : "source");
		c->pair.value = csi_bytes(template);
		c->parameters[0] = &c->pair;
		c->req.parameters = c->parameters;
		c->req.n_parameters = 1;
	}
	return csi_own_call_run(&job->call, "/csi.v1.Controller/CreateVolume", &c->req.base);
}

/* ---- directories ---- */

/* For root alone: what is mounted there has the modes that its owner gave it. The time of the
 * directory says when the volume was handed over last. */
static int make_dirs(struct op *op)
{
	const struct provider_job *job = job_of(op);
	if (mkdir(job->dir, 0700) < 0 && errno != EEXIST)
		return -errno;
	if (mkdir(job->stage_path, 0700) < 0 && errno != EEXIST)
		return -errno;
	return utimensat(AT_FDCWD, job->dir, NULL, 0) < 0 ? -errno : 0;
}

static int make_dirs_end(struct op *op, int res)
{
	return res == 0 ? 0
			: op_fail_sys(op, res, "making the directories of a volume, %s",
				  job_of(op)->dir);
}

/* Those that are empty. */
static int remove_empty(void *arg)
{
	const struct provider_job *job = arg;
	(void)rmdir(job->stage_path);
	(void)rmdir(job->dir);
	return 0;
}

static int remove_dirs(struct op *op)
{
	return remove_empty(job_of(op));
}

static int undo_dirs(struct op *op)
{
	return op_work(op, remove_empty, job_of(op));
}

static int ignore(struct op *op, int res)
{
	(void)op;
	(void)res;
	return 0;
}

/* ---- stage and publish ---- */

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

/* What others have stays. */
static int stage_undo(struct op *op)
{
	const struct provider_job *job = job_of(op);
	const struct pool_object *volume = volume_of(job);
	const struct node_volume *node = volume == NULL ? NULL : node_volume_find(volume);
	bool published = node != NULL && node_volume_mount_at(node, job->target_path) != NULL;
	return published || volume == NULL ? 0 : unstage_run(op);
}

static int publish_run(struct op *op)
{
	const struct csi_own_use use = use_of(op);
	return csi_own_publish(&job_of(op)->call, &use);
}

/* ---- open ---- */

/* A mount of its own, in which nothing shows that is mounted elsewhere, and the other way round. */
static int open_dir(struct provider_job *job)
{
	struct statvfs fs;
	bool read_only = job->request.writes == PROVIDER_READ_ONLY;
	struct mount_attr attr = {
		.attr_set = read_only ? MOUNT_ATTR_RDONLY : 0, .propagation = MS_PRIVATE};
	int fd = open_tree(AT_FDCWD, job->target_path,
		OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
	if (fd < 0)
		return -errno;
	if (mount_setattr(fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0 ||
		fstatvfs(fd, &fs) < 0) {
		int r = -errno;
		close(fd);
		return r;
	}
	job->fd = fd;
	job->read_only = fs.f_flag & ST_RDONLY;
	return 0;
}

static bool is_write_refused(int error)
{
	return error == EROFS || error == EACCES || error == EPERM;
}

static int open_block(struct provider_job *job)
{
	static const int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	struct stat st;
	int fd = -1;
	if (job->request.writes != PROVIDER_READ_ONLY)
		fd = open(job->target_path, O_RDWR | flags);
	if (fd < 0 && job->request.writes == PROVIDER_WRITABLE)
		return is_write_refused(errno) ? -EROFS : -errno;
	job->read_only = fd < 0;
	if (fd < 0)
		fd = open(job->target_path, O_RDONLY | flags);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || !S_ISBLK(st.st_mode)) {
		close(fd);
		return -ENOTBLK;
	}
	job->fd = fd;
	return 0;
}

static int open_call(struct op *op)
{
	struct provider_job *job = job_of(op);
	return job->block ? open_block(job) : open_dir(job);
}

static int open_end(struct op *op, int res)
{
	const struct provider_job *job = job_of(op);
	if (res == -EROFS ||
		(res == 0 && job->read_only && job->request.writes == PROVIDER_WRITABLE))
		return refuse(op, PROVIDER_ERROR("ReadOnlyVolume"), ERR_PRECONDITION,
			"it cannot be written to; see ringvol health");
	return res == 0 ? 0
			: op_fail_sys(op, res, "opening volume %s at %s", job->request.name,
				  job->target_path);
}

const struct op_step provider_acquire_steps[] = {
	{"find", .run = find_run},
	{"create", .done = is_there, .run = create_run, .end = call_end},
	{"directories", .call = make_dirs, .end = make_dirs_end, .undo = undo_dirs},
	{"stage", .done = whole, .run = stage_run, .end = call_end, .undo = stage_undo},
	{"publish", .run = publish_run, .end = call_end, .flags = OP_COMMIT},
	{"open", .call = open_call, .end = open_end},
	{NULL},
};

/* ---- release ---- */

/* Whether it was handed over a short while ago, or by somebody else: then it has no directory here.
 * A clock that was set back does not make that longer. */
static bool is_kept(const struct provider_job *job)
{
	struct stat st;
	if (stat(job->dir, &st) < 0)
		return true;
	int64_t then = (int64_t)st.st_mtim.tv_sec, now = (int64_t)(clock_now_ns() / 1000000000);
	return then <= now && now - then < job->jobs->idle_s;
}

/* Somebody has its descriptor, or works there: the kernel counts users of a mount, and with
 * MNT_EXPIRE says so without unmounting. Asked twice with no use between it unmounts, so it is
 * asked last, right before the unmount. */
static bool is_busy(const struct provider_job *job)
{
	return umount2(job->target_path, MNT_EXPIRE | UMOUNT_NOFOLLOW) < 0 && errno == EBUSY;
}

static int look_call(struct op *op)
{
	struct provider_job *job = job_of(op);
	job->used = is_kept(job);
	if (job->used)
		return 0;
	int r = job->major == 0 ? 0 : mnt_elsewhere(job->major, job->minor, job->jobs->mounts);
	job->used = r != 0 || is_busy(job);
	return r < 0 ? r : 0;
}

static int look_end(struct op *op, int res)
{
	return res < 0 ? op_fail_sys(op, res, "looking for users of volume %s",
				 job_of(op)->request.name)
		       : 0;
}

static bool used(struct op *op)
{
	return job_of(op)->used || !is_there(op);
}

static int unpublish_run(struct op *op)
{
	const struct csi_own_use use = use_of(op);
	return csi_own_unpublish(&job_of(op)->call, &use);
}

static bool unstage_done(struct op *op)
{
	return used(op) || whole(op);
}

const struct op_step provider_release_steps[] = {
	{"look", .call = look_call, .end = look_end},
	{"unpublish", .done = used, .run = unpublish_run, .end = call_end},
	{"unstage", .done = unstage_done, .run = unstage_run, .end = call_end},
	{"directories", .done = used, .call = remove_dirs, .end = ignore},
	{NULL},
};
