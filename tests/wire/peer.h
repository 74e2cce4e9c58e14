/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other end for the wire tests: an nghttp2 client session in memory, joined to an h2_conn by
 * peer_pump(), a simulated ring for its clock, and a test service with one method of each kind.
 */
#ifndef RINGVOL_TESTS_WIRE_PEER_H
#define RINGVOL_TESTS_WIRE_PEER_H

#include "base/buf.h"
#include "rpc/h2_state.h"
#include "rpc/wire.h"
#include "simring/sim.h"
#include "unit/sim_time.h"

#include "health.pb-c.h"

#include <criterion/criterion.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the test service: HealthCheckRequest both ways, because it is one string ---- */

typedef Grpc__Health__V1__HealthCheckRequest text_message;
#define TEXT_INIT GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT
#define TEXT_TYPE (&grpc__health__v1__health_check_request__descriptor)

static struct {
	struct grpc_call *held; /* by Hold, until the test ends it */
	unsigned echoes, chats, gone, checks;
	unsigned chats_last; /* the message at which Chat ends; 0: at the end of them */
	unsigned flood_left; /* messages Flood has still to send */
	size_t flood_bytes;  /* of one */
	unsigned flood_pauses;
	bool refuse; /* the check says no */
	enum grpc_status seen_status;
	char seen_method[64];
	unsigned seen;
} world __attribute__((unused));

static void test_echo(struct grpc_call *call, const ProtobufCMessage *request)
{
	world.echoes++;
	grpc_reply(call, request);
}

static void test_fail(struct grpc_call *call, const ProtobufCMessage *request)
{
	const text_message *text = (const text_message *)request;
	grpc_end(call, GRPC_FAILED_PRECONDITION, (const char *)text->service.data);
}

static void test_huge(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	text_message text = TEXT_INIT;
	text.service.len = GRPC_MESSAGE_MAX_BYTES;
	text.service.data = calloc(1, text.service.len);
	grpc_reply(call, &text.base);
	free(text.service.data);
}

static void hold_gone(struct grpc_call *call, void *arg)
{
	(void)arg;
	cr_assert(grpc_call_gone(call));
	world.gone++;
}

static void test_hold(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	cr_assert_null(world.held);
	world.held = call;
	grpc_on_gone(call, hold_gone, NULL);
}

static void flood_go(struct grpc_call *call, void *arg)
{
	(void)arg;
	text_message text = TEXT_INIT;
	text.service.len = world.flood_bytes;
	static uint8_t bytes[16384];
	text.service.data = bytes;
	bool more = true;
	while (more && world.flood_left > 0 && !grpc_call_gone(call)) {
		world.flood_left--;
		memset(bytes, (int)(world.flood_left % 256), world.flood_bytes);
		more = grpc_send(call, &text.base);
	}
	if (world.flood_left == 0 || grpc_call_gone(call))
		grpc_end(call, GRPC_OK, NULL);
	else
		world.flood_pauses++;
}

static void test_flood(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	grpc_on_writable(call, flood_go, NULL);
	flood_go(call, NULL);
}

static void chat_gone(struct grpc_call *call, void *arg)
{
	(void)arg;
	world.gone++;
	grpc_end(call, GRPC_CANCELLED, NULL);
}

static void test_chat(struct grpc_call *call, const ProtobufCMessage *request)
{
	if (request == NULL) {
		grpc_end(call, GRPC_OK, NULL);
		return;
	}
	if (++world.chats == world.chats_last) {
		grpc_end(call, GRPC_ABORTED, "enough");
		return;
	}
	grpc_on_gone(call, chat_gone, NULL);
	grpc_send(call, request);
}

static const ProtobufCMethodDescriptor test_method_descriptors[] = {
	{"Echo", TEXT_TYPE, TEXT_TYPE},
	{"Fail", TEXT_TYPE, TEXT_TYPE},
	{"Huge", TEXT_TYPE, TEXT_TYPE},
	{"Hold", TEXT_TYPE, TEXT_TYPE},
	{"Flood", TEXT_TYPE, TEXT_TYPE},
	{"Chat", TEXT_TYPE, TEXT_TYPE},
	{"Missing", TEXT_TYPE, TEXT_TYPE},
};
static const ProtobufCServiceDescriptor test_descriptor = {
	.magic = PROTOBUF_C__SERVICE_DESCRIPTOR_MAGIC,
	.name = "test.v1.Test",
	.short_name = "Test",
	.package = "test.v1",
	.n_methods = sizeof(test_method_descriptors) / sizeof(test_method_descriptors[0]),
	.methods = test_method_descriptors,
};
static const struct grpc_method test_methods[] = {
	{"Echo", test_echo},
	{"Fail", test_fail},
	{"Huge", test_huge},
	{"Hold", test_hold},
	{"Flood", test_flood},
	{"Chat", test_chat, GRPC_STREAM_IN | GRPC_ENDLESS},
	{NULL},
};
static const struct grpc_service test_service = {&test_descriptor, test_methods, &world};

