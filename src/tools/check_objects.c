/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be wrong with volumes and snapshots: each by itself (its record, its image, what is in
 * it), then all of a kind against each other. Nothing is changed; what is deleted while it is
 * looked at is no finding.
 */
#include "tools/check_findings.h"
#include "tools/check_raw.h"

#include "base/fd.h"
#include "blockio/boot_mark.h"
#include "tools/text.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

enum {
	EXTENTS = 128,         /* of one FIEMAP */
	EXTENTS_MAX = 1 << 16, /* looked at of one image */
};

/* ---- blocks ---- */

/* Whether extents of the image are shared with another file; *ret_known false where the file system
 * does not tell. */
static bool has_shared_extents(int fd, bool *ret_known)
{
	union {
		struct fiemap map;
		char bytes[sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent)];
	} u;
	uint64_t at = 0;
	*ret_known = false;
	for (unsigned looked = 0; looked < EXTENTS_MAX; looked += EXTENTS) {
		memset(&u.map, 0, sizeof(u.map));
		u.map.fm_start = at;
		u.map.fm_length = FIEMAP_MAX_OFFSET - at;
		u.map.fm_extent_count = EXTENTS;
		if (ioctl(fd, FS_IOC_FIEMAP, &u.map) < 0)
			return false;
		*ret_known = true;
		for (unsigned i = 0; i < u.map.fm_mapped_extents; i++) {
			const struct fiemap_extent *e = &u.map.fm_extents[i];
			if ((e->fe_flags & FIEMAP_EXTENT_SHARED) != 0)
				return true;
			at = e->fe_logical + e->fe_length;
			if ((e->fe_flags & FIEMAP_EXTENT_LAST) != 0)
				return false;
		}
		if (u.map.fm_mapped_extents == 0)
			return false;
	}
	*ret_known = false; /* too fragmented to say */
	return false;
}

/* Somebody was made from it by sharing and is left. */
static bool is_founder(const struct check *c, const struct pool_found *o)
{
	char uuid8[9], id[RECORD_ID_MAX];
	snprintf(uuid8, sizeof(uuid8), "%.8s", c->survey.uuid);
	record_id_print(uuid8, o->rec, id);
	for (unsigned kind = 0; kind < 2; kind++)
		for (size_t i = 0; i < c->counts[kind]; i++) {
			const struct record *rec = c->objects[kind][i].rec;
			if (rec != NULL && rec->shares_extents &&
				(strcmp(rec->source_id, id) == 0 || strcmp(rec->family, id) == 0))
				return true;
		}
	return false;
}

/* Only raw volumes can be told: formatted ones share with their template, and what once shared may
 * have been overwritten since. */
static void look_at_sharing(struct check *c, const struct pool_found *o, int fd, const char *path)
{
	bool known;
	if (o->rec->fs != FSIMG_NONE || o->rec->shares_extents || !has_shared_extents(fd, &known) ||
		is_founder(c, o))
		return;
	check_add(c, .kind = "SharesExtents", .path = path,
		.message = "blocks of it are shared with another file, and its record says "
			   "that none are",
		.remedy = "somebody copied it by reflink outside of ringvol (cp): remove the "
			  "copy; until then erasing it erases nothing there");
}

/* ---- one object ---- */

static void add_unreadable(struct check *c, const char *path, int error)
{
	check_add(c, .kind = "ImageUnreadable", .path = path,
		.message = tool_text(c->args, "it cannot be read: %s", strerrordesc_np(-error)),
		.remedy = "look for errors of the disk in the kernel log; restore it "
			  "from a snapshot where blocks are lost");
}

static const struct device *device_of(const struct check *c, const struct pool_found *o)
{
	return devices_find(&c->devices, o->image_dev, o->image_ino);
}

