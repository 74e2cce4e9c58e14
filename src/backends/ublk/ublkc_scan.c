/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ublk devices of ours there are, asked without a loop, from a work thread.
 *
 * The happy path: connect, HELLO, then LIST again and again, each from the id behind the last. When
 * nobody listens the state files say it: a file whose device the kernel still has is a device that
 * waits for the next data process. A damaged file fails the scan, for its device may be on any
 * image.
 */
#include "backends/ublk/ublkc.h"

#include "backends/ublk/ublk_state.h"
#include "backends/ublk/ublkc_wire.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

struct scan {
	const char *path, *state_dir;
	uint64_t timeout_ms;
	void (*each)(void *arg, const struct ublkd_device *dev);
	void *arg;
	struct err *err;
	int res;
};

/* ---- from the data process ---- */

static int ask(const struct scan *s, int fd, const struct ublkd_request *request,
	struct ublkd_reply *reply)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	int r = ublkc_wire_send(fd, request, -1, MSG_DONTWAIT);
	if (r == 0 && poll(&pfd, 1, (int)s->timeout_ms) != 1)
		r = -ETIMEDOUT;
	ssize_t n = r == 0 ? recv(fd, reply, sizeof(*reply), MSG_DONTWAIT) : 0;
	if (r == 0 && n <= 0)
		r = n < 0 ? -errno : -ECONNRESET;
	if (r == 0)
		r = ublkc_wire_check(reply, (size_t)n);
	if (r < 0)
		return err_set(s->err, r == -ETIMEDOUT ? ERR_TIMEOUT : ERR_UNAVAILABLE,
			"the data process at %s does not say which devices it has (%s); see its log",
			s->path, strerrordesc_np(-r));
	return ublkc_wire_result(reply, s->err);
}

static int scan_process(const struct scan *s, int fd)
{
	struct ublkd_request request = {.head = {.type = UBLKD_HELLO}};
	struct ublkd_reply reply;
	int r = ask(s, fd, &request, &reply);
	request.head.type = UBLKD_LIST;
	while (r == 0) {
		request.head.id++;
		r = ask(s, fd, &request, &reply);
		if (r < 0 || reply.device.state == UBLKD_DEV_NONE)
			return r;
		s->each(s->arg, &reply.device);
		request.dev_id = reply.device.dev_id + 1;
	}
	return r;
}

/* ---- from its state files ---- */

static void record_to_device(const struct ublk_record *record, struct ublkd_device *dev)
{
	*dev = (struct ublkd_device){
		.state = UBLKD_DEV_WAITING,
		.dev_id = record->dev_id,
		.image_dev = record->image_dev,
		.image_ino = record->image_ino,
		.block_size = record->block_size,
		.flags = record->flags,
		.queues = record->queues,
		.depth = record->depth,
		.recoveries = record->recoveries,
	};
	memcpy(dev->tag, record->tag, sizeof(dev->tag));
	snprintf(dev->node, sizeof(dev->node), "/dev/ublkb%u", record->dev_id);
	snprintf(dev->why, sizeof(dev->why), "the data process is not running");
	struct stat st;
	if (stat(dev->node, &st) == 0) {
		dev->major = major(st.st_rdev);
		dev->minor = minor(st.st_rdev);
	}
}

static void on_record(void *arg, uint32_t dev_id, const struct ublk_record *record)
{
	struct scan *s = arg;
	char control[64];
	snprintf(control, sizeof(control), "/sys/class/ublk-char/ublkc%u", dev_id);
	if (access(control, F_OK) < 0)
		return; /* left over: the next start of the data process removes it */
	if (record == NULL) {
		s->res = err_set(s->err, ERR_DATA_LOSS,
			"state file %s/dev-%u is damaged: nobody knows the image of /dev/ublkb%u; "
			"start 'ringvol ublkd', which says more",
			s->state_dir, dev_id, dev_id);
		return;
	}
	struct ublkd_device dev;
	record_to_device(record, &dev);
	s->each(s->arg, &dev);
}

static int scan_files(struct scan *s)
{
	_cleanup_fd_ int dirfd = ublk_state_open_dir(s->state_dir, false);
	if (dirfd == -ENOENT)
		return 0;
	int r = dirfd < 0 ? dirfd : ublk_state_each(dirfd, on_record, s);
	if (r < 0)
		return err_sys(s->err, r, "reading the state files in %s", s->state_dir);
	return s->res;
}

int ublkc_scan(const char *socket_path, const char *state_dir, uint64_t timeout_ms,
	void (*each)(void *arg, const struct ublkd_device *dev), void *arg, struct err *err)
{
	struct scan s = {
		.path = socket_path,
		.state_dir = state_dir,
		.timeout_ms = timeout_ms,
		.each = each,
		.arg = arg,
		.err = err,
	};
	_cleanup_fd_ int fd = ublkc_wire_connect(socket_path);
	if (fd == -ENOENT || fd == -ECONNREFUSED)
		return scan_files(&s);
	if (fd < 0)
		return err_set(err, ERR_UNAVAILABLE, "the data process at %s %s", socket_path,
			ublkc_wire_why(fd));
	return scan_process(&s, fd);
}
