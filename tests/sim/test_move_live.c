/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume moves to the node that uses it, over its owner's export. In the place of the device
 * mapper stands a cover that says whether it is suspended; whoever uses it writes through it
 * whenever it is not. Whatever fails or dies: nothing is written to an image that has left, what
 * was written is in the one that arrives, and the cover goes on in the end.
 */
#include "moving.h"

#include "csi/arrivals.h"
#include "csi/cover_watch.h"
#include "csi/messages.h"
#include "node/node.h"
#include "node/take_device.h"
#include "node/volume.h"
#include "pool/arrival.h"
#include "pool/index.h"
#include "pool/part.h"
#include "pool/pools.h"
#include "transfer/grant.h"
#include "transfer/pull.h"
#include "transfer/still.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the cover ---- */

static struct {
	bool there, suspended, local;
	uint32_t below_major, below_minor;
	unsigned suspends, resumes, swaps;
	int fail_suspend, fail_resume, fail_swap; /* -errno of every one */
	bool suspends_all_the_same;               /* where it fails */
} cover;

static void tag_of_source(char ret[ATTACH_TAG_BYTES])
{
	struct record_id id;
	cr_assert_eq(record_id_parse(far.id, &id), 0);
	node_tag(id.pool, id.random, ret);
}

static void fill(struct attach_info *info)
{
	*info = (struct attach_info){
		.there = cover.there,
		.alive = true,
		.local = cover.local,
		.suspended = cover.suspended,
		.path = "/dev/dm-900",
		.major = 253,
		.minor = 900,
		.size_bytes = SIZE,
	};
	if (!cover.local)
		snprintf(info->ctrl.subsystem, sizeof(info->ctrl.subsystem), "nqn.far");
	if (!cover.local)
		snprintf(info->ctrl.name, sizeof(info->ctrl.name), "nvme7");
}

static void check_tag(const char *tag)
{
	char its[ATTACH_TAG_BYTES];
	tag_of_source(its);
	cr_assert_str_eq(tag, its);
}

/* What the calls about one volume have in common. */
static void begin(const void *req, size_t req_len)
{
	cr_assert_eq(req_len, sizeof(struct attach_volume_req));
	check_tag(((const struct attach_volume_req *)req)->tag);
}

static int answer(void *resp, size_t *resp_len, int res)
{
	*resp_len = sizeof(struct attach_info);
	fill(resp);
	return res;
}

static int fake_suspend(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	begin(req, req_len);
	cr_assert(cover.there && !cover.local);
	cover.suspends++;
	cover.suspended |= cover.fail_suspend == 0 || cover.suspends_all_the_same;
	return answer(resp, resp_len, cover.fail_suspend);
}

static int fake_resume(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	begin(req, req_len);
	cover.resumes++;
	cover.suspended &= cover.fail_resume != 0;
	return answer(resp, resp_len, cover.fail_resume);
}

static int fake_swap(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct attach_swap_req *swap = req;
	cr_assert_eq(req_len, sizeof(*swap));
	check_tag(swap->volume.tag);
	cr_assert(cover.suspended);
	cr_assert_eq(swap->size_bytes, SIZE);
	if (cover.fail_swap == 0) {
		cover.swaps++;
		cover.suspended = false;
		cover.local = true;
		cover.below_major = swap->major;
		cover.below_minor = swap->minor;
	}
	return answer(resp, resp_len, cover.fail_swap);
}

static int fake_give(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	begin(req, req_len);
	cover.there = false;
	return answer(resp, resp_len, 0);
}

static struct borrowed *entry(void)
{
	char tag[ATTACH_TAG_BYTES];
	tag_of_source(tag);
	return borrows_find(w->csi->borrows, tag);
}

/* What a stage, or the adoption at a start, knows of it. */
static void know_cover(void)
{
	char tag[ATTACH_TAG_BYTES];
	struct attach_info info;
	w->calls[ATTACH_SUSPEND] = fake_suspend;
	w->calls[ATTACH_RESUME] = fake_resume;
	w->calls[ATTACH_SWAP] = fake_swap;
	w->calls[ATTACH_GIVE] = fake_give;
	tag_of_source(tag);
	fill(&info);
	if (cover.there)
		cr_assert_not_null(borrows_put(w->csi->borrows, tag, &info));
}

/* ---- the far node's export ---- */

static unsigned exports, ends;

static int fake_check(bool auth, bool tls, struct err *err)
{
	(void)auth;
	(void)tls;
	(void)err;
	return 0;
}