static enum grpc_status test_check(const ProtobufCMessage *request, struct err *err)
{
	cr_assert_not_null(request);
	world.checks++;
	if (!world.refuse)
		return GRPC_OK;
	err_set(err, ERR_INVALID, "not like this");
	return GRPC_INVALID_ARGUMENT;
}

static void test_observe(void *arg, const char *method, enum grpc_status status, uint64_t ns)
{
	(void)arg;
	(void)ns;
	world.seen++;
	world.seen_status = status;
	strncpy(world.seen_method, method, sizeof(world.seen_method) - 1);
}

static struct grpc_registry *test_registry(void)
{
	struct grpc_registry *r = grpc_registry_new();
	cr_assert_eq(grpc_registry_add(r, &test_service, test_check), 0);
	grpc_registry_observe(r, test_observe, NULL);
	return r;
}

/* ---- the peer ---- */

enum { PEER_STREAMS = 512 };

struct answer {
	int http, grpc; /* -1: not said */
	char message[512];
	bool accept_identity, closed, trailers_only, end_stream;
	uint32_t rst; /* the code it was closed with */
	unsigned headers;
	struct buf data;
	/* the request's body and what of it was sent */
	const uint8_t *body;
	size_t body_len, body_at;
	size_t frame_max; /* bytes in one DATA frame, 0: as many as fit */
	bool stay_open;   /* no END_STREAM after the body */
};

struct peer {
	struct ring_sim sim;
	struct ring *ring;
	struct grpc_registry *registry;
	struct server_limits limits;
	struct h2_turns own_turns, *turns; /* its own, or another peer's */
	bool tcp;                          /* nghttp2 makes its checks */
	const struct grpc_peer *as;        /* by its certificate; NULL: it has none */
	struct session *session;
	nghttp2_session *client;
	size_t chunk; /* bytes fed at a time, 0: all */
	bool deaf;    /* what the server sends is left there */
	bool inside;  /* in feed() or output(): on_wake is not allowed */
	unsigned wakes;
	int fed; /* the last result of feed() */
	bool goaway;
	uint32_t goaway_code;
	int32_t goaway_last;
	char goaway_debug[64];
	unsigned pongs;
	struct answer answers[PEER_STREAMS]; /* by stream id / 2 */
};

static struct answer *answer_at(struct peer *p, int32_t id)
{
	cr_assert(id > 0 && id / 2 < PEER_STREAMS);
	return &p->answers[id / 2];
}

static int peer_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
	size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags, void *arg)
{
	(void)session;
	(void)flags;
	(void)name_len;
	struct answer *a = answer_at(arg, frame->hd.stream_id);
	const char *n = (const char *)name, *v = (const char *)value;
	if (strcmp(n, ":status") == 0)
		a->http = atoi(v);
	else if (strcmp(n, "grpc-status") == 0)
		a->grpc = atoi(v);
	else if (strcmp(n, "grpc-message") == 0)
		snprintf(a->message, sizeof(a->message), "%.*s", (int)value_len, v);
	else if (strcmp(n, "grpc-accept-encoding") == 0)
		a->accept_identity = strcmp(v, "identity") == 0;
	return 0;
}

static int peer_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
	size_t len, void *arg)
{
	(void)session;
	(void)flags;
	cr_assert_eq(buf_append(&answer_at(arg, id)->data, data, len), 0);
	return 0;
}

static int peer_on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
	(void)session;
	struct peer *p = arg;
	struct answer *a;
	switch (frame->hd.type) {
	case NGHTTP2_HEADERS:
		a = answer_at(p, frame->hd.stream_id);
		a->headers++;
		a->end_stream = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
		a->trailers_only = a->headers == 1 && a->end_stream;
		break;
	case NGHTTP2_PING:
		p->pongs += (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0;
		break;
	case NGHTTP2_GOAWAY:
		p->goaway = true;
		p->goaway_code = frame->goaway.error_code;
		p->goaway_last = frame->goaway.last_stream_id;
		snprintf(p->goaway_debug, sizeof(p->goaway_debug), "%.*s",
			(int)frame->goaway.opaque_data_len,
			frame->goaway.opaque_data_len > 0 ? (char *)frame->goaway.opaque_data : "");
		break;
	default:
		break;
	}
	return 0;
}

static int peer_on_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
	(void)session;
	struct answer *a = answer_at(arg, id);
	a->closed = true;
	a->rst = code;
	return 0;
}

