/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second runner of criterion's tests, preloaded under valgrind: each test is a fork of one
 * process. Criterion executes the program anew for each test, and valgrind takes 1.4 s to start
 * one; so most of the lane's time went into 1,700 starts.
 *
 *   LD_PRELOAD=libforked.so test_NAME [--filter PATTERN]
 *
 * PATTERN is fnmatch's of SUITE/NAME, with ksh's !(a|b). A line on standard output tells how each
 * test ended. Exits with 1 if one failed, or none ran. A test that hangs is killed after HANG_S
 * seconds, whatever time it gives itself: those are times without valgrind.
 */
#include <criterion/criterion.h>

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HANG_S = 300, FAILED = 1, SKIPPED = 77 };

static const struct criterion_test *running;
static const struct criterion_suite *its_suite; /* NULL: it has no options of its own */
static bool failed, in_test;
static jmp_buf end_of_test;

/* ---- what tests call ---- */

static void call(void (*fixture)(void))
{
	if (fixture != NULL)
		fixture();
}

void criterion_internal_test_setup(void)
{
	if (its_suite != NULL)
		call(its_suite->data->init);
	call(running->data->init);
}

void criterion_internal_test_main(void (*test)(void))
{
	in_test = true;
	if (setjmp(end_of_test) == 0)
		test();
	in_test = false;
}

void criterion_internal_test_teardown(void)
{
	call(running->data->fini);
	if (its_suite != NULL)
		call(its_suite->data->fini);
}

void criterion_send_assert(struct criterion_assert_stats *stats)
{
	if (stats->passed)
		return;
	failed = true;
	printf("%s:%u: %s\n", stats->file, stats->line, stats->message);
}

void cri_asserts_passed_incr(void)
{
}

/* Behind an assertion that failed. In a fixture there is no test to end, and the process ends. */
void criterion_abort_test(void)
{
	if (!in_test)
		exit(FAILED);
	longjmp(end_of_test, 1);
}

void criterion_continue_test(void)
{
}

void criterion_skip_test(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	exit(SKIPPED);
}

void cr_log(enum criterion_severity severity, const char *format, ...)
{
	va_list args;
	(void)severity;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

/* ---- which tests there are ---- */

/* A section of this program's file, which holds pointers: to tests, or to suites. */
struct section {
	void **at;
	size_t count;
};

static int first_object(struct dl_phdr_info *info, size_t size, void *ret_base)
{
	(void)size;
	*(uintptr_t *)ret_base = info->dlpi_addr;
	return 1;
}

static struct section section_of(const uint8_t *file, const char *name)
{
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(file + header->e_shoff);
	const char *names = (const char *)file + sections[header->e_shstrndx].sh_offset;
	uintptr_t base = 0;
	dl_iterate_phdr(first_object, &base);
	for (unsigned i = 0; i < header->e_shnum; i++)
		if (strcmp(names + sections[i].sh_name, name) == 0)
			return (struct section){.at = (void **)(base + sections[i].sh_addr),
				.count = sections[i].sh_size / sizeof(void *)};
	return (struct section){0};
}

static const uint8_t *map_program(void)
{
	struct stat st;
	int fd = open(program_invocation_name, O_RDONLY | O_CLOEXEC);
	void *file = MAP_FAILED;
	if (fd >= 0 && fstat(fd, &st) == 0)
		file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (file == MAP_FAILED) {
		perror(program_invocation_name);
		exit(FAILED);
	}
	close(fd);
	return file;
}

static const struct criterion_suite *suite_of(
	const struct criterion_test *test, struct section suites)
{
	for (size_t i = 0; i < suites.count; i++) {
		const struct criterion_suite *suite = suites.at[i];
		if (suite != NULL && strcmp(suite->name, test->category) == 0)
			return suite;
	}
	return NULL;
}

static int by_name(const void *a, const void *b)
{
	const struct criterion_test *x = *(void *const *)a, *y = *(void *const *)b;
	int suites = strcmp(x->category, y->category);
	return suites != 0 ? suites : strcmp(x->name, y->name);
}

/* ---- running them ---- */

/* The status that waitpid() gives. */
static int run_apart(const struct criterion_test *test)
{
	sigset_t child_ends;
	sigemptyset(&child_ends);
	sigaddset(&child_ends, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child_ends, NULL);
	pid_t pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(FAILED);
	}
	if (pid == 0) {
		sigprocmask(SIG_UNBLOCK, &child_ends, NULL);
		test->test();
		exit(failed ? FAILED : 0);
	}
	int status;
	const struct timespec limit = {.tv_sec = HANG_S};
	if (sigtimedwait(&child_ends, NULL, &limit) < 0) {
		printf("killed after %d s\n", HANG_S);
		kill(pid, SIGKILL);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

static bool run(const struct criterion_test *test, struct section suites)
{
	running = test;
	its_suite = suite_of(test, suites);
	int status = run_apart(test);
	bool ok = test->data->signal != 0
			  ? WIFSIGNALED(status) && WTERMSIG(status) == test->data->signal
			  : WIFEXITED(status) && WEXITSTATUS(status) == test->data->exit_code;
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
		printf("ok - %s::%s # SKIP\n", test->category, test->name);
	else if (ok)
		printf("ok - %s::%s\n", test->category, test->name);
	else
		printf("not ok - %s::%s: wait status %#x\n", test->category, test->name, status);
	return ok || (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED);
}

int main(int argc, char **argv)
{
	const char *pattern = "*";
	if (argc == 3 && strcmp(argv[1], "--filter") == 0)
		pattern = argv[2];
	else if (argc != 1) {
		fprintf(stderr, "usage: %s [--filter PATTERN]\n", argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	const uint8_t *file = map_program();
	struct section tests = section_of(file, "cr_tst"), suites = section_of(file, "cr_sts");
	qsort(tests.at, tests.count, sizeof(*tests.at), by_name);
	unsigned ran = 0, bad = 0;
	for (size_t i = 0; i < tests.count; i++) {
		const struct criterion_test *test = tests.at[i];
		char name[256];
		snprintf(name, sizeof(name), "%s/%s", test->category, test->name);
		if (fnmatch(pattern, name, FNM_EXTMATCH) != 0)
			continue;
		ran++;
		if (!run(test, suites))
			bad++;
	}
	printf("%u run, %u failed\n", ran, bad);
	return ran == 0 || bad > 0 ? FAILED : 0;
}
