/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes in use that are copied: they are not left frozen, are measured after their sync, and are
 * copied only where they can be held still for it. */
#include "csi_calls.h"

#include "../unit/sim_time.h"
#include "node/health.h"
#include "node/volume.h"
#include "pool/build.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <unistd.h>

/* ---- a volume is not left frozen ---- */

static unsigned thaws;
enum { THAWS_MAX = 10 };
static struct helper_call crowd[HELPER_QUEUE_MAX];

static int thaw_fails(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (strcmp(op_name, "thaw") != 0 || strcmp(step_name, "thaw") != 0)
		return 0;
	thaws++;
	return -EIO;
}

static void crowd_ends(struct helper_call *call, int res)
{
	(void)call;
	(void)res;
}

/* No more calls can wait when the volume is to be thawed. */
static int thaw_finds_a_crowd(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (strcmp(op_name, "thaw") != 0 || strcmp(step_name, "thaw") != 0)
		return 0;
	thaws++;
	for (unsigned i = 0; i < HELPER_QUEUE_MAX; i++) {
		/* Refused when its turn comes: there is no request. */
		crowd[i] = (struct helper_call){.fn = MNT_INSPECT, .on_end = crowd_ends};
		cr_assert_eq(helpers_submit(w->reactor.helpers, &crowd[i]), 0);
	}
	return 0;
}

static void open_staged(enum world_fs fs, uint64_t size)
{
	open_world(fs, 1, false);
	thaws = 0;
	create_bytes = size;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
}