static int fake_make(const struct nvmet_export *e, struct err *err)
{
	(void)err;
	cr_assert_str_eq(e->uuid, LENT_EXPORT);
	exports = 1;
	return 0;
}

static bool fake_is_open(const char *address)
{
	(void)address;
	return true;
}

static int fake_open(const char *address, bool tls, const struct export_names *names, size_t count,
	struct err *err)
{
	(void)tls;
	(void)address;
	(void)names;
	(void)count;
	(void)err;
	return 0;
}

static int fake_end(const struct nvmet_export *e, struct err *err)
{
	(void)err;
	cr_assert_str_eq(e->uuid, LENT_EXPORT);
	cr_assert(!cover.there || cover.suspended || cover.local, "it ends under I/O");
	exports = 0;
	ends++;
	return 0;
}

static int fake_resize(const struct nvmet_export *e, struct err *err)
{
	(void)e;
	(void)err;
	return 0;
}

static int fake_each(int (*each)(void *arg, const char *subsystem), void *arg)
{
	struct export_names names;
	export_names_of(pool_uuid8(pools_at(far.pools, 0)), LENT_EXPORT, &names);
	return exports == 1 ? each(arg, names.subsystem) : 0;
}

static const struct export_target target = {
	fake_check, fake_make, fake_is_open, fake_open, fake_end, fake_resize, fake_each};

static void far_exports_up(void)
{
	static const struct node_exports_config config = {
		.address = "192.0.2.1:4420", .target = &target};
	cr_assert_eq(node_exports_open(far.node, &config), 0);
}

static void far_exports_down(void)
{
	for (unsigned i = 0; i < 1000 && !node_exports_idle(far.node->exports); i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	node_exports_close(far.node);
}

/* As after kill -9. */
static void far_restart(void)
{
	far_exports_down();
	far_down();
	far_up();
	far_exports_up();
}

static struct pool_object *source(void)
{
	struct pool_object *o;
	struct err err = {0};
	cr_assert_eq(pools_find_id(far.pools, RECORD_VOLUME, far.id, &o, &err), 0);
	return o;
}

static const char *attached_to = "node-1";

/* The source is attached to this node, exported to it, and in use there. */
static void lend(void)
{
	static struct node_export e;
	far_make_volume(SIZE, SIZE / 2);
	move_expect();
	attach_volume(source(), lent_to(attached_to));
	node_export_make_init(&e, far.node, source(), source()->attachments->at);
	run_op(&e.op);
	cr_assert(!op_failed(&e.op), "%s", e.op.err.message);
	memset(&cover, 0, sizeof(cover));
	cover.there = true;
	know_cover();
}

static void open_lent(uint64_t seed)
{
	open_both(WORLD_XFS, seed);
	far_exports_up();
	lend();
}

static void close_lent(void)
{
	far_exports_down();
	close_both();
}

/* ---- who uses it ---- */

static uint8_t stamp;

/* The last that it writes before its I/O waits, and the first that it writes after. */
static void write_through(const char *after)
{
	uint8_t piece[PIECE];
	if (!cover.there || cover.suspended || cover.local)
		return;
	cr_assert(move_is_in(far.pools), "a write to what has left, after %s", after);
	memset(piece, ++stamp, sizeof(piece));
	int fd = move_open_source(), at = stamp * 5 % 64 * PIECE;
	cr_assert_eq(pwrite(fd, piece, PIECE, at), PIECE);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	memcpy(move_expected + at, piece, PIECE);
}

/* Each step is a moment at which it may write. */
static void on_step(const char *op_name, const char *step_name)
{
	static char at[96];
	snprintf(at, sizeof(at), "%s/%s", op_name, step_name);
	write_through(at);
}

/* ---- what must be so ---- */

static bool is_finished(void)
{
	return pool_part_is_finished(pool_holds_fd(pools_at(w->pools, 0)), "source");
}

static void assert_safe(const char *after)
{
	move_at_one(after);
	if (is_finished() || !move_is_in(far.pools))
		cr_assert(cover.suspended || cover.local, "in use after %s", after);
	write_through(after);
}

/* It is here, its cover over its device, and attached to this node as its own. */
static void assert_switched(const char *after)
{
	struct pool_object *o = pools_find_name(w->pools, RECORD_VOLUME, "source");
	cr_assert(o != NULL && node_volume_find(o) != NULL, "after %s", after);
	const struct backend_dev *dev = &node_volume_find(o)->dev;
	cr_assert(cover.local && !cover.suspended, "after %s", after);
	cr_assert_eq(cover.swaps, 1);
	cr_assert_eq(dev->major, cover.below_major);
	cr_assert_eq(dev->minor, cover.below_minor);
	cr_assert_eq(o->attachments->count, 1);
	cr_assert_str_eq(o->attachments->at[0].node, "node-1");
	cr_assert_eq(o->attachments->at[0].mode, ATTACHMENT_MULTI_WRITER);
	cr_assert_str_eq(o->attachments->at[0].export, "");
	cr_assert(entry()->local && !entry()->suspended);
	cr_assert_eq(exports, 0, "after %s", after);
}

static enum grpc_status unstage(void)
{
	Csi__V1__NodeUnstageVolumeRequest req = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(far.id);
	req.staging_target_path = csi_bytes(staging_path);
	return call_status("Node/NodeUnstageVolume", &req.base);
}

/* Whoever used it stops. */
static void stop_using(void)
{
	cr_assert_eq(unstage(), GRPC_OK);
	cr_assert_null(entry());
	struct pool_object *o = pools_find_name(w->pools, RECORD_VOLUME, "source");
	cr_assert_null(node_volume_find(o), "its device is gone, too");
	attach_volume(o, NULL);
}

/* The old image may be held for a moment by its device that goes. */
static void settle_far(void)
{
	world_settle(w);
	for (unsigned i = 0;
		i < 5 && files_in(far.path, "volumes") + files_in(far.path, "trash") > 0; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
		far_restart();
		world_settle(w);
	}
}

static void close_switched(const char *after)
{
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_LOOK_MS);
	settle_far();
	assert_switched(after);
	move_taken(after);
	stop_using();
	move_undo();
	close_lent();
}

