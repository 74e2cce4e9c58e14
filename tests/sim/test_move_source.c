/* SPDX-License-Identifier: Apache-2.0 */
/* A volume that leaves for good, at the node that it leaves: who is refused what, when it is still
 * and no longer, that it leaves once and for ever, and each step failing. */
#include "far.h"

#include "blockio/image.h"
#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "node/volume.h"
#include "pool/departure.h"
#include "pool/index.h"
#include "pool/pools.h"
#include "pool/private.h"
#include "pool/sync.h"
#include "transfer/grant.h"
#include "transfer/still.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* ---- the calls ---- */

static char granted_to[64];

static enum grpc_status ask_grant_any(bool move, const char *node_id, bool any)
{
	Ringvol__V1__GrantCopyRequest req = RINGVOL__V1__GRANT_COPY_REQUEST__INIT;
	struct world_answer answer;
	req.source_id = csi_bytes(volume_id);
	req.node_id = csi_bytes(node_id);
	req.volume_name = csi_bytes("base");
	req.move = move;
	req.any_node = any;
	enum grpc_status status = call("/ringvol.v1.Member/GrantCopy", &req.base, &answer);
	if (status == GRPC_OK) {
		Ringvol__V1__GrantCopyResponse *response =
			ringvol__v1__grant_copy_response__unpack(NULL, answer.len, answer.data);
		memcpy(grant, response->grant.data, response->grant.len);
		snprintf(granted_to, sizeof(granted_to), "%.*s", (int)response->node_id.len,
			(const char *)response->node_id.data);
		ringvol__v1__grant_copy_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

static enum grpc_status ask_grant(bool move, const char *node_id)
{
	return ask_grant_any(move, node_id, false);
}

static bool is_still;
static uint64_t since;
static char why[512], from[RECORD_POOL_DIGITS + 1];

static enum grpc_status ask_still(void)
{
	Ringvol__V1__StillVolumeRequest req = RINGVOL__V1__STILL_VOLUME_REQUEST__INIT;
	struct world_answer answer;
	req.grant = csi_bytes(grant);
	is_still = false;
	enum grpc_status status = call("/ringvol.v1.Transfer/StillVolume", &req.base, &answer);
	if (status == GRPC_OK) {
		Ringvol__V1__StillVolumeResponse *response =
			ringvol__v1__still_volume_response__unpack(NULL, answer.len, answer.data);
		is_still = response->still;
		since = response->since;
		snprintf(why, sizeof(why), "%.*s", (int)response->why.len,
			response->why.len > 0 ? (char *)response->why.data : "");
		snprintf(from, sizeof(from), "%.*s", (int)response->pool.len,
			response->pool.len > 0 ? (char *)response->pool.data : "");
		cr_assert_eq(is_still, response->record.len > 0);
		ringvol__v1__still_volume_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

/* A device that was let go may live on for a moment, see delete_patiently(). */
static void hold_still(void)
{
	cr_assert_eq(ask_still(), GRPC_OK);
	for (unsigned i = 0; !is_still && i < 200; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
		cr_assert_eq(ask_still(), GRPC_OK);
	}
	cr_assert(is_still, "%s", why);
}

static enum grpc_status ask_leave(uint64_t since_then, const char *to, const char *pool)
{
	Ringvol__V1__LeaveVolumeRequest req = RINGVOL__V1__LEAVE_VOLUME_REQUEST__INIT;
	req.grant = csi_bytes(grant);
	req.since = since_then;
	req.pool = csi_bytes(to);
	req.from = csi_bytes(pool);
	return call_status("/ringvol.v1.Transfer/LeaveVolume", &req.base);
}

static enum grpc_status leave(void)
{
	return ask_leave(since, "0123abcd", from);
}

static enum grpc_status close_grant(void)
{
	Ringvol__V1__CloseCopyRequest req = RINGVOL__V1__CLOSE_COPY_REQUEST__INIT;
	req.grant = csi_bytes(grant);
	return call_status("/ringvol.v1.Transfer/CloseCopy", &req.base);
}

static char renewed[POOL_GRANT_BYTES];

static enum grpc_status ask_renew(void)
{
	Ringvol__V1__RenewCopyRequest req = RINGVOL__V1__RENEW_COPY_REQUEST__INIT;
	struct world_answer answer;
	req.grant = csi_bytes(grant);
	enum grpc_status status = call("/ringvol.v1.Transfer/RenewCopy", &req.base, &answer);
	if (status == GRPC_OK) {
		Ringvol__V1__RenewCopyResponse *response =
			ringvol__v1__renew_copy_response__unpack(NULL, answer.len, answer.data);
		cr_assert_eq(response->grant.len, sizeof(renewed) - 1);
		memcpy(renewed, response->grant.data, response->grant.len);
		ringvol__v1__renew_copy_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

static enum grpc_status ask_read(const char *of, const char *earlier, bool changed)
{
	Ringvol__V1__ReadCopyRequest req = RINGVOL__V1__READ_COPY_REQUEST__INIT;
	req.later = csi_bytes(of);
	req.since = csi_bytes(earlier);
	req.changed = changed;
	return call_status("/ringvol.v1.Transfer/ReadCopy", &req.base);
}

static enum grpc_status drop_departure(void)
{
	Ringvol__V1__DropDepartureRequest req = RINGVOL__V1__DROP_DEPARTURE_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	return call_status("/ringvol.v1.Member/DropDeparture", &req.base);
}

static void open_granted(enum world_fs fs, uint64_t seed)
{
	open_world(fs, seed, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
}

/* As it was before it was granted. */
static void close_granted(void)
{
	world_settle(w);
	cr_assert(list_empty(&w->transfer->stills));
	cr_assert_eq(transfer_grants(w->transfer), 0);
	cr_assert_eq(files_in(w->pool_path, "copies"), 0);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	cr_assert_eq(files_in(w->pool_path, "volumes"), 0);
	cr_assert_eq(files_in(w->pool_path, "trash"), 0);
	world_close(w);
}

/* ---- still ---- */

Test(move, a_copys_grant_is_no_moves, .timeout = 60)
{
	open_granted(WORLD_XFS, 1);
	cr_assert_eq(close_grant(), GRPC_OK);
	cr_assert_eq(ask_still(), GRPC_NOT_FOUND, "it was closed");
	cr_assert_eq(ask_grant(false, "node-2"), GRPC_OK);
	cr_assert_eq(ask_still(), GRPC_PERMISSION_DENIED);
	cr_assert_eq(ask_leave(0, "0123abcd", pool_uuid8(pools_at(w->pools, 0))),
		GRPC_FAILED_PRECONDITION);
	cr_assert_eq(close_grant(), GRPC_OK);
	close_granted();
}

Test(move, in_use, .timeout = 60)
{
	struct node_lock lock;
	char path[128];
	open_granted(WORLD_XFS, 2);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(ask_still(), GRPC_OK);
	cr_assert(!is_still);
	cr_assert_not_null(strstr(why, "in use at "), "%s", why);
	cr_assert_not_null(strstr(why, staging_path), "%s", why);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(ask_still(), GRPC_OK);
	cr_assert(!is_still);
	cr_assert_eq(undo_stage(), GRPC_OK);
	/* A call works on it. */
	node_lock_init(&lock, NODE_SHARED, "volume", "base");
	lock.what = "it is looked at";
	node_lock_take(&w->csi->node->locks, &lock);
	cr_assert_eq(ask_still(), GRPC_OK);
	cr_assert(!is_still);
	cr_assert_not_null(strstr(why, "worked on by another call"), "%s", why);
	node_lock_release(&w->csi->node->locks, &lock);
	/* By hand: open, and locked. */
	hold_still();
	cr_assert_eq(close_grant(), GRPC_OK);
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
	snprintf(path, sizeof(path), "%s/volumes/base", w->pool_path);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(ask_still(), GRPC_OK);
		cr_assert(!is_still);
		cr_assert_not_null(strstr(why, "by hand"), "%s", why);
		cr_assert(list_empty(&w->transfer->stills));
		(void)image_lock(fd);
	}
	close(fd);
	cr_assert_eq(do_stage(), GRPC_OK, "nothing of it is held");
	cr_assert_eq(undo_stage(), GRPC_OK);
	hold_still();
	cr_assert_eq(close_grant(), GRPC_OK);
	close_granted();
}

Test(move, grown_since, .timeout = 60)
{
	open_granted(WORLD_XFS, 3);
	cr_assert_eq(expand(2 * create_bytes), GRPC_OK);
	cr_assert_eq(ask_still(), GRPC_NOT_FOUND);
	world_settle(w);
	cr_assert_eq(transfer_grants(w->transfer), 0);
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
	hold_still();
	cr_assert_eq(close_grant(), GRPC_OK);
	close_granted();
}

static struct pool_object *volume(void)
{
	return pools_find_name(w->pools, RECORD_VOLUME, "base");
}

/* The other node uses it alone, over an export; or nobody any more. */
static void lend(bool is)
{
	attach_volume(volume(), is ? lent_to("node-2") : NULL);
	node_volume_get(volume())->dev.attached = is;
	if (!is)
		node_volume_forget(volume());
}

static enum grpc_status close_this(const char *which)
{
	strcpy(grant, which);
	return close_grant();
}

Test(move, is_renewed, .timeout = 60)
{
	static struct node_lock in_the_way;
	char first[POOL_GRANT_BYTES], second[POOL_GRANT_BYTES];
	open_granted(WORLD_XFS, 61);
	lend(true);
	strcpy(first, grant);
	node_lock_init(&in_the_way, NODE_SHARED, "volume", "base");
	node_lock_take(&w->csi->node->locks, &in_the_way);
	cr_assert_eq(ask_renew(), GRPC_UNAVAILABLE, "another call");
	node_lock_release(&w->csi->node->locks, &in_the_way);
	cr_assert_eq(ask_renew(), GRPC_OK);
	strcpy(second, renewed);
	cr_assert_str_neq(second, first);
	cr_assert_eq(ask_renew(), GRPC_OK);
	cr_assert_str_eq(renewed, second, "nobody has read it yet");
	struct pool_hold *hold = grant_find(w->transfer, second, &(struct grpc_peer){0});
	hold->opened = true;
	hold->readers++;
	cr_assert_eq(ask_renew(), GRPC_OK);
	cr_assert_str_neq(renewed, second, "it was read");
	cr_assert_eq(ask_renew(), GRPC_UNAVAILABLE, "one from before is still read");
	hold->readers--;
	grant_drop(hold);
	cr_assert_eq(transfer_grants(w->transfer), 2, "of one move there are two at most");
	cr_assert_eq(ask_read(first, second, false), GRPC_NOT_FOUND, "it is gone");
	cr_assert_eq(ask_read("", first, false), GRPC_NOT_FOUND, "later than what?");
	cr_assert_eq(ask_read(renewed, renewed, false), GRPC_INVALID_ARGUMENT, "the same one");
	lend(false);
	cr_assert_eq(ask_renew(), GRPC_FAILED_PRECONDITION, "nobody uses it");
	hold_still();
	cr_assert_eq(ask_read(first, renewed, true), GRPC_INVALID_ARGUMENT, "both");
	cr_assert_eq(close_this(renewed), GRPC_OK);
	cr_assert_eq(close_this(first), GRPC_OK);
	cr_assert_eq(ask_renew(), GRPC_NOT_FOUND, "it is closed");
	close_granted();
}

Test(move, is_not_renewed, .timeout = 60)
{
	open_granted(WORLD_XFS, 62);
	cr_assert_eq(close_grant(), GRPC_OK);
	cr_assert_eq(ask_grant(false, "node-2"), GRPC_OK);
	cr_assert_eq(ask_renew(), GRPC_FAILED_PRECONDITION, "it is a copy's");
	cr_assert_eq(close_grant(), GRPC_OK);
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
	lend(true);
	unsigned held = pools_at(w->pools, 0)->hold_count;
	pools_at(w->pools, 0)->hold_count = POOL_HOLDS_MAX;
	cr_assert_eq(ask_renew(), GRPC_FAILED_PRECONDITION, "no room for another one");
	pools_at(w->pools, 0)->hold_count = held;
	lend(false);
	cr_assert_eq(expand(2 * create_bytes), GRPC_OK);
	lend(true);
	cr_assert_eq(ask_renew(), GRPC_FAILED_PRECONDITION, "it has grown");
	lend(false);
	cr_assert_eq(close_grant(), GRPC_OK);
	close_granted();
	open_granted(WORLD_EXT4, 63);
	lend(true);
	cr_assert_eq(ask_renew(), GRPC_FAILED_PRECONDITION, "nothing is shared");
	lend(false);
	cr_assert_eq(close_grant(), GRPC_OK);
	close_granted();
}

/* Equal calls at once: one makes it, and what it has made stays. */
Test(move, is_renewed_once_at_a_time, .timeout = 60)
{
	enum { CROWD = 8 };
	static struct world_answer answers[CROWD];
	Ringvol__V1__RenewCopyRequest req = RINGVOL__V1__RENEW_COPY_REQUEST__INIT;
	char first[POOL_GRANT_BYTES];
	open_granted(WORLD_XFS, 64);
	lend(true);
	strcpy(first, grant);
	req.grant = csi_bytes(first);
	for (unsigned i = 0; i < CROWD; i++)
		world_send(w, "/ringvol.v1.Transfer/RenewCopy", &req.base, &answers[i]);
	unsigned made = 0;
	for (unsigned i = 0; i < CROWD; i++) {
		world_wait(w, &answers[i]);
		made += answers[i].status == GRPC_OK;
		cr_assert(answers[i].status == GRPC_OK || answers[i].status == GRPC_UNAVAILABLE);
		world_answer_free(&answers[i]);
	}
	cr_assert_eq(made, 1);
	cr_assert_eq(transfer_grants(w->transfer), 2);
	cr_assert_eq(ask_renew(), GRPC_OK);
	lend(false);
	cr_assert_eq(close_this(renewed), GRPC_OK);
	cr_assert_eq(close_this(first), GRPC_OK);
	close_granted();
}

/* A grant that is asked for again, while a snapshot is copied from the volume that is frozen for
 * it. */
static struct world_answer beside;
static bool is_sent, frozen_to_the_end;

static void ask_beside(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "pool_build") != 0)
		return;
	if (strcmp(step_name, "fill") == 0 && !is_sent) {
		cr_assert(is_frozen());
		is_sent = true;
		Ringvol__V1__GrantCopyRequest req = RINGVOL__V1__GRANT_COPY_REQUEST__INIT;
		req.source_id = csi_bytes(volume_id);
		req.node_id = csi_bytes("node-2");
		req.volume_name = csi_bytes("base");
		req.move = true;
		world_send(w, "/ringvol.v1.Member/GrantCopy", &req.base, &beside);
	}
	if (strcmp(step_name, "data") == 0)
		frozen_to_the_end = is_frozen();
}

Test(move, a_grant_thaws_nothing_of_others, .timeout = 60)
{
	open_granted(WORLD_EXT4, 65);
	cr_assert_eq(do_stage(), GRPC_OK);
	w->on_step = ask_beside;
	cr_assert_eq(do_snapshot(), GRPC_OK);
	w->on_step = NULL;
	cr_assert(is_sent);
	world_wait(w, &beside);
	cr_assert_eq(beside.status, GRPC_OK);
	world_answer_free(&beside);
	cr_assert(frozen_to_the_end && !is_frozen());
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(close_grant(), GRPC_OK);
	close_granted();
}

/* What is still is so once, for nobody else, and until it is closed. */
Test(move, while_it_is_still, .timeout = 60)
{
	open_granted(WORLD_XFS, 4);
	hold_still();
	uint64_t first = since;
	cr_assert_str_eq(from, pool_uuid8(pools_at(w->pools, 0)));
	cr_assert_eq(ask_still(), GRPC_OK);
	cr_assert(is_still);
	cr_assert_eq(since, first, "the same again");
	cr_assert_eq(do_stage(), GRPC_ABORTED);
	cr_assert_eq(delete (volume_id), GRPC_ABORTED);
	cr_assert_eq(expand(2 * create_bytes), GRPC_ABORTED);
	cr_assert_eq(do_snapshot(), GRPC_ABORTED);
	cr_assert_eq(do_clone(), GRPC_ABORTED);
	cr_assert_eq(create("base", EMPTY, other_id), GRPC_ABORTED);
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK, "for the node that takes it");
	cr_assert_eq(ask_still(), GRPC_OK);
	cr_assert_eq(since, first);
	cr_assert_eq(close_grant(), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
	hold_still();
	cr_assert_neq(since, first);
	cr_assert_eq(close_grant(), GRPC_OK);
	close_granted();
}

/* The call that finds it still is not answered yet when it is closed. */
Test(move, closed_while_it_is_asked, .timeout = 60)
{
	Ringvol__V1__StillVolumeRequest still = RINGVOL__V1__STILL_VOLUME_REQUEST__INIT;
	Ringvol__V1__CloseCopyRequest close = RINGVOL__V1__CLOSE_COPY_REQUEST__INIT;
	struct world_answer asked, closed;
	open_granted(WORLD_XFS, 10);
	hold_still();
	still.grant = close.grant = csi_bytes(grant);
	world_send(w, "/ringvol.v1.Transfer/StillVolume", &still.base, &asked);
	world_send(w, "/ringvol.v1.Transfer/CloseCopy", &close.base, &closed);
	world_wait(w, &closed);
	world_wait(w, &asked);
	cr_assert_eq(closed.status, GRPC_OK);
	cr_assert_eq(asked.status, GRPC_UNAVAILABLE, "%s", asked.message);
	cr_assert(list_empty(&w->transfer->stills), "a closed grant holds nothing");
	world_answer_free(&asked);
	world_answer_free(&closed);
	close_granted();
}

Test(move, it_is_still_for_a_while, .timeout = 60)
{
	open_granted(WORLD_XFS, 5);
	hold_still();
	uint64_t first = since;
	for (unsigned i = 0; i < 3; i++) {
		ring_sim_settle(w->reactor.ring, TRANSFER_STILL_MS - 2 * TRANSFER_LOOK_MS);
		cr_assert_eq(ask_still(), GRPC_OK);
		cr_assert_eq(since, first, "its node is heard of");
	}
	ring_sim_settle(w->reactor.ring, TRANSFER_STILL_MS - 2 * TRANSFER_LOOK_MS);
	cr_assert_eq(do_stage(), GRPC_ABORTED);
	ring_sim_settle(w->reactor.ring, 4 * TRANSFER_LOOK_MS);
	cr_assert(list_empty(&w->transfer->stills), "its node is silent");
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_neq(leave(), GRPC_OK, "it may have changed");
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_GRANT_MS);
	close_granted();
}

static void drop_grants(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "grant") != 0 || strcmp(step_name, "look up") != 0)
		return;
	struct pool *pool = pools_at(w->pools, 0);
	while (pool_hold_next(pool, NULL) != NULL)
		grant_drop(pool_hold_next(pool, NULL));
}

/* A grant that is there needs no lock of its volume. One that ends meanwhile is not made anew
 * without it: the volume might be in the middle of something. */
Test(move, no_grant_is_made_without_the_lock, .timeout = 60)
{
	open_granted(WORLD_XFS, 10);
	w->on_step = drop_grants;
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_UNAVAILABLE);
	cr_assert_eq(transfer_grants(w->transfer), 0);
	/* It has the lock now. */
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
	w->on_step = NULL;
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_GRANT_MS);
	close_granted();
}

