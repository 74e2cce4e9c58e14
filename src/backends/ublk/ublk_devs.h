/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ublk devices of one data process: makes them, ends them, and takes over those that the
 * process before it left.
 *
 * A device is ours if the number it carries in the kernel (ublksrv_flags) is our state directory's;
 * no other is ever touched. What is known of a device is in its state file before
 * anybody is told of it. A start therefore finds one of two things. A file that says "live": its
 * device is recovered, and tried again until that succeeds. A file that says "making" or "ending",
 * or a device of ours without a file: nobody uses that device, and it is removed.
 *
 * We choose a device's number. As long as anything is left of the device here, no other device
 * gets that number: its state file has that name, and a late command would be about the other. The
 * kernel would choose the least number that is free there, which is that of the device removed
 * last.
 */
#ifndef RINGVOL_BACKENDS_UBLK_DEVS_H
#define RINGVOL_BACKENDS_UBLK_DEVS_H

#include "backends/ublk/ublk_ctl.h"
#include "backends/ublk/ublk_io.h"
#include "backends/ublk/ublk_state.h"
#include "backends/ublk/ublkd_proto.h"
#include "reactor/op.h"

struct ublk_devs;
struct ublk_dev;

/* Waits for the end of one request; embed it. on_end comes from the loop. dev is NULL when there is
 * no such device (any more), and valid only during the call. */
struct ublk_wait {
	struct list link;
	struct ring_req turn;
	struct ublk_devs *devs;
	struct ublk_dev *dev;
	bool ends; /* waits for the device's end */
	struct err err;
	void (*on_end)(struct ublk_wait *wait, const struct ublk_dev *dev, int res);
};

struct ublk_devs_config {
	struct reactor *reactor;
	struct ublk_ctl *ctl;
	struct ublk_io *io;
	int state_dirfd;
	unsigned devices_max;
	uint32_t first_id;     /* numbers of new devices begin here; 0 but in tests */
	const char *sys_block; /* where the kernel tells of disks; NULL: /sys/block */
	/* For the log: what ended by itself, not by a request. err: what went wrong, or no error.
	 */
	void (*on_event)(
		void *arg, const struct ublk_dev *dev, const char *what, const struct err *err);
	void *arg;
};

int ublk_devs_open(struct ublk_devs **ret, const struct ublk_devs_config *config);
/* Reads the state files and asks the kernel what it has; blocking, before the loop starts. Recovery
 * and removal then go on in the loop. */
int ublk_devs_adopt(struct ublk_devs *devs, struct err *err);
/* True when no operation is under way (one that waits to be tried again is not). */
bool ublk_devs_idle(const struct ublk_devs *devs);
unsigned ublk_devs_count(const struct ublk_devs *devs);
/* With no device left and idle. NULL is legal. */
void ublk_devs_close(struct ublk_devs *devs);

/* UBLK_ABI_F_* of the kernel; 0 as long as the kernel has not answered. */
uint64_t ublk_devs_features(const struct ublk_devs *devs);

/* Requests of ublkd_proto.h. image_fd becomes theirs. */
void ublk_devs_attach(struct ublk_devs *devs, const struct ublkd_request *request, int image_fd,
	struct ublk_wait *wait);
void ublk_devs_detach(
	struct ublk_devs *devs, const struct ublkd_request *request, struct ublk_wait *wait);
void ublk_devs_resize(
	struct ublk_devs *devs, const struct ublkd_request *request, struct ublk_wait *wait);
/* True: they are in force already. */
bool ublk_devs_limit(
	struct ublk_devs *devs, const struct ublkd_request *request, struct ublk_wait *wait);
/* The device with the least id from dev_id on; NULL: none. */
const struct ublk_dev *ublk_devs_next(const struct ublk_devs *devs, uint32_t dev_id);
void ublk_devs_describe(const struct ublk_dev *dev, struct ublkd_device *ret);

#endif
