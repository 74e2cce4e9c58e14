/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nodes of the rarest segment are looked at, and no others: one alone, where the term has a
 * node's own segment. It cannot fail.
 */
#include "controller/term.h"

#include "csi/request.h"

#include <string.h>

static bool has_segment(const struct store_node *node, const Csi__V1__StringPair *segment)
{
	for (size_t i = 0; i < node->n_topology; i++)
		if (strcmp(node->topology[i].key, csi_str(segment->key)) == 0)
			return strcmp(node->topology[i].value, csi_str(segment->value)) == 0;
	return false;
}

bool term_matches(const Csi__V1__Topology *term, const struct store_node *node)
{
	for (size_t i = 0; term != NULL && i < term->n_segments; i++)
		if (!has_segment(node, term->segments[i]))
			return false;
	return true;
}

void term_begin(struct term_walk *walk, const struct store *store, const Csi__V1__Topology *term)
{
	*walk = (struct term_walk){.store = store, .term = term};
	if (term == NULL || term->n_segments == 0)
		return;
	walk->count = SIZE_MAX;
	for (size_t i = 0; i < term->n_segments; i++) {
		static struct store_node *const none[1];
		size_t n;
		struct store_node *const *nodes = store_nodes_with(store,
			csi_str(term->segments[i]->key), csi_str(term->segments[i]->value), &n);
		if (n < walk->count) {
			walk->some = n > 0 ? nodes : none;
			walk->count = n;
		}
	}
}

struct store_node *term_next(struct term_walk *walk)
{
	if (walk->some == NULL)
		return walk->last = store_node_next(walk->store, walk->last);
	while (walk->at < walk->count) {
		struct store_node *node = walk->some[walk->at++];
		if (term_matches(walk->term, node))
			return node;
	}
	return NULL;
}
