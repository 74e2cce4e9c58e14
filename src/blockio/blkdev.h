/* SPDX-License-Identifier: Apache-2.0 */
/* A block device of any kind, from outside. */
#ifndef RINGVOL_BLOCKIO_BLKDEV_H
#define RINGVOL_BLOCKIO_BLKDEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct blkdev {
	uint64_t size_bytes; /* 0: nothing is bound to it */
	/* diskseq: another one for whatever is bound to it next; 0 before Linux 5.15 */
	uint64_t seq;
};

/* What sysfs says; waits for no device (two small files, 10 us). 0; -ENOENT: no such device. */
int blkdev_look(uint32_t dev_major, uint32_t dev_minor, struct blkdev *ret);

/* What sysfs has of the device with that number: an attribute, "dm/uuid" for one, its length; the
 * name, "dm-3". -ENOENT: no such device or attribute; another -errno. Waits for no device. */
int blkdev_read(
	uint32_t dev_major, uint32_t dev_minor, const char *attribute, char *ret, size_t cap);
int blkdev_name(uint32_t dev_major, uint32_t dev_minor, char *ret, size_t cap);

/* Blocking, for work jobs: BLKROSET. 0 or -errno. */
int blkdev_set_read_only(const char *path, bool read_only);

/* A process that has a device open, for the message that asks to wait for it. */
struct blkdev_holder {
	pid_t pid;
	char name[16]; /* what the kernel calls it: 15 bytes of the program's name */
};

/* Looks for a process other than this one that has `path` open by that name. Only what is seen from
 * here counts: no process of another pid namespace; without CAP_SYS_PTRACE none of another user or
 * with more capabilities than this one. A mount is no process. Reads all of /proc (some
 * milliseconds, for work jobs). 0, -ENOENT or -errno. */
int blkdev_find_holder(const char *path, struct blkdev_holder *ret);

#endif
