/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel and a peer that is no good server: frames by hand on a real socket, on a simulated
 * clock. Each call ends exactly once, with the status that gRPC says, and the channel goes on.
 */
#include "answer_frames.h"
#include "base/utf8.h"
#include "channel_env.h"
#include "unit/sim_time.h"

#include "rpc/registry.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct ring_sim sim = {.seed = 1};
static struct channel *channel;
static struct asked a, b;
static int listener = -1, host = -1; /* the peer's sockets */
static struct buf heard;             /* what the channel has sent on `host` */
static unsigned accepted;

static void hostile_setup(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct err err = {0};
	setup_with(&sim);
	snprintf(path, sizeof(path), "%s/peer.sock", dir);
	snprintf(endpoint, sizeof(endpoint), "unix://%s", path);
	memcpy(address.sun_path, path, strlen(path) + 1);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	cr_assert_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0, "%m");
	cr_assert_eq(listen(listener, 8), 0);
	struct channel_config config = {.ring = ring, .address = endpoint, .registry = registry};
	cr_assert_eq(channel_open(&channel, &config, &err), 0, "%s", err.message);
}

static void hostile_teardown(void)
{
	channel_close(channel);
	cr_assert_not(channel_call_active(&a.call));
	cr_assert_not(channel_call_active(&b.call));
	cr_assert_eq(grpc_registry_memory(registry), 0);
	buf_free(&a.got);
	buf_free(&b.got);
	buf_free(&heard);
	close(host);
	close(listener);
	teardown();
}

TestSuite(channel_hostile, .init = hostile_setup, .fini = hostile_teardown);

/* ---- the peer ---- */

