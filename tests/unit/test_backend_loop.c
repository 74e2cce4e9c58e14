/* SPDX-License-Identifier: Apache-2.0 */
/* Whether raw volumes can be had as loop devices: only with a guard, or where that is not wanted.
 */
#include "backends/loop.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct backend_loop_config none = {.dm_control_path = "/nonexistent/control"};

Test(backend_loop, without_device_mapper_raw_volumes_are_refused)
{
	struct err err = {0};
	backend_loop_configure(&none);
	cr_assert_lt(backend_check(BACKEND_LOOP, true, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(err.message, "modprobe dm_mod"), "%s", err.message);
	cr_expect_not_null(strstr(err.message, "--block-on-loop"), "%s", err.message);
	cr_expect_eq(backend_check(BACKEND_LOOP, false, &err), 0, "mounted ones need none");
}

Test(backend_loop, unless_the_operator_accepts_loop_nodes)
{
	struct backend_loop_config accepting = none;
	struct err err = {0};
	accepting.block_on_loop = true;
	backend_loop_configure(&accepting);
	cr_expect_eq(backend_check(BACKEND_LOOP, true, &err), 0, "%s", err.message);
}

Test(backend_loop, what_is_below_is_what_counts)
{
	uint32_t dev_major, dev_minor;
	struct backend_dev dev = {.major = 7, .minor = 5};
	backend_dev_below(&dev, &dev_major, &dev_minor);
	cr_expect(dev_major == 7 && dev_minor == 5);
	dev = (struct backend_dev){.major = 253, .minor = 1, .below_major = 7, .below_minor = 5};
	backend_dev_below(&dev, &dev_major, &dev_minor);
	cr_expect(dev_major == 7 && dev_minor == 5);
}