/* Where any node will do it is the one that has most of the bytes, maybe. */
Test(move, a_move_goes_on_to_where_it_went, .timeout = 60)
{
	char first[POOL_GRANT_BYTES];
	open_granted(WORLD_XFS, 9);
	strcpy(first, grant);
	cr_assert_str_eq(granted_to, "node-2");
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(ask_grant_any(true, "node-3", true), GRPC_OK);
		cr_assert_str_eq(granted_to, "node-2");
		cr_assert_str_eq(grant, first);
		cr_assert_eq(transfer_grants(w->transfer), 1);
		world_restart(w);
	}
	/* A copy is for who asks for it; so is a move to a node that is named. */
	cr_assert_eq(ask_grant_any(false, "node-3", true), GRPC_OK);
	cr_assert_str_eq(granted_to, "node-3");
	cr_assert_eq(ask_grant(true, "node-4"), GRPC_OK);
	cr_assert_str_eq(granted_to, "node-4");
	cr_assert_eq(ask_grant_any(true, "node-3", true), GRPC_OK);
	cr_assert_str_eq(granted_to, "node-4", "node-2 was away");
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
	cr_assert_str_eq(grant, first);
	/* Held still for its node, and gone to it. */
	hold_still();
	cr_assert_eq(ask_grant_any(true, "node-2", true), GRPC_OK);
	cr_assert_eq(leave(), GRPC_OK);
	cr_assert_eq(ask_grant_any(true, "node-3", true), GRPC_OK);
	cr_assert_str_eq(granted_to, "node-2");
	cr_assert_str_eq(grant, first);
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_GRANT_MS); /* the copy is not read */
	cr_assert_eq(drop_departure(), GRPC_OK);
	close_granted();
}

