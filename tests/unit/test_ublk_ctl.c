/* SPDX-License-Identifier: Apache-2.0 */
/* Control commands against a made-up kernel. */
#include "ublk_kernel.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static struct kernel k;
static struct ring *ring;
static struct ublk_ctl *ctl;

static void setup(void)
{
	k = kernel_good();
	ring = open_ring();
	ctl = open_ctl(ring, &k, 1000);
}

static void teardown(void)
{
	ublk_ctl_close(ctl);
	ring_close(ring);
}

TestSuite(ublk_ctl, .init = setup, .fini = teardown);

/* Where a command is to hang: no test waits for a second. */
static void bound(uint64_t bound_ms)
{
	ublk_ctl_close(ctl);
	ctl = open_ctl(ring, &k, bound_ms);
}

struct ended {
	struct ublk_ctl_call call;
	unsigned times;
	int res;
};

static void on_end(struct ublk_ctl_call *call, int res)
{
	struct ended *e = container_of(call, struct ended, call);
	e->times++;
	e->res = res;
}

static void wait_end(const struct ended *e)
{
	while (e->times == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
}

Test(ublk_ctl, a_command_is_answered)
{
	struct ended e = {.call = {.command = UBLK_ABI_GET_FEATURES, .on_end = on_end}};
	ublk_ctl_submit(ctl, &e.call);
	wait_end(&e);
	cr_expect_eq(e.res, 0);
	cr_expect_eq(e.call.features, k.features);
	cr_expect_eq(ublk_ctl_hanging(ctl), 0);
}

Test(ublk_ctl, a_command_that_hangs_ends_and_hinders_nobody)
{
	k.hang = UBLK_ABI_ADD_DEV;
	bound(10);
	struct ended add = {
		.call = {.command = UBLK_ABI_ADD_DEV, .dev_id = 1000000, .on_end = on_end}};
	struct ended other = {.call = {.command = UBLK_ABI_STOP_DEV, .on_end = on_end}};
	ublk_ctl_submit(ctl, &add.call);
	ublk_ctl_submit(ctl, &other.call);
	wait_end(&other);
	cr_expect_eq(other.res, 0);
	wait_end(&add);
	cr_expect_eq(add.res, -ETIMEDOUT);
	cr_expect_eq(ublk_ctl_hanging(ctl), 1);

	/* It comes back after all: nobody knows of its device, so it is deleted. */
	kernel_answer(&k, 0);
	cr_expect_eq(add.times, 1);
	cr_expect_eq(k.calls, 3);
	cr_expect_eq(k.call[2].command, UBLK_ABI_DEL_ASYNC);
	cr_expect_eq(k.call[2].dev_id, 1000000);
	cr_expect_eq(ublk_ctl_hanging(ctl), 0);
}

static struct ended stop_of(uint32_t dev_id)
{
	return (struct ended){
		.call = {.command = UBLK_ABI_STOP_DEV, .dev_id = dev_id, .on_end = on_end}};
}

/* Each in the kernel would keep one of its threads, of which there are few. */
Test(ublk_ctl, a_device_that_hangs_has_one_command_in_the_kernel)
{
	k.hang = UBLK_ABI_STOP_DEV;
	bound(10);
	for (unsigned i = 0; i < 5; i++) {
		struct ended again = stop_of(7);
		ublk_ctl_submit(ctl, &again.call);
		wait_end(&again);
		cr_expect_eq(again.res, -ETIMEDOUT);
		cr_expect_eq(again.times, 1);
	}
	cr_expect_eq(k.calls, 1);
	cr_expect_eq(ublk_ctl_hanging(ctl), 1);

	/* Others go on, and so do commands about no device. */
	k.hang = 0;
	struct ended other = stop_of(8);
	struct ended features = {
		.call = {.command = UBLK_ABI_GET_FEATURES, .dev_id = 7, .on_end = on_end}};
	struct ended add = {
		.call = {.command = UBLK_ABI_ADD_DEV, .dev_id = 1000000, .on_end = on_end}};
	ublk_ctl_submit(ctl, &other.call);
	ublk_ctl_submit(ctl, &features.call);
	ublk_ctl_submit(ctl, &add.call);
	cr_expect(other.times == 1 && other.res == 0);
	cr_expect(features.times == 1 && features.res == 0);
	cr_expect(add.times == 1 && add.res == 0);
	cr_expect_eq(k.calls, 4);
	kernel_answer(&k, 0);
	cr_expect_eq(ublk_ctl_hanging(ctl), 0);
}

Test(ublk_ctl, a_late_answer_lets_the_next_command_go)
{
	k.hang = UBLK_ABI_STOP_DEV;
	bound(10);
	struct ended stop = stop_of(7), again = stop_of(7);
	struct ended last = {
		.call = {.command = UBLK_ABI_DEL_ASYNC, .dev_id = 7, .on_end = on_end}};
	ublk_ctl_submit(ctl, &stop.call);
	wait_end(&stop);
	ublk_ctl_submit(ctl, &again.call);
	ublk_ctl_submit(ctl, &last.call);
	cr_expect_eq(k.calls, 1);

	/* One by one, in order; and this time within their bounds. */
	kernel_answer(&k, 0);
	cr_expect_eq(k.calls, 2);
	cr_expect(stop.times == 1 && again.times == 0 && last.times == 0);
	cr_expect_eq(ublk_ctl_hanging(ctl), 0);
	kernel_answer(&k, 1);
	cr_expect(again.times == 1 && again.res == 0);
	cr_expect(last.times == 1 && last.res == 0);
	cr_expect_eq(k.calls, 3);
	cr_expect_eq(k.call[2].command, UBLK_ABI_DEL_ASYNC);
}

/* Linux before 6.11: the caller does not notice. */
Test(ublk_ctl, a_kernel_that_only_deletes_in_step_is_asked_so)
{
	k.no_async = true;
	struct ended e = {.call = {.command = UBLK_ABI_DEL_ASYNC, .dev_id = 7, .on_end = on_end}};
	ublk_ctl_submit(ctl, &e.call);
	cr_expect(e.times == 1 && e.res == 0);
	cr_expect_eq(k.calls, 2);
	cr_expect_eq(k.call[1].command, UBLK_ABI_DEL_DEV);
	cr_expect_eq(k.call[1].dev_id, 7);
	cr_expect_not(ublk_ctl_busy(ctl, 7));
}

Test(ublk_ctl, commands_that_hang_use_slots_up)
{
	k.hang = UBLK_ABI_STOP_DEV;
	bound(1);
	for (unsigned i = 0; i < UBLK_CTL_SLOTS; i++) {
		struct ended e = stop_of(i);
		ublk_ctl_submit(ctl, &e.call);
		wait_end(&e);
		cr_assert_eq(e.res, -ETIMEDOUT);
	}
	struct ended last = stop_of(UBLK_CTL_SLOTS);
	ublk_ctl_submit(ctl, &last.call);
	wait_end(&last);
	cr_expect_eq(last.res, -EBUSY);
	cr_expect_eq(ublk_ctl_hanging(ctl), UBLK_CTL_SLOTS);

	/* Each that is answered gives its slot back. */
	for (unsigned i = 0; i < UBLK_CTL_SLOTS; i++)
		kernel_answer(&k, i);
	cr_expect_eq(ublk_ctl_hanging(ctl), 0);
	k.hang = 0;
	last = stop_of(UBLK_CTL_SLOTS);
	ublk_ctl_submit(ctl, &last.call);
	cr_expect(last.times == 1 && last.res == 0);
}

Test(ublk_ctl, no_module_is_named)
{
	k.fake.missing = -ENOENT;
	struct err err = {0};
	cr_expect_lt(ublk_ctl_ready(ctl, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(err.message, "ublk_drv"));
}
