/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file ringvol.disk: four lines, replaced by a rename. What a rename cut short leaves,
 * ringvol.disk.new, counts as nothing.
 */
#include "disk/place.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define HEAD     "ringvol-disk 1\n"
#define FILE_NEW DISK_FILE ".new"

enum { TEXT_BYTES = 512 };

bool disk_is_raw_pool(const char *path)
{
	_cleanup_fd_ int dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;
	return dir >= 0 && fstatat(dir, DISK_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool get_uuid(const char **text, const char *name, char *ret)
{
	size_t len = strlen(name), uuid = DISK_UUID_BYTES - 1;
	if (strncmp(*text, name, len) != 0 || strnlen(*text + len, uuid + 1) <= uuid ||
		(*text)[len + uuid] != '\n')
		return false;
	memcpy(ret, *text + len, uuid);
	ret[uuid] = '\0';
	*text += len + uuid + 1;
	return uuid_valid(ret);
}

static bool get_device(const char *text, char *ret)
{
	static const char name[] = "device=";
	const char *end = strchr(text, '\n');
	if (end == NULL || end[1] != '\0' || strncmp(text, name, sizeof(name) - 1) != 0)
		return false;
	text += sizeof(name) - 1;
	if (end - text >= DISK_PATH_BYTES || text[0] != '/')
		return false;
	memcpy(ret, text, (size_t)(end - text));
	ret[end - text] = '\0';
	return true;
}

int disk_place_parse(const char *text, size_t len, struct disk_place *ret)
{
	char copy[TEXT_BYTES];
	const char *at = copy;
	struct disk_place place = {0};
	if (len >= sizeof(copy) || memchr(text, '\0', len) != NULL)
		return -EBADMSG;
	memcpy(copy, text, len);
	copy[len] = '\0';
	if (strncmp(at, HEAD, strlen(HEAD)) != 0)
		return -EBADMSG;
	at += strlen(HEAD);
	if (!get_uuid(&at, "pool=", place.pool) || !get_uuid(&at, "disk=", place.disk) ||
		!get_device(at, place.device))
		return -EBADMSG;
	*ret = place;
	return 0;
}

static int read_place(int dir, struct disk_place *ret)
{
	char text[TEXT_BYTES];
	_cleanup_fd_ int fd =
		openat(dir, DISK_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t len = pread(fd, text, sizeof(text), 0);
	return len < 0 ? -errno : disk_place_parse(text, (size_t)len, ret);
}

int disk_place_read(const char *path, struct disk_place *ret)
{
	_cleanup_fd_ int dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return dir < 0 ? -errno : read_place(dir, ret);
}

static int write_new(int dir, const char *text)
{
	_cleanup_fd_ int fd =
		openat(dir, FILE_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	ssize_t n = write(fd, text, strlen(text));
	if (n < 0)
		return -errno;
	if ((size_t)n != strlen(text))
		return -ENOSPC;
	return fsync(fd) < 0 ? -errno : 0;
}

int disk_place_write(const char *path, const struct disk_place *place)
{
	char text[TEXT_BYTES];
	_cleanup_fd_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	if (place->device[0] != '/' || strchr(place->device, '\n') != NULL)
		return -EINVAL;
	snprintf(text, sizeof(text), HEAD "pool=%s\ndisk=%s\ndevice=%s\n", place->pool, place->disk,
		place->device);
	int r = write_new(dir, text);
	if (r == 0 && renameat(dir, FILE_NEW, dir, DISK_FILE) < 0)
		r = -errno;
	return r == 0 && fsync(dir) < 0 ? -errno : r;
}

/* Anything else in the way is answered with 1, its name in *arg. */
static int check_name(void *arg, const char *name)
{
	if (strcmp(name, DISK_FILE) == 0 || strcmp(name, FILE_NEW) == 0 ||
		strcmp(name, "lost+found") == 0)
		return 0;
	snprintf(arg, NAME_MAX + 1, "%s", name);
	return 1;
}

int disk_place_prepare(const char *path, struct disk_place *ret, struct err *err)
{
	char name[NAME_MAX + 1];
	struct disk_place place = {0};
	int r = fd_make_dir(path, 0700);
	if (r < 0)
		return err_sys(err, r, "making the directory %s", path);
	_cleanup_fd_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(err, -errno, "opening %s", path);
	r = fd_each_name(dir, check_name, name);
	if (r > 0)
		return err_set(err, ERR_PRECONDITION,
			"%s is not empty (there is %s): the place of a raw pool is an empty "
			"directory",
			path, name);
	if (r == 0)
		r = read_place(dir, &place);
	if (r == -EBADMSG)
		return err_set(err, ERR_PRECONDITION,
			"%s/" DISK_FILE " is damaged or of a later version: remove the file if you "
			"know which pool this is",
			path);
	if (r < 0 && r != -ENOENT)
		return err_sys(err, r, "reading %s", path);
	*ret = place;
	return 0;
}
