/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/1 without sockets: requests, refusals, bodies in pieces, time, drain. */
#include <criterion/criterion.h>

#define http_must(condition) cr_assert(condition)
#include "http1_peer.h"

static struct http_peer *peer_new(void)
{
	struct http_peer *p = http_peer_new();
	cr_assert_eq(http1_new(&p->http1, p->ring, &p->limits, p->routes), 0);
	cr_assert_eq(http_peer_connect(p), 0);
	return p;
}

static void say(struct http_peer *p, const char *text)
{
	http_peer_feed(p, text, strlen(text));
	http_peer_settle(p);
}

static struct http_answer take_answer(struct http_peer *p, bool head_only)
{
	struct http_answer a;
	cr_assert(http_answer_parse(&a, p->out.data, p->out.len, head_only), "%.*s",
		(int)p->out.len, p->out.len > 0 ? (char *)p->out.data : "");
	buf_consume(&p->out, a.all);
	return a;
}

static bool finished(struct http_peer *p)
{
	return p->session->ops->finished(p->session);
}

static bool wants_input(struct http_peer *p)
{
	return p->session->ops->wants_input(p->session);
}

static void reconnect(struct http_peer *p)
{
	http_peer_disconnect(p);
	cr_assert_eq(http_peer_connect(p), 0);
}

#define GET(path)  "GET " path " HTTP/1.1\r\nHost: here\r\n\r\n"
#define HEAD(path) "HEAD " path " HTTP/1.1\r\nHost: here\r\n\r\n"

/* ---- what is served ---- */

Test(http1, get_and_get_again)
{
	struct http_peer *p = peer_new();
	for (unsigned i = 1; i <= 3; i++) {
		say(p, GET("/text"));
		struct http_answer a = take_answer(p, false);
		cr_assert_eq(a.status, 200);
		cr_assert_str_eq(a.body, "text\n");
		cr_assert_not(a.close);
		cr_assert_not(finished(p));
		cr_assert_eq(p->texts, i);
		cr_assert_eq(p->out.len, 0);
	}
	http_peer_free(p);
}

Test(http1, spellings_of_a_path)
{
	struct http_peer *p = peer_new();
	static const char *const good[] = {GET("/text?a=/b&c"), GET("http://here:80/text"),
		GET("HTTP://here/text?x"), "\r\n\r\n" GET("/text")};
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		say(p, good[i]);
		cr_assert_eq(take_answer(p, false).status, 200, "%s", good[i]);
	}
	static const char *const none[] = {GET("/"), GET("/text/"), GET("/TEXT"),
		GET("http://here"), GET("*"), GET("/%74ext")};
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		say(p, none[i]);
		struct http_answer a = take_answer(p, false);
		cr_assert_eq(a.status, 404, "%s", none[i]);
		cr_assert_not_null(strstr(a.body, "/text"), "%s", a.body);
	}
	http_peer_free(p);
}

Test(http1, head_has_no_body)
{
	struct http_peer *p = peer_new();
	say(p, HEAD("/text"));
	struct http_answer a = take_answer(p, true);
	cr_assert_eq(a.status, 200);
	cr_assert_eq(strtoul(http_field(&a, "Content-Length"), NULL, 10), 5);
	cr_assert_eq(p->out.len, 0);
	say(p, HEAD("/body"));
	a = take_answer(p, true);
	cr_assert(a.chunked);
	cr_assert_eq(p->out.len, 0);
	cr_assert_eq(p->made_bytes, 0, "a body nobody reads was made");
	cr_assert_eq(p->freed, 1);
	say(p, HEAD("/none"));
	cr_assert_eq(take_answer(p, true).status, 404);
	cr_assert_eq(p->out.len, 0);
	http_peer_free(p);
}

