/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation, failed once at every step. For each RPC: a state is prepared, the RPC is called
 * with the n-th step failing (n = 0, 1, 2, ... until none is left to fail), and then
 *   - it answered INTERNAL, or OK when the fault hit what is only tidied up,
 *   - a create or a stage left the machine as it was, unless it had committed,
 *   - the retry without a fault succeeds,
 *   - and after undoing it by its opposite, the machine is as it was before.
 * The whole is repeated for both kinds of pool and with several seeds, which change the order of
 * completions, shorten transfers and interrupt calls.
 */
#include "world.h"

#include "backends/backend.h"
#include "blockio/boot_mark.h"
#include "blockio/mnt.h"
#include "csi/fields.h"
#include "inspect.pb-c.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { SEEDS = 3, STEPS_MAX = 80, INVENTORY_BYTES = 8192 };

#define MIB (1ULL << 20)

static struct world *w;
static char volume_id[RECORD_ID_MAX], snapshot_id[RECORD_ID_MAX];
static char staging_path[96], target_path[96];
static bool block;
static const char *fs_type = "ext4";
static uint64_t create_bytes = 16 * MIB;

/* ---- requests ---- */

static Csi__V1__VolumeCapability *capability(void)
{
	static Csi__V1__VolumeCapability cap;
	static Csi__V1__VolumeCapability__MountVolume mount;
	static Csi__V1__VolumeCapability__BlockVolume block_volume;
	static Csi__V1__VolumeCapability__AccessMode mode;
	csi__v1__volume_capability__init(&cap);
	csi__v1__volume_capability__mount_volume__init(&mount);
	csi__v1__volume_capability__block_volume__init(&block_volume);
	csi__v1__volume_capability__access_mode__init(&mode);
	mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER;
	cap.access_mode = &mode;
	if (block) {
		cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK;
		cap.block = &block_volume;
	} else {
		mount.fs_type = csi_bytes(fs_type);
		cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT;
		cap.mount = &mount;
	}
	return &cap;
}

static enum grpc_status call(
	const char *method, const ProtobufCMessage *request, struct world_answer *answer)
{
	return world_call(w, method, request, answer);
}

static enum grpc_status simple(const char *method, const ProtobufCMessage *request)
{
	struct world_answer answer;
	enum grpc_status status = call(method, request, &answer);
	world_answer_free(&answer);
	return status;
}

enum source { EMPTY, FROM_VOLUME, FROM_SNAPSHOT };

