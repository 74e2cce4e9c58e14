/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call that goes out.
 *
 *   NONE -> WAITING -> OPEN -> CLOSED -> NONE
 *
 * Its messages are packed by its owner, and wait here for the stream to take them. What comes in is
 * cut into messages, and each is handed over when it is whole; while the owner wants no more, the
 * stream's window stays closed. A stream that is over leaves the call CLOSED until its owner has
 * read all. WAITING and OPEN may also go to ENDING, for what fails inside a function of the
 * owner's.
 *
 * Beside what the peer answers it ends by its deadline, by messages that are too large, compressed
 * or cut off, and for want of memory: each a status of gRPC. Its owner may give it up at any time,
 * also in one of its callbacks; calls->current tells those who called.
 */
#include "rpc/client_call.h"

#include "base/budget.h"
#include "base/utf8.h"
#include "rpc/wire.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	CALL_KEEP_BYTES = 16 << 10,   /* of a buffer while nothing waits in it */
	CALL_OUT_MAX_BYTES = 16 << 20 /* what a call that nobody reads may have to send */
};

static const bool transitions[5][5] = {
	[CHANNEL_CALL_NONE] = {[CHANNEL_CALL_WAITING] = true},
	[CHANNEL_CALL_WAITING] = {[CHANNEL_CALL_NONE] = true,
		[CHANNEL_CALL_OPEN] = true,
		[CHANNEL_CALL_ENDING] = true},
	[CHANNEL_CALL_OPEN] = {[CHANNEL_CALL_NONE] = true,
		[CHANNEL_CALL_CLOSED] = true,
		[CHANNEL_CALL_ENDING] = true},
	[CHANNEL_CALL_CLOSED] = {[CHANNEL_CALL_NONE] = true},
	[CHANNEL_CALL_ENDING] = {[CHANNEL_CALL_NONE] = true},
};

static void call_to(struct channel_call *call, enum channel_call_state state)
{
	assert(transitions[call->state][state]);
	call->state = state;
}

/* A buffer has grown or gone. */
static void count(struct channel_call *call)
{
	struct budget *memory = call->calls->memory;
	size_t now = call->out.cap + call->in.cap;
	if (memory == NULL || now == call->counted)
		return;
	budget_give(memory, call->counted);
	budget_add(memory, now);
	call->counted = now;
}

static bool has_memory(const struct channel_call *call, size_t more)
{
	return call->calls->memory == NULL || budget_has_share(call->calls->memory, more);
}

static void be_due(struct channel_call *call)
{
	struct client_calls *calls = call->calls;
	if (list_empty(&call->due))
		list_push(&calls->due, &call->due);
	if (!calls->go.armed)
		ring_post(calls->ring, &calls->go, 0);
}

/* ---- how calls end ---- */

/* NULL: it is empty, or there is no memory for it. */
static char *copy_text(const char *text)
{
	size_t size = strlen(text) + 1;
	char *copy = size > 1 ? malloc(size) : NULL;
	if (copy != NULL)
		memcpy(copy, text, size);
	return copy;
}

/* Off the stream, if it has one that is not over. */
static void drop(struct channel_call *call)
{
	if (call->carrier != NULL)
		call->carrier->drop(call);
	call->carrier = NULL;
}

/* From here on the call is its owner's, who may free it. */
static void forget(struct channel_call *call)
{
	struct client_calls *calls = call->calls;
	drop(call);
	list_remove(&call->link);
	list_remove(&call->due);
	ring_timer_cancel(calls->ring, &call->deadline);
	buf_free(&call->out);
	buf_free(&call->in);
	count(call);
	call_to(call, CHANNEL_CALL_NONE);
	call->calls = NULL;
	calls->count--;
	if (calls->current == call)
		calls->current = NULL;
}

static void end_with(struct channel_call *call, enum grpc_status status, char *message)
{
	bool sent = call->sent;
	call->message = NULL;
	forget(call);
	call->on_end(call, status, message != NULL ? message : "", sent);
	free(message);
}

