/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of calls.h. Owns nothing; the kernel keeps all there is to know.
 *
 * Happy path of taking: no cover -> no connection -> connect -> the namespace's device appears ->
 * the cover over it -> (encrypted: what was opened earlier) -> what it holds. Of giving back: what
 * is over the cover goes, the cover, then the connection, and only then there is an answer. How it
 * can fail: as fabrics.h and guards do; the namespace is not there; the cover of an earlier use,
 * whose device is gone, is open still. What failed leaves no connection that it made. A helper that
 * is killed in between leaves what the next call finds, or the sweep.
 */
#include "attach/calls.h"

#include "attach/cover.h"
#include "attach/swap.h"
#include "attach/sweep.h"
#include "base/clock.h"
#include "base/fd.h"
#include "blockio/luks_room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum {
	DISK_WAIT_MS = 10000, /* the kernel looks for namespaces once it is connected */
	SIZE_WAIT_MS = 5000,
	LOOK_MS = 20,
};

/* ---- taking ---- */

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
		r = cover_disconnect_all(terms->subsystem, err);
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
		(void)cover_disconnect_all(terms->subsystem, &ignored);
	return r;
}

/* A cover that is there already: 1: it is right; 0: there is none (any more). */
static int use_cover(struct cover *c, const struct attach_take_req *req, struct attach_info *info)
{
	const struct guard *guard = &c->guard;
	struct fabrics_disk wanted;
	if (!info->there)
		return 0;
	if (info->alive && !guard->going_away &&
		fabrics_disk(req->terms.subsystem, req->terms.namespace_id, &wanted) == 0 &&
		wanted.major == c->disk.major && wanted.minor == c->disk.minor)
		return 1;
	uint32_t used = c->opened ? c->crypt.minor : guard->minor;
	if (cover_is_used(c))
		return err_set(&info->err, ERR_PRECONDITION,
			"the device of an earlier use of the volume, /dev/dm-%u, is gone below and still in use: unpublish and unstage the volume, and end what has it open (fuser -v /dev/dm-%u)",
			used, used);
	int r = cover_remove(c, &info->err);
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

static int make_cover(struct cover *c, const struct attach_take_req *req, struct attach_info *info)
{
	const struct fabrics_disk *disk = &c->disk;
	bool read_only = req->read_only || req->terms.read_only;
	if (disk->read_only && !read_only)
		return err_set(&info->err, ERR_PRECONDITION,
			"node %s gives this node the volume read-only, and it is to be written to",
			req->terms.node);
	const struct guard_spec spec = {
		.tag = c->tag,
		.major = disk->major,
		.minor = disk->minor,
		.size_bytes = disk->size_bytes,
		.read_only = read_only,
	};
	int r = guard_make(&c->dm, &spec, &c->guard, &info->err);
	c->opened = false;
	if (r == 0 && req->terms.encrypted)
		r = cover_find_opened(c, &info->err);
	if (r < 0)
		return r;
	cover_put(c, info);
	info->alive = true;
	return 0;
}

/* What this call has made goes again. */
static void undo_take(
	struct cover *c, const struct attach_take_req *req, const struct attach_info *info)
{
	struct err ignored = {0};
	if (info->there)
		(void)cover_remove(c, &ignored);
	(void)cover_disconnect_all(req->terms.subsystem, &ignored);
}

static int take(const struct attach_take_req *req, struct attach_info *info)
{
	_cleanup_cover_ struct cover c = {.dm = {.fd = -1}};
	int r = fabrics_check(&info->err);
	if (r == 0)
		r = cover_open(&c, req->tag, req->terms.subsystem, info);
	int found = r == 0 ? use_cover(&c, req, info) : r;
	if (found < 0)
		return found;
	if (found == 0)
		r = connect_to(req, &c.disk, &info->err);
	if (r < 0)
		return r;
	r = make_cover(&c, req, info);
	if (r == 0 && req->probe && info->opened == req->terms.encrypted)
		r = probe(req, info);
	if (r < 0 && found == 0)
		undo_take(&c, req, info);
	if (r < 0)
		return r;
	info->found = found == 1;
	if (fabrics_find(req->terms.subsystem, NULL, &info->ctrl) < 0)
		info->ctrl.name[0] = '\0';
	return 0;
}

/* Its key was right, or it would not be there. */
static int opened(const struct attach_take_req *req, struct attach_info *info)
{
	_cleanup_cover_ struct cover c;
	int r = cover_open(&c, req->tag, req->terms.subsystem, info);
	if (r == 0 && (!info->there || !info->opened))
		r = err_set(&info->err, ERR_UNAVAILABLE,
			"the dm-crypt device of the volume, which was just made, is gone; try again");
	return r == 0 && req->probe ? probe(req, info) : r;
}

/* ---- giving back ---- */

/* A connection that is not live writes nothing any more: it ends first, so that nothing waits for
 * what it holds. */
static int give(const struct attach_volume_req *req, struct attach_info *info)
{
	_cleanup_cover_ struct cover c;
	int r = cover_open(&c, req->tag, req->subsystem, info);
	if (r < 0)
		return r;
	const char *subsystem = info->alive ? c.disk.subsystem : req->subsystem;
	bool live = strcmp(info->ctrl.state, "live") == 0;
	if (!live && subsystem[0] != '\0')
		r = cover_disconnect_all(subsystem, &info->err);
	if (r == 0 && info->there)
		r = cover_remove(&c, &info->err);
	if (r == 0 && live)
		r = cover_disconnect_all(subsystem, &info->err);
	if (r == 0)
		info->there = info->alive = false;
	return r;
}

/* ---- looking and growing ---- */

static int look(const struct attach_volume_req *req, struct attach_info *info)
{
	_cleanup_cover_ struct cover c;
	return cover_open(&c, req->tag, req->subsystem, info);
}

static void await_size(
	uint64_t want_bytes, const struct fabrics_ctrl *ctrl, struct fabrics_disk *disk)
{
	if (disk->size_bytes < want_bytes || want_bytes == 0)
		(void)fabrics_rescan(ctrl);
	for (unsigned ms = 0; disk->size_bytes < want_bytes && ms < SIZE_WAIT_MS; ms += LOOK_MS) {
		struct fabrics_disk now;
		clock_sleep_ms(LOOK_MS);
		if (fabrics_disk_at(disk->major, disk->minor, &now) < 0)
			return;
		*disk = now;
	}
}

static int grow(const struct attach_volume_req *req, struct attach_info *info)
{
	_cleanup_cover_ struct cover c;
	int r = cover_open(&c, req->tag, req->subsystem, info);
	if (r < 0)
		return r;
	if (!info->alive)
		return err_set(&info->err, ERR_UNAVAILABLE,
			"the device of the volume is not there: its node does not answer, or does not give it out any more");
	uint64_t header_bytes = info->opened ? LUKS_HEADER_BYTES : 0;
	uint64_t want_bytes = req->want_bytes != 0 ? req->want_bytes + header_bytes : 0;
	if (!info->local)
		await_size(want_bytes, &info->ctrl, &c.disk);
	if (c.disk.size_bytes > c.guard.size_bytes) {
		const struct guard_spec spec = {
			.tag = c.tag,
			.major = c.disk.major,
			.minor = c.disk.minor,
			.size_bytes = c.disk.size_bytes,
			.read_only = c.guard.read_only,
		};
		r = guard_make(&c.dm, &spec, &c.guard, &info->err);
		if (r < 0)
			return r;
		cover_put(&c, info);
	}
	if (c.guard.size_bytes < want_bytes)
		return err_set(&info->err, ERR_UNAVAILABLE,
			"the volume's own node shows %llu bytes and not yet %llu; try again",
			(unsigned long long)(c.guard.size_bytes - header_bytes),
			(unsigned long long)req->want_bytes);
	return 0;
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

static int call_opened(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct attach_info *info = begin(req_len, sizeof(struct attach_take_req), resp, resp_len);
	return info == NULL ? -EINVAL : opened(req, info);
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
	return call_volume(req, req_len, resp, resp_len, attach_suspend);
}

static int call_resume(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	return call_volume(req, req_len, resp, resp_len, attach_resume);
}

static int call_swap(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct attach_info *info = begin(req_len, sizeof(struct attach_swap_req), resp, resp_len);
	const struct attach_swap_req *swapped = req;
	if (info == NULL ||
		strnlen(swapped->volume.subsystem, ATTACH_NQN_BYTES) == ATTACH_NQN_BYTES)
		return -EINVAL;
	return attach_swap(swapped, info);
}

static int call_sweep(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct attach_sweep_info *info = resp;
	if (req_len != sizeof(struct attach_sweep_req) || *resp_len < sizeof(*info))
		return -EINVAL;
	*resp_len = sizeof(*info);
	*info = (struct attach_sweep_info){0};
	return attach_sweep(req, info);
}

void attach_calls_fill(helper_fn *table[ATTACH_CALLS])
{
	memcpy(table, mnt_calls, sizeof(mnt_calls));
	table[ATTACH_TAKE] = call_take;
	table[ATTACH_GIVE] = call_give;
	table[ATTACH_LOOK] = call_look;
	table[ATTACH_OPENED] = call_opened;
	table[ATTACH_GROW] = call_grow;
	table[ATTACH_SUSPEND] = call_suspend;
	table[ATTACH_RESUME] = call_resume;
	table[ATTACH_SWAP] = call_swap;
	table[ATTACH_SWEEP] = call_sweep;
}
