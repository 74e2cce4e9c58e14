/* SPDX-License-Identifier: Apache-2.0 */
/* The file ringvol.disk, by which a directory is a raw pool's. */
#ifndef RINGVOL_DISK_PLACE_H
#define RINGVOL_DISK_PLACE_H

#include "disk/disk.h"

#include <stddef.h>

/*
 *   ringvol-disk 1
 *   pool=<uuid>
 *   disk=<uuid>          of the first disk; only who reads this file knows it, so that nothing
 *                        that a tenant writes into a volume is taken for the disk
 *   device=/dev/sdb      where it was last: a hint
 */
struct disk_place {
	char pool[DISK_UUID_BYTES], disk[DISK_UUID_BYTES];
	char device[DISK_PATH_BYTES];
};

/* The file's text. 0 or -EBADMSG: damaged, or of a later version. */
int disk_place_parse(const char *text, size_t len, struct disk_place *ret);
/* 0; -ENOENT: no raw pool's; -EBADMSG: damaged or of a later version; -errno. */
int disk_place_read(const char *path, struct disk_place *ret);
/* Replaces it, durable. */
int disk_place_write(const char *path, const struct disk_place *place);
/* Makes the directory, unless it is there, and looks at what is in it: 0 and *ret->pool "" if that
 * is nothing; 0 and what its file says; ERR_PRECONDITION: it holds anything else. */
int disk_place_prepare(const char *path, struct disk_place *ret, struct err *err);

#endif
