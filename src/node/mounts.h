/* SPDX-License-Identifier: Apache-2.0 */
/* Where a volume's device is mounted, or its node bound. */
#ifndef RINGVOL_NODE_MOUNTS_H
#define RINGVOL_NODE_MOUNTS_H

#include "backends/backend.h"
#include "mount/mnt.h"
#include "reactor/op.h"

/* Fills a request about the mount of a device, or its node. */
void node_on(struct mnt_on_req *on, const char *path, const struct backend_dev *dev);
/* True when info is a mount (or bound node) of the device. */
bool node_info_is_dev(const struct mnt_info *info, const struct backend_dev *dev);

/*
 * A child operation that counts the mounts of a device, from the kernel's own list, leaving out up
 * to two paths. For the rare moments when memory says there are some: it costs a read of mountinfo.
 */
struct node_others {
	struct op op;
	uint32_t major, minor;
	const char *except[2];     /* may be NULL */
	const char *only;          /* not NULL: count this path alone */
	unsigned count;            /* out */
	char path[MNT_PATH_BYTES]; /* out: one of them */
};
void node_others_init(struct node_others *others, struct reactor *reactor,
	const struct backend_dev *dev, const char *except, const char *except_too);

#endif
