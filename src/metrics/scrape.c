/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One /metrics being answered: the families one after the other, in pieces that http1.c asks for. A
 * piece ends when it is long enough or all scrapes together have done SCRAPE_WORK_MAX in this turn
 * of the loop, whichever comes first; the next goes on where it ended, in another turn. Before the
 * first piece the pools are measured, or were waited for.
 *
 * Out of memory the connection is cut: half a scrape must not pass for a whole one.
 */
#include "metrics/private.h"

#include "controller/ready.h"

#include <errno.h>
#include <stdlib.h>

static const struct family *const node_tables[] = {value_families, pool_families, volume_families,
	borrowed_families, member_families, tls_families, NULL};
static const struct family *const controller_tables[] = {
	value_families, cluster_families, tls_families, NULL};

/* The next family to render; NULL: all are. */
static const struct family *current(struct scrape *s)
{
	const struct family *const *tables =
		s->metrics->csi != NULL ? node_tables : controller_tables;
	while (tables[s->table] != NULL) {
		const struct family *family = &tables[s->table][s->family];
		if (family->render != NULL)
			return family;
		s->table++;
		s->family = 0;
	}
	return NULL;
}

static int render(struct scrape *s, struct buf *out, size_t limit)
{
	struct text t = {.out = out};
	const struct family *family;
	size_t end = out->len + limit;
	while ((family = current(s)) != NULL) {
		if (out->len >= end || s->work >= SCRAPE_WORK_MAX)
			return 1;
		if (!s->begun)
			text_family(&t, family->name, family->type, family->help);
		s->begun = true;
		if (family->render(s, family, &t)) {
			s->family++;
			s->begun = false;
			s->at = 0;
		}
		if (t.failed)
			return -ENOMEM;
	}
	return 0;
}

static void on_refreshed(struct node_refresh *refresh)
{
	http1_source_wake(&container_of(refresh, struct scrape, refresh)->source);
}

static int scrape_more(struct http1_source *source, struct buf *out, size_t limit)
{
	struct scrape *s = container_of(source, struct scrape, source);
	if (!s->measured) {
		s->measured = true;
		if (s->metrics->csi != NULL &&
			node_refresh_start(s->metrics->csi->node, &s->refresh, METRICS_MEASURE_MS,
				METRICS_WAIT_MS))
			return -EAGAIN;
	}
	struct metrics *m = s->metrics;
	uint64_t now_ns = ring_now_ns(m->reactor->ring);
	s->work = m->turn_ns == now_ns ? m->turn_work : 0;
	s->arena = arena_new(0);
	int res = s->arena != NULL ? render(s, out, limit) : -ENOMEM;
	arena_unref(s->arena);
	m->turn_ns = now_ns;
	m->turn_work = s->work;
	return res;
}

static void scrape_free(struct http1_source *source)
{
	struct scrape *s = container_of(source, struct scrape, source);
	node_refresh_cancel(&s->refresh);
	free(s);
}

static void scrape(struct http1_call *call, void *arg)
{
	struct scrape *s = calloc(1, sizeof(*s));
	if (s == NULL) {
		http1_reply(call, 503, "out of memory");
		return;
	}
	s->metrics = arg;
	s->source.more = scrape_more;
	s->source.free = scrape_free;
	s->refresh.on_end = on_refreshed;
	http1_stream(call, TEXT_CONTENT_TYPE, &s->source);
}

/* ---- probes: states that are kept anyway, so that a pool that hangs makes no answer wait ---- */

static void answer(struct http1_call *call, int well, const struct err *why, const char *text)
{
	http1_reply(call, well < 0 ? 503 : 200, well < 0 ? why->message : text);
}

static int check_live(const struct endpoints *e, struct err *why)
{
	return e->csi != NULL ? csi_check_live(e->csi, why) : 0; /* or nobody could ask */
}

static int check_ready(const struct endpoints *e, struct err *why)
{
	return e->csi != NULL ? csi_check_ready(e->csi, why) : ready_check(e->controller, why);
}

static void healthz(struct http1_call *call, void *arg)
{
	struct err why = {0};
	int live = check_live(arg, &why);
	answer(call, live, &why, "ok");
}

static void readyz(struct http1_call *call, void *arg)
{
	struct err why = {0};
	int ready = check_ready(arg, &why);
	answer(call, ready, &why, "ready");
}

void endpoints_init(struct endpoints *e, const struct csi *csi, struct controller *controller,
	struct metrics *metrics)
{
	*e = (struct endpoints){
		.csi = csi,
		.controller = controller,
		.routes =
			{
				{"/healthz", healthz, e},
				{"/readyz", readyz, e},
				{"/metrics", scrape, metrics},
				{NULL, NULL, NULL},
			},
	};
}
