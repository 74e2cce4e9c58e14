/* SPDX-License-Identifier: Apache-2.0 */
/* A call between a carrier of the test's own and its method: what either is told, what it keeps and
 * gives back, whoever goes first and whatever is used up. */
#include "rpc/registry.h"

#include "health.pb-c.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SOME = 3000 }; /* bytes: more than comes with an arena */

static struct grpc_registry *registry;
static unsigned seen; /* ends the registry was told of */
static enum grpc_status seen_status;

/* ---- the carrier ---- */

static struct {
	struct grpc_call call;
	unsigned messages, ends, frees;
	size_t size; /* of the last message */
	enum grpc_status status;
	const char *text;
	int refuses; /* a message */
	bool full;
} c;

static int take_message(struct grpc_call *call, const struct grpc_payload *payload, bool last)
{
	(void)last;
	cr_assert_eq(call, &c.call);
	cr_assert_not(call->gone, "what goes nowhere is not packed");
	c.messages++;
	c.size = payload->size;
	return c.refuses;
}

static bool is_writable(struct grpc_call *call)
{
	(void)call;
	return !c.full;
}

static void take_end(struct grpc_call *call, enum grpc_status status, const char *message)
{
	cr_assert_not(call->gone);
	c.ends++;
	c.status = status;
	c.text = message;
}

static void let_go(struct grpc_call *call)
{
	cr_assert_eq(call, &c.call);
	c.frees++;
}

static const struct grpc_carrier carrier = {take_message, is_writable, take_end, let_go};

/* ---- the method ---- */

static struct {
	unsigned runs, wakes, losses;
	void *arg; /* the last callback's */
	size_t len;
	uint8_t first;
} m;

static void on_call(struct grpc_call *call, const ProtobufCMessage *request)
{
	const uint8_t *bytes = grpc_call_bytes(call, &m.len);
	m.runs++;
	m.first = request == NULL && m.len > 0 ? bytes[0] : 0;
}

static void on_room(struct grpc_call *call, void *arg)
{
	(void)call;
	m.wakes++;
	m.arg = arg;
}

static void on_loss(struct grpc_call *call, void *arg)
{
	cr_assert(grpc_call_gone(call));
	m.losses++;
	m.arg = arg;
}

#define TYPE (&grpc__health__v1__health_check_request__descriptor)
static const ProtobufCMethodDescriptor method_descriptors[] = {
	{"Ask", TYPE, TYPE}, {"Raw", TYPE, TYPE}, {"Send", TYPE, TYPE}, {"Watch", TYPE, TYPE}};
static const ProtobufCServiceDescriptor descriptor = {
	.magic = PROTOBUF_C__SERVICE_DESCRIPTOR_MAGIC,
	.name = "t.S",
	.n_methods = 4,
	.methods = method_descriptors,
};
static const struct grpc_method methods[] = {{"Ask", on_call}, {"Raw", on_call, GRPC_RAW},
	{"Send", on_call, GRPC_STREAM_IN}, {"Watch", on_call, GRPC_ENDLESS}, {NULL}};
static const struct grpc_service service = {&descriptor, methods};

static void on_seen(void *arg, const char *method, enum grpc_status status, uint64_t ns)
{
	(void)arg;
	(void)method;
	(void)ns;
	seen++;
	seen_status = status;
}

static void setup(void)
{
	registry = grpc_registry_new();
	cr_assert_not_null(registry);
	cr_assert_eq(grpc_registry_add(registry, &service, NULL), 0);
	grpc_registry_observe(registry, on_seen, NULL);
}

/* Whatever happened: all memory is back, and each call was let go of once. */
static void teardown(void)
{
	cr_assert_eq(grpc_registry_in_flight(registry), 0);
	cr_assert_eq(grpc_registry_memory(registry), 0);
	grpc_registry_free(registry);
}

TestSuite(call, .init = setup, .fini = teardown);

/* ---- calls ---- */

