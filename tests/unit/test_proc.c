/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes: each way to end, and that nothing is left behind. Each test runs on the kernel's
 * ring and, where it makes sense, on the simulated one. */
#include "reactor/lane.h"
#include "reactor/proc.h"
#include "reactor/ring_uring.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct child {
	struct proc proc;
	int ends, res;
};

static struct ring *ring;
static struct ring_sim sim;

static int open_fds(void)
{
	int count = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d) != NULL)
		count++;
	closedir(d);
	return count;
}

static void on_end(struct proc *proc, int res)
{
	struct child *c = container_of(proc, struct child, proc);
	c->ends++;
	c->res = res;
}

static int fds_before;

static void open_ring(bool simulated)
{
	sim = (struct ring_sim){.seed = 5, .eintr_every = 3};
	cr_assert_eq(ring_sim_open(&ring, simulated ? &sim : NULL), 0);
	fds_before = open_fds();
}

/* No zombie, no descriptor. */
static void close_ring(void)
{
	cr_assert_eq(open_fds(), fds_before);
	cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1);
	cr_assert_eq(errno, ECHILD);
	ring_close(ring);
}

/* Starts `sh -c script` and turns until it has ended. Its files, from PROC_FILE on: a and b, or
 * fewer (-1). */
static int run_with_files(struct child *c, const char *script, uint64_t timeout_ms, int a, int b)
{
	*c = (struct child){.proc = {.argv = {"sh", "-c", script, NULL},
				    .timeout_ms = timeout_ms,
				    .files = {a, b},
				    .file_count = (a >= 0) + (b >= 0),
				    .on_end = on_end}};
	memset(c->proc.output, '#', sizeof(c->proc.output)); /* as of the child before */
	cr_assert_eq(proc_start(ring, &c->proc), 0);
	cr_assert_eq(c->ends, 0);
	while (c->ends == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
	cr_assert_eq(c->ends, 1);
	cr_assert_not(ring_timer_armed(&c->proc.timer), "its memory may go");
	return c->res;
}

static int run_shell(struct child *c, const char *script, uint64_t timeout_ms)
{
	return run_with_files(c, script, timeout_ms, -1, -1);
}

static struct child c;

static struct child child_of(const char *script)
{
	return (struct child){
		.proc = {
			.argv = {"sh", "-c", script, NULL}, .timeout_ms = 10000, .on_end = on_end}};
}

static void all_endings(void)
{
	cr_assert_eq(run_shell(&c, "exit 0", 10000), 0);
	cr_assert_str_eq(c.proc.output, "");
	cr_assert_eq(run_shell(&c, "exit 42", 10000), 42);
	cr_assert_eq(run_shell(&c, "echo out; echo err >&2; exit 255", 10000), 255);
	cr_assert_str_eq(c.proc.output, "out\nerr\n");
	cr_assert_eq(c.proc.output_len, 8);
	cr_assert_eq(run_shell(&c, "kill -SEGV $$", 10000), -EINTR);
	cr_assert_eq(c.proc.signal, SIGSEGV);
	cr_assert_eq(run_shell(&c, "echo begun; sleep 1000", 200), -ETIMEDOUT);
	cr_assert_str_eq(c.proc.output, "begun\n");
	/* The whole group goes, and what survives a polite signal as well. */
	cr_assert_eq(run_shell(&c, "trap '' TERM; sleep 1000 & sleep 1000", 200), -ETIMEDOUT);
	/* A leftover holding the output does not hold up the end. */
	cr_assert_eq(run_shell(&c, "sleep 1000 & exit 3", 10000), 3);
	cr_assert_not(c.proc.timed_out);
	/* One that fled the group does so only until the deadline. */
	cr_assert_eq(run_shell(&c, "setsid sleep 3 & sleep 0.2; exit 4", 500), 4);
}

/* Runs what has fled the child's group for certain, with its output, and then the rest. */
#define STRAY(what, rest) "exec 4>&1; x=$(setsid sh -c '" what " >&4 & echo'); " rest

/* They last until `a` is closed, or nobody reads what they write. */
static void strays(void)
{
	int ends[2];
	cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
	fds_before += 2;
	/* What it writes is the child's output, while it does. */
	cr_assert_eq(run_shell(&c, STRAY("(for i in 1 2 3; do echo $i; sleep 0.1; done)", "exit 4"),
			     10000),
		4);
	cr_assert_str_eq(c.proc.output, "1\n2\n3\n");
	/* But only until the deadline, whichever comes first, that or the child's end. */
	cr_assert_eq(run_shell(&c, STRAY("yes", "exit 5"), 1000), 5);
	cr_assert_eq(run_with_files(&c, STRAY("(read y <&3)", "exit 6"), 1000, ends[0], -1), 6);
	cr_assert(c.proc.timed_out);
	cr_assert_eq(run_with_files(&c, STRAY("(read y <&3)", "sleep 1000"), 300, ends[0], -1),
		-ETIMEDOUT);
	close(ends[0]);
	close(ends[1]);
	fds_before -= 2;
}

Test(proc, strays_are_heard_until_the_deadline)
{
	open_ring(false);
	strays();
	close_ring();
}

Test(proc, strays_are_heard_until_the_deadline_simulated)
{
	open_ring(true);
	strays();
	close_ring();
}

Test(proc, all_endings)
{
	open_ring(false);
	all_endings();
	close_ring();
}

Test(proc, all_endings_simulated)
{
	open_ring(true);
	all_endings();
	close_ring();
}

/* As a container's filter of system calls does. */
static void refuse_close_range(unsigned errnum)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | errnum),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
	cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* Children start all the same, and no descriptor of ours goes with them. */
