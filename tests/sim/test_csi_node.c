/* SPDX-License-Identifier: Apache-2.0 */
/* What is attached on this node: after a restart, after a stage that came half way, and of what
 * memory does not know. */
#include "csi_calls.h"

#include "../unit/sim_time.h"
#include "backends/backend.h"
#include "backends/loop/lodev.h"
#include "csi/messages.h"
#include "node/health.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- a restart finds everything again ---- */

Test(csi, restart_adopts_devices_and_mounts, .timeout = 300)
{
	open_world(WORLD_XFS, 1, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	world_restart(w);
	cr_assert_eq(do_stats(), GRPC_OK);
	cr_assert_eq(delete (volume_id), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_FAILED_PRECONDITION, "still published");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete (volume_id), GRPC_OK);
	char left[INVENTORY_BYTES];
	world_inventory(w, left, sizeof(left));
	cr_assert_null(strstr(left, "device "));
	cr_assert_null(strstr(left, "mount "));
	cr_assert_null(strstr(left, "volumes "));
	world_close(w);
}

/* ---- SELinux labels ---- */

static char mounted_label[FSIMG_LABEL_BYTES];

/* This kernel may be one without SELinux: the label is kept here. */
static int mount_with_label(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct mnt_mount_req mount = *(const struct mnt_mount_req *)req;
	memcpy(mounted_label, mount.label, sizeof(mounted_label));
	mount.label[0] = '\0';
	return mnt_calls[MNT_MOUNT](&mount, req_len, resp, resp_len);
}

static int tell_label(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	int r = mnt_calls[MNT_LABEL](req, req_len, resp, resp_len);
	struct mnt_label *told = resp;
	cr_assert_eq(r, 0, "%s", told->why);
	cr_assert_str_eq(told->label, "");
	memcpy(told->label, mounted_label, sizeof(told->label));
	return 0;
}

static int label_fails(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	*resp_len = sizeof(struct mnt_label);
	*(struct mnt_label *)resp = (struct mnt_label){.why = "no words"};
	return -EIO;
}

static enum grpc_status stage_with(const char *flag)
{
	mount_flag = flag;
	enum grpc_status status = do_stage();
	mount_flag = NULL;
	return status;
}

/* A mount has one label; another one is not had by staging again. */
Test(csi, a_staged_volume_keeps_its_label, .timeout = 300)
{
	static const char label[] = "context=\"u:r:t:s0:c1,c2\"", another[] = "context=u:r:t:s0";
	open_world(WORLD_XFS, 1, false);
	w->calls[MNT_MOUNT] = mount_with_label;
	w->calls[MNT_LABEL] = tell_label;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(stage_with(label), GRPC_OK);
	cr_assert_str_eq(mounted_label, "u:r:t:s0:c1,c2");
	cr_assert_eq(stage_with(label), GRPC_OK);
	cr_assert_eq(stage_with(another), GRPC_ALREADY_EXISTS);
	w->calls[MNT_LABEL] = label_fails;
	cr_assert_eq(stage_with(label), GRPC_INTERNAL);
	cr_assert_eq(do_stage(), GRPC_OK);
	w->calls[MNT_LABEL] = tell_label;
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(stage_with(label), GRPC_ALREADY_EXISTS, "it has none");
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete (volume_id), GRPC_OK);
	world_close(w);
}

/* ---- a device that memory does not know of ---- */

static int silent_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	(void)each;
	(void)arg;
	return err_set(err, ERR_TIMEOUT, "ublk devices: the data process does not answer");
}

static uint64_t silent_since_ns(const struct backend *backend)
{
	(void)backend;
	return 1;
}

/* Adoption fails for it, and so does everything that has to see all devices. */
static const struct backend silent = {
	.type = BACKEND_UBLK,
	.name = "ublk",
	.scan = silent_scan,
	.away_since_ns = silent_since_ns,
};

static enum grpc_status unstage_id(const char *id, struct world_answer *answer)
{
	Csi__V1__NodeUnstageVolumeRequest req = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(id);
	req.staging_target_path = csi_bytes(staging_path);
	return call("Node/NodeUnstageVolume", &req.base, answer);
}

