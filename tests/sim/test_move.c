/* SPDX-License-Identifier: Apache-2.0 */
/* A volume moves from one node to another. Whatever fails, is cut or restarts: it is at exactly one
 * of them, a repeated call ends well, with what the volume had when it was still, and nothing is
 * left behind. test_move_source.c has the calls of the node that it leaves. */
#include "as_raw.h"
#include "moving.h"

#include "csi/arrivals.h"
#include "csi/services.h"
#include "pool/arrival.h"
#include "pool/attachment.h"
#include "pool/index.h"
#include "pool/part.h"
#include "pool/pools.h"
#include "transfer/grant.h"
#include "transfer/still.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

/* ---- the tests ---- */

static void move_once(enum world_fs fs)
{
	open_move(fs, 1);
	cr_assert_eq(move_give(), ERR_OK);
	move_change();
	move_expect();
	uint64_t before = far.transfer->stats.sent_bytes;
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_OK, "%s", move_message);
	move_taken("a move");
	cr_assert_gt(far.transfer->stats.sent_bytes, before + SIZE / 2, "what changed, too");
	cr_assert_lt(far.transfer->stats.sent_bytes, before + SIZE / 2 + 3 * MIB, "and no more");
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_OK, "the same again");
	cr_assert_eq(move_take_only(far.id, "none such"), GRPC_OK, "it stays where it is");
	move_taken("a repeat");
	close_move();
}

Test(move, moves_xfs, .timeout = 60)
{
	move_once(WORLD_XFS);
}

Test(move, moves_ext4, .timeout = 60)
{
	move_once(WORLD_EXT4);
}

Test(move, takes_what_it_may_alone, .timeout = 60)
{
	char id[RECORD_ID_MAX];
	open_move(WORLD_XFS, 2);
	move_expect();
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE, "nobody has offered it");
	cr_assert_eq(move_give(), ERR_OK);
	cr_assert_eq(move_take_only("0123abcd.other.01234567", "default"), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(move_take_only(far.id, "none such"), GRPC_NOT_FOUND);
	block = true;
	create_bytes = SIZE;
	cr_assert_eq(create("source", EMPTY, id), GRPC_OK);
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_ALREADY_EXISTS);
	cr_assert_eq(delete_patiently(id), GRPC_OK);
	/* A grant that is a copy's. */
	cr_assert_eq(far_grant(far.id, "node-1", "source"), ERR_OK);
	offer(far.id, "source");
	cr_assert_neq(move_take_only(far.id, "default"), GRPC_OK);
	move_at_one("a copy's grant");
	cr_assert(move_is_in(far.pools));
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_IDLE_MS);
	/* Its node is away. */
	cr_assert_eq(move_give(), ERR_OK);
	channel_local.registry = NULL;
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE);
	channel_local.registry = far.registry;
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	move_taken("all that");
	close_move();
}

/* The bulk is copied while it is in use, once. */
/* Nothing of it is begun here, and it stays where it is. */
Test(move, is_not_for_this_node, .timeout = 60)
{
	static const char *const words[] = {
		"pool default is on raw disks, and takes no volumes of other nodes yet: name a pool in a directory",
		"volume source has a device of a kind that this node does not serve: see the log of its start"};
	struct pool_object *o;
	struct err err = {0};
	open_move(WORLD_XFS, 2);
	move_expect();
	cr_assert_eq(pools_find_id(far.pools, RECORD_VOLUME, far.id, &o, &err), 0);
	enum backend_type device = o->rec->device;
	for (unsigned i = 0; i < 2; i++) {
		if (i == 1)
			o->rec->device = BACKEND_UBLK;
		cr_assert_eq(move_give(), ERR_OK);
		is_raw = i == 0;
		cr_expect_eq(move_take_only(far.id, "default"), GRPC_FAILED_PRECONDITION);
		is_raw = false;
		cr_expect_str_eq(move_message, words[i]);
		o->rec->device = device;
		move_at_one(words[i]);
		cr_expect(move_is_in(far.pools));
		cr_expect_eq(files_in(w->pool_path, "volumes"), 0);
		ring_sim_settle(w->reactor.ring, 2 * TRANSFER_IDLE_MS);
	}
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	move_taken("refusals");
	close_move();
}

static const char *drain_step;