static void peer_on_wake(void *arg)
{
	struct peer *p = arg;
	cr_assert_not(p->inside, "on_wake from inside feed() or output()");
	p->wakes++;
}

static void peer_connect(struct peer *p)
{
	nghttp2_session_callbacks *callbacks;
	nghttp2_option *option;
	cr_assert_eq(nghttp2_session_callbacks_new(&callbacks), 0);
	cr_assert_eq(nghttp2_option_new(&option), 0);
	nghttp2_session_callbacks_set_on_header_callback(callbacks, peer_on_header);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, peer_on_data);
	nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, peer_on_frame);
	nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, peer_on_close);
	nghttp2_option_set_no_http_messaging(option, 1); /* malformed requests are sent, too */
	cr_assert_eq(nghttp2_session_client_new2(&p->client, callbacks, p, option), 0);
	nghttp2_option_del(option);
	nghttp2_session_callbacks_del(callbacks);
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, NULL, 0), 0);
	struct h2_config config = {
		.ring = p->ring,
		.registry = p->registry,
		.limits = &p->limits,
		.turns = p->turns,
		.host_may_be_path = !p->tcp,
		.peer = p->as,
		.on_wake = peer_on_wake,
		.arg = p,
	};
	cr_assert_eq(h2_session_new(&config, &p->session), 0);
	for (unsigned i = 0; i < PEER_STREAMS; i++)
		p->answers[i] = (struct answer){.http = -1, .grpc = -1};
}

static inline struct peer *peer_new(void)
{
	struct peer *p = calloc(1, sizeof(*p));
	p->sim.seed = 1;
	p->limits = server_limits_default;
	cr_assert_eq(ring_sim_open(&p->ring, &p->sim), 0);
	p->registry = test_registry();
	p->turns = &p->own_turns;
	h2_turns_init(p->turns, p->ring);
	peer_connect(p);
	return p;
}

/* How many streams its connection has open. */
static inline unsigned peer_streams(const struct peer *p)
{
	return container_of(p->session, struct h2_conn, base)->stream_count;
}

static inline void peer_free(struct peer *p)
{
	if (p->session != NULL)
		p->session->ops->free(p->session);
	nghttp2_session_del(p->client);
	while (p->turns->go.armed)
		ring_turn(p->ring, false);
	for (unsigned i = 0; i < PEER_STREAMS; i++)
		buf_free(&p->answers[i].data);
	cr_assert_eq(grpc_registry_memory(p->registry), 0);
	grpc_registry_free(p->registry);
	ring_close(p->ring);
	free(p);
}

/* A connection anew, with other limits. */
static inline void peer_reconnect(struct peer *p)
{
	p->session->ops->free(p->session);
	nghttp2_session_del(p->client);
	for (unsigned i = 0; i < PEER_STREAMS; i++)
		buf_free(&p->answers[i].data);
	p->goaway = false;
	p->goaway_code = 0;
	p->pongs = 0;
	p->fed = 0;
	peer_connect(p);
}

static void peer_feed(struct peer *p, const uint8_t *data, size_t len)
{
	for (size_t n; len > 0 && p->fed == 0; data += n, len -= n) {
		n = p->chunk != 0 && p->chunk < len ? p->chunk : len;
		p->inside = true;
		p->fed = p->session->ops->feed(p->session, data, n);
		p->inside = false;
	}
}

/* Moves bytes both ways until neither side has any. */
static inline void peer_pump(struct peer *p)
{
	for (bool moved = true; moved;) {
		const uint8_t *data;
		ssize_t n;
		moved = false;
		while ((n = nghttp2_session_mem_send(p->client, &data)) > 0) {
			peer_feed(p, data, (size_t)n);
			moved = true;
		}
		cr_assert_eq(n, 0);
		if (p->deaf)
			continue;
		struct buf out = {0};
		p->inside = true;
		p->session->ops->output(p->session, &out, 16384);
		p->inside = false;
		if (out.len > 0) {
			n = nghttp2_session_mem_recv(p->client, out.data, out.len);
			cr_assert_eq(n, (ssize_t)out.len, "%s", nghttp2_strerror((int)n));
			moved = true;
		}
		buf_free(&out);
		if (p->turns->go.armed) { /* calls wait for the next turn of the loop */
			cr_assert_eq(ring_turn(p->ring, false), 0);
			moved = true;
		}
	}
}

static inline void peer_advance(struct peer *p, uint64_t ms)
{
	sim_pass_ms(p->ring, ms);
	peer_pump(p);
}

/* ---- requests ---- */

