/* SPDX-License-Identifier: Apache-2.0 */
/* What is answered when a call of the kernel's fails, and when a request cannot be met: by which
 * status, and in which words. */
#include "answers.h"

#include "node/volume.h"
#include "pool/index.h"
#include "pool/private.h"

#include "csi_calls.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a helper's call fails ---- */

static int helper_res;
static const char *helper_why; /* NULL: it does not say */
static unsigned helper_calls;

static int helper_fails(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	*resp_len = 0;
	if (helper_why != NULL) {
		struct mnt_result *result = resp;
		*resp_len = sizeof(*result);
		snprintf(result->why, sizeof(result->why), "%s", helper_why);
	}
	helper_calls++;
	return helper_res;
}

static const char *asks_expand(void)
{
	Csi__V1__NodeExpandVolumeRequest req = CSI__V1__NODE_EXPAND_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	range.required_bytes = 20 * MIB;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(target_path);
	req.capacity_range = &range;
	return ASK("Node", NodeExpandVolume, node_expand_volume);
}

struct failure {
	const char *(*ask)(void);
	enum mnt_call call;
	int res;
	const char *want; /* %1$s: the path, %2$s: the volume */
	const char *why;
};

static void fails_each(const struct failure *failures, unsigned count, const char *where)
{
	char want[400];
	for (const struct failure *f = failures; f < failures + count; f++) {
		w->calls[f->call] = helper_fails;
		helper_res = f->res;
		helper_why = f->why;
		helper_calls = 0;
		snprintf(want, sizeof(want), f->want, where, volume_id);
		says(f->ask(), "%s", want);
		cr_expect_gt(helper_calls, 0, "failure %d", (int)(f - failures));
		w->calls[f->call] = mnt_calls[f->call];
		world_settle(w);
	}
}

#define FAILS(failures, where) fails_each(failures, sizeof(failures) / sizeof((failures)[0]), where)

#define HANGS(what) "4: volume %2$s: " what " of %1$s hangs; see the kernel log for its device"
#define BUSY(field)                                                                                \
	"9: " field ": %1$s is in use: a process has files open or its working directory there"

