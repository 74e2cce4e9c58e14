/* SPDX-License-Identifier: Apache-2.0 */
/* This program started again, as a process that does one thing for the one that starts it. */
#ifndef RINGVOL_REACTOR_SELF_H
#define RINGVOL_REACTOR_SELF_H

#include <sys/types.h>

enum { SELF_CHILD_FD = 3 }; /* the process's end of the socket pair */

/* "/proc/self/exe" unless a test sets it. */
extern const char *self_exe;

/* Runs the command, followed by the descriptor's number, with nothing open but SELF_CHILD_FD and
 * /dev/null as input and output; messages are what it inherits. ret_fd: our end of a SOCK_SEQPACKET
 * pair. Blocks for a millisecond. 0 or -errno. */
int self_spawn(const char *command, pid_t *ret_pid, int *ret_pidfd, int *ret_fd);

#endif