static void turn(void)
{
	for (unsigned i = 0; i < 20; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
}

static void listen_on(void)
{
	uint8_t in[4096];
	turn();
	for (ssize_t n; host >= 0 && (n = recv(host, in, sizeof(in), MSG_DONTWAIT)) > 0; turn())
		buf_append(&heard, in, (size_t)n);
}

static bool host_accept(void)
{
	turn();
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return false;
	if (host >= 0)
		close(host);
	host = fd;
	heard.len = 0;
	accepted++;
	return true;
}

/* Sends the bytes and empties the buffer. Those that a channel which has hung up does not take are
 * lost. */
static void host_say(struct buf *bytes)
{
	for (size_t at = 0; at < bytes->len;) {
		ssize_t n =
			send(host, bytes->data + at, bytes->len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno != EAGAIN)
			break;
		at += n > 0 ? (size_t)n : 0;
		listen_on();
	}
	listen_on();
	buf_free(bytes);
}

static void host_hang_up(void)
{
	close(host);
	host = -1;
	turn();
}

static void greet(void)
{
	struct buf bytes = {0};
	frame(&bytes, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
	frame(&bytes, NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, NULL, 0);
	host_say(&bytes);
}

static void pass_ms(uint64_t ms)
{
	sim_pass_ms(ring, ms);
	listen_on();
}

/* A call is under way, and the peer has its request on stream 1. */
static void begin(void)
{
	ask(channel, &a, "/test.v1.Test/Echo", "hello");
	cr_assert(host_accept());
	greet();
	cr_assert(has_frame(&(struct buf){.data = heard.data + sizeof(preface) - 1,
				    .len = heard.len - (sizeof(preface) - 1)},
			  NGHTTP2_HEADERS),
		"the call is not sent");
}

static bool was_sent(uint8_t type)
{
	const struct buf frames = {
		.data = heard.data + sizeof(preface) - 1, .len = heard.len - (sizeof(preface) - 1)};
	return has_frame(&frames, type);
}

/* ---- answers ---- */

/* What follows a fault: the next call is answered, on this connection or on another. */
static void assert_goes_on(void)
{
	struct buf bytes = {0};
	if (channel_state(channel) == CHANNEL_UP)
		return;
	ask(channel, &b, "/test.v1.Test/Echo", "again");
	cr_assert(host_accept(), "the channel does not dial again");
	greet();
	GRPC_HEADERS(&bytes);
	text_data(&bytes, 0, "again");
	HEADERS(&bytes, END, "grpc-status", "0");
	host_say(&bytes);
	assert_asked_text(&b, "again");
}

#define assert_ended(want, text, was_it_sent)                                                      \
	do {                                                                                       \
		cr_assert_eq(a.ends, 1, "line %d: %u ends", __LINE__, a.ends);                     \
		cr_assert_eq(a.status, (want), "%d, \"%s\"", a.status, a.message);                 \
		cr_assert_not_null(strstr(a.message, (text)), "\"%s\"", a.message);                \
		cr_assert_eq(a.sent, (was_it_sent), "\"%s\"", a.message);                          \
	} while (0)

Test(channel_hostile, a_good_answer)
{
	struct buf bytes = {0};
	begin();
	GRPC_HEADERS(&bytes);
	text_data(&bytes, 0, "hello");
	HEADERS(&bytes, END, "grpc-status", "0");
	host_say(&bytes);
	assert_asked_text(&a, "hello");
	cr_assert_not(was_sent(NGHTTP2_RST_STREAM));
	assert_goes_on();
}

/* The same, with the bytes cut anywhere. */
Test(channel_hostile, bytes_come_one_by_one)
{
	struct buf bytes = {0}, one = {0};
	begin();
	GRPC_HEADERS(&bytes);
	text_data(&bytes, 0, "hello");
	text_data(&bytes, 0, "once more");
	HEADERS(&bytes, END, "grpc-status", "0");
	for (size_t i = 0; i < bytes.len; i++) {
		buf_append(&one, bytes.data + i, 1);
		host_say(&one);
	}
	buf_free(&bytes);
	cr_assert_eq(a.messages, 2);
	assert_ended(GRPC_OK, "", true);
}

Test(channel_hostile, a_status_without_messages)
{
	struct buf bytes = {0};
	begin();
	HEADERS(&bytes, END, ":status", "200", "content-type", "application/grpc+proto",
		"grpc-status", "5", "grpc-message", "caf%C3%A9 100%25 %zz%");
	host_say(&bytes);
	assert_ended(GRPC_NOT_FOUND, "caf\xC3\xA9 100% %zz%", true);
}

Test(channel_hostile, a_message_that_is_no_utf8)
{
	struct buf bytes = {0};
	begin();
	HEADERS(&bytes, END, ":status", "200", "content-type", "application/grpc", "grpc-status",
		"9", "grpc-message", "a%FFb%C3c%00d");
	host_say(&bytes);
	assert_ended(GRPC_FAILED_PRECONDITION, "a?b?c", true);
}

Test(channel_hostile, informational_headers_are_skipped)
{
	struct buf bytes = {0};
	begin();
	HEADERS(&bytes, 0, ":status", "103", "link", "x");
	GRPC_HEADERS(&bytes);
	text_data(&bytes, 0, "hello");
	HEADERS(&bytes, END, "grpc-status", "0");
	host_say(&bytes);
	assert_asked_text(&a, "hello");
}

/* ---- answers that are none ---- */

Test(channel_hostile, http_errors)
{
	static const struct {
		const char *http;
		enum grpc_status status;
	} rows[] = {{"400", GRPC_INTERNAL}, {"401", GRPC_UNAUTHENTICATED},
		{"403", GRPC_PERMISSION_DENIED}, {"404", GRPC_UNIMPLEMENTED},
		{"429", GRPC_UNAVAILABLE}, {"500", GRPC_UNKNOWN}, {"502", GRPC_UNAVAILABLE},
		{"503", GRPC_UNAVAILABLE}, {"504", GRPC_UNAVAILABLE}, {"302", GRPC_UNKNOWN}};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct buf bytes = {0};
		begin();
		HEADERS(&bytes, 0, ":status", rows[i].http, "content-type", "text/html");
		frame(&bytes, NGHTTP2_DATA, END, 1, "<html>oh\0\0\0\0", 12);
		host_say(&bytes);
		cr_assert_eq(a.messages, 0);
		assert_ended(rows[i].status, rows[i].http, true);
		host_hang_up();
	}
}

Test(channel_hostile, answers_that_are_no_grpc)
{
	static const uint8_t large[] = {0, 0, 0x40, 0, 1, 0};
	static const uint8_t compressed[] = {1, 0, 0, 0, 1, 0};
	static const uint8_t half[] = {0, 0, 0, 0, 9, 1, 2};
	enum { ROWS = 11 };
	for (unsigned row = 0; row < ROWS; row++) {
		struct buf bytes = {0};
		begin();
		switch (row) {
		case 0: /* another content type */
			HEADERS(&bytes, 0, ":status", "200", "content-type", "text/html");
			text_data(&bytes, END, "hello");
			break;
		case 1:
			HEADERS(&bytes, END, ":status", "200");
			break;
		case 2: /* no trailers */
			GRPC_HEADERS(&bytes);
			text_data(&bytes, END, "hello");
			break;
		case 3:
			GRPC_HEADERS(&bytes);
			HEADERS(&bytes, END, "x", "y");
			break;
		case 4: /* half a message */
			GRPC_HEADERS(&bytes);
			frame(&bytes, NGHTTP2_DATA, 0, 1, half, sizeof(half));
			HEADERS(&bytes, END, "grpc-status", "0");
			break;
		case 5:
			GRPC_HEADERS(&bytes);
			frame(&bytes, NGHTTP2_DATA, 0, 1, large, sizeof(large));
			break;
		case 6:
			GRPC_HEADERS(&bytes);
			frame(&bytes, NGHTTP2_DATA, 0, 1, compressed, sizeof(compressed));
			break;
		case 7:
			HEADERS(&bytes, END, ":status", "200", "content-type", "application/grpc",
				"grpc-status", "banana");
			break;
		case 8:
			HEADERS(&bytes, END, ":status", "200", "content-type", "application/grpc",
				"grpc-status", "17");
			break;
		case 9: /* nghttp2's checks */
			HEADERS(&bytes, END, "content-type", "application/grpc", "grpc-status",
				"0");
			break;
		default:
			text_data(&bytes, END, "hello"); /* no headers at all */
			break;
		}
		static const enum grpc_status want[ROWS] = {GRPC_UNKNOWN, GRPC_UNKNOWN,
			GRPC_INTERNAL, GRPC_INTERNAL, GRPC_INTERNAL, GRPC_RESOURCE_EXHAUSTED,
			GRPC_INTERNAL, GRPC_UNKNOWN, GRPC_UNKNOWN, GRPC_INTERNAL, GRPC_UNAVAILABLE};
		host_say(&bytes);
		cr_assert_eq(a.messages, row == 2, "row %u", row);
		cr_assert_eq(a.ends, 1, "row %u", row);
		cr_assert_eq(a.status, want[row], "row %u: %d %s", row, a.status, a.message);
		cr_assert(a.sent);
		if (row == 5 || row == 6)
			cr_assert(was_sent(NGHTTP2_RST_STREAM));
		assert_goes_on();
		host_hang_up();
	}
}

Test(channel_hostile, a_header_list_that_is_too_large)
{
	struct buf bytes = {0}, block = {0};
	char value[121];
	begin();
	memset(value, 'x', 120);
	value[120] = '\0';
	literal(&block, ":status", "200");
	for (unsigned i = 0; i < 110; i++)
		literal(&block, "filler", value);
	frame(&bytes, NGHTTP2_HEADERS, WHOLE, 1, block.data, block.len);
	buf_free(&block);
	host_say(&bytes);
	assert_ended(GRPC_RESOURCE_EXHAUSTED, "header list", true);
	cr_assert(was_sent(NGHTTP2_RST_STREAM));
	assert_goes_on();
}

Test(channel_hostile, resets)
{
	static const struct {
		uint32_t code;
		enum grpc_status status;
		bool sent;
	} rows[] = {{NGHTTP2_NO_ERROR, GRPC_INTERNAL, true},
		{NGHTTP2_PROTOCOL_ERROR, GRPC_INTERNAL, true},
		{NGHTTP2_REFUSED_STREAM, GRPC_UNAVAILABLE, false},
		{NGHTTP2_CANCEL, GRPC_CANCELLED, true},
		{NGHTTP2_ENHANCE_YOUR_CALM, GRPC_RESOURCE_EXHAUSTED, true},
		{NGHTTP2_INADEQUATE_SECURITY, GRPC_PERMISSION_DENIED, true},
		{12345, GRPC_INTERNAL, true}};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct buf bytes = {0};
		begin();
		if (i % 2 == 1)
			GRPC_HEADERS(&bytes);
		reset(&bytes, rows[i].code);
		host_say(&bytes);
		assert_ended(rows[i].status, "the peer has", rows[i].sent);
		assert_goes_on();
		host_hang_up();
	}
}

