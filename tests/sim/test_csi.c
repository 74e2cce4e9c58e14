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
#include "csi_calls.h"
#include "trials.h"
#include "world.h"

#include "csi/messages.h"
#include "csi/task.h"
#include "inspect.pb-c.h"
#include "rpc/registry.h"

#include <criterion/criterion.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

enum { SEEDS = 3 };

/* ---- more operations under test, and their opposites ---- */

static enum grpc_status do_restore(void)
{
	return create("other", FROM_SNAPSHOT, other_id);
}

static enum grpc_status do_snapshot_of_frozen(void)
{
	leave_frozen();
	return do_snapshot();
}

static enum grpc_status do_health(void)
{
	Csi__V1__NodeGetVolumeHealthRequest req = CSI__V1__NODE_GET_VOLUME_HEALTH_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.volume_publish_path = csi_bytes(target_path);
	return call_status("Node/NodeGetVolumeHealth", &req.base);
}

/* Grows by a MiB each time it is called anew: the size is fixed while one call is being failed. */
static uint64_t grow_to = 17 * MIB;

static enum grpc_status do_expand(void)
{
	return expand(grow_to);
}

static enum grpc_status undo_expand(void)
{
	grow_to += MIB;
	w->size_zero = (int64_t)grow_to;
	return GRPC_OK;
}

static enum grpc_status do_node_expand(void)
{
	return node_expand(grow_to);
}

