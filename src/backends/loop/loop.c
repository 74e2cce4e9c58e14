/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes as loop devices. Each call is one work job over lodev, and for raw volumes over the guard
 * as well. The job works on the request only; the step's end moves its error into the operation.
 *
 * Happy path of a raw attach: the loop device, then the guard over it. Of a detach: the guard, then
 * the loop device. A crash in between leaves a loop device without a guard, which the next attach
 * completes and the next detach clears. A guard that a tenant still has open goes when the tenant
 * lets go, and its loop device with it. How it can fail: as lodev and guard do, and with
 * ERR_PRECONDITION where the kernel has no device mapper. An earlier version may have published a
 * loop device bare: it is left as it is as long as its node is bound somewhere.
 */
#include "backends/loop/loop.h"

#include "backends/dm/guard.h"
#include "backends/loop/lodev.h"
#include "backends/loop/lodev_minor.h"
#include "base/buf.h"
#include "base/fd.h"
#include "blockio/blkdev.h"
#include "mount/mnt_scan.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(sizeof((struct backend_dev){0}.tag) == LODEV_TAG_BYTES, "one tag, two structs");
static_assert(sizeof((struct backend_dev){0}.tag) == sizeof((struct guard){0}.tag), "three");

static struct backend_loop_config config;

static const char *control_path(void)
{
	return config.dm_control_path != NULL ? config.dm_control_path : DM_CONTROL_PATH;
}

/* What tenants need and this node lacks. */
static int refuse_raw(struct err *err)
{
	return err_set(err, ERR_PRECONDITION,
		"raw block volumes need the device mapper, which this node lacks (%s): load its module (modprobe dm_mod), or accept that pods hold loop nodes with 'ringvol serve --block-on-loop'",
		control_path());
}

static int open_dm(struct dm *dm, struct err *err)
{
	int r = dm_open(dm, control_path());
	if (r == 0)
		return 0;
	if (dm_is_absent(r))
		return refuse_raw(err);
	return err_sys(
		err, r, "raw block volumes need the device mapper: opening %s", control_path());
}

/* ---- devices ---- */

static void dev_from_lodev(const struct lodev *lo, struct backend_dev *dev)
{
	*dev = (struct backend_dev){
		.attached = true,
		.major = LODEV_MAJOR,
		.minor = lo->minor,
		.bare = !config.block_on_loop,
		.size_bytes = lo->size_bytes,
		.image_dev = lo->image_dev,
		.image_ino = lo->image_ino,
		.direct_io = lo->direct_io,
		.read_only = lo->read_only,
		.going_away = lo->going_away,
		.found = lo->found,
	};
	snprintf(dev->path, sizeof dev->path, "/dev/loop%u", lo->minor);
	memcpy(dev->tag, lo->tag, sizeof dev->tag);
}

/* The same device with its guard above it. */
static void dev_add_guard(const struct guard *guard, struct backend_dev *dev)
{
	dev->below_major = dev->major;
	dev->below_minor = dev->minor;
	dev->major = guard->major;
	dev->minor = guard->minor;
	dev->bare = false;
	dev->size_bytes = guard->size_bytes;
	dev->read_only = guard->read_only;
	dev->going_away |= guard->going_away;
	/* That of the device below may have been rewritten before there was a guard. */
	memcpy(dev->tag, guard->tag, sizeof dev->tag);
	snprintf(dev->path, sizeof dev->path, "/dev/dm-%u", guard->minor);
}

static struct lodev dev_to_lodev(const struct backend_dev *dev)
{
	uint32_t dev_major;
	struct lodev lo = {
		.image_dev = dev->image_dev,
		.image_ino = dev->image_ino,
	};
	backend_dev_below(dev, &dev_major, &lo.minor);
	memcpy(lo.tag, dev->tag, sizeof lo.tag);
	return lo;
}

/* ---- attach ---- */

struct published {
	uint32_t minor;
	bool found;
};

static void published_on_mount(void *arg, const struct mnt_entry *entry)
{
	struct published *p = arg;
	p->found |= entry->dev_major == LODEV_MAJOR && entry->dev_minor == p->minor;
}