/* ---- GOAWAY at each moment ---- */

/* What it has not looked at can be asked anew elsewhere. */
Test(channel_hostile, goaway_that_leaves_the_call_out)
{
	struct buf bytes = {0};
	begin();
	goaway(&bytes, 0, NGHTTP2_NO_ERROR, "");
	host_say(&bytes);
	assert_ended(GRPC_UNAVAILABLE, "not taken", false);
	assert_goes_on();
}

Test(channel_hostile, goaway_with_a_call_that_goes_on)
{
	struct buf bytes = {0};
	begin();
	goaway(&bytes, 1, NGHTTP2_NO_ERROR, "");
	host_say(&bytes);
	cr_assert_eq(a.ends, 0);
	cr_assert_eq(channel_state(channel), CHANNEL_LEAVING);
	int old = host;
	host = -1;
	assert_goes_on();
	cr_assert_eq(channel_state(channel), CHANNEL_UP);
	int now = host;
	host = old;
	GRPC_HEADERS(&bytes);
	text_data(&bytes, 0, "hello");
	HEADERS(&bytes, END, "grpc-status", "0");
	host_say(&bytes);
	assert_asked_text(&a, "hello");
	cr_assert_eq(recv(old, &old, 1, MSG_DONTWAIT), 0, "it is not closed");
	close(host);
	host = now;
}

