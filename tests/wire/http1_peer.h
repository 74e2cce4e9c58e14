/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other end for the tests of HTTP/1: a connection in memory, a simulated ring for its clock,
 * routes of each kind, and a reader that takes answers apart as strictly as a client may.
 */
#ifndef RINGVOL_TESTS_WIRE_HTTP1_PEER_H
#define RINGVOL_TESTS_WIRE_HTTP1_PEER_H

#include "base/list.h"
#include "rpc/http1.h"
#include "simring/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The test or the fuzz target says what to do with a broken promise. */
#ifndef http_must
#error "define http_must(condition) first"
#endif

/* Around what is the server's; a test of its memory counts there. */
#ifndef http_enter
#define http_enter() ((void)0)
#define http_leave() ((void)0)
#endif

/* ---- routes: /text; /body of `size` bytes; the same with waits or empty pieces; one that fails;
 * two that take bodies, and answer at once or later */

struct http_body {
	struct http1_source source;
	struct http_peer *peer;
	size_t left;
	bool wait, empty, fail;
};

struct http_peer {
	struct ring_sim sim;
	struct ring *ring;
	struct server_limits limits;
	struct http1_route routes[8];
	struct http1 *http1;
	struct session *session; /* of the one connection of most tests */
	struct buf out;          /* what it has sent */
	bool inside;
	int res; /* of the last feed() or output() that failed */
	unsigned wakes, texts, made, freed;
	size_t size;               /* of bodies */
	size_t made_bytes;         /* all in all */
	struct http_body *waiting; /* one that waits for http_peer_wake() */
	struct http1_call *later;  /* a call that was put off */
	unsigned gone;             /* such calls whose connection went */
};

/* What a body is made of, from its `at`-th byte on, up to `len` bytes of it. */
static inline const char *http_letters(size_t at, size_t len, size_t *ret_len)
{
	enum { TURNS = 160 };
	static char letters[TURNS * 26];
	if (letters[0] == '\0')
		for (size_t i = 0; i < sizeof(letters); i++)
			letters[i] = (char)('a' + i % 26);
	size_t left = sizeof(letters) - at % 26;
	*ret_len = len < left ? len : left;
	return letters + at % 26;
}

static void http_text(struct http1_call *call, void *arg)
{
	((struct http_peer *)arg)->texts++;
	http1_reply(call, 200, "text");
}

static int http_body_more(struct http1_source *source, struct buf *out, size_t limit)
{
	struct http_body *b = container_of(source, struct http_body, source);
	struct http_peer *p = b->peer;
	http_must(!p->inside);
	if (b->wait && p->waiting != b) {
		p->waiting = b;
		return -EAGAIN;
	}
	p->waiting = NULL;
	if (b->fail && b->left < p->size)
		return -EIO;
	b->empty = !b->empty;
	size_t n = b->left < limit ? b->left : limit;
	uint8_t *to = buf_reserve(out, n);
	if (to == NULL)
		return -ENOMEM;
	for (size_t i = 0, some; i < n; i += some) {
		const char *letters = http_letters(p->size - b->left + i, n - i, &some);
		memcpy(to + i, letters, some);
	}
	out->len += n;
	b->left -= n;
	p->made_bytes += n;
	return b->left > 0;
}

static int http_body_seldom(struct http1_source *source, struct buf *out, size_t limit)
{
	struct http_body *b = container_of(source, struct http_body, source);
	if (!b->empty) {
		b->empty = true;
		return 1;
	}
	return http_body_more(source, out, limit);
}

static void http_body_free(struct http1_source *source)
{
	struct http_body *b = container_of(source, struct http_body, source);
	b->peer->freed++;
	if (b->peer->waiting == b)
		b->peer->waiting = NULL;
	free(b);
}

static struct http_body *http_body_new(struct http1_call *call, struct http_peer *p)
{
	struct http_body *b = calloc(1, sizeof(*b));
	if (b == NULL) {
		http1_reply(call, 503, "out of memory");
		return NULL;
	}
	*b = (struct http_body){.peer = p, .left = p->size};
	b->source.more = http_body_more;
	b->source.free = http_body_free;
	p->made++;
	return b;
}