static ssize_t peer_read_body(nghttp2_session *session, int32_t id, uint8_t *to, size_t len,
	uint32_t *flags, nghttp2_data_source *source, void *arg)
{
	(void)session;
	(void)id;
	(void)arg;
	struct answer *a = source->ptr;
	size_t n = a->body_len - a->body_at;
	if (n == 0 && a->stay_open)
		return NGHTTP2_ERR_DEFERRED;
	if (n > len)
		n = len;
	if (a->frame_max != 0 && n > a->frame_max)
		n = a->frame_max;
	memcpy(to, a->body + a->body_at, n);
	a->body_at += n;
	if (a->body_at == a->body_len && !a->stay_open)
		*flags |= NGHTTP2_DATA_FLAG_EOF;
	return (ssize_t)n;
}

/* Headers beside the usual ones: name, value, ..., NULL. A usual one's name replaces it, with the
 * value "" it is left out. */
#define usual(...) ((const char *const[]){__VA_ARGS__, NULL})

struct request {
	const char *path;
	const char *const *extra;
	const void *body;
	size_t len;
	size_t frame_max;
	bool stay_open, no_body;
};

static inline int32_t peer_request(struct peer *p, const struct request *r)
{
	const char *base[][2] = {{":method", "POST"}, {":scheme", "http"}, {":path", r->path},
		{":authority", "localhost"}, {"content-type", "application/grpc"},
		{"te", "trailers"}};
	nghttp2_nv nv[64];
	size_t count = 0;
	for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++) {
		const char *value = base[i][1];
		for (const char *const *e = r->extra; e != NULL && *e != NULL; e += 2)
			value = strcmp(e[0], base[i][0]) == 0 ? e[1] : value;
		if (value[0] != '\0')
			nv[count++] = (nghttp2_nv){(uint8_t *)base[i][0], (uint8_t *)value,
				strlen(base[i][0]), strlen(value), 0};
	}
	for (const char *const *e = r->extra; e != NULL && *e != NULL; e += 2) {
		bool known = false;
		for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++)
			known |= strcmp(e[0], base[i][0]) == 0;
		if (!known)
			nv[count++] = (nghttp2_nv){
				(uint8_t *)e[0], (uint8_t *)e[1], strlen(e[0]), strlen(e[1]), 0};
	}
	int32_t id = (int32_t)nghttp2_session_get_next_stream_id(p->client);
	struct answer *a = answer_at(p, id);
	a->body = r->body;
	a->body_len = r->len;
	a->frame_max = r->frame_max;
	a->stay_open = r->stay_open;
	nghttp2_data_provider provider = {.source.ptr = a, .read_callback = peer_read_body};
	int32_t got = nghttp2_submit_request(
		p->client, NULL, nv, count, r->no_body ? NULL : &provider, NULL);
	cr_assert_eq(got, id);
	return id;
}

/* Appends a framed text message. */
static void text_frame(struct buf *b, const void *text, size_t len)
{
	text_message m = TEXT_INIT;
	m.service.data = (uint8_t *)text;
	m.service.len = len;
	size_t size = protobuf_c_message_get_packed_size(&m.base);
	uint8_t *to = buf_reserve(b, GRPC_PREFIX_BYTES + size);
	grpc_wire_put_prefix(to, (uint32_t)size);
	protobuf_c_message_pack(&m.base, to + GRPC_PREFIX_BYTES);
	b->len += GRPC_PREFIX_BYTES + size;
}

/* One unary call through and through. The text must live until the answer. */
static inline int32_t peer_call(
	struct peer *p, const char *path, const char *text, const char *const *extra)
{
	struct buf b = {0};
	text_frame(&b, text, strlen(text));
	int32_t id = peer_request(
		p, &(struct request){.path = path, .extra = extra, .body = b.data, .len = b.len});
	peer_pump(p);
	buf_free(&b);
	return id;
}

#define assert_answer(p, id, status)                                                               \
	do {                                                                                       \
		const struct answer *a_ = answer_at(p, id);                                        \
		cr_assert_eq(a_->grpc, (int)(status),                                              \
			"stream %d: grpc-status %d, \"%s\", http %d, "                             \
			"rst %u",                                                                  \
			id, a_->grpc, a_->message, a_->http, a_->rst);                             \
		cr_assert_eq(a_->http, 200);                                                       \
	} while (0)

/* The stream's answer is exactly one message with this text. */
static inline void assert_text(struct peer *p, int32_t id, const void *text, size_t len)
{
	struct buf want = {0};
	text_frame(&want, text, len);
	const struct answer *a = answer_at(p, id);
	assert_answer(p, id, GRPC_OK);
	cr_assert_eq(a->data.len, want.len);
	cr_assert_eq(memcmp(a->data.data, want.data, want.len), 0);
	buf_free(&want);
}

#endif