Test(channel_hostile, goaway_with_a_reason)
{
	struct buf bytes = {0};
	begin();
	goaway(&bytes, 1, NGHTTP2_ENHANCE_YOUR_CALM, "too_many\npings");
	host_say(&bytes);
	host_hang_up();
	assert_ended(GRPC_UNAVAILABLE, "ENHANCE_YOUR_CALM: too_many?pings", true);
	cr_assert_not_null(strstr(channel_why(channel), "too_many?pings"));
	assert_goes_on();
	cr_assert_str_eq(channel_why(channel), "");
}

/* Before any call could start: it is not dialled for ever. */
Test(channel_hostile, goaway_instead_of_an_answer_to_all)
{
	for (unsigned greeted = 0; greeted < 2; greeted++) {
		struct buf bytes = {0};
		accepted = 0;
		ask(channel, &a, "/test.v1.Test/Echo", "hello");
		cr_assert(host_accept());
		if (greeted == 1) {
			/* No streams, so that the call waits. */
			static const uint8_t none[] = {0, 3, 0, 0, 0, 0};
			frame(&bytes, NGHTTP2_SETTINGS, 0, 0, none, sizeof(none));
		}
		goaway(&bytes, 0, NGHTTP2_NO_ERROR, "");
		host_say(&bytes);
		assert_ended(GRPC_UNAVAILABLE, "", false);
		cr_assert_not(host_accept());
		cr_assert_eq(accepted, 1);
		assert_goes_on();
		host_hang_up();
	}
}

