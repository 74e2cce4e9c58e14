/* SPDX-License-Identifier: Apache-2.0 */
/* The log of a file system that grows is clean before the answer; where an attempt came no further,
 * the repeat, the next copy or the next run of the driver sees to it. */
#include "csi_calls.h"

#include "blockio/boot_mark.h"
#include "csi/messages.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { XFS_MIB = 300 };

static unsigned freezes;
static bool freezes_fail;

static int freeze_is_counted(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	freezes++;
	if (!freezes_fail)
		return mnt_calls[MNT_CLEAN](req, req_len, resp, resp_len);
	*resp_len = 0;
	return -EIO;
}

static void count_freezes(bool fail)
{
	freezes = 0;
	freezes_fail = fail;
	w->calls[MNT_CLEAN] = freeze_is_counted;
}

static bool is_marked(void)
{
	char image[128];
	snprintf(image, sizeof(image), "%s/volumes/base", w->pool_path);
	int fd = open(image, O_RDONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	bool marked = boot_mark_get(fd, BOOT_MARK_GROWN, NULL);
	close(fd);
	return marked;
}

/* A volume whose snapshots are not frozen for, unless there is a reason. */
static void open_published(void)
{
	open_world(WORLD_XFS, 1, false);
	fs_type = "xfs"; /* ext4's online growth needs CAP_SYS_RESOURCE */
	snapshot_freeze = "false";
	create_bytes = XFS_MIB * MIB;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
}

static void close_published(void)
{
	cr_assert(!is_frozen());
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

static void snapshot_freezes(unsigned expected)
{
	count_freezes(false);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(freezes, expected, "%u freezes", freezes);
	cr_assert(!is_marked());
	cr_assert_eq(undo_snapshot(), GRPC_OK);
}

Test(csi, a_growth_ends_with_its_log_clean, .timeout = 300)
{
	open_published();
	snapshot_freezes(0);
	count_freezes(false);
	cr_assert_eq(node_expand((XFS_MIB + 1) * MIB), GRPC_OK);
	cr_assert_eq(freezes, 1);
	cr_assert(!is_marked());
	cr_assert(!is_frozen());
	snapshot_freezes(0);
	/* No pod notices that a growth is repeated, or what is staged is staged again by the next
	 * run. */
	count_freezes(false);
	cr_assert_eq(node_expand((XFS_MIB + 1) * MIB), GRPC_OK);
	world_restart(w);
	count_freezes(false);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(freezes, 0);
	cr_assert(!is_marked());
	close_published();
}

Test(csi, a_repeated_growth_cleans_the_log, .timeout = 300)
{
	open_published();
	count_freezes(true);
	cr_assert_eq(node_expand((XFS_MIB + 1) * MIB), GRPC_INTERNAL);
	cr_assert(is_marked());
	count_freezes(false);
	cr_assert_eq(node_expand((XFS_MIB + 1) * MIB), GRPC_OK);
	cr_assert_eq(freezes, 1);
	cr_assert(!is_marked());
	close_published();
}

Test(csi, a_copy_freezes_what_has_grown_by_halves, .timeout = 300)
{
	open_published();
	count_freezes(true);
	cr_assert_eq(node_expand((XFS_MIB + 1) * MIB), GRPC_INTERNAL);
	snapshot_freezes(1);
	snapshot_freezes(0);
	close_published();
}

Test(csi, the_next_run_knows_what_has_grown_by_halves, .timeout = 300)
{
	open_published();
	count_freezes(true);
	cr_assert_eq(node_expand((XFS_MIB + 1) * MIB), GRPC_INTERNAL);
	world_restart(w);
	snapshot_freezes(1);
	snapshot_freezes(0);
	close_published();
}

/* The freeze of a growth cut short: a growth would wait for it for ever. */
Test(csi, a_growth_thaws_what_the_last_one_left_frozen, .timeout = 300)
{
	open_published();
	leave_frozen();
	cr_assert_eq(node_expand((XFS_MIB + 1) * MIB), GRPC_OK);
	close_published();
}

static int clean_overstays(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	return -ETIMEDOUT;
}

static unsigned thaws;

static int thaw_is_counted(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	thaws++;
	return mnt_calls[MNT_THAW](req, req_len, resp, resp_len);
}

/* It may come about yet: it is thawed behind it, and the log counts as not clean. */
Test(csi, a_growth_whose_freeze_overstays_is_thawed, .timeout = 300)
{
	open_published();
	w->calls[MNT_CLEAN] = clean_overstays;
	w->calls[MNT_THAW] = thaw_is_counted;
	cr_assert_eq(node_expand((XFS_MIB + 1) * MIB), GRPC_DEADLINE_EXCEEDED);
	cr_assert_eq(thaws, 1);
	cr_assert(!is_frozen());
	cr_assert(is_marked());
	count_freezes(false);
	cr_assert_eq(node_expand((XFS_MIB + 1) * MIB), GRPC_OK);
	cr_assert_eq(freezes, 1);
	cr_assert(!is_marked());
	close_published();
}

Test(csi, nothing_is_copied_while_a_volume_grows, .timeout = 300)
{
	open_published();
	Csi__V1__NodeExpandVolumeRequest req = CSI__V1__NODE_EXPAND_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	struct world_answer growth;
	range.required_bytes = (XFS_MIB + 1) * MIB;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(target_path);
	req.capacity_range = &range;
	world_send(w, "Node/NodeExpandVolume", &req.base, &growth);
	cr_assert_eq(do_snapshot(), GRPC_ABORTED);
	cr_assert_eq(do_clone(), GRPC_ABORTED);
	world_wait(w, &growth);
	cr_assert_eq(growth.status, GRPC_OK, "%s", growth.message);
	world_answer_free(&growth);
	close_published();
}

/* ---- the growth of a stage ---- */

static const char *fault_step;

static int stage_step_fails(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)op_name;
	return fault_step != NULL && strcmp(step_name, fault_step) == 0 ? -EIO : 0;
}

Test(csi, a_repeated_stage_cleans_the_log, .timeout = 300)
{
	static const char *const steps[] = {"prepare growth", "mark growth", "clean log"};
	open_world(WORLD_EXT4, 1, false);
	fs_type = "xfs";
	create_bytes = XFS_MIB * MIB;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	int (*none)(void *arg, const char *op_name, const char *step_name) = w->observer.before;
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		cr_assert_eq(expand((XFS_MIB + 1 + i) * MIB), GRPC_OK);
		fault_step = steps[i];
		w->observer.before = stage_step_fails;
		cr_assert_eq(do_stage(), GRPC_INTERNAL, "with %s failing", steps[i]);
		w->observer.before = none;
		count_freezes(false);
		cr_assert_eq(do_stage(), GRPC_OK, "after %s", steps[i]);
		cr_assert_eq(freezes, 1, "after %s", steps[i]);
		cr_assert(!is_marked());
		cr_assert(!is_frozen());
		cr_assert_eq(do_stage(), GRPC_OK);
		cr_assert_eq(freezes, 1, "nothing has grown");
		cr_assert_eq(undo_stage(), GRPC_OK);
	}
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}
