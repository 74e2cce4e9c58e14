/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes of raw pools: an image is a map of pieces of the pool's disks, and its device is one of
 * the device mapper's over them (disk/mapped.h). The pool of a device is found by its tag among the
 * disks that are published (disk/disk.h).
 */
#ifndef RINGVOL_BACKENDS_DISK_H
#define RINGVOL_BACKENDS_DISK_H

#include "backends/backend.h"

/* Makes BACKEND_DISK known to backend_get(). Blocking, before the loop starts: loads the device
 * mapper's module where kmod can. */
void backend_disk_open(void);
void backend_disk_close(void);

/* What the vtable's scan and detach do, for tools: blocking, without backend_disk_open(). */
int backend_disk_scan(
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err);
int backend_disk_detach(struct backend_dev *dev, struct err *err);

#endif
