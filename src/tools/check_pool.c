/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a whole pool and saying all that is wrong with it at once. Happy path: names of each
 * directory, each object by itself, objects against each other, devices against volumes. Nothing is
 * changed here.
 *
 * Beside a driver the pool changes while it is read: what is gone when it is looked at is no
 * finding, and what the driver is about to do (trash) is a note. What cannot be read is a finding
 * like any other.
 */
#include "tools/check.h"

#include "base/fd.h"
#include "blockio/boot_mark.h"
#include "tools/text.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum {
	EXTENTS = 128,         /* of one FIEMAP */
	EXTENTS_MAX = 1 << 16, /* looked at of one image */
};

void check_add(struct check *c, const struct check_finding *f)
{
	if (c->count == c->cap) {
		size_t cap = c->cap == 0 ? 32 : c->cap * 2;
		struct check_finding *findings = reallocarray(c->findings, cap, sizeof(*findings));
		if (findings == NULL) {
			c->failed = true;
			return;
		}
		c->findings = findings;
		c->cap = cap;
	}
	struct check_finding copy = *f;
	copy.path = check_text(c, "%s", f->path != NULL ? f->path : "");
	copy.message = check_text(c, "%s", f->message);
	copy.remedy = check_text(c, "%s", f->remedy != NULL ? f->remedy : "");
	copy.name = f->name != NULL ? check_text(c, "%s", f->name) : NULL;
	c->findings[c->count++] = copy;
}

const char *check_text(struct check *c, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	va_start(ap, fmt);
	int len = vasprintf(&text, fmt, ap);
	va_end(ap);
	const char *copy = len < 0 ? NULL : arena_strdup(c->arena, text);
	if (len >= 0)
		free(text);
	if (copy == NULL)
		c->failed = true;
	return copy != NULL ? copy : "";
}

/* ---- the pool and its directories ---- */

/* What is missing here must not be made anew: it would look as if nothing had ever been in it. */
static const char *pool_remedy(const struct survey *s)
{
	if (s->state == POOL_MISSING)
		return ""; /* the message has it */
	if (s->uuid[0] == '\0')
		return "restore ringvol.pool from a backup: without its uuid no volume id is known";
	if (s->fds[SURVEY_VOLUMES] < 0 || s->fds[SURVEY_SNAPSHOTS] < 0)
		return "restore the directory from a backup: an empty one would mean that all in it "
		       "were deleted";
	return "";
}

static void look_at_root(struct check *c)
{
	const struct survey *s = &c->survey;
	if (s->state != POOL_READY)
		check_add(c, &(struct check_finding){
				     .kind = s->state == POOL_MISSING ? "PoolMissing" : "PoolSick",
				     .message = s->why,
				     .remedy = pool_remedy(s)});
	for (unsigned i = SURVEY_TEMPLATES; s->uuid[0] != '\0' && i < SURVEY_DIRS; i++)
		if (s->fds[i] < 0)
			check_add(c, &(struct check_finding){.severity = CHECK_LEFTOVER,
					     .kind = "DirectoryMissing",
					     .path = survey_dir_names[i],
					     .message = "the directory is not there",
					     .remedy = "the driver makes it",
					     .repair = check_make_directory,
					     .dir = i});
}

struct names {
	struct check *c;
	enum survey_dir dir;
};

