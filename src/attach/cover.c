/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at covers. Happy path: the guard of the tag -> what is below it -> the connection to
 * that. How it can fail: the device mapper does not answer, or a device has the name and is not
 * ours. What is not there is no failure.
 */
#include "attach/cover.h"

#include "attach/keyring.h"
#include "blockio/blkdev.h"
#include "mount/mnt_scan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TAG_PREFIX   "ringvol:"
#define COVER_PREFIX TAG_PREFIX "cover:"
#define COVER_NAME   "ringvol-cover-"

enum { CONNECTIONS_MAX = 4 }; /* of one subsystem; there is one */

/* ---- one ---- */

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

int covers_try_dm(struct dm *dm)
{
	return dm_open(dm, DM_CONTROL_PATH);
}

int covers_open_dm(struct dm *dm, struct err *err)
{
	int r = covers_try_dm(dm);
	return r < 0 ? dm_fail_open(r, "volumes of other nodes", err) : 0;
}

static void put_opened(const struct crypt_dev *crypt, struct attach_info *info)
{
	info->opened = true;
	info->read_only = crypt->read_only;
	info->major = crypt->major;
	info->minor = crypt->minor;
	info->size_bytes = crypt->size_bytes;
	snprintf(info->path, sizeof(info->path), "/dev/dm-%u", crypt->minor);
}

void cover_put(const struct cover *c, struct attach_info *info)
{
	const struct guard *guard = &c->guard;
	struct attach_cover *cover = &info->cover;
	info->there = true;
	info->opened = false;
	info->suspended = guard->suspended;
	info->read_only = guard->read_only;
	cover->major = info->major = guard->major;
	cover->minor = info->minor = guard->minor;
	cover->below_major = guard->below_major;
	cover->below_minor = guard->below_minor;
	cover->size_bytes = info->size_bytes = guard->size_bytes;
	snprintf(cover->path, sizeof(cover->path), "/dev/dm-%u", guard->minor);
	memcpy(info->path, cover->path, sizeof(info->path));
	if (c->opened)
		put_opened(&c->crypt, info);
}

/* ---- what is over it ---- */

static bool is_over(const struct crypt_dev *crypt, const struct guard *guard)
{
	return crypt->below_major != 0 && crypt->below_major == guard->major &&
	       crypt->below_minor == guard->minor;
}

int cover_look_opened(struct cover *c)
{
	int r = crypt_dev_look(&c->dm, c->volume, COVER_CRYPT_INO, &c->crypt);
	c->opened = r == 0 && is_over(&c->crypt, &c->guard);
	return r == -ENXIO || r == -EEXIST ? 0 : r;
}

int cover_find_opened(struct cover *c, struct err *err)
{
	int r = crypt_dev_find(
		&c->dm, c->volume, COVER_CRYPT_INO, c->guard.major, c->guard.minor, &c->crypt, err);
	c->opened = r == 0;
	return r == -ENXIO ? 0 : r;
}

int cover_remove(struct cover *c, struct err *err)
{
	const struct guard *guard = &c->guard;
	bool waits;
	int r = crypt_dev_remove(&c->dm, c->volume, COVER_CRYPT_INO, err);
	return r < 0 ? r
		     : guard_remove(
			       &c->dm, c->tag, guard->below_major, guard->below_minor, &waits, err);
}

/* ---- who uses it ---- */

struct use {
	uint32_t major, minor;
	bool found;
};

static void on_mount(void *arg, const struct mnt_entry *entry)
{
	struct use *use = arg;
	use->found |= entry->dev_major == use->major && entry->dev_minor == use->minor;
}

static bool is_mounted(uint32_t dev_major, uint32_t dev_minor)
{
	struct use use = {.major = dev_major, .minor = dev_minor};
	return mnt_scan(on_mount, &use) < 0 || use.found;
}

/* What is over a cover has it open, and is no user. */
bool cover_is_used(const struct cover *c)
{
	bool open = c->opened ? c->crypt.open : c->guard.open;
	return open || is_mounted(c->guard.major, c->guard.minor) ||
	       (c->opened && is_mounted(c->crypt.major, c->crypt.minor));
}

int cover_disk(const struct guard *guard, struct fabrics_disk *ret, bool *ret_local)
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

