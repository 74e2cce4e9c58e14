/* SPDX-License-Identifier: Apache-2.0 */
/* A set of names, and a list of them for each node. It fails by its limits and by memory. */
#include "controller/claims.h"

#include <stdlib.h>
#include <string.h>

struct store_claim {
	struct name name;
	struct list link; /* of its node */
	struct store_node *node;
	uint32_t join; /* the node's, when it was made */
	bool over;     /* claims_over() */
	char key[];
};

static struct store_claim *find(const struct claims *claims, enum store_kind kind, const char *key)
{
	struct name *name = names_find(&claims->names, kind, key);
	return name != NULL ? container_of(name, struct store_claim, name) : NULL;
}

static void drop(struct claims *claims, struct store_claim *claim)
{
	names_remove(&claims->names, &claim->name);
	list_remove(&claim->link);
	claim->node->n_claims--;
	free(claim);
}

void claims_init(struct claims *claims)
{
	names_init(&claims->names);
}

struct store_node *claims_maker(const struct claims *claims, enum store_kind kind, const char *key)
{
	const struct store_claim *claim = find(claims, kind, key);
	return claim != NULL ? claim->node : NULL;
}

int claims_make(struct claims *claims, enum store_kind kind, const char *key,
	struct store_node *node, struct err *err)
{
	struct store_claim *claim = find(claims, kind, key);
	if (claim != NULL) {
		claim->join = node->join;
		claim->over = false;
		return 0;
	}
	if (!record_key_valid(key))
		return err_set(err, ERR_INVALID, "a name that is claimed has no valid key");
	if (node->n_claims >= STORE_NODE_CLAIMS_MAX || claims->names.count >= STORE_CLAIMS_MAX)
		return err_set(err, ERR_NO_ROOM,
			"too many names are being made (%zu, %u of them at node %s); try again",
			claims->names.count, node->n_claims, node->id);
	size_t len = strlen(key);
	claim = malloc(sizeof(*claim) + len + 1);
	if (claim == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	memset(claim, 0, sizeof(*claim));
	memcpy(claim->key, key, len + 1);
	claim->name.text = claim->key;
	claim->name.kind = kind;
	claim->node = node;
	claim->join = node->join;
	names_add(&claims->names, &claim->name);
	list_push(&node->claims, &claim->link);
	node->n_claims++;
	return 0;
}

void claims_release(struct claims *claims, enum store_kind kind, const char *key)
{
	struct store_claim *claim = find(claims, kind, key);
	if (claim != NULL)
		drop(claims, claim);
}

void claims_over(struct claims *claims, enum store_kind kind, const char *key)
{
	struct store_claim *claim = find(claims, kind, key);
	if (claim != NULL)
		claim->over = true;
}

bool claims_is_over(const struct claims *claims, enum store_kind kind, const char *key)
{
	const struct store_claim *claim = find(claims, kind, key);
	return claim != NULL && claim->over;
}

void claims_drop_old(
	struct claims *claims, struct store_node *node, const struct store_config *config)
{
	list_for_each_safe (l, &node->claims) {
		struct store_claim *claim = container_of(l, struct store_claim, link);
		bool asked = config->is_asked != NULL &&
			     config->is_asked(config->arg, claim->name.kind, claim->key);
		if (claim->join < node->instance_join || (claim->join < node->join && !asked))
			drop(claims, claim);
	}
}

void claims_drop_all(struct claims *claims, struct store_node *node)
{
	list_for_each_safe (l, &node->claims)
		drop(claims, container_of(l, struct store_claim, link));
}
