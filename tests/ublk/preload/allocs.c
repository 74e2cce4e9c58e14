/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into the data process by TestNoAllocation: counts calls of the allocator by threads
 * that serve I/O (named "ublk-N") in a file that the test maps too.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void __libc_free(void *p);

static struct counts {
	uint64_t data, other; /* calls by data threads, and by all others */
} * counts;

__attribute__((constructor)) static void setup(void)
{
	const char *path = getenv("RINGVOL_ALLOC_COUNTS");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd >= 0 ? mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
			  : MAP_FAILED;
	if (fd >= 0)
		close(fd);
	counts = p != MAP_FAILED ? p : NULL;
}

static void count(void)
{
	char name[16] = "";
	if (counts == NULL)
		return;
	pthread_getname_np(pthread_self(), name, sizeof(name));
	uint64_t *which = strncmp(name, "ublk-", 5) == 0 ? &counts->data : &counts->other;
	__atomic_add_fetch(which, 1, __ATOMIC_RELAXED);
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