static void http_body(struct http1_call *call, void *arg)
{
	struct http_body *b = http_body_new(call, arg);
	if (b != NULL)
		http1_stream(call, "text/x-body", &b->source);
}

static void http_slow(struct http1_call *call, void *arg)
{
	struct http_body *b = http_body_new(call, arg);
	if (b == NULL)
		return;
	b->wait = true;
	http1_stream(call, "text/x-body", &b->source);
}

static void http_seldom(struct http1_call *call, void *arg)
{
	struct http_body *b = http_body_new(call, arg);
	if (b == NULL)
		return;
	b->source.more = http_body_seldom;
	http1_stream(call, "text/x-body", &b->source);
}

static void http_fail(struct http1_call *call, void *arg)
{
	struct http_body *b = http_body_new(call, arg);
	if (b == NULL)
		return;
	b->fail = true;
	http1_stream(call, "text/x-body", &b->source);
}

enum { HTTP_ECHO_MAX = 32 };

static void http_echo(struct http1_call *call, void *arg)
{
	size_t len;
	const uint8_t *body = http1_body(call, &len);
	((struct http_peer *)arg)->texts++;
	http1_reply_data(call, 200, "text/plain", body, len);
}

static void http_gone(void *arg)
{
	struct http_peer *p = arg;
	http_must(p->later != NULL);
	p->later = NULL;
	p->gone++;
}

static void http_put_off(struct http1_call *call, void *arg)
{
	struct http_peer *p = arg;
	http_must(p->later == NULL);
	p->later = call;
	http1_later(call, http_gone, p);
}

/* Answers what was put off with its own body. */
static inline void http_peer_answer(struct http_peer *p)
{
	struct http1_call *call = p->later;
	p->later = NULL;
	http_echo(call, p);
}

/* ---- the connection ---- */

static void http_on_wake(void *arg)
{
	struct http_peer *p = arg;
	http_must(!p->inside);
	p->wakes++;
}

static inline int http_peer_connect(struct http_peer *p)
{
	p->res = 0;
	http_enter();
	int res = http1_session_new(p->http1, http_on_wake, p, &p->session);
	http_leave();
	return res;
}

/* NULL when out of memory; without a connection. */
static inline struct http_peer *http_peer_new(void)
{
	struct http_peer *p = calloc(1, sizeof(*p));
	http_must(p != NULL);
	p->sim.seed = 1;
	p->limits = server_http_limits_default;
	p->size = 100000;
	http_must(ring_sim_open(&p->ring, &p->sim) == 0);
	struct http1_route routes[] = {{"/text", http_text, p}, {"/body", http_body, p},
		{"/slow", http_slow, p}, {"/seldom", http_seldom, p}, {"/fail", http_fail, p},
		{"/echo", http_echo, p, .body_max = HTTP_ECHO_MAX},
		{"/later", http_put_off, p, .body_max = HTTP_ECHO_MAX}, {NULL, NULL, NULL}};
	memcpy(p->routes, routes, sizeof(routes));
	return p;
}

static inline void http_peer_disconnect(struct http_peer *p)
{
	if (p->session != NULL)
		p->session->ops->free(p->session);
	p->session = NULL;
	buf_free(&p->out);
	http_must(p->freed == p->made);
}

static inline void http_peer_free(struct http_peer *p)
{
	http_peer_disconnect(p);
	while (!http1_idle(p->http1))
		http_must(ring_turn(p->ring, false) == 0);
	http1_free(p->http1);
	ring_close(p->ring);
	free(p);
}

/* As conn.c does it. */
static inline void http_peer_fetch(struct http_peer *p)
{
	p->inside = true;
	http_enter();
	int res = p->session->ops->output(p->session, &p->out, p->out.len + (64 << 10));
	http_leave();
	p->inside = false;
	if (res < 0)
		p->res = res;
}

static inline void http_peer_feed(struct http_peer *p, const void *data, size_t len)
{
	p->inside = true;
	http_enter();
	int res = p->session->ops->feed(p->session, data, len);
	http_leave();
	p->inside = false;
	if (res < 0)
		p->res = res;
}

/* Turns and fetches until nothing comes any more. */
static inline void http_peer_settle(struct http_peer *p)
{
	for (size_t before = SIZE_MAX; before != p->out.len || !http1_idle(p->http1);) {
		before = p->out.len;
		http_peer_fetch(p);
		http_must(ring_turn(p->ring, false) == 0);
		http_peer_fetch(p);
	}
}