void client_call_end(struct channel_call *call, enum grpc_status status, const char *message)
{
	/* What the peer said is of no interest, and message may be a part of it. */
	char *said = call->message, *copy = copy_text(message);
	end_with(call, status, copy);
	free(said);
}

void client_call_end_later(struct channel_call *call, enum grpc_status status, const char *message)
{
	if (call->state == CHANNEL_CALL_ENDING)
		return;
	char *copy = copy_text(message);
	drop(call);
	call_to(call, CHANNEL_CALL_ENDING);
	list_remove(&call->link);
	ring_timer_cancel(call->calls->ring, &call->deadline);
	free(call->message);
	call->message = copy;
	call->end_status = (int)status;
	be_due(call);
}

void channel_cancel(struct channel_call *call)
{
	if (call->calls == NULL)
		return;
	char *message = call->message;
	call->message = NULL;
	forget(call);
	free(message);
}

static void on_deadline(struct ring_timer *timer)
{
	client_call_end(container_of(timer, struct channel_call, deadline), GRPC_DEADLINE_EXCEEDED,
		"the deadline has passed");
}

/* ---- sending ---- */

/* NULL, or why the message cannot be sent: RESOURCE_EXHAUSTED. */
static const char *queue(struct channel_call *call, const uint8_t *data, size_t len)
{
	if (len > GRPC_MESSAGE_MAX_BYTES)
		return "the request is larger than 4 MiB";
	if (call->out.len - call->out_at + len > CALL_OUT_MAX_BYTES)
		return "the peer reads too little of what it is sent";
	if (!has_memory(call, len))
		return "too much of requests and answers is under way: try again";
	if (call->out_at > 0) {
		buf_consume(&call->out, call->out_at);
		call->out_at = 0;
	}
	uint8_t *to = buf_reserve(&call->out, GRPC_PREFIX_BYTES + len);
	if (to == NULL)
		return "out of memory";
	grpc_wire_put_prefix(to, (uint32_t)len);
	if (len > 0)
		memcpy(to + GRPC_PREFIX_BYTES, data, len);
	call->out.len += GRPC_PREFIX_BYTES + len;
	count(call);
	return NULL;
}

bool client_call_begin(struct client_calls *calls, struct channel_call *call, const uint8_t *data,
	size_t len, bool last)
{
	assert(call->calls == NULL && call->on_end != NULL);
	const struct channel_call set = *call;
	*call = (struct channel_call){
		.path = set.path,
		.deadline_ns = set.deadline_ns,
		.on_message = set.on_message,
		.on_end = set.on_end,
		.on_writable = set.on_writable,
		.calls = calls,
		.deadline.fn = on_deadline,
		.out_ended = last,
		.status = -1,
	};
	list_init(&call->link);
	list_init(&call->due);
	call_to(call, CHANNEL_CALL_WAITING);
	uint64_t now = ring_now_ns(calls->ring);
	const char *why = NULL;
	enum grpc_status status = GRPC_RESOURCE_EXHAUSTED;
	if (calls->count++ >= CHANNEL_CALLS_MAX) {
		why = "too many calls to this peer are under way";
	} else if (call->deadline_ns <= now) {
		status = GRPC_DEADLINE_EXCEEDED;
		why = "the deadline has passed";
	} else {
		why = queue(call, data, len);
	}
	if (why != NULL) {
		client_call_end_later(call, status, why);
		return false;
	}
	if (call->deadline_ns != UINT64_MAX)
		ring_timer_arm(
			calls->ring, &call->deadline, (call->deadline_ns - now + 999999) / 1000000);
	return true;
}

void client_call_open(
	struct channel_call *call, const struct client_carrier *carrier, void *at, int32_t id)
{
	call_to(call, CHANNEL_CALL_OPEN);
	call->carrier = carrier;
	call->carrier_at = at;
	call->id = id;
}