/* ---- the tests ---- */

/* It is given and taken, and told of at each step. */
static void take_under(void (*on)(const char *op_name, const char *step_name))
{
	cr_assert_eq(move_give(), ERR_OK);
	move_expect();
	w->on_step = on;
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_OK, "%s", move_message);
	w->on_step = NULL;
}

Test(move_live, moves, .timeout = 60)
{
	ends = 0;
	open_lent(21);
	take_under(on_step);
	cr_assert_eq(cover.suspends, 1);
	cr_assert_eq(cover.resumes, 0);
	cr_assert_eq(ends, 1);
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_LOOK_MS);
	settle_far();
	assert_switched("a move");
	move_taken("a move");
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_OK, "the same again");
	assert_switched("a repeat");
	stop_using();
	move_undo();
	close_lent();
}

/* Somebody else has it, too; or this node has it no more. */
Test(move_live, is_not_for_this_node_alone, .timeout = 60)
{
	const struct attachment other = {
		.node = "node-3", .mode = 5, .block = true, .export = LENT_EXPORT, .key = ""};
	attached_to = "node-3";
	open_lent(22);
	cr_assert_eq(move_take(), GRPC_UNAVAILABLE);
	cr_assert_not_null(strstr(move_message, "attached to node node-3"), "%s", move_message);
	cr_assert(!cover.suspended && cover.resumes == 1 && !entry()->suspended);
	attach_volume(source(), NULL);
	const struct attachment own = {
		.node = "node-1", .mode = 5, .block = true, .export = LENT_EXPORT, .key = ""};
	attach_volume(source(), attachments_with(NULL, &own));
	attach_volume(source(), attachments_with(source()->attachments, &other));
	cr_assert_eq(move_take(), GRPC_UNAVAILABLE);
	cr_assert(!cover.suspended && cover.resumes == 2 && !entry()->suspended);
	cr_assert(move_is_in(far.pools));
	cover.there = false;
	borrows_drop(w->csi->borrows, entry());
	attach_volume(source(), NULL);
	static struct node_let_go let_go;
	node_let_go_init(&let_go, far.node, source());
	run_op(&let_go.op);
	cr_assert(!op_failed(&let_go.op), "%s", let_go.op.err.message);
	exports = 0;
	move_expect();
	for (unsigned i = 0; i < 20 && move_take() != GRPC_OK; i++)
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	move_taken("nobody has it");
	move_undo();
	close_lent();
}

/* Much is written while it is copied: after the bulk, and again during the first pass. */
enum { MUCH_BYTES = 5 * MIB };

static unsigned passes, writes;
static uint64_t sent_before_it_waits_bytes;
static bool is_in_the_way;

static void write_much(unsigned bytes)
{
	static uint8_t much[SIZE];
	int fd = move_open_source();
	memset(much, 0x30 + (int)++writes, bytes);
	cr_assert_eq(pwrite(fd, much, bytes, SIZE - bytes), bytes);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	move_expect();
}

