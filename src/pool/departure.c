/* SPDX-License-Identifier: Apache-2.0 */
/* The departures of a pool, as memory has them: found, told of, put aside. */
#include "pool/departure.h"

#include "pool/private.h"

#include <stdlib.h>
#include <string.h>

static struct pool_departure *departure_of(struct list *link)
{
	return container_of(link, struct pool_departure, link);
}

struct pool_departure *pool_departure_next(
	const struct pool *pool, const struct pool_departure *after)
{
	const struct list *l = after == NULL ? pool->departures.next : after->link.next;
	while (l != &pool->departures && departure_of((struct list *)l)->back)
		l = l->next;
	return l == &pool->departures ? NULL : departure_of((struct list *)l);
}

struct pool_departure *pool_departure_by_key(const struct pool *pool, const char *key)
{
	struct pool_departure *d = NULL;
	while ((d = pool_departure_next(pool, d)) != NULL && strcmp(d->key, key) != 0)
		;
	return d;
}

struct pool_departure *pool_departure_of_back(const struct pool *pool, const char *key)
{
	list_for_each (l, &pool->departures)
		if (departure_of(l)->back && strcmp(departure_of(l)->key, key) == 0)
			return departure_of(l);
	return NULL;
}

bool pool_departures_unread(const struct pool *pool)
{
	const struct pool_departure *d = NULL;
	while ((d = pool_departure_next(pool, d)) != NULL)
		if (d->why != NULL)
			return true;
	return false;
}

bool pool_random_departed(const struct pool *pool, const char *random)
{
	struct record_id id;
	const struct pool_departure *d = NULL;
	while ((d = pool_departure_next(pool, d)) != NULL)
		if (d->why != NULL || record_id_parse(d->id, &id) < 0 ||
			strcmp(id.random, random) == 0)
			return true;
	return false;
}

/* Of two the one that has moved more often is the last. */
struct pool_departure *pools_departure(const struct pools *pools, const char *id)
{
	struct record_id parsed;
	struct pool_departure *last = NULL;
	if (record_id_parse(id, &parsed) < 0)
		return NULL;
	for (unsigned i = 0; i < pools->count; i++) {
		struct pool_departure *d = pool_departure_by_key(pools->at[i], parsed.key);
		if (d != NULL && pool_loaded(pools->at[i]) && d->why == NULL &&
			strcmp(d->id, id) == 0 && (last == NULL || d->moves > last->moves))
			last = d;
	}
	return last;
}

bool pool_object_has_left(const struct pool_object *object)
{
	return pool_entry((struct pool_object *)object)->left;
}

int pool_departure_refuse(const struct pool_departure *d, struct err *err)
{
	if (d->why != NULL)
		return err_set(err, ERR_UNAVAILABLE,
			"a volume of the name %s has left pool %s, and the note that says which and "
			"where to, departed/%s, cannot be read: %s; see ringvol check",
			d->key, d->pool->name, d->key, d->why);
	return err_set(err, ERR_UNAVAILABLE,
		"volume %s has moved from pool %s to pool %s... of node %s: ask there", d->id,
		d->pool->name, d->to, d->node_id);
}

int pools_departure_check(const struct pools *pools, const char *id, struct err *err)
{
	struct record_id parsed;
	const struct pool_departure *d = pools_departure(pools, id);
	if (record_id_parse(id, &parsed) < 0)
		return 0;
	for (unsigned i = 0; d == NULL && i < pools->count; i++) {
		d = pool_departure_by_key(pools->at[i], parsed.key);
		if (d != NULL && (d->why == NULL || !pool_loaded(pools->at[i])))
			d = NULL;
	}
	return d != NULL ? pool_departure_refuse(d, err) : 0;
}

void pool_departure_enter(struct pool *pool, struct pool_departure *departure)
{
	departure->pool = pool;
	list_push(&pool->departures, &departure->link);
}

void pool_departure_put_aside(struct pool_departure *departure)
{
	list_remove(&departure->link);
	list_push(&departure->pool->departures_dead, &departure->link);
}

static bool is_same(const struct pool_departure *a, const struct pool_departure *b)
{
	return a->why == b->why && strcmp(a->key, b->key) == 0 && strcmp(a->id, b->id) == 0 &&
	       a->moves == b->moves && strcmp(a->to, b->to) == 0 &&
	       strcmp(a->node_id, b->node_id) == 0 && strcmp(a->grant, b->grant) == 0;
}

/* What was read is durable. */
void pool_departures_adopt(struct pool *pool, struct list *found)
{
	struct list before;
	list_init(&before);
	list_splice(&before, &pool->departures);
	for (struct list *l; (l = list_pop(found)) != NULL;) {
		struct pool_departure *d = departure_of(l);
		list_for_each_safe (m, &before) {
			if (!is_same(departure_of(m), d))
				continue;
			free(d);
			list_remove(m);
			d = departure_of(m);
			d->unsynced = d->back = false;
			break;
		}
		pool_departure_enter(pool, d);
	}
	list_splice(&pool->departures_dead, &before);
}

void pool_departures_free(struct list *departures)
{
	for (struct list *l; (l = list_pop(departures)) != NULL;)
		free(departure_of(l));
}
