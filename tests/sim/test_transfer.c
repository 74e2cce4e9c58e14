/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between nodes: what travels between them is cut and changed, and each end fails, restarts
 * and drains. Whatever happens, what is acknowledged has the bytes of its source, and nothing is
 * left on either side that nobody waits for.
 */
#include "far.h"

#include "base/crc32c.h"
#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "pool/index.h"
#include "pool/pools.h"
#include "pool/remove.h"
#include "rpc/registry.h"
#include "transfer/chunk.h"
#include "transfer/grant.h"
#include "transfer/offer.h"
#include "transfer/pull.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the tests ---- */

static void copy_once(enum world_fs fs, bool volume)
{
	open_both(fs, 1);
	from_volume = volume;
	far_make_both(16 * MIB, 4 * MIB);
	cr_assert_eq(copy(), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	cr_assert_str_eq(channel_local.last_address, "far:1");
	cr_assert_str_eq(channel_local.last_peer, "ringvol://node/node-2");
	cr_assert(channel_local.last_registry == w->registry, "what it holds is counted");
	cr_assert_eq(far.transfer->stats.sent_bytes, data_bytes);
	cr_assert_eq(w->transfer->stats.received_bytes, data_bytes);
	cr_assert_eq(copy(), GRPC_OK, "the same again");
	assert_nothing_left();
	cr_assert_eq(uncopy(), GRPC_OK);
	close_both();
}

/* Ciphertext is copied like any other bytes, the header among them. */
Test(transfer, encrypted, .timeout = 60)
{
	source_encrypted = true;
	open_both(WORLD_XFS, 1);
	far_make_both(32 * MIB, 4 * MIB);
	cr_assert_eq(copy(), GRPC_INVALID_ARGUMENT, "the class is not encrypted");
	encryption = "luks2";
	cr_assert_eq(copy(), GRPC_OK);
	assert_same_bytes();
	const struct record *rec = pools_find_name(w->pools, RECORD_VOLUME, "copied")->rec;
	cr_assert_eq(rec->encryption, RECORD_LUKS2);
	cr_assert_geq(record_image_bytes(rec), 32 * MIB);
	cr_assert_not(rec->unformatted);
	cr_assert_eq(uncopy(), GRPC_OK);
	close_both();
}

Test(transfer, snapshot, .timeout = 60)
{
	copy_once(WORLD_XFS, false);
}

Test(transfer, volume, .timeout = 60)
{
	copy_once(WORLD_XFS, true);
}

Test(transfer, snapshot_without_reflink, .timeout = 60)
{
	copy_once(WORLD_EXT4, false);
}

Test(transfer, volume_without_reflink, .timeout = 60)
{
	copy_once(WORLD_EXT4, true);
}

/* ---- golden images ---- */

/* As by a controller: the class names the image, and the offer says which it is. */
static enum grpc_status copy_root(void)
{
	cr_assert_eq(far_grant(far.snapshot_id, "node-1", "copied"), ERR_OK);
	offer(far.snapshot_id, "copied");
	return create("copied", EMPTY, other_id);
}

Test(transfer, golden_image, .timeout = 60)
{
	open_both(WORLD_XFS, 1);
	far_make_root(16 * MIB, 4 * MIB, true);
	source_image = "root";
	cr_assert_eq(create("copied", EMPTY, other_id), GRPC_RESOURCE_EXHAUSTED, "no offer");
	cr_assert_eq(copy_root(), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	cr_assert_str_eq(pools_find_name(w->pools, RECORD_VOLUME, "copied")->rec->source_id,
		far.snapshot_id);
	cr_assert_eq(copy_root(), GRPC_OK, "the same again, offered or not");
	assert_nothing_left();
	cr_assert_eq(create("copied", EMPTY, other_id), GRPC_OK);
	cr_assert_eq(uncopy(), GRPC_OK);
	close_both();
}

/* Whoever offers it: a snapshot of a tenant's is none. */
Test(transfer, golden_images_alone, .timeout = 60)
{
	open_both(WORLD_XFS, 1);
	far_make_root(16 * MIB, 4 * MIB, false);
	source_image = "root";
	cr_assert_eq(copy_root(), GRPC_FAILED_PRECONDITION);
	assert_nothing_left();
	close_both();
}

/* ---- each step fails once ---- */

/* As in test_csi.c, on both sides: the inventory is the world's, and the other node has nothing
 * left but what a retry needs. */
static void fail_each_step(enum world_fs fs, bool volume)
{
	char before[INVENTORY_BYTES], after[INVENTORY_BYTES], failed[INVENTORY_BYTES];
	open_both(fs, 3);
	from_volume = volume;
	far_make_both(16 * MIB, 4 * MIB);
	cr_assert_eq(copy(), GRPC_OK);
	world_settle(w);
	world_inventory(w, after, sizeof(after));
	cr_assert_eq(uncopy(), GRPC_OK);
	world_settle(w);
	world_inventory(w, before, sizeof(before));
	unsigned n = 0;
	do {
		snprintf(volume_id, sizeof(volume_id), "%s", source_id());
		snprintf(snapshot_id, sizeof(snapshot_id), "%s", source_id());
		cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
		offer(source_id(), "copied");
		w->fault_hit = false;
		w->fault_after = (int)n++;
		enum grpc_status status =
			create("copied", volume ? FROM_VOLUME : FROM_SNAPSHOT, other_id);
		w->fault_after = -1;
		cr_assert(status == GRPC_OK || (w->fault_hit && status == GRPC_INTERNAL),
			"failed at %s: %d", w->fault_at, status);
		world_settle(w);
		world_inventory(w, failed, sizeof(failed));
		bool same = strcmp(failed, before) == 0 || strcmp(failed, after) == 0;
		cr_assert(same, "failed at %s and left\n%s\nbefore it was\n%s", w->fault_at, failed,
			before);
		cr_assert_eq(copy(), GRPC_OK, "the retry after %s", w->fault_at);
		assert_same_bytes();
		/* What could not be told to the source expires there. */
		ring_sim_settle(w->reactor.ring, 2 * TRANSFER_GRANT_MS);
		cr_assert_eq(uncopy(), GRPC_OK);
		world_settle(w);
		world_inventory(w, failed, sizeof(failed));
		cr_assert_str_eq(failed, before, "after %s", w->fault_at);
	} while (w->fault_hit);
	cr_assert_gt(n, 20);
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_IDLE_MS);
	assert_nothing_left();
	close_both();
}

Test(transfer, each_step_fails_xfs, .timeout = 120)
{
	fail_each_step(WORLD_XFS, false);
}

Test(transfer, each_step_fails_ext4, .timeout = 120)
{
	fail_each_step(WORLD_EXT4, true);
}

/* ---- the way between them ---- */

static unsigned countdown;

static enum channel_fate cut_once(const char *path, uint8_t *data, size_t len)
{
	(void)path;
	(void)data;
	(void)len;
	return countdown-- == 0 ? FATE_CUT : FATE_DELIVER;
}

/* At every message in turn: it goes on, and nothing comes twice but what was not acknowledged. */
Test(transfer, connection_is_cut, .timeout = 120)
{
	open_both(WORLD_EXT4, 5);
	far_make_both(16 * MIB, 4 * MIB);
	channel_local.on_message = cut_once;
	for (unsigned at = 0;; at++) {
		countdown = at;
		unsigned before = channel_local.messages;
		cr_assert_eq(copy(), GRPC_OK);
		assert_same_bytes();
		cr_assert_eq(uncopy(), GRPC_OK);
		if (channel_local.messages - before <= at)
			break;
		cr_assert_eq(w->transfer->stats.wrong, 0);
	}
	cr_assert_gt(w->transfer->stats.lost, 60, "each message once");
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_IDLE_MS);
	assert_nothing_left();
	close_both();
}