static void write_and_count(const char *op_name, const char *step_name)
{
	bool is_pass = strcmp(op_name, "take_pass") == 0;
	if (strcmp(op_name, "take_fill") == 0 && strcmp(step_name, "catch up") == 0)
		write_much(MUCH_BYTES);
	if (is_pass && strcmp(step_name, "pull what changed") == 0 && passes == 1)
		write_much(MUCH_BYTES);
	passes += is_pass && strcmp(step_name, "renew") == 0;
	if (is_in_the_way && is_pass && strcmp(step_name, "renew") == 0)
		pool_hold_next(pools_at(far.pools, 0), NULL)->shares = false;
	if (strcmp(step_name, "suspend") == 0) {
		sent_before_it_waits_bytes = far.transfer->stats.sent_bytes;
	}
	write_through(step_name);
}

static uint64_t sent_while_it_waits(void)
{
	passes = writes = 0;
	take_under(write_and_count);
	return far.transfer->stats.sent_bytes - sent_before_it_waits_bytes;
}

Test(move_live, catches_up_before_it_waits, .timeout = 60)
{
	open_lent(51);
	cr_assert_lt(sent_while_it_waits(), MIB);
	cr_assert_eq(passes, 2, "%u: the writes of the bulk, those of the first pass", passes);
	cr_assert_eq(writes, 2);
	close_switched("two passes");
}

/* So much is written before each pass, the last one with none. */
static const unsigned *pass_sizes;

static void write_sizes(const char *op_name, const char *step_name)
{
	bool is_pass = strcmp(op_name, "take_pass") == 0;
	passes += is_pass && strcmp(step_name, "renew") == 0;
	bool comes = strcmp(op_name, "take_fill") == 0 && strcmp(step_name, "catch up") == 0;
	if (!comes && !(is_pass && strcmp(step_name, "pull what changed") == 0))
		return;
	if (*pass_sizes != 0)
		write_much(*pass_sizes++);
}

/* A pass that was small is the last one, and one that was not much smaller than the one before. */
Test(move_live, catches_up_as_long_as_that_gains, .timeout = 120)
{
	enum { SMALL = 4 * MIB };
	static const struct {
		unsigned sizes[4], passes;
	} all[] = {
		{{SMALL}, 1},
		{{SMALL + PIECE, PIECE}, 2},
		{{5 * MIB, 5 * MIB, PIECE}, 2},
		{{SIZE, 6 * MIB, PIECE}, 2},
		{{SIZE, 6 * MIB - PIECE, PIECE}, 3},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		open_lent(58);
		passes = writes = 0;
		pass_sizes = all[i].sizes;
		take_under(write_sizes);
		cr_assert_eq(passes, all[i].passes, "%u: %u", i, passes);
		close_switched("passes");
	}
}

/* Its node makes no later image: what was written is pulled while it waits. */
Test(move_live, waits_for_all_of_it_where_it_cannot_catch_up, .timeout = 60)
{
	open_lent(52);
	is_in_the_way = true;
	cr_assert_geq(sent_while_it_waits(), MUCH_BYTES);
	is_in_the_way = false;
	cr_assert_eq(passes, 1);
	close_switched("no pass");
}

/* Another call works on it there, for a moment. */
static struct node_lock in_the_way;
static unsigned asked;

static void stand_in_the_way(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "renew_copy") != 0 || strcmp(step_name, "lock") != 0)
		return;
	switch (++asked) {
	case 1:
		node_lock_init(&in_the_way, NODE_EXCLUSIVE, "volume", source()->key);
		node_lock_take(&far.node->locks, &in_the_way);
		break;
	case 2:
		node_lock_release(&far.node->locks, &in_the_way);
		break;
	default:
		break;
	}
}

Test(move_live, asks_again_before_it_waits, .timeout = 60)
{
	open_lent(53);
	asked = 0;
	take_under(stand_in_the_way);
	cr_assert_eq(asked, 2);
	cr_assert_eq(cover.suspends, 1);
	close_switched("somebody was in the way");
}

/* Its node has found nothing to send for a long time, and is alive. */
static void find_slowly(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "take_fill") != 0)
		return;
	if (strcmp(step_name, "have alone") == 0)
		write_through("the passes");
	if (strcmp(step_name, "suspend") == 0) {
		write_through("the passes");
		far.transfer->rate.bytes_per_s = PIECE / (2 * PULL_PATIENCE_MS / 1000);
	}
}

