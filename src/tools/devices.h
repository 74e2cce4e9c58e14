/* SPDX-License-Identifier: Apache-2.0 */
/* The devices on this node that may be ringvol's, and where they are mounted, as the kernel has
 * them. Blocking. */
#ifndef RINGVOL_TOOLS_DEVICES_H
#define RINGVOL_TOOLS_DEVICES_H

#include "backends/backend.h"

#include <stddef.h>

struct devices {
	struct device {
		const char *type; /* "loop", "disk", "ublk" */
		struct backend_dev dev;
	} * at;
	size_t count, cap;
	struct device_mount {
		uint32_t major, minor;
		bool read_only;
		char *path;
	} * mounts;
	size_t mount_count, mount_cap;
	bool failed; /* for want of memory something is left out */
};

/* The data process is where RINGVOL_UBLKD_SOCKET and RINGVOL_UBLKD_STATE_DIR say, if they are set.
 * 0, or -errno with what was found until then. Free it in every case. */
int devices_scan(struct devices *ret);
void devices_free(struct devices *devices);
/* The device bound to an image, whatever its tag says; NULL if there is none. */
const struct device *devices_find(
	const struct devices *devices, uint64_t image_dev, uint64_t image_ino);

#endif
