/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that the driver makes of itself: what becomes of a refusal, which are made again and for
 * how long, and what the calls of a volume's user ask for. And how errors become statuses. */
#include "peer.h"

#include "csi.pb-c.h"
#include "csi/messages.h"
#include "csi/own_use.h"
#include "csi/status.h"
#include "pool/private.h"
#include "reactor/op.h"

#include <errno.h>

enum { PATIENCE_MS = 1000 };

static struct ring_sim sim = {.seed = 1};
static struct reactor reactor;
static struct op op;
static struct csi_own_call own;
static bool draining, ended;

/* ---- who is called ---- */

static enum grpc_status status;
static const char *message;
static unsigned calls, refusals; /* so many calls are refused, then one is answered */
static char asked[64];
static uint8_t request[256];
static size_t request_len;

static void answer(struct grpc_call *call, const ProtobufCMessage *req)
{
	Csi__V1__NodeStageVolumeResponse response = CSI__V1__NODE_STAGE_VOLUME_RESPONSE__INIT;
	calls++;
	snprintf(asked, sizeof(asked), "%s", grpc_call_method(call));
	request_len = protobuf_c_message_pack(req, request);
	if (refusals == 0) {
		grpc_reply(call, &response.base);
		return;
	}
	refusals--;
	grpc_end(call, status, message);
}

static const struct grpc_method methods[] = {{"NodeStageVolume", answer},
	{"NodeUnstageVolume", answer}, {"NodePublishVolume", answer},
	{"NodeUnpublishVolume", answer}, {NULL}};
static const struct grpc_service service = {&csi__v1__node__descriptor, methods, NULL};

/* ---- who calls ---- */

static const struct csi_own_use *use;
static int (*asks)(struct csi_own_call *call, const struct csi_own_use *use);

static int call_run(struct op *this)
{
	(void)this;
	return asks(&own, use);
}

static int call_end(struct op *this, int res)
{
	(void)this;
	return csi_own_call_end(&own, res);
}

static const struct op_step steps[] = {{"call", .run = call_run, .end = call_end}, {NULL}};

static void on_end(struct op *this)
{
	(void)this;
	ended = true;
}

static void setup(void)
{
	cr_assert_eq(ring_sim_open(&reactor.ring, &sim), 0);
	own = (struct csi_own_call){.op = &op,
		.arena = arena_new(0),
		.registry = grpc_registry_new(),
		.patience_ms = PATIENCE_MS,
		.draining = &draining};
	cr_assert_eq(grpc_registry_add(own.registry, &service, NULL), 0);
}

static void teardown(void)
{
	arena_unref(own.arena);
	grpc_registry_free(own.registry);
	ring_close(reactor.ring);
}

TestSuite(own_call, .init = setup, .fini = teardown, .timeout = 60);

/* How it ends, and how long that took in ms. */
static uint64_t run(void)
{
	uint64_t began_ns = ring_now_ns(reactor.ring);
	ended = false;
	calls = 0;
	op_init(&op, &reactor, "test", steps, on_end);
	op_start(&op);
	while (!ended)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	return (ring_now_ns(reactor.ring) - began_ns) / 1000000;
}

static const struct csi_own_use mounts = {.id = "aaaaaaaa.v.00000001",
	.stage_path = "/stage",
	.target_path = "/target",
	.staged = true};

/* ---- refusals ---- */

