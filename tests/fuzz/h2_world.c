/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Services live as long as the process; ring, connection and calls as long as one input. At the end
 * every call has been ended and nothing of the connection may be left: leaks are the sanitizer's to
 * find, calls in flight are counted here.
 */
#include "h2_world.h"

#include "base/log.h"
#include "csi/request.h"
#include "csi/services.h"
#include "descriptor_set.h"
#include "health.pb-c.h"
#include "pool/pools.h"
#include "rpc/h2_state.h"
#include "rpc/health.h"
#include "rpc/reflection.h"
#include "rpc/wire.h"

#include <string.h>

typedef Grpc__Health__V1__HealthCheckRequest text_message;
#define TEXT_INIT GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT
#define TEXT_TYPE (&grpc__health__v1__health_check_request__descriptor)

static struct {
	struct grpc_registry *registry;
	struct health *health;
	struct reactor reactor;
	struct csi *csi;
	struct grpc_call *held[H2_WORLD_HELD];
	unsigned held_count;
	uint64_t observed;
} services;

/* ---- the toy service: a text both ways ---- */

static void toy_echo(struct grpc_call *call, const ProtobufCMessage *request)
{
	grpc_reply(call, request);
}

/* The end's message is the client's own text. */
static void toy_fail(struct grpc_call *call, const ProtobufCMessage *request)
{
	const text_message *text = (const text_message *)request;
	const char *message =
		text->service.data != NULL ? (const char *)text->service.data : "nothing";
	grpc_end(call, GRPC_FAILED_PRECONDITION, message);
}

static void hold_gone(struct grpc_call *call, void *arg)
{
	(void)arg;
	must(grpc_call_gone(call));
}

static void toy_hold(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	if (services.held_count == H2_WORLD_HELD) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "enough");
		return;
	}
	services.held[services.held_count++] = call;
	grpc_on_gone(call, hold_gone, NULL);
}

struct flood {
	unsigned left;
};

static void flood_go(struct grpc_call *call, void *arg)
{
	struct flood *flood = arg;
	static uint8_t zeros[5000];
	text_message text = TEXT_INIT;
	text.service = (ProtobufCBinaryData){sizeof(zeros), zeros};
	while (flood->left > 0 && !grpc_call_gone(call)) {
		flood->left--;
		if (!grpc_send(call, &text.base))
			return;
	}
	grpc_end(call, GRPC_OK, NULL);
}

/* As many messages of 5 kB as the text has bytes. */
static void toy_flood(struct grpc_call *call, const ProtobufCMessage *request)
{
	struct flood *flood = arena_new_of(grpc_call_arena(call), struct flood);
	must(flood != NULL);
	flood->left = (unsigned)((const text_message *)request)->service.len;
	grpc_on_writable(call, flood_go, flood);
	flood_go(call, flood);
}

static void chat_gone(struct grpc_call *call, void *arg)
{
	(void)arg;
	grpc_end(call, GRPC_CANCELLED, NULL);
}

/* Answers each message; one that begins with '!' ends the call. */
static void toy_chat(struct grpc_call *call, const ProtobufCMessage *request)
{
	const text_message *text = (const text_message *)request;
	if (text == NULL) {
		grpc_end(call, GRPC_OK, NULL);
		return;
	}
	grpc_on_gone(call, chat_gone, NULL);
	if (text->service.len > 0 && text->service.data[0] == '!')
		grpc_end(call, GRPC_ABORTED, "asked for");
	else
		grpc_send(call, request);
}

static const ProtobufCMethodDescriptor toy_method_descriptors[] = {
	{"Echo", TEXT_TYPE, TEXT_TYPE},
	{"Fail", TEXT_TYPE, TEXT_TYPE},
	{"Hold", TEXT_TYPE, TEXT_TYPE},
	{"Flood", TEXT_TYPE, TEXT_TYPE},
	{"Chat", TEXT_TYPE, TEXT_TYPE},
};
static const ProtobufCServiceDescriptor toy_descriptor = {
	.magic = PROTOBUF_C__SERVICE_DESCRIPTOR_MAGIC,
	.name = "toy.Toy",
	.short_name = "Toy",
	.package = "toy",
	.n_methods = sizeof(toy_method_descriptors) / sizeof(toy_method_descriptors[0]),
	.methods = toy_method_descriptors,
};
static const struct grpc_method toy_methods[] = {
	{"Echo", toy_echo},
	{"Fail", toy_fail},
	{"Hold", toy_hold},
	{"Flood", toy_flood},
	{"Chat", toy_chat, GRPC_STREAM_IN},
	{NULL},
};
static const struct grpc_service toy_service = {&toy_descriptor, toy_methods, NULL};

/* ---- the services ---- */

