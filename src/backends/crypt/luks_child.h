/* SPDX-License-Identifier: Apache-2.0 */
/* Starts `ringvol luks` for one order, and says in an error what it answered. */
#ifndef RINGVOL_BACKENDS_LUKS_CHILD_H
#define RINGVOL_BACKENDS_LUKS_CHILD_H

#include "backends/crypt/luks_order.h"
#include "reactor/op.h"

enum {
	LUKS_TIMEOUT_MS = 60000,
	/* Of its own. Argon2id takes 64 MiB, libraries and stacks less than half of that. */
	LUKS_MEMORY_BYTES = 160 << 20,
};

/* Embed it; lives until the step's end. */
struct luks_child {
	struct proc proc;
	int order_fd, device_fd, lock_fd;
};

/* For a step's run(). The key is copied into the kernel's pipe, and nowhere else. device_fd: the
 * device below, which becomes the child's to close in any case; -1: the child needs none. So a
 * child that outlives the driver writes to no device that was bound to something else meanwhile.
 * lock_fd: the caller's, as in struct backend_req. */
int luks_child_run(struct op *op, struct luks_child *child, const struct luks_order *order,
	int device_fd, int lock_fd);
/* For its end(): op->err says what the child said. ERR_KEY: a wrong key; ERR_DATA_LOSS:
 * the header is gone; ERR_PRECONDITION: this node lacks something, or the header is not ours;
 * ERR_TIMEOUT, ERR_NO_ROOM, ERR_UNAVAILABLE, ERR_INTERNAL. image: for the message. */
int luks_child_end(struct op *op, struct luks_child *child, const char *image, int res);

#endif
