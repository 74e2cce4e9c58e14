/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers are fakes of their table, backends of theirs; what else the operations of csi would ask
 * of the machine is in csi_fakes.c. Steps of the pool that would make or rename
 * files there fail before they run: the pool has no directory.
 */
#include "csi_world.h"

#include "csi_requests.h"

#include "backends/backend.h"
#include "base/log.h"
#include "csi/services.h"
#include "mount/mnt.h"
#include "node/volume.h"
#include "pool/fill.h"
#include "pool/index.h"
#include "pool/pools.h"
#include "pool/private.h"
#include "pool/remove.h"

#include <errno.h>
#include <string.h>

struct fuzz csi_world_answers;

/* Volumes that are attached at first, and where they are mounted. */
static const struct used {
	const char *key, *path;
} used[] = {{"used", "/stage/used"}, {"frozen", "/stage/frozen"}, {"busy", NULL}};

static const struct used *used_find(const char *key)
{
	for (unsigned i = 0; i < COUNT(used); i++)
		if (strcmp(used[i].key, key) == 0)
			return &used[i];
	return NULL;
}

/* Of the mount at a path; where the path says nothing it is the first volume's. */
uint32_t csi_world_minor_at(const char *path)
{
	for (unsigned i = 0; i < COUNT(used); i++)
		if (used[i].path != NULL && strcmp(used[i].path, path) == 0)
			return CSI_WORLD_MINOR + 2 * i;
	return CSI_WORLD_MINOR;
}

/* The device of an image, all others' the same. */
static void fake_device(const char *key, struct backend_dev *dev)
{
	const struct used *known = used_find(key);
	unsigned at = known == NULL ? COUNT(used) : (unsigned)(known - used);
	*dev = (struct backend_dev){.attached = true,
		.major = CSI_WORLD_MAJOR,
		.minor = CSI_WORLD_MINOR + 2 * at,
		.tag = "ringvol:01234567:0badcafe",
		.image_dev = CSI_WORLD_IMAGE_DEV,
		.image_ino = 1 + at,
		.size_bytes = 64 << 20};
	snprintf(dev->path, sizeof(dev->path), "/dev/loop%u", dev->minor);
}

/* ---- helpers ---- */

/* As after MNT_INSPECT or MNT_STATS of a path that is a mount of the volume's device, a directory,
 * nothing, or trouble. */
static int fake_info(const char *path, struct mnt_info *info)
{
	static const int errors[] = {-EIO, -ELOOP, -ETIMEDOUT, -ENOTDIR};
	*info = (struct mnt_info){0};
	uint8_t b = csi_world_answer();
	if (b >= 0xf0) {
		snprintf(info->why, sizeof(info->why), "a reason");
		return errors[b % 4];
	}
	info->exists = (b & 0x07) != 0x01;
	info->is_dir = info->exists && (b & 0x08) == 0;
	info->is_file = info->exists && !info->is_dir;
	info->is_mount = info->exists && (b & 0x10) == 0;
	info->read_only = (b & 0x20) != 0;
	info->fs_read_only = (b & 0x60) == 0x60;
	if (info->is_mount) {
		info->dev_major = CSI_WORLD_MAJOR;
		info->dev_minor = csi_world_minor_at(path) + (b & 1);
	}
	info->total_bytes = 1 << 30;
	info->total_inodes = b;
	return 0;
}

static int fake_look(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_path_req *path = req;
	must(req_len == sizeof(*path) && *resp_len >= sizeof(struct mnt_info));
	must(strnlen(path->path, sizeof(path->path)) < sizeof(path->path));
	*resp_len = sizeof(struct mnt_info);
	return fake_info(path->path, resp);
}

/* All of them, or the call overstays, or it answers less than was asked. */
static int fake_stats_many(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_many_req *many = req;
	struct mnt_many_info *infos = resp;
	must(req_len >= offsetof(struct mnt_many_req, paths) && req_len <= sizeof(*many));
	must(many->count <= MNT_MANY_MAX && *resp_len >= many->count * sizeof(*infos));
	const char *path = many->paths, *end = (const char *)req + req_len;
	for (unsigned i = 0; i < many->count; i++) {
		size_t len = strnlen(path, (size_t)(end - path));
		must(path + len < end && len < MNT_PATH_BYTES);
		path += len + 1;
	}
	must(path == end);
	uint8_t b = csi_world_answer();
	*resp_len = 0;
	if (b >= 0xe0)
		return b % 2 == 0 ? -ETIMEDOUT : 0;
	path = many->paths;
	for (unsigned i = 0; i < many->count; i++, path += strlen(path) + 1)
		infos[i].res = fake_info(path, &infos[i].info);
	*resp_len = many->count * sizeof(*infos);
	return 0;
}

