/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the instructions that threads of a process execute in user mode, and the system calls
 * among them, by stepping through every single one. Slow, and exact: it needs no counters of the
 * CPU, which an emulated one lacks, and treats every program alike.
 *
 *   count PID [NAME]   counts all threads of PID (those whose name begins with NAME) until SIGTERM,
 *                      then prints "instructions N syscalls N". The process is of no use
 * afterwards.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

static uint64_t instructions, syscalls;
static int thread_count;
static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static int matches(pid_t pid, const char *tid, const char *name)
{
	char path[300], comm[32] = "";
	snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", pid, tid);
	FILE *f = fopen(path, "r");
	if (f == NULL)
		return 0;
	if (fgets(comm, sizeof(comm), f) == NULL)
		comm[0] = '\0';
	fclose(f);
	/* The kernel's own workers look like threads, and cannot be stepped. */
	return strncmp(comm, "iou-", 4) != 0 && strncmp(comm, name, strlen(name)) == 0;
}

static int seize_all(pid_t pid, const char *name)
{
	char path[32];
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *dir = opendir(path);
	const struct dirent *entry;
	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		pid_t tid = (pid_t)atoi(entry->d_name);
		if (tid == 0 || !matches(pid, entry->d_name, name))
			continue;
		if (ptrace(PTRACE_SEIZE, tid, 0, 0) < 0 ||
			ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0) {
			perror("ptrace");
			exit(1);
		}
		thread_count++;
	}
	if (dir != NULL)
		closedir(dir);
	return thread_count;
}

/* The instruction a stopped thread is about to execute is a system call. */
static int at_syscall(pid_t tid)
{
	errno = 0;
	long rip = ptrace(PTRACE_PEEKUSER, tid, offsetof(struct user, regs.rip), 0);
	long text = ptrace(PTRACE_PEEKTEXT, tid, rip, 0);
	return errno == 0 && (text & 0xffff) == 0x050f;
}

int main(int argc, char **argv)
{
	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: count PID [NAME]\n");
		return 2;
	}
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGTERM, &action, NULL);
	if (seize_all((pid_t)atoi(argv[1]), argc == 3 ? argv[2] : "") == 0) {
		fprintf(stderr, "count: no such thread\n");
		return 1;
	}
	while (!stop) {
		int status;
		pid_t tid = waitpid(-1, &status, __WALL);
		if (tid < 0 && errno == EINTR)
			continue;
		if (tid < 0)
			break;
		if (!WIFSTOPPED(status))
			continue;
		int sig = WSTOPSIG(status);
		if (sig == SIGTRAP && status >> 16 == 0)
			instructions++;
		if (at_syscall(tid))
			syscalls++;
		ptrace(PTRACE_SINGLESTEP, tid, 0, sig == SIGTRAP || status >> 16 != 0 ? 0 : sig);
	}
	printf("instructions %llu syscalls %llu\n", (unsigned long long)instructions,
		(unsigned long long)syscalls);
	return 0;
}