Test(move_live, waits_for_a_node_that_compares, .timeout = 60)
{
	open_lent(57);
	take_under(find_slowly);
	far.transfer->rate.bytes_per_s = 0;
	close_switched("a node that compares");
}

/* Blocks of its file system are smaller than what a chunk is made of. */
static void write_little(const char *op_name, const char *step_name)
{
	char piece[1024];
	if (strcmp(op_name, "take_fill") != 0 || strcmp(step_name, "catch up") != 0)
		return;
	memset(piece, 7, sizeof(piece));
	int fd = move_open_source();
	cr_assert_eq(pwrite(fd, piece, sizeof(piece), 5 * 1024), (ssize_t)sizeof(piece));
	cr_assert_eq(pwrite(fd, piece, sizeof(piece), 7 * 1024), (ssize_t)sizeof(piece));
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	move_expect();
}

Test(move_live, small_blocks, .timeout = 60)
{
	far_small_blocks = true;
	open_lent(54);
	take_under(write_little);
	close_switched("small blocks");
}

/* Calls about it while its I/O waits. */
static enum grpc_status meanwhile;

static void ask_meanwhile(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "take_fill") != 0 || strcmp(step_name, "leave") != 0)
		return;
	w->on_step = NULL;
	meanwhile = unstage();
}

Test(move_live, nobody_is_in_its_way, .timeout = 60)
{
	open_lent(23);
	meanwhile = GRPC_OK;
	take_under(ask_meanwhile);
	cr_assert(meanwhile == GRPC_ABORTED || meanwhile == GRPC_UNAVAILABLE);
	close_switched("a call");
}

/* ---- what goes on by itself ---- */

static struct csi_cover_watch watch;
static struct csi_arrivals arrivals;

static void look_after(uint64_t ms)
{
	csi_arrivals_open(&arrivals, w->csi, w->registry);
	csi_cover_watch_open(&watch, w->csi);
	ring_sim_settle(w->reactor.ring, ms);
	csi_arrivals_close(&arrivals);
	csi_cover_watch_close(&watch);
	for (unsigned i = 0; i < 4000 && !csi_cover_watch_idle(&watch); i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	ring_sim_settle(w->reactor.ring, 100);
}

/* It may be suspended, or not. */
Test(move_live, it_cannot_be_suspended, .timeout = 60)
{
	open_lent(25);
	for (unsigned i = 0; i < 4; i++) {
		cover.fail_suspend = i % 2 == 0 ? -EIO : -ETIMEDOUT;
		cover.suspends_all_the_same = i >= 2;
		cr_assert_neq(move_take(), GRPC_OK);
		assert_safe("a suspend that fails");
		cr_assert(entry()->suspended, "nobody knows");
		cr_assert_eq(unstage(), GRPC_UNAVAILABLE);
		look_after(2 * CSI_COVERS_MS);
		cr_assert(!cover.suspended && !entry()->suspended);
		write_through("a look");
	}
	cover.fail_suspend = 0;
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	close_switched("it can be suspended");
}

/* The volume is here, and whoever uses it waits for that. */
Test(move_live, its_cover_cannot_be_swapped, .timeout = 60)
{
	open_lent(26);
	cover.fail_swap = -EIO;
	write_through("the beginning");
	cr_assert_eq(move_take(), GRPC_UNAVAILABLE, "%s", move_message);
	cr_assert(move_is_in(w->pools) && cover.suspended);
	look_after(4 * CSI_ARRIVALS_MS);
	cr_assert(cover.suspended && cover.swaps == 0 && cover.resumes == 0);
	cr_assert_eq(unstage(), GRPC_UNAVAILABLE);
	cover.fail_swap = 0;
	look_after(2 * CSI_ARRIVALS_MS);
	close_switched("it can be swapped");
}

/* Somebody else has suspended it, and no part says that a move has. */
Test(move_live, a_cover_that_nobody_knows_is_left_alone, .timeout = 60)
{
	open_lent(27);
	cover.suspended = true;
	know_cover();
	look_after(8 * CSI_COVERS_MS);
	cr_assert(cover.suspended && cover.resumes == 0 && entry()->told);
	cover.suspended = entry()->suspended = false;
	move_expect();
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	close_switched("it goes on");
}

static void fail_at_change(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "take_fill") == 0 && strcmp(step_name, "note that it changes") == 0)
		w->fault_after = 0;
}