static unsigned wrong_every, wrong_seen;

static enum channel_fate spoil(const char *path, uint8_t *data, size_t len)
{
	if (strcmp(path, "/ringvol.v1.Transfer/ReadCopy") == 0 && len > CHUNK_ALIGN &&
		wrong_seen++ % wrong_every == wrong_every - 1)
		data[len / 2] ^= 0x10;
	return FATE_DELIVER;
}

Test(transfer, bits_flip_on_the_way, .timeout = 60)
{
	open_both(WORLD_EXT4, 6);
	far_make_both(16 * MIB, 4 * MIB);
	channel_local.on_message = spoil;
	wrong_every = 1000; /* one */
	wrong_seen = 950;
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_eq(w->transfer->stats.wrong, 1);
	assert_same_bytes();
	cr_assert_eq(uncopy(), GRPC_OK);
	wrong_every = 1;
	cr_assert_eq(copy(), GRPC_DATA_LOSS);
	cr_assert_eq(w->transfer->stats.wrong, 1 + PULL_WRONG_MAX);
	channel_local.on_message = NULL;
	assert_nothing_left();
	cr_assert_eq(copy(), GRPC_OK);
	assert_same_bytes();
	cr_assert_eq(uncopy(), GRPC_OK);
	close_both();
}

/* ---- what is durable is not pulled again ---- */

static uint64_t passed_bytes, cut_after;

/* From some byte on, nobody is there any more. */
static enum channel_fate cut_for_good(const char *path, uint8_t *data, size_t len)
{
	(void)data;
	if (strcmp(path, "/ringvol.v1.Transfer/ReadCopy") != 0)
		return FATE_DELIVER;
	if (passed_bytes >= cut_after) {
		channel_local.registry = NULL;
		return FATE_CUT;
	}
	passed_bytes += len;
	return FATE_DELIVER;
}

