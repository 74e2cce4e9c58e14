/* SPDX-License-Identifier: Apache-2.0 */
/* What a process does with itself. */
#include "base/process.h"
#include "reactor/spawn.h"

#include <criterion/criterion.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <nghttp2/nghttp2.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* How much of the mappings of this library is resident. */
static unsigned long resident_kib(const char *library)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512];
	bool ours = false;
	unsigned long sum = 0, kib;
	cr_assert_not_null(f);
	while (fgets(line, sizeof(line), f) != NULL) {
		if (strchr(line, '-') != NULL && strchr(line, '-') < strchr(line, ' '))
			ours = strstr(line, library) != NULL;
		else if (ours && sscanf(line, "Rss: %lu kB", &kib) == 1)
			sum += kib;
	}
	fclose(f);
	return sum;
}

static struct sched_attr attr_of(pid_t pid)
{
	struct sched_attr attr = {0};
	cr_assert_eq(syscall(SYS_sched_getattr, pid, &attr, sizeof(attr), 0), 0);
	return attr;
}

static struct sched_attr attr_now(void)
{
	return attr_of(0);
}

/* And nice stays as it was. */
Test(process, slices_are_short_and_long_again)
{
	cr_assert_eq(setpriority(PRIO_PROCESS, 0, 3), 0);
	uint64_t usual = attr_now().sched_runtime;
	process_be_prompt(true);
	uint64_t prompt = attr_now().sched_runtime;
	cr_expect_eq(attr_now().sched_nice, 3);
	process_be_prompt(false);
	cr_expect_eq(attr_now().sched_runtime, usual);
	cr_expect_eq(getpriority(PRIO_PROCESS, 0), 3);
	if (usual == 0)
		cr_skip_test("Linux 6.12 has slices of one's own");
	cr_expect_eq(prompt, PROCESS_SLICE_NS);
}

/* It works, and does not answer. */
Test(process, what_is_spawned_has_the_kernels_slices)
{
	const char *const argv[] = {"sleep", "1000", NULL};
	char *env[] = {NULL};
	const struct spawn how = {.program = argv[0], .argv = argv, .env = env};
	uint64_t usual = attr_now().sched_runtime;
	pid_t pid;
	int pidfd;
	process_be_prompt(true);
	cr_assert_eq(spawn(&how, &pid, &pidfd), 0);
	cr_expect_eq(attr_of(pid).sched_runtime, usual);
	cr_assert_eq(kill(pid, SIGKILL), 0);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
	close(pidfd);
}

Test(process, another_policy_stays)
{
	const struct sched_param none = {0};
	cr_assert_eq(syscall(SYS_sched_setscheduler, 0, SCHED_BATCH, &none), 0);
	uint64_t usual = attr_now().sched_runtime;
	process_be_prompt(true);
	cr_expect_eq(attr_now().sched_policy, (unsigned)SCHED_BATCH);
	cr_expect_eq(attr_now().sched_runtime, usual);
}

Test(process, text_goes_and_comes_back)
{
	char was[128];
	snprintf(was, sizeof(was), "%s", nghttp2_strerror(NGHTTP2_ERR_NOMEM));
	unsigned long before = resident_kib("libnghttp2");
	process_drop_text("libnghttp2");
	unsigned long after = resident_kib("libnghttp2");
	cr_expect_lt(after, before, "%lu KiB became %lu", before, after);
	cr_expect_str_eq(nghttp2_strerror(NGHTTP2_ERR_NOMEM), was);
	process_drop_text("libc.so");
	process_drop_text("no-such-library");
	cr_expect_gt(resident_kib("libc.so"), 0);
}