/* A failed call is the answer's status and is named with its path; the retry succeeds. */
Test(csi_failures, of_helpers, .timeout = 300)
{
	static const struct failure staging[] = {
		{asks_stage, MNT_INSPECT, -EIO, "13: inspection of %1$s: Input/output error"},
		{asks_stage, MNT_INSPECT, -ETIMEDOUT, HANGS("inspection")},
		{asks_stage, MNT_MOUNT, -EIO, "13: mount of %1$s: Input/output error"},
		{asks_stage, MNT_MOUNT, -ETIMEDOUT, HANGS("mount")},
		{asks_stage, MNT_MOUNT, -EIO, "13: mount of %1$s: some words: Input/output error",
			"some words"},
		{asks_stage, MNT_MOUNT, -EINVAL, "3: mount of %1$s: some words", "some words"},
		{asks_stage, MNT_MOUNT, -ENOTDIR, "3: mount of %1$s: some words", "some words"},
		{asks_stage, MNT_MOUNT, -ELOOP, "3: mount of %1$s: some words", "some words"},
		{asks_stage, MNT_MOUNT, -ENOTEMPTY,
			"9: mount of %1$s: it is not empty, and what it holds would be hidden; move that away"},
		/* Only a btrfs may be mounted already, as a copy. */
		{asks_stage, MNT_MOUNT, -EEXIST, "13: mount of %1$s: File exists"},
	};
	static const struct failure unstaging[] = {
		{asks_publish, MNT_INSPECT, -EIO, "13: inspection of %1$s: Input/output error"},
		{asks_unstage, MNT_INSPECT, -EIO, "13: inspection of %1$s: Input/output error"},
		{asks_unstage, MNT_SYNC, -ETIMEDOUT, HANGS("sync")},
		{asks_unstage, MNT_UNMOUNT, -EIO, "13: unmount of %1$s: Input/output error"},
		{asks_unstage, MNT_UNMOUNT, -EBUSY, BUSY("staging_target_path")},
		{asks_unstage, MNT_UNMOUNT, -ETIMEDOUT, HANGS("unmount")},
	};
	static const struct failure publishing[] = {
		{asks_publish, MNT_BIND, -EIO, "13: bind mount of %1$s: Input/output error"},
		{asks_publish, MNT_BIND, -ENOENT,
			"3: target_path: the parent directory of %1$s does not exist; the orchestrator has to create it"},
	};
	static const struct failure unpublishing[] = {
		{asks_unpublish, MNT_INSPECT, -EIO, "13: inspection of %1$s: Input/output error"},
		{asks_unpublish, MNT_UNMOUNT, -EIO, "13: unmount of %1$s: Input/output error"},
		{asks_unpublish, MNT_UNMOUNT, -EBUSY, BUSY("target_path")},
		{asks_unpublish, MNT_UNMOUNT, -ETIMEDOUT, HANGS("unmount")},
	};
	static const struct failure growing[] = {
		{asks_expand, MNT_INSPECT, -EIO, "13: inspection of %1$s: Input/output error"},
		{asks_expand, MNT_GROW, -EPERM, "9: growth of %1$s: the file system is read-only"},
		{asks_expand, MNT_GROW, -EROFS, "9: growth of %1$s: the file system is read-only"},
		{asks_expand, MNT_GROW, -EIO, "13: growth of %1$s: Input/output error"},
		{asks_expand, MNT_GROW, -ETIMEDOUT, HANGS("growth")},
	};
	open_world(WORLD_EXT4, 1, false);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	FAILS(staging, staging_path);
	cr_assert_eq(do_stage(), GRPC_OK);
	FAILS(publishing, target_path);
	cr_assert_eq(do_publish(), GRPC_OK);
	FAILS(growing, target_path);
	FAILS(unpublishing, target_path);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_neq(access(target_path, F_OK), 0);
	FAILS(unstaging, staging_path);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* What is in use is not deleted: where it is mounted, or which device it has. */
Test(csi_failures, of_deletes, .timeout = 300)
{
	char name[64];
	for (unsigned as_block = 0; as_block < 2; as_block++) {
		open_world(WORLD_EXT4, 1, as_block == 1);
		take_id(asks_create("base", EMPTY), "volume_id", volume_id);
		cr_assert_eq(do_stage(), GRPC_OK);
		const struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, "base");
		snprintf(name, sizeof(name), "%s", node_volume_find(volume)->dev.path);
		if (block)
			says(asks_delete(),
				"9: volume base is in use: attached as %s; unstage it first", name);
		else
			says(asks_delete(),
				"9: volume base is in use: mounted at %s; unpublish and unstage it first",
				staging_path);
		pool_enter(pools_at(w->pools, 0), POOL_READ_ONLY, "it cannot be written");
		says(asks_delete(), "14: it cannot be written");
		pool_enter(pools_at(w->pools, 0), POOL_SERVED, "%s", "");
		cr_assert_eq(undo_stage(), GRPC_OK);
		cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
		says(asks_delete(), "%s", ""); /* a repeat */
		world_close(w);
	}
}

/* ---- what is at the target ---- */

static void says_at(const char *got, const char *fmt, const char *path)
{
	char want[400];
	snprintf(want, sizeof(want), fmt, path);
	says(got, "%s", want);
}

/* A target that does not fit is refused by name, and is left as it is. */
Test(csi_failures, of_targets, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, false);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	says_at(asks_publish(), "9: volume base is not staged at %s; call NodeStageVolume first",
		staging_path);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(symlink(w->dir, target_path), 0);
	says_at(asks_publish(), "3: target_path: %s is a symbolic link", target_path);
	cr_assert_eq(unlink(target_path), 0);
	cr_assert_eq(mknod(target_path, S_IFREG | 0600, 0), 0);
	says_at(asks_publish(), "3: target_path: %s exists and is not a directory", target_path);
	cr_assert_eq(unlink(target_path), 0);
	cr_assert_eq(mkdir(target_path, 0700), 0);
	cr_assert_eq(mount("tmpfs", target_path, "tmpfs", 0, "size=64k"), 0);
	says_at(asks_publish(), "6: target_path: something else is mounted at %s", target_path);
	cr_assert_eq(umount(target_path), 0);
	says(asks_publish(), "%s", "");
	says(asks_publish(), "%s", "");
	publish_read_only = true;
	says_at(asks_publish(), "6: volume base is published at %s already, but writable",
		target_path);
	cr_assert_eq(undo_publish(), GRPC_OK);
	says(asks_publish(), "%s", "");
	publish_read_only = false;
	says_at(asks_publish(), "6: volume base is published at %s already, but read-only",
		target_path);
	block = true;
	says(asks_publish(),
		"9: volume base was made as a mount volume and cannot be used as a block volume");
	block = false;
	fs_type = "xfs";
	says(asks_publish(), "9: volume base holds ext4, fs_type asks for xfs");
	fs_type = "ext4";
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}

