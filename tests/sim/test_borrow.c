/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Borrowed volumes: the Node service over a volume of another node. The calls of attach are the
 * test's own: in the place of a connection and its cover stands a loop device. All else is real,
 * and every step is failed in turn, as in test_csi.c.
 */
#include "csi_calls.h"
#include "trials.h"
#include "world.h"

#include "attach/borrowed.h"
#include "csi/messages.h"
#include "node/take_device.h"
#include "node/volume.h"
#include "pool/arrival.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define ID  "fedcba98.far.0badcafe"
#define TAG "ringvol:fedcba98:0badcafe"
#define KEY "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

/* ---- the other node ---- */

static struct {
	bool connected;
	char path[32]; /* of the loop device, while it is */
	unsigned takes, gives;
	int fail_take, fail_give; /* -errno of the next one */
	enum err_code code;
	const char *state;
	bool lost; /* its device is gone */
	char key[ATTACH_KEY_BYTES];
	bool read_only, probe;
	bool local, suspended; /* it has moved here; is about to */
	char tag[ATTACH_TAG_BYTES];
} far;

static struct attach_pair pairs[] = {
	{ATTACH_TRANSPORT, "tcp"},
	{ATTACH_ADDRESS, "192.0.2.1:4420"},
	{ATTACH_SUBSYSTEM, ATTACH_NQN_PREFIX "a"},
	{ATTACH_HOST, ATTACH_HOST_NQN_PREFIX "b"},
	{ATTACH_HOST_ID, "11111111-2222-4333-8444-555555555555"},
	{ATTACH_KEY, KEY},
	{ATTACH_NAMESPACE, "01234567-89ab-4cde-8f01-23456789abcd"},
	{ATTACH_NODE, "node-2"},
	{ATTACH_VOLUME_MODE, "mount"},
	{ATTACH_FS_TYPE, "ext4"},
};
enum { PAIRS = sizeof(pairs) / sizeof(pairs[0]), MODE = PAIRS - 2 };

static void sh(const char *fmt, const char *arg)
{
	char command[512];
	snprintf(command, sizeof(command), fmt, arg);
	cr_assert_eq(system(command), 0, "%s", command);
}

static void fill(struct attach_info *info)
{
	struct stat st;
	char size[64], text[32] = "";
	if (!far.connected)
		return;
	cr_assert_eq(stat(far.path, &st), 0);
	info->there = true;
	info->alive = !far.lost;
	info->local = far.local;
	info->suspended = far.suspended;
	info->major = major(st.st_rdev);
	info->minor = minor(st.st_rdev);
	info->read_only = far.read_only;
	snprintf(info->path, sizeof(info->path), "%s", far.path);
	snprintf(size, sizeof(size), "/sys/dev/block/%u:%u/size", info->major, info->minor);
	FILE *f = fopen(size, "re");
	cr_assert(f != NULL && fgets(text, sizeof(text), f) != NULL);
	fclose(f);
	info->size_bytes = strtoull(text, NULL, 10) * 512;
	info->probe = (struct fsimg_probe){.type = FSIMG_EXT4, .fs_bytes = 16 << 20};
	if (far.local)
		return;
	snprintf(info->ctrl.name, sizeof(info->ctrl.name), "nvme7");
	snprintf(info->ctrl.state, sizeof(info->ctrl.state), "%s",
		far.state != NULL ? far.state : "live");
	snprintf(info->ctrl.subsystem, sizeof(info->ctrl.subsystem), ATTACH_NQN_PREFIX "a");
	snprintf(info->ctrl.address, sizeof(info->ctrl.address), "traddr=192.0.2.1,trsvcid=4420");
}

static struct attach_info *begin(void *resp, size_t *resp_len)
{
	*resp_len = sizeof(struct attach_info);
	memset(resp, 0, *resp_len);
	return resp;
}

static int fail(struct attach_info *info, int *res)
{
	int r = *res;
	*res = 0;
	if (r < 0 && far.code != ERR_OK)
		err_set(&info->err, far.code, "no such luck");
	return r;
}

