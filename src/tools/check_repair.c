/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ringvol check --repair` may do: no more than the driver does at its start, and nothing that
 * removes what a tenant wrote. The pool's lock is held all the while. What fails stays as it is,
 * and the next attempt or the driver mends it.
 */
#include "tools/check.h"

#include "backends/loop.h"
#include "base/fd.h"
#include "blockio/boot_mark.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>

int check_unlink(struct check *c, const struct check_finding *f)
{
	/* Templates are a cache, a probe's file is its own. */
	assert(f->dir == SURVEY_TEMPLATES || f->dir == SURVEY_ROOT);
	int dirfd = c->survey.fds[f->dir];
	return unlinkat(dirfd, f->name, 0) < 0 || fsync(dirfd) < 0 ? -errno : 0;
}

int check_make_directory(struct check *c, const struct check_finding *f)
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

int check_detach(struct check *c, const struct check_finding *f)
{
	(void)c;
	struct backend_dev dev = f->device->dev;
	struct err err = {0};
	int r = backend_loop_detach(&dev, &err);
	return r == 0 && dev.attached ? -EBUSY : r;
}

int check_remove_guard(struct check *c, const struct check_finding *f)
{
	(void)c;
	struct err err = {0};
	return backend_loop_remove_stray(f->name, &err);
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

int check_thaw(struct check *c, const struct check_finding *f)
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

void check_repair(struct check *c)
{
	assert(!c->survey.served);
	for (size_t i = 0; i < c->count; i++) {
		struct check_finding *f = &c->findings[i];
		if (f->repair == NULL)
			continue;
		int r = f->repair(c, f);
		f->repaired = r == 0;
		if (r < 0)
			f->remedy = check_text(
				c, "repairing it failed (%s); %s", strerrordesc_np(-r), f->remedy);
	}
}
