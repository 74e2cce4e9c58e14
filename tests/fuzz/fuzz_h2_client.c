/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server's bytes through the client's session, and between them what the calls' owners do: the
 * fuzzer's bytes as a program. Frames make sense or nearly do, or are its own bytes; calls start,
 * send, hold, read on, are given up, also inside their own callbacks; time passes. Each call ends
 * once, and what it was handed are whole messages before its end.
 */
#include "fuzz.h"

#include "base/budget.h"
#include "base/utf8.h"
#include "rpc/client_calls.h"
#include "rpc/h2_client.h"
#include "rpc/wire.h"
#include "simring/sim.h"

#include <nghttp2/nghttp2.h>
#include <string.h>

enum { CALLS = 8 };

struct toy {
	struct channel_call call;
	bool active, takes_all, gives_up, starts_another;
	unsigned messages;
};

static struct world {
	struct fuzz f;
	struct ring_sim sim;
	struct ring *ring;
	struct budget *memory;
	struct client_calls calls;
	struct list waiting;
	struct session *session; /* NULL: it is over */
	bool inside;             /* in feed() or output(): on_wake is not allowed */
	struct buf bytes;        /* of the server, not fed yet */
	size_t piece;
	struct toy toys[CALLS];
} w;

/* ---- the owner ---- */

static bool on_message(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct toy *t = container_of(call, struct toy, call);
	static volatile uint8_t sum; /* all of it can be read */
	must(t->active);
	must(len <= GRPC_MESSAGE_MAX_BYTES);
	for (size_t i = 0; i < len; i++)
		sum ^= data[i];
	(void)sum;
	t->messages++;
	if (t->gives_up) {
		t->active = false;
		channel_cancel(call);
		return true;
	}
	return t->takes_all;
}

static void start(unsigned i, uint8_t how);

static void on_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	struct toy *t = container_of(call, struct toy, call);
	(void)sent;
	must(t->active);
	must(!channel_call_active(call));
	must(status >= GRPC_OK && status <= GRPC_UNAUTHENTICATED);
	must(utf8_valid((const uint8_t *)message, strlen(message)));
	t->active = false;
	if (t->starts_another)
		start((unsigned)(t - w.toys), 0);
}

static void on_writable(struct channel_call *call)
{
	struct toy *t = container_of(call, struct toy, call);
	must(t->active);
	if (t->gives_up) {
		t->active = false;
		channel_cancel(call);
	}
}

static void start_waiting(void)
{
	while (w.session != NULL && !list_empty(&w.waiting)) {
		struct list *node = list_pop(&w.waiting);
		if (!h2_client_start(w.session, container_of(node, struct channel_call, link))) {
			list_push_front(&w.waiting, node);
			return;
		}
	}
}

static void start(unsigned i, uint8_t how)
{
	static const uint8_t text[70000];
	static const size_t sizes[] = {0, 1, 100, sizeof(text)};
	struct toy *t = &w.toys[i];
	if (t->active)
		return;
	*t = (struct toy){
		.call = {.path = "/toy.Toy/Echo",
			.deadline_ns = UINT64_MAX,
			.on_message = (how & 0x80) != 0 ? NULL : on_message,
			.on_end = on_end,
			.on_writable = on_writable},
		.active = true,
		.takes_all = (how & 1) == 0,
		.gives_up = (how & 2) != 0,
		.starts_another = (how & 4) != 0,
	};
	if ((how & 8) != 0)
		t->call.deadline_ns = ring_now_ns(w.ring) + 1500000000;
	if (!client_call_begin(&w.calls, &t->call, text, sizes[how >> 5 & 3], (how & 16) == 0))
		return;
	list_push(&w.waiting, &t->call.link);
	start_waiting();
}

static void act(void)
{
	static const uint8_t text[300000];
	unsigned what = fuzz_byte(&w.f), i = what / 8 % CALLS;
	struct channel_call *call = &w.toys[i].call;
	switch (what % 8) {
	case 0:
	case 1:
		start(i, fuzz_byte(&w.f));
		break;
	case 2:
		if (w.toys[i].active)
			channel_cancel(call);
		w.toys[i].active = false;
		break;
	case 3:
		channel_read(call);
		break;
	case 4:
		w.toys[i].takes_all = !w.toys[i].takes_all;
		break;
	case 5:
		channel_send(call, text, (size_t)fuzz_byte(&w.f) * 1000);
		break;
	case 6:
		channel_send(call, text, fuzz_byte(&w.f));
		break;
	default:
		channel_send_end(call);
		break;
	}
}

/* ---- the session ---- */

static void on_room(void *owner)
{
	(void)owner;
	start_waiting();
}