static void starts_without_close_range(unsigned errnum)
{
	int inherited = open("/dev/null", O_RDONLY); /* without O_CLOEXEC */
	cr_assert_gt(inherited, 2);
	refuse_close_range(errnum);
	open_ring(false);
	char script[64];
	snprintf(script, sizeof(script), "test ! -e /proc/$$/fd/%d && echo closed", inherited);
	cr_expect_eq(run_shell(&c, script, 10000), 0);
	cr_expect_str_eq(c.proc.output, "closed\n");
	close_ring();
}

Test(proc, a_child_starts_where_close_range_is_refused)
{
	starts_without_close_range(EPERM);
}

Test(proc, a_child_starts_where_close_range_is_unknown)
{
	starts_without_close_range(ENOSYS);
}

Test(proc, a_child_that_would_keep_our_descriptors_does_not_start)
{
	refuse_close_range(ENOMEM);
	open_ring(false);
	c = child_of("exit 0");
	cr_assert_eq(proc_start(ring, &c.proc), -ENOMEM);
	close_ring();
}

/* Reaped by somebody else, as the kernel does it where SIGCHLD is ignored: how it ended is lost. */
Test(proc, a_status_that_is_lost_is_no_success)
{
	static const char *const scripts[] = {"exit 0", "echo some; exit 4", "kill -SEGV $$"};
	open_ring(false);
	for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
		c = child_of(scripts[i]);
		cr_assert_eq(proc_start(ring, &c.proc), 0);
		cr_assert_eq(waitpid(c.proc.pid, NULL, 0), c.proc.pid);
		while (c.ends == 0)
			cr_assert_eq(ring_turn(ring, true), 0);
		cr_expect_eq(c.ends, 1);
		cr_expect_eq(c.res, -ECHILD, "%s: %d", scripts[i], c.res);
		cr_expect_str_eq(c.proc.output, i == 1 ? "some\n" : "");
	}
	close_ring();
}

static void output_cap(void)
{
	cr_assert_eq(run_shell(&c, "yes 0123456789 | head -c 1000000", 10000), 0);
	cr_assert_eq(c.proc.output_len, PROC_OUTPUT_BYTES - 1);
	cr_assert_eq(strlen(c.proc.output), PROC_OUTPUT_BYTES - 1);
	cr_assert_arr_eq(c.proc.output, "0123456789\n0123456789\n", 22);
	cr_assert_eq(run_shell(&c, "yes", 200), -ETIMEDOUT);
}

Test(proc, output_beyond_the_cap_is_read_and_dropped)
{
	open_ring(false);
	output_cap();
	close_ring();
}

Test(proc, output_beyond_the_cap_simulated)
{
	open_ring(true);
	output_cap();
	close_ring();
}

Test(proc, environment_descriptors_and_signals_are_clean)
{
	open_ring(false);
	setenv("RINGVOL_SECRET", "hunter2", 1);
	/* As a careless library would leave it. */
	int leak = dup2(STDERR_FILENO, 77);
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGRTMAX, SIG_IGN);
	fds_before++;
	cr_assert_eq(
		run_shell(&c, "env | grep -v ^PWD= | grep -v ^_= | cut -d= -f1 | sort", 10000), 0);
	cr_assert_eq(strncmp(c.proc.output, "LC_ALL\n", 7), 0);
	cr_assert_null(strstr(c.proc.output, "SECRET"));
	cr_assert_not_null(strstr(c.proc.output, "PATH\n"));
	cr_assert_eq(run_shell(&c, "test -e /proc/self/fd/77", 10000), 1);
	cr_assert_eq(run_shell(&c, "grep ^SigBlk: /proc/self/status", 10000), 0);
	cr_assert_str_eq(c.proc.output, "SigBlk:\t0000000000000000\n");
	cr_assert_eq(run_shell(&c, "grep ^SigIgn: /proc/self/status", 10000), 0);
	cr_assert_str_eq(c.proc.output, "SigIgn:\t0000000000000000\n");
	cr_assert_eq(run_shell(&c, "kill -PIPE $$", 10000), -EINTR, "not ignored");
	cr_assert_eq(run_shell(&c, "cat", 10000), 0, "its input is empty");
	close(leak);
	fds_before--;
	close_ring();
}