static void add_trash(struct check *c, const char *path, const char *name)
{
	struct stat st;
	char size[TEXT_NUMBER_BYTES];
	if (fstatat(c->survey.fds[SURVEY_TRASH], name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	text_size((uint64_t)st.st_blocks * 512, size);
	check_add(c,
		&(struct check_finding){.severity = c->survey.served ? CHECK_NOTE : CHECK_LEFTOVER,
			.kind = "TrashLeft",
			.path = path,
			.message = check_text(c, "deleted, and %s of it not yet given back", size),
			.remedy = "the driver gives it back, and erases it before where that was "
				  "asked for"});
}

/* A template that is not whole is made again by who needs it. */
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
		check_add(c, &(struct check_finding){.severity = CHECK_LEFTOVER,
				     .kind = "TemplateDamaged",
				     .path = path,
				     .message = check_text(c, "it holds no sound %s", fs),
				     .remedy = "the driver makes it again when it is needed",
				     .repair = check_unlink,
				     .dir = SURVEY_TEMPLATES,
				     .name = name});
}

static int look_at_name(void *arg, const char *name)
{
	const struct names *n = arg;
	struct check *c = n->c;
	const char *path = n->dir == SURVEY_ROOT
				   ? name
				   : check_text(c, "%s/%s", survey_dir_names[n->dir], name);
	if (n->dir == SURVEY_ROOT && strcmp(name, BYTES_PROBE_NAME) == 0) {
		check_add(c,
			&(struct check_finding){.severity = CHECK_LEFTOVER,
				.kind = "ProbeLeft",
				.path = path,
				.message =
					"left by a driver that tried what the file system can do",
				.remedy = "the driver removes it",
				.repair = check_unlink,
				.dir = SURVEY_ROOT,
				.name = name});
		return 0;
	}
	if (!survey_name_is_ours(n->dir, name)) {
		/* ext4 has one at each root. */
		bool known = n->dir == SURVEY_ROOT && strcmp(name, "lost+found") == 0;
		if (!known)
			check_add(
				c, &(struct check_finding){.severity = CHECK_NOTE,
					   .kind = "UnknownFile",
					   .path = path,
					   .message = "it is not ringvol's, which leaves it alone",
					   .remedy = "whose it is may remove it"});
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
			check_add(c, &(struct check_finding){.kind = "DirectoryUnreadable",
					     .path = survey_dir_names[dir],
					     .message = strerrordesc_np(-r),
					     .remedy = "see the kernel log"});
	}
}

/* ---- one object ---- */

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
static bool is_founder(const struct check *c, const struct survey_object *o)
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
static void look_at_sharing(
	struct check *c, const struct survey_object *o, int fd, const char *path)
{
	bool known;
	if (o->rec->fs != FSIMG_NONE || o->rec->shares_extents || !has_shared_extents(fd, &known) ||
		is_founder(c, o))
		return;
	check_add(c,
		&(struct check_finding){.kind = "SharesExtents",
			.path = path,
			.message = "blocks of it are shared with another file, and its record says "
				   "that none are",
			.remedy =
				"somebody copied it by reflink outside of ringvol (cp): remove the "
				"copy; until then erasing it erases nothing there"});
}

static const struct device *device_of(const struct check *c, const struct record *rec)
{
	char uuid8[9];
	snprintf(uuid8, sizeof(uuid8), "%.8s", c->survey.uuid);
	return devices_find(&c->devices, uuid8, rec->random);
}

static const char *mounted_at(const struct check *c, const struct device *device)
{
	for (size_t i = 0; device != NULL && i < c->devices.mount_count; i++)
		if (c->devices.mounts[i].major == device->dev.major &&
			c->devices.mounts[i].minor == device->dev.minor)
			return c->devices.mounts[i].path;
	return NULL;
}

static void look_at_marks(struct check *c, const struct survey_object *o, int fd, const char *path)
{
	const struct device *device = device_of(c, o->rec);
	const char *mount = mounted_at(c, device);
	/* A driver that is at it has it for the time of a snapshot. */
	if (c->survey.served || !boot_mark_get(fd, BOOT_MARK_FROZEN, NULL))
		return;
	check_add(c,
		&(struct check_finding){.severity = CHECK_LEFTOVER,
			.kind = "FrozenMark",
			.path = path,
			.message = mount != NULL
					   ? "a snapshot was cut short: the file system may be "
					     "frozen, and its users wait"
					   : "a snapshot was cut short; it is not mounted any more",
			.remedy = "the driver thaws it at its start",
			.repair = check_thaw,
			.dir = SURVEY_VOLUMES,
			.name = o->key,
			.device = mount != NULL ? device : NULL});
}

/* Of what is attached, the bytes on disk are not what its user sees. */
static void look_at_file_system(
	struct check *c, const struct survey_object *o, int fd, const char *path)
{
	struct fsimg_probe probe;
	if (o->rec->fs == FSIMG_NONE || o->truncated || device_of(c, o->rec) != NULL ||
		fsimg_probe_expected(fd, o->rec->fs, &probe) < 0)
		return;
	if (probe.type != o->rec->fs)
		check_add(c, &(struct check_finding){.kind = "FileSystemMissing",
				     .path = path,
				     .message = check_text(c, "its record says %s, it holds %s",
					     fsimg_name(o->rec->fs),
					     probe.found[0] != '\0' ? probe.found : "none"),
				     .remedy = "restore it from a snapshot"});
	else if (probe.errors)
		check_add(c,
			&(struct check_finding){.kind = "FileSystemErrors",
				.path = path,
				.message = check_text(c, "its %s is marked as having errors",
					fsimg_name(o->rec->fs)),
				.remedy =
					o->rec->fs == FSIMG_EXT4
						? "the next NodeStageVolume runs e2fsck -p; look "
						  "for errors of the disk in the kernel log"
						: "look for errors of the disk in the kernel log"});
}

static void look_at_sizes(struct check *c, const struct survey_object *o, const char *path)
{
	const struct record *rec = o->rec;
	unsigned long long image = o->image_bytes, said = rec->size_bytes;
	if (o->truncated)
		check_add(c,
			&(struct check_finding){.kind = "ImageTruncated",
				.path = path,
				.message = check_text(c,
					"the image has %llu bytes, its record says %llu: the rest "
					"is lost",
					image, said),
				.remedy = "restore it from a snapshot"});
	else if (image > said)
		check_add(c,
			&(struct check_finding){.severity = CHECK_NOTE,
				.kind = "ImageLarger",
				.path = path,
				.message = check_text(c,
					"the image has %llu bytes, its record says %llu: growing it "
					"was cut short",
					image, said),
				.remedy = "grow it again"});
	if (said == 0 || said % POOL_SIZE_ALIGN != 0)
		check_add(c,
			&(struct check_finding){.kind = "SizeOdd",
				.path = path,
				.message = check_text(c,
					"its record says %llu bytes, no multiple of 1 MiB", said),
				.remedy = "no ringvol made this: look who wrote the record"});
	if (rec->thick && o->kind == RECORD_VOLUME && !o->truncated &&
		o->allocated_bytes < rec->size_bytes)
		check_add(c,
			&(struct check_finding){.kind = "ThickNotAllocated",
				.path = path,
				.message = check_text(c,
					"it is thick, but only %llu of %llu bytes are allocated",
					(unsigned long long)o->allocated_bytes, said),
				.remedy = "fallocate it while it is detached, or copy it to a new "
					  "thick volume"});
}

static void add_quarantined(struct check *c, const struct survey_object *o, const char *path)
{
	char size[TEXT_NUMBER_BYTES];
	text_size(o->allocated_bytes, size);
	check_add(c,
		&(struct check_finding){.kind = "Quarantined",
			.path = path,
			.message = check_text(c,
				"%s; its name stays taken, nobody touches it (%s on disk)", o->why,
				size),
			.remedy = check_text(c,
				"copy what is in it elsewhere, then move the file away; a copy made "
				"without attributes (trusted.ringvol) looks like this")});
}

static void look_at_object(struct check *c, const struct survey_object *o)
{
	enum survey_dir dir = o->kind == RECORD_VOLUME ? SURVEY_VOLUMES : SURVEY_SNAPSHOTS;
	const char *path = check_text(c, "%s/%s", survey_dir_names[dir], o->key);
	struct stat st;
	if (o->rec == NULL) {
		add_quarantined(c, o, path);
		return;
	}
	look_at_sizes(c, o, path);
	_cleanup_fd_ int fd =
		openat(c->survey.fds[dir], o->key, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return; /* deleted meanwhile */
	if (st.st_nlink > 1)
		check_add(c,
			&(struct check_finding){.kind = "HardLinked",
				.path = path,
				.message = check_text(
					c, "the image has %ju names", (uintmax_t)st.st_nlink),
				.remedy =
					"remove the others: a deleted volume would live on there"});
	look_at_sharing(c, o, fd, path);
	if (o->kind == RECORD_VOLUME) {
		look_at_marks(c, o, fd, path);
		look_at_file_system(c, o, fd, path);
	}
}

/* ---- objects against each other ---- */

static int compare_random(const void *a, const void *b)
{
	const struct survey_object *x = *(const struct survey_object *const *)a;
	const struct survey_object *y = *(const struct survey_object *const *)b;
	return strcmp(x->rec->random, y->rec->random);
}

static void look_for_twins(struct check *c, enum record_kind kind)
{
	const struct survey_object **all =
		calloc(c->counts[kind] + 1, sizeof(const struct survey_object *));
	size_t count = 0;
	for (size_t i = 0; all != NULL && i < c->counts[kind]; i++)
		if (c->objects[kind][i].rec != NULL)
			all[count++] = &c->objects[kind][i];
	if (all == NULL) {
		c->failed = true;
		return;
	}
	qsort(all, count, sizeof(const struct survey_object *), compare_random);
	for (size_t i = 1; i < count; i++)
		if (compare_random(&all[i - 1], &all[i]) == 0)
			check_add(c,
				&(struct check_finding){.kind = "SameRandom",
					.path = check_text(c, "%s/%s",
						kind == RECORD_VOLUME ? "volumes" : "snapshots",
						all[i]->key),
					.message = check_text(c,
						"it has the random part (%s) of %s: their devices "
						"cannot be told apart",
						all[i]->rec->random, all[i - 1]->key),
					.remedy =
						"one is a copy made by hand: move it away while no "
						"driver serves the pool"});
	free(all);
}

/* ---- devices against volumes ---- */

static const struct survey_object *volume_of(const struct check *c, const struct device *device)
{
	const char *random = device->dev.tag + strlen("ringvol:") + 9;
	for (size_t i = 0; i < c->counts[RECORD_VOLUME]; i++) {
		const struct survey_object *o = &c->objects[RECORD_VOLUME][i];
		if (o->rec != NULL && strcmp(o->rec->random, random) == 0)
			return o;
	}
	return NULL;
}

static void look_at_device(struct check *c, const struct device *device)
{
	const struct survey_object *o = volume_of(c, device);
	const char *mount = mounted_at(c, device);
	struct stat st;
	/* Beside a driver: a volume that was made after the directory was read. */
	if (o == NULL && !c->survey.served)
		check_add(
			c, &(struct check_finding){.severity = CHECK_LEFTOVER,
				   .kind = "OrphanDevice",
				   .path = device->dev.path,
				   .message = check_text(c, "bound to a volume that is no more%s%s",
					   mount != NULL ? ", and mounted at " : "",
					   mount != NULL ? mount : ""),
				   .remedy = mount != NULL
						     ? "unmount it; the driver lets go of it then"
						     : "the driver lets go of it at its start",
				   .repair = mount == NULL && strcmp(device->type, "loop") == 0
						     ? check_detach
						     : NULL,
				   .device = device});
	if (o != NULL && fstatat(c->survey.fds[SURVEY_VOLUMES], o->key, &st, 0) == 0 &&
		st.st_ino != device->dev.image_ino)
		check_add(c,
			&(struct check_finding){.kind = "DeviceOfAnotherFile",
				.path = device->dev.path,
				.message = check_text(c,
					"it is volume %s's by its tag, but serves another file: what "
					"is written to it is not in the volume",
					o->rec->name),
				.remedy = "save what is in it, then unstage the volume"});
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

void check_pool(struct check *c, const char *name, const char *path)
{
	c->name = name;
	survey_open(&c->survey, path, true);
	look_at_root(c);
	if (c->survey.uuid[0] == '\0')
		return;
	int r = devices_scan(&c->devices);
	if (r < 0)
		check_add(c,
			&(struct check_finding){.kind = "DevicesUnknown",
				.message =
					check_text(c, "devices and mounts cannot be looked at: %s",
						strerrordesc_np(-r)),
				.remedy = "run as root, on the host or in its mount namespace"});
	look_at_names(c);
	for (unsigned kind = 0; kind < 2; kind++) {
		r = survey_objects(&c->survey, kind, &c->objects[kind], &c->counts[kind]);
		if (r < 0)
			check_add(c, &(struct check_finding){.kind = "DirectoryUnreadable",
					     .path = survey_dir_names[SURVEY_VOLUMES + kind],
					     .message = strerrordesc_np(-r),
					     .remedy = "see the kernel log"});
	}
	for (unsigned kind = 0; kind < 2; kind++) {
		for (size_t i = 0; i < c->counts[kind]; i++)
			look_at_object(c, &c->objects[kind][i]);
		look_for_twins(c, kind);
	}
	look_at_devices(c);
}

void check_close(struct check *c)
{
	for (unsigned kind = 0; kind < 2; kind++) {
		for (size_t i = 0; i < c->counts[kind]; i++)
			survey_object_free(&c->objects[kind][i]);
		free(c->objects[kind]);
	}
	free(c->findings);
	devices_free(&c->devices);
	survey_close(&c->survey);
}
