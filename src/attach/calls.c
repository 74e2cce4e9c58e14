/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of calls.h. Owns nothing; the kernel keeps all there is to know.
 *
 * Happy path of taking: no cover -> no connection -> connect -> the namespace's device appears ->
 * the cover over it -> what it holds. Of giving back: the cover goes, then the connection, and only
 * then there is an answer. Of a swap: the suspended cover gets its other table and goes on, then
 * the connection ends. How it can fail: as fabrics.h and guards do; the namespace is not there;
 * the cover of an earlier use, whose device is gone, is open still. What failed leaves no
 * connection that it made. A helper that is killed in between leaves what the next call finds, or
 * the sweep.
 */
#include "attach/calls.h"

#include "backends/dm/guard.h"
#include "base/clock.h"
#include "base/fd.h"
#include "blockio/blkdev.h"
#include "mount/mnt_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define TAG_PREFIX   "ringvol:"
#define COVER_PREFIX TAG_PREFIX "cover:"
#define COVER_NAME   "ringvol-cover-"

enum {
	DISK_WAIT_MS = 10000, /* the kernel looks for namespaces once it is connected */
	SIZE_WAIT_MS = 5000,
	LOOK_MS = 20,
	CONNECTIONS_MAX = 4, /* of one subsystem; there is one */
	COVERS_MAX = 1024,   /* looked at in one sweep; the next one sees the others */
};

static const char *control_path = DM_CONTROL_PATH;

void attach_calls_set_dm(const char *path)
{
	control_path = path != NULL ? path : DM_CONTROL_PATH;
}

/* ---- covers ---- */

static int cover_tag(const char tag[ATTACH_TAG_BYTES], char ret[ATTACH_TAG_BYTES], struct err *err)
{
	size_t prefix = strlen(TAG_PREFIX);
	int n = -1;
	if (strnlen(tag, ATTACH_TAG_BYTES) < ATTACH_TAG_BYTES &&
		strncmp(tag, TAG_PREFIX, prefix) == 0)
		n = snprintf(ret, ATTACH_TAG_BYTES, COVER_PREFIX "%s", tag + prefix);
	return n < 0 || n >= ATTACH_TAG_BYTES ? err_set(err, ERR_INTERNAL, "no tag of a volume")
					      : 0;
}

static int open_dm(struct dm *dm, struct err *err)
{
	int r = dm_open(dm, control_path);
	return r < 0 ? dm_fail_open(r, "volumes of other nodes", err) : 0;
}

static void put_guard(const struct guard *guard, struct attach_info *info)
{
	info->there = true;
	info->suspended = guard->suspended;
	info->read_only = guard->read_only;
	info->major = guard->major;
	info->minor = guard->minor;
	info->below_major = guard->below_major;
	info->below_minor = guard->below_minor;
	info->size_bytes = guard->size_bytes;
	snprintf(info->path, sizeof(info->path), "/dev/dm-%u", guard->minor);
}

struct use {
	uint32_t major, minor;
	bool found;
};

static void on_mount(void *arg, const struct mnt_entry *entry)
{
	struct use *use = arg;
	use->found |= entry->dev_major == use->major && entry->dev_minor == use->minor;
}

/* Whether somebody has it open, has it mounted, or has its node, whose number would be another's
 * once it is gone. On doubt it is in use. */
static bool is_used(const struct guard *guard)
{
	struct use use = {.major = guard->major, .minor = guard->minor};
	return guard->open || mnt_scan(on_mount, &use) < 0 || use.found;
}

/* The device below a cover: one of NVMe, or any other, which is this node's own. -ENOENT: it is
 * gone. */
static int disk_below(const struct guard *guard, struct fabrics_disk *ret, bool *ret_local)
{
	struct blkdev own;
	int r = fabrics_disk_at(guard->below_major, guard->below_minor, ret);
	*ret_local = false;
	if (r != -ENOENT || blkdev_look(guard->below_major, guard->below_minor, &own) < 0 ||
		own.size_bytes == 0)
		return r;
	*ret = (struct fabrics_disk){
		.major = guard->below_major,
		.minor = guard->below_minor,
		.size_bytes = own.size_bytes,
	};
	*ret_local = true;
	return 0;
}

