/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers for new loop devices. LOOP_CTL_GET_FREE searches all devices (0.5 ms and growing), so
 * numbers come from a list of those this process detached, and then from a counter; devices that do
 * not exist yet are made with LOOP_CTL_ADD. Whether a number is free is asked of sysfs, because
 * opening another's device would wake udev; LOOP_CONFIGURE has the last word.
 *
 * Shared by all work threads: one mutex, held for list work and the questions to sysfs (2 us each).
 */
#include "blockio/lodev_priv.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>

enum {
	MINOR_END = 1 << 20, /* the kernel's minor numbers have 20 bits */
	FREE_MAX = 4096,     /* numbers remembered; the rest is found again after a restart */
	NODE_WAIT_MS = 100,  /* for the node of a new device, where udev makes it */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* A ring buffer: numbers that are still bound when their turn comes go back to its end. */
static uint32_t free_minors[FREE_MAX];
static unsigned free_first, free_count;
static uint32_t next_minor;

static void free_push(uint32_t minor)
{
	if (free_count < FREE_MAX)
		free_minors[(free_first + free_count++) % FREE_MAX] = minor;
}

void lodev_minor_put(uint32_t minor)
{
	pthread_mutex_lock(&mutex);
	bool known = minor >= next_minor; /* the counter will come by */
	for (unsigned i = 0; i < free_count && !known; i++)
		known = free_minors[(free_first + i) % FREE_MAX] == minor;
	if (!known)
		free_push(minor);
	pthread_mutex_unlock(&mutex);
}

/* A number that is probably free; nobody else gets the same. */
static int choose(uint32_t *ret_minor)
{
	int r = 0;
	pthread_mutex_lock(&mutex);
	for (unsigned n = free_count; n > 0; n--) {
		uint32_t minor = free_minors[free_first];
		free_first = (free_first + 1) % FREE_MAX;
		free_count--;
		if (!lodev_is_bound(minor)) {
			*ret_minor = minor;
			goto out;
		}
		free_push(minor);
	}
	while (next_minor < MINOR_END && lodev_is_bound(next_minor))
		next_minor++;
	if (next_minor < MINOR_END)
		*ret_minor = next_minor++;
	else
		r = -ENOSPC;
out:
	pthread_mutex_unlock(&mutex);
	return r;
}

static int control(unsigned long call, uint32_t minor)
{
	_cleanup_fd_ int fd = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	if (fd < 0 || ioctl(fd, call, (unsigned long)minor) < 0)
		return -errno;
	return 0;
}

void lodev_minor_renew(uint32_t minor)
{
	control(LOOP_CTL_REMOVE, minor);
	lodev_minor_put(minor);
}

static int open_device(uint32_t minor)
{
	char path[32];
	snprintf(path, sizeof path, "/dev/loop%u", minor);
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

int lodev_minor_take(uint32_t *ret_minor, int *ret_fd, struct err *err)
{
	uint32_t minor;
	if (choose(&minor) < 0)
		return err_set(err, ERR_NO_ROOM, "all %d loop devices are in use", MINOR_END);

	int fd = open_device(minor);
	if (fd == -ENOENT) {
		int r = control(LOOP_CTL_ADD, minor);
		if (r < 0 && r != -EEXIST) {
			lodev_minor_put(minor);
			return err_sys(err, r, "making /dev/loop%u with /dev/loop-control", minor);
		}
		fd = open_device(minor);
		for (int ms = 0; fd == -ENOENT && ms < NODE_WAIT_MS; ms++) {
			nanosleep(&(struct timespec){.tv_nsec = 1000000L}, NULL);
			fd = open_device(minor);
		}
	}
	if (fd == -ENXIO || fd == -ENODEV)
		return -EAGAIN; /* somebody is just removing it: theirs */
	if (fd < 0) {
		lodev_minor_put(minor);
		if (fd != -ENOENT)
			return err_sys(err, fd, "opening /dev/loop%u", minor);
		return err_set(err, ERR_PRECONDITION,
			"/dev/loop%u does not appear in /dev: the driver needs the host's /dev",
			minor);
	}
	*ret_minor = minor;
	*ret_fd = fd;
	return 0;
}
