/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Borrowed volumes: the Node service over a volume of another node (lender.h). All else is real,
 * and every step is failed in turn, as in test_csi.c.
 */
#include "answers.h"
#include "lender.h"
#include "trials.h"
#include "world.h"

#include "attach/borrowed.h"
#include "backends/crypt/luks_order.h"
#include "csi/cover_watch.h"
#include "csi/messages.h"
#include "inspect.pb-c.h"
#include "node/take_device.h"
#include "node/volume.h"
#include "pool/arrival.h"
#include "pool/attachment.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

static void fail_all(uint64_t seed, bool as_block, bool encrypted)
{
	open_far(seed, as_block);
	if (encrypted)
		encrypt_far(as_block);
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
		fail_all(seed, false, false);
}

Test(borrow, block_volume, .timeout = 300)
{
	for (uint64_t seed = 1; seed <= 2; seed++)
		fail_all(seed, true, false);
}

Test(borrow, encrypted_mount_volume, .timeout = 300)
{
	fail_all(3, false, true);
}

Test(borrow, encrypted_block_volume, .timeout = 300)
{
	fail_all(4, true, true);
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

/* ---- encrypted ---- */

/* What fails leaves no device, connection or entry, and the next attempt succeeds. */
static void stage_fails(enum grpc_status want)
{
	cr_assert_eq(do_stage(), want);
	cr_assert(!far.connected);
	cr_assert_null(entry());
}

Test(borrow, keys, .timeout = 300)
{
	static const struct {
		const char *does;
		enum grpc_status status;
	} trials[] = {
		{"kill -9 $$", GRPC_INTERNAL}, {"exit 12", GRPC_DATA_LOSS}, /* LUKS_NO_HEADER */
		{"exit 13", GRPC_FAILED_PRECONDITION},                      /* LUKS_OTHER_SHAPE */
		{"exit 14", GRPC_FAILED_PRECONDITION},                      /* LUKS_NO_LIBRARY */
		{"exit 15", GRPC_FAILED_PRECONDITION},                      /* LUKS_NO_DM_CRYPT */
		{"exit 16", GRPC_RESOURCE_EXHAUSTED},                       /* LUKS_NO_MEMORY */
		{"exit 18", GRPC_UNAVAILABLE},                              /* LUKS_BUSY */
	};
	_Static_assert(LUKS_BUSY == 18 && LUKS_NO_HEADER == 12, "as they are");
	open_far(1, false);
	encrypt_far(false);
	stage_key = NULL;
	stage_fails(GRPC_INVALID_ARGUMENT);
	cr_assert_eq(far.takes, 0, "nothing was touched");
	stage_key = "another";
	stage_fails(GRPC_UNAUTHENTICATED);
	stage_key = "the key";
	for (unsigned i = 0; i < sizeof(trials) / sizeof(trials[0]); i++) {
		child_does(trials[i].does);
		stage_fails(trials[i].status);
	}
	child_does("");
	far.fail_opened = -EIO;
	stage_fails(GRPC_INTERNAL);
	far.fail_opened = -EINVAL;
	far.code = ERR_DATA_LOSS;
	stage_fails(GRPC_DATA_LOSS);
	cr_assert_eq(do_publish(), GRPC_FAILED_PRECONDITION, "not staged");
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert(entry()->opened);
	cr_assert_eq(entry()->size_bytes, 16 << 20, "the header is none of it");
	stage_key = "another";
	cr_assert_eq(do_stage(), GRPC_OK, "a repeat, and nobody looks at the key");
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}

/* Ciphertext is published to nobody, whatever an earlier run has left. */
Test(borrow, a_cover_alone, .timeout = 300)
{
	char over[32];
	open_far(1, true);
	encrypt_far(true);
	child_does("exit 18");
	far.fail_give = -EIO; /* not even the undo goes well */
	cr_assert_eq(do_stage(), GRPC_UNAVAILABLE);
	cr_assert(far.connected);
	struct attach_info info = {0};
	fill(&info);
	cr_assert_not_null(borrows_put(w->csi->borrows, TAG, &info));
	cr_assert_eq(do_publish(), GRPC_FAILED_PRECONDITION);
	child_does("");
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert(opened(over));
	cr_assert_str_eq(entry()->path, over);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}

/* The owner has grown it while nobody had it open: what was opened follows at the next stage. */
Test(borrow, an_encrypted_one_grows, .timeout = 300)
{
	open_far(1, true);
	encrypt_far(true);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	stage_key = NULL;
	child_does("exit 10");
	cr_assert_eq(node_expand(20 * MIB), GRPC_INTERNAL);
	child_does("");
	cr_assert_eq(node_expand(20 * MIB), GRPC_OK, "no key is needed");
	cr_assert_eq(entry()->size_bytes, 20 * MIB);
	sh("truncate -s 40M %s/image", w->dir);
	sh("losetup -c %s", far.path);
	stage_key = "the key";
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(entry()->size_bytes, 24 * MIB);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}

Test(borrow, encrypted_readers, .timeout = 300)
{
	open_far(1, false);
	encrypt_far(false);
	access_read_only = true;
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert(far.read_only);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(do_stats(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK);
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

static void goes_on(bool encrypted)
{
	open_far(1, false);
	if (encrypted)
		encrypt_far(false);
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

Test(borrow, another_run_goes_on, .timeout = 300)
{
	goes_on(false);
	goes_on(true);
}

/* What `ringvol ls` is told, with a volume of a pool besides. */
static void lists_far(const char *fmt, ...)
{
	Ringvol__V1__ListRequest req = RINGVOL__V1__LIST_REQUEST__INIT;
	Ringvol__V1__ListRequest__Kind kind = RINGVOL__V1__LIST_REQUEST__KIND__VOLUMES;
	char want[800], device[200];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(want, sizeof(want), fmt, ap);
	va_end(ap);
	req.n_kinds = 1;
	req.kinds = &kind;
	req.attached_only = true;
	const struct borrowed *one = entry();
	device[0] = '\0';
	if (one != NULL)
		snprintf(device, sizeof(device), "size_bytes=%d device{%s}", 16 << 20,
			device_fields("nvme-tcp", one->path, one->major, one->minor));
	const char *got =
		ask("/ringvol.v1.Inspect/List", &req, &ringvol__v1__list_response__descriptor);
	if (one == NULL)
		says(got, "%s", "");
	else
		says(got, "borrowed{%.*s%s%s}", (int)strcspn(want, "|"), want, device,
			want + strcspn(want, "|") + 1);
}

Test(borrow, it_is_told_of, .timeout = 300)
{
	open_far(1, false);
	lists_far("|");
	cr_assert_eq(do_stage(), GRPC_OK);
	lists_far("id='%s' tag='%s' owner='node-2' access_type='mount' | mounts{path='%s'}", ID,
		TAG, staging_path);
	as_after_a_start();
	lists_far("tag='%s' |", TAG);
	cr_assert_eq(do_publish(), GRPC_OK); /* which names it */
	lists_far("id='%s' tag='%s' |", ID, TAG);
	entry()->suspended = true;
	lists_far("id='%s' tag='%s' | suspended=1", ID, TAG);
	entry()->suspended = false;
	entry()->local = true; /* then it is a volume of a pool here */
	cr_assert_null(borrows_next(w->csi->borrows, ""));
	entry()->local = false;
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	lists_far("|");
	close_far();
}

/* They are told of in the order of their tags, each once. */
Test(borrow, one_behind_the_other)
{
	open_far(1, false);
	struct borrows *b = w->csi->borrows;
	const char *const tags[] = {"ringvol:b:2", "ringvol:a:9", "ringvol:c:1"};
	const struct attach_info info = {0};
	char order[64] = "";
	for (unsigned i = 0; i < 3; i++)
		cr_assert_not_null(borrows_put(b, tags[i], &info));
	for (struct borrowed *one = NULL;
		(one = borrows_next(b, one != NULL ? one->tag : "")) != NULL;)
		strcat(order, one->tag + strlen("ringvol:"));
	cr_assert_str_eq(order, "a:9b:2c:1");
	for (unsigned i = 0; i < 3; i++)
		borrows_drop(b, borrows_find(b, tags[i]));
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
	/* What is known of its device is what is there. */
	borrows_find(w->csi->borrows, far.tag)->size_bytes = 1;
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(borrows_find(w->csi->borrows, far.tag)->size_bytes, 16 * MIB);
	far.connected = false;
	cr_assert_eq(do_stage(), GRPC_UNAVAILABLE, "its device is gone");
	far.connected = true;
	cr_assert_eq(do_stage(), GRPC_OK);
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

static unsigned resumes;

static int count_resumes(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	*resp_len = sizeof(struct attach_info);
	memset(resp, 0, *resp_len);
	resumes++;
	return 0;
}

/* Suspended while it has come here: TakeVolume swaps its cover, and it is not resumed over what it
 * was before. One that is not attached here is. */
Test(borrow, it_has_come_while_suspended, .timeout = 300)
{
	static struct csi_cover_watch watch;
	const struct attachment here = {
		.node = "node-1", .mode = ATTACHMENT_WRITER, .export = "", .key = ""};
	open_local(1);
	w->calls[ATTACH_RESUME] = count_resumes;
	struct borrowed *one = borrows_find(w->csi->borrows, far.tag);
	one->suspended = one->ours = true;
	strcpy(one->key, own->key);
	own->attachments = attachments_with(NULL, &here);
	csi_cover_watch_open(&watch, w->csi);
	for (unsigned attached = 1; attached < 2; attached--) {
		uint64_t end_ns = ring_now_ns(w->reactor.ring) + 2500 * UINT64_C(1000000);
		while (ring_now_ns(w->reactor.ring) < end_ns)
			cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
		cr_expect_eq(resumes > 0, attached == 0, "%u: %u", attached, resumes);
		cr_expect_eq(one->suspended, attached == 1);
		attachments_free(own->attachments);
		own->attachments = NULL;
	}
	csi_cover_watch_close(&watch);
	while (!csi_cover_watch_idle(&watch))
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_local();
}

/* It moves here, and may have left its node: it is not used over that one. */
Test(borrow, it_is_arriving, .timeout = 300)
{
	open_far(1, false);
	struct pool *pool = pools_at(w->pools, 0);
	cr_assert_eq(pool_arrival_add(pool, "far", "", 0), 0);
	cr_assert_eq(do_stage(), GRPC_UNAVAILABLE);
	cr_assert_eq(far.takes, 0);
	/* Nothing arrives at a node that has no part in moves. */
	w->csi->transfer = NULL;
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	w->csi->transfer = w->transfer;
	cr_assert_eq(do_stage(), GRPC_UNAVAILABLE);
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
