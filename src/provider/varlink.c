/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection of varlink. It has one call at a time:
 *
 *   IDLE -> CALL -> IDLE ... -> OVER
 *
 * Bytes that come while a call is under way (calls may be sent ahead) wait in `in`; no more are
 * asked for until they are used up. What is no call ends the connection, as there is no answer to
 * it: too long a message, no JSON, no method. So does want of memory.
 */
#include "provider/varlink.h"

#include "base/list.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum varlink_state { VARLINK_IDLE, VARLINK_CALL, VARLINK_OVER };

/* A connection; it has one call at a time. */
struct varlink_call {
	struct session base;
	varlink_call_fn *on_call;
	void *arg;
	session_wake_fn *on_wake;
	void *wake_arg;
	enum varlink_state state;
	int broken;       /* -errno */
	bool busy;        /* inside feed() or output() */
	bool draining;    /* no call after this one */
	bool input_ended; /* the client sends no more */
	struct buf in;    /* received, not taken apart */

	json_t *message; /* of the call */
	bool more, oneway;
	struct varlink_source *source;
	json_t *ahead; /* the source's next answer, which may be its last */
	bool later;
	void (*on_gone)(void *arg);
	void *on_gone_arg;

	struct buf out; /* answered, not put out */
	int fd;         /* goes along with an answer; -1: none */
	size_t fd_at;   /* where in out that answer begins */
	bool fd_begins; /* the last output began with it */
};

static struct varlink_call *call_of(struct session *session)
{
	return container_of(session, struct varlink_call, base);
}

static const struct varlink_call *call_at(const struct session *session)
{
	return container_of(session, const struct varlink_call, base);
}

static void cut(struct varlink_call *c, int res)
{
	if (c->broken == 0)
		c->broken = res;
	c->base.dead = true;
}

/* ---- answers ---- */

static void put(struct varlink_call *c, json_t *message)
{
	char *text = message != NULL ? json_dumps(message, JSON_COMPACT) : NULL;
	json_decref(message);
	if (text == NULL || buf_append(&c->out, text, strlen(text) + 1) < 0)
		cut(c, -ENOMEM);
	free(text);
}

/* The call is answered. */
static void call_ends(struct varlink_call *c)
{
	bool later = c->later;
	c->later = false;
	json_decref(c->message);
	c->message = NULL;
	bool last = c->draining || (c->input_ended && c->in.len == 0);
	c->state = last ? VARLINK_OVER : VARLINK_IDLE;
	if (later && !c->busy)
		c->on_wake(c->wake_arg);
}

bool varlink_wants_more(const struct varlink_call *c)
{
	return c->more;
}

void varlink_reply(struct varlink_call *c, json_t *parameters, int fd)
{
	assert(c->state == VARLINK_CALL && c->source == NULL && c->fd < 0);
	if (c->oneway) { /* nobody wants to hear of it */
		json_decref(parameters);
		if (fd >= 0)
			close(fd);
	} else {
		c->fd = fd;
		c->fd_at = c->out.len;
		put(c, json_pack("{s:o}", "parameters", parameters));
	}
	call_ends(c);
}

void varlink_error(struct varlink_call *c, const char *error, json_t *parameters)
{
	assert(c->state == VARLINK_CALL && c->source == NULL);
	if (c->oneway)
		json_decref(parameters);
	else if (parameters != NULL)
		put(c, json_pack("{s:s,s:o}", "error", error, "parameters", parameters));
	else
		put(c, json_pack("{s:s,s:{}}", "error", error, "parameters"));
	call_ends(c);
}

void varlink_stream(struct varlink_call *c, struct varlink_source *source)
{
	assert(c->state == VARLINK_CALL && c->source == NULL && c->more);
	c->ahead = source->next(source);
	if (c->ahead != NULL) {
		c->source = source;
		return;
	}
	varlink_error(c, source->none, NULL);
	source->free(source);
}

/* As many answers of a source as go into the output. */
static void put_answers(struct varlink_call *c, size_t limit)
{
	struct varlink_source *source = c->source;
	while (c->broken == 0 && c->ahead != NULL && c->out.len < limit) {
		json_t *answer = c->ahead;
		c->ahead = source->next(source);
		put(c, c->ahead != NULL
				? json_pack("{s:o,s:b}", "parameters", answer, "continues", 1)
				: json_pack("{s:o}", "parameters", answer));
	}
	if (c->ahead == NULL) {
		c->source = NULL;
		source->free(source);
		call_ends(c);
	}
}

void varlink_later(struct varlink_call *c, void (*on_gone)(void *arg), void *arg)
{
	assert(c->state == VARLINK_CALL && c->source == NULL);
	c->later = true;
	c->on_gone = on_gone;
	c->on_gone_arg = arg;
}

/* ---- calls ---- */

static bool is_set(const json_t *message, const char *key)
{
	return json_is_true(json_object_get(message, key));
}