/* ---- files ---- */

static int file_of(const char *text)
{
	int fd = memfd_create("file", MFD_CLOEXEC);
	cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	return fd;
}

static void files_handed_over(bool simulated)
{
	int a = file_of("a's text\n"), b = file_of("b's text\n");
	/* As a careless library would leave it. */
	int leak = fcntl(a, F_DUPFD, 77);
	open_ring(simulated);
	/* The shell has what it is given and no more; what it starts has it too. */
	cr_expect_eq(run_shell(&c, "ls /proc/$$/fd; exit 1", 10000), 1);
	cr_expect_str_eq(c.proc.output, "0\n1\n2\n");
	cr_expect_eq(run_with_files(&c, "ls /proc/$$/fd; exit 1", 10000, a, -1), 1);
	cr_expect_str_eq(c.proc.output, "0\n1\n2\n3\n");
	cr_expect_eq(run_with_files(&c, "ls /proc/$$/fd; exit 1", 10000, a, b), 1);
	cr_expect_str_eq(c.proc.output, "0\n1\n2\n3\n4\n");
	cr_expect_eq(run_with_files(&c, "cat " PROC_FILE_PATH " /proc/self/fd/4", 10000, b, a), 0);
	cr_expect_str_eq(c.proc.output, "b's text\na's text\n");
	/* The name opens the file anew, the number is the open file itself. */
	cr_expect_eq(run_with_files(&c, "cat <&3; echo more >&3", 10000, a, -1), 0);
	cr_expect_str_eq(c.proc.output, "");
	cr_expect_eq(lseek(a, 0, SEEK_CUR), 14);
	/* One file may be given twice. */
	cr_expect_eq(run_with_files(&c, "cmp " PROC_FILE_PATH " /proc/self/fd/4", 10000, a, a), 0);
	cr_expect_eq(fcntl(a, F_GETFD), FD_CLOEXEC);
	close_ring();
	close(leak);
	close(a);
	close(b);
}

Test(proc, files_handed_over)
{
	files_handed_over(false);
}

Test(proc, files_handed_over_simulated)
{
	files_handed_over(true);
}

/* Hands a and b over where the numbers they get are those of b and a, or of the pipe for the
 * output. In a process of its own, as they are criterion's in this one. */
static int status_with_low_numbers(int a, int b, bool swapped)
{
	pid_t pid = fork();
	if (pid == 0) {
		if (ring_open(&ring, &(struct ring_config){0}) < 0)
			_exit(2);
		close(PROC_FILE);
		close(PROC_FILE + 1);
		if (swapped) {
			a = dup3(a, PROC_FILE + 1, O_CLOEXEC);
			b = dup3(b, PROC_FILE, O_CLOEXEC);
		}
		c = (struct child){
			.proc = {.argv = {"cat", PROC_FILE_PATH, "/proc/self/fd/4", NULL},
				.timeout_ms = 10000,
				.files = {a, b},
				.file_count = 2,
				.on_end = on_end}};
		if (proc_start(ring, &c.proc) < 0)
			_exit(3);
		while (c.ends == 0)
			ring_turn(ring, true);
		_exit(c.res == 0 && strcmp(c.proc.output, "a\nb\n") == 0 ? 0 : 1);
	}
	int status = -1;
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return status;
}

Test(proc, files_get_numbers_in_use)
{
	int a = file_of("a\n"), b = file_of("b\n");
	cr_expect_eq(status_with_low_numbers(a, b, true), 0);
	cr_expect_eq(status_with_low_numbers(a, b, false), 0);
	close(a);
	close(b);
}

/* Before it runs anything, and every time. */
Test(proc, memory_is_limited_from_the_start)
{
	for (int simulated = 0; simulated < 2; simulated++) {
		open_ring(simulated != 0);
		for (unsigned i = 0; i < 20; i++) {
			c = child_of("ulimit -d");
			c.proc.memory_bytes = 64 << 20;
			cr_assert_eq(proc_start(ring, &c.proc), 0);
			while (c.ends == 0)
				cr_assert_eq(ring_turn(ring, true), 0);
			cr_assert_eq(c.res, 0);
			cr_assert_str_eq(c.proc.output, "65536\n");
		}
		close_ring();
	}
}