static int thaw(const struct check *c, const struct device *device)
{
	for (size_t i = 0; i < c->devices.mount_count; i++) {
		const struct device_mount *mount = &c->devices.mounts[i];
		if (mount->major != device->dev.major || mount->minor != device->dev.minor)
			continue;
		_cleanup_fd_ int fd = open(mount->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		/* EINVAL: it is not frozen. */
		return ioctl(fd, FITHAW, 0) < 0 && errno != EINVAL ? -errno : 0;
	}
	return 0;
}

/* Ends our freeze of a mounted volume, and takes its mark away. -EBUSY: its image is attached where
 * no mount of it is seen. */
static int repair_freeze(struct check *c, const struct check_finding *f)
{
	_cleanup_fd_ int fd =
		openat(c->survey.fds[f->dir], f->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int r = 0;
	/* Without the mark nobody thaws it again. Whatever holds the image's lock is a device, and
	 * its file system may be frozen where it is not seen. */
	if (f->device != NULL)
		r = thaw(c, f->device);
	else if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		r = errno == EWOULDBLOCK ? -EBUSY : -errno;
	return r < 0 ? r : boot_mark_remove(fd, BOOT_MARK_FROZEN);
}

static void look_at_marks(struct check *c, const struct pool_found *o, int fd, const char *path)
{
	const struct device *device = device_of(c, o);
	const char *mount = check_mounted_at(c, device);
	/* A driver that is at it has it for the time of a snapshot. */
	if (c->survey.served || !boot_mark_get(fd, BOOT_MARK_FROZEN, NULL))
		return;
	check_add(c, .severity = CHECK_LEFTOVER, .kind = "FrozenMark", .path = path,
		.message = mount != NULL || !c->devices_known
				   ? "a snapshot was cut short: the file system may be "
				     "frozen, and its users wait"
				   : "a snapshot was cut short; it is mounted nowhere here",
		.remedy = "the driver thaws it at its start",
		.repair = c->devices_known ? repair_freeze : NULL, .dir = SURVEY_VOLUMES,
		.name = o->key, .device = mount != NULL ? device : NULL);
}

/* What an encrypted image holds cannot be seen; that it is encrypted can. */
static void look_at_header(struct check *c, int fd, const char *path)
{
	struct fsimg_probe probe;
	int r = fsimg_probe_fd(fd, &probe);
	if (r < 0)
		add_unreadable(c, path, r);
	else if (strcmp(probe.found, "crypto_LUKS") != 0)
		check_add(c, .kind = "FileSystemMissing", .path = path,
			.message = tool_text(c->args,
				"its record says that it is encrypted (luks2), it holds %s",
				probe.found[0] != '\0' ? probe.found : "nothing"),
			.remedy = "restore it from a snapshot");
}

/* Of what is attached, the bytes on disk are not what its user sees. */
static void look_at_file_system(
	struct check *c, const struct pool_found *o, int fd, const char *path)
{
	struct fsimg_probe probe;
	if (o->truncated || device_of(c, o) != NULL || o->rec->unformatted)
		return;
	if (o->rec->encryption != RECORD_PLAIN) {
		if (c->survey.disk == NULL)
			look_at_header(c, fd, path);
		return;
	}
	if (o->rec->fs == FSIMG_NONE)
		return;
	_cleanup_fd_ int head = c->survey.disk != NULL ? check_raw_head(c, o) : -1;
	/* What is wrong with its map is said with that. */
	if (head == -ENODATA || head == -EBADMSG || head == -EPROTONOSUPPORT || head == -ERANGE)
		return;
	int r = c->survey.disk == NULL ? fsimg_probe_expected(fd, o->rec->fs, &probe)
		: head < 0             ? head
				       : fsimg_probe_expected(head, o->rec->fs, &probe);
	if (r < 0) {
		add_unreadable(c, path, r);
		return;
	}
	if (probe.type != o->rec->fs)
		check_add(c, .kind = "FileSystemMissing", .path = path,
			.message = tool_text(c->args, "its record says %s, it holds %s",
				fsimg_name(o->rec->fs),
				probe.found[0] != '\0' ? probe.found : "none"),
			.remedy = "restore it from a snapshot");
	else if (probe.errors)
		check_add(c, .kind = "FileSystemErrors", .path = path,
			.message = tool_text(c->args, "its %s is marked as having errors",
				fsimg_name(o->rec->fs)),
			.remedy = o->rec->fs == FSIMG_EXT4
					  ? "the next NodeStageVolume runs e2fsck -p; look "
					    "for errors of the disk in the kernel log"
					  : "look for errors of the disk in the kernel log");
}

static void look_at_sizes(struct check *c, const struct pool_found *o, const char *path)
{
	const struct record *rec = o->rec;
	unsigned long long image = o->image_bytes, said = record_image_bytes(rec);
	if (o->truncated)
		check_add(c, .kind = "ImageTruncated", .path = path,
			.message = tool_text(c->args,
				"the image has %llu bytes, its record says %llu: the rest "
				"is lost",
				image, said),
			.remedy = "restore it from a snapshot");
	else if (image > said)
		check_add(c, .severity = CHECK_NOTE, .kind = "ImageLarger", .path = path,
			.message = tool_text(c->args,
				"the image has %llu bytes, its record says %llu: growing it "
				"was cut short",
				image, said),
			.remedy = "grow it again");
	if (said == 0 || said % POOL_SIZE_ALIGN != 0)
		check_add(c, .kind = "SizeOdd", .path = path,
			.message = tool_text(
				c->args, "its record says %llu bytes, no multiple of 1 MiB", said),
			.remedy = "no ringvol made this: look who wrote the record");
	if (c->survey.disk == NULL && record_allocates(rec) && o->kind == RECORD_VOLUME &&
		!o->truncated && o->allocated_bytes < said)
		check_add(c, .kind = "ThickNotAllocated", .path = path,
			.message = tool_text(c->args,
				"it is thick, but only %llu of %llu bytes are allocated",
				(unsigned long long)o->allocated_bytes, said),
			.remedy = "fallocate it while it is detached, or copy it to a new "
				  "thick volume");
}

static void add_quarantined(struct check *c, const struct pool_found *o, const char *path)
{
	char size[TEXT_NUMBER_BYTES];
	text_size(o->allocated_bytes, size);
	check_add(c, .kind = "Quarantined", .path = path,
		.message = tool_text(c->args,
			"%s; its name stays taken, nobody touches it (%s on disk)", o->why, size),
		.remedy = tool_text(c->args,
			"copy what is in it elsewhere, then move the file away; a copy made "
			"without attributes (trusted.ringvol) looks like this"));
}

static void look_at_object(struct check *c, const struct pool_found *o)
{
	enum survey_dir dir = o->kind == RECORD_VOLUME ? SURVEY_VOLUMES : SURVEY_SNAPSHOTS;
	const char *path = tool_text(c->args, "%s/%s", survey_dir_names[dir], o->key);
	struct stat st;
	if (o->rec == NULL) {
		add_quarantined(c, o, path);
		return;
	}
	look_at_sizes(c, o, path);
	_cleanup_fd_ int fd =
		openat(c->survey.fds[dir], o->key, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0) {
		if (errno != ENOENT) /* deleted meanwhile */
			add_unreadable(c, path, -errno);
		return;
	}
	if (st.st_nlink > 1)
		check_add(c, .kind = "HardLinked", .path = path,
			.message = tool_text(
				c->args, "the image has %ju names", (uintmax_t)st.st_nlink),
			.remedy = "remove the others: a deleted volume would live on there");
	look_at_sharing(c, o, fd, path);
	if (o->kind == RECORD_VOLUME) {
		look_at_marks(c, o, fd, path);
		look_at_file_system(c, o, fd, path);
	}
}

/* ---- objects against each other ---- */

static int compare_random(const void *a, const void *b)
{
	const struct pool_found *x = *(const struct pool_found *const *)a;
	const struct pool_found *y = *(const struct pool_found *const *)b;
	return strcmp(x->rec->random, y->rec->random);
}

static void look_for_twins(struct check *c, enum record_kind kind)
{
	const struct pool_found **all =
		calloc(c->counts[kind] + 1, sizeof(const struct pool_found *));
	size_t count = 0;
	for (size_t i = 0; all != NULL && i < c->counts[kind]; i++)
		if (c->objects[kind][i].rec != NULL)
			all[count++] = &c->objects[kind][i];
	if (all == NULL) {
		c->args->failed = true;
		return;
	}
	qsort(all, count, sizeof(const struct pool_found *), compare_random);
	for (size_t i = 1; i < count; i++)
		if (compare_random(&all[i - 1], &all[i]) == 0)
			check_add(c, .kind = "SameRandom",
				.path = tool_text(c->args, "%s/%s",
					kind == RECORD_VOLUME ? "volumes" : "snapshots",
					all[i]->key),
				.message = tool_text(c->args,
					"it has the random part (%s) of %s: their devices "
					"cannot be told apart",
					all[i]->rec->random, all[i - 1]->key),
				.remedy = "one is a copy made by hand: move it away while no "
					  "driver serves the pool");
	free(all);
}

void check_objects(struct check *c, enum record_kind kind)
{
	for (size_t i = 0; i < c->counts[kind]; i++)
		look_at_object(c, &c->objects[kind][i]);
	look_for_twins(c, kind);
}