static int fake_do(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	static const int errors[] = {-EBUSY, -EINVAL, -ETIMEDOUT, -EXDEV};
	(void)req;
	must(req_len > 0 && *resp_len >= sizeof(struct mnt_result));
	*resp_len = sizeof(struct mnt_result);
	*(struct mnt_result *)resp = (struct mnt_result){0};
	uint8_t b = csi_world_answer();
	return b >= 0xc0 ? errors[b % 4] : 0;
}

/* None of these goes without the device it is for. */
static int fake_on(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_on_req *on = req;
	must(req_len == sizeof(*on) && on->dev_major == CSI_WORLD_MAJOR);
	must(on->at.path[0] == '/' && strnlen(on->at.path, sizeof(on->at.path)) < MNT_PATH_BYTES);
	return fake_do(req, req_len, resp, resp_len);
}

static int fake_trim(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_trim_req *trim = req;
	must(req_len == sizeof(*trim) && trim->on.dev_major == CSI_WORLD_MAJOR);
	int r = fake_do(req, req_len, resp, resp_len);
	((struct mnt_result *)resp)->next_bytes = UINT64_MAX;
	return r;
}

static int fake_label(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_path_req *path = req;
	struct mnt_label *label = resp;
	must(req_len == sizeof(*path) && *resp_len >= sizeof(*label));
	*resp_len = sizeof(*label);
	*label = (struct mnt_label){0};
	uint8_t b = csi_world_answer();
	if (b >= 0xe0)
		return b % 2 == 0 ? -EIO : -ETIMEDOUT;
	if (b % 2 == 0)
		snprintf(label->label, sizeof(label->label), "system_u:object_r:t:s0:c%u", b % 4);
	return 0;
}

/* A volume of another node: taken, given back, looked at, moved here; or trouble. The key comes
 * here alone. */
static int fake_borrow(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	static const enum err_code codes[] = {ERR_UNAVAILABLE, ERR_PRECONDITION, ERR_DATA_LOSS};
	const struct attach_take_req *take = req;
	struct attach_info *info = resp;
	must(req_len == sizeof(*take) || req_len == sizeof(struct attach_volume_req) ||
		req_len == sizeof(struct attach_swap_req));
	must(*resp_len >= sizeof(*info));
	must(req_len != sizeof(*take) || (strchr(take->terms.host, ',') == NULL &&
						 strchr(take->terms.subsystem, ',') == NULL &&
						 strchr(take->terms.key, ',') == NULL));
	*resp_len = sizeof(*info);
	*info = (struct attach_info){0};
	uint8_t b = csi_world_answer();
	if (b >= 0xf0)
		return b % 2 == 0 ? -ETIMEDOUT : -EPIPE;
	if (b >= 0xe0)
		return err_set(&info->err, codes[b % COUNT(codes)], "a reason");
	info->there = true;
	info->found = (b & 1) != 0;
	info->alive = (b & 0x11) != 0x11;
	info->suspended = (b & 0x84) == 0x84;
	info->local = (b & 0x88) == 0x88;
	info->major = CSI_WORLD_MAJOR;
	info->minor = CSI_WORLD_MINOR + 1;
	info->size_bytes = (64 << 20) + ((b & 2) != 0 ? 64 << 20 : 0);
	info->probe = (struct fsimg_probe){
		.type = FSIMG_EXT4, .fs_bytes = 64 << 20, .errors = (b & 0x0c) == 0x0c};
	snprintf(info->path, sizeof(info->path), "/dev/loop%u", info->minor);
	snprintf(info->ctrl.name, sizeof(info->ctrl.name), "%s", (b & 0x20) != 0 ? "" : "nvme1");
	snprintf(info->ctrl.state, sizeof(info->ctrl.state), "%s",
		(b & 0x40) != 0 ? "connecting" : "live");
	return 0;
}

