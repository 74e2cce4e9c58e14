/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes as loop devices. The node of a raw volume goes to a tenant: it is that of a guard
 * (dm/guard.h) over the loop device.
 */
#ifndef RINGVOL_BACKENDS_LOOP_H
#define RINGVOL_BACKENDS_LOOP_H

#include "backends/backend.h"

struct backend_loop_config {
	/* The operator accepts that tenants get loop nodes (--block-on-loop): none is guarded. */
	bool block_on_loop;
	/* NULL: the kernel's, DM_CONTROL_PATH. Kept by reference. */
	const char *dm_control_path;
};

/* Blocking, before the loop starts: loads the device mapper's module where kmod can. Without a call
 * the settings are all zero. */
void backend_loop_configure(const struct backend_loop_config *config);

/* What the vtable's detach does, blocking: for work jobs and tools. */
int backend_loop_detach(struct backend_dev *dev, struct err *err);

/* Blocking: calls each for every guard with nothing of ours below it, which scan() therefore does
 * not tell of. 0 or -errno; without device mapper there is none. */
struct guard;
int backend_loop_stray_guards(void (*each)(void *arg, const struct guard *guard), void *arg);

/* A stray guard that was made half, which nobody can have in use; one with a table is left alone.
 */
int backend_loop_remove_stray(const char *tag, struct err *err);

#endif