static void drains(const char *op_name, const char *step_name)
{
	(void)op_name;
	if (strcmp(step_name, drain_step) != 0)
		return;
	w->on_step = NULL;
	csi_drain(w->csi, NULL, NULL);
}

/* Neither is waited for what is copied nor for what is not begun yet; the next run goes on. */
Test(move, is_stopped_at_a_shutdown, .timeout = 60)
{
	static const char *const steps[] = {"look for part", "ask its node", "build", "pull"};
	open_move(WORLD_XFS, 3);
	move_expect();
	for (unsigned i = 0; i < 4; i++) {
		cr_assert_eq(move_give(), ERR_OK);
		drain_step = steps[i];
		w->on_step = drains;
		cr_expect_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE, "%s: %s",
			steps[i], move_message);
		cr_expect_null(w->on_step, "%s", steps[i]);
		cr_expect_eq(w->csi->task_count, 0);
		move_at_one(steps[i]);
		cr_expect(move_is_in(far.pools));
		far_down();
		world_restart(w);
		far_up();
	}
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	move_taken("shutdowns");
	close_move();
}

Test(move, in_use_then_free, .timeout = 60)
{
	struct node_lock lock;
	open_move(WORLD_XFS, 3);
	node_lock_init(&lock, NODE_SHARED, "volume", "source");
	node_lock_take(&far.node->locks, &lock);
	uint64_t before = far.transfer->stats.sent_bytes;
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(move_take(), GRPC_UNAVAILABLE);
		cr_assert_not_null(strstr(move_message, "worked on"), "%s", move_message);
		cr_assert_eq(files_in(w->pool_path, "copies"), 1, "the part");
		cr_assert(move_is_in(far.pools));
	}
	cr_assert_eq(far.transfer->stats.sent_bytes - before, SIZE / 2);
	node_lock_release(&far.node->locks, &lock);
	move_change();
	move_expect();
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	cr_assert_lt(far.transfer->stats.sent_bytes - before, SIZE / 2 + 3 * MIB);
	move_taken("it was in use");
	close_move();
}

/* A part may have the note of an attempt that was cut just before the volume had its name. */
Test(move, is_attached_to_nobody, .timeout = 60)
{
	struct node_lock lock;
	char path[160], text[ATTACHMENTS_BYTES_MAX];
	const struct attachment own = {
		.node = "node-1", .mode = ATTACHMENT_WRITER, .export = "", .key = ""};
	struct attachments *one = attachments_with(NULL, &own);
	int len = attachments_print(one, text, sizeof(text));
	cr_assert_gt(len, 0);
	attachments_free(one);
	open_move(WORLD_XFS, 17);
	node_lock_init(&lock, NODE_SHARED, "volume", "source");
	node_lock_take(&far.node->locks, &lock);
	cr_assert_eq(move_take(), GRPC_UNAVAILABLE);
	node_lock_release(&far.node->locks, &lock);
	snprintf(path, sizeof(path), "%s/copies/part-source", w->pool_path);
	cr_assert_eq(setxattr(path, ATTACHMENTS_XATTR, text, (size_t)len, 0), 0);
	move_expect();
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	cr_assert_null(pools_find_name(w->pools, RECORD_VOLUME, "source")->attachments);
	snprintf(path, sizeof(path), "%s/volumes/source", w->pool_path);
	cr_assert(getxattr(path, ATTACHMENTS_XATTR, NULL, 0) < 0 && errno == ENODATA);
	move_taken("a note of another attempt");
	close_move();
}

static void fail_finish(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "take_fill") == 0 && strcmp(step_name, "finish part") == 0)
		w->fault_after = 0;
}

/* What has changed is copied, the call fails, and then the volume has again what its image has. */
Test(move, what_changed_and_changed_back, .timeout = 60)
{
	uint8_t before[PIECE];
	open_move(WORLD_EXT4, 12);
	cr_assert_eq(move_give(), ERR_OK);
	int fd = move_open_source();
	cr_assert_eq(pread(fd, before, PIECE, PIECE), PIECE);
	close(fd);
	move_change();
	w->on_step = fail_finish;
	cr_assert_neq(move_take_only(far.id, "default"), GRPC_OK);
	cr_assert(w->fault_hit);
	w->on_step = NULL;
	w->fault_after = -1;
	move_at_one("a pass that is cut");
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_STILL_MS);
	fd = move_open_source();
	cr_assert_eq(pwrite(fd, before, PIECE, PIECE), PIECE);
	close(fd);
	move_expect();
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	move_taken("it has changed back");
	close_move();
}