static void on_leave(void *owner)
{
	(void)owner;
}

static void on_wake(void *arg)
{
	(void)arg;
	must(!w.inside);
}

static void lose(void)
{
	struct session *session = w.session;
	w.session = NULL;
	session->ops->free(session);
}

/* As conn.c does it. False: the connection is over. */
static bool fetch(void)
{
	struct buf out = {0};
	w.inside = true;
	int res = w.session->ops->output(w.session, &out, 1 << 16);
	w.inside = false;
	bool over = res < 0 || (out.len == 0 && w.session->ops->finished(w.session));
	must(out.len < (1 << 16) + 16384 + 9 + 4096);
	buf_free(&out);
	return !over;
}

static void feed(void)
{
	while (w.bytes.len > 0 && w.session != NULL) {
		size_t n = w.bytes.len < w.piece ? w.bytes.len : w.piece;
		uint8_t *copy = malloc(n); /* so that a read past its end is seen */
		must(copy != NULL);
		memcpy(copy, w.bytes.data, n);
		buf_consume(&w.bytes, n);
		w.inside = true;
		int res = w.session->ops->feed(w.session, copy, n);
		w.inside = false;
		free(copy);
		must(res == 0 || w.session->ops->finished(w.session));
		if (res < 0 || !fetch())
			lose();
	}
	buf_free(&w.bytes);
}

static void turn(void)
{
	for (unsigned i = 0; i < 4; i++)
		must(ring_turn(w.ring, false) == 0);
	if (w.session != NULL && !fetch())
		lose();
}

static void pass_end(struct ring_timer *timer)
{
	timer->fn = NULL;
}

static void pass_ms(uint64_t ms)
{
	struct ring_timer timer = {.fn = pass_end};
	ring_timer_arm(w.ring, &timer, ms);
	while (timer.fn != NULL)
		must(ring_turn(w.ring, true) == 0);
	turn();
}

/* ---- the server's frames ---- */