static int fake_take(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct attach_take_req *take = req;
	struct attach_info *info = begin(resp, resp_len);
	cr_assert_eq(req_len, sizeof(*take));
	cr_assert_str_eq(take->tag, TAG);
	int r = fail(info, &far.fail_take);
	if (r < 0)
		return r;
	far.takes++;
	memcpy(far.key, take->terms.key, sizeof(far.key));
	far.probe = take->probe;
	info->found = far.connected;
	if (!far.connected) {
		char command[256];
		far.read_only = take->read_only;
		snprintf(command, sizeof(command), "losetup %s -f --show %s/image",
			take->read_only ? "-r" : "", w->dir);
		FILE *f = popen(command, "re");
		cr_assert(f != NULL && fgets(far.path, sizeof(far.path), f) != NULL);
		cr_assert_eq(pclose(f), 0);
		far.path[strcspn(far.path, "\n")] = '\0';
		far.connected = true;
	}
	bool found = info->found;
	fill(info);
	info->found = found;
	return 0;
}

static int fake_give(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct attach_info *info = begin(resp, resp_len);
	cr_assert_eq(req_len, sizeof(struct attach_volume_req));
	cr_assert_str_eq(((const struct attach_volume_req *)req)->tag, far.tag);
	int r = fail(info, &far.fail_give);
	if (r < 0)
		return r;
	far.gives++;
	if (far.connected)
		sh("losetup -d %s", far.path);
	far.connected = far.lost = false;
	return 0;
}

static int fake_look(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	fill(begin(resp, resp_len));
	return 0;
}

static int fake_grow(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct attach_volume_req *ask = req;
	struct attach_info *info = begin(resp, resp_len);
	char command[256];
	(void)req_len;
	snprintf(command, sizeof(command), "truncate -s %llu %s/image && losetup -c %s",
		(unsigned long long)ask->want_bytes, w->dir, far.path);
	cr_assert_eq(system(command), 0);
	fill(info);
	return 0;
}

static void use_fakes(void)
{
	w->calls[ATTACH_TAKE] = fake_take;
	w->calls[ATTACH_GIVE] = fake_give;
	w->calls[ATTACH_LOOK] = fake_look;
	w->calls[ATTACH_GROW] = fake_grow;
}

static void open_far(uint64_t seed, bool as_block)
{
	open_world(WORLD_EXT4, seed, as_block);
	memset(&far, 0, sizeof(far));
	strcpy(far.tag, TAG);
	pairs[MODE].value = as_block ? "block" : "mount";
	pairs[MODE + 1].value = as_block ? "" : "ext4";
	context = pairs;
	context_count = PAIRS;
	strcpy(volume_id, ID);
	sh("truncate -s 16M %s/image", w->dir);
	if (!as_block)
		sh("mkfs.ext4 -q -O metadata_csum_seed %s/image", w->dir);
	use_fakes();
}

static void close_far(void)
{
	cr_assert(!far.connected);
	cr_assert_eq(w->csi->borrows->busy, 0);
	cr_assert(list_empty(&w->csi->borrows->all));
	world_close(w);
}

static const struct borrowed *entry(void)
{
	return borrows_find(w->csi->borrows, TAG);
}

/* ---- each step fails once ---- */

static enum grpc_status nothing(void)
{
	return GRPC_OK;
}

static enum grpc_status do_health(void)
{
	Csi__V1__NodeGetVolumeHealthRequest req = CSI__V1__NODE_GET_VOLUME_HEALTH_REQUEST__INIT;
	req.volume_id = csi_bytes(ID);
	req.volume_publish_path = csi_bytes(target_path);
	return call_status("Node/NodeGetVolumeHealth", &req.base);
}

static uint64_t grow_to = 17 * MIB;

static enum grpc_status do_grow(void)
{
	return node_expand(grow_to);
}

static enum grpc_status undo_grow(void)
{
	grow_to += MIB;
	return GRPC_OK;
}

static void fail_all(uint64_t seed, bool as_block)
{
	open_far(seed, as_block);
	cr_assert_gt(fail_each_step(&(struct trial){"stage", do_stage, undo_stage, true}), 0);
	cr_assert(!far.connected);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_str_eq(far.key, KEY);
	cr_assert_gt(fail_each_step(&(struct trial){"publish", do_publish, undo_publish, true}), 0);
	cr_assert_gt(fail_each_step(&(struct trial){"unstage", undo_stage, do_stage, false}), 0);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_gt(fail_each_step(&(struct trial){"stats", do_stats, nothing, true}), 0);
	cr_assert_gt(fail_each_step(&(struct trial){"health", do_health, nothing, true}), 0);
	grow_to = 17 * MIB;
	if (as_block) /* ext4's growth needs CAP_SYS_RESOURCE */
		cr_assert_gt(
			fail_each_step(&(struct trial){"expand", do_grow, undo_grow, false}), 0);
	cr_assert_gt(
		fail_each_step(&(struct trial){"unpublish", undo_publish, do_publish, false}), 0);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}