/* A count that would overflow here makes the record one that the next load refuses. */
Test(move, a_count_that_is_a_lie, .timeout = 60)
{
	static const uint64_t lies[] = {UINT64_MAX, UINT64_MAX - 1, (uint64_t)1 << 31};
	open_move(WORLD_XFS, 16);
	struct record *rec = pools_find_name(far.pools, RECORD_VOLUME, "source")->rec;
	move_expect();
	for (unsigned i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		rec->moves = lies[i];
		cr_assert_eq(move_take(), GRPC_DATA_LOSS, "%s", move_message);
		move_at_one("a lie");
		ring_sim_settle(w->reactor.ring, 2 * TRANSFER_GRANT_MS + TRANSFER_IDLE_MS);
	}
	/* Or only when it is still. */
	rec->moves = 0;
	cr_assert_eq(move_give(), ERR_OK);
	rec->moves = UINT64_MAX;
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_DATA_LOSS, "%s", move_message);
	move_at_one("a later lie");
	rec->moves = 0;
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_STILL_MS);
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	move_taken("the truth");
	close_move();
}

static void fail_identity(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "take_fill") == 0 && strcmp(step_name, "identity") == 0)
		w->fault_after = 0;
}

/* The volume has left. The node that has all of it has another name when it asks again. */
Test(move, under_another_name, .timeout = 60)
{
	open_move(WORLD_XFS, 14);
	channel_local.peer = (struct grpc_peer){.role = GRPC_PEER_NODE, .node_id = "node-1"};
	move_expect();
	cr_assert_eq(move_give(), ERR_OK);
	w->on_step = fail_identity;
	cr_assert_neq(move_take_only(far.id, "default"), GRPC_OK);
	w->on_step = NULL;
	w->fault_after = -1;
	cr_assert(!move_is_in(far.pools));
	strcpy(channel_local.peer.node_id, "node-9");
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE);
		cr_assert_not_null(
			strstr(move_message, "which is another node's"), "%s", move_message);
		move_at_one("another name");
	}
	strcpy(channel_local.peer.node_id, "node-1");
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	move_taken("the old name");
	channel_local.peer = (struct grpc_peer){0};
	close_move();
}

/* ---- each step, job and request fails ---- */

static void fail_each(enum world_fs fs, bool steps)
{
	bool hit;
	unsigned n = 0, left = 0, finished = 0, misses = 0;
	open_both(fs, 4);
	do {
		far_make_volume(SIZE, SIZE / 2);
		cr_assert_eq(move_give(), ERR_OK);
		move_change();
		move_expect();
		w->fault_hit = false;
		*(steps ? &w->fault_after : &w->work_fault_after) = (int)n++;
		enum grpc_status status = move_take_only(far.id, "default");
		w->fault_after = w->work_fault_after = -1;
		hit = w->fault_hit;
		const char *at = hit ? w->fault_at : "nothing";
		cr_assert(status == GRPC_OK || hit, "%s: %s", at, move_message);
		move_at_one(at);
		left += status != GRPC_OK && !move_is_in(far.pools);
		finished += status != GRPC_OK && move_is_in(far.pools) &&
			    pool_part_is_finished(pool_holds_fd(pools_at(w->pools, 0)), "source");
		for (unsigned i = 0; status != GRPC_OK && i < 3; i++) {
			status = move_take();
			move_at_one(at);
		}
		cr_assert_eq(status, GRPC_OK, "the retry after %s: %s", at, move_message);
		if (files_in(far.path, "volumes") >
			0) { /* it goes at the next load, or with its note */
			far_down();
			far_up();
		}
		move_taken(at);
		move_undo();
		misses += !hit;
	} while (misses < 8); /* the same call has a job more or less, by what runs beside it */
	printf("%u trials, %u left and not here yet, %u finished and not left\n", n, left,
		finished);
	cr_assert_gt(n, steps ? 30 : 20);
	cr_assert_gt(left, 0);
	cr_assert(finished > 0 || !steps);
	close_both();
}

