/* SPDX-License-Identifier: Apache-2.0 */
/* For tests whose system calls are their own: which of them is refused, and what descriptors are
 * left afterwards. The calls are an enum of the test's. */
#ifndef RINGVOL_TESTS_REFUSED_H
#define RINGVOL_TESTS_REFUSED_H

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

static struct {
	int call;
	unsigned nth;   /* so many of them go well first... */
	unsigned times; /* ...and so many do not */
	int with;       /* the errno */
} refused;

static inline void refuse(int call, unsigned nth, unsigned times, int with)
{
	refused.call = call;
	refused.nth = nth;
	refused.times = times;
	refused.with = with;
}

/* In the call: whether this one is, and errno. */
static inline bool refuses(int call)
{
	if (call != refused.call)
		return false;
	if (refused.nth > 0) {
		refused.nth--;
		return false;
	}
	if (refused.times == 0)
		return false;
	refused.times--;
	errno = refused.with;
	return true;
}

static inline int open_fds(void)
{
	int count = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d) != NULL)
		count++;
	closedir(d);
	return count;
}

#endif
