/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Child processes: a program and its arguments (no shell), and a deadline. The child has the files
 * it is given and no other descriptors of ours; its environment is PATH and LC_ALL=C. The first
 * PROC_OUTPUT_BYTES of its output and errors are kept, the rest is read and dropped. At the
 * deadline its process group is killed. SIGCHLD must not be ignored (main() sees to it), or the
 * kernel would reap the children.
 *
 * A child on a disk that hangs cannot be killed. So a lane has its own children, LANE_CHILDREN_MAX
 * at once. Others of the lane wait for one of them to end; their deadlines count from their start.
 */
#ifndef RINGVOL_REACTOR_PROC_H
#define RINGVOL_REACTOR_PROC_H

#include "reactor/ring.h"

#include <sys/types.h>

enum {
	PROC_OUTPUT_BYTES = 2048,
	PROC_ARGS_MAX = 64,
	PROC_FILE = 3, /* the number a child has its first file under */
	PROC_FILES_MAX = 3,
};

/* The name a child has for its first file. It opens the same inode anew, even one without a name.
 * It is in the child's own /proc: a look into ours would need CAP_SYS_PTRACE, as we cannot be
 * dumped. */
#define PROC_FILE_PATH "/proc/self/fd/3"

/* Embed it (zeroed); lives until on_end. */
struct proc {
	/* set by the caller */
	const char *argv[PROC_ARGS_MAX]; /* argv[0] is looked up in PATH; ends with NULL */
	uint64_t timeout_ms;
	struct lane *lane; /* NULL: the shared lane */
	/* Descriptors for the child: files[i] becomes its PROC_FILE + i, whatever its number and
	 * its close-on-exec flag are here. They stay the caller's, and open until on_end. The child
	 * gets the same open file (position, O_DIRECT, flock). It lasts as long as anybody has it:
	 * at on_end the child is gone and its group killed, but a stray that left the group may
	 * have it still. */
	int files[PROC_FILES_MAX];
	unsigned file_count;
	/* Of its own (RLIMIT_DATA), at most; 0: no limit. What it reads may have been made to cost
	 * memory. */
	uint64_t memory_bytes;
	/* res: the exit status 0..255; -ETIMEDOUT (killed at the deadline), -EINTR (died of another
	 * signal, see signal), -ENOENT (no such program), -ECHILD (it has ended, and somebody else
	 * has taken its status), another -errno. */
	void (*on_end)(struct proc *proc, int res);
	void *owner; /* the caller's own */
	/* results */
	int signal;
	char output[PROC_OUTPUT_BYTES]; /* NUL-terminated */
	size_t output_len;
	/* private */
	struct ring *ring;
	struct list link;
	pid_t pid;
	int pidfd, out_fd;
	bool timed_out, exited, drained;
	int status;
	struct ring_req exit_req, read_req;
	struct ring_timer timer;
	char drain[512];
};

/* 0, or -errno when nothing was started (on_end is not called). */
int proc_start(struct ring *ring, struct proc *proc);

#endif