static enum grpc_status create(const char *name, enum source source, char *ret_id)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeContentSource content = CSI__V1__VOLUME_CONTENT_SOURCE__INIT;
	Csi__V1__VolumeContentSource__VolumeSource from_volume =
		CSI__V1__VOLUME_CONTENT_SOURCE__VOLUME_SOURCE__INIT;
	Csi__V1__VolumeContentSource__SnapshotSource from_snapshot =
		CSI__V1__VOLUME_CONTENT_SOURCE__SNAPSHOT_SOURCE__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	Csi__V1__StringPair freeze = CSI__V1__STRING_PAIR__INIT;
	Csi__V1__StringPair *parameters[1] = {&freeze};
	freeze.key = csi_bytes("snapshotFreeze");
	freeze.value = csi_bytes("true");
	req.n_parameters = 1;
	req.parameters = parameters;
	range.required_bytes = (int64_t)create_bytes;
	req.name = csi_bytes(name);
	req.capacity_range = &range;
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	if (source == FROM_VOLUME) {
		from_volume.volume_id = csi_bytes(volume_id);
		content.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_VOLUME;
		content.volume = &from_volume;
		req.volume_content_source = &content;
	} else if (source == FROM_SNAPSHOT) {
		from_snapshot.snapshot_id = csi_bytes(snapshot_id);
		content.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_SNAPSHOT;
		content.snapshot = &from_snapshot;
		req.volume_content_source = &content;
	}
	struct world_answer answer;
	enum grpc_status status = call("Controller/CreateVolume", &req.base, &answer);
	if (status == GRPC_OK) {
		Csi__V1__CreateVolumeResponse *response =
			csi__v1__create_volume_response__unpack(NULL, answer.len, answer.data);
		cr_assert_not_null(response);
		snprintf(ret_id, RECORD_ID_MAX, "%.*s", (int)response->volume->volume_id.len,
			(char *)response->volume->volume_id.data);
		csi__v1__create_volume_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

static enum grpc_status delete (const char *id) {
	Csi__V1__DeleteVolumeRequest req = CSI__V1__DELETE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(id);
	enum grpc_status status = simple("Controller/DeleteVolume", &req.base);
	world_settle(w);
	return status;
}

/* A device that was just cleared lives on while somebody on this machine looks at it (losetup -a,
 * another driver that starts), and the image's lock with it. The driver waits for that, but here
 * its clock is not the one on the wall. */
static enum grpc_status delete_patiently(const char *id)
{
	enum grpc_status status = delete (id);
	for (int i = 0; status == GRPC_FAILED_PRECONDITION && i < 200; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
		status = delete (id);
	}
	return status;
}

/* ---- the operations under test and their opposites ---- */

static char other_id[RECORD_ID_MAX];

static enum grpc_status do_create(void)
{
	return create("other", EMPTY, other_id);
}

static enum grpc_status do_clone(void)
{
	return create("other", FROM_VOLUME, other_id);
}

static enum grpc_status do_restore(void)
{
	return create("other", FROM_SNAPSHOT, other_id);
}

static enum grpc_status undo_create(void)
{
	return delete (other_id);
}

static enum grpc_status do_snapshot(void)
{
	Csi__V1__CreateSnapshotRequest req = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	req.name = csi_bytes("snap");
	req.source_volume_id = csi_bytes(volume_id);
	struct world_answer answer;
	enum grpc_status status = call("Controller/CreateSnapshot", &req.base, &answer);
	if (status == GRPC_OK) {
		Csi__V1__CreateSnapshotResponse *response =
			csi__v1__create_snapshot_response__unpack(NULL, answer.len, answer.data);
		snprintf(snapshot_id, sizeof(snapshot_id), "%.*s",
			(int)response->snapshot->snapshot_id.len,
			(char *)response->snapshot->snapshot_id.data);
		csi__v1__create_snapshot_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

/* A freeze tells, and changes nothing that a thaw does not take back. */
static bool is_frozen(void)
{
	int fd = open(staging_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	bool frozen = ioctl(fd, FIFREEZE, 0) < 0;
	cr_assert(!frozen || errno == EBUSY);
	cr_assert(frozen || ioctl(fd, FITHAW, 0) == 0);
	close(fd);
	return frozen;
}

/* Frozen by us, as an attempt cut short leaves it. */
static enum grpc_status do_snapshot_of_frozen(void)
{
	char image[128];
	snprintf(image, sizeof(image), "%s/volumes/base", w->pool_path);
	int fd = open(image, O_RDONLY | O_CLOEXEC);
	int root = open(staging_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert(fd >= 0 && root >= 0);
	cr_assert_eq(boot_mark_set(fd, BOOT_MARK_FROZEN, ""), 0);
	cr_assert(ioctl(root, FIFREEZE, 0) == 0 || errno == EBUSY);
	close(root);
	close(fd);
	return do_snapshot();
}

static enum grpc_status undo_snapshot(void)
{
	Csi__V1__DeleteSnapshotRequest req = CSI__V1__DELETE_SNAPSHOT_REQUEST__INIT;
	req.snapshot_id = csi_bytes(snapshot_id);
	enum grpc_status status = simple("Controller/DeleteSnapshot", &req.base);
	world_settle(w);
	return status;
}

static enum grpc_status do_stage(void)
{
	Csi__V1__NodeStageVolumeRequest req = CSI__V1__NODE_STAGE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(staging_path);
	req.volume_capability = capability();
	return simple("Node/NodeStageVolume", &req.base);
}

static enum grpc_status undo_stage(void)
{
	Csi__V1__NodeUnstageVolumeRequest req = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(staging_path);
	return simple("Node/NodeUnstageVolume", &req.base);
}

static bool publish_read_only;

static enum grpc_status do_publish(void)
{
	Csi__V1__NodePublishVolumeRequest req = CSI__V1__NODE_PUBLISH_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(staging_path);
	req.target_path = csi_bytes(target_path);
	req.readonly = publish_read_only;
	req.volume_capability = capability();
	return simple("Node/NodePublishVolume", &req.base);
}

static enum grpc_status undo_publish(void)
{
	Csi__V1__NodeUnpublishVolumeRequest req = CSI__V1__NODE_UNPUBLISH_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.target_path = csi_bytes(target_path);
	return simple("Node/NodeUnpublishVolume", &req.base);
}

static enum grpc_status do_stats(void)
{
	Csi__V1__NodeGetVolumeStatsRequest req = CSI__V1__NODE_GET_VOLUME_STATS_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(target_path);
	return simple("Node/NodeGetVolumeStats", &req.base);
}

static enum grpc_status do_health(void)
{
	Csi__V1__NodeGetVolumeHealthRequest req = CSI__V1__NODE_GET_VOLUME_HEALTH_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.volume_publish_path = csi_bytes(target_path);
	return simple("Node/NodeGetVolumeHealth", &req.base);
}

/* Grows by a MiB each time it is called anew: the size is fixed while one call is being failed. */
static uint64_t grow_to = 17 * MIB;

static enum grpc_status do_expand(void)
{
	Csi__V1__ControllerExpandVolumeRequest req =
		CSI__V1__CONTROLLER_EXPAND_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	range.required_bytes = (int64_t)grow_to;
	req.volume_id = csi_bytes(volume_id);
	req.capacity_range = &range;
	return simple("Controller/ControllerExpandVolume", &req.base);
}

static enum grpc_status undo_expand(void)
{
	grow_to += MIB;
	w->size_zero = (int64_t)grow_to;
	return GRPC_OK;
}

static enum grpc_status do_node_expand(void)
{
	Csi__V1__NodeExpandVolumeRequest req = CSI__V1__NODE_EXPAND_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	range.required_bytes = (int64_t)grow_to;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(target_path);
	req.capacity_range = &range;
	return simple("Node/NodeExpandVolume", &req.base);
}

static enum grpc_status do_capacity(void)
{
	Csi__V1__GetCapacityRequest req = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	return simple("Controller/GetCapacity", &req.base);
}

/* What `ringvol ls` asks. What the measures of the pools fail in is not its failure: it tells what
 * was known before. */
static enum grpc_status do_inspect(void)
{
	Ringvol__V1__ListRequest req = RINGVOL__V1__LIST_REQUEST__INIT;
	struct world_answer answer;
	enum grpc_status status = call("/ringvol.v1.Inspect/List", &req.base, &answer);
	cr_assert_eq(status, GRPC_OK);
	cr_assert_geq(answer.messages, 3, "the driver, a pool and a volume");
	world_answer_free(&answer);
	return status;
}

static enum grpc_status nothing(void)
{
	return GRPC_OK;
}

/* ---- the mechanism ---- */

struct trial {
	const char *name;
	enum grpc_status (*run)(void);
	enum grpc_status (*back)(void);
	bool all_or_nothing; /* a failure leaves the machine as it was, or the operation committed
			      */
};

/* A step whose failure may leave the volume frozen, with a mark for the retry. */
static bool is_thaw(const char *step)
{
	return strstr(step, "/release ") != NULL || strncmp(step, "thaw/", strlen("thaw/")) == 0;
}

/* Fails run()'s n-th step for every n. Returns how many steps there were. */
static unsigned fail_each_step(const struct trial *t)
{
	char before[INVENTORY_BYTES], after[INVENTORY_BYTES], failed[INVENTORY_BYTES];

	/* Once without a fault: warms caches (templates, helper descriptors) and shows the end
	 * state. */
	cr_assert_eq(t->run(), GRPC_OK, "%s", t->name);
	world_settle(w);
	world_inventory(w, after, sizeof(after));
	cr_assert_eq(t->back(), GRPC_OK, "%s: opposite", t->name);
	world_settle(w);
	world_inventory(w, before, sizeof(before));

	for (unsigned n = 0; n < STEPS_MAX; n++) {
		w->fault_hit = false;
		w->fault_after = (int)n;
		enum grpc_status status = t->run();
		w->fault_after = -1;
		if (!w->fault_hit) {
			cr_assert_eq(status, GRPC_OK);
			cr_assert_eq(t->back(), GRPC_OK);
			return n;
		}
		cr_assert(status == GRPC_INTERNAL || status == GRPC_OK,
			"%s failed at %s: status %d", t->name, w->fault_at, status);
		world_settle(w);
		world_inventory(w, failed, sizeof(failed));
		char *frozen = strstr(failed, "frozen ");
		if (frozen != NULL && status != GRPC_OK && is_thaw(w->fault_at))
			*frozen = '\0';
		if (status == GRPC_OK)
			cr_assert_str_eq(failed, after,
				"%s failed at %s, answered OK, and left\n%s\ninstead of\n%s",
				t->name, w->fault_at, failed, after);
		if (t->all_or_nothing && status != GRPC_OK)
			cr_assert(strcmp(failed, before) == 0 || strcmp(failed, after) == 0,
				"%s failed at %s and left\n%s\nbefore it was\n%s", t->name,
				w->fault_at, failed, before);
		cr_assert_eq(t->run(), GRPC_OK, "%s: the retry after %s", t->name, w->fault_at);
		cr_assert_eq(t->back(), GRPC_OK, "%s: opposite after %s", t->name, w->fault_at);
		world_settle(w);
		world_inventory(w, failed, sizeof(failed));
		cr_assert_str_eq(
			failed, before, "%s failed at %s, retried, undone", t->name, w->fault_at);
	}
	cr_assert_fail("%s never ended without a fault", t->name);
	return 0;
}

static void fail_all(void)
{
	static const struct trial on_idle_volume[] = {
		{"CreateVolume", do_create, undo_create, true},
		{"DeleteVolume", undo_create, do_create, false},
		{"CreateVolume from a volume", do_clone, undo_create, true},
		{"CreateSnapshot", do_snapshot, undo_snapshot, true},
		{"GetCapacity", do_capacity, nothing, true},
		{"ControllerExpandVolume", do_expand, undo_expand, false},
		{"NodeStageVolume", do_stage, undo_stage, true},
	};
	static const struct trial on_staged_volume[] = {
		{"NodePublishVolume", do_publish, undo_publish, true},
		{"NodeUnstageVolume", undo_stage, do_stage, false},
	};
	static const struct trial on_published_volume[] = {
		{"NodeGetVolumeStats", do_stats, nothing, true},
		{"NodeGetVolumeHealth", do_health, nothing, true},
		{"Inspect.List", do_inspect, nothing, true},
		{"NodeUnpublishVolume", undo_publish, do_publish, false},
	};
	/* A mounted volume is frozen for them. */
	static const struct trial on_volume_in_use[] = {
		{"CreateSnapshot in use", do_snapshot, undo_snapshot, true},
		{"CreateVolume from a volume in use", do_clone, undo_create, true},
	};
	for (unsigned i = 0; i < sizeof(on_idle_volume) / sizeof(on_idle_volume[0]); i++) {
		if (on_idle_volume[i].run == undo_create)
			cr_assert_eq(do_create(), GRPC_OK);
		cr_assert_gt(fail_each_step(&on_idle_volume[i]), 0);
		if (on_idle_volume[i].run == undo_create)
			cr_assert_eq(undo_create(), GRPC_OK);
	}
	cr_assert_eq(do_snapshot(), GRPC_OK);
	fail_each_step(
		&(struct trial){"CreateVolume from a snapshot", do_restore, undo_create, true});
	fail_each_step(&(struct trial){"DeleteSnapshot", undo_snapshot, do_snapshot, false});
	cr_assert_eq(undo_snapshot(), GRPC_OK);

	cr_assert_eq(do_stage(), GRPC_OK);
	for (unsigned i = 0; i < sizeof(on_staged_volume) / sizeof(on_staged_volume[0]); i++)
		fail_each_step(&on_staged_volume[i]);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	for (unsigned i = 0; i < sizeof(on_published_volume) / sizeof(on_published_volume[0]); i++)
		cr_assert_gt(fail_each_step(&on_published_volume[i]), 0);
	cr_assert_eq(do_publish(), GRPC_OK);
	/* A copy of an attached block volume is refused. */
	for (unsigned i = 0; (!block || w->mounted) && i < 2; i++)
		fail_each_step(&on_volume_in_use[i]);
	if (!block) {
		fail_each_step(&(struct trial){"CreateSnapshot of what is frozen",
			do_snapshot_of_frozen, undo_snapshot, false});
		cr_assert_eq(do_snapshot(), GRPC_OK);
		fail_each_step(&(struct trial){
			"CreateSnapshot again", do_snapshot_of_frozen, nothing, false});
		cr_assert(!is_frozen());
		cr_assert_eq(undo_snapshot(), GRPC_OK);
	}
	if (block) /* ext4's online growth needs CAP_SYS_RESOURCE: it is failed in the VM lane */
		fail_each_step(
			&(struct trial){"NodeExpandVolume", do_node_expand, undo_expand, false});
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
}

static void run(enum world_fs fs, bool as_block)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		const char *why = NULL;
		char empty[INVENTORY_BYTES], left[INVENTORY_BYTES];
		w = world_open(fs, seed, &why);
		if (w == NULL)
			cr_skip_test("%s", why);
		printf("seed %llu\n", (unsigned long long)seed);
		block = as_block;
		grow_to = 17 * MIB;
		w->size_zero = (int64_t)grow_to;
		snprintf(staging_path, sizeof(staging_path), "%s/stage", w->dir);
		snprintf(target_path, sizeof(target_path), "%s/target", w->dir);
		world_settle(w);
		cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
		cr_assert_eq(delete (volume_id), GRPC_OK);
		world_inventory(w, empty, sizeof(empty));
		cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
		fail_all();
		cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
		world_inventory(w, left, sizeof(left));
		cr_assert_str_eq(left, empty);
		world_close(w);
	}
}

Test(csi, mount_volume_on_reflink_pool, .timeout = 300)
{
	run(WORLD_XFS, false);
}

Test(csi, mount_volume_without_reflink, .timeout = 300)
{
	run(WORLD_EXT4, false);
}

Test(csi, block_volume_on_reflink_pool, .timeout = 300)
{
	run(WORLD_XFS, true);
}

Test(csi, block_volume_without_reflink, .timeout = 300)
{
	run(WORLD_EXT4, true);
}

/* ---- equal and different calls at once, in many orders ---- */

enum { SAME = 50 };

static void fill_create(Csi__V1__CreateVolumeRequest *req, Csi__V1__CapacityRange *range,
	Csi__V1__VolumeCapability **caps, uint64_t size)
{
	csi__v1__create_volume_request__init(req);
	csi__v1__capacity_range__init(range);
	caps[0] = capability();
	range->required_bytes = (int64_t)size;
	req->name = csi_bytes("same");
	req->capacity_range = range;
	req->n_volume_capabilities = 1;
	req->volume_capabilities = caps;
}

Test(csi, equal_calls_join_and_different_ones_abort, .timeout = 300)
{
	for (uint64_t seed = 1; seed <= 10; seed++) {
		const char *why = NULL;
		w = world_open(WORLD_EXT4, seed, &why);
		if (w == NULL)
			cr_skip_test("%s", why);
		block = true;
		Csi__V1__CreateVolumeRequest req;
		Csi__V1__CapacityRange range;
		Csi__V1__VolumeCapability *caps[1];
		static struct world_answer answers[SAME], different;
		fill_create(&req, &range, caps, 16 * MIB);
		for (unsigned i = 0; i < SAME; i++)
			world_send(w, "Controller/CreateVolume", &req.base, &answers[i]);
		fill_create(&req, &range, caps, 32 * MIB);
		world_send(w, "Controller/CreateVolume", &req.base, &different);
		cr_assert(different.ended);
		cr_assert_eq(different.status, GRPC_ABORTED);
		cr_assert_not_null(strstr(different.message, "volume/same"));
		for (unsigned i = 0; i < SAME; i++) {
			world_wait(w, &answers[i]);
			cr_assert_eq(answers[i].status, GRPC_OK);
			cr_assert_eq(answers[i].len, answers[0].len);
			cr_assert_arr_eq(answers[i].data, answers[0].data, answers[0].len);
		}
		for (unsigned i = SAME; i-- > 0;)
			world_answer_free(&answers[i]);
		world_close(w);
	}
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

/* A change that nobody shares a sync with syncs in its own trip to a thread. */
static int no_sync_job(void *arg, const char *op_name, const char *step_name)
{
	(void)op_name;
	unsigned *failed = arg;
	if (strcmp(step_name, "sync") != 0)
		return 0;
	(*failed)++;
	return -EIO;
}

static void syncs_fail(unsigned *failed)
{
	w->sim.fault_arg = failed;
	w->sim.fault = failed != NULL ? no_sync : NULL;
	w->reactor.job_fault_arg = failed;
	w->reactor.job_fault = failed != NULL ? no_sync_job : NULL;
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

static char other_id[RECORD_ID_MAX];

static enum grpc_status create_other(void)
{
	return create("other", EMPTY, other_id);
}

static enum grpc_status delete_other(void)
{
	return delete (other_id);
}

Test(csi, what_was_not_synced_is_not_acknowledged, .timeout = 300)
{
	for (enum world_fs fs = WORLD_EXT4; fs <= WORLD_XFS; fs++) {
		const char *why = NULL;
		w = world_open(fs, 1, &why);
		if (w == NULL)
			cr_skip_test("%s", why);
		block = true;
		cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
		repeat_without_sync("CreateVolume", create_other);
		repeat_without_sync("DeleteVolume", delete_other);
		repeat_without_sync("CreateSnapshot", do_snapshot);
		repeat_without_sync("DeleteSnapshot", undo_snapshot);
		cr_assert_eq(delete (volume_id), GRPC_OK);
		world_close(w);
	}
}

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
	const char *why = NULL;
	w = world_open(fs, 1, &why);
	if (w == NULL)
		cr_skip_test("%s", why);
	block = false;
	thaws = 0;
	snprintf(staging_path, sizeof(staging_path), "%s/stage", w->dir);
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
	int (*none)(void *arg, const char *op_name, const char *step_name) = w->reactor.op_fault;
	w->reactor.op_fault = fault;
	cr_assert_eq(make(), expected);
	cr_assert_eq(thaws, 1);
	cr_assert_eq(is_frozen(), expected != GRPC_OK);
	w->reactor.op_fault = none;
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
	w->reactor.job_fault = share_refused;
	cr_assert_eq(do_snapshot(), GRPC_FAILED_PRECONDITION);
	cr_assert(!is_frozen());
	cr_assert_eq(do_clone(), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(do_clone(), GRPC_OK);
	cr_assert_eq(sharings, 4, "sharing was tried %u times", sharings);
	cr_assert_eq(undo_create(), GRPC_OK);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	w->reactor.job_fault = NULL;
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- a restart finds everything again ---- */

Test(csi, restart_adopts_devices_and_mounts, .timeout = 300)
{
	const char *why = NULL;
	w = world_open(WORLD_XFS, 1, &why);
	if (w == NULL)
		cr_skip_test("%s", why);
	block = false;
	snprintf(staging_path, sizeof(staging_path), "%s/stage", w->dir);
	snprintf(target_path, sizeof(target_path), "%s/target", w->dir);
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
	const char *why = NULL;
	char left[INVENTORY_BYTES];
	struct world_answer answer;
	w = world_open(WORLD_XFS, 1, &why);
	if (w == NULL)
		cr_skip_test("%s", why);
	block = true;
	snprintf(staging_path, sizeof(staging_path), "%s/stage", w->dir);
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
	int (*hook)(void *, const char *, const char *) = w->reactor.op_fault;
	w->reactor.op_fault = grow_fails;
	cr_assert_eq(do_stage(), GRPC_INTERNAL);
	w->reactor.op_fault = hook;
	cr_assert_geq(busy, 0, "it was not mounted");
	close(busy);
	busy = -1;
}

enum after { RETRY, RESTART_AND_RETRY, UNSTAGE, AFTERS };

Test(csi, stage_goes_on_from_a_failed_growth, .timeout = 300)
{
	const char *why = NULL;
	char before[INVENTORY_BYTES], left[INVENTORY_BYTES], base_id[RECORD_ID_MAX];
	w = world_open(WORLD_EXT4, 1, &why);
	if (w == NULL)
		cr_skip_test("%s", why);
	block = false;
	fs_type = "xfs"; /* ext4's online growth needs CAP_SYS_RESOURCE */
	create_bytes = XFS_MIN_MIB * MIB;
	snprintf(staging_path, sizeof(staging_path), "%s/stage", w->dir);
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
	const char *why = NULL;
	char left[INVENTORY_BYTES];
	w = world_open(WORLD_EXT4, 1, &why);
	if (w == NULL)
		cr_skip_test("%s", why);
	block = false;
	snprintf(staging_path, sizeof(staging_path), "%s/stage", w->dir);
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
	const char *why = NULL;
	w = world_open(WORLD_EXT4, 1, &why);
	if (w == NULL)
		cr_skip_test("%s", why);
	block = true;
	snprintf(staging_path, sizeof(staging_path), "%s/stage", w->dir);
	snprintf(target_path, sizeof(target_path), "%s/target", w->dir);
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
