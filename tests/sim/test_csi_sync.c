/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is acknowledged that no sync has covered. */
#include "csi_calls.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static int no_sync(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	(void)nth;
	unsigned *failed = arg;
	if (sqe->opcode != IORING_OP_FSYNC)
		return 0;
	(*failed)++;
	return -EIO;
}

static unsigned *failed_syncs;

/* A change that nobody shares a sync with syncs in its own trip to a thread. */
static int no_sync_job(void *arg, const char *op_name, const char *step_name)
{
	(void)op_name;
	(void)arg;
	if (strcmp(step_name, "sync") != 0)
		return 0;
	(*failed_syncs)++;
	return -EIO;
}

static void syncs_fail(unsigned *failed)
{
	w->sim.fault_arg = failed;
	w->sim.fault = failed != NULL ? no_sync : NULL;
	failed_syncs = failed;
	w->observer.before_call = failed != NULL ? no_sync_job : NULL;
}

/* Called twice while every sync fails: the first one changes the disk, the second one finds it so,
 * and neither may be answered with OK. When syncs succeed again, a repeat does. */
static void repeat_without_sync(const char *what, enum grpc_status (*again)(void))
{
	unsigned failed = 0, before;
	syncs_fail(&failed);
	for (unsigned i = 0; i < 3; i++) {
		before = failed;
		cr_assert_neq(again(), GRPC_OK, "%s, call %u", what, i);
		cr_assert_gt(failed, before, "%s, call %u tried no sync", what, i);
	}
	syncs_fail(NULL);
	cr_assert_eq(again(), GRPC_OK, "%s", what);
	syncs_fail(&failed);
	cr_assert_eq(again(), GRPC_OK, "%s: what is durable needs no sync", what);
	syncs_fail(NULL);
}

Test(csi, what_was_not_synced_is_not_acknowledged, .timeout = 300)
{
	for (enum world_fs fs = WORLD_EXT4; fs <= WORLD_XFS; fs++) {
		open_world(fs, 1, true);
		cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
		repeat_without_sync("CreateVolume", do_create);
		repeat_without_sync("DeleteVolume", undo_create);
		repeat_without_sync("CreateSnapshot", do_snapshot);
		repeat_without_sync("DeleteSnapshot", undo_snapshot);
		cr_assert_eq(delete (volume_id), GRPC_OK);
		world_close(w);
	}
}
