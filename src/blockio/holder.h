/* SPDX-License-Identifier: Apache-2.0 */
/* Which process has a block device open, for the message that asks to wait for it. */
#ifndef RINGVOL_BLOCKIO_HOLDER_H
#define RINGVOL_BLOCKIO_HOLDER_H

#include <sys/types.h>

struct holder {
	pid_t pid;
	char name[16]; /* what the kernel calls it: 15 bytes of the program's name */
};

/* Looks for a process other than this one that has `path` open, by that name, and is seen from
 * here: not one of another pid namespace, without CAP_SYS_PTRACE none of another user or with more
 * capabilities than this one, and a mount is no process. Reads all of /proc (some milliseconds, a
 * work job). 0, -ENOENT or -errno. */
int holder_find(const char *path, struct holder *ret);

#endif