static enum grpc_status do_capacity(void)
{
	Csi__V1__GetCapacityRequest req = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	return call_status("Controller/GetCapacity", &req.base);
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

/* ---- all of them ---- */

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
	fail_each_step(&(struct trial){"GetMetadataAllocated", do_allocated, nothing, true});
	if (w->mounted)
		fail_each_step(&(struct trial){"GetMetadataDelta", do_delta, nothing, true});
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
		char empty[INVENTORY_BYTES], left[INVENTORY_BYTES];
		open_world(fs, seed, as_block);
		printf("seed %llu\n", (unsigned long long)seed);
		grow_to = 17 * MIB;
		w->size_zero = (int64_t)grow_to;
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

/* Whatever of it fails, the retry ends with a clean log and nothing frozen. */
Test(csi, growth_of_a_mounted_volume, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, false);
	fs_type = "xfs"; /* ext4's online growth needs CAP_SYS_RESOURCE */
	create_bytes = 300 * MIB;
	grow_to = create_bytes + MIB;
	w->size_zero = (int64_t)grow_to;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	fail_each_step(&(struct trial){
		"NodeExpandVolume of what is mounted", do_node_expand, undo_expand, false});
	cr_assert(!is_frozen());
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* What was made for block holds a file system, and is copied to be mounted, and mounted itself. */
Test(csi, change_of_mode, .timeout = 300)
{
	char command[160];
	open_world(WORLD_XFS, 1, true);
	mode_change = true;
	w->size_zero = (int64_t)create_bytes;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	snprintf(command, sizeof(command), "mkfs.ext4 -q -b 4096 -F %s/volumes/base", w->pool_path);
	cr_assert_eq(system(command), 0);
	block = false;
	static const struct trial on_idle_volume[] = {
		{"CreateVolume of another mode", do_clone, undo_create, true},
		{"NodeStageVolume of another mode", do_stage, undo_stage, true},
	};
	for (unsigned i = 0; i < sizeof(on_idle_volume) / sizeof(on_idle_volume[0]); i++)
		cr_assert_gt(fail_each_step(&on_idle_volume[i]), 0);
	cr_assert_eq(do_stage(), GRPC_OK);
	struct statfs staged;
	cr_assert_eq(statfs(staging_path, &staged), 0);
	cr_assert_eq(staged.f_type, EXT4_SUPER_MAGIC);
	fail_each_step(&(struct trial){
		"NodePublishVolume of another mode", do_publish, undo_publish, true});
	/* A driver that knows nothing of it finds out how it is used. */
	cr_assert_eq(do_publish(), GRPC_OK);
	world_restart(w);
	cr_assert_eq(do_stats(), GRPC_OK);
	fail_each_step(&(struct trial){
		"CreateSnapshot of another mode", do_snapshot, undo_snapshot, true});
	block = true;
	cr_assert_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	fail_each_step(
		&(struct trial){"NodeStageVolume of its own mode", do_stage, undo_stage, true});
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- equal and different calls at once, in many orders ---- */

enum { SAME = 50 };

/* CreateVolume "same". */
struct same {
	Csi__V1__CreateVolumeRequest req;
	Csi__V1__CapacityRange range;
	Csi__V1__VolumeCapability *caps[1];
};

static void fill_same(struct same *same, uint64_t size)
{
	csi__v1__create_volume_request__init(&same->req);
	csi__v1__capacity_range__init(&same->range);
	same->caps[0] = capability();
	same->range.required_bytes = (int64_t)size;
	same->req.name = csi_bytes("same");
	same->req.capacity_range = &same->range;
	same->req.n_volume_capabilities = 1;
	same->req.volume_capabilities = same->caps;
}

static void send_same(
	struct same *same, uint64_t size, struct world_answer *answers, unsigned count)
{
	fill_same(same, size);
	for (unsigned i = 0; i < count; i++)
		world_send(w, "Controller/CreateVolume", &same->req.base, &answers[i]);
}

Test(csi, equal_calls_join_and_different_ones_abort, .timeout = 300)
{
	for (uint64_t seed = 1; seed <= 10; seed++) {
		open_world(WORLD_EXT4, seed, true);
		struct same same;
		static struct world_answer answers[SAME], different;
		send_same(&same, 16 * MIB, answers, SAME);
		send_same(&same, 32 * MIB, &different, 1);
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

/* ---- calls whose clients leave ---- */

struct leaver {
	struct grpc_call call;
	enum grpc_status status; /* the answer; GRPC_UNKNOWN: none yet */
};

static int leaver_message(struct grpc_call *call, const struct grpc_payload *payload, bool last)
{
	(void)call, (void)payload, (void)last;
	return 0;
}

static bool leaver_writable(struct grpc_call *call)
{
	(void)call;
	return true;
}

static void leaver_end(struct grpc_call *call, enum grpc_status status, const char *message)
{
	(void)message;
	((struct leaver *)call)->status = status;
}

static void leaver_free(struct grpc_call *call)
{
	free(call);
}

static const struct grpc_carrier leaver_carrier = {
	leaver_message, leaver_writable, leaver_end, leaver_free};

static struct leaver *leaver_send(const ProtobufCMessage *request)
{
	static const char path[] = "/csi.v1.Controller/CreateVolume";
	static uint8_t packed[1024];
	struct leaver *l = calloc(1, sizeof(*l));
	const char *message;
	cr_assert_not_null(l);
	cr_assert_lt(protobuf_c_message_get_packed_size(request), sizeof(packed));
	size_t len = protobuf_c_message_pack(request, packed);
	grpc_call_init(&l->call, &leaver_carrier, w->registry);
	l->status = GRPC_UNKNOWN;
	l->call.entry = grpc_registry_find(w->registry, path, strlen(path));
	cr_assert_eq(grpc_call_decode(&l->call, packed, len, &message), GRPC_OK);
	grpc_call_run(&l->call);
	return l;
}

/* Its client leaves; what it was answered before. */
static enum grpc_status leave(struct leaver *l)
{
	enum grpc_status status = l->status;
	grpc_call_lose(&l->call, GRPC_DEADLINE_EXCEEDED);
	grpc_call_unref(&l->call);
	return status;
}

static const struct csi_task *only_task(void)
{
	cr_assert_eq(w->csi->task_count, 1);
	return container_of(w->csi->tasks.next, struct csi_task, link);
}

/* Nothing turns meanwhile: the operation hangs. */
Test(csi, calls_whose_clients_leave_end_and_the_operation_goes_on, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, true);
	struct same same;
	static struct world_answer before, after;
	fill_same(&same, 16 * MIB);
	struct leaver *first = leaver_send(&same.req.base);
	world_send(w, "Controller/CreateVolume", &same.req.base, &before);
	for (unsigned i = 0; i < GRPC_CALLS_MAX + 10; i++)
		cr_assert_eq(leave(leaver_send(&same.req.base)), GRPC_UNKNOWN, "call %u", i);
	cr_assert_eq(grpc_registry_in_flight(w->registry), 2);
	cr_assert_eq(only_task()->waiter_count, 2);

	/* The one that started it as well; the task lies in its memory. */
	cr_assert_eq(leave(first), GRPC_UNKNOWN);
	world_send(w, "Controller/CreateVolume", &same.req.base, &after);
	cr_assert_eq(grpc_registry_in_flight(w->registry), 2);
	cr_assert_eq(only_task()->waiter_count, 2);
	world_wait(w, &before);
	world_wait(w, &after);
	cr_expect_eq(before.status, GRPC_OK);
	cr_expect_eq(after.status, GRPC_OK);
	cr_assert_eq(after.len, before.len);
	cr_expect_arr_eq(after.data, before.data, before.len);
	world_answer_free(&before);
	world_answer_free(&after);
	world_close(w);
}

Test(csi, an_operation_that_nobody_waits_for_goes_on)
{
	open_world(WORLD_EXT4, 1, true);
	struct same same;
	static struct world_answer again;
	fill_same(&same, 16 * MIB);
	struct leaver *first = leaver_send(&same.req.base), *second = leaver_send(&same.req.base);
	leave(first);
	leave(second);
	cr_assert_eq(grpc_registry_in_flight(w->registry), 0);
	cr_assert_eq(only_task()->waiter_count, 0);
	char inventory[INVENTORY_BYTES];
	world_settle(w);
	cr_assert_eq(w->csi->task_count, 0);
	world_inventory(w, inventory, sizeof(inventory));
	cr_expect_not_null(strstr(inventory, "volumes same +16777216"), "%s", inventory);
	cr_expect_eq(call("Controller/CreateVolume", &same.req.base, &again), GRPC_OK);
	world_answer_free(&again);
	world_close(w);
}

Test(csi, more_calls_than_may_wait_are_told_that_it_is_pending)
{
	open_world(WORLD_EXT4, 1, true);
	struct same same;
	static struct world_answer answers[CSI_WAITERS_MAX], over;
	send_same(&same, 16 * MIB, answers, CSI_WAITERS_MAX);
	send_same(&same, 16 * MIB, &over, 1);
	cr_assert(over.ended);
	cr_expect_eq(over.status, GRPC_ABORTED);
	cr_expect_not_null(strstr(over.message, "pending for same"), "%s", over.message);
	for (unsigned i = 0; i < CSI_WAITERS_MAX; i++) {
		world_wait(w, &answers[i]);
		cr_assert_eq(answers[i].status, GRPC_OK);
		world_answer_free(&answers[i]);
	}
	world_close(w);
}
