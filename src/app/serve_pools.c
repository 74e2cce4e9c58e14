/* SPDX-License-Identifier: Apache-2.0 */
/* What the log says of pools: how each is when it changes, and what nobody can mend. */
#include "app/serve_pools.h"

#include "base/log.h"

const char *serve_pool_state(const struct pool *pool)
{
	static const char *const names[] = {
		[POOL_LOADING] = "loading",
		[POOL_READY] = "ready",
		[POOL_MISSING] = "missing",
		[POOL_SICK] = "sick",
	};
	return names[pool_state(pool)];
}

void serve_pool_log(const struct pool *pool)
{
	const char *why = pool_why(pool);
	log_event(pool_state(pool) == POOL_READY ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "pool",
		log_fields({"pool", pool_name(pool)}, {"path", pool_path(pool)},
			{"state", serve_pool_state(pool)}, {"why", *why != '\0' ? why : NULL}));
}

void serve_pool_log_no_journal(
	const struct pools *pools, const struct pool *pool, bool said[POOLS_MAX])
{
	unsigned i = 0;
	while (pools_at(pools, i) != pool)
		i++;
	if (pool_state(pool) != POOL_READY || !pool_features(pool)->no_journal || said[i])
		return;
	said[i] = true;
	log_event(LOG_LEVEL_WARN,
		"the pool's file system has no journal that sysfs tells of: " FS_NO_JOURNAL,
		log_fields({"pool", pool_name(pool)}, {"path", pool_path(pool)},
			{"remedy", FS_NO_JOURNAL_REMEDY}));
}