/* The cover, the device below it and the connection to that, as far as they are there. */
static int look_at(struct dm *dm, const char *cover, const char *subsystem, struct guard *guard,
	struct fabrics_disk *disk, struct attach_info *info)
{
	*guard = (struct guard){0};
	*disk = (struct fabrics_disk){0};
	int r = guard_look(dm, cover, guard);
	if (r < 0 && r != -ENXIO)
		return err_sys(&info->err, r, "looking at the device-mapper device of the volume");
	if (r == 0 && guard->foreign)
		return err_set(&info->err, ERR_PRECONDITION,
			"the device /dev/dm-%u has the name of the volume's and a table that is not ours: see 'dmsetup table', and remove it with dmsetup",
			guard->minor);
	if (r == 0)
		put_guard(guard, info);
	if (r == 0 && guard->below_major != 0) {
		r = disk_below(guard, disk, &info->local);
		info->alive = r == 0;
		if (r < 0 && r != -ENOENT)
			return err_sys(&info->err, r, "looking at the devices of NVMe");
	}
	const char *name = info->alive ? disk->subsystem : subsystem;
	if (name[0] != '\0' && fabrics_find(name, NULL, &info->ctrl) < 0)
		info->ctrl.name[0] = '\0';
	return 0;
}

/* ---- taking ---- */

static int disconnect(const struct fabrics_ctrl *ctrl, struct err *err)
{
	int r = fabrics_disconnect(ctrl);
	if (r == -EBUSY)
		return err_set(err, ERR_TIMEOUT,
			"the connection %s (%s) does not end: something waits for its I/O, see the kernel log",
			ctrl->name, ctrl->subsystem);
	return r < 0 ? err_sys(err, r, "ending the connection %s (%s)", ctrl->name, ctrl->subsystem)
		     : 0;
}

/* All connections to a subsystem of ours. */
static int disconnect_all(const char *subsystem, struct err *err)
{
	struct fabrics_ctrl ctrl;
	int r = 0;
	for (unsigned i = 0; r == 0 && i < CONNECTIONS_MAX; i++) {
		int found = fabrics_find(subsystem, NULL, &ctrl);
		if (found == -ENOENT)
			return 0;
		r = found < 0 ? err_sys(err, found, "looking for connections of NVMe")
			      : disconnect(&ctrl, err);
	}
	return r;
}

/* The kernel shows a device in sysfs a moment before it can be opened. */
static bool can_be_opened(const struct fabrics_disk *disk)
{
	char path[sizeof("/dev/") + FABRICS_NAME_BYTES];
	snprintf(path, sizeof(path), "/dev/%s", disk->name);
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	return fd >= 0 || errno != ENXIO;
}

static int await_disk(const struct attach_terms *terms, struct fabrics_disk *ret, struct err *err)
{
	struct fabrics_ctrl ctrl;
	for (unsigned ms = 0; ms <= DISK_WAIT_MS; ms += LOOK_MS) {
		int r = fabrics_disk(terms->subsystem, terms->namespace_id, ret);
		if (r == 0 && ret->size_bytes != 0 && can_be_opened(ret))
			return 0;
		if (r < 0 && r != -ENOENT)
			return err_sys(err, r, "looking for the device of the volume");
		if (fabrics_find(terms->subsystem, terms->host_nqn, &ctrl) < 0)
			break;
		if (ms == DISK_WAIT_MS / 2)
			(void)fabrics_rescan(&ctrl);
		clock_sleep_ms(LOOK_MS);
	}
	return err_set(err, ERR_PRECONDITION,
		"node %s shows this node no device with the volume's UUID: the volume is not published to it (any more), or the node has just started; try again",
		terms->node);
}

