/* SPDX-License-Identifier: Apache-2.0 */
/* Making the file system of a pool's records. */
#ifndef RINGVOL_DISK_MKFS_H
#define RINGVOL_DISK_MKFS_H

#include "base/err.h"

/* Starts mkfs.xfs on the device and waits for its end. Blocking. ERR_PRECONDITION: there is no such
 * program; ERR_TIMEOUT; ERR_INTERNAL with what it said. */
int disk_mkfs(const char *device, const char *uuid, struct err *err);

#endif
