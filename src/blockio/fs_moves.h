/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a file system moves data about by itself just now. Synchronous, for work jobs. */
#ifndef RINGVOL_BLOCKIO_FS_MOVES_H
#define RINGVOL_BLOCKIO_FS_MOVES_H

#include <stdbool.h>

enum { FS_MOVES_WHAT_BYTES = 32 };

/* btrfs moves whole regions while it is balanced, shrunk, or loses a device. True: it does, and
 * ret_what says how ("balance"). False also where nobody can tell. fd: a file of it. sysfs:
 * "/sys/fs/btrfs", but in tests. */
bool fs_moves(int fd, const char *sysfs, char ret_what[FS_MOVES_WHAT_BYTES]);
/* The same of what `exclusive_operation` in sysfs says. */
bool fs_moves_while(const char *operation);

#endif
