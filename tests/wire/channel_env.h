/* SPDX-License-Identifier: Apache-2.0 */
/* A channel, and calls that note what happens to them: for test_channel.c and its like. */
#ifndef RINGVOL_TESTS_WIRE_CHANNEL_ENV_H
#define RINGVOL_TESTS_WIRE_CHANNEL_ENV_H

#include "rpc/channel.h"
#include "server_env.h"

struct asked {
	struct channel_call call;
	unsigned messages, ends, writables;
	struct buf got; /* all messages, one behind the other */
	enum grpc_status status;
	char message[512];
	bool sent;
	unsigned hold_after; /* messages; 0: it takes all */
	bool cancel_in_message;
};

static inline bool asked_on_message(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct asked *a = container_of(call, struct asked, call);
	cr_assert_eq(a->ends, 0, "a message after the end");
	a->messages++;
	cr_assert_eq(buf_append(&a->got, data, len), 0);
	if (a->cancel_in_message)
		channel_cancel(call);
	return a->hold_after == 0 || a->messages < a->hold_after;
}

static inline void asked_on_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	struct asked *a = container_of(call, struct asked, call);
	cr_assert_not(channel_call_active(call));
	cr_assert(utf8_valid((const uint8_t *)message, strlen(message)));
	a->ends++;
	a->status = status;
	a->sent = sent;
	snprintf(a->message, sizeof(a->message), "%s", message);
}

static inline void asked_on_writable(struct channel_call *call)
{
	container_of(call, struct asked, call)->writables++;
}

static inline void asked_init(struct asked *a, const char *method)
{
	buf_free(&a->got);
	*a = (struct asked){.call = {.path = method,
				    .deadline_ns = UINT64_MAX,
				    .on_message = asked_on_message,
				    .on_end = asked_on_end,
				    .on_writable = asked_on_writable}};
}

/* A packed text message. */
static inline struct buf packed(const void *text, size_t len)
{
	struct buf b = {0};
	text_frame(&b, text, len);
	buf_consume(&b, GRPC_PREFIX_BYTES);
	return b;
}

static inline void ask_text(struct channel *ch, struct asked *a, const char *text, bool last)
{
	struct buf b = packed(text, strlen(text));
	channel_start(ch, &a->call, b.data, b.len, last);
	cr_assert_eq(a->ends, 0, "on_end() inside channel_start()");
	buf_free(&b);
}

static inline void ask(struct channel *ch, struct asked *a, const char *method, const char *text)
{
	asked_init(a, method);
	ask_text(ch, a, text, true);
}

/* Its answer is this text alone. */
#define assert_asked_text(a, text)                                                                 \
	do {                                                                                       \
		struct buf want_ = packed((text), strlen(text));                                   \
		cr_assert_eq((a)->status, GRPC_OK, "%d %s", (a)->status, (a)->message);            \
		cr_assert_eq((a)->ends, 1);                                                        \
		cr_assert_eq((a)->messages, 1);                                                    \
		cr_assert_eq((a)->got.len, want_.len);                                             \
		cr_assert_eq(memcmp((a)->got.data, want_.data, want_.len), 0);                     \
		buf_free(&want_);                                                                  \
		buf_free(&(a)->got);                                                               \
	} while (0)

#define assert_asked_status(a, want)                                                               \
	cr_assert(((a)->ends == 1 && (a)->status == (want)), "%u ends: %d, \"%s\"", (a)->ends,     \
		(a)->status, (a)->message)

#endif
