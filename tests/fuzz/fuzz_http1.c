/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes through an HTTP/1 connection. The first byte says how: in which pieces, with or
 * without a drain, a client that half-closes, time that passes. What must hold: everything sent is
 * answers that a strict reader takes apart, the last one may be cut; each body that was begun is
 * freed; on_wake never comes from inside; no input is asked for while there is some.
 */
#include "fuzz.h"

#define http_must(condition) must(condition)
#include "../wire/http1_peer.h"

static const size_t pieces[] = {SESSION_FEED_BYTES, 1, 2, 7, 30, 100, 1000, 4096};

static void wait_for_input(struct http_peer *p)
{
	const struct session_ops *ops = p->session->ops;
	for (unsigned i = 0; i < 1000 && !ops->wants_input(p->session) &&
			     !ops->finished(p->session) && p->res == 0;
		i++) {
		http_peer_settle(p);
		if (p->waiting != NULL)
			http1_source_wake(&p->waiting->source);
		if (p->later != NULL)
			http_peer_answer(p);
	}
	must(ops->wants_input(p->session) || ops->finished(p->session) || p->res != 0);
}

/* Answers to HEAD have no body, and who looks at the answers alone cannot know which they are. */
static void check_answers(struct http_peer *p)
{
	struct http_answer a;
	size_t at = 0;
	while (at < p->out.len && http_answer_parse(&a, p->out.data + at, p->out.len - at, false)) {
		must(a.status == 200 || (a.status >= 400 && a.status <= 505));
		at += a.all;
		must(!a.close || at == p->out.len);
	}
	must(at == p->out.len || p->session->dead);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz f = {data, len};
	uint8_t how = fuzz_byte(&f);
	bool heads = memmem(f.data, f.len, "HEAD", 4) != NULL;
	struct http_peer *p = http_peer_new();
	p->size = (how & 8) != 0 ? 70000 : 20;
	must(http1_new(&p->http1, p->ring, &p->limits, p->routes) == 0);
	must(http_peer_connect(p) == 0);
	const struct session_ops *ops = p->session->ops;
	while (f.len > 0 && !ops->finished(p->session) && p->res == 0) {
		struct fuzz part = fuzz_take(&f, pieces[how & 7]);
		http_peer_feed(p, part.data, part.len);
		if ((how & 0x10) != 0 && f.len < len / 2)
			ops->drain(p->session);
		if ((how & 0x20) != 0 && f.len < len / 4)
			http_peer_advance(p, 11000);
		wait_for_input(p);
	}
	if ((how & 0x40) != 0)
		ops->input_ended(p->session);
	if ((how & 0x80) != 0)
		http_peer_advance(p, 200000);
	if (p->res == 0)
		wait_for_input(p);
	http_peer_settle(p);
	if (!heads)
		check_answers(p);
	http_peer_free(p);
	return 0;
}