/* ---- requests that cannot be met ---- */

/* CreateVolume of that size, or of another node, or with what cannot be changed later. */
static const char *asks_odd(
	const char *name, int64_t required, int64_t limit, bool is_elsewhere, bool is_mutable)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	Csi__V1__StringPair *parameters[1] = {pair(0, "device", "loop")};
	range.required_bytes = required;
	range.limit_bytes = limit;
	req.name = csi_bytes(name);
	req.capacity_range = &range;
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	req.n_parameters = 1;
	req.parameters = parameters;
	req.n_mutable_parameters = is_mutable;
	req.mutable_parameters = parameters;
	req.accessibility_requirements = is_elsewhere ? elsewhere() : NULL;
	return ASK("Controller", CreateVolume, create_volume);
}

static const char *asks_snapshot(const char *name, const char *of, bool is_elsewhere)
{
	Csi__V1__CreateSnapshotRequest req = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	req.name = csi_bytes(name);
	req.source_volume_id = csi_bytes(of);
	req.accessibility_requirements = is_elsewhere ? elsewhere() : NULL;
	return ASK("Controller", CreateSnapshot, create_snapshot);
}

Test(csi_failures, of_requests, .timeout = 300)
{
	open_world(WORLD_XFS, 1, true);
	static const char away[] = "8: accessibility_requirements: none of requisite is this node "
				   "(topology.ringvol.dev/node=node-1)";
	says(asks_odd("base", 16 * MIB, 0, true, false), away);
	says(asks_odd("base", 16 * MIB, 0, false, true),
		"3: mutable_parameters: device cannot be changed later: it belongs to the StorageClass");
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	take_id(asks_create("second", EMPTY), "volume_id", other_id);
	says(asks_odd("base", 17 * MIB, 0, false, false),
		"6: volume base exists with 16777216 bytes, required_bytes asks for 17825792");
	says(asks_odd("base", 0, 15 * MIB, false, false),
		"11: capacity_range: limit_bytes (15728640) is too small, the least that serves is 16777216 bytes (sizes are multiples of 1 MiB)");
	cr_expect_not_null(strstr(asks_odd("large", 20 * MIB, 0, false, false), "=20971520 "));
	says(asks_odd("large", 0, 18 * MIB, false, false),
		"6: volume large exists with 20971520 bytes, limit_bytes allows 18874368");
	cr_expect_not_null(strstr(asks_odd("large", 0, 20 * MIB, false, false), "=20971520 "));
	says(asks_odd("base", 16 * MIB, 16 * MIB, false, false),
		"volume{capacity_bytes=16777216 volume_id='%s' " TOPOLOGY "}", volume_id);
	says(asks_snapshot("snap", volume_id, true), away);
	says(asks_snapshot("snap", "nonsense", false), "5: volume nonsense does not exist");
	cr_assert_eq(do_snapshot(), GRPC_OK);
	says(asks_snapshot("snap", other_id, false),
		"6: snapshot snap exists, of another volume: %s", volume_id);
	says(asks_create("base", FROM_SNAPSHOT),
		"6: volume base exists with another content source");
	snapshot_id[0] = snapshot_id[0] == '0' ? '1' : '0';
	says(asks_create("third", FROM_SNAPSHOT),
		"8: volume_content_source: the data of snapshot %s is not on node node-1, none of its pools has the uuid %.8s...; a copy is made where its source is. Schedule the pod there: snapshot topology does it, or a nodeSelector for the node that took it",
		snapshot_id, snapshot_id);
	volume_id[0] = snapshot_id[0];
	says(asks_create("third", FROM_VOLUME),
		"8: volume_content_source: the data of volume %s is not on node node-1, none of its pools has the uuid %.8s...; a copy is made where its source is. Schedule the pod there: the source's PersistentVolume names the node in its nodeAffinity",
		volume_id, volume_id);
	volume_id[0] = snapshot_id[0] = '\0';
	says(asks_create("third", FROM_VOLUME), "3: volume_content_source: volume_id is missing");
	says(asks_create("third", FROM_SNAPSHOT),
		"3: volume_content_source: snapshot_id is missing");
	world_close(w);
}

/* ---- nothing is acknowledged that no sync has covered ---- */

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