static void frame(unsigned type, unsigned flags, uint32_t id, const void *data, size_t len)
{
	const uint8_t head[9] = {(uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len,
		(uint8_t)type, (uint8_t)flags, (uint8_t)(id >> 24), (uint8_t)(id >> 16),
		(uint8_t)(id >> 8), (uint8_t)id};
	must(buf_append(&w.bytes, head, sizeof(head)) == 0);
	must(buf_append(&w.bytes, data, len) == 0);
}

static void header(struct buf *block, const void *name, size_t n, const void *value, size_t v)
{
	const uint8_t lengths[2] = {(uint8_t)(n & 63), (uint8_t)(v & 63)};
	must(buf_append(block, "", 1) == 0);
	must(buf_append(block, &lengths[0], 1) == 0);
	must(buf_append(block, name, n & 63) == 0);
	must(buf_append(block, &lengths[1], 1) == 0);
	must(buf_append(block, value, v & 63) == 0);
}

static const char *const headers[][2] = {{":status", "200"}, {"content-type", "application/grpc"},
	{"grpc-status", "0"}, {"grpc-status", "5"}, {"grpc-message", "caf%C3%A9 %zz%"},
	{":status", "502"}, {"content-type", "text/html"}, {"grpc-status", "banana"},
	{":status", "103"}, {"grpc-message", "%ff%00"}, {":status", ""}, {":path", "/"},
	{"connection", "close"}, {"content-length", "5"}, {"grpc-status", "99"},
	{"grpc-encoding", "gzip"}};

static uint32_t stream_id(void)
{
	uint8_t which = fuzz_byte(&w.f);
	return which >= 0xf0 ? which & 3 : (uint32_t)(which % 16) * 2 + 1;
}

static void say_headers(void)
{
	struct buf block = {0};
	uint8_t how = fuzz_byte(&w.f);
	uint32_t id = stream_id();
	if ((how & 0x0f) == 0) { /* the usual ones */
		header(&block, ":status", 7, "200", 3);
		header(&block, "content-type", 12, "application/grpc", 16);
	}
	for (unsigned n = how & 0x0f; n > 0; n--) {
		uint8_t which = fuzz_byte(&w.f);
		if (which < 16 * 12) {
			const char *const *pair = headers[which % 16];
			header(&block, pair[0], strlen(pair[0]), pair[1], strlen(pair[1]));
		} else {
			struct fuzz name = fuzz_take(&w.f, which & 15);
			struct fuzz value = fuzz_take(&w.f, 8);
			header(&block, name.data, name.len, value.data, value.len);
		}
	}
	unsigned flags = ((how & 0x80) != 0 ? 0 : NGHTTP2_FLAG_END_HEADERS) |
			 ((how & 0x40) != 0 ? NGHTTP2_FLAG_END_STREAM : 0);
	frame((how & 0x30) == 0x30 ? NGHTTP2_CONTINUATION : NGHTTP2_HEADERS, flags, id, block.data,
		block.len);
	buf_free(&block);
}

static void say_data(void)
{
	uint8_t how = fuzz_byte(&w.f);
	uint32_t id = stream_id();
	struct fuzz part = fuzz_take(&w.f, how & 31);
	uint8_t prefix[GRPC_PREFIX_BYTES] = {0, 0, 0, 0, (uint8_t)part.len};
	struct buf body = {0};
	if ((how & 0x20) == 0)
		must(buf_append(&body, prefix, sizeof(prefix)) == 0);
	must(buf_append(&body, part.data, part.len) == 0);
	unsigned copies = (how & 0x40) != 0 ? 100 : 1;
	for (unsigned i = 0; i < copies; i++)
		frame(NGHTTP2_DATA, (how & 0x80) != 0 && i + 1 == copies, id, body.data, body.len);
	buf_free(&body);
}

static void say_other(void)
{
	static const uint8_t types[] = {NGHTTP2_RST_STREAM, NGHTTP2_GOAWAY, NGHTTP2_SETTINGS,
		NGHTTP2_WINDOW_UPDATE, NGHTTP2_PING, NGHTTP2_PUSH_PROMISE, NGHTTP2_PRIORITY, 200};
	static const uint8_t sizes[] = {4, 8, 6, 4, 8, 8, 5, 3};
	uint8_t how = fuzz_byte(&w.f);
	unsigned which = how & 7;
	bool of_connection = which == 1 || which == 2 || which == 4;
	uint32_t id = of_connection || (how & 8) != 0 ? 0 : stream_id();
	struct fuzz part = fuzz_take(&w.f, (how & 0x10) != 0 ? 31 : sizes[which]);
	uint8_t padded[32] = {0}; /* a short one is filled up with zeros in front */
	size_t size = part.len < sizes[which] ? sizes[which] : part.len;
	memcpy(padded + size - part.len, part.data, part.len);
	frame(types[which], (how & 0x20) != 0, id, padded, (how & 0x40) != 0 ? part.len : size);
}

static void say_bytes(void)
{
	struct fuzz part = fuzz_take(&w.f, fuzz_byte(&w.f));
	must(buf_append(&w.bytes, part.data, part.len) == 0);
}

static void step(void)
{
	switch (fuzz_byte(&w.f) % 8) {
	case 0:
	case 1:
		act();
		break;
	case 2:
		say_headers();
		break;
	case 3:
		say_data();
		break;
	case 4:
		say_other();
		break;
	case 5:
		say_bytes();
		break;
	case 6:
		feed();
		turn();
		break;
	default:
		feed();
		pass_ms((uint64_t)fuzz_byte(&w.f) * 100);
		break;
	}
}

static void world_open(uint8_t how)
{
	static const size_t pieces[] = {8192, 1, 9, 100};
	w = (struct world){.sim = {.seed = 1}, .f = w.f, .piece = pieces[how & 3]};
	must(ring_sim_open(&w.ring, &w.sim) == 0);
	w.memory = budget_new((how & 4) != 0 ? 200000 : GRPC_MEMORY_MAX_BYTES);
	must(w.memory != NULL);
	list_init(&w.waiting);
	client_calls_init(&w.calls, w.ring, w.memory);
	const struct h2_client_config config = {.ring = w.ring,
		.authority = "localhost",
		.on_room = on_room,
		.on_leave = on_leave,
		.on_wake = on_wake};
	must(h2_client_new(&config, &w.session) == 0);
	if ((how & 8) == 0) {
		frame(NGHTTP2_SETTINGS, 0, 0, NULL, 0);
		frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, NULL, 0);
		feed();
	}
}

static void world_close(void)
{
	feed();
	for (unsigned i = 0; i < CALLS; i++)
		w.toys[i].starts_another = false;
	if (w.session != NULL)
		lose();
	while (!list_empty(&w.waiting))
		client_call_end(container_of(w.waiting.next, struct channel_call, link),
			GRPC_UNAVAILABLE, "");
	client_calls_end(&w.calls, "");
	client_calls_close(&w.calls);
	for (unsigned i = 0; i < CALLS; i++)
		must(!w.toys[i].active && !channel_call_active(&w.toys[i].call));
	must(w.memory->used_bytes == 0);
	budget_unref(w.memory);
	ring_close(w.ring);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	w.f = (struct fuzz){data, len};
	world_open(fuzz_byte(&w.f));
	while (w.f.len > 0)
		step();
	world_close();
	return 0;
}
