/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a pool from outside. Happy path: open the directory, read ringvol.pool, open what lies
 * below, then names and records as they are asked for. What is missing or damaged is said in the
 * driver's words and the rest is read all the same. The records of a raw pool are opened read-only
 * unless something is to be mended: beside a driver that is its own mount.
 */
#include "pool/survey.h"

#include "base/buf.h"
#include "base/fd.h"
#include "disk/mapped.h"
#include "disk/tagged.h"
#include "disk/thin_pool.h"
#include "pool/departure_file.h"
#include "pool/hold_file.h"
#include "pool/layout.h"
#include "pool/part.h"
#include "pool/raw_load.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

const char *const survey_dir_names[SURVEY_DIRS] = {
	"", "volumes", "snapshots", "templates", "trash", "copies", "groups", "departed", THIN_DIR};

static void fail(struct survey *s, enum pool_state state, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void fail(struct survey *s, enum pool_state state, const char *fmt, ...)
{
	if (s->state != POOL_READY)
		return; /* the first reason is the cause of the others */
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(s->why, sizeof(s->why), fmt, ap);
	va_end(ap);
	s->state = state;
}

static void open_pool_file(struct survey *s, enum survey_use use)
{
	_cleanup_fd_ int fd =
		openat(s->fds[SURVEY_ROOT], POOL_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		fail(s, POOL_MISSING,
			"%s has no " POOL_FILE " file: mount the pool's file system there, or run "
			"'ringvol pool init %s'",
			s->path, s->path);
		return;
	}
	if (fd < 0) {
		fail(s, POOL_SICK, "%s/" POOL_FILE ": %s", s->path, strerrordesc_np(errno));
		return;
	}
	int r = pool_file_read(fd, s->uuid);
	if (r < 0)
		fail(s, POOL_SICK,
			"the file %s/" POOL_FILE " is damaged or of a later version (%s)", s->path,
			strerrordesc_np(-r));
	if (use == SURVEY_LOOK)
		return;
	/* Beside a driver nothing is mended: whoever wants that waits for one that was killed. */
	r = use == SURVEY_MEND ? pool_lock_take(fd) : flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
	if (r < 0) {
		s->served = r == -EWOULDBLOCK;
		return;
	}
	s->lock_fd = fd;
	fd = -1;
}

/* ---- the root ---- */

static void open_directory(struct survey *s)
{
	s->fds[SURVEY_ROOT] = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->fds[SURVEY_ROOT] < 0)
		fail(s, errno == ENOENT || errno == ENOTDIR ? POOL_MISSING : POOL_SICK, "%s: %s",
			s->path, strerrordesc_np(errno));
}

static void open_raw(struct survey *s, enum survey_use use)
{
	struct err err = {0};
	bool mend = use == SURVEY_MEND;
	int r = disk_open(s->path, mend ? DISK_CHANGE : DISK_LOOK, NULL, &s->disk, &err);
	if (r == 0)
		r = disk_records(s->disk, !mend, &s->fds[SURVEY_ROOT], &err);
	if (r < 0)
		fail(s,
			err.code == ERR_UNAVAILABLE || err.code == ERR_PRECONDITION ? POOL_MISSING
										    : POOL_SICK,
			"%s", err.message);
}

static void measure(struct survey *s)
{
	struct statvfs fs;
	struct statfs type;
	if (fstatvfs(s->fds[SURVEY_ROOT], &fs) < 0 || fstatfs(s->fds[SURVEY_ROOT], &type) < 0) {
		fail(s, POOL_SICK, "%s: %s", s->path, strerrordesc_np(errno));
		return;
	}
	/* The mount that a raw pool is looked at through is read-only by itself. */
	s->read_only = s->disk == NULL && (fs.f_flag & ST_RDONLY) != 0;
	s->capacity_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
	s->free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
	s->fs_type = (unsigned long)type.f_type;
}

struct area_use {
	int dirfd;
	uint64_t bytes;
};

static int add_map(void *arg, const char *name)
{
	struct area_use *use = arg;
	struct image_map map;
	if (pool_raw_map(use->dirfd, name, &map) == 0)
		use->bytes += image_map_bytes(&map);
	return 0;
}

static void measure_area(struct survey *s)
{
	s->capacity_bytes = 0;
	for (unsigned i = 0; i < s->disk->count; i++)
		s->capacity_bytes += s->disk->members[i].bytes;
	s->free_bytes = s->capacity_bytes;
	for (unsigned dir = SURVEY_VOLUMES; dir < SURVEY_DIRS; dir++) {
		struct area_use use = {.dirfd = s->fds[dir]};
		if (dir == SURVEY_TRASH || survey_each(s, dir, add_map, &use) < 0)
			continue;
		s->free_bytes -= use.bytes < s->free_bytes ? use.bytes : s->free_bytes;
	}
}

