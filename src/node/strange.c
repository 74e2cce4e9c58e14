/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume with the device's tag may have a record that cannot be read now, or an image that
 * somebody has moved away, and a pod may have either in use. It may have moved to another pool,
 * too. Only where all of that is known not to be so is the volume gone.
 */
#include "node/strange.h"

#include "pool/departure.h"
#include "pool/index.h"

#include <string.h>

/* A pool that has volumes which were made in others, or may have. */
static bool may_have_moved_to(const struct pool *pool)
{
	char key[RECORD_KEY_MAX] = "";
	const struct pool_object *object;
	if (pool_uuid8(pool)[0] == '\0')
		return true;
	while ((object = pool_next_object(pool, RECORD_VOLUME, key)) != NULL) {
		if (object->rec != NULL && object->rec->born[0] != '\0')
			return true;
		memcpy(key, object->key, sizeof(key));
	}
	return false;
}

static const char *why_of_pool(
	const struct pool *tagged, const struct pool *pool, const char *random)
{
	char key[RECORD_KEY_MAX] = "";
	const struct pool_object *object;
	if (pool_state(pool) != POOL_READY)
		return "it may be of a volume that has moved to a pool which is not here now";
	while ((object = pool_next_object(pool, RECORD_VOLUME, key)) != NULL) {
		if (object->rec == NULL)
			return "it may be of one of the pool's volumes whose records cannot be read";
		if (strcmp(object->rec->random, random) == 0 &&
			strcmp(record_id_pool(object->rec, pool_uuid8(pool)), pool_uuid8(tagged)) ==
				0)
			return "it has the tag of a volume, and is not bound to its image";
		memcpy(key, object->key, sizeof(key));
	}
	return NULL;
}

const char *strange_why_keep(
	const struct pools *pools, const struct pool *tagged, const char *random)
{
	const char *why = NULL;
	const struct pool *pool;
	if (pool_random_departed(tagged, random))
		return "its volume has moved to another pool, and may be there";
	for (unsigned i = 0; why == NULL && (pool = pools_at(pools, i)) != NULL; i++)
		if (pool == tagged || may_have_moved_to(pool))
			why = why_of_pool(tagged, pool, random);
	return why;
}
