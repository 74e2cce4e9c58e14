/* SPDX-License-Identifier: Apache-2.0 */
#include "app/borrow_option.h"

#include "app/values.h"

#include <string.h>

int borrow_option_loss(struct fabrics_waits *ret, const char *value, struct err *err)
{
	uint64_t seconds;
	int r = value_duration(value, BORROW_OPTION_MAX_S, &seconds, err);
	if (r == 0)
		ret->loss_s = (uint32_t)seconds;
	return r;
}

int borrow_option_fail(struct fabrics_waits *ret, const char *value, struct err *err)
{
	uint64_t seconds = 0;
	int r = strcmp(value, "off") == 0
			? 0
			: value_duration(value, BORROW_OPTION_MAX_S, &seconds, err);
	if (r == 0)
		ret->fail_s = (uint32_t)seconds;
	return r;
}
