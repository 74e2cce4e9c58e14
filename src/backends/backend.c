/* SPDX-License-Identifier: Apache-2.0 */
/* The table of backends, and what their callers share. */
#include "backends/backend.h"

#include <stddef.h>

const struct backend *backend_get(enum backend_type type)
{
	switch (type) {
	case BACKEND_LOOP:
		return &backend_loop;
	case BACKEND_UBLK: /* not in this build */
	case BACKEND_TYPES:
		break;
	}
	return NULL;
}

int backend_end(struct op *op, struct backend_req *req, int res)
{
	if (res < 0 && req->err.code != ERR_OK && op->err.code == ERR_OK)
		op->err = req->err;
	return res;
}
