/* SPDX-License-Identifier: Apache-2.0 */
/* The other end of a varlink connection, in memory: it feeds bytes, and keeps what comes out. The
 * service answers by what a call's method says. */
#ifndef RINGVOL_TESTS_VARLINK_PEER_H
#define RINGVOL_TESTS_VARLINK_PEER_H

#include "provider/request.h"
#include "provider/varlink.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/list.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct varlink_peer {
	struct session *session;
	struct varlink_call *later; /* what is answered later */
	bool gone;
	unsigned calls, fds, wakes;
	struct buf out;
	size_t fd_at; /* of the last descriptor, in out */
	int res;
};

struct varlink_numbers {
	struct varlink_source source;
	unsigned left;
};

static json_t *numbers_next(struct varlink_source *source)
{
	struct varlink_numbers *n = container_of(source, struct varlink_numbers, source);
	return n->left > 0 ? json_pack("{s:i}", "n", (int)n->left--) : NULL;
}

static void numbers_free(struct varlink_source *source)
{
	free(container_of(source, struct varlink_numbers, source));
}

static void peer_gone(void *arg)
{
	struct varlink_peer *p = arg;
	p->gone = true;
	p->later = NULL;
}

static void peer_call(struct varlink_call *call, const char *method, json_t *parameters, void *arg)
{
	struct varlink_peer *p = arg;
	struct provider_acquire request;
	struct arena *arena = arena_new(256 << 10);
	const char *wrong = provider_acquire_parse(parameters, arena, &request);
	p->calls++;
	if (strcmp(method, "later") == 0) {
		p->later = call;
		varlink_later(call, peer_gone, p);
	} else if (strcmp(method, "fd") == 0) {
		varlink_reply(call, json_object(), open("/dev/null", O_RDONLY | O_CLOEXEC));
	} else if (strncmp(method, "many", 4) == 0 && varlink_wants_more(call)) {
		struct varlink_numbers *n = calloc(1, sizeof(*n));
		n->source = (struct varlink_source){numbers_next, numbers_free, "none"};
		n->left = (unsigned)atoi(method + 4) % 3000;
		varlink_stream(call, &n->source);
	} else if (wrong != NULL) {
		varlink_error(call, "wrong", json_pack("{s:s}", "parameter", wrong));
	} else {
		varlink_reply(call, json_pack("{s:s}", "name", request.name), -1);
	}
	arena_unref(arena);
}

static void peer_wake(void *arg)
{
	((struct varlink_peer *)arg)->wakes++;
}

/* Takes what there is to send, as conn.c does. */
static void peer_take(struct varlink_peer *p)
{
	const struct session_ops *ops = p->session->ops;
	struct buf out = {0};
	do {
		buf_free(&out);
		if (ops->output(p->session, &out, 1000) < 0)
			p->res = -1;
		int fd = out.len > 0 ? ops->pass(p->session) : -1;
		if (fd >= 0) {
			close(fd);
			p->fds++;
			p->fd_at = p->out.len;
		}
		if (buf_append(&p->out, out.data, out.len) < 0)
			abort();
	} while (out.len > 0);
	buf_free(&out);
}

static void peer_feed(struct varlink_peer *p, const void *data, size_t len)
{
	if (p->res < 0)
		return;
	if (p->session->ops->feed(p->session, data, len) < 0)
		p->res = -1;
	peer_take(p);
}

static void peer_answer(struct varlink_peer *p)
{
	struct varlink_call *call = p->later;
	p->later = NULL;
	varlink_reply(call, json_pack("{s:b}", "late", 1), -1);
	peer_take(p);
}

static void peer_open(struct varlink_peer *p)
{
	*p = (struct varlink_peer){0};
	if (varlink_session_new(peer_call, p, peer_wake, p, &p->session) < 0)
		abort();
}

static void peer_close(struct varlink_peer *p)
{
	p->session->ops->free(p->session);
	buf_free(&p->out);
}

#endif