static void close_staged(void)
{
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* CreateSnapshot and CreateVolume of a volume in use, the thaw met by the fault. */
static void with_frozen_volume(enum grpc_status (*make)(void), enum grpc_status (*back)(void),
	int (*fault)(void *arg, const char *op_name, const char *step_name),
	enum grpc_status expected)
{
	open_staged(WORLD_EXT4, 16 * MIB);
	int (*none)(void *arg, const char *op_name, const char *step_name) = w->observer.before;
	w->observer.before = fault;
	cr_assert_eq(make(), expected);
	cr_assert_eq(thaws, 1);
	cr_assert_eq(is_frozen(), expected != GRPC_OK);
	w->observer.before = none;
	cr_assert_eq(make(), GRPC_OK);
	cr_assert(!is_frozen(), "it is answered with OK and the volume is frozen");
	cr_assert_eq(back(), GRPC_OK);
	close_staged();
}

Test(csi, a_repeated_snapshot_thaws_what_the_first_one_left_frozen, .timeout = 300)
{
	with_frozen_volume(do_snapshot, undo_snapshot, thaw_fails, GRPC_INTERNAL);
}

Test(csi, a_repeated_clone_thaws_what_the_first_one_left_frozen, .timeout = 300)
{
	with_frozen_volume(do_clone, undo_create, thaw_fails, GRPC_INTERNAL);
}

Test(csi, a_thaw_waits_for_room_among_the_calls, .timeout = 300)
{
	with_frozen_volume(do_snapshot, undo_snapshot, thaw_finds_a_crowd, GRPC_OK);
}

static int thaw_overstays(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	if (++thaws > THAWS_MAX)
		return mnt_calls[MNT_THAW](req, req_len, resp, resp_len);
	*resp_len = 0;
	return -ETIMEDOUT;
}

Test(csi, a_thaw_that_overstays_is_tried_until_it_comes_about, .timeout = 300)
{
	open_staged(WORLD_EXT4, 16 * MIB);
	w->calls[MNT_THAW] = thaw_overstays;
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(thaws, THAWS_MAX + 1);
	cr_assert(!is_frozen());
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	close_staged();
}

static int thaw_overstays_and_all_ends(
	const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	if (++thaws == THAWS_MAX)
		csi_drain(w->csi, NULL, NULL);
	return -ETIMEDOUT;
}

Test(csi, a_thaw_is_left_to_the_next_run_at_a_shutdown, .timeout = 300)
{
	open_staged(WORLD_EXT4, 16 * MIB);
	w->calls[MNT_THAW] = thaw_overstays_and_all_ends;
	cr_assert_eq(do_snapshot(), GRPC_DEADLINE_EXCEEDED);
	cr_assert_eq(thaws, THAWS_MAX);
	cr_assert(is_frozen());
	world_restart(w);
	cr_assert(!is_frozen());
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	close_staged();
}

/* ---- adoption thaws as well ---- */

/* As after a restart: nothing is known of the volume. */
static void forget(void)
{
	struct pool_object *volume;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	node_volume_free(volume->node);
	volume->node = NULL;
}

static int thaw_fails_twice(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	if (++thaws > 2)
		return mnt_calls[MNT_THAW](req, req_len, resp, resp_len);
	*resp_len = 0;
	return -EIO;
}

static int inspect_overstays(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	return -ETIMEDOUT;
}

/* Meanwhile nobody unstages it. Where it is mounted has just been read: no other call on what is
 * frozen is in the thaw's way. */
Test(csi, adoption_tries_a_thaw_again_and_holds_the_volume, .timeout = 300)
{
	open_staged(WORLD_EXT4, 16 * MIB);
	leave_frozen();
	forget();
	w->calls[MNT_THAW] = thaw_fails_twice;
	w->calls[MNT_INSPECT] = inspect_overstays;
	node_adopt(w->csi->node, NULL, NULL);
	while (thaws == 0)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert_eq(undo_stage(), GRPC_ABORTED);
	while (node_adopting(w->csi->node))
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert_eq(thaws, 3);
	cr_assert(!is_frozen());
	w->calls[MNT_INSPECT] = mnt_calls[MNT_INSPECT];
	close_staged();
}

/* All that is to be known waits for adoption, so it waits for one thaw's bound and no longer. */
Test(csi, adoption_waits_for_one_thaw_that_overstays, .timeout = 300)
{
	open_staged(WORLD_EXT4, 16 * MIB);
	leave_frozen();
	forget();
	w->calls[MNT_THAW] = thaw_overstays;
	world_adopt(w);
	cr_assert_eq(thaws, 1);
	cr_assert(is_frozen());
	cr_assert(node_adopted(w->csi->node, NULL));
	w->calls[MNT_THAW] = mnt_calls[MNT_THAW];
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert(!is_frozen());
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	close_staged();
}

static const char *fault_op, *fault_step;

static int named_step_fails(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (fault_op == NULL || strcmp(op_name, fault_op) != 0 ||
		strcmp(step_name, fault_step) != 0)
		return 0;
	fault_op = NULL;
	return -EIO;
}

/* Whatever of it fails, everything is known afterwards, and the next snapshot thaws. */
Test(csi, adoption_leaves_what_it_cannot_thaw_to_the_next_snapshot, .timeout = 300)
{
	static const char *const steps[][2] = {
		{"marks", "look for our marks"},
		{"marks", "thaw leftover"},
		{"thaw leftover", "look for mark"},
		{"thaw leftover", "thaw leftover"},
		{"thaw leftover", "unmark leftover"},
	};
	open_staged(WORLD_EXT4, 16 * MIB);
	w->observer.before = named_step_fails;
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		leave_frozen();
		forget();
		fault_op = steps[i][0];
		fault_step = steps[i][1];
		world_adopt(w);
		cr_assert_null(fault_op, "%s/%s did not run", steps[i][0], steps[i][1]);
		cr_assert(node_adopted(w->csi->node, NULL));
		cr_assert_eq(do_snapshot(), GRPC_OK, "after %s", steps[i][1]);
		cr_assert(!is_frozen(), "after %s", steps[i][1]);
		cr_assert_eq(undo_snapshot(), GRPC_OK);
	}
	close_staged();
}

/* ---- a volume is held still where it is mounted, whatever memory says ---- */

static char synced_at[4][MNT_PATH_BYTES];
static unsigned syncs;

