/* SPDX-License-Identifier: Apache-2.0 */
/* Files by descriptor: what the kernel tells without a lookup, and what it does not. */
#include "base/fd.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

static char dir[] = "/tmp/ringvol-fd.XXXXXX";
static int dirfd_ = -1;

static void setup(void)
{
	cr_assert_not_null(mkdtemp(dir));
	dirfd_ = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(dirfd_, 0);
}

static void teardown(void)
{
	unlinkat(dirfd_, "file", 0);
	unlinkat(dirfd_, "link", 0);
	close(dirfd_);
	rmdir(dir);
}

TestSuite(fd, .init = setup, .fini = teardown);

Test(fd, a_directory_is_made_once)
{
	struct stat st;
	char path[64], below[80];
	snprintf(path, sizeof(path), "%s/link", dir);
	snprintf(below, sizeof(below), "%s/none/below", dir);
	cr_assert_eq(fd_make_dir(path, 0700), 0);
	cr_assert_eq(fd_make_dir(path, 0700), 0);
	cr_assert_eq(stat(path, &st), 0);
	cr_expect(S_ISDIR(st.st_mode));
	cr_expect_eq(fd_make_dir(below, 0700), -ENOENT);
	rmdir(path);
}

Test(fd, what_is_open_is_known_without_a_lookup)
{
	struct stat st;
	_cleanup_fd_ int fd = openat(dirfd_, "file", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, "ten bytes.", 10), 10);
	cr_assert_eq(fd_stat_cached(dirfd_, "file", &st), 0);
	cr_assert(S_ISREG(st.st_mode) && st.st_size == 10);
	cr_assert_eq(fd_stat_cached(-1, "file", &st), -EBADF);
}

/* What a name leads to elsewhere is not the file's. */
Test(fd, a_link_is_itself_and_nothing_lies_above)
{
	struct stat st;
	cr_assert_eq(symlinkat("/etc/passwd", dirfd_, "link"), 0);
	cr_assert_eq(fd_stat_cached(dirfd_, "link", &st), 0);
	cr_assert(S_ISLNK(st.st_mode));
	cr_assert_lt(fd_stat_cached(dirfd_, "link/x", &st), 0);
	cr_assert_lt(fd_stat_cached(dirfd_, "../etc", &st), 0);
	cr_assert_lt(fd_stat_cached(dirfd_, "/etc", &st), 0);
}

/* A process that nobody has looked at has no entry in memory yet. */
Test(fd, what_needs_a_lookup_is_left_alone)
{
	struct stat st;
	char name[16];
	_cleanup_fd_ int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(proc, 0);
	pid_t child = fork();
	cr_assert_geq(child, 0);
	if (child == 0) {
		pause();
		_exit(0);
	}
	snprintf(name, sizeof(name), "%d", child);
	cr_expect_eq(fd_stat_cached(proc, name, &st), -EAGAIN);
	cr_expect_eq(fstatat(proc, name, &st, 0), 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}
