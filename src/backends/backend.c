/* SPDX-License-Identifier: Apache-2.0 */
/* The table of backends, and what their callers share. */
#include "backends/backend.h"

#include <stddef.h>

static const struct backend *table[BACKEND_TYPES] = {[BACKEND_LOOP] = &backend_loop};

const struct backend *backend_get(enum backend_type type)
{
	return type < BACKEND_TYPES ? table[type] : NULL;
}

int backend_check(enum backend_type type, bool raw, struct err *err)
{
	const struct backend *backend = backend_get(type);
	if (backend == NULL)
		return err_set(err, ERR_PRECONDITION,
			"volumes of this device type are switched off on this node%s",
			type == BACKEND_UBLK ? " (--ublkd off)" : "");
	return backend->check == NULL ? 0 : backend->check(backend, raw, err);
}

int backend_check_encrypted(enum backend_type type, struct err *err)
{
	const struct backend *backend = backend_get(type);
	return backend == NULL || backend->check_encrypted == NULL ? 0
								   : backend->check_encrypted(err);
}

void backend_add(const struct backend *backend)
{
	table[backend->type] = backend;
}

void backend_remove(const struct backend *backend)
{
	table[backend->type] = NULL;
}

int backend_end(struct op *op, struct backend_req *req, int res)
{
	if (res < 0 && req->err.code != ERR_OK && op->err.code == ERR_OK)
		op->err = req->err;
	return res;
}
