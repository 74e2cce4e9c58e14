/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a controller tells of its cluster: nodes, pools, objects, and the calls that it passes on.
 * A thousand nodes are a thousand lines; volumes are told by their nodes.
 */
#include "metrics/private.h"

#include "controller/ready.h"

#include <stdio.h>
#include <string.h>

static const char *const state_names[STORE_NODE_STATES] = {
	[STORE_NODE_ROSTER] = "unseen",
	[STORE_NODE_JOINING] = "joining",
	[STORE_NODE_PRESENT] = "present",
	[STORE_NODE_ABSENT] = "absent",
};

static bool render_nodes(struct scrape *s, const struct family *f, struct text *t)
{
	struct store_stats stats;
	char labels[TEXT_LABELS_MAX];
	store_stats(s->metrics->controller->store, &stats);
	for (unsigned i = 0; i < STORE_NODE_STATES; i++) {
		text_label(labels, false, "state", state_names[i]);
		text_u64(t, f->name, labels, NULL, stats.nodes[i]);
	}
	return true;
}

enum { NODES_A_PIECE = 64 };

/* The first behind an id; nodes may come and go between two pieces. */
static const struct store_node *node_behind(const struct store *store, const char *id)
{
	const struct store_node *node = store_node(store, id);
	if (node != NULL)
		return store_node_next(store, node);
	while ((node = store_node_next(store, node)) != NULL)
		if (strcmp(node->id, id) > 0)
			break;
	return node;
}

static bool render_each_node(struct scrape *s, const struct family *f, struct text *t)
{
	const struct store *store = s->metrics->controller->store;
	const struct store_node *node = NULL;
	char labels[TEXT_LABELS_MAX];
	for (unsigned i = 0; i < NODES_A_PIECE && (node = node_behind(store, s->last)) != NULL;
		i++) {
		snprintf(s->last, sizeof(s->last), "%s", node->id);
		text_label(labels, false, "node", node->id);
		text_u64(t, f->name, labels, NULL, node->state == STORE_NODE_PRESENT);
	}
	s->work += NODES_A_PIECE;
	if (node == NULL)
		s->last[0] = '\0';
	return node == NULL;
}

static bool render_pools(struct scrape *s, const struct family *f, struct text *t)
{
	struct store_stats stats;
	store_stats(s->metrics->controller->store, &stats);
	text_u64(t, f->name, "state=\"here\"", NULL,
		stats.pools - stats.pools_away - stats.pools_forgotten);
	text_u64(t, f->name, "state=\"away\"", NULL, stats.pools_away);
	text_u64(t, f->name, "state=\"forgotten\"", NULL, stats.pools_forgotten);
	return true;
}

static bool render_objects(struct scrape *s, const struct family *f, struct text *t)
{
	struct store_stats stats;
	store_stats(s->metrics->controller->store, &stats);
	text_u64(t, f->name, "kind=\"volume\"", NULL, stats.objects[STORE_VOLUME]);
	text_u64(t, f->name, "kind=\"snapshot\"", NULL, stats.objects[STORE_SNAPSHOT]);
	return true;
}

static bool render_stat(struct scrape *s, const struct family *f, struct text *t)
{
	struct store_stats stats;
	store_stats(s->metrics->controller->store, &stats);
	text_u64(t, f->name, NULL, NULL, *(size_t *)(void *)((char *)&stats + f->stat_field));
	return true;
}

static bool render_whole(struct scrape *s, const struct family *f, struct text *t)
{
	struct err why = {0};
	text_u64(t, f->name, NULL, NULL, ready_check(s->metrics->controller, &why) == 0);
	return true;
}

/* Ends of buckets of base/hist.h. */
static const struct text_scale routed_scale = {
	.count = 9,
	.bounds_ns = {1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30,
		1ULL << 32},
	.le = {"0.000065536", "0.000262144", "0.001048576", "0.004194304", "0.016777216",
		"0.067108864", "0.268435456", "1.073741824", "4.294967296"},
};

static bool render_routed(struct scrape *s, const struct family *f, struct text *t)
{
	const struct controller *c = s->metrics->controller;
	char labels[TEXT_LABELS_MAX];
	for (unsigned i = 0; i < c->routed_count; i++) {
		const struct controller_routed *r = &c->routed[i];
		uint64_t counts[TEXT_BOUNDS_MAX + 1];
		text_scale_regroup(&routed_scale, &r->time, counts);
		text_label(labels, false, "method", r->method);
		text_histogram(t, f->name, labels, NULL, &routed_scale, counts, r->sum_ns);
	}
	return true;
}

static bool render_failed(struct scrape *s, const struct family *f, struct text *t)
{
	const struct controller *c = s->metrics->controller;
	char labels[TEXT_LABELS_MAX];
	for (unsigned i = 0; i < c->routed_count; i++) {
		text_label(labels, false, "method", c->routed[i].method);
		text_u64(t, f->name, labels, NULL, c->routed[i].failed);
	}
	return true;
}

#define STAT(field) render_stat, .stat_field = offsetof(struct store_stats, field)

const struct family cluster_families[] = {
	{"ringvol_cluster_whole", "gauge",
		"1 if every node that is known is here or has been: lists are whole then.",
		render_whole},
	{"ringvol_cluster_nodes", "gauge", "Nodes that this controller knows, by how they stand.",
		render_nodes},
	{"ringvol_cluster_node_present", "gauge", "1 if the node has joined and told what it has.",
		render_each_node},
	{"ringvol_cluster_pools", "gauge", "Their pools.", render_pools},
	{"ringvol_cluster_objects", "gauge",
		"What they have told of, those that are away included.", render_objects},
	{"ringvol_cluster_duplicates", "gauge",
		"Objects whose name another pool has as well, golden images apart: somebody has to "
		"delete one.",
		STAT(duplicates)},
	{"ringvol_cluster_names", "gauge", "Names that are being made.", STAT(claims)},
	{"ringvol_cluster_object_bytes", "gauge", "Memory that the objects take.",
		STAT(object_bytes)},
	{"ringvol_cluster_call_seconds", "histogram",
		"Time of a call that was passed on, from the request to the end of the answer.",
		render_routed},
	{"ringvol_cluster_calls_failed_total", "counter", "Those that did not end with OK.",
		render_failed},
	{NULL},
};