static int fake_sweep(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	must(req_len == sizeof(struct attach_sweep_req));
	*resp_len = sizeof(struct attach_sweep_info);
	memset(resp, 0, *resp_len);
	return 0;
}

static helper_fn *const fake_calls[ATTACH_CALLS] = {
	[ATTACH_TAKE] = fake_borrow,
	[ATTACH_GIVE] = fake_borrow,
	[ATTACH_LOOK] = fake_borrow,
	[ATTACH_OPENED] = fake_borrow,
	[ATTACH_GROW] = fake_borrow,
	[ATTACH_SUSPEND] = fake_borrow,
	[ATTACH_RESUME] = fake_borrow,
	[ATTACH_SWAP] = fake_borrow,
	[ATTACH_SWEEP] = fake_sweep,
	[MNT_INSPECT] = fake_look,
	[MNT_MOUNT] = fake_do,
	[MNT_BIND] = fake_do,
	[MNT_UNMOUNT] = fake_do,
	[MNT_STATS] = fake_look,
	[MNT_GROW] = fake_do,
	[MNT_CLEAN] = fake_on,
	[MNT_SYNC] = fake_on,
	[MNT_FREEZE] = fake_on,
	[MNT_THAW] = fake_on,
	[MNT_STATS_MANY] = fake_stats_many,
	[MNT_TRIM] = fake_trim,
	[MNT_TRY_READ] = fake_do,
	[MNT_LABEL] = fake_label,
};

/* ---- devices ---- */

static int device_answer(struct backend_req *req)
{
	uint8_t b = csi_world_answer();
	if (b >= 0xe0)
		return b % 2 == 0 ? -EIO : err_set(&req->err, ERR_PRECONDITION, "a reason");
	req->dev.read_only = (b & 0x41) == 0x41;
	return b;
}

static int attach_call(struct backend_req *req)
{
	fake_device(req->image, &req->dev);
	int r = device_answer(req);
	req->dev.size_bytes <<= r < 0 ? 0 : r % 3;
	return r < 0 ? r : 0;
}

static int attach_job(void *arg)
{
	return attach_call(arg);
}

static int detach_job(void *arg)
{
	struct backend_req *req = arg;
	int r = device_answer(req);
	req->dev.attached = r >= 0 && (r & 0x80) != 0;
	return r < 0 ? r : 0;
}

static int resize_job(void *arg)
{
	struct backend_req *req = arg;
	int r = device_answer(req);
	req->dev.size_bytes <<= r < 0 ? 0 : r % 3;
	return r < 0 ? r : 0;
}

static int fake_attach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	must(backend->name != NULL && req->image[0] != '\0' && req->tag[0] != '\0');
	return op_work(op, attach_job, req);
}

static int fake_detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	must(backend->name != NULL && req->dev.attached);
	return op_work(op, detach_job, req);
}

static int fake_resize(const struct backend *backend, struct op *op, struct backend_req *req)
{
	must(backend->name != NULL && req->dev.attached);
	return op_work(op, resize_job, req);
}

/* None, if the input does not say otherwise: memory was wrong then. */
static int fake_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	static const char *const tags[] = {
		"ringvol:01234567:0badcafe", "ringvol:01234567:00000000", ""};
	uint8_t b = csi_world_answer();
	if (b >= 0xf8)
		return err_sys(err, -EIO, "looking for devices");
	for (unsigned n = backend->type == BACKEND_LOOP ? b % 8u : 0; n > 0; n--) {
		uint8_t which = csi_world_answer();
		struct backend_dev dev;
		fake_device(which % 4 < COUNT(used) ? used[which % 4].key : "", &dev);
		strcpy(dev.tag, tags[which / 4 % COUNT(tags)]);
		each(arg, &dev);
	}
	return 0;
}

/* Any of them, nothing, or trouble. */
static int fake_device_look(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	must(backend->name != NULL && dev->attached);
	uint8_t b = csi_world_answer();
	if (b >= 0xe0)
		return b >= 0xf8 ? -EIO : b >= 0xf0 ? -EOPNOTSUPP : -ENXIO;
	fake_device(b % 4 < COUNT(used) ? used[b % 4].key : "", ret);
	if (b < 0xc0) { /* under the number that was asked for */
		ret->major = dev->major;
		ret->minor = dev->minor;
	}
	return 0;
}