Test(borrow, mount_volume, .timeout = 300)
{
	for (uint64_t seed = 1; seed <= 2; seed++)
		fail_all(seed, false);
}

Test(borrow, block_volume, .timeout = 300)
{
	for (uint64_t seed = 1; seed <= 2; seed++)
		fail_all(seed, true);
}

static void fail_whole(bool as_block)
{
	char second[96];
	open_far(1, as_block);
	w->csi->config.staging = false;
	cr_assert_gt(fail_each_step(&(struct trial){"publish", do_publish, undo_publish, true}), 0);
	cr_assert(!far.connected);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK, "a repeat");
	/* At a second place it is bound; the last one to go lets the device go. */
	strcpy(second, target_path);
	snprintf(target_path, sizeof(target_path), "%s/second", w->dir);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(do_stats(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert(far.connected);
	strcpy(target_path, second);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert(!far.connected);
	close_far();
}

Test(borrow, whole_publish, .timeout = 300)
{
	fail_whole(false);
	fail_whole(true);
}

/* ---- refusals ---- */

static enum grpc_status stage_with(unsigned i, const char *value)
{
	const char *was = pairs[i].value;
	pairs[i].value = value;
	enum grpc_status status = do_stage();
	pairs[i].value = was;
	return status;
}

Test(borrow, what_cannot_be_is_refused, .timeout = 300)
{
	open_far(1, false);
	cr_assert_eq(stage_with(0, "rdma"), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(stage_with(1, "192.0.2.1,nqn=x:1"), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(stage_with(2, "nqn.2014-08.org.nvmexpress:uuid:1"), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(stage_with(5, "secret"), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(stage_with(MODE, "block"), GRPC_INVALID_ARGUMENT, "with a file system");
	cr_assert_eq(stage_with(MODE + 1, "xfs"), GRPC_FAILED_PRECONDITION);
	block = true;
	cr_assert_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	block = false;
	cr_assert_eq(do_publish(), GRPC_FAILED_PRECONDITION, "not staged");
	cr_assert_eq(far.takes, 0);
	/* Without a context it is a volume that is not here. */
	context_count = 0;
	cr_assert_eq(do_stage(), GRPC_UNAVAILABLE);
	cr_assert_eq(do_stats(), GRPC_UNAVAILABLE);
	cr_assert_eq(undo_stage(), GRPC_OK);
	context_count = PAIRS;
	/* One of this node's own is not taken from another, whatever was said when it was there. */
	cr_assert_eq(create("own", EMPTY, other_id), GRPC_OK);
	strcpy(volume_id, other_id);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(far.takes, 0);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	strcpy(volume_id, "no id of ours");
	cr_assert_eq(do_stage(), GRPC_NOT_FOUND);
	strcpy(volume_id, ID);
	close_far();
}

Test(borrow, one_place_and_one_order, .timeout = 300)
{
	char elsewhere[96], first[96];
	open_far(1, false);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert(far.probe);
	cr_assert_eq(do_stage(), GRPC_OK, "a repeat");
	cr_assert(!far.probe, "what is mounted is not read");
	snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", w->dir);
	cr_assert_eq(mkdir(elsewhere, 0700), 0);
	strcpy(first, staging_path);
	strcpy(staging_path, elsewhere);
	cr_assert_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(do_publish(), GRPC_FAILED_PRECONDITION);
	strcpy(staging_path, first);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK, "a repeat");
	cr_assert_eq(undo_stage(), GRPC_FAILED_PRECONDITION, "still published");
	publish_read_only = true;
	cr_assert_eq(do_publish(), GRPC_ALREADY_EXISTS);
	publish_read_only = false;
	/* Something else is where it is to be unmounted. */
	strcpy(first, target_path);
	strcpy(target_path, w->dir);
	sh("mkdir %1$s/tmp && mount -t tmpfs none %1$s/tmp", w->dir);
	snprintf(target_path, sizeof(target_path), "%s/tmp", w->dir);
	cr_assert_eq(undo_publish(), GRPC_FAILED_PRECONDITION);
	sh("umount %s/tmp", w->dir);
	strcpy(target_path, first);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK, "a repeat");
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK, "a repeat");
	close_far();
}

/* MULTI_NODE_READER_ONLY, as csi_calls says it: read-only; nothing is written, its UUID neither. */
Test(borrow, readers, .timeout = 300)
{
	open_far(1, false);
	access_read_only = true;
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert(far.read_only);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(do_stats(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}

/* ---- a bad day of the other node ---- */

static const char *condition_of_stats(void)
{
	static char text[512];
	Csi__V1__NodeGetVolumeStatsRequest req = CSI__V1__NODE_GET_VOLUME_STATS_REQUEST__INIT;
	struct world_answer answer;
	req.volume_id = csi_bytes(ID);
	req.volume_path = csi_bytes(target_path);
	cr_assert_eq(
		call("Node/NodeGetVolumeStats", &req.base, &answer), GRPC_OK, "%s", answer.message);
	Csi__V1__NodeGetVolumeStatsResponse *response =
		csi__v1__node_get_volume_stats_response__unpack(NULL, answer.len, answer.data);
	cr_assert(response != NULL && response->volume_condition != NULL);
	snprintf(text, sizeof(text), "%s%.*s", response->volume_condition->abnormal ? "! " : "",
		(int)response->volume_condition->message.len,
		(char *)response->volume_condition->message.data);
	csi__v1__node_get_volume_stats_response__free_unpacked(response, NULL);
	world_answer_free(&answer);
	return text;
}

Test(borrow, an_owner_that_is_away, .timeout = 300)
{
	open_far(1, false);
	far.fail_take = -EHOSTUNREACH;
	far.code = ERR_UNAVAILABLE;
	cr_assert_eq(do_stage(), GRPC_UNAVAILABLE);
	far.fail_take = -ETIMEDOUT;
	cr_assert_eq(do_stage(), GRPC_DEADLINE_EXCEEDED);
	cr_assert(w->csi->borrows->unsure);
	far.fail_take = -EINVAL;
	far.code = ERR_PRECONDITION;
	cr_assert_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_str_eq(condition_of_stats(), "the volume is well");
	far.state = "connecting";
	cr_assert_not_null(strstr(condition_of_stats(), "! node node-2 (traddr=192.0.2.1"));
	cr_assert_not_null(strstr(condition_of_stats(), "does not answer"));
	far.state = NULL;
	cr_assert_str_eq(condition_of_stats(), "the volume is well");
	far.lost = true;
	cr_assert_not_null(strstr(condition_of_stats(), "! the volume's device is gone"));
	cr_assert_eq(do_health(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK);
	far.fail_give = -ETIMEDOUT;
	cr_assert_eq(undo_stage(), GRPC_DEADLINE_EXCEEDED);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}

/* ---- the next run of the driver ---- */

static void as_after_a_start(void)
{
	struct attach_info info = {0};
	world_restart(w);
	use_fakes();
	fill(&info);
	cr_assert_not_null(borrows_put(w->csi->borrows, TAG, &info));
}

Test(borrow, another_run_goes_on, .timeout = 300)
{
	open_far(1, false);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	as_after_a_start();
	cr_assert_str_eq(condition_of_stats(), "the volume is well");
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	as_after_a_start();
	cr_assert_eq(undo_stage(), GRPC_FAILED_PRECONDITION, "still published");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_null(entry());
	close_far();
}

/* Where the kernel did not say what is in use nobody is told that it is not. */
Test(borrow, a_blind_run_says_so, .timeout = 300)
{
	open_far(1, false);
	w->csi->borrows->blind = true;
	cr_assert_eq(undo_publish(), GRPC_UNAVAILABLE);
	cr_assert_eq(undo_stage(), GRPC_UNAVAILABLE);
	w->csi->borrows->blind = false;
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}

/* ---- a volume that has moved here in use ---- */

static struct pool_object *own;

static void on_op_end(struct op *op)
{
	(void)op;
}

static void run_to_end(struct op *op)
{
	op->on_end = on_op_end;
	op_start(op);
	for (unsigned i = 0; i < 10000 && op_running(op); i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert(!op_running(op));
}

/* It is in a pool of this node, and its cover stands over its device. */
static void open_local(uint64_t seed)
{
	static struct node_take_device take;
	char command[256];
	struct err err = {0};
	open_far(seed, false);
	cr_assert_eq(create("own", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK); /* so that it has a file system */
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &own, &err), 0);
	node_volume_tag(own, far.tag);
	node_take_device_init(&take, w->csi->node, own);
	run_to_end(&take.op);
	cr_assert(!op_failed(&take.op), "%s", take.op.err.message);
	snprintf(command, sizeof(command), "losetup -f --show %s", take.dev.dev.path);
	FILE *f = popen(command, "re");
	cr_assert(f != NULL && fgets(far.path, sizeof(far.path), f) != NULL);
	cr_assert_eq(pclose(f), 0);
	far.path[strcspn(far.path, "\n")] = '\0';
	far.connected = far.local = true;
	struct attach_info info = {0};
	fill(&info);
	cr_assert_not_null(borrows_put(w->csi->borrows, far.tag, &info));
}

static void close_local(void)
{
	cr_assert_null(node_volume_find(own), "its device is gone, too");
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	close_far();
}

/* Calls that bring what was said when it was attached, and calls that bring nothing. */
Test(borrow, it_is_here_by_now, .timeout = 300)
{
	open_local(1);
	for (unsigned i = 0; i < 2; i++) {
		context_count = i == 0 ? PAIRS : 0;
		cr_assert_eq(do_stage(), GRPC_OK);
		cr_assert_eq(do_publish(), GRPC_OK);
		cr_assert_eq(do_stats(), GRPC_OK);
	}
	cr_assert_eq(far.takes, 0, "there is nobody to connect to");
	Csi__V1__NodeGetVolumeStatsRequest req = CSI__V1__NODE_GET_VOLUME_STATS_REQUEST__INIT;
	struct world_answer answer;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(target_path);
	cr_assert_eq(call("Node/NodeGetVolumeStats", &req.base, &answer), GRPC_OK);
	Csi__V1__NodeGetVolumeStatsResponse *response =
		csi__v1__node_get_volume_stats_response__unpack(NULL, answer.len, answer.data);
	cr_assert(response != NULL && !response->volume_condition->abnormal);
	csi__v1__node_get_volume_stats_response__free_unpacked(response, NULL);
	world_answer_free(&answer);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(far.gives, 1);
	close_local();
}

Test(borrow, its_unstage_fails, .timeout = 300)
{
	unsigned n = 0;
	bool hit = true;
	while (hit) {
		open_local(2 + n);
		cr_assert_eq(do_stage(), GRPC_OK);
		w->fault_hit = false;
		w->fault_after = (int)n++;
		enum grpc_status status = undo_stage();
		w->fault_after = -1;
		hit = w->fault_hit;
		cr_assert(status == GRPC_OK || hit);
		cr_assert_eq(undo_stage(), GRPC_OK, "after %s", w->fault_at);
		cr_assert_eq(undo_stage(), GRPC_OK, "a repeat");
		close_local();
	}
	cr_assert_gt(n, 5);
}

/* It moves here, and may have left its node: it is not used over that one. */
Test(borrow, it_is_arriving, .timeout = 300)
{
	open_far(1, false);
	struct pool *pool = pools_at(w->pools, 0);
	cr_assert_eq(pool_arrival_add(pool, "far", "", 0), 0);
	cr_assert_eq(do_stage(), GRPC_UNAVAILABLE);
	cr_assert_eq(far.takes, 0);
	pool_arrival_forget(pool, "far");
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	borrows_find(w->csi->borrows, TAG)->suspended = true;
	cr_assert_eq(do_stats(), GRPC_UNAVAILABLE);
	cr_assert_eq(undo_publish(), GRPC_UNAVAILABLE);
	cr_assert_eq(undo_stage(), GRPC_UNAVAILABLE);
	borrows_find(w->csi->borrows, TAG)->suspended = false;
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}

/* The same while a pool that may have its part is not there; but not for ever. */
Test(borrow, it_may_be_arriving, .timeout = 300)
{
	open_far(1, false);
	sh("touch %s/other", w->dir); /* no directory */
	w->two_pools = true;
	world_restart(w);
	use_fakes();
	cr_assert_neq(pool_state(pools_at(w->pools, 1)), POOL_READY);
	cr_assert_eq(do_stage(), GRPC_UNAVAILABLE);
	cr_assert_eq(far.takes, 0);
	ring_sim_settle(w->reactor.ring, TRANSFER_STILL_MS + 1000);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}
