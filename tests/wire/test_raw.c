/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose messages are passed on as bytes, and answers that are packed already. */
#include "peer.h"

#include "rpc/grpc_local.h"

static struct peer *p;

static struct {
	struct grpc_call *held;
	struct buf got; /* by the last run */
	unsigned runs, ends;
	bool answer_with_error, hold;
	unsigned flood_left;
} raw;

static void raw_echo(struct grpc_call *call, const ProtobufCMessage *request)
{
	size_t len;
	const uint8_t *data = grpc_call_bytes(call, &len);
	cr_assert_null(request);
	cr_assert_not_null(data);
	raw.runs++;
	raw.got.len = 0;
	buf_append(&raw.got, data, len);
	if (raw.hold)
		raw.held = call;
	else
		grpc_reply_bytes(call, data, len);
}

/* Each message comes back; the end is answered with OK. */
static void raw_chat(struct grpc_call *call, const ProtobufCMessage *request)
{
	size_t len;
	const uint8_t *data = grpc_call_bytes(call, &len);
	cr_assert_null(request);
	if (data == NULL) {
		raw.ends++;
		cr_assert_eq(len, 0);
		grpc_end(call, GRPC_OK, NULL);
		return;
	}
	raw.runs++;
	grpc_send_bytes(call, data, len);
}

static void raw_huge(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	static uint8_t bytes[GRPC_MESSAGE_MAX_BYTES + 1];
	size_t len;
	grpc_call_bytes(call, &len);
	if (len == 0) {
		grpc_reply_bytes(call, bytes, sizeof(bytes));
		return;
	}
	cr_assert(grpc_send_bytes(call, bytes, sizeof(bytes)));
	cr_assert_not(grpc_call_gone(call));
	raw.held = call;
}

static void raw_flood_go(struct grpc_call *call, void *arg)
{
	(void)arg;
	static uint8_t bytes[10000];
	while (raw.flood_left > 0) {
		raw.flood_left--;
		if (!grpc_send_bytes(call, bytes, sizeof(bytes)))
			return;
	}
	grpc_end(call, GRPC_OK, NULL);
}

static void raw_flood(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	grpc_on_writable(call, raw_flood_go, NULL);
	raw_flood_go(call, NULL);
}

static const ProtobufCMethodDescriptor raw_descriptors[] = {
	{"Echo", TEXT_TYPE, TEXT_TYPE},
	{"Chat", TEXT_TYPE, TEXT_TYPE},
	{"Huge", TEXT_TYPE, TEXT_TYPE},
	{"Flood", TEXT_TYPE, TEXT_TYPE},
};
static const ProtobufCServiceDescriptor raw_descriptor = {
	.magic = PROTOBUF_C__SERVICE_DESCRIPTOR_MAGIC,
	.name = "test.v1.Raw",
	.short_name = "Raw",
	.package = "test.v1",
	.n_methods = sizeof(raw_descriptors) / sizeof(raw_descriptors[0]),
	.methods = raw_descriptors,
};
static const struct grpc_method raw_methods[] = {
	{"Echo", raw_echo, GRPC_RAW},
	{"Chat", raw_chat, GRPC_RAW | GRPC_STREAM_IN},
	{"Huge", raw_huge, GRPC_RAW},
	{"Flood", raw_flood, GRPC_RAW},
	{NULL},
};
static const struct grpc_service raw_service = {&raw_descriptor, raw_methods};

static void setup(void)
{
	p = peer_new();
	cr_assert_eq(grpc_registry_add(p->registry, &raw_service, test_check), 0);
}

static void teardown(void)
{
	cr_assert_eq(grpc_registry_in_flight(p->registry), 0);
	peer_free(p);
	buf_free(&raw.got);
}

TestSuite(raw, .init = setup, .fini = teardown);

static int32_t ask(const char *path, const void *data, size_t len)
{
	struct buf b = {0};
	uint8_t *to = buf_reserve(&b, GRPC_PREFIX_BYTES + len);
	grpc_wire_put_prefix(to, (uint32_t)len);
	if (len > 0)
		memcpy(to + GRPC_PREFIX_BYTES, data, len);
	int32_t id = peer_request(
		p, &(struct request){.path = path, .body = b.data, .len = GRPC_PREFIX_BYTES + len});
	peer_pump(p);
	buf_free(&b);
	return id;
}

static void assert_bytes(int32_t id, const void *data, size_t len)
{
	const struct answer *a = answer_at(p, id);
	assert_answer(p, id, GRPC_OK);
	cr_assert_eq(a->data.len, GRPC_PREFIX_BYTES + len);
	cr_assert_eq(grpc_wire_get_length(a->data.data), len);
	cr_assert_eq(memcmp(a->data.data + GRPC_PREFIX_BYTES, data, len), 0);
}

/* Not a message of the method's type, and passed on all the same: it is not looked at. */
Test(raw, bytes_are_not_decoded_and_not_checked)
{
	static const uint8_t bytes[] = {0xff, 0xff, 0x00, 0x01};
	world.refuse = true;
	assert_bytes(ask("/test.v1.Raw/Echo", bytes, sizeof(bytes)), bytes, sizeof(bytes));
	cr_assert_eq(world.checks, 0);
	cr_assert_eq(raw.runs, 1);
}

