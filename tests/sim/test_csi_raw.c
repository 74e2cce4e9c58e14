/* SPDX-License-Identifier: Apache-2.0 */
/* What calls do otherwise of a pool on raw disks: what they refuse there, the thin pool that a
 * stage waits for, and who says how much a thin volume has. The pool is one in a directory that
 * passes for such a one; its thin pool is the test's own (pool/thin_keep.h, pool/raw_measure.h). */
#include "answers.h"
#include "as_raw.h"

#include "backends/backend.h"
#include "backends/loop/loop.h"
#include "node/volume.h"
#include "pool/group.h"
#include "pool/index.h"
#include "pool/raw_measure.h"
#include "pool/thin_keep.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- the thin pool ---- */

enum { THIN_ID = 7 };

static bool is_thin;          /* the volume's bytes are in it */
static bool is_up;            /* else who wants it waits */
static int want_res, end_res; /* what it answers */
static unsigned wants, ends;  /* it was asked */
static uint64_t measured;     /* what its device says */
static int measure_res;
static unsigned measures;

bool __wrap_thin_use_done(const struct pool_object *object);
bool __wrap_thin_use_done(const struct pool_object *object)
{
	cr_assert_str_eq(object->rec->name, "base");
	return !is_thin;
}

static void nothing_attached(const struct pool *pool)
{
	struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, "base");
	cr_assert_eq(volume->pool, pool);
	cr_assert_null(node_volume_find(volume), "the thin pool comes before the device");
}

int __wrap_thin_want(struct op *op, struct pool *pool, struct thin_wait *wait);
int __wrap_thin_want(struct op *op, struct pool *pool, struct thin_wait *wait)
{
	cr_assert_not_null(wait);
	nothing_attached(pool);
	wants++;
	if (want_res < 0)
		return op_fail(op, ERR_UNAVAILABLE, "its thin pool is being checked");
	return is_up ? 0 : op_sleep(op, 10);
}

int __wrap_thin_use_end(struct op *op, struct pool *pool, struct thin_wait *wait, int res);
int __wrap_thin_use_end(struct op *op, struct pool *pool, struct thin_wait *wait, int res)
{
	cr_assert_not_null(wait);
	nothing_attached(pool);
	cr_assert_eq(res, 0);
	ends++;
	return end_res < 0 ? op_fail(op, ERR_UNAVAILABLE, "its thin pool has failed") : 0;
}

void __wrap_raw_measure_put(struct raw_measure *ret, struct pool_object *object);
void __wrap_raw_measure_put(struct raw_measure *ret, struct pool_object *object)
{
	cr_assert_str_eq(object->rec->name, "base");
	ret->id = is_thin ? THIN_ID : 0;
}

/* On a work thread. */
int __wrap_raw_measure(const struct raw_measure *m, uint64_t *ret_bytes);
int __wrap_raw_measure(const struct raw_measure *m, uint64_t *ret_bytes)
{
	measures++;
	if (m->id != THIN_ID)
		return -EINVAL;
	if (measure_res == 0)
		*ret_bytes = measured;
	return measure_res;
}

/* ---- a world of it ---- */

/* Of device-mapper devices, in name. */
static struct backend backend_as_disk;

static struct pool_object *volume(void)
{
	struct pool_object *found = pools_find_name(w->pools, RECORD_VOLUME, "base");
	cr_assert_not_null(found);
	return found;
}

static void open_raw(bool as_block)
{
	open_world(WORLD_XFS, 1, as_block);
	backend_as_disk = backend_loop;
	backend_as_disk.type = BACKEND_DISK;
	backend_as_disk.name = "disk";
	backend_add(&backend_as_disk);
	world_adopt(w);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	is_raw = true;
}

static void close_raw(void)
{
	is_raw = false;
	no_device();
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	backend_remove(&backend_as_disk);
	world_close(w);
}

/* ---- what is refused ---- */