/* It is held still by a promise, and then this node uses it no more, though it is attached. */
Test(move_live, a_promise_is_taken_back, .timeout = 60)
{
	open_lent(28);
	cr_assert_eq(move_give(), ERR_OK);
	w->on_step = fail_at_change;
	cr_assert_neq(move_take_only(far.id, "default"), GRPC_OK);
	w->on_step = NULL;
	w->fault_after = -1;
	cr_assert(!list_empty(&far.transfer->stills) && !cover.suspended);
	cover.there = false;
	borrows_drop(w->csi->borrows, entry());
	cr_assert_eq(move_take(), GRPC_UNAVAILABLE);
	cr_assert_not_null(strstr(move_message, "attached to node node-1"), "%s", move_message);
	cr_assert(list_empty(&far.transfer->stills));
	cover.there = true;
	know_cover();
	write_through("it is used again");
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	close_switched("it is promised again");
}

static void lose_it_before_it_leaves(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "take_fill") == 0 && strcmp(step_name, "leave") == 0)
		channel_local.registry = NULL;
}

/* This node comes back late: what it held still is that no more, whenever that was looked at. */
Test(move_live, its_time_is_over, .timeout = 60)
{
	open_lent(29);
	cr_assert_eq(move_give(), ERR_OK);
	w->on_step = lose_it_before_it_leaves;
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE);
	w->on_step = NULL;
	assert_safe("an owner that is away");
	cr_assert(is_finished() && cover.suspended);
	struct still *still = still_of(far.transfer, pool_hold_next(pools_at(far.pools, 0), NULL));
	cr_assert_not_null(still);
	ring_timer_cancel(w->reactor.ring, &far.transfer->timer);
	ring_sim_settle(w->reactor.ring, TRANSFER_STILL_MS + 1);
	channel_local.registry = far.registry;
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE);
	cr_assert_not_null(strstr(move_message, "has not left"), "%s", move_message);
	cr_assert(!cover.suspended && !is_finished());
	write_through("its time is over");
	ring_timer_arm(w->reactor.ring, &far.transfer->timer, TRANSFER_LOOK_MS);
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	close_switched("another time");
}

static unsigned removals;

static void count_removals(const char *op_name, const char *step_name)
{
	removals += strcmp(op_name, "parting") == 0 && strcmp(step_name, "remove") == 0;
}

/* Somebody has the old image open for a while. It goes without a restart. */
Test(move_live, what_is_left_goes_later, .timeout = 60)
{
	open_lent(30);
	int fd = move_open_source();
	write_through("the beginning");
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	removals = 0;
	w->on_step = count_removals;
	ring_sim_settle(w->reactor.ring, 4 * TRANSFER_LOOK_MS);
	w->on_step = NULL;
	cr_assert(removals > 1 && removals <= 5, "%u", removals);
	cr_assert_eq(files_in(far.path, "volumes"), 1);
	cr_assert_eq(exports, 0);
	close(fd);
	for (unsigned i = 0; files_in(far.path, "volumes") > 0 && i < 20; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
		ring_sim_settle(w->reactor.ring, 2 * TRANSFER_LOOK_MS);
	}
	cr_assert_eq(files_in(far.path, "volumes"), 0);
	close_switched("it was open");
}

/* ---- everything fails once ---- */

enum how { STEPS, JOBS, KILLED };

static unsigned went_on, resumed;

/* A call that fails at its n-th step or job; KILLED: this node dies, and undoes nothing. */
static bool fail_at(unsigned n, enum how how)
{
	lend();
	cr_assert_eq(move_give(), ERR_OK);
	w->fault_hit = false;
	w->on_step = on_step;
	*(how == JOBS ? &w->work_fault_after : &w->fault_after) = (int)n;
	if (how == KILLED)
		cover.fail_resume = -EIO;
	enum grpc_status status = move_take_only(far.id, "default");
	w->on_step = NULL;
	w->fault_after = w->work_fault_after = -1;
	cover.fail_resume = 0;
	bool hit = w->fault_hit;
	char at[128];
	snprintf(at, sizeof(at), "%s", hit ? w->fault_at : "nothing");
	cr_assert(status == GRPC_OK || hit, "%s: %s", at, move_message);
	assert_safe(at);
	if (how == KILLED && status != GRPC_OK) {
		far_exports_down();
		far_down(); /* it is on the world's ring */
		world_restart(w);
		far_up();
		far_exports_up();
		know_cover();
		assert_safe("a restart");
	}
	look_after(8 * CSI_ARRIVALS_MS);
	assert_safe("what goes on by itself");
	cr_assert(!cover.suspended, "for ever, after %s", at);
	went_on += status != GRPC_OK && cover.local;
	resumed += status != GRPC_OK && !cover.local;
	for (unsigned i = 0; !cover.local && i < 4; i++) {
		status = move_take();
		assert_safe("another call");
	}
	cr_assert_eq(move_take(), GRPC_OK, "%s: %s", at, move_message);
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_LOOK_MS);
	settle_far();
	assert_switched(at);
	move_taken(at);
	stop_using();
	move_undo();
	return hit;
}

