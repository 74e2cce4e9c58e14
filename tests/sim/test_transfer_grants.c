/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between nodes: who may read what, for how long, and what a hostile source sends. */
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
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
	cr_assert_eq(pull_init(&pull, w->transfer, &told, true, &err), 0);
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
			.end = l->end};
		chunk.checksum = chunk_sum(&chunk) ^ l->wrong_sum;
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
	grant[31] ^= 1;
	cr_assert_eq(undo_grant(), GRPC_NOT_FOUND);
	cr_assert_eq(transfer_grants(w->transfer), 1);
	grant[31] ^= 1;
	cr_assert_eq(undo_grant(), GRPC_OK);
	cr_assert_eq(undo_grant(), GRPC_NOT_FOUND, "it was closed");
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

/* ---- grants that may not be used again ---- */

/* With the last message the node goes. */
static enum channel_fate lose_close(const char *path, uint8_t *data, size_t len)
{
	(void)data;
	if (strcmp(path, "/ringvol.v1.Transfer/ReadCopy") == 0 && len <= CHUNK_HEAD_MAX)
		channel_local.registry = NULL;
	return FATE_DELIVER;
}

/* That the copy was made is not told to the source; it is deleted, and is to be made again. */
static void made_again(enum world_fs fs, bool volume, bool restart)
{
	char first[POOL_GRANT_BYTES];
	open_both(fs, 21);
	from_volume = volume;
	far_make_both(16 * MIB, MIB);
	channel_local.on_message = lose_close;
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	strcpy(first, grant);
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	cr_assert_str_eq(grant, first, "it was not sent");
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_str_eq(grant, first);
	channel_local.on_message = NULL;
	channel_local.registry = far.registry;
	cr_assert_eq(transfer_grants(far.transfer), 1, "it was not closed");
	cr_assert_eq(uncopy(), GRPC_OK);
	if (restart) {
		far_down();
		far_up();
	}
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	cr_assert_eq(strcmp(grant, first) == 0, !volume);
	world_settle(w);
	cr_assert_eq(transfer_grants(far.transfer), 1, "in its place");
	cr_assert_eq(copy(), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}

Test(transfer, a_volume_sent_whole_is_granted_anew, .timeout = 60)
{
	made_again(WORLD_XFS, true, false);
}

Test(transfer, a_volume_sent_whole_is_granted_anew_after_a_restart, .timeout = 60)
{
	made_again(WORLD_EXT4, true, true);
}

Test(transfer, a_snapshot_sent_whole_is_granted_again, .timeout = 60)
{
	made_again(WORLD_XFS, false, true);
}

/* Who asked for it has waited for the copy, and comes back later. */
static void expires_after(enum world_fs fs, uint64_t ms)
{
	open_both(fs, 22);
	from_volume = true;
	far_make_both(16 * MIB, MIB);
	cr_assert_eq(far_grant(source_id(), "node-1", "a"), ERR_OK);
	ring_sim_settle(w->reactor.ring, ms - TRANSFER_LOOK_MS);
	cr_assert_eq(transfer_grants(far.transfer), 1);
	ring_sim_settle(w->reactor.ring, 3 * TRANSFER_LOOK_MS);
	assert_nothing_left();
	close_both();
}

Test(transfer, grant_of_a_copied_volume_waits, .timeout = 60)
{
	expires_after(WORLD_EXT4, TRANSFER_GRANT_COPIED_MS);
}

Test(transfer, grant_of_a_shared_volume_expires, .timeout = 60)
{
	expires_after(WORLD_XFS, TRANSFER_GRANT_MS);
}

static int read_fault, read_faults;

static int fail_reads(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	(void)arg;
	(void)nth;
	if (sqe->opcode != IORING_OP_READ || read_faults == 0)
		return 0;
	read_faults--;
	return read_fault;
}

/* What passes is waited for; an image that cannot be read is granted no more. */
Test(transfer, troubles_of_the_source, .timeout = 60)
{
	char first[POOL_GRANT_BYTES], command[192];
	open_both(WORLD_XFS, 23);
	far_make_both(16 * MIB, MIB);
	w->sim.fault = fail_reads;
	read_fault = -ENOMEM;
	read_faults = 1;
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_eq(read_faults, 0);
	cr_assert_eq(w->transfer->stats.lost, 1);
	assert_same_bytes();
	cr_assert_eq(uncopy(), GRPC_OK);
	read_fault = -EIO;
	read_faults = 1;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	strcpy(first, grant);
	world_settle(w);
	cr_assert_eq(transfer_grants(far.transfer), 0, "the disk does not give it");
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_str_neq(grant, first);
	cr_assert_eq(uncopy(), GRPC_OK);
	/* The pool is away: it may come back. */
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	strcpy(first, grant);
	int fd = pool_holds_fd(pools_at(far.pools, 0)), kept = dup(fd);
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	cr_assert_geq(dup3(null, fd, O_CLOEXEC), 0);
	close(null);
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	cr_assert_geq(dup3(kept, fd, O_CLOEXEC), 0);
	close(kept);
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_str_eq(grant, first);
	cr_assert_eq(uncopy(), GRPC_OK);
	/* Somebody has removed it. */
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	strcpy(first, grant);
	snprintf(command, sizeof(command), "cd %s/copies && rm $(ls | grep -v grant)", far.path);
	cr_assert_eq(system(command), 0);
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_str_neq(grant, first);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}

static void drain_at_the_hold(const char *op_name, const char *step_name)
{
	(void)step_name;
	if (strcmp(op_name, "pool_hold") == 0) {
		w->on_step = NULL;
		csi_drain(w->csi, NULL, NULL);
	}
}

/* A long copy of this node's is not waited for. */
Test(transfer, a_grants_copy_is_stopped_at_a_shutdown, .timeout = 60)
{
	open_world(WORLD_EXT4, 24, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	w->on_step = drain_at_the_hold;
	cr_assert_eq(do_grant(), GRPC_UNAVAILABLE);
	world_restart(w);
	cr_assert_eq(files_in(w->pool_path, "copies"), 0);
	cr_assert_eq(do_grant(), GRPC_OK);
	cr_assert_eq(undo_grant(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}
