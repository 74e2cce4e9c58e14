/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of snapshots: every step failed, and volumes that cannot be held still. */
#include "trials.h"

#include "csi/messages.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { VOLUMES = 3 };

static char ids[VOLUMES][RECORD_ID_MAX], stagings[VOLUMES][96];
static char group_id[RECORD_ID_MAX], member_ids[VOLUMES][RECORD_ID_MAX];

static void take(char to[RECORD_ID_MAX], ProtobufCBinaryData from)
{
	snprintf(to, RECORD_ID_MAX, "%.*s", (int)from.len, (const char *)from.data);
}

static enum grpc_status make_group(void)
{
	Csi__V1__CreateVolumeGroupSnapshotRequest req =
		CSI__V1__CREATE_VOLUME_GROUP_SNAPSHOT_REQUEST__INIT;
	ProtobufCBinaryData sources[VOLUMES];
	struct world_answer answer;
	for (unsigned i = 0; i < VOLUMES; i++)
		sources[i] = csi_bytes(ids[i]);
	req.name = csi_bytes("group");
	req.n_source_volume_ids = VOLUMES;
	req.source_volume_ids = sources;
	enum grpc_status status =
		call("GroupController/CreateVolumeGroupSnapshot", &req.base, &answer);
	if (status == GRPC_OK) {
		Csi__V1__CreateVolumeGroupSnapshotResponse *response =
			csi__v1__create_volume_group_snapshot_response__unpack(
				NULL, answer.len, answer.data);
		Csi__V1__VolumeGroupSnapshot *group = response->group_snapshot;
		take(group_id, group->group_snapshot_id);
		cr_assert_eq(group->n_snapshots, VOLUMES);
		for (unsigned i = 0; i < VOLUMES; i++)
			take(member_ids[i], group->snapshots[i]->snapshot_id);
		csi__v1__create_volume_group_snapshot_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

static enum grpc_status delete_group(void)
{
	Csi__V1__DeleteVolumeGroupSnapshotRequest req =
		CSI__V1__DELETE_VOLUME_GROUP_SNAPSHOT_REQUEST__INIT;
	ProtobufCBinaryData members[VOLUMES];
	for (unsigned i = 0; i < VOLUMES; i++)
		members[i] = csi_bytes(member_ids[i]);
	req.group_snapshot_id = csi_bytes(group_id);
	req.n_snapshot_ids = VOLUMES;
	req.snapshot_ids = members;
	enum grpc_status status =
		call_status("GroupController/DeleteVolumeGroupSnapshot", &req.base);
	world_settle(w);
	return status;
}

/* Of the i-th volume. */
static enum grpc_status stage(unsigned i, enum grpc_status (*how)(void))
{
	strcpy(volume_id, ids[i]);
	strcpy(staging_path, stagings[i]);
	return how();
}

/* Two are mounted, the third is not in use. */
static void open_staged(enum world_fs fs, uint64_t seed)
{
	open_world(fs, seed, false);
	for (unsigned i = 0; i < VOLUMES; i++) {
		char name[16];
		snprintf(name, sizeof(name), "volume-%u", i);
		snprintf(stagings[i], sizeof(stagings[i]), "%s/staging-%u", w->dir, i);
		cr_assert_eq(mkdir(stagings[i], 0700), 0);
		cr_assert_eq(create(name, EMPTY, ids[i]), GRPC_OK);
		if (i < 2)
			cr_assert_eq(stage(i, do_stage), GRPC_OK);
	}
}

static void close_staged(void)
{
	for (unsigned i = 0; i < VOLUMES; i++) {
		if (i < 2)
			cr_assert_eq(stage(i, undo_stage), GRPC_OK);
		/* Volumes were mounted for long: whoever made a mount namespace of its own on this
		 * machine meanwhile has them there. */
		enum grpc_status status = GRPC_FAILED_PRECONDITION;
		for (unsigned n = 0; n < 20 && status == GRPC_FAILED_PRECONDITION; n++)
			status = delete_patiently(ids[i]);
		cr_assert_eq(status, GRPC_OK);
	}
	world_close(w);
}

static bool any_frozen(void)
{
	return is_frozen_at(stagings[0]) || is_frozen_at(stagings[1]);
}

static void fail_group(enum world_fs fs)
{
	for (uint64_t seed = 1; seed <= 2; seed++) {
		open_staged(fs, seed);
		unsigned steps = fail_each_step(&(struct trial){
			"CreateVolumeGroupSnapshot", make_group, delete_group, true});
		cr_assert_gt(steps, 20);
		cr_assert(!any_frozen());
		cr_assert_eq(make_group(), GRPC_OK);
		fail_each_step(&(struct trial){
			"DeleteVolumeGroupSnapshot", delete_group, make_group, false});
		cr_assert_eq(delete_group(), GRPC_OK);
		close_staged();
	}
}

Test(csi, group_on_reflink_pool, .timeout = 300)
{
	fail_group(WORLD_XFS);
}

Test(csi, group_without_reflink, .timeout = 300)
{
	fail_group(WORLD_EXT4);
}

/* ---- one of them cannot be frozen ---- */

static unsigned freezes;
static int freeze_res;

static int second_freeze_fails(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	if (++freezes != 2)
		return mnt_calls[MNT_FREEZE](req, req_len, resp, resp_len);
	*resp_len = 0;
	return freeze_res;
}

/* The others are let go, nothing is made, and the next attempt succeeds. */
Test(csi, group_of_which_one_cannot_be_frozen, .timeout = 300)
{
	static const struct {
		int res;
		enum grpc_status status;
	} all[] = {{-EBUSY, GRPC_FAILED_PRECONDITION}, {-EIO, GRPC_INTERNAL},
		{-ETIMEDOUT, GRPC_DEADLINE_EXCEEDED}};
	char before[INVENTORY_BYTES], after[INVENTORY_BYTES];
	open_staged(WORLD_XFS, 1);
	world_inventory(w, before, sizeof(before));
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		freezes = 0;
		freeze_res = all[i].res;
		w->calls[MNT_FREEZE] = second_freeze_fails;
		cr_assert_eq(make_group(), all[i].status, "%d", all[i].res);
		cr_assert_eq(freezes, 2);
		cr_assert(!any_frozen(), "%d", all[i].res);
		world_settle(w);
		world_inventory(w, after, sizeof(after));
		cr_assert_str_eq(after, before, "%d: %s", all[i].res, after);
		w->calls[MNT_FREEZE] = mnt_calls[MNT_FREEZE];
	}
	cr_assert_eq(make_group(), GRPC_OK);
	cr_assert_eq(delete_group(), GRPC_OK);
	close_staged();
}

static void leave_both_frozen(void)
{
	for (unsigned i = 0; i < 2; i++) {
		char image[128];
		snprintf(image, sizeof(image), "%s/volumes/volume-%u", w->pool_path, i);
		strcpy(staging_path, stagings[i]);
		leave_frozen_image(image);
	}
}

/* A driver that is killed in between leaves them frozen, and the next one thaws. */
Test(csi, group_cut_short_while_frozen, .timeout = 300)
{
	open_staged(WORLD_XFS, 1);
	leave_both_frozen();
	cr_assert(any_frozen());
	world_restart(w);
	cr_assert(!any_frozen());
	cr_assert_eq(make_group(), GRPC_OK);
	/* Asked for again, it thaws what the attempt that made it left. */
	leave_both_frozen();
	cr_assert_eq(make_group(), GRPC_OK);
	cr_assert(!any_frozen());
	cr_assert_eq(delete_group(), GRPC_OK);
	close_staged();
}
