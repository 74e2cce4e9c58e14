/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call is answered. Headers are looked over as they come; the body is cut into messages, and
 * each is handed over when it is whole. While the owner wants no more, the stream's window stays
 * closed; when the stream is over, the call ends once its owner has read all.
 *
 * It fails by what is no gRPC (HTTP errors, another content type, no status at the end), by
 * messages that are too large, compressed or cut off, and for want of memory.
 */
#include "rpc/client_answer.h"

#include "base/utf8.h"
#include "rpc/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void client_answer_on_header(struct channel_call *call, const uint8_t *name, size_t name_len,
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
			client_call_callback_begins(call);
			bool more = call->on_message(call, data + at + GRPC_PREFIX_BYTES, size);
			if (!client_call_callback_over(calls, call))
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
	client_call_count(call);
	return true;
}

/* False: the call has ended. */
static bool keep(struct channel_call *call, const uint8_t *data, size_t len)
{
	const char *why = NULL;
	if (!client_call_has_memory(call, len))
		why = "too much of requests and answers is under way: try again";
	else if (buf_append(&call->in, data, len) < 0)
		why = "out of memory";
	client_call_count(call);
	if (why != NULL)
		client_call_end(call, GRPC_RESOURCE_EXHAUSTED, why);
	return why == NULL;
}

void client_answer_on_data(struct channel_call *call, const uint8_t *data, size_t len)
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

static void judge(struct channel_call *call)
{
	char text[64];
	if (call->status >= 0) {
		call->end_status = call->status;
	} else if (call->http != 200) {
		snprintf(
			text, sizeof(text), "the answer is no gRPC but HTTP status %d", call->http);
		client_call_say(call, status_of_http(call->http), text);
	} else if (!call->content_type_ok) {
		client_call_say(call, GRPC_UNKNOWN, "the answer is no gRPC by its content type");
	} else {
		client_call_say(call, GRPC_INTERNAL, "the answer ended without a status");
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
		client_call_say(
			call, GRPC_INTERNAL, "the last message of the answer is incomplete");
	client_call_end_with(call, (enum grpc_status)call->end_status, call->message);
}

void client_answer_on_close(
	struct channel_call *call, bool answered, enum grpc_status status, const char *message)
{
	call->carrier = NULL;
	list_remove(&call->link);
	if (call->state != CHANNEL_CALL_OPEN)
		return;
	client_call_to(call, CHANNEL_CALL_CLOSED);
	list_push(&call->calls->closed, &call->link);
	if (answered)
		judge(call);
	else
		client_call_say(call, status, message);
	finish(call);
}

void client_answer_read_on(struct channel_call *call)
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
