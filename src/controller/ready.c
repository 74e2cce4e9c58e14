/* SPDX-License-Identifier: Apache-2.0 */
/* Read from memory: /readyz, Inspect.Health and the gRPC health service say it. */
#include "controller/ready.h"

int ready_check(const struct controller *c, struct err *err)
{
	if (c->draining)
		return err_set(err, ERR_UNAVAILABLE, "the controller is about to end");
	return c->only != NULL ? 0 : store_whole(c->store, err);
}