static void begin(const char *path)
{
	memset(&c, 0, sizeof(c));
	memset(&m, 0, sizeof(m));
	seen = 0;
	grpc_call_init(&c.call, &carrier, registry);
	c.call.entry = grpc_registry_find(registry, path, strlen(path));
	cr_assert_not_null(c.call.entry);
}

/* A request of so many bytes in all. */
static enum grpc_status decode(size_t len, const char **ret_text)
{
	static uint8_t bytes[2 * SOME];
	size_t prefix = len > 130 ? 3 : 2;
	*ret_text = NULL;
	memset(bytes, 'x', sizeof(bytes));
	bytes[0] = 0x0A;
	bytes[1] = (uint8_t)(prefix == 2 ? len - 2 : (len - 3) % 128 + 128);
	if (prefix == 3)
		bytes[2] = (uint8_t)((len - 3) / 128);
	return grpc_call_decode(&c.call, bytes, len, ret_text);
}

static void run(const char *path)
{
	const char *text;
	begin(path);
	cr_assert_eq(decode(SOME, &text), GRPC_OK);
	grpc_call_run(&c.call);
	cr_assert_eq(m.runs, 1);
	cr_assert_eq(grpc_registry_in_flight(registry), 1);
}

/* The carrier lets go: it is the last one if the call has ended. */
static void close_carrier(bool last)
{
	cr_assert_eq(c.frees, 0);
	grpc_call_unref(&c.call);
	cr_assert_eq(c.frees, last);
}

static const Grpc__Health__V1__HealthCheckRequest small =
	GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;

static void reply_message(void)
{
	grpc_reply(&c.call, &small.base);
}

static void reply_bytes(void)
{
	grpc_reply_bytes(&c.call, (const uint8_t *)"x", 1);
}

static void end_only(void)
{
	grpc_end(&c.call, GRPC_OK, NULL);
}

static bool send_message(void)
{
	return grpc_send(&c.call, &small.base);
}

static bool send_bytes(void)
{
	return grpc_send_bytes(&c.call, (const uint8_t *)"x", 1);
}

static void (*const ends[])(void) = {reply_message, reply_bytes, end_only};
static bool (*const sends[])(void) = {send_message, send_bytes};

/* Either side may be the first to let go. */
Test(call, ends_once_and_lets_go)
{
	for (unsigned i = 0; i < 3; i++) {
		run("/t.S/Ask");
		ends[i]();
		cr_assert_eq(c.messages, i < 2);
		cr_assert_eq(c.ends, 1);
		cr_assert_eq(c.status, GRPC_OK);
		cr_assert_eq(grpc_registry_memory(registry), 0);
		close_carrier(true);
		cr_assert(seen == 1 && seen_status == GRPC_OK);
	}
}

Test(call, that_is_gone_is_answered_to_nobody_and_let_go_of)
{
	for (unsigned i = 0; i < 3; i++) {
		run("/t.S/Ask");
		grpc_on_gone(&c.call, on_loss, &m);
		grpc_call_lose(&c.call, GRPC_CANCELLED);
		grpc_call_lose(&c.call, GRPC_DEADLINE_EXCEEDED);
		cr_assert_eq(m.losses, 1);
		cr_assert_eq(m.arg, &m);
		cr_assert(send_message() && send_bytes());
		close_carrier(false);
		ends[i]();
		cr_assert(c.messages == 0 && c.ends == 0 && c.frees == 1);
		cr_assert_eq(grpc_registry_in_flight(registry), 0);
		cr_assert(seen == 1 && seen_status == GRPC_CANCELLED);
	}
}

/* It was lost before its method had it: it is counted, and nobody is told. */
Test(call, that_is_gone_is_refused_to_nobody)
{
	const char *text;
	begin("/t.S/Ask");
	cr_assert_eq(decode(SOME, &text), GRPC_OK);
	grpc_call_lose(&c.call, GRPC_CANCELLED);
	grpc_call_refuse(&c.call, GRPC_UNAVAILABLE, "late");
	cr_assert_eq(c.ends, 0);
	cr_assert_eq(seen, 1);
	close_carrier(true);
}

/* ---- messages ---- */

