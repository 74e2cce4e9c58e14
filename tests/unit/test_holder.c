/* SPDX-License-Identifier: Apache-2.0 */
/* holder.c: another process that has a file open is found and named, until it has ended. */
#include "blockio/holder.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

Test(holder, another_process)
{
	char path[] = "/tmp/test-holder-XXXXXX";
	int own = mkostemp(path, O_CLOEXEC);
	cr_assert(own >= 0);
	struct holder holder = {0};
	cr_assert_eq(holder_find(path, &holder), -ENOENT, "this process does not count");

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
	cr_expect_eq(holder_find(path, &holder), 0);
	cr_expect_eq(holder.pid, child);
	cr_expect_str_eq(holder.name, "a rather long n");

	kill(child, SIGKILL);
	cr_assert_eq(waitpid(child, NULL, 0), child);
	cr_expect_eq(holder_find(path, &holder), -ENOENT);
	unlink(path);
	close(own);
}
