/* SPDX-License-Identifier: Apache-2.0 */
/* ControllerModifyVolume: which volumes may be erased later, and when it is too early to ask. */
#include "answers.h"

#include "pool/index.h"
#include "pool/private.h"

#include "csi_calls.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct pool_object *volume(void)
{
	struct pool_object *found = pools_find_name(w->pools, RECORD_VOLUME, "base");
	cr_assert_not_null(found);
	return found;
}

/* words: "": it is recorded. Else it stays what it was. */
static void erases(enum record_erase erase, const char *words)
{
	static const char *const names[] = {[RECORD_ERASE_NONE] = "none",
		[RECORD_ERASE_DISCARD] = "discard",
		[RECORD_ERASE_ZERO] = "zero"};
	enum record_erase was = volume()->rec->erase;
	says(asks_modify("eraseOnDelete", names[erase]), "%s", words);
	cr_expect_eq(volume()->rec->erase, words[0] == '\0' ? erase : was);
}

/* Only what is the volume's own can be erased when it goes; what is so already may stay so. */
Test(csi_modify, what_may_be_erased, .timeout = 120)
{
	static const char shares[] =
		"9: mutable_parameters: eraseOnDelete would erase nothing of what volume base shares with its source, snapshots or clones";
	static const char began[] =
		"9: mutable_parameters: eraseOnDelete: zero is for volumes that were made with it or with provisioning thick: volume base began as a copy that shares blocks";
	open_world(WORLD_XFS, 1, true);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	struct pool *pool = volume()->pool;
	pool->features.discard = true;
	erases(RECORD_ERASE_ZERO, "");
	erases(RECORD_ERASE_NONE, "");
	volume()->shared = true;
	erases(RECORD_ERASE_NONE, "");
	erases(RECORD_ERASE_ZERO, shares);
	erases(RECORD_ERASE_DISCARD, shares);
	volume()->shared = false;
	volume()->rec->shares_extents = true;
	erases(RECORD_ERASE_DISCARD, shares);
	volume()->rec->shares_extents = false;
	/* Its file system came with a template's blocks. */
	volume()->rec->fs = FSIMG_EXT4;
	erases(RECORD_ERASE_ZERO, began);
	erases(RECORD_ERASE_DISCARD, "");
	erases(RECORD_ERASE_ZERO, began);
	volume()->rec->thick = true;
	erases(RECORD_ERASE_ZERO, "");
	erases(RECORD_ERASE_NONE, "");
	volume()->rec->thick = false;
	pool->features.reflink = false;
	erases(RECORD_ERASE_ZERO, "");
	pool->features.reflink = true;
	/* It is so already. */
	volume()->shared = true;
	erases(RECORD_ERASE_ZERO, "");
	volume()->shared = false;
	pool->features.nocow_lies = true;
	erases(RECORD_ERASE_ZERO,
		"9: eraseOnDelete would erase nothing in pool default, whose file system copies on write; use a pool on XFS or ext4");
	erases(RECORD_ERASE_NONE, "");
	world_close(w);
}

/* Limits are of a pool that can be written, and of a volume whose device is known. */
Test(csi_modify, too_early, .timeout = 120)
{
	open_world(WORLD_XFS, 1, true);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	pool_enter(volume()->pool, POOL_READ_ONLY, "%s", "it cannot be written");
	says(asks_modify("iops", "100"), "14: it cannot be written");
	pool_enter(volume()->pool, POOL_SERVED, "%s", "");
	cr_assert_eq(do_stage(), GRPC_OK);
	w->scan_faults = 1;
	world_restart(w);
	says(asks_modify("iops", "100"),
		"14: devices of an earlier run are still being looked for; try again");
	cr_expect_eq(volume()->rec->limits.read_iops, 0);
	world_settle(w);
	says(asks_modify("iops", "100"), "%s", "");
	cr_expect_eq(volume()->rec->limits.read_iops, 100);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}
