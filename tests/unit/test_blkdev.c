/* SPDX-License-Identifier: Apache-2.0 */
/* blkdev.c: another process that has a file open is found and named, until it has ended, and if it
 * may be looked at. */
#include "blockio/blkdev.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A process that has the file open, until it is killed. */
static pid_t start_holder(const char *path, int own)
{
	int ready[2];
	cr_assert_eq(pipe2(ready, O_CLOEXEC), 0);
	pid_t child = fork();
	if (child == 0) {
		close(own);
		prctl(PR_SET_NAME, "a rather long name");
		bool ok = open(path, O_RDONLY | O_CLOEXEC) >= 0 && write(ready[1], "", 1) == 1;
		while (ok)
			pause();
		_exit(1);
	}
	cr_assert(child > 0);
	char byte;
	cr_assert_eq(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return child;
}

static void end_holder(pid_t child)
{
	kill(child, SIGKILL);
	cr_assert_eq(waitpid(child, NULL, 0), child);
}

Test(holder, another_process)
{
	char path[] = "/tmp/test-holder-XXXXXX";
	int own = mkostemp(path, O_CLOEXEC);
	cr_assert(own >= 0);
	struct blkdev_holder holder = {0};
	cr_assert_eq(blkdev_find_holder(path, &holder), -ENOENT, "this process does not count");

	pid_t child = start_holder(path, own);
	cr_expect_eq(blkdev_find_holder(path, &holder), 0);
	cr_expect_eq(holder.pid, child);
	cr_expect_str_eq(holder.name, "a rather long n");

	end_holder(child);
	cr_expect_eq(blkdev_find_holder(path, &holder), -ENOENT);
	unlink(path);
	close(own);
}

static bool give_up_ptrace(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};
	if (syscall(SYS_capget, &header, data) != 0 ||
		(data[CAP_TO_INDEX(CAP_SYS_PTRACE)].permitted & CAP_TO_MASK(CAP_SYS_PTRACE)) == 0)
		return false;
	data[CAP_TO_INDEX(CAP_SYS_PTRACE)].permitted &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
	data[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
	return syscall(SYS_capset, &header, data) == 0;
}

/* As in ringvol.service: who can do more than this process is not seen, a tool of an earlier run
 * is. */
Test(holder, without_cap_sys_ptrace)
{
	char path[] = "/tmp/test-holder-XXXXXX";
	int own = mkostemp(path, O_CLOEXEC);
	cr_assert(own >= 0);
	struct blkdev_holder holder = {0};
	pid_t mightier = start_holder(path, own);
	bool gave_up = give_up_ptrace();
	if (gave_up) {
		cr_expect_eq(blkdev_find_holder(path, &holder), -ENOENT);
		pid_t equal = start_holder(path, own);
		cr_expect_eq(blkdev_find_holder(path, &holder), 0);
		cr_expect_eq(holder.pid, equal);
		end_holder(equal);
	}
	end_holder(mightier);
	unlink(path);
	close(own);
	if (!gave_up)
		cr_skip_test("has no CAP_SYS_PTRACE to give up");
}

Test(name, of_no_device)
{
	char name[32] = "as it was";
	cr_assert_eq(blkdev_name(4095, 1048575, name, sizeof(name)), -ENOENT);
	cr_assert_str_eq(name, "as it was");
}