static bool sends(const struct channel_call *call)
{
	return (call->state == CHANNEL_CALL_WAITING || call->state == CHANNEL_CALL_OPEN) &&
	       !call->out_ended;
}

bool channel_send(struct channel_call *call, const uint8_t *data, size_t len)
{
	if (!sends(call))
		return true;
	const char *why = queue(call, data, len);
	if (why != NULL) {
		client_call_end_later(call, GRPC_RESOURCE_EXHAUSTED, why);
		return true;
	}
	if (call->carrier != NULL)
		call->carrier->resume(call);
	if (call->out.len - call->out_at > CHANNEL_OUT_BYTES)
		call->choked = true;
	return !call->choked;
}

void channel_send_end(struct channel_call *call)
{
	if (!sends(call))
		return;
	call->out_ended = true;
	if (call->carrier != NULL)
		call->carrier->resume(call);
}

size_t client_call_pull(struct channel_call *call, uint8_t *to, size_t cap, bool *ret_end)
{
	size_t n = call->out.len - call->out_at;
	if (n > cap)
		n = cap;
	if (n > 0)
		memcpy(to, call->out.data + call->out_at, n);
	call->out_at += n;
	size_t left = call->out.len - call->out_at;
	if (left == 0) {
		call->out.len = call->out_at = 0;
		if (call->out.cap > CALL_KEEP_BYTES || call->out_ended)
			buf_free(&call->out);
		count(call);
	}
	if (call->choked && left <= CHANNEL_OUT_BYTES / 2)
		be_due(call);
	*ret_end = call->out_ended && left == 0;
	return n;
}

/* ---- the answer's headers ---- */

static bool is(const uint8_t *name, size_t len, const char *want)
{
	return len == strlen(want) && memcmp(name, want, len) == 0;
}

/* A number of at most three digits, or -1. */
static int small_number(const uint8_t *value, size_t len)
{
	int n = 0;
	for (size_t i = 0; i < len; i++) {
		if (value[i] < '0' || value[i] > '9')
			return -1;
		n = n * 10 + (value[i] - '0');
	}
	return len >= 1 && len <= 3 ? n : -1;
}

/* Decodes it; what is no UTF-8 becomes a question mark. */
static void keep_message(struct channel_call *call, const uint8_t *value, size_t len)
{
	if (len > GRPC_ENCODED_MESSAGE_MAX)
		len = GRPC_ENCODED_MESSAGE_MAX;
	char *text = malloc(len + 1);
	if (text == NULL)
		return;
	grpc_wire_decode_message(value, len, text, len + 1);
	size_t end = strlen(text);
	for (size_t at = 0, n; at < end; at += n) {
		n = utf8_char((const uint8_t *)text + at, end - at, NULL);
		if (n == 0) {
			text[at] = '?';
			n = 1;
		}
	}
	free(call->message);
	call->message = text;
}

void client_call_on_header(struct channel_call *call, const uint8_t *name, size_t name_len,
	const uint8_t *value, size_t value_len)
{
	call->header_bytes +=
		name_len + value_len + 32; /* as SETTINGS_MAX_HEADER_LIST_SIZE counts */
	if (call->header_bytes > CLIENT_HEADERS_MAX_BYTES)
		return; /* the carrier ends it when the list is complete */
	if (is(name, name_len, ":status")) {
		call->http = small_number(value, value_len);
	} else if (is(name, name_len, "content-type")) {
		call->content_type_ok = grpc_wire_content_type_ok(value, value_len);
	} else if (is(name, name_len, "grpc-status")) {
		int status = small_number(value, value_len);
		call->status =
			status >= GRPC_OK && status <= GRPC_UNAUTHENTICATED ? status : GRPC_UNKNOWN;
	} else if (is(name, name_len, "grpc-message")) {
		keep_message(call, value, value_len);
	}
}

/* ---- the answer's messages ---- */

