/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing without staging (--staging off): every operation failed at every step, several targets
 * of one volume, and restarts that change the mode while volumes are in use. */
#include "csi_calls.h"
#include "trials.h"

#include "blockio/boot_mark.h"
#include "csi/messages.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

static char first_path[96], second_path[96];

static void open_whole(enum world_fs fs, uint64_t seed, bool as_block)
{
	open_world(fs, seed, as_block);
	w->csi->config.staging = false;
	snprintf(first_path, sizeof(first_path), "%s/first", w->dir);
	snprintf(second_path, sizeof(second_path), "%s/second", w->dir);
}

static void restart(bool staging)
{
	world_restart(w);
	w->csi->config.staging = staging;
}

static void at(const char *path)
{
	snprintf(target_path, sizeof(target_path), "%s", path);
}

static enum grpc_status publish_second(void)
{
	at(second_path);
	enum grpc_status status = do_publish();
	at(first_path);
	return status;
}

static enum grpc_status unpublish_second(void)
{
	at(second_path);
	enum grpc_status status = undo_publish();
	at(first_path);
	return status;
}

static bool has(const char *what)
{
	char left[INVENTORY_BYTES];
	world_inventory(w, left, sizeof(left));
	return strstr(left, what) != NULL;
}

static bool is_read_only(const char *path)
{
	struct statvfs st;
	cr_assert_eq(statvfs(path, &st), 0, "%s", path);
	return (st.f_flag & ST_RDONLY) != 0;
}

static void nothing_left(void)
{
	world_settle(w);
	cr_assert(!has("device "));
	cr_assert(!has("mount "));
	cr_assert_neq(access(first_path, F_OK), 0);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- every step ---- */

static void fail_all(enum world_fs fs, bool as_block)
{
	for (uint64_t seed = 1; seed <= 2; seed++) {
		open_whole(fs, seed, as_block);
		at(first_path);
		cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
		cr_assert_gt(fail_each_step(&(struct trial){"NodePublishVolume, the first",
				     do_publish, undo_publish, true}),
			as_block ? 5 : 10);
		cr_assert_eq(do_publish(), GRPC_OK);
		cr_assert_gt(fail_each_step(&(struct trial){"NodePublishVolume, one more",
				     publish_second, unpublish_second, true}),
			5);
		cr_assert_eq(publish_second(), GRPC_OK);
		cr_assert_gt(fail_each_step(&(struct trial){"NodeUnpublishVolume, not the last",
				     unpublish_second, publish_second, false}),
			2);
		cr_assert_eq(unpublish_second(), GRPC_OK);
		cr_assert_gt(fail_each_step(&(struct trial){"NodeUnpublishVolume, the last",
				     undo_publish, do_publish, false}),
			4);
		cr_assert_eq(undo_publish(), GRPC_OK);
		nothing_left();
	}
}

Test(csi_whole, mount_volume_fails_at_every_step, .timeout = 300)
{
	fail_all(WORLD_XFS, false);
}

Test(csi_whole, mount_volume_without_reflink_fails_at_every_step, .timeout = 300)
{
	fail_all(WORLD_EXT4, false);
}

Test(csi_whole, block_volume_fails_at_every_step, .timeout = 300)
{
	fail_all(WORLD_XFS, true);
}

/* ---- several targets ---- */

/* The one that was published first may go first, and each target is as writable as it was asked
 * for. */
static void several(bool as_block)
{
	open_whole(WORLD_XFS, 1, as_block);
	at(first_path);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	publish_read_only = !as_block;
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK, "a repeat");
	publish_read_only = false;
	cr_assert_eq(publish_second(), GRPC_OK);
	if (!as_block) {
		cr_assert(is_read_only(first_path));
		cr_assert(!is_read_only(second_path));
	}
	cr_assert_eq(delete (volume_id), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK, "a repeat");
	cr_assert(has("device "), "the second target has it still");
	cr_assert_eq(do_publish(), GRPC_OK, "bound from the second one");
	cr_assert_eq(unpublish_second(), GRPC_OK);
	cr_assert(has("device "));
	cr_assert_eq(undo_publish(), GRPC_OK);
	nothing_left();
}

Test(csi_whole, several_targets_of_a_mount_volume, .timeout = 300)
{
	several(false);
}

Test(csi_whole, several_targets_of_a_block_volume, .timeout = 300)
{
	several(true);
}

/* A restart knows both, and takes neither for a staging path, in either mode. */
Test(csi_whole, several_targets_survive_restarts, .timeout = 300)
{
	for (unsigned staging = 0; staging < 2; staging++) {
		open_whole(WORLD_XFS, 1, false);
		at(first_path);
		cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
		cr_assert_eq(do_publish(), GRPC_OK);
		cr_assert_eq(publish_second(), GRPC_OK);
		restart(staging);
		cr_assert_eq(undo_publish(), GRPC_OK);
		cr_assert_neq(access(first_path, F_OK), 0);
		cr_assert_eq(access(second_path, F_OK), 0);
		cr_assert(has("device "));
		if (staging) { /* and its orchestrator stages from now on */
			cr_assert_eq(do_stage(), GRPC_OK);
			cr_assert_eq(do_publish(), GRPC_OK);
			cr_assert_eq(undo_publish(), GRPC_OK);
		}
		cr_assert_eq(unpublish_second(), GRPC_OK);
		cr_assert(staging == has("device "));
		if (staging)
			cr_assert_eq(undo_stage(), GRPC_OK);
		nothing_left();
	}
}

/* What was staged by an earlier run goes with the last unpublish: nobody will unstage it. */
static void was_staged(bool as_block)
{
	open_whole(WORLD_XFS, 1, as_block);
	w->csi->config.staging = true;
	at(first_path);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	restart(false);
	cr_assert_eq(do_publish(), GRPC_OK, "found");
	cr_assert_eq(publish_second(), GRPC_OK);
	restart(false);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert(has("device "));
	cr_assert_eq(unpublish_second(), GRPC_OK);
	nothing_left();
}

Test(csi_whole, what_was_staged_of_a_mount_volume_goes_with_it, .timeout = 300)
{
	was_staged(false);
}

Test(csi_whole, what_was_staged_of_a_block_volume_goes_with_it, .timeout = 300)
{
	was_staged(true);
}

/* Killed after the device was attached, and before anything was mounted: a publish goes on, an
 * unpublish takes it away. */
static void killed(enum grpc_status (*then)(void))
{
	open_whole(WORLD_XFS, 1, false);
	at(first_path);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	w->csi->config.staging = true;
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(umount(staging_path), 0);
	restart(false);
	cr_assert(has("device "));
	cr_assert(!has("mount "));
	cr_assert_eq(then(), GRPC_OK);
	if (then == do_publish) {
		cr_assert(has("mount "));
		cr_assert_eq(undo_publish(), GRPC_OK);
	}
	nothing_left();
}

Test(csi_whole, killed_before_the_mount_then_published, .timeout = 300)
{
	killed(do_publish);
}

Test(csi_whole, killed_before_the_mount_then_unpublished, .timeout = 300)
{
	killed(undo_publish);
}
