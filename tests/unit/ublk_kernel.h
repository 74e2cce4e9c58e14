/* SPDX-License-Identifier: Apache-2.0 */
/* A made-up kernel for ublk's control commands. */
#ifndef RINGVOL_TESTS_UBLK_KERNEL_H
#define RINGVOL_TESTS_UBLK_KERNEL_H

#include "backends/ublk/ublk_ctl.h"
#include "reactor/ring_uring.h"

#include <criterion/criterion.h>
#include <string.h>

enum { KERNEL_CALLS = UBLK_CTL_SLOTS + 64 };

struct kernel {
	struct ublk_ctl_fake fake;
	struct {
		struct ublk_ctl_slot *slot;
		uint32_t command, dev_id;
		void *buffer;
	} call[KERNEL_CALLS];
	unsigned calls;
	/* how each command is answered at once; a command named in `hang` is not */
	uint32_t fail, hang;
	int fail_res;
	uint64_t features;
	unsigned made, deleted;
	bool no_async;  /* a kernel before DEL_ASYNC */
	bool ours;      /* GET_INFO: the device carries what its ADD_DEV had, or nothing */
	uint64_t added; /* what that was */
	uint32_t taken; /* ADD_DEV: numbers below this are others' */
	uint8_t params[sizeof(struct ublk_abi_params)]; /* as SET_PARAMS came */
};

static inline void kernel_add(struct kernel *k, const struct ublk_abi_info *info)
{
	k->added = info->server_flags;
	k->made++;
}

static inline void kernel_answer(struct kernel *k, unsigned i)
{
	int res = 0;
	if (k->call[i].command == k->fail)
		res = k->fail_res;
	else if (k->call[i].command == UBLK_ABI_GET_FEATURES)
		memcpy(k->call[i].buffer, &k->features, sizeof(k->features));
	else if (k->call[i].command == UBLK_ABI_ADD_DEV && k->call[i].dev_id < k->taken)
		res = -EEXIST;
	else if (k->call[i].command == UBLK_ABI_ADD_DEV)
		kernel_add(k, k->call[i].buffer);
	else if (k->call[i].command == UBLK_ABI_GET_INFO && k->ours)
		((struct ublk_abi_info *)k->call[i].buffer)->server_flags = k->added;
	else if (k->call[i].command == UBLK_ABI_DEL_ASYNC && k->no_async)
		res = -EOPNOTSUPP;
	else if (k->call[i].command == UBLK_ABI_SET_PARAMS)
		memcpy(k->params, k->call[i].buffer, sizeof(k->params));
	else if (k->call[i].command == UBLK_ABI_DEL_ASYNC || k->call[i].command == UBLK_ABI_DEL_DEV)
		k->deleted++;
	ublk_ctl_answer(k->call[i].slot, res);
}

static inline void kernel_submit(struct ublk_ctl_fake *fake, struct ublk_ctl_slot *slot,
	uint32_t command, uint32_t dev_id, void *buffer)
{
	struct kernel *k = container_of(fake, struct kernel, fake);
	cr_assert_lt(k->calls, KERNEL_CALLS);
	k->call[k->calls].slot = slot;
	k->call[k->calls].command = command;
	k->call[k->calls].dev_id = dev_id;
	k->call[k->calls].buffer = buffer;
	k->calls++;
	if (command != k->hang)
		kernel_answer(k, k->calls - 1);
}

static inline struct kernel kernel_good(void)
{
	return (struct kernel){
		.fake.submit = kernel_submit,
		.features = UBLK_ABI_F_RECOVERY | UBLK_ABI_F_RECOVERY_REISSUE,
	};
}

static inline struct ring *open_ring(void)
{
	struct ring *ring;
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	return ring;
}

static inline struct ublk_ctl *open_ctl(struct ring *ring, struct kernel *k, uint64_t bound_ms)
{
	struct ublk_ctl *ctl;
	const struct ublk_ctl_config config = {
		.ring = ring, .bound_ms = bound_ms, .fake = &k->fake};
	cr_assert_eq(ublk_ctl_open(&ctl, &config), 0);
	return ctl;
}

#endif