static void http_timer(struct ring_timer *timer)
{
	timer->fn = NULL;
}

static inline void http_peer_advance(struct http_peer *p, uint64_t ms)
{
	struct ring_timer timer = {.fn = http_timer};
	ring_timer_arm(p->ring, &timer, ms);
	while (timer.fn != NULL)
		http_must(ring_turn(p->ring, true) == 0);
}

/* ---- answers ---- */

struct http_answer {
	unsigned status;
	bool close, keep_alive, chunked, allow;
	bool has_length;
	size_t length;              /* of the body, decoded */
	size_t all;                 /* of the whole answer on the wire */
	bool body_is_end;           /* HTTP/1.0 style: to the end of the connection */
	char head[1024], body[256]; /* the first bytes of it */
};

static inline const char *http_field(const struct http_answer *a, const char *name)
{
	char line[64];
	snprintf(line, sizeof(line), "\r\n%s: ", name);
	const char *at = strstr(a->head, line);
	return at != NULL ? at + strlen(line) : NULL;
}

/* Some of a body, wherever its pieces were cut; the letters of /body are looked at. */
static inline void http_take_body(
	struct http_answer *a, bool letters, const uint8_t *data, size_t len)
{
	size_t room = sizeof(a->body) - 1;
	if (a->length < room)
		memcpy(a->body + a->length, data, len < room - a->length ? len : room - a->length);
	for (size_t i = 0, n; letters && i < len; i += n) {
		const char *want = http_letters(a->length + i, len - i, &n);
		http_must(memcmp(data + i, want, n) == 0);
	}
	a->length += len;
}

/* Takes one answer off the front of [data, data + len). False when it is not complete. */
static inline bool http_answer_parse(
	struct http_answer *a, const uint8_t *data, size_t len, bool head_only)
{
	*a = (struct http_answer){0};
	const uint8_t *end = memmem(data, len, "\r\n\r\n", 4);
	if (end == NULL)
		return false;
	size_t at = (size_t)(end - data) + 4;
	http_must(at - 2 < sizeof(a->head));
	memcpy(a->head, data, at - 2);
	http_must(sscanf(a->head, "HTTP/1.1 %3u ", &a->status) == 1);
	http_must(http_field(a, "Date") != NULL && http_field(a, "Content-Type") != NULL);
	const char *connection = http_field(a, "Connection");
	a->close = connection != NULL && strncmp(connection, "close\r\n", 7) == 0;
	a->keep_alive = connection != NULL && strncmp(connection, "keep-alive\r\n", 12) == 0;
	a->chunked = http_field(a, "Transfer-Encoding") != NULL;
	a->has_length = http_field(a, "Content-Length") != NULL;
	a->allow = http_field(a, "Allow") != NULL;
	bool letters = strncmp(http_field(a, "Content-Type"), "text/x-body", 11) == 0;
	http_must(!(a->chunked && a->has_length));
	a->all = at;
	if (head_only)
		return true;
	if (a->has_length) {
		size_t want = strtoul(http_field(a, "Content-Length"), NULL, 10);
		if (len - at < want)
			return false;
		http_take_body(a, letters, data + at, want);
		a->all = at + want;
		return true;
	}
	if (!a->chunked) {
		http_must(a->close);
		a->body_is_end = true;
		http_take_body(a, letters, data + at, len - at);
		a->all = len;
		return true;
	}
	for (;;) {
		char size[17] = "";
		const uint8_t *line = memmem(data + at, len - at, "\r\n", 2);
		if (line == NULL)
			return false;
		http_must(line > data + at && (size_t)(line - data) - at < sizeof(size));
		memcpy(size, data + at, (size_t)(line - data) - at);
		size_t chunk = strtoul(size, NULL, 16);
		at = (size_t)(line - data) + 2;
		if (len - at < chunk + 2)
			return false;
		http_take_body(a, letters, data + at, chunk);
		at += chunk;
		http_must(memcmp(data + at, "\r\n", 2) == 0);
		at += 2;
		if (chunk == 0) {
			a->all = at;
			return true;
		}
	}
}

#endif