/* ---- leave ---- */

Test(move, it_leaves_once_and_for_ever, .timeout = 60)
{
	char first[POOL_GRANT_BYTES];
	open_granted(WORLD_XFS, 6);
	const char *pool = pool_uuid8(pools_at(w->pools, 0));
	/* It was to go elsewhere before: that image goes as well. */
	cr_assert_eq(ask_grant(true, "node-3"), GRPC_OK);
	cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
	cr_assert_eq(transfer_grants(w->transfer), 2);
	cr_assert_eq(ask_leave(1, "0123abcd", pool), GRPC_FAILED_PRECONDITION, "not still");
	hold_still();
	cr_assert_eq(ask_leave(since + 1, "0123abcd", from), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(ask_leave(since, "0123abcd", "ffffffff"), GRPC_UNAVAILABLE, "not here");
	cr_assert_eq(ask_leave(since, "0123abcX", from), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(ask_leave(since, "0123abcd", ""), GRPC_INVALID_ARGUMENT);
	strcpy(first, grant);
	grant[0] = grant[0] == '0' ? '1' : '0';
	cr_assert_eq(leave(), GRPC_NOT_FOUND);
	strcpy(grant, first);
	cr_assert_eq(do_stage(), GRPC_ABORTED, "it is still all the while");

	cr_assert_eq(leave(), GRPC_OK);
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_eq(leave(), GRPC_OK, "for ever");
		cr_assert_eq(ask_leave(since + 1, "0123abcd", from), GRPC_OK);
		cr_assert_eq(do_stage(), GRPC_UNAVAILABLE);
		cr_assert_eq(delete (volume_id), GRPC_UNAVAILABLE);
		cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
		cr_assert_str_eq(grant, first);
		cr_assert_neq(ask_grant(true, "node-3"), GRPC_OK);
		cr_assert_neq(ask_grant(false, "node-2"), GRPC_OK);
		cr_assert_eq(ask_still(), GRPC_NOT_FOUND);
		world_settle(w);
		cr_assert_eq(transfer_grants(w->transfer), 0);
		cr_assert_eq(files_in(w->pool_path, "volumes"), 0);
		cr_assert_eq(files_in(w->pool_path, "trash"), 0);
		cr_assert_eq(files_in(w->pool_path, "departed"), 1);
		/* The third time of a pool whose note is not known to be durable. */
		if (i == 0)
			world_restart(w);
		pools_departure(w->pools, volume_id)->unsynced = true;
		cr_assert_eq(leave(), GRPC_OK);
		cr_assert(!pools_departure(w->pools, volume_id)->unsynced);
	}
	cr_assert_eq(drop_departure(), GRPC_OK);
	cr_assert_eq(leave(), GRPC_NOT_FOUND);
	close_granted();
}

/* While the note is written nobody hears that nothing has left, not even of a hold that is given
 * up. */
Test(move, it_is_leaving, .timeout = 60)
{
	Ringvol__V1__LeaveVolumeRequest req = RINGVOL__V1__LEAVE_VOLUME_REQUEST__INIT;
	struct world_answer first, second;
	for (unsigned dropped = 0; dropped < 2; dropped++) {
		open_granted(WORLD_XFS, 13);
		hold_still();
		req.grant = csi_bytes(grant);
		req.since = since;
		req.pool = csi_bytes("0123abcd");
		req.from = csi_bytes(from);
		world_send(w, "/ringvol.v1.Transfer/LeaveVolume", &req.base, &first);
		cr_assert_not(first.ended);
		if (dropped > 0)
			pool_hold_next(pools_at(w->pools, 0), NULL)->dropped = true;
		world_send(w, "/ringvol.v1.Transfer/LeaveVolume", &req.base, &second);
		world_wait(w, &second);
		cr_assert_eq(second.status, GRPC_ABORTED);
		world_wait(w, &first);
		cr_assert_eq(first.status, GRPC_OK, "%s", first.message);
		cr_assert_eq(leave(), GRPC_OK);
		world_answer_free(&first);
		world_answer_free(&second);
		world_settle(w);
		cr_assert_eq(drop_departure(), GRPC_OK);
		close_granted();
	}
}

/* Nobody knows what a note said that cannot be read: least of all that its volume has not left, as
 * the node that took it would let go of it. */
Test(move, a_note_that_cannot_be_read_denies_nothing, .timeout = 60)
{
	char path[128];
	open_granted(WORLD_XFS, 7);
	hold_still();
	cr_assert_eq(leave(), GRPC_OK);
	world_settle(w);
	snprintf(path, sizeof(path), "%s/departed/base", w->pool_path);
	cr_assert_eq(truncate(path, 10), 0);
	world_restart(w);
	cr_assert_not_null(pool_departure_by_key(pools_at(w->pools, 0), "base"));
	cr_assert_eq(leave(), GRPC_UNAVAILABLE);
	world_close(w);
}

/* ---- each step fails ---- */

static void fail_each_still(enum world_fs fs)
{
	char before[INVENTORY_BYTES], failed[INVENTORY_BYTES];
	open_granted(fs, 8);
	hold_still();
	cr_assert_eq(close_grant(), GRPC_OK);
	world_settle(w);
	world_inventory(w, before, sizeof(before));
	for (unsigned n = 0;; n++) {
		cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
		w->fault_hit = false;
		w->fault_after = (int)n;
		enum grpc_status status = ask_still();
		w->fault_after = -1;
		cr_assert(w->fault_hit ? status == GRPC_UNAVAILABLE : status == GRPC_OK, "%s: %d",
			w->fault_at, status);
		cr_assert_eq(list_empty(&w->transfer->stills), w->fault_hit, "%s", w->fault_at);
		hold_still();
		cr_assert_eq(close_grant(), GRPC_OK);
		world_settle(w);
		world_inventory(w, failed, sizeof(failed));
		cr_assert_str_eq(failed, before, "after %s", w->fault_at);
		if (!w->fault_hit) {
			cr_assert_geq(n, 2);
			break;
		}
	}
	close_granted();
}

Test(move, each_step_of_still_fails_xfs, .timeout = 60)
{
	fail_each_still(WORLD_XFS);
}

Test(move, each_step_of_still_fails_ext4, .timeout = 60)
{
	fail_each_still(WORLD_EXT4);
}

/* It is here, or it has left: the next call says which, and so it is. */
static bool leave_failed(void)
{
	const struct pool_departure *left = pools_departure(w->pools, volume_id);
	struct pool_object *volume;
	struct err err = {0};
	bool here = pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err) == 0;
	cr_assert(here != (left != NULL), "after %s", w->fault_at);
	enum grpc_status again = leave();
	cr_assert_eq(again, here ? GRPC_FAILED_PRECONDITION : GRPC_OK, "after %s: %d", w->fault_at,
		again);
	if (here) {
		hold_still();
		cr_assert_eq(leave(), GRPC_OK, "after %s", w->fault_at);
	}
	return here;
}