Test(csi_raw, thick_volumes_have_no_snapshots, .timeout = 120)
{
	ProtobufCBinaryData ids[1];
	Csi__V1__CreateVolumeGroupSnapshotRequest req =
		CSI__V1__CREATE_VOLUME_GROUP_SNAPSHOT_REQUEST__INIT;
	open_raw(true);
	ids[0] = csi_bytes(volume_id);
	req.name = csi_bytes("group");
	req.source_volume_ids = ids;
	req.n_source_volume_ids = 1;
	volume()->rec->thick = true;
	says(ASK("GroupController", CreateVolumeGroupSnapshot, create_volume_group_snapshot),
		"9: volume base is thick and lies in pool default on raw disks, where thin volumes alone have snapshots: use a class with provisioning: thin, or make clones");
	cr_expect_null(pools_find_group_name(w->pools, "group"));
	Csi__V1__CreateSnapshotRequest one = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	one.name = csi_bytes("snap");
	one.source_volume_id = csi_bytes(volume_id);
	says(ask("Controller/CreateSnapshot", &one, &csi__v1__create_snapshot_response__descriptor),
		"9: volume base is thick and lies in pool default on raw disks, where thin volumes alone have snapshots: use a class with provisioning: thin, or make a clone (a volume whose source is the volume)");
	cr_expect_null(pools_find_name(w->pools, RECORD_SNAPSHOT, "snap"));
	/* In a directory it has both. */
	is_raw = false;
	cr_expect_neq(
		ASK("GroupController", CreateVolumeGroupSnapshot, create_volume_group_snapshot)[0],
		'9');
	cr_expect_not_null(pools_find_group_name(w->pools, "group"));
	cr_expect_eq(do_snapshot(), GRPC_OK);
	is_raw = true;
	/* A thin one has a group, which is there. */
	volume()->rec->thick = false;
	cr_expect_neq(
		ASK("GroupController", CreateVolumeGroupSnapshot, create_volume_group_snapshot)[0],
		'9');
	world_settle(w);
	close_raw();
}

/* What is to be mounted comes of the device, which a volume that is being made has not yet. */
Test(csi_raw, a_block_volume_becomes_no_mount_volume, .timeout = 120)
{
	char block_id[RECORD_ID_MAX];
	open_raw(true);
	volume()->rec->allow_mode_change = true;
	block = false;
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	req.name = csi_bytes("mounted");
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	req.volume_content_source = content_source(FROM_VOLUME);
	Csi__V1__StringPair *parameters[1] = {pair(0, "allowVolumeModeChange", "true")};
	req.n_parameters = 1;
	req.parameters = parameters;
	says(ASK("Controller", CreateVolume, create_volume),
		"9: volume_content_source: base is a block volume of pool default, which is on raw disks; there a copy of it becomes no mount volume: ask for a block volume");
	cr_expect_null(pools_find_name(w->pools, RECORD_VOLUME, "mounted"));
	/* As another block volume it is copied. */
	block = true;
	caps[0] = capability();
	take_id(ASK("Controller", CreateVolume, create_volume), "volume_id", block_id);
	char base_id[RECORD_ID_MAX];
	memcpy(base_id, volume_id, sizeof(base_id));
	memcpy(volume_id, block_id, sizeof(volume_id));
	says(asks_delete(), "%s", "");
	memcpy(volume_id, base_id, sizeof(volume_id));
	close_raw();
}

Test(csi_raw, what_may_be_erased_there, .timeout = 120)
{
	open_raw(true);
	says(asks_modify("eraseOnDelete", "zero"),
		"9: mutable_parameters: eraseOnDelete would overwrite nothing of volume base, which is thin and in pool default on raw disks: its blocks are overwritten before somebody else gets them; only a thick volume may have it");
	cr_expect_eq(volume()->rec->erase, RECORD_ERASE_NONE);
	says(asks_modify("eraseOnDelete", "none"), "%s", "");
	volume()->rec->thick = true;
	says(asks_modify("eraseOnDelete", "zero"), "%s", "");
	cr_expect_eq(volume()->rec->erase, RECORD_ERASE_ZERO);
	/* It is so already, whatever it is. */
	volume()->rec->thick = false;
	says(asks_modify("eraseOnDelete", "zero"), "%s", "");
	says(asks_modify("eraseOnDelete", "none"), "%s", "");
	close_raw();
}

static const char *asks_capacity(const char *key, const char *value)
{
	Csi__V1__GetCapacityRequest req = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	Csi__V1__StringPair *parameters[1] = {pair(0, key, value)};
	req.parameters = parameters;
	req.n_parameters = 1;
	return ASK("Controller", GetCapacity, get_capacity);
}

/* Of a class whose volumes cannot be made in the pool there is no room. */
Test(csi_raw, room_is_of_volumes_that_can_be_made, .timeout = 120)
{
	static const char *const devices[] = {"loop", "disk"};
	open_raw(true);
	for (unsigned raw = 0; raw < 2; raw++) {
		is_raw = raw == 1;
		for (unsigned i = 0; i < 2; i++) {
			const char *told = asks_capacity("device", devices[i]);
			cr_expect_eq(strstr(told, "available_capacity=") != NULL, i == raw,
				"%s, raw: %u: %s", devices[i], raw, told);
		}
	}
	block = false;
	Csi__V1__GetCapacityRequest req = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	Csi__V1__VolumeCapability *caps[1];
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	for (unsigned i = 0; i < 2; i++) {
		mount_flag = i == 0 ? "noatime" : "nonsense";
		caps[0] = capability();
		const char *told = ASK("Controller", GetCapacity, get_capacity);
		cr_expect_eq(strstr(told, "available_capacity=") != NULL, i == 0, "%s: %s",
			mount_flag, told);
	}
	mount_flag = NULL;
	close_raw();
}