static int fake_set_read_only(
	const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	(void)backend;
	(void)dev;
	(void)read_only;
	return csi_world_answer() >= 0xc0 ? -EACCES : 0;
}

static uint64_t fake_away_since_ns(const struct backend *backend)
{
	(void)backend;
	return csi_world_answer() >= 0xc0;
}

static int fake_check(const struct backend *backend, bool raw, struct err *err)
{
	(void)backend;
	(void)raw;
	return csi_world_answer() >= 0xc0 ? err_set(err, ERR_PRECONDITION, "a reason") : 0;
}

static const struct backend fake_loop = {
	.type = BACKEND_LOOP,
	.name = "loop",
	.attach_call = attach_call,
	.attach = fake_attach,
	.detach = fake_detach,
	.resize = fake_resize,
	.scan = fake_scan,
	.look = fake_device_look,
	.set_read_only = fake_set_read_only,
};

static const struct backend fake_ublk = {
	.type = BACKEND_UBLK,
	.name = "ublk",
	.needs_image_again = true,
	.away_since_ns = fake_away_since_ns,
	.check = fake_check,
	.attach = fake_attach,
	.detach = fake_detach,
	.resize = fake_resize,
	.scan = fake_scan,
	.look = fake_device_look,
	.set_read_only = fake_set_read_only,
};

/* ---- the pool, and all of it ---- */

/* Names in the pool, and what makes files for it. */
static int fault(void *arg, const char *op_name, const char *step_name)
{
	static const char *const kept_out[][2] = {{"pool_build", "link"}, {"pool_remove", "rename"},
		{"pool_format", "template"}, {"pool_format", "mkfs"}, {"pool_template", "make"},
		{"pool_template", "mkfs"}, {"pool_template", "link"}};
	(void)arg;
	for (unsigned i = 0; i < COUNT(kept_out); i++)
		if (strcmp(op_name, kept_out[i][0]) == 0 && strcmp(step_name, kept_out[i][1]) == 0)
			return -EIO;
	return 0;
}
static void add_object(struct pool *pool, const struct record *from, bool try_read)
{
	struct pool_found found = {.kind = from->kind,
		.rec = record_new(from),
		.image_bytes = from->size_bytes,
		.allocated_bytes = 4096};
	must(found.rec != NULL);
	strcpy(found.key, found.rec->key);
	const struct used *known = used_find(found.key);
	found.image_dev = CSI_WORLD_IMAGE_DEV;
	found.image_ino =
		known != NULL ? 1 + (uint64_t)(known - used) : 100 + pool_count(pool, from->kind);
	struct pool_object *object = pool_index_insert(pool, &found);
	must(object != NULL);
	const struct used *at_first = used_find(object->key);
	if (at_first == NULL)
		return;
	struct node_volume *node = node_volume_get(object);
	must(node != NULL);
	fake_device(object->key, &node->dev);
	node->dev.size_bytes = from->size_bytes;
	node->health.try_read = try_read;
	must(at_first->path == NULL ||
		node_volume_add_mount(node, at_first->path, false, false) == 0);
}

