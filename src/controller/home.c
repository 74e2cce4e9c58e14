/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ids lead to objects, and where nobody has told of one to pools; both to nodes. What is away is
 * never "not found": it is elsewhere, unless somebody has said (--forget-pool) that it is gone for
 * good. A time is for people: it is this machine's, and nothing is decided by it.
 */
#include "controller/home.h"

#include "base/clock.h"
#include "pool/record.h"

#include <stdio.h>

int home_check(const struct store_node *node, const char *what, const char *uuid8, struct err *err)
{
	if (store_node_here(node))
		return 0;
	char how[96], remedy[96] = "";
	char since[CLOCK_BYTES];
	clock_print((uint64_t)node->seen_unix * 1000000000, since);
	if (node->state == STORE_NODE_ROSTER)
		snprintf(how, sizeof(how), "has not joined this controller since it started");
	else if (since[0] == '\0')
		snprintf(how, sizeof(how), "has left");
	else
		snprintf(how, sizeof(how), "was last heard of at %.19sZ", since);
	if (uuid8 != NULL)
		snprintf(remedy, sizeof(remedy), "; if it is gone for good, --forget-pool %s",
			uuid8);
	return err_set(err, ERR_UNAVAILABLE,
		"%s is on node %.64s, which %s; try again when it is back%s", what, node->id, how,
		remedy);
}

/* Its node is here; the pool may not be. */
static int check_pool(const struct store_pool *pool, const char *what, struct err *err)
{
	if (store_pool_here(pool))
		return 0;
	return err_set(err, ERR_UNAVAILABLE,
		"%s was on node %.64s, which is here without it; try again when it is back; if it "
		"is gone for good, --forget-pool %s",
		what, pool->node->id, pool->uuid8);
}

/* Whether nothing by the id is left, its pool being gone for good: it may have moved away before.
 */
static int check_forgotten(struct store *store, const char *id, const char *uuid8, struct err *err)
{
	struct err why = {0};
	if (store_whole(store, &why) < 0)
		return err_set(err, ERR_UNAVAILABLE,
			"%s: its pool %s is gone for good, but the volume may have moved to another "
			"node before, and: %s",
			id, uuid8, why.message);
	return err_set(err, ERR_NOT_FOUND,
		"%s does not exist: its pool %s is gone for good (--forget-pool)", id, uuid8);
}

int home_of_id(struct store *store, const char *id, struct store_node **ret, struct err *err)
{
	struct record_id parsed;
	*ret = NULL;
	if (record_id_parse(id, &parsed) < 0)
		return 0;
	const struct store_object *object = store_object(store, id);
	const struct store_pool *pool =
		object != NULL ? object->pool : store_pool(store, parsed.pool);
	if (pool != NULL && pool->forgotten)
		return check_forgotten(store, id, pool->uuid8, err);
	if (pool == NULL || pool->node == NULL)
		return err_set(err, ERR_UNAVAILABLE,
			"%s: no node that has joined has the pool %s; if it is gone for good, "
			"--forget-pool %s lets its volumes be deleted",
			id, parsed.pool, parsed.pool);
	char what[RECORD_ID_MAX + 32];
	snprintf(what, sizeof(what), "%s: pool %s", id, pool->uuid8);
	int r = home_check(pool->node, what, pool->uuid8, err);
	if (r == 0)
		r = check_pool(pool, what, err);
	if (r == 0)
		*ret = pool->node;
	return r;
}

struct store_node *home_anywhere(const struct store *store)
{
	struct store_node *node = NULL;
	while ((node = store_node_next(store, node)) != NULL)
		if (store_node_here(node))
			break;
	return node;
}

int home_of_name(struct store *store, enum store_kind kind, const char *key, const char *name,
	struct store_node **ret, struct err *err)
{
	struct store_node *node = store_name(store, kind, key);
	int r;
	if (node == NULL) {
		/* Whoever has not told everything yet may have it. */
		r = store_whole(store, err);
	} else {
		const struct store_object *object = store_object_by_key(store, kind, key);
		const struct store_node *maker = store_name_maker(store, kind, key);
		char what[192];
		snprintf(what, sizeof(what), "%s %s", kind == STORE_VOLUME ? "volume" : "snapshot",
			name);
		r = home_check(node, what, object != NULL ? object->pool->uuid8 : NULL, err);
		if (r == 0 && object != NULL && (maker == NULL || !store_node_here(maker)))
			r = check_pool(object->pool, what, err);
	}
	if (r == 0)
		*ret = node;
	return r;
}

bool home_name_is_free(enum grpc_status status)
{
	switch (status) {
	case GRPC_OK: /* what was made has the name */
	case GRPC_CANCELLED:
	case GRPC_DEADLINE_EXCEEDED:
	case GRPC_UNAVAILABLE: /* the connection may have been lost, with the call begun */
	case GRPC_ABORTED:     /* an operation of that name runs */
	case GRPC_UNKNOWN:
		return false;
	default:
		return true;
	}
}
