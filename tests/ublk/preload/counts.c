/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into the data process by tests: counts calls of the allocator, and those of the kernel
 * by threads that serve I/O (named "ublk-N"), in a file that the test reads.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void __libc_free(void *p);

static struct counts {
	uint64_t data, other; /* calls of the allocator by data threads, and by all others */
	uint64_t entered;     /* io_uring_enter() by data threads */
} * counts;
static long (*libc_syscall)(long number, ...);

__attribute__((constructor)) static void setup(void)
{
	*(void **)&libc_syscall = dlsym(RTLD_NEXT, "syscall");
	const char *path = getenv("RINGVOL_COUNTS");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd >= 0 ? mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
			  : MAP_FAILED;
	if (fd >= 0)
		close(fd);
	counts = p != MAP_FAILED ? p : NULL;
}

static bool serves_io(void)
{
	char name[16] = "";
	pthread_getname_np(pthread_self(), name, sizeof(name));
	return strncmp(name, "ublk-", 5) == 0;
}

static void count(void)
{
	if (counts != NULL)
		__atomic_add_fetch(
			serves_io() ? &counts->data : &counts->other, 1, __ATOMIC_RELAXED);
}

long syscall(long number, ...)
{
	long a[6];
	va_list list;
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_io_uring_enter && counts != NULL && serves_io())
		__atomic_add_fetch(&counts->entered, 1, __ATOMIC_RELAXED);
	return libc_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

void *malloc(size_t size)
{
	count();
	return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	count();
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	count();
	return __libc_realloc(p, size);
}

void free(void *p)
{
	count();
	__libc_free(p);
}
