/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between nodes: the world is the node that makes the volume, and `far` the one that has its
 * source, with a pool of its own. What travels between them is cut, changed and made up. Whatever
 * happens, what is acknowledged has the bytes of its source, and nothing is left on either side
 * that nobody waits for.
 */
#include "channel_local.h"
#include "csi_calls.h"
#include "world.h"

#include "base/fd.h"
#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "pool/build.h"
#include "pool/index.h"
#include "pool/pools.h"
#include "pool/remove.h"
#include "transfer/chunk.h"
#include "transfer/crc32c.h"
#include "transfer/grant.h"
#include "transfer/offer.h"
#include "transfer/pull.h"
#include "transfer/send.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 64 << 10, TURNS = 400000 };

/* ---- the other node ---- */

static struct far {
	char path[96], disk[96];
	bool mounted;
	struct pools *pools;
	struct node *node;
	struct transfer *transfer;
	struct grpc_registry *registry;
	char id[RECORD_ID_MAX], snapshot_id[RECORD_ID_MAX];
} far;

static int shell(const char *fmt, const char *a, const char *b)
{
	char command[512];
	snprintf(command, sizeof(command), fmt, a, b);
	return system(command);
}

static void turn_until(bool (*over)(void *), void *arg)
{
	for (unsigned i = 0; i < TURNS && !over(arg); i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert(over(arg));
}

static void set_flag(void *arg)
{
	*(bool *)arg = true;
}

static bool flag_is_set(void *arg)
{
	return *(bool *)arg;
}

static void far_up(void)
{
	struct pool_config pool = {
		.name = "default", .path = far.path, .overcommit = 1.0, .init = true};
	const struct transfer_config config = {.node_id = "node-2"};
	bool loaded = false;
	cr_assert_eq(pools_open(&far.pools, &w->reactor, &pool, 1), 0);
	pools_start(far.pools, set_flag, NULL, &loaded);
	turn_until(flag_is_set, &loaded);
	cr_assert_eq(pool_state(pools_at(far.pools, 0)), POOL_READY, "%s",
		pool_why(pools_at(far.pools, 0)));
	cr_assert_eq(node_open(&far.node, &w->reactor, far.pools), 0);
	bool adopted = false;
	node_adopt(far.node, set_flag, &adopted);
	turn_until(flag_is_set, &adopted);
	cr_assert_eq(transfer_open(&far.transfer, &w->reactor, far.pools, far.node, &config), 0);
	far.registry = grpc_registry_new();
	cr_assert_eq(transfer_register(far.transfer, far.registry,
			     1 << GRPC_PEER_LOCAL | 1 << GRPC_PEER_NODE),
		0);
	channel_local.registry = far.registry;
}

static bool far_pools_idle(void *arg)
{
	(void)arg;
	return pools_idle(far.pools);
}

static bool sends_over(void *arg)
{
	(void)arg;
	return far.transfer->stats.sends == 0;
}

/* As after kill -9: memory goes. */
static void far_down(void)
{
	node_adopt_no_more(far.node);
	transfer_drain(far.transfer);
	turn_until(sends_over, NULL);
	pools_drain(far.pools);
	turn_until(far_pools_idle, NULL);
	world_settle(w);
	grpc_registry_free(far.registry);
	transfer_close(far.transfer);
	node_close(far.node);
	pools_close(far.pools);
	channel_local.registry = NULL;
}

static void open_both(enum world_fs fs, uint64_t seed)
{
	channel_local = (struct channel_local){0};
	open_world(fs, seed, true);
	snprintf(far.path, sizeof(far.path), "%s/far", w->dir);
	snprintf(far.disk, sizeof(far.disk), "%s/far-disk", w->dir);
	cr_assert_eq(mkdir(far.path, 0700), 0);
	far.mounted = fs == WORLD_XFS;
	if (far.mounted)
		cr_assert_eq(shell("truncate -s 600M %1$s && mkfs.xfs -q %1$s && mount -o loop "
				   "%1$s %2$s",
				     far.disk, far.path),
			0);
	far_up();
}

static void close_both(void)
{
	far_down();
	if (far.mounted)
		cr_assert_eq(shell("umount %s%s", far.path, ""), 0);
	world_close(w);
}

/* ---- its volume ---- */

static uint64_t source_bytes, data_bytes;

/* What block i of the source holds; a hole where nothing. */
static bool has_data(uint64_t offset)
{
	return data_bytes == source_bytes || offset / BLOCK % (source_bytes / data_bytes) == 0;
}

static void make_block(uint64_t offset, uint8_t *bytes)
{
	uint64_t *words = (uint64_t *)bytes, x = offset / BLOCK + 1;
	for (unsigned i = 0; i < BLOCK / sizeof(*words); i++) {
		x = x * 6364136223846793005 + 1442695040888963407;
		words[i] = x;
	}
}

static int fill_source(struct op *op, int fd, void *arg)
{
	uint8_t *bytes;
	(void)op;
	(void)arg;
	cr_assert_eq(posix_memalign((void **)&bytes, 4096, BLOCK), 0);
	for (uint64_t at = 0; at < source_bytes; at += BLOCK) {
		if (!has_data(at))
			continue;
		make_block(at, bytes);
		cr_assert_eq(pwrite(fd, bytes, BLOCK, (off_t)at), BLOCK);
	}
	free(bytes);
	return 0;
}

struct ended {
	bool ended;
	struct op *op;
};
static struct ended ended;

static void on_op_end(struct op *op)
{
	ended = (struct ended){true, op};
}

static bool op_ended(void *arg)
{
	(void)arg;
	return ended.ended;
}

static void run_op(struct op *op)
{
	ended.ended = false;
	op->on_end = on_op_end;
	op_start(op);
	turn_until(op_ended, NULL);
}

static void far_make(const char *name, enum record_kind kind, char *ret_id)
{
	struct pool_build b;
	struct record rec = {.kind = kind,
		.name = name,
		.size_bytes = source_bytes,
		.block_size = 512,
		.mkfs_options = "",
		.source_id = "",
		.family = "",
		.claim = ""};
	char source[RECORD_ID_MAX];
	if (kind == RECORD_SNAPSHOT) {
		rec.source = RECORD_SOURCE_VOLUME;
		snprintf(source, sizeof(source), "%s.gone.0123abcd",
			pool_uuid8(pools_at(far.pools, 0)));
		rec.source_id = source;
	}
	cr_assert_eq(pool_build_init(&b, &w->reactor, pools_at(far.pools, 0), &rec), 0);
	b.fill = fill_source;
	b.fill_writes = true;
	run_op(&b.op);
	cr_assert(!op_failed(&b.op), "%s", b.op.err.message);
	pool_object_id(b.ret_object, ret_id);
	pool_build_free(&b);
}

static void far_make_both(uint64_t size, uint64_t data)
{
	source_bytes = size;
	data_bytes = data;
	create_bytes = size;
	far_make("source", RECORD_VOLUME, far.id);
	far_make("source-snap", RECORD_SNAPSHOT, far.snapshot_id);
}

static void far_remove(enum record_kind kind, const char *id)
{
	struct pool_object *object;
	struct pool_remove r;
	struct err err = {0};
	cr_assert_eq(pools_find_id(far.pools, kind, id, &object, &err), 0);
	pool_remove_init(&r, &w->reactor, object);
	run_op(&r.op);
	cr_assert(!op_failed(&r.op), "%s", r.op.err.message);
}

/* ---- what the controller does ---- */

static char grant[POOL_GRANT_BYTES];

static enum err_code far_grant(const char *source, const char *node_id, const char *name)
{
	struct grant_make m;
	grant_make_init(&m, far.transfer, source, node_id, name);
	run_op(&m.op);
	enum err_code code = m.op.err.code;
	if (code != ERR_OK)
		printf("grant: %s\n", m.op.err.message);
	if (code == ERR_OK)
		memcpy(grant, m.hold->grant, sizeof(grant));
	grant_make_free(&m);
	return code;
}

static void offer(const char *source, const char *name)
{
	Ringvol__V1__OfferCopyRequest req = RINGVOL__V1__OFFER_COPY_REQUEST__INIT;
	req.source_id = csi_bytes(source);
	req.volume_name = csi_bytes(name);
	req.grant = csi_bytes(grant);
	req.node_id = csi_bytes("node-2");
	req.address = csi_bytes("far:1");
	cr_assert_eq(call_status("/ringvol.v1.Member/OfferCopy", &req.base), GRPC_OK);
}

static bool from_volume;

static const char *source_id(void)
{
	return from_volume ? far.id : far.snapshot_id;
}

/* As external-provisioner and a controller would: again, with a grant and an offer. */
static enum grpc_status copy(void)
{
	snprintf(volume_id, sizeof(volume_id), "%s", source_id());
	snprintf(snapshot_id, sizeof(snapshot_id), "%s", source_id());
	if (channel_local.registry != NULL && channel_local.registry == far.registry)
		cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	offer(source_id(), "copied");
	return create("copied", from_volume ? FROM_VOLUME : FROM_SNAPSHOT, other_id);
}

static enum grpc_status uncopy(void)
{
	return delete (other_id);
}

static void assert_same_bytes(void)
{
	char path[128];
	struct stat st;
	uint8_t *want = malloc(BLOCK), *got = malloc(BLOCK);
	snprintf(path, sizeof(path), "%s/volumes/copied", w->pool_path);
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	for (uint64_t at = 0; at < source_bytes; at += BLOCK) {
		memset(want, 0, BLOCK);
		if (has_data(at))
			make_block(at, want);
		cr_assert_eq(pread(fd, got, BLOCK, (off_t)at), BLOCK);
		cr_assert_eq(memcmp(want, got, BLOCK), 0, "at %llu", (unsigned long long)at);
	}
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_leq((uint64_t)st.st_blocks * 512, data_bytes + MIB, "holes stay holes");
	free(want);
	free(got);
}

static unsigned files_in(const char *pool, const char *dir)
{
	char path[256];
	DIR *d;
	unsigned count = 0;
	snprintf(path, sizeof(path), "%s/%s", pool, dir);
	d = opendir(path);
	cr_assert_not_null(d);
	for (struct dirent *e; (e = readdir(d)) != NULL;)
		count += e->d_name[0] != '.';
	closedir(d);
	return count;
}

/* No part, no hold, no reservation. */
static void assert_nothing_left(void)
{
	world_settle(w);
	cr_assert_eq(files_in(w->pool_path, "copies"), 0);
	cr_assert_eq(files_in(far.path, "copies"), 0);
	cr_assert_eq(files_in(far.path, "trash"), 0);
	cr_assert_eq(transfer_grants(far.transfer), 0);
	cr_assert_eq(w->transfer->stats.pulls, 0);
	cr_assert_eq(far.transfer->stats.sends, 0);
}

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
	cr_assert_eq(far.transfer->stats.sent_bytes, data_bytes);
	cr_assert_eq(w->transfer->stats.received_bytes, data_bytes);
	cr_assert_eq(copy(), GRPC_OK, "the same again");
	assert_nothing_left();
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
	if (strcmp(path, "/ringvol.v1.Transfer/ReadCopy") == 0 && len > BLOCK / 2 &&
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
static unsigned answers_left;

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

static enum channel_fate remove_source(const char *path, uint8_t *data, size_t len)
{
	(void)path;
	(void)data;
	(void)len;
	answers_left -= answers_left > 0;
	return FATE_DELIVER;
}

/* Deleted, and its trash emptied, between the grant and the copy and in the middle of it. */
static void source_goes(bool volume, enum world_fs fs)
{
	open_both(fs, 9);
	from_volume = volume;
	far_make_both(16 * MIB, 16 * MIB);
	channel_local.on_message = remove_source;
	snprintf(volume_id, sizeof(volume_id), "%s", source_id());
	snprintf(snapshot_id, sizeof(snapshot_id), "%s", source_id());
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	offer(source_id(), "copied");
	far_remove(volume ? RECORD_VOLUME : RECORD_SNAPSHOT, source_id());
	world_settle(w);
	cr_assert_eq(files_in(far.path, "trash"), 0);
	cr_assert_eq(create("copied", volume ? FROM_VOLUME : FROM_SNAPSHOT, other_id), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_NOT_FOUND);
	close_both();
}

Test(transfer, snapshot_is_deleted_meanwhile, .timeout = 60)
{
	source_goes(false, WORLD_EXT4);
}

Test(transfer, volume_is_deleted_meanwhile, .timeout = 60)
{
	source_goes(true, WORLD_XFS);
}

/* ---- grants ---- */

static enum grpc_status open_as(enum grpc_peer_role role, const char *node_id)
{
	static struct offer told;
	struct pull pull;
	struct err err = {0};
	channel_local.peer.role = role;
	snprintf(channel_local.peer.node_id, sizeof(channel_local.peer.node_id), "%s", node_id);
	strcpy(told.source_id, source_id());
	strcpy(told.grant, grant);
	strcpy(told.node_id, "node-2");
	strcpy(told.address, "far:1");
	cr_assert_eq(pull_init(&pull, w->transfer, &told, &err), 0);
	pull_open_init(&pull);
	run_op(&pull.op);
	enum err_code code = pull.op.err.code;
	pull_free(&pull);
	channel_local.peer = (struct grpc_peer){0};
	return code == ERR_OK ? GRPC_OK : GRPC_NOT_FOUND;
}

Test(transfer, grant_is_one_nodes, .timeout = 60)
{
	char first[POOL_GRANT_BYTES];
	open_both(WORLD_EXT4, 10);
	far_make_both(16 * MIB, MIB);
	cr_assert_eq(far_grant(source_id(), "node-1", "a"), ERR_OK);
	strcpy(first, grant);
	cr_assert_eq(strspn(grant, "0123456789abcdef"), 32);
	cr_assert_eq(far_grant(source_id(), "node-1", "a"), ERR_OK);
	cr_assert_str_eq(grant, first, "the same again");
	cr_assert_eq(far_grant(source_id(), "node-1", "b"), ERR_OK);
	cr_assert_str_neq(grant, first);
	cr_assert_eq(far_grant(source_id(), "node-3", "a"), ERR_OK);
	cr_assert_str_neq(grant, first);
	cr_assert_eq(transfer_grants(far.transfer), 3);
	strcpy(grant, first);
	cr_assert_eq(open_as(GRPC_PEER_NODE, "node-1"), GRPC_OK);
	cr_assert_eq(open_as(GRPC_PEER_NODE, "*"), GRPC_OK, "a certificate of all nodes");
	cr_assert_eq(open_as(GRPC_PEER_NODE, "node-3"), GRPC_NOT_FOUND);
	cr_assert_eq(open_as(GRPC_PEER_NODE, "node-"), GRPC_NOT_FOUND);
	cr_assert_eq(open_as(GRPC_PEER_CONTROLLER, ""), GRPC_NOT_FOUND);
	grant[31] ^= 1;
	cr_assert_eq(open_as(GRPC_PEER_NODE, "node-1"), GRPC_NOT_FOUND);
	cr_assert_eq(far_grant("ffffffff.none.01234567", "node-1", "a"), ERR_UNAVAILABLE);
	close_both();
}

Test(transfer, grant_expires, .timeout = 60)
{
	open_both(WORLD_EXT4, 11);
	far_make_both(16 * MIB, MIB);
	cr_assert_eq(far_grant(source_id(), "node-1", "a"), ERR_OK);
	ring_sim_settle(w->reactor.ring, TRANSFER_GRANT_MS - TRANSFER_LOOK_MS);
	cr_assert_eq(transfer_grants(far.transfer), 1);
	ring_sim_settle(w->reactor.ring, 3 * TRANSFER_LOOK_MS);
	cr_assert_eq(transfer_grants(far.transfer), 0, "nobody opened it");
	assert_nothing_left();
	cr_assert_eq(open_as(GRPC_PEER_NODE, "node-1"), GRPC_NOT_FOUND);
	cr_assert_eq(far_grant(source_id(), "node-1", "a"), ERR_OK);
	cr_assert_eq(open_as(GRPC_PEER_NODE, "node-1"), GRPC_OK);
	ring_sim_settle(w->reactor.ring, TRANSFER_IDLE_MS - 2 * TRANSFER_LOOK_MS);
	cr_assert_eq(transfer_grants(far.transfer), 1, "it was opened");
	far_down();
	far_up();
	cr_assert_eq(transfer_grants(far.transfer), 1, "its clock begins anew");
	ring_sim_settle(w->reactor.ring, TRANSFER_IDLE_MS - 2 * TRANSFER_LOOK_MS);
	cr_assert_eq(transfer_grants(far.transfer), 1);
	ring_sim_settle(w->reactor.ring, 4 * TRANSFER_LOOK_MS);
	assert_nothing_left();
	close_both();
}

/* ---- hostile sources ---- */

struct lie {
	const char *name;
	uint64_t offset;
	size_t len;
	bool end, wrong_sum;
};

static const struct lie *lie;

static void lying_read(struct grpc_call *call, const ProtobufCMessage *request)
{
	static uint8_t data[CHUNK_ALIGN + 4 * CHUNK_BYTES_MAX];
	(void)request;
	for (const struct lie *l = lie; l->name != NULL; l++) {
		struct chunk chunk = {.offset = l->offset,
			.data = data + CHUNK_ALIGN,
			.len = l->len,
			.checksum = crc32c(data + CHUNK_ALIGN, l->len) ^ l->wrong_sum,
			.end = l->end};
		size_t len;
		const uint8_t *message = chunk_put_head(&chunk, data + CHUNK_ALIGN, &len);
		(void)grpc_send_bytes(call, message, len);
		if (grpc_call_gone(call))
			break;
	}
	grpc_end(call, GRPC_OK, NULL);
}

static void lying_open(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	struct pool_object *object;
	struct err err = {0};
	char text[RECORD_BYTES_MAX];
	cr_assert_eq(pools_find_id(far.pools, RECORD_SNAPSHOT, far.snapshot_id, &object, &err), 0);
	Ringvol__V1__OpenCopyResponse response = RINGVOL__V1__OPEN_COPY_RESPONSE__INIT;
	response.size_bytes = object->rec->size_bytes;
	int len = record_print(object->rec, text, sizeof(text));
	response.record = (ProtobufCBinaryData){(size_t)len, (uint8_t *)text};
	if (lie->name != NULL && strcmp(lie->name, "another size") == 0)
		response.size_bytes += MIB;
	if (lie->name != NULL && strcmp(lie->name, "a damaged record") == 0)
		text[40] ^= 1;
	if (lie->name != NULL && strcmp(lie->name, "no record") == 0)
		response.record.len = 0;
	grpc_reply(call, &response.base);
}

static void lying_close(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	grpc_end(call, GRPC_NOT_FOUND, "");
}

Test(transfer, hostile_source, .timeout = 60)
{
	static const struct grpc_method methods[] = {{"OpenCopy", lying_open},
		{"ReadCopy", lying_read}, {"CloseCopy", lying_close}, {NULL}};
	static struct grpc_service service = {&ringvol__v1__transfer__descriptor, methods, NULL};
	static const struct lie lies[][4] = {
		{{"descending", 8192, 4096}, {"", 0, 4096}},
		{{"overlapping", 0, 8192}, {"", 4096, 8192}},
		{{"twice", 0, 4096}, {"", 0, 4096}},
		{{"behind the end", 16 * MIB, 4096}},
		{{"over the end", 16 * MIB - 4096, 8192}},
		{{"far behind the end", UINT64_MAX - 4095, 4096}},
		{{"unaligned", 512, 4096}},
		{{"unaligned length", 0, 5000}},
		{{"too long", 0, CHUNK_BYTES_MAX + 4096}},
		{{"empty", 0, 0}},
		{{"wrong sum", 0, 4096, false, true}},
		{{"no end", 0, 4096}},
		{{"an end too early", 4096, 0, true}},
		{{"an end too late", 17 * MIB, 0, true}},
		{{"more behind the end", 16 * MIB, 0, true}, {"", 0, 4096}},
		{{"two ends", 16 * MIB, 0, true}, {"", 16 * MIB, 0, true}},
		{{"another size"}},
		{{"a damaged record"}},
		{{"no record"}},
	};
	char before[INVENTORY_BYTES], after[INVENTORY_BYTES];
	open_both(WORLD_EXT4, 12);
	far_make_both(16 * MIB, MIB);
	struct grpc_registry *registry = grpc_registry_new();
	service.peers = 1 << GRPC_PEER_LOCAL;
	grpc_check_fn *check = far.registry != NULL ? csi_check_request : NULL;
	cr_assert_eq(grpc_registry_add(registry, &service, check), 0);
	channel_local.registry = registry;
	strcpy(grant, "0123456789abcdef0123456789abcdef");
	world_inventory(w, before, sizeof(before));
	for (unsigned i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		lie = lies[i];
		cr_assert_eq(copy(), GRPC_DATA_LOSS, "%s", lie->name);
		world_settle(w);
		world_inventory(w, after, sizeof(after));
		cr_assert_str_eq(after, before, "%s", lie->name);
	}
	channel_local.registry = far.registry;
	grpc_registry_free(registry);
	cr_assert_eq(copy(), GRPC_OK, "an honest one");
	assert_same_bytes();
	close_both();
}

/* ---- GrantCopy, of this node ---- */

static enum grpc_status do_grant(void)
{
	Ringvol__V1__GrantCopyRequest req = RINGVOL__V1__GRANT_COPY_REQUEST__INIT;
	struct world_answer answer;
	req.source_id = csi_bytes(volume_id);
	req.node_id = csi_bytes("node-2");
	req.volume_name = csi_bytes("elsewhere");
	enum grpc_status status = call("/ringvol.v1.Member/GrantCopy", &req.base, &answer);
	if (status == GRPC_OK) {
		Ringvol__V1__GrantCopyResponse *response =
			ringvol__v1__grant_copy_response__unpack(NULL, answer.len, answer.data);
		cr_assert_eq(response->grant.len, POOL_GRANT_BYTES - 1);
		memcpy(grant, response->grant.data, response->grant.len);
		ringvol__v1__grant_copy_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

static enum grpc_status undo_grant(void)
{
	Ringvol__V1__CloseCopyRequest req = RINGVOL__V1__CLOSE_COPY_REQUEST__INIT;
	req.grant = csi_bytes(grant);
	return call_status("/ringvol.v1.Transfer/CloseCopy", &req.base);
}

static void fail_each_grant(enum world_fs fs, bool in_use)
{
	char before[INVENTORY_BYTES], failed[INVENTORY_BYTES];
	open_world(fs, 4, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	if (in_use) {
		cr_assert_eq(do_stage(), GRPC_OK);
		cr_assert_eq(do_publish(), GRPC_OK);
	}
	cr_assert_eq(do_grant(), GRPC_OK);
	cr_assert_eq(undo_grant(), GRPC_OK);
	world_settle(w);
	world_inventory(w, before, sizeof(before));
	struct pool_room room, now;
	pool_room(pools_at(w->pools, 0), &room);
	for (unsigned n = 0;; n++) {
		w->fault_hit = false;
		w->fault_after = (int)n;
		enum grpc_status status = do_grant();
		w->fault_after = -1;
		cr_assert(status == GRPC_OK || (w->fault_hit && status == GRPC_INTERNAL), "%s",
			w->fault_at);
		cr_assert_eq(transfer_grants(w->transfer) == 1,
			files_in(w->pool_path, "copies") == 2, "after %s", w->fault_at);
		cr_assert_eq(files_in(w->pool_path, "copies") % 2, 0, "after %s", w->fault_at);
		cr_assert_eq(do_grant(), GRPC_OK, "the retry after %s", w->fault_at);
		cr_assert_eq(transfer_grants(w->transfer), 1);
		cr_assert(!in_use || !is_frozen());
		cr_assert_eq(undo_grant(), GRPC_OK);
		world_settle(w);
		world_inventory(w, failed, sizeof(failed));
		cr_assert_str_eq(failed, before, "after %s", w->fault_at);
		pool_room(pools_at(w->pools, 0), &now);
		/* The other pool's disk is this machine's: others write there. */
		if (fs == WORLD_XFS)
			cr_assert_leq(room.available_bytes, now.available_bytes + MIB);
		if (!w->fault_hit)
			break;
		cr_assert_lt(n, 60);
	}
	if (in_use) {
		cr_assert_eq(undo_publish(), GRPC_OK);
		cr_assert_eq(undo_stage(), GRPC_OK);
	}
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

Test(transfer, each_step_of_a_grant_fails_xfs, .timeout = 120)
{
	fail_each_grant(WORLD_XFS, false);
}

Test(transfer, each_step_of_a_grant_in_use_fails_xfs, .timeout = 120)
{
	fail_each_grant(WORLD_XFS, true);
}

Test(transfer, each_step_of_a_grant_fails_ext4, .timeout = 120)
{
	fail_each_grant(WORLD_EXT4, false);
}

Test(transfer, each_step_of_a_grant_in_use_fails_ext4, .timeout = 120)
{
	fail_each_grant(WORLD_EXT4, true);
}

/* ---- shutting down, sizes, modes, faults of the disks ---- */

static unsigned stop_at;

static enum channel_fate drain_then(const char *path, uint8_t *data, size_t len)
{
	(void)path;
	(void)data;
	(void)len;
	if (stop_at-- == 1)
		csi_drain(w->csi, NULL, NULL);
	return FATE_DELIVER;
}

/* A drain of the target ends the call with UNAVAILABLE, soon, and what was pulled is kept. */
Test(transfer, drain_keeps_the_part, .timeout = 120)
{
	open_both(WORLD_EXT4, 13);
	far_make_both(32 * MIB, 32 * MIB);
	channel_local.on_message = drain_then;
	stop_at = 50; /* of 64 */
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	channel_local.on_message = NULL;
	cr_assert_eq(files_in(w->pool_path, "copies"), 1);
	cr_assert_eq(w->csi->task_count, 0);
	far_down();
	world_restart(w);
	far_up();
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_leq(far.transfer->stats.sent_bytes, 12 * MIB);
	assert_same_bytes();
	assert_nothing_left();
	cr_assert_eq(uncopy(), GRPC_OK);
	close_both();
}

static enum channel_fate drain_source(const char *path, uint8_t *data, size_t len)
{
	(void)path;
	(void)data;
	(void)len;
	if (stop_at-- == 1)
		transfer_drain(far.transfer);
	return FATE_DELIVER;
}

/* One of the source's ends the stream; without another source the copy is given up for now. */
Test(transfer, drain_of_the_source_ends_the_stream, .timeout = 120)
{
	open_both(WORLD_EXT4, 14);
	far_make_both(32 * MIB, 32 * MIB);
	channel_local.on_message = drain_source;
	stop_at = 20;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	cr_assert_eq(far.transfer->stats.sends, 0);
	channel_local.on_message = NULL;
	far_down();
	far_up();
	cr_assert_eq(copy(), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}

Test(transfer, larger_than_its_source, .timeout = 60)
{
	open_both(WORLD_XFS, 15);
	far_make_both(16 * MIB, 4 * MIB);
	create_bytes = 40 * MIB;
	cr_assert_eq(copy(), GRPC_OK);
	char path[128];
	struct stat st;
	snprintf(path, sizeof(path), "%s/volumes/copied", w->pool_path);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_size, 40 * MIB);
	assert_same_bytes();
	cr_assert_eq(uncopy(), GRPC_OK);
	create_bytes = 15 * MIB; /* no smaller one: it gets its source's size */
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_size, 16 * MIB);
	assert_nothing_left();
	close_both();
}

/* A block volume's bytes are mounted only if the class says so, and if they hold a file system. */
Test(transfer, change_of_mode, .timeout = 60)
{
	char command[192];
	open_both(WORLD_EXT4, 16);
	far_make_both(16 * MIB, MIB);
	block = false;
	cr_assert_eq(copy(), GRPC_INVALID_ARGUMENT, "the class does not say so");
	mode_change = true;
	cr_assert_eq(copy(), GRPC_INVALID_ARGUMENT, "it holds none");
	assert_nothing_left();
	snprintf(command, sizeof(command), "mkfs.ext4 -q -b 4096 -F %s/snapshots/source-snap",
		far.path);
	cr_assert_eq(system(command), 0);
	fs_type = "xfs";
	cr_assert_eq(copy(), GRPC_INVALID_ARGUMENT, "it holds another");
	fs_type = "ext4";
	cr_assert_eq(copy(), GRPC_OK);
	snprintf(volume_id, sizeof(volume_id), "%s", other_id);
	cr_assert_eq(do_stage(), GRPC_OK, "it mounts");
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(other_id), GRPC_OK);
	assert_nothing_left();
	close_both();
}

static long faults_left;
static bool fault_came;

static int request_fault(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	(void)arg;
	(void)nth;
	if (faults_left < 0 || (sqe->opcode != IORING_OP_READ && sqe->opcode != IORING_OP_WRITE &&
				       sqe->opcode != IORING_OP_FSYNC))
		return 0;
	if (faults_left-- > 0)
		return 0;
	fault_came = true;
	return -EIO;
}

/* Each read of the source, write and sync of the target fails once. */
Test(transfer, disks_fail, .timeout = 120)
{
	open_both(WORLD_XFS, 17);
	far_make_both(16 * MIB, 2 * MIB);
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	w->sim.fault = request_fault;
	faults_left = -1;
	unsigned failed = 0;
	for (long n = 0;; n++) {
		snprintf(snapshot_id, sizeof(snapshot_id), "%s", source_id());
		cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
		offer(source_id(), "copied");
		fault_came = false;
		faults_left = n;
		enum grpc_status status = create("copied", FROM_SNAPSHOT, other_id);
		faults_left = -1;
		if (!fault_came)
			break;
		/* The source's disk: it is away, for us. Ours: INTERNAL. */
		cr_assert(
			status == GRPC_INTERNAL || status == GRPC_UNAVAILABLE || status == GRPC_OK,
			"%d", status);
		failed += status != GRPC_OK;
		cr_assert_eq(copy(), GRPC_OK);
		assert_same_bytes();
		cr_assert_eq(uncopy(), GRPC_OK);
		cr_assert_lt(n, 400);
	}
	cr_assert_gt(failed, 30);
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_IDLE_MS);
	assert_nothing_left();
	close_both();
}

/* The rate holds for both ends, by the ring's clock. */
Test(transfer, rate, .timeout = 60)
{
	open_both(WORLD_EXT4, 18);
	far_make_both(16 * MIB, 16 * MIB);
	for (unsigned end = 0; end < 2; end++) {
		struct transfer *limited = end == 0 ? w->transfer : far.transfer;
		limited->rate.bytes_per_s = 4 * MIB;
		uint64_t begin_ns = ring_now_ns(w->reactor.ring);
		cr_assert_eq(copy(), GRPC_OK);
		uint64_t ms = (ring_now_ns(w->reactor.ring) - begin_ns) / 1000000;
		cr_assert_gt(ms, 3700);
		cr_assert_lt(ms, 6000);
		limited->rate.bytes_per_s = 0;
		cr_assert_eq(uncopy(), GRPC_OK);
	}
	close_both();
}

/* One more stream than a node sends is refused, and tried again. */
Test(transfer, so_many_at_once, .timeout = 60)
{
	open_both(WORLD_EXT4, 19);
	far_make_both(16 * MIB, MIB);
	far.transfer->stats.sends = TRANSFER_SENDS_MAX;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	far.transfer->stats.sends = 0;
	w->transfer->stats.pulls = TRANSFER_PULLS_MAX;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	w->transfer->stats.pulls = 0;
	cr_assert_eq(copy(), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}

/* Offers are looked over, the oldest gives way, and none is kept for long. */
Test(transfer, offers, .timeout = 60)
{
	static char name[RECORD_NAME_MAX + 2];
	const char *id = "01234567.snap.89abcdef", *hex = "0123456789abcdef0123456789abcdef";
	struct offer found;
	struct err err = {0};
	open_both(WORLD_EXT4, 20);
	const struct {
		const char *id, *name, *grant, *node, *address;
	} wrong[] = {
		{"no-id", "a", hex, "n", "h:1"},
		{id, "", hex, "n", "h:1"},
		{id, "a", "0123", "n", "h:1"},
		{id, "a", "0123456789abcdef0123456789abcdeF", "n", "h:1"},
		{id, "a", hex, "", "h:1"},
		{id, "a", hex, "n", ""},
		{id, name, hex, "n", "h:1"},
	};
	memset(name, 'x', sizeof(name) - 1);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		err_clear(&err);
		cr_assert_lt(offer_put(w->transfer, wrong[i].id, wrong[i].name, wrong[i].grant,
				     wrong[i].node, wrong[i].address, &err),
			0);
		cr_assert_eq(err.code, ERR_INVALID);
	}
	for (unsigned i = 0; i <= TRANSFER_OFFERS_MAX; i++) {
		snprintf(name, sizeof(name), "v-%u", i);
		cr_assert_eq(offer_put(w->transfer, id, name, hex, "n", "h:1", &err), 0);
	}
	cr_assert_eq(w->transfer->n_offers, TRANSFER_OFFERS_MAX);
	cr_assert(!offer_find(w->transfer, id, "v-0", &found));
	cr_assert(offer_find(w->transfer, id, "v-1", &found));
	cr_assert_eq(offer_put(w->transfer, id, "v-1", hex, "n", "h:2", &err), 0);
	cr_assert(offer_find(w->transfer, id, "v-1", &found));
	cr_assert_str_eq(found.address, "h:2", "the last one counts");
	cr_assert_eq(w->transfer->n_offers, TRANSFER_OFFERS_MAX);
	ring_sim_settle(w->reactor.ring, TRANSFER_OFFER_MS + 2 * TRANSFER_LOOK_MS);
	cr_assert_eq(w->transfer->n_offers, 0);
	close_both();
}