/* NULL, or why the call ends before this message. */
static const char *prefix_wrong(const uint8_t *prefix, enum grpc_status *ret_status)
{
	*ret_status = GRPC_INTERNAL;
	if (prefix[0] != 0)
		return "the answer is compressed, which was not asked for";
	*ret_status = GRPC_RESOURCE_EXHAUSTED;
	if (grpc_wire_get_length(prefix) > GRPC_MESSAGE_MAX_BYTES)
		return "a message of the answer is larger than 4 MiB";
	return NULL;
}

/* After a callback: whether the call is still there. */
static bool callback_over(struct client_calls *calls)
{
	bool there = calls->current != NULL;
	calls->current = NULL;
	return there;
}

/* Hands over the messages that are whole, while they are wanted. False: the call has ended. */
static bool deliver(struct channel_call *call, const uint8_t *data, size_t len, size_t *ret_used)
{
	struct client_calls *calls = call->calls;
	size_t at = 0;
	while (!call->held && len - at >= GRPC_PREFIX_BYTES) {
		enum grpc_status status;
		const char *wrong = prefix_wrong(data + at, &status);
		if (wrong != NULL) {
			client_call_end(call, status, wrong);
			return false;
		}
		size_t size = grpc_wire_get_length(data + at);
		if (len - at - GRPC_PREFIX_BYTES < size)
			break;
		if (call->on_message != NULL) {
			calls->current = call;
			bool more = call->on_message(call, data + at + GRPC_PREFIX_BYTES, size);
			if (!callback_over(calls) || call->state == CHANNEL_CALL_ENDING)
				return false;
			call->held = !more;
		}
		at += GRPC_PREFIX_BYTES + size;
	}
	*ret_used = at;
	return true;
}

/* The same from what is kept. */
static bool deliver_kept(struct channel_call *call)
{
	size_t used;
	if (!deliver(call, call->in.data, call->in.len, &used))
		return false;
	if (used > 0)
		buf_consume(&call->in, used);
	if (call->in.len == 0)
		buf_free(&call->in);
	count(call);
	return true;
}

/* False: the call has ended. */
static bool keep(struct channel_call *call, const uint8_t *data, size_t len)
{
	const char *why = NULL;
	if (!has_memory(call, len))
		why = "too much of requests and answers is under way: try again";
	else if (buf_append(&call->in, data, len) < 0)
		why = "out of memory";
	count(call);
	if (why != NULL)
		client_call_end(call, GRPC_RESOURCE_EXHAUSTED, why);
	return why == NULL;
}

void client_call_on_data(struct channel_call *call, const uint8_t *data, size_t len)
{
	call->unread += len;
	if (call->http != 200 || !call->content_type_ok) {
		call->carrier->consume(call, len); /* the text of an HTTP error */
		call->unread = 0;
		return;
	}
	size_t used = 0;
	if (call->in.len == 0 && !deliver(call, data, len, &used))
		return;
	if (used < len && !keep(call, data + used, len - used))
		return;
	if (used == 0 && !deliver_kept(call))
		return;
	if (call->held || call->carrier == NULL)
		return;
	call->carrier->consume(call, call->unread);
	call->unread = 0;
}

/* ---- the answer's end ---- */

/* What an answer that is no gRPC means, as gRPC says. */
static enum grpc_status status_of_http(int http)
{
	switch (http) {
	case 400:
		return GRPC_INTERNAL;
	case 401:
		return GRPC_UNAUTHENTICATED;
	case 403:
		return GRPC_PERMISSION_DENIED;
	case 404:
		return GRPC_UNIMPLEMENTED;
	case 429:
	case 502:
	case 503:
	case 504:
		return GRPC_UNAVAILABLE;
	default:
		return GRPC_UNKNOWN;
	}
}

static void say(struct channel_call *call, enum grpc_status status, const char *message)
{
	free(call->message);
	call->message = copy_text(message);
	call->end_status = (int)status;
}