/* Nothing stands on a connection that is there: it is of an attempt that ended half way. */
static int connect_to(const struct attach_take_req *req, struct fabrics_disk *ret, struct err *err)
{
	const struct attach_terms *terms = &req->terms;
	struct fabrics_ctrl ctrl;
	int r = fabrics_find(terms->subsystem, NULL, &ctrl);
	if (r == 0 &&
		(strcmp(ctrl.state, "live") != 0 || strcmp(ctrl.host_nqn, terms->host_nqn) != 0)) {
		r = disconnect_all(terms->subsystem, err);
		if (r < 0)
			return r;
		r = -ENOENT;
	}
	if (r == -ENOENT)
		r = fabrics_connect(terms, &req->waits, err);
	if (r < 0)
		return err_sys(err, r, "looking for connections of NVMe");
	r = await_disk(terms, ret, err);
	struct err ignored = {0};
	if (r < 0)
		(void)disconnect_all(terms->subsystem, &ignored);
	return r;
}

/* A cover that is there already: 1: it is right; 0: there is none (any more). */
static int use_cover(struct dm *dm, const struct attach_take_req *req, const char *cover,
	struct fabrics_disk *disk, struct attach_info *info)
{
	struct guard guard;
	struct fabrics_disk wanted;
	bool waits = false;
	int r = look_at(dm, cover, req->terms.subsystem, &guard, disk, info);
	if (r < 0 || !info->there)
		return r;
	if (info->alive && !guard.going_away &&
		fabrics_disk(req->terms.subsystem, req->terms.namespace_id, &wanted) == 0 &&
		wanted.major == disk->major && wanted.minor == disk->minor)
		return 1;
	if (is_used(&guard))
		return err_set(&info->err, ERR_PRECONDITION,
			"the device of an earlier use of the volume, /dev/dm-%u, is gone below and still in use: unpublish and unstage the volume, and end what has it open (fuser -v /dev/dm-%u)",
			guard.minor, guard.minor);
	r = guard_remove(dm, cover, guard.below_major, guard.below_minor, &waits, &info->err);
	*info = (struct attach_info){.err = info->err};
	return r;
}

