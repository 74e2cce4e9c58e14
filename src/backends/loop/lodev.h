/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loop devices: attach, detach, resize, find ours. Synchronous, for work jobs.
 *
 * An image is attached on an fd that has flock(LOCK_EX). The kernel keeps that open file as long as
 * the device is bound. So the lock says "attached somewhere", whatever restarts, namespaces and
 * other drivers do. Device and inode of the image (lo_device, lo_inode) alone identify a device.
 * Its tag in lo_file_name ("ringvol:<pool uuid, 8>:<random, 8>") is a hint: any process that has
 * the device open, also one in a pod with a raw block volume, can rewrite it.
 */
#ifndef RINGVOL_BACKENDS_LODEV_H
#define RINGVOL_BACKENDS_LODEV_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { LODEV_TAG_BYTES = 64, LODEV_MAJOR = 7 };

struct lodev_spec {
	int dirfd; /* the image is opened below it, without following links */
	const char *image;
	char tag[LODEV_TAG_BYTES];
	uint32_t block_size; /* logical, 512 or 4096: what the image was made for */
	bool direct_io;      /* ask for it; lost silently on some kernels, see lodev.direct_io */
	bool read_only;
	bool no_discard; /* thick volumes: discards must not give space back */
};

struct lodev {
	uint32_t minor;     /* /dev/loop<minor> */
	uint64_t image_dev; /* st_dev (as in stat) and inode of the image */
	uint64_t image_ino;
	uint64_t size_bytes;
	char tag[LODEV_TAG_BYTES];
	bool direct_io, read_only;
	bool partial;    /* it shows a part of the image: somebody set an offset or a limit */
	bool going_away; /* autoclear is set: somebody else's mount or open keeps it alive */
	bool found;      /* of lodev_attach(): it was attached before */
};

/* 0 and the device. An image may be attached already: to a device that has its lock, shows all of
 * it and is not going away. That device is returned, with its tag set right and no_discard applied.
 * Errors in *err: ERR_PRECONDITION (another has the lock: names the device if one is found;
 * remedy), ERR_NO_ROOM (no free device), ERR_NOT_FOUND (no image), ERR_INTERNAL. */
int lodev_attach(const struct lodev_spec *spec, struct lodev *ret, struct err *err);
/* Clears the device if it is still bound to that file. Otherwise it is somebody else's by now, and
 * left alone (0). *ret_still_bound: a mount or open file elsewhere keeps it. */
int lodev_detach(const struct lodev *dev, bool *ret_still_bound, struct err *err);
/* After the image grew: LOOP_SET_CAPACITY. */
int lodev_resize(const struct lodev *dev, uint64_t *ret_size_bytes, struct err *err);
/* Refreshes what the kernel says of minor. -ENXIO: not bound. -ENOENT: no such device. */
int lodev_status(uint32_t minor, struct lodev *ret);
/* Every bound loop device, anybody's, whatever its tag. */
int lodev_scan(void (*each)(void *arg, const struct lodev *dev), void *arg);
/* Sets or clears the device's read-only flag (BLKROSET). */
int lodev_set_read_only(uint32_t minor, bool read_only);

#endif
