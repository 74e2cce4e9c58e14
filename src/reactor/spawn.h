/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts processes: the leader of a group of its own, no signal blocked or ignored, and of this
 * process's descriptors those it is given and no others.
 */
#ifndef RINGVOL_REACTOR_SPAWN_H
#define RINGVOL_REACTOR_SPAWN_H

#include <stdint.h>
#include <sys/types.h>

enum {
	SPAWN_FDS_MAX = 6,
	/* No descriptors, in the place of one. */
	SPAWN_NULL = -1000, /* /dev/null, for reading and writing */
	SPAWN_SAME = -1001, /* what the number is here */
	SPAWN_SELF_FD = 3,
};

struct spawn {
	const char *program; /* a path, or a name that is looked up in PATH */
	const char *const *argv;
	char *const *env;
	int fds[SPAWN_FDS_MAX]; /* the child's 0, 1, 2 and so on */
	unsigned fd_count;
	/* Of its own (RLIMIT_DATA), at most, from its first instruction on; 0: no limit. */
	uint64_t memory_bytes;
};

/* Blocks for about a millisecond. 0, or -errno when no process is left: -ENOENT: there is no such
 * program. */
int spawn(const struct spawn *spawn, pid_t *ret_pid, int *ret_pidfd);

/* What spawn_self() starts: "/proc/self/exe" unless a test sets it. */
extern const char *spawn_self_exe;

/* Starts this program again, as a process that does one thing for this one: the command, followed
 * by the number SPAWN_SELF_FD. That is its end of a SOCK_SEQPACKET pair; ret_fd is ours. Its input
 * and output are /dev/null, and messages go where ours go. 0 or -errno. */
int spawn_self(const char *command, pid_t *ret_pid, int *ret_pidfd, int *ret_fd);

#endif