/* A message without its NUL. */
static void take_message(struct varlink_call *c, const uint8_t *data, size_t len)
{
	json_error_t why;
	json_t *message = json_loadb((const char *)data, len, JSON_REJECT_DUPLICATES, &why);
	const char *method = json_string_value(json_object_get(message, "method"));
	json_t *parameters = json_object_get(message, "parameters");
	if (method == NULL ||
		(parameters != NULL && !json_is_null(parameters) && !json_is_object(parameters))) {
		json_decref(message);
		cut(c, -EBADMSG);
		return;
	}
	if (!json_is_object(parameters)) {
		parameters = json_object();
		if (json_object_set_new(message, "parameters", parameters) < 0) {
			json_decref(message);
			cut(c, -ENOMEM);
			return;
		}
	}
	c->message = message;
	c->oneway = is_set(message, "oneway");
	c->more = is_set(message, "more") && !c->oneway;
	c->state = VARLINK_CALL;
	c->on_call(c, method, parameters, c->arg);
}

/* Up to the first call that is not answered at once. */
static void take_messages(struct varlink_call *c)
{
	size_t used = 0;
	while (c->state == VARLINK_IDLE && c->broken == 0 && c->fd < 0 && used < c->in.len) {
		const uint8_t *from = c->in.data + used;
		size_t len = c->in.len - used;
		const uint8_t *end = memchr(from, '\0', len);
		if (end == NULL || end - from > VARLINK_MESSAGE_MAX) {
			if (len > VARLINK_MESSAGE_MAX)
				cut(c, -EMSGSIZE);
			break;
		}
		used += (size_t)(end - from) + 1;
		take_message(c, from, (size_t)(end - from));
	}
	if (used == c->in.len)
		buf_free(&c->in);
	else
		buf_consume(&c->in, used);
	if (c->input_ended && c->state == VARLINK_IDLE)
		c->state = VARLINK_OVER;
}

/* ---- the session ---- */

static int varlink_feed(struct session *session, const uint8_t *data, size_t len)
{
	struct varlink_call *c = call_of(session);
	if (c->broken < 0 || c->state == VARLINK_OVER)
		return c->broken;
	if (buf_append(&c->in, data, len) < 0)
		cut(c, -ENOMEM);
	c->busy = true;
	take_messages(c);
	c->busy = false;
	return c->broken;
}

static bool varlink_wants_input(const struct session *session)
{
	const struct varlink_call *c = call_at(session);
	return c->state == VARLINK_IDLE && c->fd < 0;
}

static void varlink_input_ended(struct session *session)
{
	struct varlink_call *c = call_of(session);
	c->input_ended = true;
	if (c->state == VARLINK_IDLE)
		c->state = VARLINK_OVER;
}

/* An answer with a descriptor begins an output. */
static int varlink_output(struct session *session, struct buf *out, size_t limit)
{
	struct varlink_call *c = call_of(session);
	c->busy = true;
	if (c->out.len == 0 && c->state == VARLINK_IDLE && c->in.len > 0)
		take_messages(c);
	if (c->source != NULL)
		put_answers(c, limit);
	bool waits = c->fd >= 0 && c->fd_at > 0;
	size_t len = waits ? c->fd_at : c->out.len;
	c->fd_begins = c->fd >= 0 && !waits;
	c->fd_at = 0;
	if (len > 0 && buf_append(out, c->out.data, len) < 0)
		cut(c, -ENOMEM);
	if (len == c->out.len)
		buf_free(&c->out);
	else
		buf_consume(&c->out, len);
	c->busy = false;
	return c->broken;
}

static int varlink_pass(struct session *session)
{
	struct varlink_call *c = call_of(session);
	if (!c->fd_begins)
		return -1;
	int fd = c->fd;
	c->fd = -1;
	c->fd_begins = false;
	return fd;
}

static bool varlink_finished(const struct session *session)
{
	const struct varlink_call *c = call_at(session);
	return c->broken < 0 || (c->state == VARLINK_OVER && c->out.len == 0 && c->fd < 0);
}

/* A client of this host's root may stay as long as it likes. */
static enum session_wait varlink_waits(const struct session *session, uint64_t *ret_since_ns)
{
	*ret_since_ns = 0;
	return call_at(session)->state == VARLINK_CALL ? SESSION_BUSY : SESSION_IDLE;
}

static void varlink_drain(struct session *session)
{
	struct varlink_call *c = call_of(session);
	if (c->state == VARLINK_IDLE)
		c->state = VARLINK_OVER;
	c->draining = true;
}

static void varlink_free(struct session *session)
{
	struct varlink_call *c = call_of(session);
	if (c->later)
		c->on_gone(c->on_gone_arg);
	if (c->source != NULL)
		c->source->free(c->source);
	json_decref(c->ahead);
	json_decref(c->message);
	if (c->fd >= 0)
		close(c->fd);
	buf_free(&c->in);
	buf_free(&c->out);
	free(c);
}

static const struct session_ops varlink_ops = {.feed = varlink_feed,
	.wants_input = varlink_wants_input,
	.input_ended = varlink_input_ended,
	.output = varlink_output,
	.pass = varlink_pass,
	.finished = varlink_finished,
	.waits = varlink_waits,
	.drain = varlink_drain,
	.free = varlink_free};

int varlink_session_new(varlink_call_fn *on_call, void *arg, session_wake_fn *on_wake,
	void *wake_arg, struct session **ret)
{
	struct varlink_call *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return -ENOMEM;
	c->base.ops = &varlink_ops;
	c->base.paced = true;
	c->on_call = on_call;
	c->arg = arg;
	c->on_wake = on_wake;
	c->wake_arg = wake_arg;
	c->fd = -1;
	*ret = &c->base;
	return 0;
}
