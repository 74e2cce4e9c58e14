/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State files: "dev-<id>" holds one struct ublk_record, "instance" 4 random bytes, "lock" nothing.
 *
 * A file is written under another name, synced (the directory may be on a disk) and renamed.
 * Leftovers of that, named ".new-<id>", are overwritten by the next write of the same device.
 * What has the wrong length or sum is reported, never taken: see the two users of each().
 */
#include "backends/ublk/ublk_state.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

enum {
	STATE_MAGIC = 0x73627672, /* "rvbs" */
	STATE_VERSION = 1,
};

int ublk_state_open_dir(const char *path, bool make)
{
	char part[UBLKD_PATH_BYTES];
	size_t len = strlen(path);
	if (len >= sizeof(part))
		return -ENAMETOOLONG;
	for (size_t i = 1; make && i <= len; i++) {
		if (path[i] != '/' && path[i] != '\0')
			continue;
		memcpy(part, path, i);
		part[i] = '\0';
		if (mkdir(part, 0700) < 0 && errno != EEXIST)
			return -errno;
	}
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int ublk_state_lock(int dirfd, int *ret_lock_fd)
{
	_cleanup_fd_ int fd = openat(dirfd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return -errno;
	*ret_lock_fd = fd;
	fd = -1;
	return 0;
}

/* ---- whole files ---- */

static int read_all(int dirfd, const char *name, void *data, size_t cap, size_t *ret_len)
{
	_cleanup_fd_ int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	ssize_t n = pread(fd, data, cap, 0);
	if (n < 0)
		return -errno;
	*ret_len = (size_t)n;
	return 0;
}

static int replace(int dirfd, const char *tmp, const char *name, const void *data, size_t len)
{
	_cleanup_fd_ int fd =
		openat(dirfd, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	ssize_t n = pwrite(fd, data, len, 0);
	if (n < 0)
		return -errno;
	if ((size_t)n != len)
		return -ENOSPC;
	if (fsync(fd) < 0 || renameat(dirfd, tmp, dirfd, name) < 0 || fsync(dirfd) < 0)
		return -errno;
	return 0;
}

int ublk_state_instance(int dirfd, uint32_t *ret)
{
	uint32_t instance;
	size_t len;
	int r = read_all(dirfd, "instance", &instance, sizeof(instance), &len);
	if (r == 0 && len == sizeof(instance)) {
		*ret = instance;
		return 0;
	}
	if (r < 0 && r != -ENOENT)
		return r;
	if (getrandom(&instance, sizeof(instance), 0) != sizeof(instance))
		return -EIO;
	r = replace(dirfd, ".new-instance", "instance", &instance, sizeof(instance));
	if (r == 0)
		*ret = instance;
	return r;
}

/* ---- records ---- */

/* FNV-1a over all behind `check`. */
static uint32_t record_sum(const struct ublk_record *record, size_t len)
{
	const uint8_t *bytes = (const uint8_t *)record;
	uint32_t sum = 2166136261u;
	for (size_t i = offsetof(struct ublk_record, phase); i < len; i++)
		sum = (sum ^ bytes[i]) * 16777619u;
	return sum;
}

static void record_name(char name[24], const char *prefix, uint32_t dev_id)
{
	snprintf(name, 24, "%s-%u", prefix, dev_id);
}

int ublk_state_write(int dirfd, struct ublk_record *record)
{
	char name[24], tmp[24];
	record_name(name, "dev", record->dev_id);
	record_name(tmp, ".new", record->dev_id);
	record->magic = STATE_MAGIC;
	record->version = STATE_VERSION;
	record->bytes = sizeof(*record);
	record->check = record_sum(record, sizeof(*record));
	return replace(dirfd, tmp, name, record, sizeof(*record));
}

/* What no build of ours writes. The sum is no proof: it guards against accidents. */
static bool record_sound(const struct ublk_record *r)
{
	return r->phase >= UBLK_PHASE_MAKING && r->phase <= UBLK_PHASE_ENDING &&
	       (r->block_size == 512 || r->block_size == 4096) && r->queues > 0 &&
	       r->queues <= UBLKD_QUEUES_MAX && r->depth > 0 && r->depth <= UBLKD_DEPTH_MAX &&
	       strnlen(r->tag, sizeof(r->tag)) < sizeof(r->tag) && r->tag[0] != '\0' &&
	       strnlen(r->path, sizeof(r->path)) < sizeof(r->path);
}

/* A record of a newer build is longer; this one knows the head of it. A shorter one is completed
 * with zeros, which mean "as before". */
int ublk_state_read(int dirfd, uint32_t dev_id, struct ublk_record *ret)
{
	char name[24];
	uint8_t raw[sizeof(*ret) * 2];
	struct ublk_record record = {0};
	size_t len;
	record_name(name, "dev", dev_id);
	int r = read_all(dirfd, name, raw, sizeof(raw), &len);
	if (r < 0)
		return r;
	if (len < offsetof(struct ublk_record, tag))
		return -EBADMSG;
	memcpy(&record, raw, len < sizeof(record) ? len : sizeof(record));
	if (record.magic != STATE_MAGIC || record.version != STATE_VERSION || record.bytes != len ||
		record.dev_id != dev_id ||
		record.check != record_sum((const struct ublk_record *)raw, len) ||
		!record_sound(&record))
		return -EBADMSG;
	*ret = record;
	return 0;
}

int ublk_state_remove(int dirfd, uint32_t dev_id)
{
	char name[24];
	record_name(name, "dev", dev_id);
	return unlinkat(dirfd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

int ublk_state_each(int dirfd,
	void (*each)(void *arg, uint32_t dev_id, const struct ublk_record *record), void *arg)
{
	_cleanup_dir_ DIR *dir = NULL;
	const struct dirent *entry;
	int r = fd_open_dir(dirfd, &dir);
	if (r < 0)
		return r;
	while ((entry = fd_next_entry(dir, &r)) != NULL) {
		char *end;
		if (strncmp(entry->d_name, "dev-", 4) != 0 || entry->d_name[4] < '0' ||
			entry->d_name[4] > '9')
			continue;
		unsigned long id = strtoul(entry->d_name + 4, &end, 10);
		if (*end != '\0' || id > UINT32_MAX)
			continue;
		struct ublk_record record;
		int read = ublk_state_read(dirfd, (uint32_t)id, &record);
		if (read != -ENOENT)
			each(arg, (uint32_t)id, read < 0 ? NULL : &record);
	}
	return r;
}
