/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls that fail, of work threads: the linker puts these between (`failing_calls` in
 * tests/meson.build). One is armed at a time: the nth call from now on, of one function and name or
 * of any. The trash waits meanwhile. For one test program: what is armed is its own.
 */
#ifndef RINGVOL_TESTS_FAILING_CALLS_H
#define RINGVOL_TESTS_FAILING_CALLS_H

#include "pool/private.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
	pthread_mutex_t mutex;
	const char *function, *name; /* NULL: any */
	int left, error;             /* error 0: none is armed */
	bool made;                   /* it is made, and says that it failed */
	bool in_loop;                /* the loop's count, too: a simulated ring runs jobs there */
	bool hit;
	char what[96];
} failing = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static inline void fail_call(const char *function, const char *name, int nth, int error)
{
	pthread_mutex_lock(&failing.mutex);
	failing.function = function;
	failing.name = name;
	failing.left = nth;
	failing.error = error;
	failing.made = failing.hit = false;
	snprintf(failing.what, sizeof(failing.what), "no call");
	pthread_mutex_unlock(&failing.mutex);
}

/* As a call whose answer is lost. */
static inline void fail_made_call(const char *function, const char *name, int nth, int error)
{
	fail_call(function, name, nth, error);
	failing.made = true;
}

/* Whether it was met. */
static inline bool fail_no_call(void)
{
	pthread_mutex_lock(&failing.mutex);
	bool hit = failing.hit;
	failing.error = 0;
	failing.hit = false;
	pthread_mutex_unlock(&failing.mutex);
	return hit;
}

/* Of a call that is to fail: with errno. */
static inline bool call_fails(const char *function, const char *name)
{
	bool fails = false;
	if (gettid() == getpid() && !failing.in_loop)
		return false;
	pthread_mutex_lock(&failing.mutex);
	if (failing.error != 0 && !failing.hit &&
		(failing.function == NULL || strcmp(failing.function, function) == 0) &&
		(failing.name == NULL || strcmp(failing.name, name) == 0) && failing.left-- == 0) {
		failing.hit = fails = true;
		errno = failing.error;
		snprintf(failing.what, sizeof(failing.what), "%s %s", function, name);
	}
	pthread_mutex_unlock(&failing.mutex);
	return fails;
}

#define FAILING_CALL(type, function, params, args, name)                                           \
	type __real_##function params;                                                             \
	type __wrap_##function params;                                                             \
	type __wrap_##function params                                                              \
	{                                                                                          \
		if (!call_fails(#function, name))                                                  \
			return __real_##function args;                                             \
		if (failing.made)                                                                  \
			(void)!__real_##function args;                                             \
		errno = failing.error;                                                             \
		return -1;                                                                         \
	}

FAILING_CALL(int, linkat, (int from_dir, const char *from, int dir, const char *name, int flags),
	(from_dir, from, dir, name, flags), name)
FAILING_CALL(int, unlinkat, (int dir, const char *name, int flags), (dir, name, flags), name)
FAILING_CALL(int, mkdirat, (int dir, const char *name, mode_t mode), (dir, name, mode), name)
FAILING_CALL(int, renameat, (int from_dir, const char *from, int dir, const char *name),
	(from_dir, from, dir, name), name)
FAILING_CALL(int, renameat2,
	(int from_dir, const char *from, int dir, const char *name, unsigned flags),
	(from_dir, from, dir, name, flags), name)
FAILING_CALL(int, fsync, (int fd), (fd), "")
FAILING_CALL(int, ftruncate64, (int fd, off_t size), (fd, size), "")

int __real_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags)
{
	/* Nothing depends on a claim. */
	if (strcmp(name, RECORD_CLAIM_XATTR) != 0 && call_fails("fsetxattr", name))
		return -1;
	return __real_fsetxattr(fd, name, value, len, flags);
}

ssize_t __real_write(int fd, const void *data, size_t len);
ssize_t __wrap_write(int fd, const void *data, size_t len);
ssize_t __wrap_write(int fd, const void *data, size_t len)
{
	struct stat st;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && call_fails("write", ""))
		return -1;
	return __real_write(fd, data, len);
}

int __real_openat64(int dir, const char *name, int flags, ...);
int __wrap_openat64(int dir, const char *name, int flags, ...);
int __wrap_openat64(int dir, const char *name, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	mode_t mode = va_arg(ap, mode_t);
	va_end(ap);
	return call_fails("openat64", name) ? -1 : __real_openat64(dir, name, flags, mode);
}

void __real_pool_trash_kick(struct pool *pool);
void __wrap_pool_trash_kick(struct pool *pool);
void __wrap_pool_trash_kick(struct pool *pool)
{
	if (failing.error == 0)
		__real_pool_trash_kick(pool);
}

#endif
