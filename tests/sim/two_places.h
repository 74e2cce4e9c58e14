/* SPDX-License-Identifier: Apache-2.0 */
/* A world with a volume "base" (volume_id), which may be published at two places. For one file of
 * tests each. */
#ifndef RINGVOL_TESTS_SIM_TWO_PLACES_H
#define RINGVOL_TESTS_SIM_TWO_PLACES_H

#include "answers.h"
#include "csi_calls.h"

#include "pool/index.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static char first_path[96], second_path[112];

static inline void open_with_volume(enum world_fs fs, bool as_block)
{
	open_world(fs, 1, as_block);
	strcpy(first_path, target_path);
	snprintf(second_path, sizeof(second_path), "%s-2", first_path);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
}

static inline void at(const char *path)
{
	snprintf(target_path, sizeof(target_path), "%.95s", path);
}

static inline const char *publish_at(const char *path)
{
	at(path);
	return asks_publish();
}

static inline struct pool_object *volume_of(const char *name)
{
	struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, name);
	cr_assert_not_null(volume);
	return volume;
}

static inline void close_unused(void)
{
	no_device();
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* Unpublished at both, unstaged and deleted; the world is closed. */
static inline void let_go(void)
{
	for (unsigned i = 0; i < 2; i++) {
		at(i == 0 ? first_path : second_path);
		cr_assert_eq(undo_publish(), GRPC_OK);
	}
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_unused();
}

#endif