Test(own_call, a_refusal_is_the_operations)
{
	static const struct {
		enum grpc_status status;
		enum err_code code;
	} table[] = {
		{GRPC_INVALID_ARGUMENT, ERR_INVALID},
		{GRPC_OUT_OF_RANGE, ERR_INVALID},
		{GRPC_NOT_FOUND, ERR_NOT_FOUND},
		{GRPC_ALREADY_EXISTS, ERR_EXISTS},
		{GRPC_RESOURCE_EXHAUSTED, ERR_NO_ROOM},
		{GRPC_FAILED_PRECONDITION, ERR_PRECONDITION},
		{GRPC_INTERNAL, ERR_INTERNAL},
		{GRPC_DATA_LOSS, ERR_INTERNAL},
		{GRPC_DEADLINE_EXCEEDED, ERR_INTERNAL},
		{GRPC_UNIMPLEMENTED, ERR_INTERNAL},
	};
	use = &mounts;
	asks = csi_own_stage;
	message = "why not";
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		status = table[i].status;
		refusals = 1;
		(void)run();
		cr_expect_eq(op.err.code, table[i].code, "of %d", status);
		cr_expect_str_eq(op.err.message, "why not");
		cr_expect_eq(calls, 1, "it is not asked again");
	}
	(void)run();
	cr_expect_eq(op.err.code, ERR_OK);
	cr_expect_eq(calls, 1);
}

/* What is in the way, or not there yet, is waited for: for so long, and not while the driver ends.
 */
Test(own_call, is_made_again_with_patience)
{
	static const struct {
		enum grpc_status status;
		enum err_code code;
	} table[] = {{GRPC_ABORTED, ERR_PENDING}, {GRPC_UNAVAILABLE, ERR_UNAVAILABLE}};
	use = &mounts;
	asks = csi_own_stage;
	message = "later";
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		status = table[i].status;
		refusals = 3;
		uint64_t took_ms = run();
		cr_expect_eq(op.err.code, ERR_OK, "%s", op.err.message);
		cr_expect_eq(calls, 4);
		cr_expect(took_ms >= 3 * CSI_OWN_RETRY_MS && took_ms < 4 * CSI_OWN_RETRY_MS);
		refusals = UINT32_MAX;
		took_ms = run();
		cr_expect_eq(op.err.code, table[i].code);
		cr_expect_str_eq(op.err.message, "later");
		cr_expect_eq(calls, PATIENCE_MS / CSI_OWN_RETRY_MS + 1);
		cr_expect(took_ms >= PATIENCE_MS && took_ms < PATIENCE_MS + CSI_OWN_RETRY_MS);
		draining = true;
		(void)run();
		cr_expect_eq(op.err.code, table[i].code);
		cr_expect_eq(calls, 1);
		draining = false;
	}
}

/* ---- what is asked for ---- */

static void asked_for(const char *method, const ProtobufCMessage *want)
{
	uint8_t bytes[256];
	(void)run();
	cr_expect_eq(op.err.code, ERR_OK, "%s", op.err.message);
	cr_expect_eq(calls, 1);
	cr_expect_str_eq(asked, method);
	size_t len = protobuf_c_message_pack(want, bytes);
	cr_expect(len == request_len && memcmp(bytes, request, len) == 0, "%s", method);
}

static void each_call(const struct csi_own_use *of)
{
	Csi__V1__NodeStageVolumeRequest stage = CSI__V1__NODE_STAGE_VOLUME_REQUEST__INIT;
	Csi__V1__NodeUnstageVolumeRequest unstage = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	Csi__V1__NodePublishVolumeRequest publish = CSI__V1__NODE_PUBLISH_VOLUME_REQUEST__INIT;
	Csi__V1__NodeUnpublishVolumeRequest unpublish =
		CSI__V1__NODE_UNPUBLISH_VOLUME_REQUEST__INIT;
	stage.volume_id = unstage.volume_id = publish.volume_id = unpublish.volume_id =
		csi_bytes(of->id);
	stage.staging_target_path = unstage.staging_target_path = csi_bytes(of->stage_path);
	if (of->staged)
		publish.staging_target_path = csi_bytes(of->stage_path);
	publish.target_path = unpublish.target_path = csi_bytes(of->target_path);
	stage.volume_capability = publish.volume_capability = csi_own_capability(of->block);
	use = of;
	asks = csi_own_stage;
	asked_for("NodeStageVolume", &stage.base);
	asks = csi_own_publish;
	asked_for("NodePublishVolume", &publish.base);
	asks = csi_own_unpublish;
	asked_for("NodeUnpublishVolume", &unpublish.base);
	asks = csi_own_unstage;
	asked_for("NodeUnstageVolume", &unstage.base);
}