/* The client is told at once why, and the method only by the end; none follows the hole. */
Test(call, a_message_that_cannot_be_sent_cuts_the_stream)
{
	static const struct {
		int res;
		const char *text;
	} cases[] = {
		{-ENOMEM, "out of memory"},
		{-EMSGSIZE, "a message is larger than 4 MiB"},
		{-ENOBUFS, "too many large answers wait to be read on this connection: read them "
			   "first"},
		{-ENOSPC, "too much of requests and answers, of all clients, is under way: try "
			  "again"},
	};
	for (unsigned i = 0; i < 8; i++) {
		run("/t.S/Ask");
		c.refuses = cases[i / 2].res;
		c.full = true;
		cr_assert(sends[i % 2](), "it goes on, and ends soon");
		cr_assert(c.ends == 1 && c.status == GRPC_RESOURCE_EXHAUSTED);
		cr_assert_str_eq(c.text, cases[i / 2].text);
		c.refuses = 0;
		cr_assert(send_message() && send_bytes());
		cr_assert_eq(c.messages, 1);
		if (i >= 4)
			grpc_call_lose(&c.call, GRPC_CANCELLED);
		grpc_end(&c.call, GRPC_OK, NULL);
		cr_assert_eq(c.ends, 1);
		cr_assert(seen == 1 && seen_status == GRPC_RESOURCE_EXHAUSTED);
		close_carrier(true);
		/* As an answer. */
		run("/t.S/Ask");
		c.refuses = cases[i / 2].res;
		ends[i % 2]();
		cr_assert(c.ends == 1 && c.status == GRPC_RESOURCE_EXHAUSTED);
		cr_assert_str_eq(c.text, cases[i / 2].text);
		close_carrier(true);
	}
}

/* One byte more is not offered to the carrier. */
Test(call, a_message_has_4_mib_at_most)
{
	static uint8_t bytes[GRPC_MESSAGE_MAX_BYTES + 1];
	for (unsigned over = 0; over < 2; over++) {
		size_t len = GRPC_MESSAGE_MAX_BYTES + over;
		run("/t.S/Raw");
		cr_assert(grpc_send_bytes(&c.call, bytes, len));
		cr_assert(c.messages == 1 - over && c.ends == over);
		grpc_end(&c.call, GRPC_OK, NULL);
		cr_assert_eq(c.status, over ? GRPC_RESOURCE_EXHAUSTED : GRPC_OK);
		close_carrier(true);
		run("/t.S/Raw");
		grpc_reply_bytes(&c.call, bytes, len);
		cr_assert(c.messages == 1 - over && c.ends == 1);
		cr_assert_eq(c.status, over ? GRPC_RESOURCE_EXHAUSTED : GRPC_OK);
		close_carrier(true);
	}
}

Test(call, a_payload_of_bytes_is_put_as_it_is)
{
	uint8_t to[3] = {9, 9, 9};
	grpc_payload_put(&(struct grpc_payload){.data = (const uint8_t *)"ab", .size = 2}, to);
	cr_assert(to[0] == 'a' && to[1] == 'b' && to[2] == 9);
	grpc_payload_put(&(struct grpc_payload){.data = (const uint8_t *)"c", .size = 1}, to);
	cr_assert(to[0] == 'c' && to[1] == 'b');
	grpc_payload_put(&(struct grpc_payload){0}, to);
	cr_assert_eq(to[0], 'c');
}

/* The method is woken once, with what it said; not when it has ended the call meanwhile. */
Test(call, a_method_that_was_told_to_wait_is_woken)
{
	for (unsigned ended = 0; ended < 2; ended++) {
		run("/t.S/Ask");
		grpc_on_writable(&c.call, on_room, &c);
		cr_assert(send_message());
		grpc_call_resume(&c.call);
		cr_assert_eq(m.wakes, 0, "it did not wait");
		c.full = true;
		cr_assert_not(send_message());
		if (ended)
			grpc_end(&c.call, GRPC_OK, NULL);
		grpc_call_resume(&c.call);
		grpc_call_resume(&c.call);
		cr_assert_eq(m.wakes, 1 - ended);
		if (!ended) {
			cr_assert_eq(m.arg, &c);
			grpc_end(&c.call, GRPC_OK, NULL);
		}
		close_carrier(true);
	}
}

