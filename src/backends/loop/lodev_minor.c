/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers for new loop devices. LOOP_CTL_GET_FREE searches all devices (0.5 ms and growing), so
 * numbers come from a list of those this process detached, and then from a counter; devices that do
 * not exist yet are made with LOOP_CTL_ADD. Whether a number is free is asked of sysfs, because
 * opening another's device would wake udev; LOOP_CONFIGURE has the last word.
 *
 * Shared by all work threads: one mutex, taken for list work and the questions to sysfs (2 us
 * each).
 */
#include "backends/loop/lodev_minor.h"

#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>

enum {
	FREE_MAX = 4096,    /* numbers remembered; the rest is found again after a restart */
	NODE_WAIT_MS = 100, /* for the node of a new device, where udev makes it */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* A ring buffer: numbers that are still bound when their turn comes go back to its end. Devices
 * that lost discard (see lodev_minor_put) have their own, for forbidding and regaining it is dear.
 */
struct minors {
	uint32_t at[FREE_MAX];
	unsigned first, count;
};
static struct minors with_discard, without_discard;
static uint32_t next_minor;

bool lodev_minor_is_bound(uint32_t minor)
{
	char path[64];
	snprintf(path, sizeof path, "/sys/block/loop%u/loop/backing_file", minor);
	return access(path, F_OK) == 0;
}

static void minors_push(struct minors *m, uint32_t minor)
{
	if (m->count < FREE_MAX)
		m->at[(m->first + m->count++) % FREE_MAX] = minor;
}

static bool minors_has(const struct minors *m, uint32_t minor)
{
	for (unsigned i = 0; i < m->count; i++)
		if (m->at[(m->first + i) % FREE_MAX] == minor)
			return true;
	return false;
}

/* The first that is not bound. */
static bool minors_pop(struct minors *m, uint32_t *ret_minor)
{
	for (unsigned n = m->count; n > 0; n--) {
		uint32_t minor = m->at[m->first];
		m->first = (m->first + 1) % FREE_MAX;
		m->count--;
		if (!lodev_minor_is_bound(minor)) {
			*ret_minor = minor;
			return true;
		}
		minors_push(m, minor);
	}
	return false;
}

static bool next_pop(uint32_t *ret_minor)
{
	while (next_minor < LODEV_MINORS && lodev_minor_is_bound(next_minor))
		next_minor++;
	if (next_minor == LODEV_MINORS)
		return false;
	*ret_minor = next_minor++;
	return true;
}

void lodev_minor_put(uint32_t minor, bool lost_discard)
{
	pthread_mutex_lock(&mutex);
	/* From next_minor on, the counter will come by. */
	if (minor < next_minor && !minors_has(&with_discard, minor) &&
		!minors_has(&without_discard, minor))
		minors_push(lost_discard ? &without_discard : &with_discard, minor);
	pthread_mutex_unlock(&mutex);
}

/* A number that is probably free; nobody else gets the same. */
static bool choose(bool no_discard, uint32_t *ret_minor)
{
	pthread_mutex_lock(&mutex);
	bool found;
	if (no_discard)
		found = minors_pop(&without_discard, ret_minor) ||
			minors_pop(&with_discard, ret_minor) || next_pop(ret_minor);
	else
		found = minors_pop(&with_discard, ret_minor) || next_pop(ret_minor) ||
			minors_pop(&without_discard, ret_minor);
	pthread_mutex_unlock(&mutex);
	return found;
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
	lodev_minor_put(minor, false);
}

static int open_device(uint32_t minor)
{
	char path[32];
	snprintf(path, sizeof path, "/dev/loop%u", minor);
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

static bool device_exists(uint32_t minor)
{
	char path[40];
	snprintf(path, sizeof path, "/sys/block/loop%u", minor);
	return access(path, F_OK) == 0;
}

int lodev_minor_take(bool no_discard, uint32_t *ret_minor, int *ret_fd, struct err *err)
{
	uint32_t minor;
	if (!choose(no_discard, &minor))
		return err_set(err, ERR_NO_ROOM, "all %d loop devices are in use", LODEV_MINORS);

	int fd = open_device(minor);
	if (fd == -ENOENT) {
		int r = control(LOOP_CTL_ADD, minor);
		if (r < 0 && r != -EEXIST) {
			lodev_minor_put(minor, false);
			return err_sys(err, r, "making /dev/loop%u with /dev/loop-control", minor);
		}
		fd = open_device(minor);
		for (int ms = 0; fd == -ENOENT && ms < NODE_WAIT_MS; ms++) {
			clock_sleep_ms(1);
			fd = open_device(minor);
		}
	}
	if (fd == -ENXIO || fd == -ENODEV || (fd == -ENOENT && !device_exists(minor)))
		return -EAGAIN; /* somebody is just removing it: theirs */
	if (fd < 0) {
		lodev_minor_put(minor, false);
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