static void fail_each_leave(enum world_fs fs, bool steps)
{
	char before[INVENTORY_BYTES], failed[INVENTORY_BYTES];
	unsigned stayed = 0, n = 0;
	bool hit;
	open_world(fs, 9, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_settle(w);
	world_inventory(w, before, sizeof(before));
	do {
		cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
		cr_assert_eq(ask_grant(true, "node-2"), GRPC_OK);
		hold_still();
		w->fault_hit = false;
		*(steps ? &w->fault_after : &w->work_fault_after) = (int)n++;
		enum grpc_status status = leave();
		w->fault_after = w->work_fault_after = -1;
		hit = w->fault_hit;
		cr_assert(status == GRPC_OK || (hit && status == GRPC_UNAVAILABLE), "%s: %d",
			w->fault_at, status);
		if (status == GRPC_OK)
			cr_assert_eq(leave(), GRPC_OK, "after %s", w->fault_at);
		else
			stayed += leave_failed();
		world_settle(w);
		cr_assert(list_empty(&w->transfer->stills));
		cr_assert_eq(drop_departure(), GRPC_OK);
		cr_assert_null(pools_removal_unsynced(w->pools, RECORD_VOLUME, volume_id),
			"after %s: without its note an image that is back would be a volume",
			w->fault_at);
		ring_sim_settle(w->reactor.ring, 2 * TRANSFER_LOOK_MS);
		world_inventory(w, failed, sizeof(failed));
		cr_assert_str_eq(
			failed, before, "after %s:\n%s\nbefore\n%s", w->fault_at, failed, before);
	} while (hit);
	cr_assert_gt(n, steps ? 5 : 2);
	cr_assert_gt(stayed, 0);
	world_close(w);
}

Test(move, each_step_of_leave_fails_xfs, .timeout = 120)
{
	fail_each_leave(WORLD_XFS, true);
}

Test(move, each_step_of_leave_fails_ext4, .timeout = 120)
{
	fail_each_leave(WORLD_EXT4, true);
}

Test(move, each_job_of_leave_fails, .timeout = 120)
{
	fail_each_leave(WORLD_XFS, false);
}
