/* SPDX-License-Identifier: Apache-2.0 */
/* Control commands through their real ring, to a driver that answers each with 0: /dev/null's. */
#include "backends/ublk/ublk_ctl.h"
#include "reactor/ring_uring.h"

#include <criterion/criterion.h>
#include <errno.h>

static unsigned refuse; /* so many submissions */

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);

int __wrap_io_uring_submit(struct io_uring *ring)
{
	if (refuse == 0)
		return __real_io_uring_submit(ring);
	refuse--;
	return -ENOMEM;
}

struct ended {
	struct ublk_ctl_call call;
	unsigned times;
	int res;
};

static struct ring *ring;
static struct ublk_ctl *ctl;

static void on_end(struct ublk_ctl_call *call, int res)
{
	struct ended *e = container_of(call, struct ended, call);
	e->times++;
	e->res = res;
}

static struct ended stop_of(uint32_t dev_id)
{
	return (struct ended){
		.call = {.command = UBLK_ABI_STOP_DEV, .dev_id = dev_id, .on_end = on_end}};
}

static int result_of(struct ended *e)
{
	ublk_ctl_submit(ctl, &e->call);
	while (e->times == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_eq(e->times, 1);
	return e->res;
}

static void setup(void)
{
	struct err err = {0};
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	const struct ublk_ctl_config config = {.ring = ring, .path = "/dev/null"};
	cr_assert_eq(ublk_ctl_open(&ctl, &config), 0);
	cr_assert_eq(ublk_ctl_ready(ctl, &err), 0, "%s", err.message);
	struct ended e = stop_of(0);
	if (result_of(&e) == -EOPNOTSUPP)
		cr_skip("this kernel's /dev/null has no commands by io_uring");
}

static void teardown(void)
{
	ublk_ctl_close(ctl);
	ring_close(ring);
}

TestSuite(ublk_ring, .init = setup, .fini = teardown);

Test(ublk_ring, commands_go_through)
{
	for (uint32_t i = 0; i < 3 * UBLK_CTL_SLOTS; i++) {
		struct ended e = stop_of(i);
		cr_assert_eq(result_of(&e), 0);
	}
	cr_expect_eq(ublk_ctl_hanging(ctl), 0);
}

/* The entry is in the ring, and must not go to the kernel with the next: its slot is another
 * command's by then. */
Test(ublk_ring, a_command_that_is_not_taken_is_answered_once)
{
	refuse = 1;
	struct ended refused = stop_of(1);
	cr_expect_eq(result_of(&refused), -ENOMEM);
	struct ended all[8];
	for (uint32_t i = 0; i < 8; i++) {
		all[i] = stop_of(i + 2);
		ublk_ctl_submit(ctl, &all[i].call);
	}
	for (uint32_t i = 0; i < 8; i++) {
		while (all[i].times == 0)
			cr_assert_eq(ring_turn(ring, true), 0);
		cr_expect(all[i].times == 1 && all[i].res == 0);
	}
	cr_expect_eq(refused.times, 1);
}

/* Longer than the ring has entries. */
Test(ublk_ring, commands_are_refused_as_long_as_the_kernel_takes_none)
{
	refuse = UINT32_MAX;
	for (uint32_t i = 0; i < UBLK_CTL_SLOTS + 10; i++) {
		struct ended e = stop_of(i);
		cr_assert_eq(result_of(&e), i < UBLK_CTL_SLOTS ? -ENOMEM : -EBUSY);
	}
	refuse = 0;
	struct ended e = stop_of(1);
	cr_expect_eq(result_of(&e), -EBUSY); /* and what was refused goes, as nothing */
	struct ended after = stop_of(1);
	cr_expect_eq(result_of(&after), 0);
}