/* Whether the loop node itself is bound somewhere: an earlier version did that. */
static int is_published_bare(uint32_t minor, bool *ret)
{
	struct published p = {.minor = minor};
	int r = mnt_scan(published_on_mount, &p);
	*ret = p.found;
	return r;
}

static int guard_loop(struct dm *dm, const struct lodev_spec *spec, const struct lodev *lo,
	struct guard *ret, struct err *err)
{
	struct guard_spec guard = {
		.tag = spec->tag,
		.major = LODEV_MAJOR,
		.minor = lo->minor,
		.size_bytes = lo->size_bytes,
		.read_only = lo->read_only,
	};
	/* A flag that an earlier version set on the node it published. */
	if (lo->read_only && !spec->read_only) {
		int r = lodev_set_read_only(lo->minor, false);
		if (r < 0)
			return err_sys(
				err, r, "clearing the read-only flag of /dev/loop%u", lo->minor);
		struct lodev now;
		guard.read_only = lodev_status(lo->minor, &now) == 0 && now.read_only;
	}
	return guard_make(dm, &guard, ret, err);
}

/* Above a loop device that is bound. 0 without a guard: it stays bare, as it is published so. */
static int guard_or_bare(struct dm *dm, const struct lodev_spec *spec, const struct lodev *lo,
	struct backend_dev *dev, struct err *err)
{
	struct guard guard;
	bool bare = false;
	int r = 0;
	if (lo->found && (dm->fd < 0 || !guard_exists(dm, spec->tag)))
		r = is_published_bare(lo->minor, &bare);
	if (r < 0)
		return err_sys(err, r, "looking for mounts of /dev/loop%u", lo->minor);
	if (bare)
		return 0;
	r = dm->fd < 0 ? refuse_raw(err) : guard_loop(dm, spec, lo, &guard, err);
	if (r == 0)
		dev_add_guard(&guard, dev);
	return r;
}

/* Tried until it is there once. */
static void make_keeper(struct dm *dm)
{
	static atomic_bool made;
	if (!atomic_load(&made) && guard_make_keeper(dm) == 0)
		atomic_store(&made, true);
}

static int attach_raw(const struct lodev_spec *spec, struct backend_dev *dev, struct err *err)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct lodev lo;
	struct err ignored = {0};
	bool still_bound;
	int r = dm_open(&dm, control_path());
	if (r < 0 && !dm_is_absent(r))
		return err_sys(err, r, "raw block volumes need the device mapper: opening %s",
			control_path());
	if (r == 0)
		make_keeper(&dm);
	r = lodev_attach(spec, &lo, err);
	if (r < 0)
		return r;
	dev_from_lodev(&lo, dev);
	r = guard_or_bare(&dm, spec, &lo, dev, err);
	if (r < 0 && !lo.found)
		(void)lodev_detach(&lo, &still_bound, &ignored);
	return r;
}

/* A guard that is there stays: one of a run that did not accept loop nodes, or of a block volume
 * that is mounted now, which is mounted from it. */
static int attach_plain(const struct lodev_spec *spec, struct backend_dev *dev, struct err *err)
{
	struct lodev lo;
	struct guard guard;
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = lodev_attach(spec, &lo, err);
	if (r < 0)
		return r;
	dev_from_lodev(&lo, dev);
	if (lo.found && dm_is_loaded() && dm_open(&dm, control_path()) == 0 &&
		guard_look(&dm, spec->tag, &guard) == 0 && guard.below_major == LODEV_MAJOR &&
		guard.below_minor == lo.minor)
		dev_add_guard(&guard, dev);
	return 0;
}

static int attach_call(struct backend_req *req)
{
	struct lodev_spec spec = {
		.dirfd = req->dirfd,
		.image = req->image,
		.block_size = req->block_size,
		.direct_io = req->direct_io,
		.read_only = req->read_only,
		.no_discard = req->no_discard,
	};
	memcpy(spec.tag, req->tag, sizeof spec.tag);
	struct backend_dev dev;
	int r = req->raw && !config.block_on_loop ? attach_raw(&spec, &dev, &req->err)
						  : attach_plain(&spec, &dev, &req->err);
	if (r == 0)
		req->dev = dev;
	return r;
}

/* ---- detach ---- */

