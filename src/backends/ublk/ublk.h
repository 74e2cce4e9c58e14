/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes as ublk devices. The backend is the driver's half: it asks the data process (`ringvol
 * ublkd`, backends/ublk/ublkd_proto.h) for everything. It also looks after the data process. As
 * long as there are devices, it pings the data process every UBLK_PING_MS and starts a missing one,
 * where that is ours to do. `on_returned` tells when another process answers than before: its
 * devices may wait for their images.
 */
#ifndef RINGVOL_BACKENDS_UBLK_H
#define RINGVOL_BACKENDS_UBLK_H

#include "backends/backend.h"

#define UBLK_CONTROL_PATH "/dev/ublk-control"

enum {
	UBLK_PING_MS = 500,
	UBLK_START_TIMEOUT_MS = 30000, /* of a data process: until its socket answers */
	/* Of one request. The data process bounds each of the kernel's commands by less. */
	UBLK_CALL_TIMEOUT_MS = 30000,
};

struct backend_ublk_config {
	/* Kept by reference. */
	const char *socket_path, *state_dir;
	const char *control_path; /* what tells that the kernel has ublk; NULL: UBLK_CONTROL_PATH */
	bool start; /* a data process that is missing is started; else somebody else does that */
	uint64_t start_timeout_ms; /* 0: UBLK_START_TIMEOUT_MS */
	void (*on_returned)(void *arg);
	void *arg;
};

/* Makes BACKEND_UBLK known to backend_get(). 0 or -errno. */
int backend_ublk_open(struct reactor *reactor, const struct backend_ublk_config *config);
/* No operation may run; the data process and its devices stay. */
void backend_ublk_close(void);

/* A device as the data process tells of it. */
struct ublkd_device;
void backend_ublk_dev(const struct ublkd_device *from, struct backend_dev *ret);

#endif