/* Nobody has it once a child that overstayed has ended, nor what that left behind. */
Test(proc, a_file_goes_with_the_child)
{
	int ends[2];
	char byte;
	cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
	open_ring(false);
	cr_expect_eq(run_with_files(&c, "sleep 1000 & sleep 1000", 200, ends[1], -1), -ETIMEDOUT);
	close(ends[1]);
	fds_before--;
	close_ring();
	cr_expect_eq(read(ends[0], &byte, 1), 0);
	close(ends[0]);
}

/* Nothing is started, and the copy of the one before is closed. */
Test(proc, a_file_that_is_not_open)
{
	for (int simulated = 0; simulated < 2; simulated++) {
		int a = file_of("a\n");
		open_ring(simulated != 0);
		struct child none = {.proc = {.argv = {"sh", "-c", "exit 0", NULL},
					     .files = {a, -1},
					     .file_count = 2,
					     .on_end = on_end}};
		cr_expect_eq(proc_start(ring, &none.proc), simulated ? 0 : -EBADF);
		if (simulated)
			cr_assert_eq(ring_sim_settle(ring, 1000), 0);
		cr_expect_eq(none.ends, simulated);
		cr_expect_eq(none.res, simulated ? -EBADF : 0);
		close_ring();
		close(a);
	}
}

Test(proc, no_such_program)
{
	open_ring(false);
	struct child none = {.proc = {.argv = {"no-such-tool-anywhere", NULL}, .on_end = on_end}};
	/* None of them keeps a place of its lane. */
	for (unsigned i = 0; i <= LANE_CHILDREN_MAX; i++)
		cr_assert_eq(proc_start(ring, &none.proc), -ENOENT);
	cr_assert_eq(none.ends, 0);
	cr_assert_eq(run_shell(&c, "exit 5", 10000), 5);
	close_ring();
	open_ring(true);
	cr_assert_eq(proc_start(ring, &none.proc), 0);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(none.ends, 1);
	cr_assert_eq(none.res, -ENOENT);
	close_ring();
}

/* Children that hang keep their lane's places, and no other's; what waits starts when one ends. */
Test(proc, a_lane_has_so_many_and_the_others_wait)
{
	enum { MANY = LANE_CHILDREN_MAX + 3 };
	for (int simulated = 0; simulated < 2; simulated++) {
		open_ring(simulated);
		struct lane *lanes[2];
		for (int i = 0; i < 2; i++)
			cr_assert_eq(ring_lane_open(&lanes[i], ring), 0);
		static struct child many[MANY];
		for (int i = 0; i < MANY; i++) {
			many[i] = (struct child){.proc = {.argv = {"sleep", "1000", NULL},
							 .timeout_ms = 300,
							 .lane = lanes[0],
							 .on_end = on_end}};
			/* One that waits, and cannot be started when its turn comes. */
			if (i == LANE_CHILDREN_MAX)
				many[i].proc.argv[0] = "no-such-tool-anywhere";
			cr_assert_eq(proc_start(ring, &many[i].proc), 0);
		}
		struct child other = {.proc = {.argv = {"true", NULL},
					      .timeout_ms = 10000,
					      .lane = lanes[1],
					      .on_end = on_end}};
		cr_assert_eq(proc_start(ring, &other.proc), 0);
		if (!simulated) {
			while (other.ends == 0)
				cr_assert_eq(ring_turn(ring, true), 0);
			cr_assert_eq(other.res, 0);
			cr_assert_eq(run_shell(&c, "exit 7", 10000), 7);
		}
		for (int i = 0; i < MANY; i++) {
			while (many[i].ends == 0)
				cr_assert_eq(ring_turn(ring, true), 0);
			cr_assert_eq(many[i].res, i == LANE_CHILDREN_MAX ? -ENOENT : -ETIMEDOUT);
		}
		close_ring();
	}
}

/* What it may take is the caller's to say. It waits for a line, so that the limit is there before
 * it goes on. */
static void check_memory(uint64_t memory_bytes, int want)
{
	int ends[2];
	struct child dd = {
		.proc = {.argv = {"sh", "-c",
				 "read line <&3; exec dd if=/dev/zero of=/dev/null bs=64M "
				 "count=1",
				 NULL},
			.timeout_ms = 60000,
			.file_count = 1,
			.memory_bytes = memory_bytes,
			.on_end = on_end}};
	cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
	dd.proc.files[0] = ends[0];
	cr_assert_eq(proc_start(ring, &dd.proc), 0);
	cr_assert_eq(write(ends[1], "\n", 1), 1);
	while (dd.ends == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
	close(ends[0]);
	close(ends[1]);
	cr_assert_eq(dd.res, want, "%d: %s", dd.res, dd.proc.output);
}

Test(proc, memory_has_a_limit)
{
	open_ring(false);
	check_memory(0, 0);
	check_memory(256 << 20, 0);
	check_memory(16 << 20, 1);
	close_ring();
}