Test(csi, unstage_looks_for_a_device_that_memory_does_not_know, .timeout = 300)
{
	char left[INVENTORY_BYTES];
	struct world_answer answer;
	open_world(WORLD_XFS, 1, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	backend_add(&silent);
	world_restart(w);
	/* Its record says where to look. */
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_inventory(w, left, sizeof(left));
	cr_assert_null(strstr(left, "device "), "%s", left);
	cr_assert_eq(undo_stage(), GRPC_OK, "a repeat");
	/* One that nobody knows may be anything's. */
	snprintf(other_id, sizeof(other_id), "%.9sunknown.0123abcd", volume_id);
	cr_assert_eq(unstage_id(other_id, &answer), GRPC_DEADLINE_EXCEEDED);
	cr_assert_not_null(strstr(answer.message, "ublk devices"), "%s", answer.message);
	cr_assert_not_null(strstr(answer.message, "data process"), "%s", answer.message);
	world_answer_free(&answer);
	cr_assert_eq(unstage_id("nonsense", &answer), GRPC_OK);
	world_answer_free(&answer);
	backend_remove(&silent);
	cr_assert_eq(unstage_id(other_id, &answer), GRPC_OK);
	world_answer_free(&answer);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- statistics of a block volume whose pool is away ---- */

Test(csi, statistics_of_a_block_volume_tell_that_its_pool_is_sick, .timeout = 300)
{
	struct world_answer answer;
	open_world(WORLD_XFS, 1, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	pool_enter(pools_at(w->pools, 0), POOL_READ_ONLY, "%s", "made so by a test");
	Csi__V1__NodeGetVolumeStatsRequest req = CSI__V1__NODE_GET_VOLUME_STATS_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(target_path);
	cr_assert_eq(
		call("Node/NodeGetVolumeStats", &req.base, &answer), GRPC_OK, "%s", answer.message);
	Csi__V1__NodeGetVolumeStatsResponse *response =
		csi__v1__node_get_volume_stats_response__unpack(NULL, answer.len, answer.data);
	cr_assert_not_null(response);
	cr_expect(response->volume_condition->abnormal);
	cr_assert_eq(response->n_usage, 1);
	cr_expect_eq(response->usage[0]->total, 16 * MIB);
	cr_expect_eq(response->usage[0]->used, 0);
	cr_expect_eq(response->usage[0]->available, 0);
	csi__v1__node_get_volume_stats_response__free_unpacked(response, NULL);
	world_answer_free(&answer);
	world_settle(w); /* it is well when it is looked after */
	world_adopt(w);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* They come from memory, whatever its device does: a volume that hangs is no better for them, and
 * they do not put off who reads from it to see. */
Test(csi, statistics_of_a_block_volume_are_no_look, .timeout = 300)
{
	struct pool_object *volume;
	struct err err = {0};
	open_world(WORLD_XFS, 1, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	const struct node_health *health = &node_volume_find(volume)->health;
	node_note_hanging(w->csi->node, node_volume_find(volume), true);
	cr_assert_eq(do_stats(), GRPC_OK);
	cr_expect_neq(health->since_ns[NODE_HANGING], 0);
	cr_expect_eq(health->looked_ns, 0);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- a stage that came no further than the mount ---- */

enum { XFS_MIN_MIB = 300, GROWN_MIB = 340 };

static int busy = -1; /* keeps the staging path from being unmounted */

static int grow_fails(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)op_name;
	if (strcmp(step_name, "grow") != 0)
		return 0;
	busy = open(staging_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return -EIO;
}

static uint64_t staged_bytes(void)
{
	struct statvfs fs;
	cr_assert_eq(statvfs(staging_path, &fs), 0);
	return fs.f_blocks * fs.f_frsize;
}

/* A larger copy whose growth fails at its first stage. */
static void stage_without_growth(void)
{
	int (*hook)(void *, const char *, const char *) = w->observer.before;
	w->observer.before = grow_fails;
	cr_assert_eq(do_stage(), GRPC_INTERNAL);
	w->observer.before = hook;
	cr_assert_geq(busy, 0, "it was not mounted");
	close(busy);
	busy = -1;
}

enum after { RETRY, RESTART_AND_RETRY, UNSTAGE, AFTERS };

Test(csi, stage_goes_on_from_a_failed_growth, .timeout = 300)
{
	char before[INVENTORY_BYTES], left[INVENTORY_BYTES], base_id[RECORD_ID_MAX];
	open_world(WORLD_EXT4, 1, false);
	fs_type = "xfs"; /* ext4's online growth needs CAP_SYS_RESOURCE */
	create_bytes = XFS_MIN_MIB * MIB;
	cr_assert_eq(create("base", EMPTY, base_id), GRPC_OK);
	for (enum after after = RETRY; after < AFTERS; after++) {
		memcpy(volume_id, base_id, sizeof(volume_id));
		create_bytes = GROWN_MIB * MIB;
		cr_assert_eq(create("larger", FROM_VOLUME, other_id), GRPC_OK);
		memcpy(volume_id, other_id, sizeof(volume_id));
		world_inventory(w, before, sizeof(before));
		stage_without_growth();
		uint64_t ungrown = staged_bytes();
		if (after == RESTART_AND_RETRY)
			world_restart(w);
		if (after != UNSTAGE) {
			cr_assert_eq(do_stage(), GRPC_OK, "the retry");
			cr_assert_gt(staged_bytes(), ungrown, "OK, and not grown");
			cr_assert_eq(do_stage(), GRPC_OK);
		}
		cr_assert_eq(undo_stage(), GRPC_OK);
		world_inventory(w, left, sizeof(left));
		*strstr(left, "descriptors") = '\0'; /* a first stage opens some to keep */
		*strstr(before, "descriptors") = '\0';
		cr_assert_str_eq(left, before);
		cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	}
	cr_assert_eq(delete (base_id), GRPC_OK);
	world_close(w);
}

Test(csi, stage_at_a_strange_mount_leaves_no_device, .timeout = 300)
{
	char left[INVENTORY_BYTES];
	open_world(WORLD_EXT4, 1, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(mount("tmpfs", staging_path, "tmpfs", 0, "size=64k"), 0);
	cr_assert_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	world_inventory(w, left, sizeof(left));
	cr_assert_null(strstr(left, "device "), "%s", left);
	cr_assert_eq(umount(staging_path), 0);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- a block device is told what it is to be ---- */

static atomic_int told; /* 1: read-only, 0: writable, -1: nothing */

static int set_told(const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	(void)backend;
	told = read_only;
	return backend_loop.set_read_only(&backend_loop, dev, read_only);
}

/* Whatever a backend says that it was: ublk's does not know what it was made since. */
Test(csi, every_publish_sets_the_mode_of_a_block_device, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, true);
	struct backend telling = backend_loop;
	telling.set_read_only = set_told;
	backend_remove(&backend_loop);
	backend_add(&telling);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	static const bool modes[] = {false, true, true, false, false};
	for (unsigned i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		told = -1;
		publish_read_only = modes[i];
		cr_assert_eq(do_publish(), GRPC_OK);
		cr_assert_eq(told, modes[i], "publish %u", i);
		told = -1;
		cr_assert_eq(do_publish(), GRPC_OK);
		cr_assert_eq(told, -1, "a repeat finds it published");
		cr_assert_eq(undo_publish(), GRPC_OK);
	}
	publish_read_only = false;
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	backend_remove(&telling);
	backend_add(&backend_loop);
	world_close(w);
}

/* ---- the watch, while a device is let go ---- */

static struct node_volume *node_of_volume(void)
{
	struct pool_object *volume;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	return node_volume_find(volume);
}

/* It is not bound any more, and the operation goes on for some ticks of the watch. */
static int detach_lingers(const struct backend *backend, struct op *op, struct backend_req *req)
{
	struct lodev dev = {.minor = req->dev.minor,
		.image_dev = req->dev.image_dev,
		.image_ino = req->dev.image_ino};
	bool still_bound;
	(void)backend;
	memcpy(dev.tag, req->dev.tag, sizeof(dev.tag));
	cr_assert_eq(lodev_detach(&dev, &still_bound, &req->err), 0);
	cr_assert_not(still_bound);
	node_of_volume()->health.device_due = true; /* as the kernel's event says */
	node_of_volume()->health.checked_ns = 0;
	return op_sleep(op, 4 * NODE_WATCH_MS);
}

Test(csi, a_device_that_is_let_go_is_not_taken_for_gone, .timeout = 300)
{
	struct world_answer answer;
	open_world(WORLD_EXT4, 1, true);
	struct backend lingering = backend_loop;
	lingering.detach = detach_lingers;
	backend_remove(&backend_loop);
	backend_add(&lingering);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(node_watch_open(w->csi->node), 0);
	sim_pass_ms(w->reactor.ring, 2 * NODE_WATCH_MS);
	cr_assert_neq(node_of_volume()->health.seq, 0, "the watch has not looked");
	Csi__V1__NodeUnstageVolumeRequest req = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(staging_path);
	world_send(w, "Node/NodeUnstageVolume", &req.base, &answer);
	while (!answer.ended) {
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
		if (node_of_volume() != NULL)
			cr_assert_eq(node_of_volume()->health.since_ns[NODE_DEVICE_GONE], 0);
	}
	cr_assert_eq(answer.status, GRPC_OK, "%s", answer.message);
	cr_assert_null(node_of_volume());
	world_answer_free(&answer);
	node_watch_close(w->csi->node);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	backend_remove(&lingering);
	backend_add(&backend_loop);
	world_close(w);
}

/* One that could not be let go is watched again. */
static int detach_fails(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	(void)req;
	return err_set(&op->err, ERR_INTERNAL, "it does not go");
}

Test(csi, a_device_that_does_not_go_is_watched_again, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, true);
	struct backend stubborn = backend_loop;
	stubborn.detach = detach_fails;
	backend_remove(&backend_loop);
	backend_add(&stubborn);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_INTERNAL);
	cr_assert_not(node_of_volume()->detaching);
	backend_remove(&stubborn);
	backend_add(&backend_loop);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- a device that cannot say what it is bound to ---- */

static int look_res;

static int look_fails(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	(void)backend;
	return look_res < 0 ? look_res : backend_loop.look(&backend_loop, dev, ret);
}

/* As when the pool's file system has shut down: it is the volume's as far as anybody knows. */
Test(csi, a_device_that_does_not_say_is_not_taken_for_gone, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, false);
	struct backend silent_look = backend_loop;
	silent_look.look = look_fails;
	backend_remove(&backend_loop);
	backend_add(&silent_look);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	look_res = -EIO;
	cr_assert_eq(delete (volume_id), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(undo_stage(), GRPC_FAILED_PRECONDITION, "still published");
	/* Of what memory does not know nothing is said. */
	char id[RECORD_ID_MAX];
	memcpy(id, volume_id, sizeof(id));
	snprintf(volume_id, sizeof(volume_id), "nonsense");
	cr_assert_eq(undo_publish(), GRPC_UNAVAILABLE);
	memcpy(volume_id, id, sizeof(id));
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	look_res = 0;
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	backend_remove(&silent_look);
	backend_add(&backend_loop);
	world_close(w);
}

/* ---- a device that serves another file ---- */

static bool other_file;

static int look_at_other(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	(void)backend;
	int r = backend_loop.look(&backend_loop, dev, ret);
	ret->image_ino += other_file;
	return r;
}

static bool is_told_of(const char *words)
{
	Csi__V1__NodeGetVolumeHealthRequest req = CSI__V1__NODE_GET_VOLUME_HEALTH_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.volume_publish_path = csi_bytes(target_path);
	cr_assert_eq(call_status("Node/NodeGetVolumeHealth", &req.base), GRPC_OK);
	struct arena *arena = arena_new(0);
	const char *why = node_volume_abnormal(arena, w->csi->node, node_of_volume()->volume);
	bool said = why != NULL && strstr(why, words) != NULL;
	arena_unref(arena);
	return said;
}

/* Whatever its number and its sequence say. */
Test(csi, a_device_that_serves_another_file_is_found, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, true);
	struct backend changed = backend_loop;
	changed.look = look_at_other;
	backend_remove(&backend_loop);
	backend_add(&changed);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_expect_not(is_told_of("device"));
	other_file = true;
	cr_expect(is_told_of("serves another file than its image"));
	other_file = false;
	cr_expect_not(is_told_of("device"), "it is over");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	backend_remove(&changed);
	backend_add(&backend_loop);
	world_close(w);
}
