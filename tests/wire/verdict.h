/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a stream may be answered when memory has failed: what it is answered with memory, to the
 * byte; or an error behind whole messages of that; or, for the client to see that it was not
 * answered, a reset or the end of the connection. A text that goes with an error may be lost.
 */
#ifndef RINGVOL_TESTS_WIRE_VERDICT_H
#define RINGVOL_TESTS_WIRE_VERDICT_H

#include "peer.h"

/* Whether all there is are messages to their end. */
static inline bool verdict_whole(const struct buf *data)
{
	size_t at = 0;
	while (at + GRPC_PREFIX_BYTES <= data->len)
		at += GRPC_PREFIX_BYTES + grpc_wire_get_length(data->data + at);
	return at == data->len;
}

static inline bool verdict_begins(const struct buf *data, const struct buf *right)
{
	return data->len <= right->len &&
	       (data->len == 0 || memcmp(data->data, right->data, data->len) == 0);
}

static inline const char *verdict_of_end(const struct answer *a, const struct answer *right)
{
	if (a->http != (right->http < 0 ? 200 : right->http))
		return "has another HTTP status";
	if (a->grpc != right->grpc && a->grpc != GRPC_RESOURCE_EXHAUSTED)
		return "has a wrong status";
	if (a->grpc != right->grpc)
		return verdict_whole(&a->data) ? NULL : "has half a message before its error";
	if (a->data.len != right->data.len)
		return "lacks messages that its status promises";
	if (strcmp(a->message, right->message) != 0 && (a->grpc <= 0 || a->message[0] != '\0'))
		return "has another text";
	return NULL;
}

/* NULL, or what is wrong. over: the connection has ended; without that nothing is left open. */
static inline const char *verdict(const struct answer *a, const struct answer *right, bool over)
{
	if (!verdict_begins(&a->data, &right->data))
		return "was sent what it should not have been";
	if (a->end_stream) {
		const char *wrong = verdict_of_end(a, right);
		return wrong != NULL || a->closed || over ? wrong : "was ended and not closed";
	}
	if (over)
		return NULL;
	if (!a->closed && right->closed)
		return "is left open";
	if (a->closed && a->rst == NGHTTP2_INTERNAL_ERROR)
		return NULL;
	/* It goes on, or the client has reset it. */
	return a->rst == right->rst && a->data.len == right->data.len ? NULL : "was not answered";
}

static inline bool verdict_same(const struct answer *a, const struct answer *right)
{
	return verdict(a, right, false) == NULL && a->grpc == right->grpc && a->rst == right->rst &&
	       a->end_stream == right->end_stream && strcmp(a->message, right->message) == 0 &&
	       a->headers == right->headers && a->trailers_only == right->trailers_only &&
	       a->accept_identity == right->accept_identity;
}

/* All streams of a client. met: an allocation has failed; else everything is as it should be. */
static inline void verdict_on_all(
	struct peer *p, const struct peer *right, bool met, bool over, unsigned long n)
{
	int32_t next = (int32_t)nghttp2_session_get_next_stream_id(p->client);
	cr_assert(met || !over, "allocation %lu: the connection broke by itself", n);
	for (int32_t id = 1; id < next; id += 2) {
		const struct answer *a = &p->answers[id / 2], *r = &right->answers[id / 2];
		const char *wrong = verdict(a, r, over);
		if (!met && !verdict_same(a, r))
			wrong = "is answered otherwise than before";
		cr_assert(wrong == NULL,
			"allocation %lu: stream %d %s: status %d, \"%s\", %zu bytes, reset %u, not "
			"%d, \"%s\", %zu bytes, reset %u",
			n, id, wrong, a->grpc, a->message, a->data.len, a->rst, r->grpc, r->message,
			r->data.len, r->rst);
	}
}

#endif
