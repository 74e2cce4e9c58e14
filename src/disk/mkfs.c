/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mkfs.xfs as a child, for commands only. What it says goes into an unnamed file, and its first
 * line into the message if it fails.
 *
 * Sectors of 4096 bytes suit every disk. Inodes of 1 KiB hold the record and the map of a volume
 * without another block. Nothing is discarded: that is not what zeroes a disk.
 */
#include "disk/mkfs.h"

#include "base/fd.h"
#include "reactor/spawn.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { DEADLINE_MS = 10 * 60 * 1000, SAID_BYTES = 200 };

/* Kills it at the deadline. Its wait status, or -errno. */
static int wait_for(pid_t pid, int pidfd)
{
	struct pollfd ends = {.fd = pidfd, .events = POLLIN};
	int status, r;
	do
		r = poll(&ends, 1, DEADLINE_MS);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		kill(pid, SIGKILL);
	pid_t got;
	do
		got = waitpid(pid, &status, 0);
	while (got < 0 && errno == EINTR);
	if (r == 0)
		return -ETIMEDOUT;
	return got < 0 ? -errno : status;
}

static void first_line(int fd, char *said)
{
	ssize_t n = pread(fd, said, SAID_BYTES - 1, 0);
	said[n > 0 ? n : 0] = '\0';
	said[strcspn(said, "\n")] = '\0';
}

int disk_mkfs(const char *device, const char *uuid, struct err *err)
{
	char uuid_option[64], said[SAID_BYTES];
	snprintf(uuid_option, sizeof(uuid_option), "uuid=%.36s", uuid);
	const char *const argv[] = {"mkfs.xfs", "-q", "-f", "-K", "-s", "size=4096", "-i",
		"size=1024,maxpct=75", "-m", uuid_option, "-L", "ringvol", device, NULL};
	_cleanup_fd_ int out = memfd_create("mkfs", MFD_CLOEXEC);
	if (out < 0)
		return err_sys(err, -errno, "starting mkfs.xfs");
	const struct spawn child = {
		.program = "mkfs.xfs",
		.argv = argv,
		.env = environ,
		.fds = {SPAWN_NULL, out, out},
		.fd_count = 3,
	};
	pid_t pid;
	int pidfd, r = spawn(&child, &pid, &pidfd);
	if (r == -ENOENT)
		return err_set(err, ERR_PRECONDITION,
			"there is no mkfs.xfs here, which makes the file system for records: install "
			"xfsprogs");
	if (r < 0)
		return err_sys(err, r, "starting mkfs.xfs");
	r = wait_for(pid, pidfd);
	close(pidfd);
	if (r < 0)
		return err_sys(err, r, "mkfs.xfs on %s", device);
	first_line(out, said);
	return r == 0 ? 0 : err_set(err, ERR_INTERNAL, "mkfs.xfs on %s failed: %s", device, said);
}
