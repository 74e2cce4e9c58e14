/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placing. A provisioner names every node of the cluster in requisite and again in preferred, so a
 * term finds its nodes by one of its segments, and no node is compared with every term.
 */
#include "controller/place.h"

#include "base/clock.h"
#include "controller/image.h"
#include "controller/term.h"
#include "csi/request.h"
#include "csi/topology.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

/* The best so far, and for the refusal what was seen. */
struct search {
	const struct store *store;
	const struct place *place;
	struct store_node *best;
	const struct store_pool *pool; /* of best */
	/* The last that matches and is not here; that has the pool, which is not ready. */
	const struct store_node *away;
	const struct store_pool *unready;
	unsigned matching; /* here */
};

static bool matches_requisite(const struct store_node *node, const struct place *place)
{
	const Csi__V1__TopologyRequirement *topology = place->topology;
	if (topology == NULL || topology->n_requisite == 0)
		return true;
	for (size_t i = 0; i < topology->n_requisite; i++)
		if (term_matches(topology->requisite[i], node))
			return true;
	return false;
}

/* The node's ready pool of the name. */
static const struct store_pool *ready_pool(struct search *s, const struct store_node *node)
{
	list_for_each (link, &node->pools) {
		const struct store_pool *pool = container_of(link, struct store_pool, link);
		if (pool->name == NULL || strcmp(pool->name, s->place->pool) != 0)
			continue;
		if (pool->state == STORE_POOL_READY)
			return pool;
		s->unready = pool;
	}
	return NULL;
}

static bool has_room(const struct search *s, const struct store_pool *pool)
{
	return pool->available_bytes != 0 && pool->available_bytes >= s->place->size_bytes;
}

static bool has_source(const struct search *s, const struct store_node *node)
{
	const struct place *place = s->place;
	return place->image != NULL ? image_is_on(s->store, place->image, node)
				    : node == place->source;
}

static bool is_better(
	const struct search *s, const struct store_node *node, const struct store_pool *pool)
{
	if (s->best == NULL || has_room(s, pool) != has_room(s, s->pool))
		return s->best == NULL || has_room(s, pool);
	if (has_source(s, node) != has_source(s, s->best))
		return has_source(s, node);
	if (pool->available_bytes != s->pool->available_bytes)
		return pool->available_bytes > s->pool->available_bytes;
	return strcmp(node->id, s->best->id) < 0;
}

/* with_room: no others, and requisite is still to be asked. */
static void consider(struct search *s, struct store_node *node, bool with_room)
{
	if (node->state != STORE_NODE_PRESENT) {
		s->away = node;
		return;
	}
	s->matching++;
	const struct store_pool *pool = ready_pool(s, node);
	if (pool == NULL || (with_room && !has_room(s, pool)) || !is_better(s, node, pool) ||
		(with_room && !matches_requisite(node, s->place)))
		return;
	s->best = node;
	s->pool = pool;
}

static void consider_term(struct search *s, const Csi__V1__Topology *term, bool with_room)
{
	struct term_walk walk;
	struct store_node *node;
	term_begin(&walk, s->store, term);
	while ((node = term_next(&walk)) != NULL)
		consider(s, node, with_room);
}

static int refuse(const struct search *s, struct err *err)
{
	const char *pool = s->place->pool;
	if (store_node_next(s->store, NULL) == NULL)
		return err_set(err, ERR_UNAVAILABLE, "no node has joined this controller yet");
	if (s->unready != NULL)
		return err_set(err, ERR_NO_ROOM,
			"no node that matches accessibility_requirements has a ready pool %s; that of node %s: %s",
			pool, s->unready->node->id,
			s->unready->why != NULL && s->unready->why[0] != '\0' ? s->unready->why
									      : "is being read");
	if (s->matching != 0)
		return err_set(err, ERR_NO_ROOM,
			"no node that matches accessibility_requirements has a pool %s", pool);
	if (s->away == NULL)
		return err_set(err, ERR_NO_ROOM, "no node matches accessibility_requirements");
	char since[CLOCK_BYTES];
	clock_print((uint64_t)s->away->seen_unix * 1000000000, since);
	bool joining = s->away->state == STORE_NODE_JOINING || since[0] == '\0';
	return err_set(err, ERR_NO_ROOM,
		"no node that matches accessibility_requirements is here: node %s %s%.19s%s",
		s->away->id, joining ? "is still joining" : "was last heard of at ",
		joining ? "" : since, joining ? "" : "Z");
}

int place_choose(const struct store *store, const struct place *place, struct store_node **ret,
	struct err *err)
{
	const Csi__V1__TopologyRequirement *topology = place->topology;
	struct search s = {.store = store, .place = place};
	for (size_t i = 0; topology != NULL && s.best == NULL && i < topology->n_preferred; i++)
		consider_term(&s, topology->preferred[i], true);
	bool anywhere = topology == NULL || topology->n_requisite == 0;
	if (s.best == NULL) {
		/* What preferred met does not count: requisite says who matches. */
		s = (struct search){.store = store, .place = place};
		for (size_t i = 0; !anywhere && i < topology->n_requisite; i++)
			consider_term(&s, topology->requisite[i], false);
		if (anywhere)
			consider_term(&s, NULL, false);
	}
	if (s.best == NULL)
		return refuse(&s, err);
	*ret = s.best;
	return 0;
}

int place_elsewhere(const struct store *store, const char *pool, const struct store_node *not_on,
	const struct store_node **ret, struct err *err)
{
	const struct place place = {.pool = pool};
	struct search s = {.store = store, .place = &place};
	struct store_node *node = NULL;
	while ((node = store_node_next(store, node)) != NULL)
		if (node != not_on)
			consider(&s, node, false);
	if (s.best == NULL)
		return err_set(err, ERR_PRECONDITION,
			"no other node is here with a pool %.64s that is ready", pool);
	*ret = s.best;
	return 0;
}
