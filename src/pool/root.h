/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's root: the directory itself, or the records on the disks that it names (disk/disk.h).
 * Blocking: for jobs on a thread.
 */
#ifndef RINGVOL_POOL_ROOT_H
#define RINGVOL_POOL_ROOT_H

#include "base/err.h"
#include "disk/header.h"
#include "pool/layout.h"

#include <stdbool.h>

struct pool_root {
	int fd;            /* of the directory in which ringvol.pool lies; the caller closes it */
	struct disk *disk; /* the caller's reference; NULL: a directory pool */
};

/* node: who serves the pool from now on, as its disks say. 0; -ENOENT, -ENOTDIR: nothing there, or
 * a disk that may come (ERR_UNAVAILABLE, ERR_PRECONDITION in *err); another -errno: damaged, or it
 * cannot be opened. *err is set for raw pools alone. */
typedef int pool_root_fn(
	const char *path, const char *node, struct pool_root *ret, struct err *err);
pool_root_fn pool_root_open;

enum { POOL_ROOT_WHY_BYTES = 256 };

/* Whether what is open is still what is there. */
struct pool_root_look {
	bool gone;
	char why[POOL_ROOT_WHY_BYTES]; /* of one that is gone: what happened, and the remedy */
	bool read_only;
};
/* disk: of a raw pool, which node serves; NULL: a directory pool. 0, or -errno: calls on it fail.
 */
int pool_root_look(const char *path, const struct disk *disk, const char *node,
	const int fds[POOL_FDS], struct pool_root_look *ret);

#endif