static void resume(bool volume, bool restart_target, bool restart_source)
{
	open_both(WORLD_EXT4, 7);
	from_volume = volume;
	far_make_both(160 * MIB, 160 * MIB);
	channel_local.on_message = cut_for_good;
	cut_after = 100 * MIB;
	passed_bytes = 0;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	channel_local.on_message = NULL;
	cr_assert_eq(files_in(w->pool_path, "copies"), 1, "the part");
	struct pool_room room;
	pool_room(pools_at(w->pools, 0), &room);
	if (restart_target) {
		far_down(); /* it is on the world's ring */
		world_restart(w);
		far_up();
	} else if (restart_source) {
		far_down();
		far_up();
	}
	channel_local.registry = far.registry;
	cr_assert_eq(transfer_grants(far.transfer), 1);
	uint64_t before = far.transfer->stats.sent_bytes;
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_leq(far.transfer->stats.sent_bytes - before, 160 * MIB - cut_after + 2 * MIB);
	assert_same_bytes();
	assert_nothing_left();
	cr_assert_eq(uncopy(), GRPC_OK);
	close_both();
}

Test(transfer, goes_on_where_it_was, .timeout = 120)
{
	resume(false, false, false);
}

Test(transfer, goes_on_after_a_restart_of_the_target, .timeout = 120)
{
	resume(true, true, false);
}

Test(transfer, goes_on_after_a_restart_of_the_source, .timeout = 120)
{
	resume(true, false, true);
}

/* A volume's second grant is of another moment: nothing of the first one's bytes counts. */
Test(transfer, another_grant_of_a_volume_begins_anew, .timeout = 120)
{
	open_both(WORLD_EXT4, 8);
	from_volume = true;
	far_make_both(160 * MIB, 160 * MIB);
	channel_local.on_message = cut_for_good;
	cut_after = 100 * MIB;
	passed_bytes = 0;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	channel_local.on_message = NULL;
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_IDLE_MS);
	cr_assert_eq(transfer_grants(far.transfer), 0, "it has expired");
	cr_assert_eq(files_in(far.path, "copies"), 0);
	channel_local.registry = far.registry;
	uint64_t before = far.transfer->stats.sent_bytes;
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_eq(far.transfer->stats.sent_bytes - before, 160 * MIB);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}

/* ---- the source goes ---- */

static struct pool_remove removal;
static unsigned remove_at;

static void on_removed(struct op *op)
{
	cr_assert(!op_failed(op), "%s", op->err.message);
}

static enum channel_fate remove_source(const char *path, uint8_t *data, size_t len)
{
	struct pool_object *object;
	struct err err = {0};
	(void)path;
	(void)data;
	(void)len;
	if (remove_at == 0 || --remove_at > 0)
		return FATE_DELIVER;
	cr_assert_eq(pools_find_id(far.pools, from_volume ? RECORD_VOLUME : RECORD_SNAPSHOT,
			     source_id(), &object, &err),
		0);
	pool_remove_init(&removal, &w->reactor, object);
	removal.op.on_end = on_removed;
	op_start(&removal.op);
	return FATE_DELIVER;
}

/* Deleted, and its trash emptied, between the grant and the copy and in the middle of it. */
static void source_goes(bool volume, enum world_fs fs, unsigned at)
{
	open_both(fs, 9);
	from_volume = volume;
	far_make_both(16 * MIB, 16 * MIB);
	channel_local.on_message = remove_source;
	remove_at = at;
	snprintf(volume_id, sizeof(volume_id), "%s", source_id());
	snprintf(snapshot_id, sizeof(snapshot_id), "%s", source_id());
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	offer(source_id(), "copied");
	if (at == 0) {
		far_remove(volume ? RECORD_VOLUME : RECORD_SNAPSHOT, source_id());
		world_settle(w);
		cr_assert_eq(files_in(far.path, "trash"), 0);
	}
	cr_assert_eq(create("copied", volume ? FROM_VOLUME : FROM_SNAPSHOT, other_id), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_NOT_FOUND);
	close_both();
}

Test(transfer, snapshot_is_deleted_meanwhile, .timeout = 60)
{
	source_goes(false, WORLD_EXT4, 0);
}

Test(transfer, volume_is_deleted_meanwhile, .timeout = 60)
{
	source_goes(true, WORLD_XFS, 0);
}

Test(transfer, snapshot_is_deleted_in_the_middle, .timeout = 60)
{
	source_goes(false, WORLD_EXT4, 10);
}

Test(transfer, volume_is_deleted_in_the_middle, .timeout = 60)
{
	source_goes(true, WORLD_EXT4, 10);
}
