/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of every csi.v1 method through decoding, the edge check, the validators and as far into
 * the operations as goes without a disk: a pool in memory with a few volumes and snapshots, whose
 * descriptors are closed ones, helpers that answer what the input says, and steps that would reach
 * for devices or processes failed before they run.
 *
 * A request is raw bytes or built along its descriptor (csi_requests.h). Several are sent at once.
 * Every call ends; each message of an error is UTF-8.
 */
#include "csi_requests.h"
#include "fuzz.h"

#include "base/buf.h"
#include "base/log.h"
#include "blockio/mnt.h"
#include "csi.pb-c.h"
#include "csi/csi.h"
#include "csi/node_state.h"
#include "pool/private.h"
#include "reactor/sim.h"
#include "rpc/wire.h"

#include <errno.h>
#include <string.h>

enum { CALLS_MAX = 8, TURNS_MAX = 20000, DEVICE_MAJOR = 7, DEVICE_MINOR = 4000 };

/* ---- the world ---- */

struct world {
	struct ring_sim sim;
	struct reactor reactor;
	struct pools *pools;
	struct csi *csi;
	struct grpc_registry *registry;
};

static struct fuzz answers; /* what helpers say */

/* As after MNT_INSPECT or MNT_STATS of a path that is a mount of the volume's device, a directory,
 * nothing, or trouble. */
static int fake_info(struct mnt_info *info)
{
	static const int errors[] = {-EIO, -ELOOP, -ETIMEDOUT, -ENOTDIR};
	*info = (struct mnt_info){0};
	uint8_t b = fuzz_byte(&answers);
	if (b >= 0xf0) {
		snprintf(info->why, sizeof(info->why), "a reason");
		return errors[b % 4];
	}
	info->exists = (b & 0x07) != 0x01;
	info->is_dir = info->exists && (b & 0x08) == 0;
	info->is_file = info->exists && !info->is_dir;
	info->is_mount = info->exists && (b & 0x10) == 0;
	info->read_only = (b & 0x20) != 0;
	info->fs_read_only = (b & 0x60) == 0x60;
	if (info->is_mount) {
		info->dev_major = DEVICE_MAJOR;
		info->dev_minor = DEVICE_MINOR + (b & 1);
	}
	info->total_bytes = 1 << 30;
	info->total_inodes = b;
	return 0;
}

static int fake_look(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_path_req *path = req;
	must(req_len == sizeof(*path) && *resp_len >= sizeof(struct mnt_info));
	must(strnlen(path->path, sizeof(path->path)) < sizeof(path->path));
	*resp_len = sizeof(struct mnt_info);
	return fake_info(resp);
}

/* All of them, or the call overstays, or it answers less than was asked. */
static int fake_stats_many(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_many_req *many = req;
	struct mnt_many_info *infos = resp;
	must(req_len >= offsetof(struct mnt_many_req, paths) && req_len <= sizeof(*many));
	must(many->count <= MNT_MANY_MAX && *resp_len >= many->count * sizeof(*infos));
	const char *path = many->paths, *end = (const char *)req + req_len;
	for (unsigned i = 0; i < many->count; i++) {
		size_t len = strnlen(path, (size_t)(end - path));
		must(path + len < end && len < MNT_PATH_BYTES);
		path += len + 1;
	}
	must(path == end);
	uint8_t b = fuzz_byte(&answers);
	*resp_len = 0;
	if (b >= 0xe0)
		return b % 2 == 0 ? -ETIMEDOUT : 0;
	for (unsigned i = 0; i < many->count; i++)
		infos[i].res = fake_info(&infos[i].info);
	*resp_len = many->count * sizeof(*infos);
	return 0;
}

static int fake_do(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	static const int errors[] = {-EBUSY, -EINVAL, -ETIMEDOUT, -EXDEV};
	(void)req;
	must(req_len > 0 && *resp_len >= sizeof(struct mnt_result));
	*resp_len = sizeof(struct mnt_result);
	*(struct mnt_result *)resp = (struct mnt_result){0};
	uint8_t b = fuzz_byte(&answers);
	return b >= 0xc0 ? errors[b % 4] : 0;
}

static helper_fn *const fake_calls[MNT_CALLS] = {
	[MNT_INSPECT] = fake_look,
	[MNT_MOUNT] = fake_do,
	[MNT_BIND] = fake_do,
	[MNT_UNMOUNT] = fake_do,
	[MNT_STATS] = fake_look,
	[MNT_GROW] = fake_do,
	[MNT_SYNC] = fake_do,
	[MNT_FREEZE] = fake_do,
	[MNT_THAW] = fake_do,
	[MNT_STATS_MANY] = fake_stats_many,
	[MNT_TRY_READ] = fake_do,
};

