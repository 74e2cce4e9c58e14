/* SPDX-License-Identifier: Apache-2.0 */
/* What the operations of csi ask of the machine, in place of its functions (--wrap, meson.build):
 * the input answers. */
#include "csi_world.h"

#include "csi_requests.h"

#include "blockio/blkdev.h"
#include "blockio/boot_mark.h"
#include "blockio/fsimg.h"
#include "mount/mnt.h"
#include "mount/mnt_scan.h"
#include "reactor/op.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>

int __wrap_open64(const char *path, int flags, ...);
int __wrap_openat64(int dirfd, const char *path, int flags, ...);
int __wrap_fstatfs64(int fd, struct statfs *ret);
int __wrap_blkdev_look(uint32_t dev_major, uint32_t dev_minor, struct blkdev *ret);
int __wrap_blkdev_find_holder(const char *path, struct blkdev_holder *ret);
int __wrap_mnt_scan(void (*each)(void *arg, const struct mnt_entry *entry), void *arg);
char *__wrap_mnt_scan_name(const char *path);
int __wrap_op_proc(struct op *op, struct proc *proc);
int __wrap_boot_mark_set(int fd, const char *name, const char *text);
bool __wrap_boot_mark_get(int fd, const char *name, struct boot_mark *ret);
int __wrap_boot_mark_remove(int fd, const char *name);
int __wrap_fsimg_probe_expected(int fd, enum fsimg_type type, struct fsimg_probe *ret);
int __wrap_fsimg_probe_fd(int fd, struct fsimg_probe *ret);

/* A file of no name that a call may lock or close, or trouble. */
static int open_answer(void)
{
	static const int errors[] = {ENOENT, EBUSY, EIO, EBUSY};
	uint8_t b = csi_world_answer();
	if (b >= 0xc0) {
		errno = errors[b % 4];
		return -1;
	}
	int fd = memfd_create("image", MFD_CLOEXEC);
	must(fd >= 0);
	return fd;
}

/* Devices, and the pool, which is not there. */
int __wrap_open64(const char *path, int flags, ...)
{
	must((flags & (O_CREAT | O_CLOEXEC)) == O_CLOEXEC);
	if (strncmp(path, "/dev/loop", 9) == 0)
		return open_answer();
	must(strncmp(path, "/nonexistent/", 13) == 0);
	errno = ENOENT;
	return -1;
}

/* Images, as csi opens them to look. */
int __wrap_openat64(int dirfd, const char *path, int flags, ...)
{
	must(dirfd < 0 && path[0] != '/' && (flags & O_CLOEXEC) != 0);
	if (flags == (O_RDONLY | O_NOFOLLOW | O_CLOEXEC))
		return open_answer();
	errno = EBADF;
	return -1;
}

/* The pool's file system: roomy, nearly full or sick. */
int __wrap_fstatfs64(int fd, struct statfs *ret)
{
	uint8_t b = csi_world_answer();
	must(fd < 0);
	if (b >= 0xf0) {
		errno = EIO;
		return -1;
	}
	*ret = (struct statfs){.f_bsize = 4096, .f_blocks = 25 << 20};
	ret->f_bavail = ret->f_bfree = ret->f_blocks >> (b >= 0xc0 ? 8 : 0);
	return 0;
}

int __wrap_blkdev_look(uint32_t dev_major, uint32_t dev_minor, struct blkdev *ret)
{
	uint8_t b = csi_world_answer();
	must(dev_major == CSI_WORLD_MAJOR && dev_minor >= CSI_WORLD_MINOR);
	if (b >= 0xe0)
		return b % 2 == 0 ? -ENOENT : -EIO;
	*ret = (struct blkdev){.size_bytes = b & 0x40 ? 0 : 64 << 20, .seq = 1 + b % 2};
	return 0;
}

int __wrap_blkdev_find_holder(const char *path, struct blkdev_holder *ret)
{
	must(strncmp(path, "/dev/loop", 9) == 0);
	if (csi_world_answer() < 0x80)
		return -ENOENT;
	*ret = (struct blkdev_holder){.pid = 1, .name = "tool"};
	return 0;
}

int __wrap_mnt_scan(void (*each)(void *arg, const struct mnt_entry *entry), void *arg)
{
	static const char *const paths[] = {
		"/stage/used", "/stage/frozen", "/pods/target", "/stage/new"};
	uint8_t b = csi_world_answer();
	if (b >= 0xf8)
		return -EIO;
	for (unsigned n = b % 8; n > 0; n--) {
		uint8_t which = csi_world_answer();
		const char *path = paths[which % COUNT(paths)];
		each(arg, &(struct mnt_entry){.dev_major = CSI_WORLD_MAJOR,
				  .dev_minor = csi_world_minor_at(path) + (which & 0x20 ? 1 : 0),
				  .bound_node = (which & 0x40) != 0,
				  .read_only = (which & 0x80) != 0,
				  .path = path});
	}
	return 0;
}

char *__wrap_mnt_scan_name(const char *path)
{
	return csi_world_answer() >= 0xf8 ? NULL : strdup(path);
}

/* Children end with a status, or cannot be started. */
int __wrap_op_proc(struct op *op, struct proc *proc)
{
	static const int ends[] = {0, 1, 4, 8, -ENOENT, -ETIMEDOUT};
	must(proc->argv[0] != NULL && proc->timeout_ms > 0);
	int r = op_wait(op);
	if (r == OP_PENDING)
		op_complete(op, ends[csi_world_answer() / 0x20 % COUNT(ends)]);
	return r;
}

int __wrap_boot_mark_set(int fd, const char *name, const char *text)
{
	must(fd >= 0 && name[0] != '\0' && text != NULL);
	return csi_world_answer() >= 0xc0 ? -ENOSPC : 0;
}

bool __wrap_boot_mark_get(int fd, const char *name, struct boot_mark *ret)
{
	must(fd >= 0 && name[0] != '\0');
	if (ret != NULL)
		*ret = (struct boot_mark){{0}};
	return csi_world_answer() >= 0x80;
}

int __wrap_boot_mark_remove(int fd, const char *name)
{
	must(fd >= 0 && name[0] != '\0');
	return csi_world_answer() >= 0xc0 ? -EIO : 0;
}

/* Mostly what is expected. */
int __wrap_fsimg_probe_expected(int fd, enum fsimg_type type, struct fsimg_probe *ret)
{
	uint8_t b = csi_world_answer();
	must(fd >= 0 && type < FSIMG_TYPES);
	if (b >= 0xf8)
		return -EIO;
	*ret = (struct fsimg_probe){.type = (b & 0xc0) == 0xc0 ? b % FSIMG_TYPES : type,
		.ambivalent = b >= 0xf0,
		.fs_bytes = b & 0x20 ? 512 << 20 : 16 << 20,
		.uuid = {b & 0x10},
		.errors = (b & 0x08) != 0,
		.dirty = (b & 0x04) != 0,
		.needs_more = (b & 0x02) != 0};
	snprintf(ret->found, sizeof(ret->found), "%s", fsimg_name(ret->type));
	return 0;
}

/* Of a tenant's bytes anything is expected. */
int __wrap_fsimg_probe_fd(int fd, struct fsimg_probe *ret)
{
	return __wrap_fsimg_probe_expected(fd, csi_world_answer() % FSIMG_TYPES, ret);
}
