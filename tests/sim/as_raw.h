/* SPDX-License-Identifier: Apache-2.0 */
/* A pool in a directory that passes for one on raw disks, where nothing but that is asked: the
 * program's pool_is_raw is wrapped (tests/meson.build). */
#ifndef RINGVOL_TESTS_SIM_AS_RAW_H
#define RINGVOL_TESTS_SIM_AS_RAW_H

#include "pool/pool.h"

static bool is_raw;

bool __real_pool_is_raw(const struct pool *pool);
bool __wrap_pool_is_raw(const struct pool *pool);
bool __wrap_pool_is_raw(const struct pool *pool)
{
	return is_raw || __real_pool_is_raw(pool);
}

#endif