static void fail_each(enum how how)
{
	unsigned n = 0;
	open_both(WORLD_XFS, 24);
	far_exports_up();
	went_on = resumed = 0;
	for (unsigned misses = 0; misses < (how == JOBS ? 4 : 1); n++)
		misses += !fail_at(n, how);
	printf("%u trials, %u went on by themselves, %u were resumed\n", n, went_on, resumed);
	cr_assert(n > 20 && went_on > 0 && resumed > 0);
	close_lent();
}

Test(move_live, each_step_fails, .timeout = 600)
{
	fail_each(STEPS);
}

Test(move_live, each_job_and_request_fails, .timeout = 600)
{
	fail_each(JOBS);
}

Test(move_live, it_dies_at_each_step, .timeout = 600)
{
	fail_each(KILLED);
}

/* This driver dies while the I/O waits. In its next run a call comes before the look at covers, and
 * a pass fails: the part that tells of the cover stays. */
static void lose_later_grant(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "take_pass") != 0 || strcmp(step_name, "pull what changed") != 0)
		return;
	struct pool_hold *last = NULL;
	for (struct pool_hold *h = NULL; (h = pool_hold_next(pools_at(far.pools, 0), h)) != NULL;)
		last = h;
	grant_drop(last);
}

Test(move_live, goes_on_after_a_pass_that_failed, .timeout = 60)
{
	open_lent(55);
	cr_assert_eq(move_give(), ERR_OK);
	move_expect();
	cover.fail_resume = -EIO;
	w->on_step = fail_at_change;
	cr_assert_neq(move_take_only(far.id, "default"), GRPC_OK);
	w->on_step = NULL;
	w->fault_after = -1;
	cover.fail_resume = 0;
	cr_assert(cover.suspended);
	far_exports_down();
	far_down();
	world_restart(w);
	far_up();
	far_exports_up();
	know_cover();
	w->on_step = lose_later_grant;
	cr_assert_neq(move_take(), GRPC_OK);
	w->on_step = NULL;
	look_after(8 * CSI_COVERS_MS);
	cr_assert(!cover.suspended, "for ever");
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	close_switched("a pass failed");
}

/* The answer to a renewal makes no sense: nothing waits for it. */
static enum channel_fate spoil_renewal(const char *path, uint8_t *data, size_t len)
{
	if (strcmp(path, "/ringvol.v1.Transfer/RenewCopy") == 0)
		data[len - 1] = 'x';
	return FATE_DELIVER;
}

Test(move_live, a_renewal_that_makes_no_sense, .timeout = 60)
{
	open_lent(58);
	channel_local.on_message = spoil_renewal;
	cr_assert_eq(move_take(), GRPC_DATA_LOSS, "%s", move_message);
	channel_local.on_message = NULL;
	cr_assert_not_null(strstr(move_message, "tells of"), "%s", move_message);
	cr_assert_eq(cover.suspends, 0);
	write_through("a failure");
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	close_switched("sense");
}

/* The earlier image is lost between two passes: both grants go, and it is copied anew. */
static void lose_earlier_image(const char *op_name, const char *step_name)
{
	char path[256];
	if (strcmp(op_name, "take_pass") != 0 || strcmp(step_name, "pull what changed") != 0)
		return;
	const struct pool_hold *earlier = pool_hold_next(pools_at(far.pools, 0), NULL);
	snprintf(path, sizeof(path), "%s/copies/%s", far.path, earlier->name);
	cr_assert_eq(unlink(path), 0);
}

Test(move_live, an_image_that_is_lost, .timeout = 60)
{
	open_lent(59);
	w->on_step = lose_earlier_image;
	cr_assert_eq(move_take(), GRPC_UNAVAILABLE, "%s", move_message);
	w->on_step = NULL;
	cr_assert_eq(cover.suspends, 0);
	world_settle(w);
	cr_assert_eq(transfer_grants(far.transfer), 0, "neither is given out again");
	write_through("a failure");
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	close_switched("another image");
}