static int look(struct cover *c, const char *subsystem, struct attach_info *info)
{
	struct guard *guard = &c->guard;
	int r = guard_look(&c->dm, c->tag, guard);
	if (r < 0 && r != -ENXIO)
		return err_sys(&info->err, r, "looking at the device-mapper device of the volume");
	if (r == 0 && guard->foreign)
		return err_set(&info->err, ERR_PRECONDITION,
			"the device /dev/dm-%u has the name of the volume's and a table that is not ours: see 'dmsetup table', and remove it with dmsetup",
			guard->minor);
	if (r == 0) {
		r = cover_look_opened(c);
		if (r < 0)
			return err_sys(
				&info->err, r, "looking at the dm-crypt device of the volume");
		cover_put(c, info);
	}
	if (info->there && guard->below_major != 0) {
		r = cover_disk(guard, &c->disk, &info->local);
		info->alive = r == 0;
		if (r < 0 && r != -ENOENT)
			return err_sys(&info->err, r, "looking at the devices of NVMe");
	}
	const char *name = info->alive ? c->disk.subsystem : subsystem;
	if (name[0] != '\0' && fabrics_find(name, NULL, &info->ctrl) < 0)
		info->ctrl.name[0] = '\0';
	return 0;
}

int cover_open(struct cover *c, const char *tag, const char *subsystem, struct attach_info *info)
{
	*c = (struct cover){.dm = {.fd = -1}};
	int r = cover_tag(tag, c->tag, &info->err);
	memcpy(c->volume, tag, sizeof(c->volume));
	if (r == 0)
		r = covers_open_dm(&c->dm, &info->err);
	return r == 0 ? look(c, subsystem, info) : r;
}

void cover_close(struct cover *c)
{
	dm_close(&c->dm);
}

/* ---- all of them ---- */

struct covers {
	struct dm *dm;
	int (*each)(void *arg, struct cover *c);
	void *arg;
	int res;
};

/* "ringvol-cover-aaaaaaaa-bbbbbbbb" */
static void on_name(void *arg, const char *name, uint32_t dev_major, uint32_t dev_minor)
{
	struct covers *covers = arg;
	char pool[9], random[9];
	struct cover c = {.dm = *covers->dm};
	int end = 0;
	(void)dev_major;
	(void)dev_minor;
	if (covers->res < 0 ||
		sscanf(name, COVER_NAME "%8[0-9a-f]-%8[0-9a-f]%n", pool, random, &end) != 2 ||
		name[end] != '\0' || strlen(pool) != 8 || strlen(random) != 8)
		return;
	snprintf(c.volume, sizeof(c.volume), TAG_PREFIX "%s:%s", pool, random);
	snprintf(c.tag, sizeof(c.tag), COVER_PREFIX "%s:%s", pool, random);
	int r = guard_look(&c.dm, c.tag, &c.guard);
	if (r == 0 && !c.guard.foreign)
		r = cover_look_opened(&c);
	if (r == 0 && !c.guard.foreign)
		covers->res = covers->each(covers->arg, &c);
	else if (r < 0 && r != -ENXIO && r != -EEXIST)
		covers->res = r;
}

int covers_each(struct dm *dm, int (*each)(void *arg, struct cover *c), void *arg)
{
	struct covers covers = {dm, each, arg, 0};
	int r = dm_list(dm, on_name, &covers);
	return r < 0 ? r : covers.res;
}

/* ---- connections ---- */

int cover_disconnect(const struct fabrics_ctrl *ctrl, struct err *err)
{
	int r = fabrics_disconnect(ctrl);
	if (r == 0) /* a key without a connection opens nothing more than it did */
		(void)keyring_drop(ctrl->subsystem);
	if (r == -EBUSY)
		return err_set(err, ERR_TIMEOUT,
			"the connection %s (%s) does not end: something waits for its I/O, see the kernel log",
			ctrl->name, ctrl->subsystem);
	return r < 0 ? err_sys(err, r, "ending the connection %s (%s)", ctrl->name, ctrl->subsystem)
		     : 0;
}

int cover_disconnect_all(const char *subsystem, struct err *err)
{
	struct fabrics_ctrl ctrl;
	int r = 0;
	for (unsigned i = 0; r == 0 && i < CONNECTIONS_MAX; i++) {
		int found = fabrics_find(subsystem, NULL, &ctrl);
		if (found == -ENOENT) {
			(void)keyring_drop(subsystem); /* of one that ended by itself */
			return 0;
		}
		r = found < 0 ? err_sys(err, found, "looking for connections of NVMe")
			      : cover_disconnect(&ctrl, err);
	}
	return r;
}
