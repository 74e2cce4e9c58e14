/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a whole pool and saying all that is wrong with it at once. Happy path: names of each
 * directory, the objects (check_objects.c), devices against volumes. Nothing is changed here.
 *
 * Beside a driver the pool changes while it is read: what is gone when it is looked at is no
 * finding, and what the driver is about to do (trash) is a note. What cannot be read is a finding
 * like any other.
 */

#include "backends/disk/disk_backend.h"
#include "backends/dm/guard.h"
#include "backends/loop/loop.h"
#include "base/buf.h"
#include "base/fd.h"
#include "disk/disk.h"
#include "pool/raw_load.h"
#include "tools/check_findings.h"
#include "tools/check_raw.h"
#include "tools/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the pool and its directories ---- */

/* What is missing here must not be made anew: it would look as if nothing had ever been in it. */
static const char *pool_remedy(const struct survey *s)
{
	if (s->state == POOL_MISSING)
		return ""; /* the message has it */
	if (disk_is_raw_pool(s->path))
		return strstr(s->why, "pool init") != NULL ? "" : TOOL_RAW_REMEDY;
	if (s->uuid[0] == '\0')
		return "restore ringvol.pool from a backup: without its uuid no volume id is known";
	if (s->fds[SURVEY_VOLUMES] < 0)
		return "restore the directory from a backup: an empty one would mean that all in it "
		       "were deleted; if it never held a volume, make it by hand (mkdir -m 700)";
	return "";
}