static int sync_is_noted(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_on_req *on = req;
	cr_assert_lt(syncs, 4);
	strcpy(synced_at[syncs++], on->at.path);
	return mnt_calls[MNT_SYNC](req, req_len, resp, resp_len);
}

static void snapshot_syncs(unsigned expected)
{
	syncs = 0;
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(syncs, expected, "%u syncs", syncs);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
}

static void unmounted_behind_our_back(enum world_fs fs)
{
	open_staged(fs, 16 * MIB);
	cr_assert_eq(do_publish(), GRPC_OK);
	w->calls[MNT_SYNC] = sync_is_noted;
	snapshot_syncs(1);
	char known[MNT_PATH_BYTES];
	strcpy(known, synced_at[0]);
	const char *other = strcmp(known, staging_path) == 0 ? target_path : staging_path;
	cr_assert_eq(umount2(known, 0), 0);
	snapshot_syncs(2);
	cr_assert_str_eq(synced_at[0], known);
	cr_assert_str_eq(synced_at[1], other);
	cr_assert(!is_frozen_at(other));
	/* Another's mount is there. */
	cr_assert_eq(mount("none", known, "tmpfs", 0, NULL), 0);
	snapshot_syncs(2);
	cr_assert_str_eq(synced_at[1], other);
	cr_assert_eq(umount2(known, 0), 0);
	/* It is mounted nowhere: what there is to sync is the device's. */
	cr_assert_eq(umount2(other, 0), 0);
	snapshot_syncs(2);
	cr_assert_eq(strncmp(synced_at[1], "/dev/", 5), 0, "%s", synced_at[1]);
	cr_assert_eq(undo_publish(), GRPC_OK);
	close_staged();
}

Test(csi, a_volume_unmounted_behind_our_back_is_shared, .timeout = 300)
{
	unmounted_behind_our_back(WORLD_XFS);
}

Test(csi, a_volume_unmounted_behind_our_back_is_copied, .timeout = 300)
{
	unmounted_behind_our_back(WORLD_EXT4);
}

static int sync_finds_another(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	syncs++;
	*resp_len = sizeof(struct mnt_result);
	*(struct mnt_result *)resp = (struct mnt_result){0};
	return -EXDEV;
}

Test(csi, a_volume_that_is_never_where_it_was_is_to_be_tried_again, .timeout = 300)
{
	open_staged(WORLD_XFS, 16 * MIB);
	w->calls[MNT_SYNC] = sync_finds_another;
	cr_assert_eq(do_snapshot(), GRPC_UNAVAILABLE);
	cr_assert_eq(syncs, 2);
	w->calls[MNT_SYNC] = mnt_calls[MNT_SYNC];
	close_staged();
}

/* ---- a sync that overstays is not the last word ---- */

static int sync_overstays(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	return -ETIMEDOUT;
}

static bool hangs(void)
{
	struct pool_object *volume;
	struct err err = {0};
	struct arena *arena = arena_new(0);
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	const char *why = node_volume_abnormal(arena, w->csi->node, volume);
	bool hanging = why != NULL && strstr(why, "hanging") != NULL;
	arena_unref(arena);
	return hanging;
}

Test(csi, a_volume_whose_sync_overstayed_is_looked_at, .timeout = 300)
{
	open_staged(WORLD_XFS, 16 * MIB);
	w->calls[MNT_SYNC] = sync_overstays;
	cr_assert_eq(do_snapshot(), GRPC_DEADLINE_EXCEEDED);
	cr_assert(hangs());
	cr_assert_eq(node_watch_open(w->csi->node), 0);
	sim_pass_ms(w->reactor.ring, NODE_HUNG_CHECKUP_MS + 2 * NODE_WATCH_MS);
	cr_assert(!hangs());
	node_watch_close(w->csi->node);
	w->calls[MNT_SYNC] = mnt_calls[MNT_SYNC];
	close_staged();
}