static int probe(const struct attach_take_req *req, struct attach_info *info)
{
	_cleanup_fd_ int fd = open(info->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	int r = fd < 0 ? -errno : fsimg_probe_expected(fd, req->terms.fs, &info->probe);
	if (r < 0)
		return err_sys(&info->err, r, "reading the device %s of the volume", info->path);
	if (info->probe.ambivalent || info->probe.needs_more || info->probe.type != req->terms.fs)
		return err_set(&info->err, ERR_DATA_LOSS,
			"node %s says that the volume holds %s, its device holds %s; nothing is formatted, look at it on that node",
			req->terms.node, fsimg_name(req->terms.fs),
			info->probe.found[0] != '\0' ? info->probe.found : "no file system");
	return 0;
}

static int make_cover(struct dm *dm, const struct attach_take_req *req, const char *cover,
	const struct fabrics_disk *disk, struct attach_info *info)
{
	bool read_only = req->read_only || req->terms.read_only;
	struct guard guard;
	if (disk->read_only && !read_only)
		return err_set(&info->err, ERR_PRECONDITION,
			"node %s gives this node the volume read-only, and it is to be written to",
			req->terms.node);
	const struct guard_spec spec = {
		.tag = cover,
		.major = disk->major,
		.minor = disk->minor,
		.size_bytes = disk->size_bytes,
		.read_only = read_only,
	};
	int r = guard_make(dm, &spec, &guard, &info->err);
	if (r < 0)
		return r;
	put_guard(&guard, info);
	info->alive = true;
	return 0;
}

/* What this call has made goes again. */
static void undo_take(struct dm *dm, const struct attach_take_req *req, const char *cover,
	const struct attach_info *info)
{
	struct err ignored = {0};
	bool waits;
	if (info->there)
		(void)guard_remove(
			dm, cover, info->below_major, info->below_minor, &waits, &ignored);
	(void)disconnect_all(req->terms.subsystem, &ignored);
}

static int take(const struct attach_take_req *req, struct attach_info *info)
{
	char cover[ATTACH_TAG_BYTES];
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct fabrics_disk disk;
	int r = cover_tag(req->tag, cover, &info->err);
	if (r == 0)
		r = fabrics_check(&info->err);
	if (r == 0)
		r = open_dm(&dm, &info->err);
	int found = r == 0 ? use_cover(&dm, req, cover, &disk, info) : r;
	if (found < 0)
		return found;
	if (found == 0)
		r = connect_to(req, &disk, &info->err);
	if (r < 0)
		return r;
	r = make_cover(&dm, req, cover, &disk, info);
	if (r == 0 && req->probe)
		r = probe(req, info);
	if (r < 0 && found == 0)
		undo_take(&dm, req, cover, info);
	if (r < 0)
		return r;
	info->found = found == 1;
	if (fabrics_find(req->terms.subsystem, NULL, &info->ctrl) < 0)
		info->ctrl.name[0] = '\0';
	return 0;
}

/* ---- giving back ---- */

/* A connection that is not live writes nothing any more: it ends first, so that nothing waits for
 * what it holds. */
static int give(const struct attach_volume_req *req, struct attach_info *info)
{
	char cover[ATTACH_TAG_BYTES], subsystem[ATTACH_NQN_BYTES];
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct guard guard;
	struct fabrics_disk disk;
	bool waits = false;
	int r = cover_tag(req->tag, cover, &info->err);
	if (r == 0)
		r = open_dm(&dm, &info->err);
	if (r == 0)
		r = look_at(&dm, cover, req->subsystem, &guard, &disk, info);
	if (r < 0)
		return r;
	snprintf(subsystem, sizeof(subsystem), "%s", info->alive ? disk.subsystem : req->subsystem);
	bool live = strcmp(info->ctrl.state, "live") == 0;
	if (!live && subsystem[0] != '\0')
		r = disconnect_all(subsystem, &info->err);
	if (r == 0 && info->there)
		r = guard_remove(
			&dm, cover, guard.below_major, guard.below_minor, &waits, &info->err);
	if (r == 0 && live)
		r = disconnect_all(subsystem, &info->err);
	if (r == 0)
		info->there = info->alive = false;
	return r;
}

/* ---- a volume that moves here ---- */

/* What begins each. */
static int open_cover(struct dm *dm, const struct attach_volume_req *req,
	char ret_cover[ATTACH_TAG_BYTES], struct fabrics_disk *ret_disk, struct attach_info *info)
{
	struct guard guard;
	int r = cover_tag(req->tag, ret_cover, &info->err);
	if (r == 0)
		r = open_dm(dm, &info->err);
	return r == 0 ? look_at(dm, ret_cover, req->subsystem, &guard, ret_disk, info) : r;
}

static int check_there(struct attach_info *info)
{
	return info->there ? 0
			   : err_set(&info->err, ERR_PRECONDITION,
				     "the volume is not in use on this node (any more)");
}

static int suspend(const struct attach_volume_req *req, struct attach_info *info)
{
	char cover[ATTACH_TAG_BYTES];
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct fabrics_disk disk;
	int r = open_cover(&dm, req, cover, &disk, info);
	if (r == 0)
		r = check_there(info);
	if (r == 0 && (!info->alive || info->local))
		r = err_set(&info->err, ERR_UNAVAILABLE,
			info->local
				? "the volume is on this node already"
				: "the device of the volume is gone: its node does not answer, or does not give it out any more");
	if (r == 0)
		r = guard_suspend(&dm, cover, &info->err);
	info->suspended |= r == 0;
	return r;
}

static int resume(const struct attach_volume_req *req, struct attach_info *info)
{
	char cover[ATTACH_TAG_BYTES];
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct fabrics_disk disk;
	int r = open_cover(&dm, req, cover, &disk, info);
	if (r < 0 || !info->there)
		return r;
	r = guard_resume(&dm, cover, &info->err);
	info->suspended &= r < 0;
	return r;
}

static int swap(const struct attach_swap_req *req, struct attach_info *info)
{
	char cover[ATTACH_TAG_BYTES], subsystem[ATTACH_NQN_BYTES];
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct fabrics_disk disk;
	struct guard guard;
	struct err ignored = {0};
	int r = open_cover(&dm, &req->volume, cover, &disk, info);
	if (r == 0)
		r = check_there(info);
	if (r < 0)
		return r;
	snprintf(subsystem, sizeof(subsystem), "%s",
		info->alive ? disk.subsystem : req->volume.subsystem);
	const struct guard_spec spec = {
		.tag = cover,
		.major = req->major,
		.minor = req->minor,
		.size_bytes = req->size_bytes,
	};
	r = guard_swap(&dm, &spec, &guard, &info->err);
	if (r < 0)
		return r;
	put_guard(&guard, info);
	info->alive = info->local = true;
	info->suspended = false;
	info->ctrl = (struct fabrics_ctrl){0};
	if (subsystem[0] != '\0')
		(void)disconnect_all(subsystem, &ignored);
	return 0;
}

/* ---- looking and growing ---- */

static int look(const struct attach_volume_req *req, struct attach_info *info)
{
	char cover[ATTACH_TAG_BYTES];
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct guard guard;
	struct fabrics_disk disk;
	int r = cover_tag(req->tag, cover, &info->err);
	if (r == 0)
		r = open_dm(&dm, &info->err);
	return r == 0 ? look_at(&dm, cover, req->subsystem, &guard, &disk, info) : r;
}

static void await_size(const struct attach_volume_req *req, const struct fabrics_ctrl *ctrl,
	struct fabrics_disk *disk)
{
	if (disk->size_bytes < req->want_bytes || req->want_bytes == 0)
		(void)fabrics_rescan(ctrl);
	for (unsigned ms = 0; disk->size_bytes < req->want_bytes && ms < SIZE_WAIT_MS;
		ms += LOOK_MS) {
		struct fabrics_disk now;
		clock_sleep_ms(LOOK_MS);
		if (fabrics_disk_at(disk->major, disk->minor, &now) < 0)
			return;
		*disk = now;
	}
}

static int grow(const struct attach_volume_req *req, struct attach_info *info)
{
	char cover[ATTACH_TAG_BYTES];
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct guard guard;
	struct fabrics_disk disk;
	int r = cover_tag(req->tag, cover, &info->err);
	if (r == 0)
		r = open_dm(&dm, &info->err);
	if (r == 0)
		r = look_at(&dm, cover, req->subsystem, &guard, &disk, info);
	if (r < 0)
		return r;
	if (!info->alive)
		return err_set(&info->err, ERR_UNAVAILABLE,
			"the device of the volume is not there: its node does not answer, or does not give it out any more");
	if (!info->local)
		await_size(req, &info->ctrl, &disk);
	if (disk.size_bytes > guard.size_bytes) {
		const struct guard_spec spec = {
			.tag = cover,
			.major = disk.major,
			.minor = disk.minor,
			.size_bytes = disk.size_bytes,
			.read_only = guard.read_only,
		};
		r = guard_make(&dm, &spec, &guard, &info->err);
		if (r < 0)
			return r;
		put_guard(&guard, info);
	}
	if (info->size_bytes < req->want_bytes)
		return err_set(&info->err, ERR_UNAVAILABLE,
			"the volume's own node shows %llu bytes and not yet %llu; try again",
			(unsigned long long)info->size_bytes, (unsigned long long)req->want_bytes);
	return 0;
}

/* ---- leftovers ---- */

struct covers {
	struct dm *dm;
	int (*each)(void *arg, const char *tag, const char *cover, const struct guard *guard);
	void *arg;
	int res;
};

/* "ringvol-cover-aaaaaaaa-bbbbbbbb" */
static void on_name(void *arg, const char *name, uint32_t dev_major, uint32_t dev_minor)
{
	struct covers *covers = arg;
	char pool[9], random[9], tag[ATTACH_TAG_BYTES], cover[ATTACH_TAG_BYTES];
	struct guard guard;
	int end = 0;
	(void)dev_major;
	(void)dev_minor;
	if (covers->res < 0 ||
		sscanf(name, COVER_NAME "%8[0-9a-f]-%8[0-9a-f]%n", pool, random, &end) != 2 ||
		name[end] != '\0' || strlen(pool) != 8 || strlen(random) != 8)
		return;
	snprintf(tag, sizeof(tag), TAG_PREFIX "%s:%s", pool, random);
	snprintf(cover, sizeof(cover), COVER_PREFIX "%s:%s", pool, random);
	int r = guard_look(covers->dm, cover, &guard);
	if (r == 0 && !guard.foreign)
		covers->res = covers->each(covers->arg, tag, cover, &guard);
	else if (r < 0 && r != -ENXIO && r != -EEXIST)
		covers->res = r;
}

static int each_cover(struct dm *dm,
	int (*each)(void *arg, const char *tag, const char *cover, const struct guard *guard),
	void *arg)
{
	struct covers covers = {dm, each, arg, 0};
	int r = dm_list(dm, on_name, &covers);
	return r < 0 ? r : covers.res;
}

struct sweep {
	struct dm *dm;
	const struct attach_sweep_req *req;
	struct attach_sweep_info *info;
	char (*used)[ATTACH_NQN_BYTES]; /* subsystems that have a cover */
	unsigned used_count;
};

static int sweep_cover(void *arg, const char *tag, const char *cover, const struct guard *guard)
{
	struct sweep *s = arg;
	struct fabrics_disk disk;
	bool waits;
	(void)tag;
	if (guard->below_major == 0)
		return 0; /* it is being made, or going */
	int r = fabrics_disk_at(guard->below_major, guard->below_minor, &disk);
	if (r == 0 && s->used_count == COVERS_MAX)
		return -E2BIG;
	if (r == 0)
		memcpy(s->used[s->used_count++], disk.subsystem, sizeof(disk.subsystem));
	if (r != -ENOENT || is_used(guard))
		return r == -ENOENT ? 0 : r;
	s->info->ended_covers += guard_remove(s->dm, cover, guard->below_major, guard->below_minor,
					 &waits, &s->info->err) == 0;
	return 0;
}

static bool is_same(const struct fabrics_ctrl *a, const struct fabrics_ctrl *b)
{
	return strcmp(a->name, b->name) == 0 && strcmp(a->subsystem, b->subsystem) == 0 &&
	       strcmp(a->host_nqn, b->host_nqn) == 0;
}

static int sweep_ctrl(void *arg, const struct fabrics_ctrl *ctrl)
{
	struct sweep *s = arg;
	bool left = false;
	for (unsigned i = 0; i < s->used_count; i++)
		if (strcmp(s->used[i], ctrl->subsystem) == 0)
			return 0;
	for (unsigned i = 0; i < s->req->count && i < ATTACH_LEFT_MAX; i++)
		left |= is_same(ctrl, &s->req->left[i]);
	if (left)
		s->info->ended += disconnect(ctrl, &s->info->err) == 0;
	else if (s->info->count < ATTACH_LEFT_MAX)
		s->info->left[s->info->count++] = *ctrl;
	return 0;
}

static int sweep(const struct attach_sweep_req *req, struct attach_sweep_info *info)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct sweep s = {.dm = &dm, .req = req, .info = info};
	_cleanup_free_ char(*used)[ATTACH_NQN_BYTES] = malloc(COVERS_MAX * sizeof(*used));
	if (used == NULL)
		return err_set(&info->err, ERR_NO_ROOM, "out of memory");
	s.used = used;
	bool loaded = dm_is_loaded();
	int r = loaded ? open_dm(&dm, &info->err) : 0;
	if (r == 0 && loaded)
		r = each_cover(&dm, sweep_cover, &s);
	/* Without knowing all covers no connection is anybody's leftover. */
	if (r == 0)
		r = fabrics_each(sweep_ctrl, &s);
	return r < 0 ? err_sys(&info->err, r, "looking for what is left of volumes of other nodes")
		     : 0;
}