Test(own_call, of_a_volumes_user)
{
	struct csi_own_use of = mounts;
	each_call(&of);
	of.block = true;
	each_call(&of);
	of.staged = false;
	each_call(&of);
	const Csi__V1__VolumeCapability *as_mount = csi_own_capability(false),
					*as_block = csi_own_capability(true);
	cr_expect_eq(as_mount->access_type_case, CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT);
	cr_expect_eq(as_block->access_type_case, CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK);
	cr_expect(as_mount->mount != NULL && as_block->block != NULL);
	for (unsigned i = 0; i < 2; i++)
		cr_expect_eq((i == 0 ? as_mount : as_block)->access_mode->mode,
			CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_MULTI_WRITER);
}

/* Of a volume that has no id nothing is asked, and what has failed stays the reason. */
Test(own_call, of_no_volume)
{
	static int (*const all[])(struct csi_own_call *, const struct csi_own_use *) = {
		csi_own_stage, csi_own_publish, csi_own_unpublish, csi_own_unstage};
	static const struct csi_own_use none = {.stage_path = "/stage", .target_path = "/target"};
	use = &none;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		asks = all[i];
		(void)run();
		cr_expect_neq(op.err.code, ERR_OK);
		cr_expect_eq(calls, 0);
	}
}

Test(own_call, a_volumes_id)
{
	char name[] = "fast";
	struct record rec = {.name = "v", .key = "v", .random = "00000001", .born = ""};
	struct pool pool = {.name = name, .uuid8 = "aaaaaaaa"};
	struct pool_object volume = {.pool = &pool, .key = "v", .why = "its record is damaged"};
	op_init(&op, &reactor, "test", steps, on_end);
	cr_expect_null(csi_own_id(&op, own.arena, &volume, "web"));
	cr_expect_eq(op.err.code, ERR_DATA_LOSS);
	cr_expect_str_eq(op.err.message,
		"volume web is quarantined in pool fast: its record is damaged; see ringvol check");
	op_init(&op, &reactor, "test", steps, on_end);
	volume.rec = &rec;
	cr_expect_str_eq(csi_own_id(&op, own.arena, &volume, "web"), "aaaaaaaa.v.00000001");
	cr_expect_eq(op.err.code, ERR_OK);
}

/* ---- statuses ---- */

Test(status, of_each_error)
{
	static const enum grpc_status statuses[] = {
		[ERR_OK] = GRPC_OK,
		[ERR_INVALID] = GRPC_INVALID_ARGUMENT,
		[ERR_NOT_FOUND] = GRPC_NOT_FOUND,
		[ERR_EXISTS] = GRPC_ALREADY_EXISTS,
		[ERR_PENDING] = GRPC_ABORTED,
		[ERR_NO_ROOM] = GRPC_RESOURCE_EXHAUSTED,
		[ERR_RANGE] = GRPC_OUT_OF_RANGE,
		[ERR_PRECONDITION] = GRPC_FAILED_PRECONDITION,
		[ERR_TIMEOUT] = GRPC_DEADLINE_EXCEEDED,
		[ERR_UNAVAILABLE] = GRPC_UNAVAILABLE,
		[ERR_UNIMPLEMENTED] = GRPC_UNIMPLEMENTED,
		[ERR_DATA_LOSS] = GRPC_DATA_LOSS,
		[ERR_KEY] = GRPC_UNAUTHENTICATED,
		[ERR_INTERNAL] = GRPC_INTERNAL,
	};
	for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
		cr_expect_eq(csi_status((enum err_code)i), statuses[i], "%s",
			err_code_name((enum err_code)i));
}