static void judge(struct channel_call *call)
{
	char text[64];
	if (call->status >= 0) {
		call->end_status = call->status;
	} else if (call->http != 200) {
		snprintf(
			text, sizeof(text), "the answer is no gRPC but HTTP status %d", call->http);
		say(call, status_of_http(call->http), text);
	} else if (!call->content_type_ok) {
		say(call, GRPC_UNKNOWN, "the answer is no gRPC by its content type");
	} else {
		say(call, GRPC_INTERNAL, "the answer ended without a status");
	}
}

/* Whether a whole message, or one that is refused, waits. */
static bool has_kept(const struct channel_call *call)
{
	if (call->in.len < GRPC_PREFIX_BYTES)
		return false;
	size_t size = grpc_wire_get_length(call->in.data);
	return call->in.data[0] != 0 || size > GRPC_MESSAGE_MAX_BYTES ||
	       call->in.len - GRPC_PREFIX_BYTES >= size;
}

/* A CLOSED call ends when nothing is left to hand over. */
static void finish(struct channel_call *call)
{
	if (has_kept(call))
		return;
	if (call->end_status == GRPC_OK && call->in.len > 0)
		say(call, GRPC_INTERNAL, "the last message of the answer is incomplete");
	end_with(call, (enum grpc_status)call->end_status, call->message);
}

void client_call_on_close(
	struct channel_call *call, bool answered, enum grpc_status status, const char *message)
{
	call->carrier = NULL;
	list_remove(&call->link);
	if (call->state != CHANNEL_CALL_OPEN)
		return;
	call_to(call, CHANNEL_CALL_CLOSED);
	list_push(&call->calls->closed, &call->link);
	if (answered)
		judge(call);
	else
		say(call, status, message);
	finish(call);
}

/* ---- the next turn ---- */

void channel_read(struct channel_call *call)
{
	if (call->calls == NULL || call->state == CHANNEL_CALL_ENDING)
		return;
	call->resumed = true;
	be_due(call);
}

static void read_on(struct channel_call *call)
{
	call->resumed = call->held = false;
	if (!deliver_kept(call))
		return;
	if (call->state == CHANNEL_CALL_CLOSED) {
		finish(call);
	} else if (!call->held && call->carrier != NULL && call->unread > 0) {
		size_t unread = call->unread;
		call->unread = 0;
		call->carrier->consume(call, unread);
	}
}

/* False: the call has ended. */
static bool tell_writable(struct channel_call *call)
{
	call->choked = false;
	if (call->on_writable == NULL)
		return true;
	call->calls->current = call;
	struct client_calls *calls = call->calls;
	call->on_writable(call);
	return callback_over(calls) && call->state != CHANNEL_CALL_ENDING;
}

static void on_go(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct client_calls *calls = container_of(req, struct client_calls, go);
	struct list due, *node;
	list_init(&due);
	list_splice(&due, &calls->due);
	while ((node = list_pop(&due)) != NULL) {
		struct channel_call *call = container_of(node, struct channel_call, due);
		if (call->state == CHANNEL_CALL_ENDING) {
			end_with(call, (enum grpc_status)call->end_status, call->message);
			continue;
		}
		bool room = call->choked && call->out.len - call->out_at <= CHANNEL_OUT_BYTES / 2;
		if ((!room || tell_writable(call)) && call->resumed)
			read_on(call);
	}
}

void client_calls_init(struct client_calls *calls, struct ring *ring, struct budget *memory)
{
	*calls = (struct client_calls){.ring = ring, .memory = memory, .go.fn = on_go};
	list_init(&calls->due);
	list_init(&calls->closed);
}

void client_calls_close(struct client_calls *calls)
{
	while (!list_empty(&calls->due))
		client_call_end(container_of(calls->due.next, struct channel_call, due),
			GRPC_UNAVAILABLE, "the channel is closed");
	while (!list_empty(&calls->closed))
		client_call_end(container_of(calls->closed.next, struct channel_call, link),
			GRPC_UNAVAILABLE, "the channel is closed");
	assert(calls->count == 0);
	ring_discard(calls->ring, &calls->go);
}