/* Nothing of this machine is touched. */
static int fault(void *arg, const char *op_name, const char *step_name)
{
	static const char *const kept_out[] = {"attach", "detach", "device", "look for device",
		"mend", "make", "mkfs", "template", "scan", "scan devices", "scan mounts",
		"grow offline", "link", "rename"};
	(void)arg;
	(void)op_name;
	for (unsigned i = 0; i < COUNT(kept_out); i++)
		if (strcmp(step_name, kept_out[i]) == 0)
			return -EIO;
	return 0;
}

static void add_object(struct pool *pool, const struct record *from)
{
	struct pool_found found = {.kind = from->kind,
		.rec = record_new(from),
		.image_bytes = from->size_bytes,
		.allocated_bytes = 4096};
	must(found.rec != NULL);
	strcpy(found.key, found.rec->key);
	struct pool_object *object = pool_index_insert(pool, &found);
	must(object != NULL);
	if (strcmp(object->key, "used") != 0)
		return;
	struct node_volume *node = node_volume_get(object);
	must(node != NULL);
	node->dev = (struct backend_dev){.attached = true,
		.major = DEVICE_MAJOR,
		.minor = DEVICE_MINOR,
		.path = "/dev/loop4000",
		.size_bytes = from->size_bytes};
	must(node_volume_add_mount(node, "/stage/used", false, false) == 0);
}

static void fill_pool(struct pool *pool)
{
	static const struct record objects[] = {
		{.name = "used", .size_bytes = 64 << 20, .fs = FSIMG_EXT4},
		{.name = "raw", .size_bytes = 1 << 30, .fs = FSIMG_NONE, .thick = true},
		{.name = "copy",
			.size_bytes = 512 << 20,
			.fs = FSIMG_XFS,
			.source = RECORD_SOURCE_SNAPSHOT,
			.source_id = "01234567.snap.0badcafe"},
		{.name = "\xE2\x82\xAC / odd", .size_bytes = 16 << 20, .fs = FSIMG_EXT4},
		{.kind = RECORD_SNAPSHOT,
			.name = "snap",
			.size_bytes = 64 << 20,
			.fs = FSIMG_EXT4,
			.source = RECORD_SOURCE_VOLUME,
			.source_id = "01234567.used.0badcafe"},
	};
	pool->state = POOL_READY;
	pool->loaded = true;
	strcpy(pool->uuid, "01234567-89ab-cdef-0123-456789abcdef");
	strcpy(pool->uuid8, "01234567");
	pool->features = (struct bytes_features){
		.tmpfile = true, .xattr = true, .fallocate = true, .reflink = true};
	pool->probed = true;
	pool->capacity_bytes = pool->free_bytes = 100ULL << 30;
	pool->measured_ns = 1;
	for (unsigned i = 0; i < COUNT(objects); i++) {
		struct record rec = objects[i];
		strcpy(rec.random, "0badcafe");
		rec.block_size = 4096;
		add_object(pool, &rec);
	}
	struct pool_found broken = {.kind = RECORD_VOLUME, .key = "broken", .why = "damaged"};
	must(pool_index_insert(pool, &broken) != NULL);
}

static void world_open(struct world *w, uint8_t how)
{
	const struct pool_config pool = {.name = "default",
		.path = "/nonexistent/pool",
		.overcommit = 1.0,
		.reserve_pct = 5};
	const struct csi_config csi = {
		.driver_name = "csi.ringvol.dev",
		.node_id = "node-1",
		.services = CSI_IDENTITY | CSI_CONTROLLER | CSI_NODE,
		.controller_expand = (how & 1) != 0,
		.csi_minor = (how & 2) != 0 ? 13 : 12,
	};
	for (unsigned i = 0; i < MNT_CALLS; i++)
		must(fake_calls[i] != NULL);
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	w->sim.seed = how;
	w->reactor.op_fault = fault;
	must(ring_open(&w->reactor.ring, &(struct ring_config){.sim = &w->sim}) == 0);
	must(work_open(&w->reactor.work, w->reactor.ring, WORK_THREADS) == 0);
	must(helpers_open(&w->reactor.helpers, w->reactor.ring, fake_calls, MNT_CALLS) == 0);
	must(pools_open(&w->pools, &w->reactor, &pool, 1) == 0);
	if ((how & 0x0c) != 0x0c)
		fill_pool(w->pools->at[0]);
	must(csi_open(&w->csi, &csi, &w->reactor, w->pools) == 0);
	w->csi->adoption[BACKEND_LOOP].known = true;
	w->csi->adoption[BACKEND_LOOP].pool_known[0] = pool_state_since_ns(w->pools->at[0]) + 1;
	w->registry = grpc_registry_new();
	must(w->registry != NULL && csi_register(w->csi, w->registry) == 0);
}

