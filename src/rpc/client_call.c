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
#include "rpc/wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
	CALL_KEEP_BYTES = 2 << 10,    /* of a buffer while nothing waits in it */
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

void client_call_to(struct channel_call *call, enum channel_call_state state)
{
	assert(transitions[call->state][state]);
	call->state = state;
}

void client_call_count(struct channel_call *call)
{
	struct budget *memory = call->calls->memory;
	size_t now = call->out.cap + call->in.cap;
	if (memory == NULL || now == call->counted)
		return;
	budget_give(memory, call->counted);
	budget_add(memory, now);
	call->counted = now;
}

bool client_call_has_memory(const struct channel_call *call, size_t more)
{
	return call->calls->memory == NULL || budget_has_share(call->calls->memory, more);
}

void client_call_be_due(struct channel_call *call)
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
	buf_free_secret(&call->out);
	buf_free(&call->in);
	client_call_count(call);
	client_call_to(call, CHANNEL_CALL_NONE);
	call->calls = NULL;
	calls->count--;
	if (calls->current == call)
		calls->current = NULL;
}

void client_call_end_with(struct channel_call *call, enum grpc_status status, char *message)
{
	struct client_calls *calls = call->calls;
	bool sent = call->sent;
	call->message = NULL;
	forget(call);
	calls->depth++;
	call->on_end(call, status, message != NULL ? message : "", sent);
	calls->depth--;
	free(message);
}

void client_call_end(struct channel_call *call, enum grpc_status status, const char *message)
{
	/* What the peer said is of no interest, and message may be a part of it. */
	char *said = call->message, *copy = copy_text(message);
	client_call_end_with(call, status, copy);
	free(said);
}

void client_call_say(struct channel_call *call, enum grpc_status status, const char *message)
{
	char *copy = copy_text(message);
	free(call->message);
	call->message = copy;
	call->end_status = (int)status;
}

void client_call_end_later(struct channel_call *call, enum grpc_status status, const char *message)
{
	if (call->state == CHANNEL_CALL_ENDING)
		return;
	drop(call);
	client_call_to(call, CHANNEL_CALL_ENDING);
	list_remove(&call->link);
	ring_timer_cancel(call->calls->ring, &call->deadline);
	client_call_say(call, status, message);
	client_call_be_due(call);
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
	if (!client_call_has_memory(call, len))
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
	client_call_count(call);
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
	client_call_to(call, CHANNEL_CALL_WAITING);
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
	client_call_to(call, CHANNEL_CALL_OPEN);
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
			buf_free_secret(&call->out);
		client_call_count(call);
	}
	if (call->choked && left <= CHANNEL_OUT_BYTES / 2)
		client_call_be_due(call);
	*ret_end = call->out_ended && left == 0;
	return n;
}

void client_call_callback_begins(struct channel_call *call)
{
	call->calls->current = call;
	call->calls->depth++;
}

bool client_call_callback_over(struct client_calls *calls, const struct channel_call *call)
{
	bool there = calls->current != NULL;
	calls->current = NULL;
	calls->depth--;
	return there && call->state != CHANNEL_CALL_ENDING;
}