/* ---- what a request may take ---- */

static const char *const crowded =
	"too much of requests and answers, of all clients, is under way: try again";

Test(call, requests_that_find_no_memory)
{
	static const struct {
		const char *path;
		size_t room;
		const char *text;
	} cases[] = {
		{"/t.S/Ask", 0, crowded},
		{"/t.S/Raw", 0, crowded},
		{"/t.S/Ask", 2000, "the decoded request takes too much memory"},
		{"/t.S/Raw", 2000, crowded},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *text;
		registry->memory->max_bytes = cases[i].room;
		begin(cases[i].path);
		cr_assert_eq(decode(SOME, &text), GRPC_RESOURCE_EXHAUSTED, "case %u", i);
		cr_assert_str_eq(text, cases[i].text);
		cr_assert_not(c.call.taken);
		close_carrier(true);
		cr_assert_eq(grpc_registry_memory(registry), 0, "case %u", i);
	}
	/* A stream that ends before its first message has nothing decoded, and needs some too. */
	registry->memory->max_bytes = 0;
	begin("/t.S/Send");
	grpc_call_run(&c.call);
	cr_assert(m.runs == 0 && c.ends == 1 && c.status == GRPC_RESOURCE_EXHAUSTED);
	close_carrier(true);
}

Test(call, a_request_of_one_byte_is_kept_and_of_none)
{
	const char *text;
	for (size_t len = 0; len < 2; len++) {
		begin("/t.S/Raw");
		cr_assert_eq(grpc_call_decode(&c.call, (const uint8_t *)"q", len, &text), GRPC_OK);
		grpc_call_run(&c.call);
		cr_assert_eq(m.len, len);
		cr_assert_eq(m.first, len > 0 ? 'q' : 0);
		end_only();
		close_carrier(true);
	}
}

Test(call, an_endless_one_has_a_small_request)
{
	const char *text;
	begin("/t.S/Watch");
	cr_assert_eq(decode(GRPC_ENDLESS_MAX_BYTES + 1, &text), GRPC_INVALID_ARGUMENT);
	cr_assert_str_eq(text, "a request of a call without an end is larger than 1 KiB");
	cr_assert_eq(decode(GRPC_ENDLESS_MAX_BYTES, &text), GRPC_OK);
	close_carrier(true);
}

Test(call, so_many_at_once)
{
	for (unsigned over = 0; over < 2; over++) {
		const char *text;
		begin("/t.S/Ask");
		cr_assert_eq(decode(SOME, &text), GRPC_OK);
		registry->in_flight = GRPC_CALLS_MAX - 1 + over;
		grpc_call_run(&c.call);
		cr_assert_eq(m.runs, 1 - over);
		cr_assert_eq(c.ends, over);
		if (over) {
			cr_assert_eq(c.status, GRPC_RESOURCE_EXHAUSTED);
			cr_assert_str_eq(c.text, "too many calls in flight");
		} else {
			end_only();
		}
		close_carrier(true);
		registry->in_flight = 0;
	}
}

/* A stream that is silent keeps nothing, one whose message waits for its turn keeps that alone. */
Test(call, a_stream_keeps_one_message_at_most)
{
	const char *text;
	run("/t.S/Send");
	cr_assert_eq(grpc_registry_memory(registry), 0);
	cr_assert_eq(decode(SOME, &text), GRPC_OK);
	size_t one = grpc_registry_memory(registry);
	cr_assert_gt(one, SOME);
	cr_assert_eq(decode(SOME, &text), GRPC_OK);
	cr_assert_eq(grpc_registry_memory(registry), one);
	grpc_call_run(&c.call);
	cr_assert_eq(m.runs, 2);
	cr_assert_eq(grpc_registry_memory(registry), 0);
	end_only();
	close_carrier(true);
}