struct found {
	void (*each)(void *arg, const char *tag, const struct attach_info *info);
	void *arg;
};

static int found_cover(void *arg, const char *tag, const char *cover, const struct guard *guard)
{
	const struct found *found = arg;
	struct attach_info info = {0};
	struct fabrics_disk disk;
	(void)cover;
	if (guard->retired || guard->going_away)
		return 0;
	put_guard(guard, &info);
	info.alive = guard->below_major != 0 && disk_below(guard, &disk, &info.local) == 0;
	if (info.alive && !info.local && fabrics_find(disk.subsystem, NULL, &info.ctrl) < 0)
		info.ctrl.name[0] = '\0';
	found->each(found->arg, tag, &info);
	return 0;
}

int attach_each_cover(
	void (*each)(void *arg, const char *tag, const struct attach_info *info), void *arg)
{
	struct found found = {each, arg};
	_cleanup_dm_ struct dm dm = {.fd = -1};
	if (!dm_is_loaded())
		return 0;
	int r = dm_open(&dm, control_path);
	return r < 0 ? r : each_cover(&dm, found_cover, &found);
}

/* ---- as helper calls ---- */

static struct attach_info *begin(size_t req_len, size_t want_len, void *resp, size_t *resp_len)
{
	struct attach_info *info = resp;
	if (req_len != want_len || *resp_len < sizeof(*info))
		return NULL;
	*resp_len = sizeof(*info);
	*info = (struct attach_info){0};
	return info;
}

