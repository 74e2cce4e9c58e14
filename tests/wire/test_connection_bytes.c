/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: bytes by hand, what no client's library would send. */
#include "frames.h"
#include "peer_env.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

TestSuite(connection, .init = setup, .fini = teardown);

/* Feeds and collects what is answered. */
static struct buf raw_exchange(const struct buf *in)
{
	struct buf out = {0};
	p->fed = 0;
	peer_feed(p, in->data, in->len);
	cr_assert(p->session->ops->output(p->session, &out, 1 << 20) <= 0);
	return out;
}

Test(connection, upper_case_and_misplaced_headers)
{
	static const char *const bad[][2] = {
		{"Upper", "x"}, {"sp ace", "x"}, {":path", "/again"}, {":late", "x"}, {"", "x"}};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct buf in = {0}, headers = {0};
		request_headers(&headers);
		literal(&headers, bad[i][0], bad[i][1]);
		raw_start(&in);
		frame(&in, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, 1,
			headers.data, headers.len);
		peer_reconnect(p);
		struct buf out = raw_exchange(&in);
		cr_assert(has_frame(&out, NGHTTP2_RST_STREAM), "%s", bad[i][0]);
		cr_assert_eq(peer_streams(p), 0);
		buf_free(&in);
		buf_free(&out);
		buf_free(&headers);
	}
}

Test(connection, headers_that_never_end)
{
	struct buf in = {0}, headers = {0};
	request_headers(&headers);
	raw_start(&in);
	frame(&in, NGHTTP2_HEADERS, 0, 1, headers.data, headers.len);
	struct buf out = raw_exchange(&in);
	buf_free(&out);
	peer_reconnect(p);
	out = raw_exchange(&in);
	buf_free(&out);
	sim_pass_ms(p->ring, p->limits.half_open_ms + 1);
	cr_assert_eq(p->session->ops->output(p->session, &out, 1 << 20), 0);
	cr_assert(has_frame(&out, NGHTTP2_GOAWAY));
	cr_assert(p->session->ops->finished(p->session));
	buf_free(&in);
	buf_free(&out);
	buf_free(&headers);
}