Test(raw, an_empty_message_is_a_message)
{
	assert_bytes(ask("/test.v1.Raw/Echo", "", 0), "", 0);
	cr_assert_eq(raw.got.len, 0);
}

Test(raw, over_many_frames)
{
	struct buf b = {0};
	size_t len = 300000;
	uint8_t *to = buf_reserve(&b, len);
	for (size_t i = 0; i < len; i++)
		to[i] = (uint8_t)(i * 7);
	assert_bytes(ask("/test.v1.Raw/Echo", to, len), to, len);
	buf_free(&b);
}

Test(raw, two_messages_in_a_unary_request_are_refused)
{
	static const uint8_t two[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
	for (size_t frame = 5; frame <= 10; frame += 5) {
		int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Raw/Echo",
						     .body = two,
						     .len = sizeof(two),
						     .frame_max = frame});
		peer_pump(p);
		assert_answer(p, id, GRPC_INTERNAL);
	}
	cr_assert_eq(raw.runs, 0);
}

/* What the method keeps counts, and is given back when the call ends. */
Test(raw, bytes_count_until_the_call_ends)
{
	static uint8_t bytes[100000];
	raw.hold = true;
	int32_t id = ask("/test.v1.Raw/Echo", bytes, sizeof(bytes));
	cr_assert_geq(grpc_registry_memory(p->registry), sizeof(bytes));
	size_t len;
	cr_assert_not_null(grpc_call_bytes(raw.held, &len));
	cr_assert_eq(len, sizeof(bytes));
	grpc_reply_bytes(raw.held, bytes, 3);
	peer_pump(p);
	assert_bytes(id, bytes, 3);
	cr_assert_eq(grpc_registry_memory(p->registry), 0);
}

Test(raw, too_much_is_refused)
{
	static uint8_t bytes[4 << 20];
	raw.hold = true;
	unsigned kept = 0;
	struct grpc_call *held[32];
	int32_t id = 0;
	while (kept < 32) {
		raw.held = NULL;
		id = ask("/test.v1.Raw/Echo", bytes, sizeof(bytes));
		if (raw.held == NULL)
			break;
		held[kept++] = raw.held;
	}
	cr_assert(kept >= 8 && kept < 16, "%u", kept);
	assert_answer(p, id, GRPC_RESOURCE_EXHAUSTED);
	for (unsigned i = 0; i < kept; i++)
		grpc_end(held[i], GRPC_ABORTED, NULL);
	peer_pump(p);
}

Test(raw, streams_in_and_out)
{
	struct buf b = {0};
	text_frame(&b, "one", 3);
	text_frame(&b, "", 0); /* an empty message, not the end */
	text_frame(&b, "three", 5);
	for (size_t frame = 1; frame <= b.len; frame++) {
		raw.runs = raw.ends = 0;
		int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Raw/Chat",
						     .body = b.data,
						     .len = b.len,
						     .frame_max = frame});
		peer_pump(p);
		assert_answer(p, id, GRPC_OK);
		cr_assert_eq(raw.runs, 3);
		cr_assert_eq(raw.ends, 1);
		const struct answer *a = answer_at(p, id);
		cr_assert_eq(a->data.len, b.len);
		cr_assert_eq(memcmp(a->data.data, b.data, b.len), 0);
	}
	buf_free(&b);
}

Test(raw, an_answer_is_not_larger_than_4_mib)
{
	int32_t id = ask("/test.v1.Raw/Huge", "", 0);
	assert_answer(p, id, GRPC_RESOURCE_EXHAUSTED);
	id = ask("/test.v1.Raw/Huge", "x", 1);
	assert_answer(p, id, GRPC_RESOURCE_EXHAUSTED);
	grpc_end(raw.held, GRPC_OK, NULL);
}

/* Stops at what waits, goes on when it is read. */
Test(raw, a_slow_reader_pauses_it)
{
	raw.flood_left = 100;
	p->deaf = true;
	int32_t id = ask("/test.v1.Raw/Flood", "", 0);
	cr_assert_gt(raw.flood_left, 50);
	p->deaf = false;
	peer_pump(p);
	assert_answer(p, id, GRPC_OK);
	cr_assert_eq(answer_at(p, id)->data.len, 100 * (10000 + GRPC_PREFIX_BYTES));
}

/* The client has left: what is answered goes nowhere, the bytes are there until the end. */
Test(raw, a_client_that_leaves)
{
	raw.hold = true;
	int32_t id = ask("/test.v1.Raw/Echo", "abc", 3);
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
	peer_pump(p);
	size_t len;
	cr_assert(grpc_call_gone(raw.held));
	cr_assert_eq(memcmp(grpc_call_bytes(raw.held, &len), "abc", 3), 0);
	cr_assert(grpc_send_bytes(raw.held, (const uint8_t *)"x", 1));
	grpc_reply_bytes(raw.held, (const uint8_t *)"x", 1);
	cr_assert_eq(answer_at(p, id)->data.len, 0);
}