static void observe(void *arg, const char *method, enum grpc_status status, uint64_t ns)
{
	(void)arg;
	(void)ns;
	must(method != NULL && status <= GRPC_UNAUTHENTICATED);
	services.observed++;
}

static void services_open(struct ring *ring)
{
	services.reactor.ring = ring;
	if (services.registry != NULL)
		return;
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	struct pools *pools;
	const struct csi_config config = {
		.driver_name = "csi.ringvol.dev",
		.node_id = "node-1",
		.services = CSI_IDENTITY,
		.health = CSI_HEALTH_1_12,
	};
	services.registry = grpc_registry_new();
	must(services.registry != NULL);
	must(work_open(&services.reactor.work, ring, 1) == 0); /* no job comes */
	must(pools_open(&pools, &services.reactor, NULL, 0) == 0);
	must(csi_open(&services.csi, &config, &services.reactor, pools) == 0);
	must(csi_register(services.csi, services.registry) == 0);
	services.health = health_new(services.registry);
	must(services.health != NULL);
	must(reflection_new(services.registry, proto_descriptor_set, proto_descriptor_set_len) !=
		NULL);
	must(grpc_registry_add(services.registry, &toy_service, csi_check_request) == 0);
	grpc_registry_observe(services.registry, observe, NULL);
}

void h2_world_set_health(bool serving)
{
	health_set(services.health, serving);
}

/* ---- what the server sent ---- */

/* s is NULL for a stream that is not looked at; its headers change HPACK's state all the same. */
static void check_header_block(
	struct h2_world *w, struct h2_sent *s, bool end, const uint8_t *data, size_t len)
{
	unsigned status = 0, grpc_status = 0;
	bool ok = false;
	nghttp2_nv nv;
	for (int flags = 0; (flags & NGHTTP2_HD_INFLATE_FINAL) == 0;) {
		ssize_t n = nghttp2_hd_inflate_hd2(w->inflater, &nv, &flags, data, len, 1);
		must(n >= 0);
		data += n;
		len -= (size_t)n;
		if ((flags & NGHTTP2_HD_INFLATE_EMIT) == 0)
			continue;
		for (size_t i = 0; i < nv.valuelen; i++)
			must(nv.value[i] >= 0x20 && nv.value[i] < 0x7f);
		if (nv.namelen == 7 && memcmp(nv.name, ":status", 7) == 0) {
			status++;
			ok = nv.valuelen == 3 && memcmp(nv.value, "200", 3) == 0;
		}
		grpc_status += nv.namelen == 11 && memcmp(nv.name, "grpc-status", 11) == 0;
	}
	nghttp2_hd_inflate_end_headers(w->inflater);
	must(len == 0);
	if (s == NULL)
		return;
	must(status == !s->headers);
	must(!s->headers || end);
	s->grpc |= ok;
	must(grpc_status == (end && s->grpc));
	must(!end || (s->prefix_len == 0 && s->message_left == 0)); /* messages are whole */
	s->headers = true;
}

static void check_data(struct h2_sent *s, const uint8_t *data, size_t len)
{
	while (len > 0) {
		if (s->message_left > 0) {
			size_t n = len < s->message_left ? len : s->message_left;
			s->message_left -= (uint32_t)n;
			data += n;
			len -= n;
			continue;
		}
		s->prefix[s->prefix_len++] = *data++;
		len--;
		if (s->prefix_len < GRPC_PREFIX_BYTES)
			continue;
		must(s->prefix[0] == 0);
		s->message_left = grpc_wire_get_length(s->prefix);
		must(s->message_left <= GRPC_MESSAGE_MAX_BYTES);
		s->prefix_len = 0;
	}
}

