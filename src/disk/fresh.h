/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a device holds anything, before it becomes a disk of a pool. */
#ifndef RINGVOL_DISK_FRESH_H
#define RINGVOL_DISK_FRESH_H

#include "disk/find.h"

struct disk_fresh {
	bool ours;               /* found.header is there, of some pool */
	struct disk_found found; /* path: absolute */
	int fd;                  /* exclusive, for writing, not direct; -1 if ours and sound */
};

/*
 * Opens the device. 0 if it holds nothing but a header of ours: then what no signature tells of
 * was written by us. A header that is sound is for the caller to judge; with one that says
 * DISK_MAKING, or none, the device is held exclusively. ERR_INVALID: no block device;
 * ERR_PRECONDITION: it is too small, or what was found on it or has it.
 */
int disk_fresh_open(const char *device, struct disk_fresh *ret, struct err *err);

/* Whether libblkid knows anything on it: ERR_PRECONDITION. */
int disk_fresh_check(int fd, const char *device, struct err *err);

/* Writes the header, then zeros over the rest of the first and the last unit. 0 or -errno. */
int disk_fresh_mark(int fd, const struct disk_header *header);

#endif