static void world_close(struct world *w)
{
	must(grpc_registry_in_flight(w->registry) == 0);
	must(w->csi->task_count == 0 && list_empty(&w->csi->tasks));
	grpc_registry_free(w->registry);
	csi_close(w->csi);
	pools_close(w->pools);
	helpers_close(w->reactor.helpers);
	work_close(w->reactor.work);
	ring_close(w->reactor.ring);
}

/* ---- calls ---- */

struct answer {
	struct grpc_local local;
	bool sent, ended;
	unsigned messages;
};

static bool is_utf8(const char *s)
{
	for (const uint8_t *p = (const uint8_t *)s; *p != 0;) {
		unsigned more = *p < 0x80    ? 0
				: *p >= 0xf0 ? 3
				: *p >= 0xe0 ? 2
				: *p >= 0xc2 ? 1
					     : 9;
		if (more == 9)
			return false;
		for (p++; more > 0; more--, p++)
			if ((*p & 0xc0) != 0x80)
				return false;
	}
	return true;
}

static void on_message(struct grpc_local *local, const uint8_t *data, size_t len)
{
	struct answer *a = container_of(local, struct answer, local);
	must(data != NULL && len <= GRPC_MESSAGE_MAX_BYTES && !a->ended);
	a->messages++;
}

static void on_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	struct answer *a = container_of(local, struct answer, local);
	char encoded[GRPC_ENCODED_MESSAGE_MAX];
	must(!a->ended);
	a->ended = true;
	must(status <= GRPC_UNAUTHENTICATED);
	must(a->messages == (status == GRPC_OK));
	must(is_utf8(message));
	must(status == GRPC_OK || message[0] != '\0');
	size_t len = grpc_wire_encode_message(message, encoded);
	must(len <= sizeof(encoded));
	for (size_t i = 0; i < len; i++)
		must(encoded[i] >= ' ' && encoded[i] < 0x7f);
}

static const ProtobufCServiceDescriptor *const services[] = {
	&csi__v1__controller__descriptor,
	&csi__v1__node__descriptor,
	&csi__v1__identity__descriptor,
};

static void send_call(struct world *w, struct fuzz *f, struct answer *a)
{
	char path[128];
	uint8_t which = fuzz_byte(f);
	const ProtobufCServiceDescriptor *service = services[which % 3];
	const ProtobufCMethodDescriptor *method =
		&service->methods[fuzz_byte(f) % service->n_methods];
	snprintf(path, sizeof(path), "/%s/%s", service->name, method->name);
	*a = (struct answer){.local = {on_message, on_end}, .sent = true};
	if ((which & 0x80) != 0) {
		size_t want = (size_t)fuzz_byte(f) << 8;
		struct fuzz raw = fuzz_take(f, want | fuzz_byte(f));
		grpc_dispatch_local(w->registry, path, raw.data, raw.len, &a->local);
		return;
	}
	struct buf request = {0};
	csi_requests_put(&request, method->input, f, (which & 0x40) != 0);
	grpc_dispatch_local(w->registry, path, request.data, request.len, &a->local);
	buf_free(&request);
}

/* With wait, time jumps to the next timer when nothing else is left to do. */
static void turn(struct world *w, bool wait)
{
	must(ring_turn(w->reactor.ring, wait) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz f = {data, len};
	struct world w = {0};
	struct answer calls[CALLS_MAX] = {0};
	world_open(&w, fuzz_byte(&f));
	answers = fuzz_take(&f, fuzz_below(&f, 32));
	for (unsigned i = 0; i < CALLS_MAX && f.len > 0; i++) {
		send_call(&w, &f, &calls[i]);
		for (unsigned n = fuzz_below(&f, 8); n > 0; n--)
			turn(&w, false);
	}
	for (unsigned i = 0; i < CALLS_MAX; i++)
		for (unsigned turns = 0; calls[i].sent && !calls[i].ended; turns++) {
			must(turns < TURNS_MAX);
			turn(&w, true);
		}
	for (unsigned turns = 0; w.csi->task_count > 0; turns++) {
		must(turns < TURNS_MAX);
		turn(&w, true);
	}
	world_close(&w);
	return 0;
}