/* ---- a volume is measured after its sync ---- */

static uint64_t dirty_bytes;

/* What writing back a page cache does to the image. */
static int sync_writes(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/volumes/base", w->pool_path);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)dirty_bytes), 0);
	close(fd);
	return mnt_calls[MNT_SYNC](req, req_len, resp, resp_len);
}

static int freeze_is_counted(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	thaws++;
	return mnt_calls[MNT_FREEZE](req, req_len, resp, resp_len);
}

static void refuse_dirty(enum world_fs fs, uint64_t size, uint64_t dirty, enum grpc_status expected)
{
	open_staged(fs, size);
	dirty_bytes = dirty;
	w->calls[MNT_SYNC] = sync_writes;
	w->calls[MNT_FREEZE] = freeze_is_counted;
	cr_assert_eq(do_snapshot(), expected);
	cr_assert(!is_frozen());
	if (expected == GRPC_FAILED_PRECONDITION)
		cr_assert_eq(thaws, 0, "it was frozen in vain");
	close_staged();
}

Test(csi, what_a_sync_writes_counts_for_the_freeze, .timeout = 300)
{
	refuse_dirty(WORLD_EXT4, 512 * MIB, 300 * MIB, GRPC_FAILED_PRECONDITION);
}

/* 600 MiB of XFS have 510 to promise; with 300 of them for the volume, a snapshot that may cost 220
 * has no room. */
Test(csi, what_a_sync_writes_counts_for_the_room, .timeout = 300)
{
	refuse_dirty(WORLD_XFS, 300 * MIB, 220 * MIB, GRPC_RESOURCE_EXHAUSTED);
}

/* ---- extents that the file system does not share after all ---- */

static unsigned sharings;

static int share_refused(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	bool share = strcmp(op_name, "pool_build") == 0 && strcmp(step_name, "share") == 0;
	sharings += share;
	return share ? -EOPNOTSUPP : 0;
}

/* What was to be shared is not copied while it is in use; detached, it is. */
Test(csi, what_cannot_be_shared_is_not_copied_from_under_its_users, .timeout = 300)
{
	open_staged(WORLD_XFS, 16 * MIB);
	w->observer.before_call = share_refused;
	cr_assert_eq(do_snapshot(), GRPC_FAILED_PRECONDITION);
	cr_assert(!is_frozen());
	cr_assert_eq(do_clone(), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(do_clone(), GRPC_OK);
	cr_assert_eq(sharings, 4, "sharing was tried %u times", sharings);
	cr_assert_eq(undo_create(), GRPC_OK);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	w->observer.before_call = NULL;
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- copies of what is not attached ---- */

/* Somebody has the image: a copy would be torn. */
Test(csi, an_image_that_is_locked_is_not_copied, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	int fd = openat(
		pool_dirfd(pools_at(w->pools, 0), RECORD_VOLUME), "base", O_RDONLY | O_CLOEXEC);
	cr_assert_eq(flock(fd, LOCK_EX), 0);
	cr_assert_eq(do_snapshot(), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(do_clone(), GRPC_FAILED_PRECONDITION);
	close(fd);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	cr_assert_eq(delete (volume_id), GRPC_OK);
	world_close(w);
}

static void drain_at_the_build(const char *op_name, const char *step_name)
{
	(void)step_name;
	if (strcmp(op_name, "pool_build") == 0) {
		w->on_step = NULL;
		csi_drain(w->csi, NULL, NULL);
	}
}

/* A long copy is not waited for; the client asks the next run for it. */
Test(csi, a_copy_is_stopped_at_a_shutdown, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	w->on_step = drain_at_the_build;
	cr_assert_eq(do_clone(), GRPC_UNAVAILABLE);
	world_restart(w);
	cr_assert_eq(do_clone(), GRPC_OK);
	cr_assert_eq(undo_create(), GRPC_OK);
	cr_assert_eq(delete (volume_id), GRPC_OK);
	world_close(w);
}