/* What else stands on it is somebody else's. */
static bool has_guard_above(uint32_t minor)
{
	return dm_stands_on(LODEV_MAJOR, minor, GUARD_UUID_PREFIX);
}

/* The guard of a device that was found bare may have been made half. */
static int remove_guard(const struct lodev *lo, bool *ret_waits, struct err *err)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	*ret_waits = false;
	if (!dm_is_loaded())
		return 0;
	int r = dm_open(&dm, control_path());
	if (r < 0 && (dm_is_absent(r) || !has_guard_above(lo->minor)))
		return 0;
	if (r < 0)
		return err_sys(err, r, "taking the guard off /dev/loop%u: opening %s", lo->minor,
			control_path());
	return guard_remove(&dm, lo->tag, LODEV_MAJOR, lo->minor, ret_waits, err);
}

int backend_loop_detach(struct backend_dev *dev, struct err *err)
{
	struct lodev lo = dev_to_lodev(dev);
	bool waits, still_bound;
	int r = remove_guard(&lo, &waits, err);
	if (r == 0)
		r = lodev_detach(&lo, &still_bound, err);
	if (r < 0)
		return r;
	dev->attached = dev->going_away = still_bound;
	return 0;
}

static int detach_job(void *arg)
{
	struct backend_req *req = arg;
	return backend_loop_detach(&req->dev, &req->err);
}

/* ---- resize ---- */

static int resize_job(void *arg)
{
	struct backend_req *req = arg;
	struct lodev lo = dev_to_lodev(&req->dev), now;
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct guard guard;
	int r = lodev_resize(&lo, &req->dev.size_bytes, &req->err);
	if (r < 0 || req->dev.below_major == 0)
		return r;
	r = lodev_status(lo.minor, &now);
	if (r < 0)
		return err_sys(&req->err, r, "reading the state of /dev/loop%u", lo.minor);
	const struct guard_spec spec = {
		.tag = lo.tag,
		.major = LODEV_MAJOR,
		.minor = lo.minor,
		.size_bytes = req->dev.size_bytes,
		.read_only = now.read_only,
	};
	r = open_dm(&dm, &req->err);
	return r == 0 ? guard_make(&dm, &spec, &guard, &req->err) : r;
}

/* ---- the vtable ---- */

static int loop_check(const struct backend *backend, bool raw, struct err *err)
{
	(void)backend;
	if (!raw || config.block_on_loop)
		return 0;
	bool there = access(control_path(), F_OK) == 0 && dm_is_loaded();
	return there ? 0 : refuse_raw(err);
}

static int attach_job(void *arg)
{
	return attach_call(arg);
}

static int loop_attach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, attach_job, req);
}

static int loop_detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, detach_job, req);
}

static int loop_resize(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, resize_job, req);
}

/* ---- all of them ---- */

struct guards {
	struct guard *at;
	size_t count, cap;
	int res;         /* -ENOMEM */
	int unknown_res; /* why it cannot be known which there are; 0: it is known */
};

static void guards_on_guard(void *arg, const struct guard *guard)
{
	struct guards *g = arg;
	if (array_grow(&g->at, &g->cap, g->count, sizeof(*g->at)) < 0)
		g->res = -ENOMEM;
	else
		g->at[g->count++] = *guard;
}

static int guards_read(struct guards *ret)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	if (!dm_is_loaded())
		return 0;
	int r = dm_open(&dm, control_path());
	ret->unknown_res = r == 0 || dm_is_absent(r) ? 0 : r;
	if (r < 0)
		return 0;
	r = guard_each(&dm, guards_on_guard, ret);
	return r < 0 ? r : ret->res;
}

static struct guard *guards_over(const struct guards *g, uint32_t dev_major, uint32_t dev_minor)
{
	for (size_t i = 0; i < g->count; i++)
		if (g->at[i].below_major == dev_major && g->at[i].below_minor == dev_minor)
			return &g->at[i];
	return NULL;
}

struct scan {
	void (*each)(void *arg, const struct backend_dev *dev);
	void *arg;
	struct guards guards;
};