static void open_dirs(struct survey *s)
{
	for (unsigned i = SURVEY_VOLUMES; i < SURVEY_DIRS; i++) {
		s->fds[i] = openat(s->fds[SURVEY_ROOT], survey_dir_names[i],
			O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		/* The others are caches and leftovers, made again. */
		if (s->fds[i] < 0 &&
			(i == SURVEY_VOLUMES || (i == SURVEY_SNAPSHOTS && errno != ENOENT)))
			fail(s, POOL_SICK, "the directory %s/%s: %s", s->path, survey_dir_names[i],
				strerrordesc_np(errno));
	}
}

void survey_open(struct survey *ret, const char *path, enum survey_use use)
{
	struct survey s = {.path = path, .state = POOL_READY, .lock_fd = -1};
	memset(s.fds, 0xff, sizeof(s.fds));
	if (disk_is_raw_pool(path))
		open_raw(&s, use);
	else
		open_directory(&s);
	if (s.fds[SURVEY_ROOT] >= 0) {
		measure(&s);
		open_pool_file(&s, use);
		open_dirs(&s);
		if (s.disk != NULL)
			measure_area(&s);
	}
	if (s.read_only)
		fail(&s, POOL_SICK,
			"%s is read-only: look for errors of its disk in the kernel log", path);
	*ret = s;
}

void survey_close(struct survey *s)
{
	for (unsigned i = 0; i < SURVEY_DIRS; i++)
		fd_close(&s->fds[i]);
	fd_close(&s->lock_fd);
	disk_unref(s->disk);
	s->disk = NULL;
}

int survey_each(const struct survey *s, enum survey_dir dir,
	int (*each)(void *arg, const char *name), void *arg)
{
	return s->fds[dir] < 0 ? 0 : fd_each_name(s->fds[dir], each, arg);
}

static bool is_template_name(const char *name)
{
	const char *dash = strchr(name, '-');
	enum fsimg_type type;
	char fs[16];
	if (thin_template_name_is(name)) /* the driver's while it runs */
		return true;
	if (dash == NULL || (size_t)(dash - name) >= sizeof(fs))
		return false;
	snprintf(fs, sizeof(fs), "%.*s", (int)(dash - name), name);
	return fsimg_parse_name(fs, &type) == 0 && strlen(dash + 1) == 40 &&
	       strspn(dash + 1, "0123456789abcdef") == 40;
}

bool survey_name_is_ours(enum survey_dir dir, const char *name)
{
	switch (dir) {
	case SURVEY_ROOT:
		for (unsigned i = SURVEY_VOLUMES; i < SURVEY_DIRS; i++)
			if (strcmp(name, survey_dir_names[i]) == 0)
				return true;
		return strcmp(name, POOL_FILE) == 0;
	case SURVEY_VOLUMES:
	case SURVEY_SNAPSHOTS:
	case SURVEY_GROUPS:
		return record_key_valid(name);
	case SURVEY_DEPARTED:
		return record_key_valid(name) || departure_is_new_name(name);
	case SURVEY_TEMPLATES:
		return is_template_name(name);
	case SURVEY_TRASH:
		return trash_name_valid(name);
	case SURVEY_COPIES:
		return pool_part_name_valid(name) || hold_name_valid(name);
	case SURVEY_THIN:
		return strcmp(name, THIN_METADATA_FILE) == 0 || strcmp(name, THIN_DATA_FILE) == 0;
	case SURVEY_DIRS:
		break;
	}
	return false;
}

/* As its device says; 0: it has none. */
static uint64_t thin_bytes(const struct survey *s, const struct pool_found *o)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	char tag[64], uuid8[9], uuid[DM_UUID_LEN];
	uint64_t bytes = 0;
	if (o->rec == NULL || !dm_is_loaded() || dm_open(&dm, DM_CONTROL_PATH) < 0)
		return 0;
	snprintf(uuid8, sizeof(uuid8), "%.8s", s->uuid);
	snprintf(tag, sizeof(tag), "ringvol:%s:%s", record_id_pool(o->rec, uuid8), o->rec->random);
	if (tagged_uuid(tag, MAPPED_UUID_PREFIX, o->image_ino, uuid) == 0)
		(void)thin_volume_bytes(&dm, uuid, &bytes);
	return bytes;
}

static int read_object(
	const struct survey *s, enum record_kind kind, const char *name, struct pool_found *ret)
{
	struct image_map map;
	int dirfd = s->fds[SURVEY_VOLUMES + kind];
	if (!record_key_valid(name))
		return -EINVAL;
	int r = pool_read_object(dirfd, name, kind, ret);
	if (r < 0 || s->disk == NULL)
		return r;
	if (pool_raw_map(dirfd, name, &map) < 0)
		map = (struct image_map){0};
	ret->thin_id = map.thin_id;
	ret->allocated_bytes = map.thin_id != 0 ? thin_bytes(s, ret) : image_map_bytes(&map);
	return r;
}

struct collect {
	const struct survey *survey;
	enum record_kind kind;
	struct pool_found *at;
	size_t count, cap;
};

static int collect_name(void *arg, const char *name)
{
	struct collect *c = arg;
	if (array_grow(&c->at, &c->cap, c->count, sizeof(*c->at)) < 0)
		return -ENOMEM;
	int r = read_object(c->survey, c->kind, name, &c->at[c->count]);
	if (r == 0)
		c->count++;
	return r == -ENOENT || r == -EINVAL ? 0 : r;
}

static int compare_key(const void *a, const void *b)
{
	return strcmp(((const struct pool_found *)a)->key, ((const struct pool_found *)b)->key);
}

void survey_objects_free(struct pool_found *objects, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		record_free(objects[i].rec);
		attachments_free(objects[i].attachments);
	}
	free(objects);
}

int survey_objects(
	const struct survey *s, enum record_kind kind, struct pool_found **ret, size_t *ret_count)
{
	struct collect c = {.survey = s, .kind = kind};
	int r = survey_each(s, SURVEY_VOLUMES + kind, collect_name, &c);
	if (r < 0) {
		survey_objects_free(c.at, c.count);
		return r;
	}
	if (c.count > 0)
		qsort(c.at, c.count, sizeof(*c.at), compare_key);
	*ret = c.at;
	*ret_count = c.count;
	return 0;
}
