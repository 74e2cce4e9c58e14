/* SPDX-License-Identifier: Apache-2.0 */
#include "far.h"

#include "base/fd.h"
#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "pool/attach.h"
#include "pool/build.h"
#include "pool/index.h"
#include "pool/pools.h"
#include "pool/remove.h"
#include "transfer/grant.h"
#include "transfer/send.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 64 << 10, TURNS = 400000 };

/* ---- the other node ---- */

struct far far;

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

void far_up(void)
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

/* No call is under way, nor what it leaves. */
static bool far_idle(void *arg)
{
	(void)arg;
	return pools_idle(far.pools) && transfer_idle(far.transfer) &&
	       grpc_registry_in_flight(far.registry) == 0;
}

static bool sends_over(void *arg)
{
	(void)arg;
	return far.transfer->stats.sends == 0;
}

/* As after kill -9: memory goes. */
void far_down(void)
{
	node_adopt_no_more(far.node);
	transfer_drain(far.transfer);
	turn_until(sends_over, NULL);
	pools_drain(far.pools);
	turn_until(far_idle, NULL);
	world_settle(w);
	turn_until(far_idle, NULL);
	grpc_registry_free(far.registry);
	transfer_close(far.transfer);
	node_close(far.node);
	pools_close(far.pools);
	channel_local.registry = NULL;
}

bool far_small_blocks;

void open_both(enum world_fs fs, uint64_t seed)
{
	channel_local = (struct channel_local){0};
	open_world(fs, seed, true);
	snprintf(far.path, sizeof(far.path), "%s/far", w->dir);
	cr_assert_eq(mkdir(far.path, 0700), 0);
	far.mounted = fs == WORLD_XFS;
	if (far.mounted)
		cr_assert(world_mount_xfs(far_small_blocks ? "-b size=1024" : "", far.path));
	far_up();
}

void close_both(void)
{
	far_down();
	if (far.mounted)
		cr_assert_eq(umount(far.path), 0);
	world_close(w);
}

/* ---- its volume ---- */

uint64_t source_bytes, data_bytes;
bool source_encrypted;

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

void run_op(struct op *op)
{
	ended.ended = false;
	op->on_end = on_op_end;
	op_start(op);
	turn_until(op_ended, NULL);
}

void attach_volume(struct pool_object *volume, struct attachments *to)
{
	struct pool_attach *a = pool_attach_new(&w->reactor, volume, to);
	cr_assert_not_null(a);
	run_op(&a->op);
	cr_assert(!op_failed(&a->op), "%s", a->op.err.message);
	pool_attach_free(a);
}

struct attachments *lent_to(const char *node)
{
	const struct attachment one = {.node = node,
		.mode = ATTACHMENT_MULTI_WRITER,
		.block = true,
		.export = LENT_EXPORT,
		.key = ""};
	return attachments_with(NULL, &one);
}

static void far_make(const char *name, enum record_kind kind, const char *of, char *ret_id)
{
	struct pool_build b;
	struct record rec = {.kind = kind,
		.name = name,
		.size_bytes = source_bytes - (source_encrypted ? LUKS_HEADER_BYTES : 0),
		.encryption = source_encrypted ? RECORD_LUKS2 : RECORD_PLAIN,
		.block_size = 512,
		.mkfs_options = "",
		.source_id = "",
		.family = "",
		.claim = ""};
	char source[RECORD_ID_MAX];
	if (kind == RECORD_SNAPSHOT) {
		rec.source = RECORD_SOURCE_VOLUME;
		snprintf(source, sizeof(source), "%s.%s.0123abcd",
			pool_uuid8(pools_at(far.pools, 0)), of);
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

void far_make_both(uint64_t size, uint64_t data)
{
	source_bytes = size;
	data_bytes = data;
	create_bytes = size;
	far_make("source", RECORD_VOLUME, NULL, far.id);
	far_make("source-snap", RECORD_SNAPSHOT, "gone", far.snapshot_id);
}

void far_make_volume(uint64_t size, uint64_t data)
{
	source_bytes = size;
	data_bytes = data;
	far_make("source", RECORD_VOLUME, NULL, far.id);
}

void far_make_root(uint64_t size, uint64_t data, bool golden)
{
	source_bytes = size;
	data_bytes = data;
	create_bytes = size;
	far_make(
		"root", RECORD_SNAPSHOT, golden ? "import.root.0123abcd" : "gone", far.snapshot_id);
}

void far_remove(enum record_kind kind, const char *id)
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

char grant[POOL_GRANT_BYTES];

enum err_code far_grant(const char *source, const char *node_id, const char *name)
{
	struct grant_make m;
	grant_make_init(&m, far.transfer, source, node_id, name);
	run_op(&m.op);
	enum err_code code = m.op.err.code;
	if (code != ERR_OK)
		printf("grant: %s\n", m.op.err.message);
	if (code == ERR_OK)
		memcpy(grant, m.grant, sizeof(grant));
	grant_make_free(&m);
	return code;
}

void offer(const char *source, const char *name)
{
	Ringvol__V1__OfferCopyRequest req = RINGVOL__V1__OFFER_COPY_REQUEST__INIT;
	req.source_id = csi_bytes(source);
	req.volume_name = csi_bytes(name);
	req.grant = csi_bytes(grant);
	req.node_id = csi_bytes("node-2");
	req.address = csi_bytes("far:1");
	cr_assert_eq(call_status("/ringvol.v1.Member/OfferCopy", &req.base), GRPC_OK);
}

bool from_volume;

const char *source_id(void)
{
	return from_volume ? far.id : far.snapshot_id;
}

/* As external-provisioner and a controller would: again, with a grant and an offer. */
enum grpc_status copy(void)
{
	snprintf(volume_id, sizeof(volume_id), "%s", source_id());
	snprintf(snapshot_id, sizeof(snapshot_id), "%s", source_id());
	if (channel_local.registry != NULL && channel_local.registry == far.registry)
		cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	offer(source_id(), "copied");
	return create("copied", from_volume ? FROM_VOLUME : FROM_SNAPSHOT, other_id);
}

enum grpc_status uncopy(void)
{
	return delete (other_id);
}

void assert_same_bytes(void)
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

unsigned files_in(const char *pool, const char *dir)
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
void assert_nothing_left(void)
{
	world_settle(w);
	cr_assert_eq(files_in(w->pool_path, "copies"), 0);
	cr_assert_eq(files_in(far.path, "copies"), 0);
	cr_assert_eq(files_in(far.path, "trash"), 0);
	cr_assert_eq(transfer_grants(far.transfer), 0);
	cr_assert_eq(w->transfer->stats.pulls, 0);
	cr_assert_eq(far.transfer->stats.sends, 0);
}