Test(move, each_step_fails_xfs, .timeout = 300)
{
	fail_each(WORLD_XFS, true);
}

Test(move, each_step_fails_ext4, .timeout = 300)
{
	fail_each(WORLD_EXT4, true);
}

Test(move, each_job_and_request_fails, .timeout = 300)
{
	fail_each(WORLD_XFS, false);
}

/* ---- the way between them ---- */

static unsigned countdown;
static const char
	*cut_path; /* the answer to such a call is lost, and its node with it; NULL: any */

static enum channel_fate cut_once(const char *path, uint8_t *data, size_t len)
{
	(void)path;
	(void)data;
	(void)len;
	return countdown-- == 0 ? FATE_CUT : FATE_DELIVER;
}

static enum channel_fate lose_answer(const char *path, uint8_t *data, size_t len)
{
	(void)data;
	(void)len;
	if (strcmp(path, cut_path) != 0)
		return FATE_DELIVER;
	channel_local.registry = NULL;
	return FATE_CUT;
}

/* At every move_message in turn. */
Test(move, connection_is_cut, .timeout = 120)
{
	open_both(WORLD_XFS, 5);
	for (unsigned at = 0;; at++) {
		far_make_volume(SIZE, SIZE / 2);
		cr_assert_eq(move_give(), ERR_OK);
		move_change();
		move_expect();
		countdown = at;
		unsigned before = channel_local.messages;
		channel_local.on_message = cut_once;
		cr_assert_eq(
			move_take_only(far.id, "default"), GRPC_OK, "%u: %s", at, move_message);
		channel_local.on_message = NULL;
		move_taken("a cut");
		move_undo();
		if (channel_local.messages - before <= at)
			break;
	}
	close_both();
}

/* The answer to a call is lost for good, and any of both nodes starts anew. */
static void lose(const char *path, bool restart_here, bool restart_there)
{
	open_move(WORLD_XFS, 6);
	cr_assert_eq(move_give(), ERR_OK);
	move_change();
	move_expect();
	cut_path = path;
	channel_local.on_message = lose_answer;
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE, "%s", move_message);
	channel_local.on_message = NULL;
	move_at_one(path);
	bool left = !move_is_in(far.pools);
	cr_assert_eq(left, strstr(path, "Leave") != NULL);
	if (restart_here || restart_there)
		far_down(); /* it is on the world's ring */
	if (restart_here)
		world_restart(w);
	if (restart_here || restart_there)
		far_up();
	channel_local.registry = far.registry;
	move_at_one("a restart");
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	move_taken(path);
	close_move();
}

Test(move, still_is_not_heard, .timeout = 60)
{
	lose("/ringvol.v1.Transfer/StillVolume", false, false);
}

Test(move, leave_is_not_heard, .timeout = 60)
{
	lose("/ringvol.v1.Transfer/LeaveVolume", false, false);
}

Test(move, leave_is_not_heard_and_the_target_restarts, .timeout = 60)
{
	lose("/ringvol.v1.Transfer/LeaveVolume", true, false);
}

Test(move, leave_is_not_heard_and_the_source_restarts, .timeout = 60)
{
	lose("/ringvol.v1.Transfer/LeaveVolume", false, true);
}

/* It has left, its part is finished, and this node has started anew; the other one is away. */
static void open_finished(uint64_t seed, bool restarts)
{
	open_move(WORLD_XFS, seed);
	move_expect();
	cr_assert_eq(move_give(), ERR_OK);
	cut_path = "/ringvol.v1.Transfer/LeaveVolume";
	channel_local.on_message = lose_answer;
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE);
	channel_local.on_message = NULL;
	far_down();
	if (restarts)
		world_restart(w);
}

/* Without an offer: the finished part says whom to ask. Another volume of the name is kept out. */
Test(move, a_finished_part_needs_no_offer, .timeout = 60)
{
	open_finished(7, true);
	cr_assert_not_null(pool_arrival_next(pools_at(w->pools, 0), NULL));
	create_bytes = SIZE;
	cr_assert_eq(create("source", EMPTY, other_id), GRPC_UNAVAILABLE, "it is arriving");
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE, "its node is away");
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_IDLE_MS);
	far_up();
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_OK, "%s", move_message);
	cr_assert_null(pool_arrival_next(pools_at(w->pools, 0), NULL));
	move_taken("no offer");
	close_move();
}