static void fill_pool(struct pool *pool, uint8_t how)
{
	static const struct record objects[] = {
		{.name = "used", .size_bytes = 64 << 20, .fs = FSIMG_EXT4},
		{.name = "raw",
			.size_bytes = 1 << 30,
			.fs = FSIMG_NONE,
			.thick = true,
			.allow_mode_change = true},
		{.name = "copy",
			.size_bytes = 512 << 20,
			.fs = FSIMG_XFS,
			.source = RECORD_SOURCE_SNAPSHOT,
			.source_id = "01234567.snap.0badcafe"},
		{.name = "\xE2\x82\xAC / odd", .size_bytes = 16 << 20, .fs = FSIMG_EXT4},
		{.name = "frozen",
			.size_bytes = 64 << 20,
			.fs = FSIMG_EXT4,
			.snapshot_freeze = true},
		{.name = "busy", .size_bytes = 64 << 20, .fs = FSIMG_NONE},
		{.name = "served",
			.size_bytes = 128 << 20,
			.fs = FSIMG_BTRFS,
			.device = BACKEND_UBLK},
		{.kind = RECORD_SNAPSHOT,
			.name = "snap",
			.size_bytes = 64 << 20,
			.fs = FSIMG_EXT4,
			.source = RECORD_SOURCE_VOLUME,
			.source_id = "01234567.used.0badcafe"},
		{.name = "csi-1", .size_bytes = 64 << 20, .fs = FSIMG_EXT4, .owner = "/pods/uid"},
		{.kind = RECORD_SNAPSHOT, /* a golden image */
			.name = "root",
			.size_bytes = 64 << 20,
			.fs = FSIMG_EXT4,
			.source = RECORD_SOURCE_VOLUME,
			.source_id = "01234567.import.root.0123abcd.0badcafe"},
	};
	pool->life = POOL_SERVED;
	strcpy(pool->uuid, "01234567-89ab-cdef-0123-456789abcdef");
	strcpy(pool->uuid8, "01234567");
	pool->features = (struct fs_features){
		.tmpfile = true, .xattr = true, .fallocate = true, .reflink = (how & 0x20) == 0};
	pool->probed = true;
	pool->capacity_bytes = pool->free_bytes = 100ULL << 30;
	pool->measured_ns = 1;
	for (unsigned i = 0; i < COUNT(objects); i++) {
		struct record rec = objects[i];
		strcpy(rec.random, "0badcafe");
		rec.block_size = 4096;
		add_object(pool, &rec, (how & 0x10) != 0);
	}
	struct pool_found broken = {.kind = RECORD_VOLUME, .key = "broken", .why = "damaged"};
	must(pool_index_insert(pool, &broken) != NULL);
}

void csi_world_open(struct csi_world *w, uint8_t how)
{
	const struct pool_config pool = {.name = "default",
		.path = "/nonexistent/pool",
		.overcommit = 1.0,
		.reserve_pct = 5};
	const struct csi_config csi = {
		.driver_name = "csi.ringvol.dev",
		.node_id = "node-1",
		.services = CSI_IDENTITY | CSI_CONTROLLER | CSI_NODE | CSI_GROUP |
			    CSI_SNAPSHOT_METADATA,
		.controller_expand = (how & 1) != 0,
		.staging = true,
		.attach = (how & 0x20) != 0,
		.inlines = {.n_pools = 1,
			.pools = {"default"},
			.n_sources = 2,
			.sources = {"root", "snap"},
			.max_bytes = 1 << 30,
			.most = {.read_iops = 5000}},
		.health = (how & 2) != 0 ? CSI_HEALTH_1_13 : CSI_HEALTH_1_12,
	};
	for (unsigned i = 0; i < ATTACH_CALLS; i++)
		must(fake_calls[i] != NULL);
	backend_add(&fake_loop);
	backend_add(&fake_ublk);
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	w->sim.seed = how;
	static const struct op_observer observer = {.before = fault};
	w->reactor.observer = &observer;
	must(ring_sim_open(&w->reactor.ring, &w->sim) == 0);
	must(work_open(&w->reactor.work, w->reactor.ring, WORK_THREADS) == 0);
	must(helpers_open(&w->reactor.helpers, w->reactor.ring, fake_calls, ATTACH_CALLS) == 0);
	must(pools_open(&w->pools, &w->reactor, &pool, 1) == 0);
	if ((how & 0x0c) != 0x0c)
		fill_pool(w->pools->at[0], how);
	must(csi_open(&w->csi, &csi, &w->reactor, w->pools) == 0);
	for (unsigned type = 0; type < BACKEND_TYPES; type++) {
		w->csi->node->adoption[type].known_scan = 1;
		w->csi->node->adoption[type].pool_known[0] =
			pool_state_since_ns(w->pools->at[0]) + 1;
	}
	w->registry = grpc_registry_new();
	must(w->registry != NULL && csi_register(w->csi, w->registry) == 0);
}

void csi_world_close(struct csi_world *w)
{
	must(grpc_registry_in_flight(w->registry) == 0);
	must(w->csi->task_count == 0 && list_empty(&w->csi->tasks));
	must(w->csi->borrows->busy == 0);
	borrows_drain(w->csi->borrows, NULL, NULL);
	while (!borrows_quiet(w->csi->borrows))
		must(ring_turn(w->reactor.ring, true) == 0);
	grpc_registry_free(w->registry);
	csi_close(w->csi);
	pools_close(w->pools);
	helpers_close(w->reactor.helpers);
	work_close(w->reactor.work);
	ring_close(w->reactor.ring);
}
