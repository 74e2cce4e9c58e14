/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control commands of ublk, asynchronous and each with a bound.
 *
 * They need SQEs of 128 bytes, so they go through a ring of their own. The kernel runs them in
 * threads of its own, and the reactor only polls that ring. Some kernels never return from a
 * command (ADD_DEV of 6.17 and others). When the bound is over, the call ends with -ETIMEDOUT; what
 * it left in the kernel keeps a slot here until the kernel lets go, if ever. Until then the next
 * command for the same device is not given to the kernel: it waits here, within its own bound.
 * Commands for other devices go on as far as the kernel lets them. An ADD_DEV that succeeds after
 * its bound is undone here, for nobody else knows of that device.
 *
 * Devices are deleted by DEL_ASYNC. Kernels without it are given DEL_DEV, which returns when nobody
 * has the device's number any more. If the number is given away before DEL_DEV looks, it waits for
 * the end of that other device.
 */
#ifndef RINGVOL_BACKENDS_UBLK_CTL_H
#define RINGVOL_BACKENDS_UBLK_CTL_H

#include "backends/ublk/ublk_abi.h"
#include "base/err.h"
#include "reactor/ring.h"

enum {
	UBLK_CTL_BOUND_MS = 8000, /* under the 10 s that external-provisioner gives a call */
	UBLK_CTL_SLOTS = 256,     /* commands in the kernel, those that hang included */
};

struct ublk_ctl;
struct ublk_ctl_call;
typedef void ublk_ctl_fn(struct ublk_ctl_call *call, int res);

/* Embed it; lives until on_end. */
struct ublk_ctl_call {
	uint32_t command; /* UBLK_ABI_ADD_DEV, ... */
	uint32_t dev_id;
	uint64_t data;
	union { /* in, out or both, as the command has it */
		struct ublk_abi_info info;
		struct ublk_abi_params params;
		uint64_t features;
	};
	ublk_ctl_fn *on_end; /* from the loop; res: what the kernel said, or -ETIMEDOUT */
	/* private */
	struct ublk_ctl_slot *slot; /* NULL: it waits for the one before it */
	struct list link;           /* while it waits */
	struct ring_timer timer;
	struct ring_req turn;
	struct ublk_ctl *ctl;
};

/* Tests put this in the kernel's place: it is given a command and later calls ublk_ctl_answer(). */
struct ublk_ctl_fake {
	void (*submit)(struct ublk_ctl_fake *fake, struct ublk_ctl_slot *slot, uint32_t command,
		uint32_t dev_id, void *buffer);
	int missing; /* what opening /dev/ublk-control says */
};

struct ublk_ctl_config {
	struct ring *ring;
	uint64_t bound_ms;          /* 0: UBLK_CTL_BOUND_MS */
	struct ublk_ctl_fake *fake; /* NULL: the kernel */
	/* NULL: /dev/ublk-control. Tests have /dev/null: its driver answers every command with 0.
	 */
	const char *path;
};

int ublk_ctl_open(struct ublk_ctl **ret, const struct ublk_ctl_config *config);
/* With no call under way. Commands that hang are left to the kernel. NULL is legal. */
void ublk_ctl_close(struct ublk_ctl *ctl);

/* Opens /dev/ublk-control if that was not done yet. 0, or an error that names the module. */
int ublk_ctl_ready(struct ublk_ctl *ctl, struct err *err);
/* Ends with -EBUSY when all slots hang, and with what ublk_ctl_ready() would say. */
void ublk_ctl_submit(struct ublk_ctl *ctl, struct ublk_ctl_call *call);
/* True while the kernel has a command about the device. */
bool ublk_ctl_busy(const struct ublk_ctl *ctl, uint32_t dev_id);
/* Commands that the kernel still has after their bound. */
unsigned ublk_ctl_hanging(const struct ublk_ctl *ctl);
/* "ADD_DEV", for messages. */
const char *ublk_ctl_name(uint32_t command);

void ublk_ctl_answer(struct ublk_ctl_slot *slot, int res);

#endif
