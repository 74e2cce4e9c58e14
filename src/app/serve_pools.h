/* SPDX-License-Identifier: Apache-2.0 */
/* What the log of `ringvol serve` says of pools. */
#ifndef RINGVOL_SERVE_POOLS_H
#define RINGVOL_SERVE_POOLS_H

#include "pool/pool.h"
#include "pool/pools.h"

/* "ready", "missing", "sick" or "loading". */
const char *serve_pool_state(const struct pool *pool);
/* Its state, and why it is not ready. */
void serve_pool_log(const struct pool *pool);
/* Once of each pool. Its files are made durable one by one, but nothing mends the file system. */
void serve_pool_log_no_journal(
	const struct pools *pools, const struct pool *pool, bool said[POOLS_MAX]);

#endif
