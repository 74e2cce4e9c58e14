/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes have told of their snapshots says which are golden images. */
#include "controller/image.h"

#include "pool/golden.h"

static const struct store_object *next_image(
	const struct store *store, const char *name, size_t *at)
{
	const struct store_object *object;
	do
		object = store_object_same(store, STORE_SNAPSHOT, name, at);
	while (object != NULL && (object->pool->forgotten || object->pool->node == NULL ||
					 !golden_is(name, object_source(object))));
	return object;
}

bool image_is_on(const struct store *store, const char *name, const struct store_node *node)
{
	const struct store_object *object;
	for (size_t at = 0; (object = next_image(store, name, &at)) != NULL;)
		if (object->pool->node == node && store_pool_here(object->pool))
			return true;
	return false;
}

int image_elsewhere(struct store *store, const char *name, const struct store_node *node,
	const struct store_object **ret, struct err *err)
{
	const struct store_object *object, *found = NULL;
	for (size_t at = 0; (object = next_image(store, name, &at)) != NULL;) {
		if (found != NULL)
			return err_set(err, ERR_NO_ROOM,
				"parameters: source: golden image %s is on nodes %s and %s and not on node %s, and which of them is meant is not known: import it on node %s as well, or delete all but one",
				name, found->pool->node->id, object->pool->node->id, node->id,
				node->id);
		found = object;
	}
	int r = found == NULL ? store_whole(store, err) : 0;
	if (r < 0)
		return r;
	if (found == NULL)
		return err_set(err, ERR_NOT_FOUND,
			"parameters: source: no node has a golden image %s (ringvol import)", name);
	*ret = found;
	return 0;
}