static void scan_on_device(void *arg, const struct lodev *lo)
{
	struct scan *scan = arg;
	struct backend_dev dev;
	dev_from_lodev(lo, &dev);
	struct guard *guard = guards_over(&scan->guards, dev.major, dev.minor);
	if (guard != NULL)
		dev_add_guard(guard, &dev);
	else if (scan->guards.unknown_res < 0 && has_guard_above(lo->minor))
		scan->guards.res = scan->guards.unknown_res;
	scan->each(scan->arg, &dev);
}

static int loop_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	struct scan scan = {.each = each, .arg = arg};
	int r = guards_read(&scan.guards);
	if (r < 0) {
		free(scan.guards.at);
		return err_sys(err, r, "looking through the device-mapper devices");
	}
	r = lodev_scan(scan_on_device, &scan);
	free(scan.guards.at);
	if (r == 0 && scan.guards.res < 0)
		return err_sys(err, scan.guards.res,
			"looking through the device-mapper devices: opening %s", control_path());
	return r < 0 ? err_sys(err, r, "looking through the loop devices in /sys/block") : 0;
}

/* The guard now; -ENXIO: it has gone, or stands over something else. */
static int look_guard(const struct backend_dev *dev, struct guard *ret)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = dm_open(&dm, control_path());
	if (r == 0)
		r = guard_look(&dm, dev->tag, ret);
	if (r < 0)
		return dm_is_absent(r) || r == -EEXIST ? -ENXIO : r;
	return ret->below_major == dev->below_major && ret->below_minor == dev->below_minor
		       ? 0
		       : -ENXIO;
}

static int loop_look(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	(void)backend;
	struct lodev lo;
	struct guard guard;
	uint32_t dev_major, dev_minor;
	backend_dev_below(dev, &dev_major, &dev_minor);
	if (dev_major != LODEV_MAJOR)
		return -EOPNOTSUPP;
	bool guarded = dev->below_major != 0;
	int r = guarded ? look_guard(dev, &guard) : 0;
	if (r == 0 && guarded && (guard.major != dev->major || guard.minor != dev->minor))
		r = -ENXIO;
	if (r == 0)
		r = lodev_status(dev_minor, &lo);
	if (r < 0)
		return r == -ENOENT ? -ENXIO : r;
	dev_from_lodev(&lo, ret);
	if (guarded)
		dev_add_guard(&guard, ret);
	return 0;
}

static void stray_on_device(void *arg, const struct lodev *lo)
{
	struct guards *g = arg;
	struct guard *guard = guards_over(g, LODEV_MAJOR, lo->minor);
	if (guard != NULL)
		guard->tag[0] = '\0';
}

int backend_loop_stray_guards(void (*each)(void *arg, const struct guard *guard), void *arg)
{
	struct guards g = {0};
	int r = guards_read(&g);
	if (r == 0 && g.count != 0)
		r = lodev_scan(stray_on_device, &g);
	for (size_t i = 0; r == 0 && i < g.count; i++)
		if (g.at[i].tag[0] != '\0')
			each(arg, &g.at[i]);
	free(g.at);
	return r;
}

int backend_loop_remove_stray(const char *tag, struct err *err)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	bool waits;
	int r = open_dm(&dm, err);
	return r < 0 ? r : guard_remove(&dm, tag, 0, 0, &waits, err);
}

/* A guard's flag is on its own node, by the number that the kernel says now. */
static int loop_set_read_only(
	const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	(void)backend;
	if (dev->below_major == 0)
		return lodev_set_read_only(dev->minor, read_only);
	struct guard guard;
	int r = look_guard(dev, &guard);
	if (r < 0 || guard.read_only == read_only)
		return r;
	char path[32];
	snprintf(path, sizeof path, "/dev/dm-%u", guard.minor);
	return blkdev_set_read_only(path, read_only);
}

void backend_loop_configure(const struct backend_loop_config *new_config)
{
	struct dm dm;
	config = *new_config;
	if (dm_open(&dm, control_path()) == 0)
		dm_close(&dm);
}

const struct backend backend_loop = {
	.type = BACKEND_LOOP,
	.name = "loop",
	.devices_max = LODEV_MINORS,
	.check = loop_check,
	.attach_call = attach_call,
	.attach = loop_attach,
	.detach = loop_detach,
	.resize = loop_resize,
	.scan = loop_scan,
	.look = loop_look,
	.set_read_only = loop_set_read_only,
};