/* ---- a stage waits for the thin pool ---- */

Test(csi_raw, a_stage_waits_for_the_thin_pool, .timeout = 120)
{
	for (unsigned as_block = 0; as_block < 2; as_block++) {
		open_raw(as_block == 1);
		says(asks_stage(), "%s", "");
		cr_expect_eq(wants, 0, "it has no bytes there");
		cr_expect_eq(ends, 0);
		cr_assert_eq(undo_stage(), GRPC_OK);
		is_thin = true;
		want_res = -EAGAIN;
		says(asks_stage(), "14: its thin pool is being checked");
		no_device();
		cr_expect_eq(wants, 1);
		cr_expect_eq(ends, 0);
		want_res = 0;
		end_res = -EAGAIN;
		says(asks_stage(), "14: its thin pool has failed");
		no_device();
		cr_expect_eq(wants, 2);
		cr_expect_eq(ends, 1);
		end_res = 0;
		says(asks_stage(), "%s", "");
		cr_expect_eq(wants, 3);
		cr_expect_eq(ends, 2);
		is_thin = false;
		cr_assert_eq(undo_stage(), GRPC_OK);
		/* One that is there is not waited for. */
		is_thin = is_up = true;
		says(asks_stage(), "%s", "");
		cr_expect_eq(wants, 4);
		is_thin = is_up = false;
		wants = ends = 0;
		cr_assert_eq(undo_stage(), GRPC_OK);
		close_raw();
	}
}

/* ---- how much a volume has ---- */

static void assert_used(uint64_t used)
{
	char field[32] = "";
	if (used > 0)
		snprintf(field, sizeof(field), "used=%llu ", (unsigned long long)used);
	says(asks_stats(), "usage{available=%llu total=16777216 %sunit=1} " WELL,
		(unsigned long long)(16 * MIB - used), field);
}

/* What its device says is the pool's sum, too; what cannot be asked leaves the last answer. */
Test(csi_raw, a_thin_block_volume_has_what_its_device_says, .timeout = 120)
{
	open_raw(true);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	volume()->allocated_bytes = 0;
	assert_used(0);
	cr_expect_eq(measures, 0, "it is not thin");
	is_thin = true;
	measured = 3 * MIB;
	assert_used(3 * MIB);
	cr_expect_eq(volume()->allocated_bytes, 3 * MIB);
	measured = 5 * MIB;
	measure_res = -EIO;
	assert_used(3 * MIB);
	cr_expect_eq(measures, 2);
	measure_res = 0;
	assert_used(5 * MIB);
	measured = 0;
	assert_used(0);
	cr_expect_eq(measures, 4);
	is_raw = false;
	asks_stats();
	cr_expect_eq(measures, 4, "in a directory its file says");
	is_thin = false;
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_raw();
}

/* A file system says for itself. */
Test(csi_raw, a_mount_volume_is_not_measured, .timeout = 120)
{
	open_raw(false);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	is_thin = true;
	cr_expect_eq(do_stats(), GRPC_OK);
	cr_expect_eq(measures, 0);
	is_thin = false;
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_raw();
}

static const char *goes_at;
static bool gone;

/* For that step, another one has its name. */
static void goes(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "NodeGetVolumeStats") != 0)
		return;
	if (gone || strcmp(step_name, goes_at) == 0) {
		volume()->rec->random[0] ^= 1;
		gone = !gone;
	}
}

/* Statistics hold nothing that would keep the volume: each step looks for it anew. */
Test(csi_raw, a_volume_that_goes_meanwhile, .timeout = 120)
{
	static const char *const steps[] = {"stats", "image", "blocks", "answer"};
	open_raw(true);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	is_thin = true;
	measured = MIB;
	for (unsigned i = 0; i < 4; i++) {
		char id[RECORD_ID_MAX];
		uint64_t had = volume()->allocated_bytes;
		goes_at = steps[i];
		w->on_step = goes;
		says(asks_stats(), "5: volume %s does not exist", volume_id);
		w->on_step = NULL;
		pool_object_id(volume(), id);
		cr_assert(gone, "%s: it went on", steps[i]);
		cr_expect_str_neq(id, volume_id, "%s", steps[i]);
		volume()->rec->random[0] ^= 1;
		gone = false;
		if (i < 3)
			cr_expect_eq(volume()->allocated_bytes, had, "%s", steps[i]);
	}
	assert_used(MIB);
	is_thin = false;
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_raw();
}