Test(channel_hostile, many_connections_that_leave_and_stay)
{
	enum { MANY = 12 };
	static struct asked calls[MANY];
	int fds[MANY];
	for (unsigned i = 0; i < MANY; i++) {
		struct buf bytes = {0};
		ask(channel, &calls[i], "/test.v1.Test/Echo", "hello");
		cr_assert(host_accept());
		greet();
		goaway(&bytes, 1, NGHTTP2_NO_ERROR, "");
		host_say(&bytes);
		fds[i] = host;
		host = -1;
	}
	unsigned ended = 0;
	for (unsigned i = 0; i < MANY; i++)
		ended += calls[i].ends;
	cr_assert_eq(ended, MANY - 4);
	channel_close(channel);
	channel = NULL;
	for (unsigned i = 0; i < MANY; i++) {
		cr_assert_eq(calls[i].ends, 1);
		cr_assert_eq(calls[i].status, GRPC_UNAVAILABLE);
		buf_free(&calls[i].got);
		close(fds[i]);
	}
}

/* ---- silence and noise ---- */

Test(channel_hostile, nothing_is_said)
{
	for (unsigned half = 0; half < 2; half++) {
		struct buf bytes = {0};
		ask(channel, &a, "/test.v1.Test/Echo", "hello");
		cr_assert(host_accept());
		buf_append(&bytes, "\0\0\6\4\0", half * 5); /* a part of SETTINGS */
		host_say(&bytes);
		pass_ms(CHANNEL_CONNECT_MS - 100);
		cr_assert_eq(a.ends, 0);
		cr_assert_eq(channel_state(channel), CHANNEL_CONNECTING);
		pass_ms(200);
		assert_ended(GRPC_UNAVAILABLE, "no answer in time", false);
		assert_goes_on();
		host_hang_up();
	}
}