static int call_take(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct attach_info *info = begin(req_len, sizeof(struct attach_take_req), resp, resp_len);
	return info == NULL ? -EINVAL : take(req, info);
}

static int call_volume(const void *req, size_t req_len, void *resp, size_t *resp_len,
	int (*fn)(const struct attach_volume_req *req, struct attach_info *info))
{
	struct attach_info *info = begin(req_len, sizeof(struct attach_volume_req), resp, resp_len);
	const struct attach_volume_req *volume = req;
	if (info == NULL || strnlen(volume->subsystem, ATTACH_NQN_BYTES) == ATTACH_NQN_BYTES)
		return -EINVAL;
	return fn(volume, info);
}

static int call_give(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	return call_volume(req, req_len, resp, resp_len, give);
}

static int call_look(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	return call_volume(req, req_len, resp, resp_len, look);
}

static int call_grow(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	return call_volume(req, req_len, resp, resp_len, grow);
}

static int call_suspend(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	return call_volume(req, req_len, resp, resp_len, suspend);
}

static int call_resume(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	return call_volume(req, req_len, resp, resp_len, resume);
}

static int call_swap(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct attach_info *info = begin(req_len, sizeof(struct attach_swap_req), resp, resp_len);
	const struct attach_swap_req *swapped = req;
	if (info == NULL ||
		strnlen(swapped->volume.subsystem, ATTACH_NQN_BYTES) == ATTACH_NQN_BYTES)
		return -EINVAL;
	return swap(swapped, info);
}

static int call_sweep(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct attach_sweep_info *info = resp;
	if (req_len != sizeof(struct attach_sweep_req) || *resp_len < sizeof(*info))
		return -EINVAL;
	*resp_len = sizeof(*info);
	*info = (struct attach_sweep_info){0};
	return sweep(req, info);
}

void attach_calls_fill(helper_fn *table[ATTACH_CALLS])
{
	memcpy(table, mnt_calls, sizeof(mnt_calls));
	table[ATTACH_TAKE] = call_take;
	table[ATTACH_GIVE] = call_give;
	table[ATTACH_LOOK] = call_look;
	table[ATTACH_GROW] = call_grow;
	table[ATTACH_SUSPEND] = call_suspend;
	table[ATTACH_RESUME] = call_resume;
	table[ATTACH_SWAP] = call_swap;
	table[ATTACH_SWEEP] = call_sweep;
}
