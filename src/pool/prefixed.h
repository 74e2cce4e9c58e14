/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes whose names begin with a prefix: what another protocol's users have made (docker,
 * provider). The prefix is all that tells them from others.
 */
#ifndef RINGVOL_POOL_PREFIXED_H
#define RINGVOL_POOL_PREFIXED_H

#include "pool/pool.h"

/* A volume's name behind the prefix; NULL: it has no such name, is inline, or nobody can tell. */
const char *prefixed_name_of(const struct pool_object *volume, const char *prefix);
/* The first one behind the key ("": the first of all) in the pool's own order; NULL at the end. It
 * looks at few other volumes. */
struct pool_object *prefixed_next(
	const struct pool *pool, const char *prefix, const char *after_key);

#endif