/* One byte of HPACK stands for four kilobytes of header, a thousand times over. */
Test(connection, a_header_bomb)
{
	struct buf in = {0}, headers = {0};
	char value[126];
	memset(value, 'b', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	request_headers(&headers);
	uint8_t indexed[] = {0x40, 1, 'x', 125};
	buf_append(&headers, indexed, sizeof(indexed));
	buf_append(&headers, value, 125);
	for (unsigned i = 0; i < 10000; i++)
		buf_append(&headers, &(uint8_t){0x80 | 62}, 1);
	raw_start(&in);
	frame(&in, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, 1,
		headers.data, headers.len);
	struct buf out = raw_exchange(&in);
	cr_assert_eq(p->fed, 0);
	cr_assert_eq(peer_streams(p), 0);
	cr_assert(has_frame(&out, NGHTTP2_HEADERS));
	cr_assert_eq(world.echoes, 0);
	buf_free(&in);
	buf_free(&out);
	buf_free(&headers);
}

Test(connection, a_flood_of_continuations)
{
	struct buf in = {0};
	raw_start(&in);
	frame(&in, NGHTTP2_HEADERS, 0, 1, "", 0);
	for (unsigned i = 0; i < 10000; i++)
		frame(&in, NGHTTP2_CONTINUATION, 0, 1, "", 0);
	struct buf out = raw_exchange(&in);
	cr_assert(p->fed < 0 || has_frame(&out, NGHTTP2_GOAWAY));
	buf_free(&in);
	buf_free(&out);
}

/* Opening and resetting for ever is answered with the end of the connection. */
Test(connection, a_flood_of_resets)
{
	struct buf in = {0}, headers = {0};
	request_headers(&headers);
	raw_start(&in);
	for (uint32_t i = 0; i < 5000; i++) {
		frame(&in, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1 + 2 * i, headers.data,
			headers.len);
		frame(&in, NGHTTP2_RST_STREAM, 0, 1 + 2 * i, "\0\0\0\x08", 4);
	}
	p->chunk = 4096;
	struct buf out = {0};
	for (size_t at = 0; at < in.len && !has_frame(&out, NGHTTP2_GOAWAY); at += 4096) {
		size_t n = in.len - at < 4096 ? in.len - at : 4096;
		peer_feed(p, in.data + at, n);
		p->session->ops->output(p->session, &out, SIZE_MAX / 4);
	}
	cr_assert(has_frame(&out, NGHTTP2_GOAWAY));
	cr_assert_eq(grpc_registry_in_flight(p->registry), 0);
	buf_free(&in);
	buf_free(&out);
	buf_free(&headers);
}

/* Streams opened beyond the limit by a client that never says it has heard of it, and reads
 * nothing. Returns how many were refused before the connection ended, `most` if it did not. */
static unsigned open_refused(unsigned most)
{
	struct buf in = {0}, headers = {0};
	request_headers(&headers);
	raw_start(&in);
	peer_reconnect(p);
	peer_feed(p, in.data, in.len);
	unsigned opened = 0;
	for (uint32_t i = 0; p->fed == 0 && i < p->limits.streams + most; i++, opened++) {
		in.len = 0;
		frame(&in, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1 + 2 * i, headers.data,
			headers.len);
		peer_feed(p, in.data, in.len);
	}
	buf_free(&in);
	buf_free(&headers);
	return opened - p->limits.streams;
}

Test(connection, a_flood_of_refused_streams)
{
	cr_expect_lt(open_refused(100000), 5000);
	cr_expect_eq(p->fed, -EPROTO);
	cr_assert(p->session->ops->finished(p->session));
	/* A burst of calls that were under way before our SETTINGS arrived is no flood. */
	cr_expect_eq(open_refused(2000), 2000);
	cr_expect_eq(p->fed, 0);
	struct buf out = {0};
	cr_assert_eq(p->session->ops->output(p->session, &out, 1 << 20), 0);
	cr_assert(has_frame(&out, NGHTTP2_RST_STREAM));
	cr_assert_not(has_frame(&out, NGHTTP2_GOAWAY));
	buf_free(&out);
}

Test(connection, http_1)
{
	static const char get[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
	struct buf out = {0};
	cr_assert_eq(
		p->session->ops->feed(p->session, (const uint8_t *)get, sizeof(get) - 1), -EPROTO);
	cr_assert(p->session->ops->finished(p->session));
	cr_assert_eq(p->session->ops->output(p->session, &out, 1 << 20), -EPROTO);
	cr_assert_eq(out.len, 0);
}

Test(connection, frames_that_are_wrong)
{
	static const struct {
		uint8_t type, flags;
		uint32_t id;
		const char *payload;
		size_t len;
	} cases[] = {
		{NGHTTP2_DATA, 0, 0, "x", 1},           /* DATA on stream 0 */
		{NGHTTP2_DATA, 0, 7, "x", 1},           /* on an idle stream */
		{NGHTTP2_HEADERS, 4, 2, "\x82", 1},     /* an even stream */
		{NGHTTP2_HEADERS, 4, 1, "\xFF\xFF", 2}, /* HPACK that ends too soon */
		{NGHTTP2_SETTINGS, 0, 0, "abc", 3},     /* a length that is no multiple of 6 */
		{NGHTTP2_PING, 0, 0, "abc", 3},
		{NGHTTP2_WINDOW_UPDATE, 0, 0, "\0\0\0\0", 4},
		{NGHTTP2_CONTINUATION, 4, 1, "", 0},
		{NGHTTP2_PUSH_PROMISE, 4, 1, "\0\0\0\2", 4},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct buf in = {0};
		raw_start(&in);
		frame(&in, cases[i].type, cases[i].flags, cases[i].id, cases[i].payload,
			cases[i].len);
		peer_reconnect(p);
		struct buf out = raw_exchange(&in);
		cr_assert(has_frame(&out, NGHTTP2_GOAWAY), "case %zu", i);
		cr_assert(p->session->ops->finished(p->session), "case %zu", i);
		buf_free(&in);
		buf_free(&out);
	}
}

/* A good exchange with bytes changed, cut or repeated: whatever comes of it, it ends. */
Test(connection, garbage)
{
	unsigned seed = (unsigned)time(NULL);
	fprintf(stderr, "seed %u\n", seed);
	srand(seed);
	for (unsigned round = 0; round < 2000; round++) {
		struct buf in = {0}, headers = {0}, body = {0};
		request_headers(&headers);
		text_frame(&body, "garbage", 7);
		raw_start(&in);
		for (uint32_t id = 1; id < 7; id += 2) {
			frame(&in, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, id, headers.data,
				headers.len);
			frame(&in, NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, id, body.data, body.len);
			frame(&in, NGHTTP2_PING, 0, 0, "12345678", 8);
		}
		unsigned changes = 1 + (unsigned)rand() % 8;
		for (unsigned i = 0; i < changes; i++)
			in.data[24 + (unsigned)rand() % (in.len - 24)] = (uint8_t)rand();
		in.len -= (size_t)rand() % 20;
		peer_reconnect(p);
		p->chunk = 1 + (size_t)rand() % 64;
		struct buf out = raw_exchange(&in);
		buf_free(&in);
		buf_free(&out);
		buf_free(&headers);
		buf_free(&body);
	}
}