/* Nobody asks for it any more. Its node is away at first, and then the disk fails now and then. */
static void arrive(uint64_t seed, bool restarts)
{
	static struct csi_arrivals arrivals;
	open_finished(seed, restarts);
	struct grpc_registry *registry = grpc_registry_new();
	cr_assert_eq(csi_register_member(w->csi, registry, 1 << GRPC_PEER_CONTROLLER), 0);
	/* What nobody can read is in nobody's way, before it and behind it. */
	struct pool *pool = pools_at(w->pools, 0);
	const struct pool_arrival its = *pool_arrival_next(pool, NULL);
	cr_assert_eq(pool_arrival_add(pool, "a", "nonsense", 8), 0);
	cr_assert_eq(pool_arrival_add(pool, "source", its.text, its.len), 0);
	cr_assert_eq(pool_arrival_add(pool, "z", "nonsense", 8), 0);
	csi_arrivals_open(&arrivals, w->csi, registry);
	unsigned before = channel_local.calls;
	ring_sim_settle(w->reactor.ring, 60 * 1000);
	cr_assert(!move_is_in(w->pools) && channel_local.calls > before, "it is tried");
	far_up();
	move_at_one("a restart");
	for (unsigned n = 0; !move_is_in(w->pools); n++) {
		cr_assert_lt(n, 60);
		w->work_fault_after = (int)n;
		ring_sim_settle(w->reactor.ring, 4 * CSI_ARRIVALS_MS);
		w->work_fault_after = -1;
		move_at_one("an attempt");
	}
	csi_arrivals_close(&arrivals);
	pool_arrival_forget(pool, "a");
	pool_arrival_forget(pool, "z");
	grpc_registry_free(registry);
	move_taken("nobody asked");
	close_move();
}

Test(move, it_arrives_by_itself, .timeout = 60)
{
	arrive(10, true);
}

Test(move, it_arrives_without_a_restart, .timeout = 60)
{
	arrive(15, false);
}

/* Whichever pool is asked for the second time. */
Test(move, a_finished_part_is_found_in_another_pool, .timeout = 60)
{
	open_move(WORLD_XFS, 9);
	far_down();
	w->two_pools = true;
	world_restart(w);
	far_up();
	move_expect();
	cr_assert_eq(move_give(), ERR_OK);
	cut_path = "/ringvol.v1.Transfer/LeaveVolume";
	channel_local.on_message = lose_answer;
	cr_assert_eq(move_take_only(far.id, "other"), GRPC_UNAVAILABLE);
	channel_local.on_message = NULL;
	cr_assert_not(move_is_in(far.pools));
	channel_local.registry = far.registry;
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	const struct pool_object *o = pools_find_name(w->pools, RECORD_VOLUME, "source");
	cr_assert_not_null(o);
	cr_assert_str_eq(pool_name(o->pool), "other");
	cr_assert_eq(files_in(w->pool_path, "volumes"), 0);
	assert_nothing_left();
	close_move();
}

static unsigned let_go;

static void let_go_before_it_leaves(const char *op_name, const char *step_name)
{
	(void)step_name;
	if (strcmp(op_name, "pull_leave") != 0 || let_go-- == 0)
		return;
	w->on_step = NULL;
	still_close(still_of(far.transfer, pool_hold_next(pools_at(far.pools, 0), NULL)));
	move_change();
}

/* It was not still all the time: what was finished is worth nothing, and goes. */
Test(move, it_has_not_left, .timeout = 60)
{
	open_move(WORLD_XFS, 8);
	cr_assert_eq(move_give(), ERR_OK);
	let_go = 1;
	w->on_step = let_go_before_it_leaves;
	cr_assert_eq(move_take_only(far.id, "default"), GRPC_UNAVAILABLE);
	cr_assert_null(w->on_step);
	cr_assert_not_null(strstr(move_message, "has not left node node-2"), "%s", move_message);
	cr_assert(move_is_in(far.pools));
	cr_assert(!pool_part_is_finished(pool_holds_fd(pools_at(w->pools, 0)), "source"));
	cr_assert_eq(files_in(w->pool_path, "copies"), 0);
	move_expect();
	cr_assert_eq(move_take(), GRPC_OK, "%s", move_message);
	move_taken("it had not left");
	close_move();
}