Test(http1, the_older_version)
{
	struct http_peer *p = peer_new();
	say(p, "GET /text HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	struct http_answer a = take_answer(p, false);
	cr_assert(a.keep_alive);
	cr_assert_not(finished(p));
	say(p, "GET /text HTTP/1.0\r\n\r\n");
	a = take_answer(p, false);
	cr_assert(a.close);
	cr_assert(finished(p));
	reconnect(p);
	/* Chunks are unknown to it: the connection's end is the body's. */
	say(p, "GET /body HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	a = take_answer(p, false);
	cr_assert(a.body_is_end);
	cr_assert_eq(a.length, p->size);
	cr_assert(finished(p));
	http_peer_free(p);
}

Test(http1, close_is_obeyed)
{
	struct http_peer *p = peer_new();
	say(p, "GET /text HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" GET("/text"));
	cr_assert(take_answer(p, false).close);
	cr_assert(finished(p));
	cr_assert_eq(p->out.len, 0);
	cr_assert_eq(p->texts, 1, "a request after the last one was served");
	http_peer_free(p);
}

Test(http1, no_other_protocol)
{
	struct http_peer *p = peer_new();
	say(p, "GET /text HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
	       "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n" GET("/text"));
	cr_assert_eq(take_answer(p, false).status, 200);
	cr_assert_eq(take_answer(p, false).status, 200);
	http_peer_free(p);
}

/* ---- what is refused ---- */

static const char *refusal_of(unsigned status)
{
	switch (status) {
	case 400:
		return "the request is malformed\n";
	case 405:
		return "the path is served with other methods: see Allow\n";
	case 408:
		return "the request was not complete in time\n";
	case 413:
		return "the request's body is too long, or the path takes none\n";
	case 414:
		return "the request's target is too long\n";
	case 431:
		return "the request's header fields are too long\n";
	case 505:
		return "HTTP/1.0 and HTTP/1.1 are served\n";
	}
	return "";
}

static void take_refusal(struct http_peer *p, unsigned status)
{
	struct http_answer a = take_answer(p, false);
	cr_assert_eq(a.status, status);
	cr_assert_str_eq(a.body, refusal_of(status));
}

Test(http1, refusals)
{
	static const struct {
		const char *request;
		unsigned status;
		const char *why; /* NULL: that of its status */
	} table[] = {
		{"garbage\r\n\r\n", 400},
		{"\x16\x03\x01\x02\x00", 400}, /* somebody tries TLS */
		{"GET /text HTTP/1.1\r\n\r\n", 400, "one Host field is needed\n"},
		{"GET /text HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400,
			"one Host field is needed\n"},
		{"GET /text HTTP/1.1\r\nHost : a\r\n\r\n", 400},
		{"GET /text HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n", 400},
		{"GET /text HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
			400},
		{"GET /text HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
			400},
		{"GET /text HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: "
		 "chunked\r\n\r\n",
			400},
		{"get /text HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"POST /text HTTP/1.1\r\nHost: a\r\n\r\n", 405},
		{"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 405},
		{"DELETE /text HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 405},
		{"CONNECT here:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405},
		{"GET /text HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", 413},
		{"GET /text HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			413},
		{"GET /text HTTP/2.0\r\nHost: a\r\n\r\n", 505},
		{"GET /text HTTP/1.9\r\nHost: a\r\n\r\n", 505},
		{"GET /text HTTP/0.9\r\nHost: a\r\n\r\n", 505},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct http_peer *p = peer_new();
		say(p, table[i].request);
		struct http_answer a = take_answer(p, false);
		cr_assert_eq(a.status, table[i].status, "%u for %s", a.status, table[i].request);
		const char *why = table[i].why != NULL ? table[i].why : refusal_of(a.status);
		cr_assert_str_eq(a.body, why, "%s: %s", table[i].request, a.body);
		cr_assert(a.close, "%s", table[i].request);
		cr_assert_eq(a.allow, a.status == 405);
		cr_assert(finished(p));
		cr_assert_eq(p->texts, 0);
		http_peer_feed(p, "more", 4);
		http_peer_settle(p);
		cr_assert_eq(p->out.len, 0);
		http_peer_free(p);
	}
}

Test(http1, nothing_to_read_is_no_body)
{
	struct http_peer *p = peer_new();
	say(p, "GET /text HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" GET("/text"));
	cr_assert_eq(take_answer(p, false).status, 200);
	cr_assert_eq(take_answer(p, false).status, 200);
	http_peer_free(p);
}

static void say_long(struct http_peer *p, const char *before, size_t len, const char *after)
{
	struct buf b = {0};
	buf_append(&b, before, strlen(before));
	memset(buf_reserve(&b, len), 'x', len);
	b.len += len;
	buf_append(&b, after, strlen(after));
	for (size_t at = 0, n; at < b.len && wants_input(p); at += n) {
		n = b.len - at < SESSION_FEED_BYTES ? b.len - at : SESSION_FEED_BYTES;
		http_peer_feed(p, b.data + at, n);
	}
	http_peer_settle(p);
	buf_free(&b);
}

Test(http1, limits_of_a_request)
{
	struct http_peer *p = peer_new();
	const char *end = " HTTP/1.1\r\nHost: a\r\n\r\n";
	say_long(p, "GET /text?", HTTP1_TARGET_MAX - 6, end);
	cr_assert_eq(take_answer(p, false).status, 200);
	say_long(p, "GET /text?", HTTP1_TARGET_MAX - 5, end);
	take_refusal(p, 414);
	cr_assert(finished(p));

	reconnect(p);
	const char *field = "GET /text HTTP/1.1\r\nHost: a\r\nX: ";
	size_t rest = strlen(field) + strlen("\r\n\r\n");
	say_long(p, field, p->limits.header_bytes - rest, "\r\n\r\n");
	cr_assert_eq(take_answer(p, false).status, 200);
	say_long(p, field, p->limits.header_bytes - rest + 1, "\r\n\r\n");
	take_refusal(p, 431);
	cr_assert(finished(p));

	/* Without an end, too: the answer comes when the limit is reached. */
	reconnect(p);
	say_long(p, "GET /text HTTP/1.1\r\nX: ", 1 << 20, "");
	take_refusal(p, 431);
	reconnect(p);
	say_long(p, "GET /", 1 << 20, "");
	take_refusal(p, 414);
	http_peer_free(p);
}

/* ---- bodies ---- */

#define POST(path, length, body)                                                                   \
	"POST " path " HTTP/1.1\r\nHost: a\r\nContent-Length: " length "\r\n\r\n" body

Test(http1, a_body_in_any_pieces)
{
	static const char requests[] = POST("/echo", "5", "hello") POST("/echo", "0",
		"") "POST /echo?x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
		    "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n" GET("/text")
			    POST("/echo", "32", "01234567890123456789012345678901");
	static const char *const want[] = {
		"hello", "", "abcde", "text\n", "01234567890123456789012345678901"};
	for (size_t piece = 1; piece < sizeof(requests); piece++) {
		struct http_peer *p = peer_new();
		for (size_t at = 0, n; requests[at] != '\0'; at += n) {
			n = strlen(requests + at) < piece ? strlen(requests + at) : piece;
			http_peer_feed(p, requests + at, n);
			while (!wants_input(p))
				http_peer_settle(p);
		}
		http_peer_settle(p);
		for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
			struct http_answer a = take_answer(p, false);
			cr_assert_eq(a.status, 200, "request %zu, pieces of %zu", i, piece);
			cr_assert_str_eq(a.body, want[i]);
		}
		cr_assert_eq(p->out.len, 0);
		http_peer_free(p);
	}
}

Test(http1, bodies_that_are_refused)
{
	static const struct {
		const char *request;
		unsigned status;
	} table[] = {
		{POST("/echo", "33", ""), 413},
		{POST("/text", "0", ""), 405},
		{POST("/none", "3", "abc"), 405},
		{GET("/echo"), 405},
		{"PUT /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", 405},
		{"POST /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 400},
		{"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
		 "20\r\n01234567890123456789012345678901\r\n1\r\nx\r\n0\r\n\r\n",
			413},
		{"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n", 400},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct http_peer *p = peer_new();
		say(p, table[i].request);
		struct http_answer a = take_answer(p, false);
		cr_assert_eq(a.status, table[i].status, "%u for %s", a.status, table[i].request);
		cr_assert(a.close);
		cr_assert_eq(a.allow, a.status == 405);
		cr_assert(finished(p));
		cr_assert_eq(p->texts, 0);
		http_peer_free(p);
	}
}

Test(http1, allow_names_the_methods)
{
	struct http_peer *p = peer_new();
	say(p, GET("/echo"));
	struct http_answer a = take_answer(p, false);
	cr_assert_eq(strncmp(http_field(&a, "Allow"), "POST\r\n", 6), 0);
	reconnect(p);
	say(p, POST("/text", "0", ""));
	a = take_answer(p, false);
	cr_assert_eq(strncmp(http_field(&a, "Allow"), "GET, HEAD\r\n", 11), 0);
	http_peer_free(p);
}

/* The body stays as long as the call, and the next request waits. */
Test(http1, an_answer_that_comes_later)
{
	struct http_peer *p = peer_new();
	say(p, POST("/later", "5", "hello") GET("/text"));
	cr_assert_not_null(p->later);
	cr_assert_not(wants_input(p));
	cr_assert_eq(p->out.len, 0);
	http_peer_advance(p, 10 * HTTP1_ANSWER_MS);
	http_peer_settle(p);
	cr_assert_not(finished(p), "an answer that was put off has no time");
	unsigned wakes = p->wakes;
	http_peer_answer(p);
	cr_assert_eq(p->wakes, wakes + 1);
	http_peer_settle(p);
	cr_assert_str_eq(take_answer(p, false).body, "hello");
	cr_assert_str_eq(take_answer(p, false).body, "text\n");
	/* From then on it is bounded again. */
	say(p, POST("/later", "0", ""));
	http_peer_answer(p);
	http_peer_advance(p, HTTP1_ANSWER_MS + 1000);
	cr_assert_lt(p->res != 0 ? p->res : (http_peer_fetch(p), p->res), 0);
	http_peer_free(p);
}

Test(http1, whoever_hangs_up_waits_for_nothing)
{
	struct http_peer *p = peer_new();
	say(p, POST("/later", "1", "x"));
	p->session->ops->drain(p->session);
	cr_assert_not(finished(p), "a call that runs may end");
	http_peer_disconnect(p);
	cr_assert_eq(p->gone, 1);
	cr_assert_null(p->later);
	http_peer_free(p);
}

/* ---- many requests ---- */

Test(http1, pipelined)
{
	static const char requests[] = GET("/text") HEAD("/text") GET("/body") GET("/none")
		GET("/seldom") "GET /text HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
	static const unsigned want[] = {200, 200, 200, 404, 200, 200};
	for (size_t piece = 1; piece < sizeof(requests); piece += piece < 40 ? 1 : 97) {
		struct http_peer *p = peer_new();
		p->size = 1000;
		for (size_t at = 0, n; requests[at] != '\0'; at += n) {
			n = strlen(requests + at) < piece ? strlen(requests + at) : piece;
			http_peer_feed(p, requests + at, n);
			while (!wants_input(p) && !finished(p))
				http_peer_settle(p);
		}
		http_peer_settle(p);
		for (size_t i = 0; i < 6; i++) {
			struct http_answer a = take_answer(p, i == 1);
			cr_assert_eq(a.status, want[i], "request %zu, pieces of %zu", i, piece);
			cr_assert_eq(a.close, i == 5);
		}
		cr_assert(finished(p));
		cr_assert_eq(p->out.len, 0);
		http_peer_free(p);
	}
}

Test(http1, input_waits_for_the_answer)
{
	struct http_peer *p = peer_new();
	cr_assert(wants_input(p));
	http_peer_feed(p, GET("/slow") GET("/text"), strlen(GET("/slow") GET("/text")));
	cr_assert_not(wants_input(p));
	http_peer_settle(p);
	cr_assert_not(wants_input(p), "the first answer is not complete");
	cr_assert_not_null(p->waiting);
	while (p->waiting != NULL) {
		http1_source_wake(&p->waiting->source);
		http_peer_settle(p);
	}
	cr_assert_eq(take_answer(p, false).length, p->size);
	cr_assert_eq(take_answer(p, false).length, 5);
	cr_assert(wants_input(p));
	http_peer_free(p);
}

/* ---- bodies in pieces ---- */

Test(http1, bodies)
{
	static const size_t sizes[] = {0, 1, 25, HTTP1_PIECE_BYTES, HTTP1_TURN_BYTES - 1,
		HTTP1_TURN_BYTES, HTTP1_TURN_BYTES + 1, 1000000};
	static const char *const requests[] = {GET("/body"), GET("/seldom")};
	struct http_peer *p = peer_new();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (size_t k = 0; k < 2; k++) {
			p->size = sizes[i];
			say(p, requests[k]);
			struct http_answer a = take_answer(p, false);
			cr_assert_eq(a.length, sizes[i]);
			cr_assert_eq(a.chunked, true);
			cr_assert_eq(p->out.len, 0);
			cr_assert_eq(p->freed, p->made);
		}
	http_peer_free(p);
}

Test(http1, a_piece_waits_until_the_last_one_is_fetched)
{
	struct http_peer *p = peer_new();
	p->size = 10 << 20;
	http_peer_feed(p, GET("/body"), strlen(GET("/body")));
	for (unsigned i = 0; i < 100; i++)
		cr_assert_eq(ring_turn(p->ring, false), 0);
	cr_assert_leq(p->made_bytes, HTTP1_TURN_BYTES);
	http_peer_fetch(p);
	for (unsigned i = 0; i < 100; i++)
		cr_assert_eq(ring_turn(p->ring, false), 0);
	cr_assert_leq(p->made_bytes, 2 * HTTP1_TURN_BYTES);
	cr_assert_gt(p->made_bytes, HTTP1_TURN_BYTES);
	http_peer_free(p);
}

Test(http1, a_body_that_fails_is_cut)
{
	struct http_peer *p = peer_new();
	say(p, GET("/fail"));
	cr_assert_eq(p->res, -EIO);
	cr_assert(p->session->dead);
	cr_assert(finished(p));
	struct http_answer a;
	cr_assert_not(http_answer_parse(&a, p->out.data, p->out.len, false),
		"half a body looks like a whole one");
	http_peer_free(p);
}

Test(http1, a_client_that_leaves_takes_its_body_along)
{
	struct http_peer *p = peer_new();
	static const char *const requests[] = {GET("/body"), GET("/slow"), GET("/seldom")};
	for (unsigned turns = 0; turns < 4; turns++)
		for (size_t i = 0; i < 3; i++) {
			http_peer_feed(p, requests[i], strlen(requests[i]));
			for (unsigned k = 0; k < turns; k++)
				cr_assert_eq(ring_turn(p->ring, false), 0);
			reconnect(p);
			cr_assert_eq(ring_turn(p->ring, false), 0);
		}
	http_peer_free(p);
}

/* Whatever their number, one turn of the loop makes no more than its share, and all get on. */
Test(http1, many_bodies_share_a_turn)
{
	enum { MANY = 100 };
	struct http_peer *p = peer_new();
	struct session *many[MANY];
	struct buf outs[MANY] = {0};
	p->size = 50000;
	for (unsigned i = 0; i < MANY; i++) {
		cr_assert_eq(http1_session_new(p->http1, http_on_wake, p, &many[i]), 0);
		cr_assert_eq(many[i]->ops->feed(
				     many[i], (const uint8_t *)GET("/body"), strlen(GET("/body"))),
			0);
		cr_assert_eq(many[i]->ops->output(many[i], &outs[i], 1 << 20), 0);
	}
	while (p->freed < MANY) {
		size_t before = p->made_bytes;
		cr_assert_eq(ring_turn(p->ring, false), 0);
		cr_assert_leq(p->made_bytes - before, HTTP1_TURN_BYTES + HTTP1_PIECE_BYTES);
		for (unsigned i = 0; i < MANY; i++)
			cr_assert_eq(many[i]->ops->output(many[i], &outs[i], 1 << 20), 0);
	}
	for (unsigned i = 0; i < MANY; i++) {
		struct http_answer a;
		cr_assert_eq(many[i]->ops->output(many[i], &outs[i], 1 << 20), 0);
		cr_assert(http_answer_parse(&a, outs[i].data, outs[i].len, false));
		cr_assert_eq(a.length, p->size);
		many[i]->ops->free(many[i]);
		buf_free(&outs[i]);
	}
	http_peer_free(p);
}

/* ---- time ---- */

Test(http1, silence_and_trickles_end)
{
	struct http_peer *p = peer_new();
	http_peer_advance(p, p->limits.half_open_ms + 10);
	cr_assert(finished(p));
	cr_assert_eq(p->session->end, SESSION_END_HALF_OPEN);
	http_peer_settle(p);
	cr_assert_eq(p->out.len, 0);

	/* A byte now and then does not help. */
	reconnect(p);
	const char *slow = "GET /text HTTP/1.1\r\nX: abcdefgh";
	for (unsigned i = 0; !finished(p) && p->session->end == SESSION_END_NONE; i++) {
		cr_assert_lt(i, 15);
		http_peer_feed(p, slow + i, 1);
		http_peer_advance(p, p->limits.half_open_ms / 10);
	}
	http_peer_settle(p);
	take_refusal(p, 408);
	cr_assert(finished(p));
	cr_assert_eq(p->session->end, SESSION_END_HALF_OPEN);

	/* Between requests there is more time. */
	reconnect(p);
	say(p, GET("/text"));
	take_answer(p, false);
	http_peer_advance(p, p->limits.half_open_ms * 2);
	cr_assert_not(finished(p));
	say(p, GET("/text"));
	take_answer(p, false);
	http_peer_advance(p, p->limits.idle_ms + 10);
	cr_assert(finished(p));
	cr_assert(p->session->dead);
	cr_assert_eq(p->session->end, SESSION_END_NONE);
	http_peer_free(p);
}

Test(http1, an_answer_has_its_time)
{
	struct http_peer *p = peer_new();
	say(p, GET("/slow"));
	unsigned wakes = p->wakes;
	http_peer_advance(p, HTTP1_ANSWER_MS + 10);
	cr_assert(p->session->dead);
	cr_assert(finished(p));
	cr_assert_eq(p->session->end, SESSION_END_STALLED);
	cr_assert_gt(p->wakes, wakes);
	http_peer_fetch(p);
	cr_assert_eq(p->res, -ETIMEDOUT);
	http_peer_free(p);
}

/* ---- ends ---- */

Test(http1, half_closed_clients_get_their_answers)
{
	struct http_peer *p = peer_new();
	http_peer_feed(p, GET("/slow") GET("/text"), strlen(GET("/slow") GET("/text")));
	p->session->ops->input_ended(p->session);
	cr_assert_not(finished(p));
	http_peer_settle(p);
	while (p->waiting != NULL) {
		http1_source_wake(&p->waiting->source);
		http_peer_settle(p);
	}
	cr_assert_eq(take_answer(p, false).length, p->size);
	cr_assert_eq(take_answer(p, false).length, 5);
	cr_assert(finished(p));
	reconnect(p);
	say(p, "GET /text HT");
	p->session->ops->input_ended(p->session);
	cr_assert(finished(p));
	cr_assert_eq(p->out.len, 0);
	reconnect(p);
	p->session->ops->input_ended(p->session);
	cr_assert(finished(p));
	http_peer_free(p);
}

Test(http1, drain)
{
	struct http_peer *p = peer_new();
	p->session->ops->drain(p->session);
	cr_assert(finished(p), "nothing was asked");

	reconnect(p);
	http_peer_feed(p, "GET /text HTTP/1.1\r\n", 20);
	p->session->ops->drain(p->session);
	cr_assert_not(finished(p));
	say(p, "Host: a\r\n\r\n");
	cr_assert(take_answer(p, false).close);
	cr_assert(finished(p));

	reconnect(p);
	http_peer_feed(p, GET("/body") GET("/text"), strlen(GET("/body") GET("/text")));
	p->session->ops->drain(p->session);
	cr_assert_not(finished(p));
	http_peer_settle(p);
	cr_assert_eq(take_answer(p, false).length, p->size);
	cr_assert(finished(p));
	cr_assert_eq(p->texts, 1, "a request after the drain was served");
	http_peer_free(p);
}