Test(channel_hostile, garbage_instead_of_a_greeting)
{
	static const char *const said[] = {"HTTP/1.1 400 Bad Request\r\n\r\n",
		"220 mail.example.com ESMTP\r\n", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"};
	for (size_t i = 0; i < 3; i++) {
		struct buf bytes = {0};
		ask(channel, &a, "/test.v1.Test/Echo", "hello");
		cr_assert(host_accept());
		buf_append(&bytes, said[i], strlen(said[i]));
		host_say(&bytes);
		assert_ended(GRPC_UNAVAILABLE, "", false);
		assert_goes_on();
		host_hang_up();
	}
}

Test(channel_hostile, garbage_in_the_middle)
{
	struct buf bytes = {0};
	begin();
	buf_append(&bytes, "this is no frame at all, and long enough to be seen as one", 58);
	host_say(&bytes);
	assert_ended(GRPC_UNAVAILABLE, "lost", true);
	assert_goes_on();
}

Test(channel_hostile, it_hangs_up)
{
	for (unsigned moment = 0; moment < 4; moment++) {
		struct buf bytes = {0};
		ask(channel, &a, "/test.v1.Test/Echo", "hello");
		cr_assert(host_accept());
		if (moment >= 1)
			greet();
		if (moment >= 2)
			GRPC_HEADERS(&bytes);
		if (moment >= 3)
			text_data(&bytes, 0, "hello");
		host_say(&bytes);
		host_hang_up();
		assert_ended(GRPC_UNAVAILABLE, "", moment >= 1);
		cr_assert_eq(a.messages, moment == 3);
		cr_assert_eq(channel_state(channel), CHANNEL_IDLE);
		assert_goes_on();
		host_hang_up();
	}
}

/* A cut network: nothing comes, not even to a ping. */
Test(channel_hostile, silence_under_a_call)
{
	begin();
	heard.len = 0;
	pass_ms(CHANNEL_PING_MS + 10);
	cr_assert(has_frame(&heard, NGHTTP2_PING));
	pass_ms(CHANNEL_PING_ANSWER_MS - 100);
	cr_assert_eq(a.ends, 0);
	pass_ms(200);
	assert_ended(GRPC_UNAVAILABLE, "nothing is heard", true);
	assert_goes_on();
}

/* The same on a connection that leaves, whose peer takes nothing any more. */
Test(channel_hostile, silence_under_a_call_that_is_left_behind)
{
	static uint8_t large[1 << 20];
	static const uint8_t open[] = {0x3f, 0xff, 0, 0};
	struct buf bytes = {0};
	asked_init(&a, "/test.v1.Test/Chat");
	channel_start(channel, &a.call, large, sizeof(large), false);
	cr_assert(host_accept());
	frame(&bytes, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
	frame(&bytes, NGHTTP2_WINDOW_UPDATE, 0, 0, open, 4);
	cr_assert_eq(send(host, bytes.data, bytes.len, 0), (ssize_t)bytes.len);
	turn();
	bytes.len = 0;
	frame(&bytes, NGHTTP2_WINDOW_UPDATE, 0, 1, open, 4);
	goaway(&bytes, 1, NGHTTP2_NO_ERROR, "");
	cr_assert_eq(send(host, bytes.data, bytes.len, 0), (ssize_t)bytes.len);
	buf_free(&bytes);
	turn();
	cr_assert_eq(channel_state(channel), CHANNEL_LEAVING);
	sim_pass_ms(ring, CHANNEL_PING_MS + CHANNEL_PING_ANSWER_MS + 100);
	turn();
	assert_ended(GRPC_UNAVAILABLE, "the peer has closed the connection", true);
	cr_assert_eq(channel_state(channel), CHANNEL_IDLE);
	assert_goes_on();
}

/* It answers pings and nothing else: that is a slow call, and has a deadline. */
Test(channel_hostile, pings_are_answered)
{
	struct buf text = packed("hello", 5);
	asked_init(&a, "/test.v1.Test/Echo");
	a.call.deadline_ns = ring_now_ns(ring) + 60 * UINT64_C(1000000000);
	channel_start(channel, &a.call, text.data, text.len, true);
	buf_free(&text);
	cr_assert(host_accept());
	greet();
	unsigned pings = 0;
	for (unsigned s = 0; s < 59; s++) {
		heard.len = 0;
		pass_ms(1000);
		struct buf bytes = {0};
		if (has_frame(&heard, NGHTTP2_PING)) {
			frame(&bytes, NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0,
				find_frame(&heard, NGHTTP2_PING), 8);
			pings++;
		}
		host_say(&bytes);
		cr_assert_eq(a.ends, 0, "%u: %s", s, a.message);
	}
	cr_assert(pings >= 9 && pings <= 12, "%u", pings);
	heard.len = 0;
	pass_ms(1100);
	assert_ended(GRPC_DEADLINE_EXCEEDED, "deadline", true);
	cr_assert(has_frame(&heard, NGHTTP2_RST_STREAM));
	cr_assert_eq(channel_state(channel), CHANNEL_UP);
}

Test(channel_hostile, it_takes_nothing)
{
	static uint8_t large[1 << 20];
	begin();
	asked_init(&b, "/test.v1.Test/Chat");
	channel_start(channel, &b.call, large, sizeof(large), false);
	/* Windows wide open, and not a byte is read. */
	static const uint8_t open[] = {0x3f, 0xff, 0, 0};
	struct buf bytes = {0};
	frame(&bytes, NGHTTP2_WINDOW_UPDATE, 0, 0, open, 4);
	frame(&bytes, NGHTTP2_WINDOW_UPDATE, 0, 3, open, 4);
	send(host, bytes.data, bytes.len, 0);
	turn();
	for (unsigned s = 0; s < 20 && b.ends == 0; s++) {
		/* It says something, so that it is no silence. */
		send(host, "\0\0\10\6\0\0\0\0\0pingping", 17, MSG_NOSIGNAL | MSG_DONTWAIT);
		sim_pass_ms(ring, 1000);
	}
	cr_assert_eq(b.ends, 1);
	assert_ended(GRPC_UNAVAILABLE, "lost", true);
	buf_free(&bytes);
	assert_goes_on();
}

Test(channel_hostile, a_flood_of_frames_that_want_answers)
{
	begin();
	struct buf flood = {0};
	for (unsigned i = 0; i < 200000 && a.ends == 0; i++) {
		flood.len = 0;
		frame(&flood, NGHTTP2_PING, 0, 0, "12345678", 8);
		if (send(host, flood.data, flood.len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			ring_turn(ring, false);
		if (i % 16 == 0)
			ring_turn(ring, false);
	}
	buf_free(&flood);
	assert_ended(GRPC_UNAVAILABLE, "lost", true);
	assert_goes_on();
}

/* ---- limits of streams and windows ---- */

Test(channel_hostile, no_streams_are_allowed_at_first)
{
	static const uint8_t none[] = {0, 3, 0, 0, 0, 0}, one[] = {0, 3, 0, 0, 0, 1};
	struct buf bytes = {0};
	ask(channel, &a, "/test.v1.Test/Echo", "hello");
	ask(channel, &b, "/test.v1.Test/Echo", "hello");
	cr_assert(host_accept());
	frame(&bytes, NGHTTP2_SETTINGS, 0, 0, none, sizeof(none));
	host_say(&bytes);
	cr_assert_not(was_sent(NGHTTP2_HEADERS));
	cr_assert_eq(channel_state(channel), CHANNEL_UP);
	frame(&bytes, NGHTTP2_SETTINGS, 0, 0, one, sizeof(one));
	host_say(&bytes);
	cr_assert(was_sent(NGHTTP2_HEADERS));
	cr_assert(a.call.id == 1 && b.call.id == 0);
	channel_cancel(&a.call); /* makes room */
	listen_on();
	cr_assert_eq(b.call.id, 3);
	channel_cancel(&b.call);
}

/* More than the windows allow ends the connection. */
Test(channel_hostile, more_than_the_window)
{
	static uint8_t zeros[16384];
	struct buf bytes = {0};
	asked_init(&a, "/test.v1.Test/Flood");
	a.hold_after = 1;
	ask_text(channel, &a, "go", true);
	cr_assert(host_accept());
	greet();
	GRPC_HEADERS(&bytes);
	for (unsigned i = 0; i < 70; i++) /* of empty messages */
		frame(&bytes, NGHTTP2_DATA, 0, 1, zeros, sizeof(zeros) / 5 * 5);
	host_say(&bytes);
	cr_assert_eq(a.messages, 1);
	/* What the peer was allowed to send is handed over yet. */
	cr_assert_eq(a.ends, 0);
	a.hold_after = 0;
	channel_read(&a.call);
	listen_on();
	cr_assert_gt(a.messages, 200000, "%u %u %s", a.messages, a.ends, a.message);
	assert_ended(GRPC_INTERNAL, "reset", true);
}

Test(channel_hostile, a_push_ends_the_connection)
{
	struct buf bytes = {0}, block = {0};
	begin();
	const uint32_t promised = __builtin_bswap32(2);
	buf_append(&block, &promised, 4);
	request_headers(&block);
	frame(&bytes, NGHTTP2_PUSH_PROMISE, WHOLE, 1, block.data, block.len);
	buf_free(&block);
	host_say(&bytes);
	assert_ended(GRPC_UNAVAILABLE, "lost", true);
	assert_goes_on();
}

/* ---- what is asked of it ---- */

Test(channel_hostile, the_request_is_a_grpc_request)
{
	begin();
	const struct buf frames = {
		.data = heard.data + sizeof(preface) - 1, .len = heard.len - (sizeof(preface) - 1)};
	const uint8_t *data = find_frame(&frames, NGHTTP2_DATA);
	struct buf want = {0};
	text_frame(&want, "hello", 5);
	cr_assert_not_null(data);
	cr_assert_eq(memcmp(data, want.data, want.len), 0);
	cr_assert_eq(data[-5] & END, END);
	buf_free(&want);
	struct buf bytes = {0};
	HEADERS(&bytes, END, ":status", "200", "content-type", "application/grpc", "grpc-status",
		"0");
	host_say(&bytes);
	assert_ended(GRPC_OK, "", true);
	cr_assert_eq(a.messages, 0);
}