/* ---- whatever comes ---- */

static uint64_t chance;

static unsigned draw(unsigned below)
{
	chance ^= chance << 13;
	chance ^= chance >> 7;
	chance ^= chance << 17;
	return (unsigned)(chance >> 33) % below;
}

static uint8_t at_first[SIZE]; /* what the volume had */

/* A few writes, zeros, holes, and what was there at first. */
static void scribble(void)
{
	static uint8_t piece[4 * PIECE];
	if (!cover.there || cover.suspended || cover.local)
		return;
	cr_assert(move_is_in(far.pools), "a write to what has left");
	int fd = move_open_source();
	for (unsigned i = 1 + draw(4); i > 0; i--) {
		size_t len = 4096 * (1 + draw(40));
		off_t at = (off_t)4096 * draw((unsigned)((SIZE - len) / 4096));
		unsigned what = draw(4);
		memset(piece, what == 0 ? (int)draw(256) : 0, len);
		if (what == 3)
			cr_assert_eq(pwrite(fd, at_first + at, len, at), (ssize_t)len);
		else if (what == 2)
			cr_assert_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at,
					     (off_t)len),
				0);
		else
			cr_assert_eq(pwrite(fd, piece, len, at), (ssize_t)len);
	}
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	move_expect();
}

static unsigned fault_one_in, cut_one_in, spoil_one_in;

static void by_chance(const char *op_name, const char *step_name)
{
	(void)step_name;
	if (strncmp(op_name, "take_", 5) == 0 || draw(6) == 0)
		scribble();
	if (w->fault_after < 0 && fault_one_in > 0 && draw(fault_one_in) == 0)
		w->fault_after = (int)draw(3);
}

static enum channel_fate fate_by_chance(const char *path, uint8_t *data, size_t len)
{
	if (draw(3) == 0)
		scribble();
	if (draw(cut_one_in) == 0)
		return FATE_CUT;
	if (strstr(path, "ReadCopy") != NULL && draw(spoil_one_in) == 0)
		data[draw((unsigned)len)] ^= (uint8_t)(1 + draw(255));
	return FATE_DELIVER;
}

static void nothing_by_chance(void)
{
	w->on_step = NULL;
	channel_local.on_message = NULL;
	w->fault_after = w->work_fault_after = -1;
	cover.fail_resume = 0;
}

/* One call, and what dies after it. */
static void try_by_chance(bool last)
{
	bool dies = draw(2) == 0;
	fault_one_in = last || draw(2) == 0 ? 0 : 40 + draw(200);
	cut_one_in = last ? 1u << 30 : 5 + draw(60);
	spoil_one_in = last ? 1u << 30 : 10 + draw(100);
	if (draw(4) > 0 || last)
		(void)move_give();
	w->on_step = by_chance;
	channel_local.on_message = fate_by_chance;
	cover.fail_resume = dies ? -EIO : 0;
	w->work_fault_after = !last && draw(3) == 0 ? (int)draw(200) : -1;
	enum grpc_status status = move_take_only(far.id, "default");
	nothing_by_chance();
	assert_safe("a try");
	if (dies && status != GRPC_OK) {
		far_exports_down();
		far_down();
		world_restart(w);
		far_up();
		far_exports_up();
		know_cover();
		assert_safe("a restart");
	} else if (draw(3) == 0) {
		far_restart();
	}
	look_after(8 * CSI_ARRIVALS_MS);
	assert_safe("a look");
	cr_assert(!cover.suspended, "for ever: %s", move_message);
	scribble();
}

Test(move_live, whatever_comes, .timeout = 240)
{
	enum { TRIALS = 12, TRIES = 30 };
	chance = 88172645463325252;
	open_both(WORLD_XFS, 56);
	far_exports_up();
	for (unsigned i = 0; i < TRIALS; i++) {
		lend();
		move_expect();
		memcpy(at_first, move_expected, SIZE);
		for (unsigned tries = 0; tries < TRIES && !cover.local; tries++)
			try_by_chance(tries > TRIES - 5);
		cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
		ring_sim_settle(w->reactor.ring, 2 * TRANSFER_LOOK_MS);
		settle_far();
		assert_switched("whatever came");
		/* What nobody reads any more goes with time. */
		for (unsigned n = 0; n < 400 && transfer_grants(far.transfer) > 0; n++)
			ring_sim_settle(w->reactor.ring, 2 * TRANSFER_LOOK_MS);
		move_taken("whatever came");
		stop_using();
		move_undo();
	}
	close_lent();
}