/* Makes a missing directory again. */
static int repair_directory(struct check *c, const struct check_finding *f)
{
	int root = c->survey.fds[SURVEY_ROOT];
	const char *name = survey_dir_names[f->dir];
	if (mkdirat(root, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	/* What is there already need not be a directory. */
	_cleanup_fd_ int fd = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return fsync(root) < 0 ? -errno : 0;
}

/* A directory that could not be opened: made anew only where its name is free. */
static void look_at_absent(struct check *c, enum survey_dir dir)
{
	_cleanup_fd_ int fd = openat(c->survey.fds[SURVEY_ROOT], survey_dir_names[dir],
		O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int error = fd < 0 ? errno : 0;
	if (fd >= 0)
		return; /* a driver has just made it */
	if (error == ENOENT && c->survey.disk != NULL)
		check_add(c, .kind = "DirectoryMissing", .path = survey_dir_names[dir],
			.message = "the directory is not there, and what its files occupied on the "
				   "disks is not known",
			.remedy = "look for it in lost+found of the records, and move it back");
	else if (error == ENOENT)
		check_add(c, .severity = CHECK_LEFTOVER, .kind = "DirectoryMissing",
			.path = survey_dir_names[dir], .message = "the directory is not there",
			.remedy = "the driver makes it", .repair = repair_directory, .dir = dir);
	else
		check_add(c, .kind = "DirectoryUnreadable", .path = survey_dir_names[dir],
			.message = tool_text(c->args, "it cannot be opened as a directory: %s",
				strerrordesc_np(error)),
			.remedy = error == ENOTDIR || error == ELOOP
					  ? "move away what has its name; the driver makes "
					    "the directory"
					  : "see the kernel log");
}

static void look_at_root(struct check *c)
{
	const struct survey *s = &c->survey;
	if (s->state != POOL_READY)
		check_add(c, .kind = s->state == POOL_MISSING ? "PoolMissing" : "PoolSick",
			.message = s->why, .remedy = pool_remedy(s));
	/* That of groups is missed where there are members of groups (check_groups.c). */
	for (unsigned i = SURVEY_SNAPSHOTS; s->uuid[0] != '\0' && i < SURVEY_GROUPS; i++)
		if (s->fds[i] < 0)
			look_at_absent(c, i);
}

/* What the disks of a raw pool say of themselves. */
static void look_at_disks(struct check *c)
{
	const struct disk *disk = c->survey.disk;
	for (unsigned i = 0; disk != NULL && i < disk->count; i++) {
		const struct disk_member *m = &disk->members[i];
		if (m->damaged)
			check_add(c, .severity = CHECK_LEFTOVER, .kind = "DiskHeaderDamaged",
				.path = m->path,
				.message = "of the disk's header and its copy one is damaged",
				.remedy = "the driver writes it again at its start");
		if (m->larger)
			check_add(c, .severity = CHECK_NOTE, .kind = "DiskLarger", .path = m->path,
				.message = "the disk has grown, and the pool does not use the rest",
				.remedy = "stop the driver and run 'ringvol pool grow'");
	}
}

struct names {
	struct check *c;
	enum survey_dir dir;
};

static void add_trash(struct check *c, const char *path, const char *name)
{
	struct stat st;
	struct image_map map;
	char size[TEXT_NUMBER_BYTES];
	int dirfd = c->survey.fds[SURVEY_TRASH];
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	if (c->survey.disk != NULL && pool_raw_map(dirfd, name, &map) == 0)
		text_size(image_map_bytes(&map), size);
	else
		text_size((uint64_t)st.st_blocks * 512, size);
	check_add(c, .severity = c->survey.served ? CHECK_NOTE : CHECK_LEFTOVER,
		.kind = "TrashLeft", .path = path,
		.message = tool_text(c->args, "deleted, and %s of it not yet given back", size),
		.remedy = "the driver gives it back, and erases it before where that was "
			  "asked for");
}

/* Unlinks a file of f->dir that holds nothing of a tenant's. */
static int repair_file(struct check *c, const struct check_finding *f)
{
	/* Templates are a cache, a probe's file is its own. */
	assert(f->dir == SURVEY_TEMPLATES || f->dir == SURVEY_ROOT);
	int dirfd = c->survey.fds[f->dir];
	return unlinkat(dirfd, f->name, 0) < 0 || fsync(dirfd) < 0 ? -errno : 0;
}

/* A template that is not whole is made again when it is needed. */
static void look_at_template(struct check *c, const char *path, const char *name)
{
	struct fsimg_probe probe;
	enum fsimg_type type;
	char fs[16];
	snprintf(fs, sizeof(fs), "%.*s", (int)strcspn(name, "-"), name);
	_cleanup_fd_ int fd = openat(c->survey.fds[SURVEY_TEMPLATES], name,
		O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return;
	if (fsimg_parse_name(fs, &type) < 0)
		return;
	bool sound =
		fd >= 0 && fsimg_probe_fd(fd, &probe) == 0 && probe.type == type && !probe.errors;
	if (!sound)
		check_add(c, .severity = CHECK_LEFTOVER, .kind = "TemplateDamaged", .path = path,
			.message = tool_text(c->args, "it holds no sound %s", fs),
			.remedy = "the driver makes it again when it is needed",
			.repair = repair_file, .dir = SURVEY_TEMPLATES, .name = name);
}

static int look_at_name(void *arg, const char *name)
{
	const struct names *n = arg;
	struct check *c = n->c;
	const char *path = n->dir == SURVEY_ROOT
				   ? name
				   : tool_text(c->args, "%s/%s", survey_dir_names[n->dir], name);
	if (n->dir == SURVEY_ROOT && strcmp(name, FS_PROBE_NAME) == 0) {
		check_add(c, .severity = CHECK_LEFTOVER, .kind = "ProbeLeft", .path = path,
			.message = "left by a driver that tried what the file system can do",
			.remedy = "the driver removes it", .repair = repair_file,
			.dir = SURVEY_ROOT, .name = name);
		return 0;
	}
	if (!survey_name_is_ours(n->dir, name)) {
		/* ext4 has one at each root. */
		bool known = n->dir == SURVEY_ROOT && strcmp(name, "lost+found") == 0;
		if (!known)
			check_add(c, .severity = CHECK_NOTE, .kind = "UnknownFile", .path = path,
				.message = "it is not ringvol's, which leaves it alone",
				.remedy = "its owner may remove it");
		return 0;
	}
	if (n->dir == SURVEY_TRASH)
		add_trash(c, path, name);
	else if (n->dir == SURVEY_TEMPLATES)
		look_at_template(c, path, name);
	return 0;
}

static void look_at_names(struct check *c)
{
	for (unsigned dir = 0; dir < SURVEY_DIRS; dir++) {
		struct names names = {c, dir};
		int r = survey_each(&c->survey, dir, look_at_name, &names);
		if (r < 0)
			check_add(c, .kind = "DirectoryUnreadable", .path = survey_dir_names[dir],
				.message = strerrordesc_np(-r), .remedy = "see the kernel log");
	}
}

/* ---- devices against volumes ---- */

/* The volume that is bound to it. */
static const struct pool_found *volume_of(const struct check *c, const struct device *device)
{
	for (size_t i = 0; i < c->counts[RECORD_VOLUME]; i++) {
		const struct pool_found *o = &c->objects[RECORD_VOLUME][i];
		if (backend_dev_serves(&device->dev, o->image_dev, o->image_ino))
			return o;
	}
	return NULL;
}

/* The volume that the device's tag names; a tag is a hint. */
static const struct pool_found *tagged_volume(const struct check *c, const struct device *device)
{
	const char *random = device->dev.tag + strlen("ringvol:") + 9;
	for (size_t i = 0; i < c->counts[RECORD_VOLUME]; i++) {
		const struct pool_found *o = &c->objects[RECORD_VOLUME][i];
		if (o->rec != NULL && strcmp(o->rec->random, random) == 0)
			return o;
	}
	return NULL;
}

/* Whether there are volumes with records that cannot be read, or notes of volumes that have moved:
 * a device may belong to one of them. */
static bool holds_quarantined(const struct check *c)
{
	for (size_t i = 0; i < c->counts[RECORD_VOLUME]; i++)
		if (c->objects[RECORD_VOLUME][i].rec == NULL)
			return true;
	return c->departed_unknown;
}

/* What can be let go of without the process that serves it; NULL: that one has to. */
static int (*detach_of(const struct device *device))(struct backend_dev *dev, struct err *err)
{
	return strcmp(device->type, "loop") == 0   ? backend_loop_detach
	       : strcmp(device->type, "disk") == 0 ? backend_disk_detach
						   : NULL;
}

/* Lets go of a device nobody uses. All devices, mounts and volumes are known. */
static int repair_device(struct check *c, const struct check_finding *f)
{
	(void)c;
	struct backend_dev dev = f->device->dev;
	struct err err = {0};
	int r = detach_of(f->device)(&dev, &err);
	return r == 0 && dev.attached ? -EBUSY : r;
}

/* The device of a raw pool's volume that leads nowhere: made half, or let go half. The node of one
 * that somebody keeps open goes with him, and beside a driver it may be just about to be completed.
 */
static void add_unfinished(struct check *c, const struct device *device)
{
	if (c->survey.served || device->dev.going_away)
		return;
	check_add(c, .severity = CHECK_LEFTOVER, .kind = "UnfinishedDevice",
		.path = device->dev.path,
		.message = "a volume's device that was never completed, or not quite removed",
		.remedy = "the driver completes it when the volume is staged",
		.repair = repair_device, .device = device);
}

static void look_at_device(struct check *c, const struct device *device)
{
	const struct pool_found *whose = volume_of(c, device);
	if (whose != NULL && whose->rec != NULL)
		return;
	const struct pool_found *o = tagged_volume(c, device);
	/* A volume keeps its tag where it moves to, which may be a pool of this node. */
	if (o == NULL && check_has_departed(c, device->dev.tag + strlen("ringvol:") + 9))
		return;
	const char *mount = check_mounted_at(c, device);
	bool quarantined = holds_quarantined(c);
	/* Beside a driver: a volume that was made after the directory was read. */
	if (o == NULL && !c->survey.served && c->volumes_known)
		check_add(c, .severity = CHECK_LEFTOVER, .kind = "OrphanDevice",
			.path = device->dev.path,
			.message = tool_text(c->args, "bound to a volume that is no more%s%s%s",
				quarantined ? ", or to a quarantined one" : "",
				mount != NULL ? ", and mounted at " : "",
				mount != NULL ? mount : ""),
			.remedy = mount != NULL ? "unmount it; the driver lets go of it then"
				  : quarantined ? "see to the quarantined volumes first"
						: "the driver lets go of it at its start",
			.repair = mount == NULL && !quarantined && c->devices_known &&
						  detach_of(device) != NULL
					  ? repair_device
					  : NULL,
			.device = device);
	if (o != NULL && device->dev.image_ino == 0)
		add_unfinished(c, device);
	else if (o != NULL)
		check_add(c, .kind = "DeviceOfAnotherFile", .path = device->dev.path,
			.message = tool_text(c->args,
				"it is volume %s's by its tag, but serves another file: what "
				"is written to it is not in the volume",
				o->rec->name),
			.remedy = "save what is in it, then unstage the volume");
}

/* Removes a guard that was made half; f->name is its tag. */
static int repair_guard(struct check *c, const struct check_finding *f)
{
	(void)c;
	struct err err = {0};
	return backend_loop_remove_stray(f->name, &err);
}

/* A guard with no loop device of ours below it: made half, or somebody has changed its loop device.
 */
static void on_stray_guard(void *arg, const struct guard *guard)
{
	struct check *c = arg;
	char prefix[32], path[32];
	int len = snprintf(prefix, sizeof(prefix), "ringvol:%.8s:", c->survey.uuid);
	/* A driver may be just about to complete it. */
	if (strncmp(guard->tag, prefix, (size_t)len) != 0 || c->survey.served || guard->going_away)
		return;
	bool half = guard->below_major == 0 && !guard->foreign;
	snprintf(path, sizeof(path), "/dev/dm-%u", guard->minor);
	check_add(c, .severity = half ? CHECK_LEFTOVER : CHECK_PROBLEM, .kind = "StrayGuard",
		.path = path,
		.message = half ? "a device-mapper device that was made for a volume and "
				  "never completed"
				: "a device-mapper device of a volume that does not stand "
				  "over a loop device of ours",
		.remedy = half ? "the driver completes it when the volume is staged"
			       : "end what uses it, then 'dmsetup remove' it",
		.repair = half ? repair_guard : NULL, .name = guard->tag);
}

static void look_at_devices(struct check *c)
{
	char prefix[32];
	int len = snprintf(prefix, sizeof(prefix), "ringvol:%.8s:", c->survey.uuid);
	for (size_t i = 0; i < c->devices.count; i++)
		if (strncmp(c->devices.at[i].dev.tag, prefix, (size_t)len) == 0)
			look_at_device(c, &c->devices.at[i]);
}

/* ---- all of it ---- */

void check_pool(struct check *c, const char *name, const char *path, bool repair)
{
	c->name = name;
	survey_open(&c->survey, path, repair ? SURVEY_MEND : SURVEY_LOCK);
	look_at_root(c);
	look_at_disks(c);
	if (c->survey.uuid[0] == '\0')
		return;
	int r = devices_scan(&c->devices);
	c->devices_known = r == 0;
	if (r < 0)
		check_add(c, .kind = "DevicesUnknown",
			.message = tool_text(c->args, "devices and mounts cannot be looked at: %s",
				strerrordesc_np(-r)),
			.remedy = "run as root, on the host or in its mount namespace");
	look_at_names(c);
	for (unsigned kind = 0; kind < 2; kind++) {
		r = survey_objects(&c->survey, kind, &c->objects[kind], &c->counts[kind]);
		if (kind == RECORD_VOLUME)
			c->volumes_known = r == 0 && c->survey.state == POOL_READY;
		if (r < 0)
			check_add(c, .kind = "DirectoryUnreadable",
				.path = survey_dir_names[SURVEY_VOLUMES + kind],
				.message = strerrordesc_np(-r), .remedy = "see the kernel log");
	}
	for (unsigned kind = 0; kind < 2; kind++)
		check_objects(c, kind);
	check_groups(c);
	check_departed(c);
	if (c->survey.disk != NULL)
		check_raw(c);
	look_at_devices(c);
	r = backend_loop_stray_guards(on_stray_guard, c);
	if (r < 0)
		check_add(c, .kind = "DevicesUnknown",
			.message =
				tool_text(c->args, "device-mapper devices cannot be looked at: %s",
					strerrordesc_np(-r)),
			.remedy = "run as root, with the host's /dev");
}

void check_close(struct check *c)
{
	for (unsigned kind = 0; kind < 2; kind++)
		survey_objects_free(c->objects[kind], c->counts[kind]);
	free(c->findings);
	devices_free(&c->devices);
	survey_close(&c->survey);
}
