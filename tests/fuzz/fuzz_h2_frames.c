/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fuzzer's bytes as a program of frames: requests with headers that make sense or nearly do,
 * messages whole, in parts and broken, resets, settings, windows, pings, and between them time that
 * passes, output that is read or left, a drain, calls that end late. So it gets past the preface
 * and HPACK, into what streams do to each other.
 */
#include "h2_world.h"

#include <string.h>

struct program {
	struct fuzz f;
	struct h2_world *w;
	struct buf out;   /* frames not fed yet */
	uint32_t next_id; /* of the next request */
	unsigned piece;   /* bytes fed at once */
	bool over;
};

static const uint8_t preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/* ---- the encoder ---- */

static void put(struct program *p, const void *data, size_t len)
{
	must(buf_append(&p->out, data, len) == 0);
}

static void frame(
	struct program *p, unsigned type, unsigned flags, uint32_t id, const void *data, size_t len)
{
	const uint8_t head[9] = {(uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len,
		(uint8_t)type, (uint8_t)flags, (uint8_t)(id >> 24), (uint8_t)(id >> 16),
		(uint8_t)(id >> 8), (uint8_t)id};
	put(p, head, sizeof(head));
	put(p, data, len);
}

/* A literal without indexing; lengths below 127 or in two bytes. */
static void put_length(struct buf *block, size_t len)
{
	uint8_t bytes[3] = {(uint8_t)len};
	size_t count = 1;
	if (len >= 127) {
		bytes[0] = 127;
		bytes[1] = (uint8_t)((len - 127) | 0x80);
		bytes[2] = (uint8_t)((len - 127) >> 7);
		count = 3;
	}
	must(buf_append(block, bytes, count) == 0);
}

static void put_header(
	struct buf *block, const void *name, size_t name_len, const void *value, size_t value_len)
{
	must(buf_append(block, "", 1) == 0);
	put_length(block, name_len);
	must(buf_append(block, name, name_len) == 0);
	put_length(block, value_len);
	must(buf_append(block, value, value_len) == 0);
}

static void put_text_header(struct buf *block, const char *name, const char *value)
{
	put_header(block, name, strlen(name), value, strlen(value));
}

/* ---- choices ---- */

static const char *const paths[] = {"/toy.Toy/Echo", "/toy.Toy/Fail", "/toy.Toy/Hold",
	"/toy.Toy/Flood", "/toy.Toy/Chat", "/toy.Toy/Nothing", "/csi.v1.Identity/Probe",
	"/csi.v1.Identity/GetPluginInfo", "/csi.v1.Identity/GetPluginCapabilities",
	"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "", "/", "*"};
static const char *const headers[][2] = {{"grpc-timeout", "1S"}, {"grpc-timeout", "0n"},
	{"grpc-timeout", "99999999H"}, {"grpc-timeout", "x"}, {"grpc-encoding", "gzip"},
	{"grpc-encoding", "identity"}, {"te", "trailers"}, {"te", "gzip"}, {"connection", "close"},
	{"transfer-encoding", "chunked"}, {"user-agent", "fuzz"}, {"content-length", "5"},
	{":path", "/again"}, {":status", "200"}, {":authority", "x"}, {"X-Upper", "case"}};

static uint32_t pick_stream(struct program *p)
{
	uint8_t b = fuzz_byte(&p->f);
	if (b == 0xff)
		return fuzz_u32(&p->f) & 0x7fffffff;
	return p->next_id > 2 ? p->next_id - 2 - 2 * (b % 8u) : b; /* one of the last eight */
}

static void request_block(struct program *p, struct buf *block)
{
	uint8_t how = fuzz_byte(&p->f);
	const char *path = paths[fuzz_below(&p->f, sizeof(paths) / sizeof(paths[0]))];
	if ((how & 0x01) == 0)
		put_text_header(block, ":method", (how & 0x10) != 0 ? "GET" : "POST");
	if ((how & 0x02) == 0)
		put_text_header(block, ":scheme", "http");
	if ((how & 0x04) == 0)
		put_text_header(block, ":path", path);
	if ((how & 0x08) == 0)
		put_text_header(block, "content-type",
			(how & 0x20) != 0 ? "text/html" : "application/grpc");
	for (unsigned n = how >> 6; n > 0; n--) {
		uint8_t b = fuzz_byte(&p->f);
		if (b < 0xf0) {
			put_text_header(block, headers[b % 16][0], headers[b % 16][1]);
		} else if (b < 0xf8) {
			struct fuzz name = fuzz_take(&p->f, fuzz_below(&p->f, 40));
			struct fuzz value = fuzz_take(&p->f, fuzz_byte(&p->f));
			put_header(block, name.data, name.len, value.data, value.len);
		} else if (b < 0xfc) {
			struct fuzz raw = fuzz_take(&p->f, fuzz_byte(&p->f));
			must(buf_append(block, raw.data, raw.len) == 0);
		} else {
			static const char filler[4000];
			put_header(block, "x-large", 7, filler, 40u * fuzz_below(&p->f, 100));
		}
	}
}

static void do_request(struct program *p)
{
	uint8_t how = fuzz_byte(&p->f);
	uint32_t id = p->next_id;
	struct buf block = {0};
	request_block(p, &block);
	if ((how & 0xf0) == 0xf0)
		id = pick_stream(p); /* trailers, or nonsense */
	else
		p->next_id += 2;
	unsigned end = (how & 1) != 0 ? NGHTTP2_FLAG_END_STREAM : 0;
	if ((how & 2) != 0 && block.len > 1) {
		size_t half = block.len / 2;
		frame(p, NGHTTP2_HEADERS, end, id, block.data, half);
		if ((how & 4) == 0)
			frame(p, NGHTTP2_CONTINUATION, NGHTTP2_FLAG_END_HEADERS, id,
				block.data + half, block.len - half);
	} else {
		frame(p, NGHTTP2_HEADERS, end | NGHTTP2_FLAG_END_HEADERS, id, block.data,
			block.len);
	}
	buf_free(&block);
}

/* A message: prefix, and a text field with bytes of the input; `how` breaks it. */
static void put_message(struct program *p, struct buf *body)
{
	uint8_t how = fuzz_byte(&p->f);
	struct fuzz text = fuzz_take(&p->f, how >= 0xc0 ? fuzz_byte(&p->f) : how % 16u);
	size_t size = text.len + (text.len < 128 ? 2 : 3);
	uint8_t head[8] = {(how & 0xf0) == 0x10 ? 1 : 0, (how & 0xf0) == 0x20 ? 1 : 0, 0,
		(uint8_t)(size >> 8), (uint8_t)size, 10, (uint8_t)text.len, 1};
	if ((how & 0xf0) == 0x30)
		head[4] += 3; /* longer than what comes */
	if ((how & 0xf0) == 0x40)
		head[5] = 0xff; /* does not decode */
	if ((how & 0xf0) == 0x50)
		head[5] = (uint8_t)(fuzz_byte(&p->f) << 3 | 2); /* another field */
	if (text.len >= 128)
		head[6] |= 0x80;
	must(buf_append(body, head, text.len < 128 ? 7 : 8) == 0);
	must(buf_append(body, text.data, text.len) == 0);
}

static void do_data(struct program *p)
{
	uint8_t how = fuzz_byte(&p->f);
	uint32_t id = pick_stream(p);
	struct buf body = {0};
	for (unsigned n = 1 + (how >> 6); n > 0 && (how & 0x30) != 0x30; n--)
		put_message(p, &body);
	if ((how & 0x30) == 0x30) {
		struct fuzz raw = fuzz_take(&p->f, fuzz_byte(&p->f));
		must(buf_append(&body, raw.data, raw.len) == 0);
	}
	unsigned end = (how & 1) != 0 ? NGHTTP2_FLAG_END_STREAM : 0;
	size_t half = (how & 2) != 0 ? body.len / 2 : 0;
	if ((how & 2) != 0)
		frame(p, NGHTTP2_DATA, 0, id, body.data, half);
	if ((how & 4) != 0) { /* padded by 3 */
		struct buf padded = {0};
		must(buf_append(&padded, "\3", 1) == 0);
		must(body.len == half ||
			buf_append(&padded, body.data + half, body.len - half) == 0);
		must(buf_append(&padded, "\0\0\0", 3) == 0);
		frame(p, NGHTTP2_DATA, end | NGHTTP2_FLAG_PADDED, id, padded.data, padded.len);
		buf_free(&padded);
	} else {
		frame(p, NGHTTP2_DATA, end, id, body.data != NULL ? body.data + half : NULL,
			body.len - half);
	}
	buf_free(&body);
}

static void put_u32(uint8_t *to, uint32_t v)
{
	for (unsigned i = 0; i < 4; i++)
		to[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void do_settings(struct program *p)
{
	static const uint32_t values[] = {
		0, 1, 16, 100, 4096, 16384, 65535, 1 << 20, 0x7fffffff, 0xffffffff};
	uint8_t payload[18];
	unsigned count = fuzz_below(&p->f, 4);
	for (unsigned i = 0; i < count; i++) {
		payload[6 * i] = 0;
		payload[6 * i + 1] = (uint8_t)fuzz_below(&p->f, 10);
		put_u32(payload + 6 * i + 2, values[fuzz_below(&p->f, 10)]);
	}
	frame(p, NGHTTP2_SETTINGS, 0, 0, payload, 6 * count);
}

static void do_control(struct program *p)
{
	uint8_t payload[16] = {0};
	switch (fuzz_below(&p->f, 8)) {
	case 0:
		frame(p, NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, NULL, 0);
		break;
	case 1:
		frame(p, NGHTTP2_PING, 0, 0, payload, 8);
		break;
	case 2: /* the answer to the drain's own */
		frame(p, NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, "drain\0\0\0", 8);
		break;
	case 3:
		put_u32(payload, p->next_id);
		frame(p, NGHTTP2_GOAWAY, 0, 0, payload, 8);
		break;
	case 4:
		put_u32(payload, fuzz_u32(&p->f));
		frame(p, NGHTTP2_WINDOW_UPDATE, 0, 0, payload, 4);
		break;
	case 5:
		put_u32(payload, 1u + 100u * fuzz_byte(&p->f));
		frame(p, NGHTTP2_WINDOW_UPDATE, 0, pick_stream(p), payload, 4);
		break;
	case 6:
		put_u32(payload, pick_stream(p));
		frame(p, NGHTTP2_PRIORITY, 0, pick_stream(p), payload, 5);
		break;
	default:
		put_u32(payload, fuzz_below(&p->f, 16));
		frame(p, NGHTTP2_RST_STREAM, 0, pick_stream(p), payload, 4);
		break;
	}
}

static void do_raw(struct program *p)
{
	uint8_t type = fuzz_byte(&p->f), flags = fuzz_byte(&p->f);
	uint32_t id = pick_stream(p);
	struct fuzz raw = fuzz_take(&p->f, fuzz_byte(&p->f));
	frame(p, type, flags, id, raw.data, raw.len);
}

/* ---- the program ---- */

static void flush(struct program *p)
{
	for (size_t at = 0; at < p->out.len && !p->over;) {
		size_t n = p->out.len - at < p->piece ? p->out.len - at : p->piece;
		p->over = !h2_world_feed(p->w, p->out.data + at, n);
		at += n;
	}
	p->out.len = 0;
}

static void do_world(struct program *p)
{
	static const uint64_t delays_ms[] = {0, 1, 10, 1000, 1500, 5000, 11000, 31000};
	flush(p);
	uint8_t what = fuzz_byte(&p->f);
	switch (what % 8) {
	case 0:
		h2_world_output(p->w, 1 << 20);
		break;
	case 1:
		h2_world_output(p->w, 1 + what);
		break;
	case 2:
		h2_world_advance(p->w, delays_ms[what >> 3 & 7]);
		break;
	case 3:
		h2_world_end_held(p->w, what >> 3);
		break;
	case 4:
		h2_world_set_health((what & 0x80) != 0);
		break;
	case 5:
		p->w->session->ops->drain(p->w->session);
		break;
	case 6:
		p->piece = 1 + (what >> 3) * 7u;
		break;
	default:
		p->piece = 1 << 20;
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct program p = {.f = {data, len}, .next_id = 1, .piece = 1 << 20};
	p.w = h2_world_open(fuzz_below(&p.f, 2) != 0);
	put(&p, preface, sizeof(preface) - 1);
	frame(&p, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
	while (p.f.len > 0 && !p.over) {
		switch (fuzz_below(&p.f, 8)) {
		case 0:
		case 1:
			do_request(&p);
			break;
		case 2:
		case 3:
			do_data(&p);
			break;
		case 4:
			do_settings(&p);
			break;
		case 5:
			do_control(&p);
			break;
		case 6:
			do_raw(&p);
			break;
		default:
			do_world(&p);
			break;
		}
		if (p.out.len > 1 << 16)
			flush(&p);
	}
	flush(&p);
	buf_free(&p.out);
	h2_world_close(p.w);
	return 0;
}