static void check_frame(struct h2_world *w, const uint8_t *head, const uint8_t *data, size_t len)
{
	uint8_t type = head[3], flags = head[4];
	uint32_t id = ((uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 |
			      head[8]) &
		      0x7fffffff;
	must(len <= 16384);
	must(w->settings_seen || type == NGHTTP2_SETTINGS);
	w->settings_seen = true;
	if (type != NGHTTP2_HEADERS && type != NGHTTP2_DATA && type != NGHTTP2_RST_STREAM)
		return;
	must(id % 2 == 1);
	struct h2_sent *s = id / 2 < H2_WORLD_STREAMS ? &w->sent[id / 2] : NULL;
	bool end = (flags & NGHTTP2_FLAG_END_STREAM) != 0;
	must(s == NULL || type == NGHTTP2_RST_STREAM || (!s->ended && !s->reset));
	if (type == NGHTTP2_HEADERS) {
		must((flags & (NGHTTP2_FLAG_PADDED | NGHTTP2_FLAG_PRIORITY)) == 0);
		must((flags & NGHTTP2_FLAG_END_HEADERS) != 0); /* none of ours is that large */
		check_header_block(w, s, end, data, len);
	}
	if (s == NULL)
		return;
	if (type == NGHTTP2_RST_STREAM) {
		must(len == 4);
		s->reset = true;
	} else if (type == NGHTTP2_DATA) {
		must(s->headers);
		must((flags & NGHTTP2_FLAG_PADDED) == 0);
		must(!end || !s->grpc); /* trailers follow messages */
		if (s->grpc)
			check_data(s, data, len); /* else the text of an HTTP error */
	}
	s->ended |= end && type != NGHTTP2_RST_STREAM;
}

static void check_output(struct h2_world *w)
{
	size_t at = 0;
	while (w->in.len - at >= 9) {
		const uint8_t *head = w->in.data + at;
		size_t len = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
		if (w->in.len - at - 9 < len)
			break;
		check_frame(w, head, head + 9, len);
		at += 9 + len;
	}
	if (at > 0)
		buf_consume(&w->in, at);
}

/* ---- the connection ---- */

static void on_wake(void *arg)
{
	struct h2_world *w = arg;
	must(!w->inside);
}

struct h2_world *h2_world_open(bool small_limits)
{
	static struct server_limits limits;
	struct h2_world *w = calloc(1, sizeof(*w));
	must(w != NULL);
	w->sim.seed = 1;
	must(ring_sim_open(&w->ring, &w->sim) == 0);
	services_open(w->ring);
	h2_world_set_health(false);
	limits = server_limits_default;
	if (small_limits) {
		limits.streams = 4;
		limits.header_bytes = 512;
		limits.send_buffer_bytes = 16 << 10;
		limits.idle_ms = 15000;
	}
	must(nghttp2_hd_inflate_new(&w->inflater) == 0);
	h2_turns_init(&w->turns, w->ring);
	const struct h2_config config = {
		.ring = w->ring,
		.registry = services.registry,
		.limits = &limits,
		.turns = &w->turns,
		.host_may_be_path = !small_limits,
		.on_wake = on_wake,
		.arg = w,
	};
	must(h2_session_new(&config, &w->session) == 0);
	return w;
}

bool h2_world_feed(struct h2_world *w, const uint8_t *data, size_t len)
{
	if (w->fed < 0)
		return false;
	/* A copy, so that a read past its end is seen. */
	uint8_t *copy = malloc(len);
	must(copy != NULL || len == 0);
	if (len > 0)
		memcpy(copy, data, len);
	w->inside = true;
	w->fed = w->session->ops->feed(w->session, copy, len);
	w->inside = false;
	free(copy);
	must(w->fed == 0 || w->session->ops->finished(w->session));
	must(container_of(w->session, struct h2_conn, base)->stream_count < 1000);
	return w->fed == 0;
}

void h2_world_output(struct h2_world *w, size_t limit)
{
	struct buf out = {0};
	w->inside = true;
	int res = w->session->ops->output(w->session, &out, limit);
	w->inside = false;
	must(res <= 0);
	must(res == 0 || w->session->ops->finished(w->session));
	must(out.len < limit + 16384 + 9 + 100);
	must(buf_append(&w->in, out.data, out.len) == 0);
	buf_free(&out);
	check_output(w);
}

static void advance_done(struct ring_timer *timer)
{
	timer->fn = NULL;
}

void h2_world_advance(struct h2_world *w, uint64_t ms)
{
	struct ring_timer timer = {.fn = advance_done};
	ring_timer_arm(w->ring, &timer, ms);
	while (timer.fn != NULL)
		must(ring_turn(w->ring, true) == 0);
}

void h2_world_end_held(struct h2_world *w, unsigned i)
{
	if (services.held_count == 0)
		return;
	i %= services.held_count;
	struct grpc_call *call = services.held[i];
	services.held[i] = services.held[--services.held_count];
	text_message text = TEXT_INIT;
	text.service = (ProtobufCBinaryData){4, (uint8_t *)"held"};
	if (ring_now_ns(w->ring) % 2 == 0)
		grpc_reply(call, &text.base);
	else
		grpc_end(call, GRPC_ABORTED, "held \xE2\x82\xAC 100%");
}

void h2_world_close(struct h2_world *w)
{
	h2_world_output(w, 1 << 20);
	w->session->ops->free(w->session);
	/* Operations outlive their clients. */
	while (services.held_count > 0)
		h2_world_end_held(w, 0);
	must(grpc_registry_in_flight(services.registry) == 0);
	must(grpc_registry_memory(services.registry) == 0);
	while (w->turns.go.armed)
		must(ring_turn(w->ring, false) == 0);
	nghttp2_hd_inflate_del(w->inflater);
	buf_free(&w->in);
	ring_close(w->ring);
	free(w);
}
