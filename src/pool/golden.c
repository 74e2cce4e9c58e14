/* SPDX-License-Identifier: Apache-2.0 */
/* What has the name is looked at in every pool: a pool that came from another node may bring a
 * second one. */
#include "pool/golden.h"

#include "pool/index.h"

#include <string.h>

bool golden_name_valid(const char *name)
{
	char key[RECORD_KEY_MAX];
	if (name[0] == '\0' || strlen(name) > GOLDEN_NAME_MAX)
		return false;
	record_key(name, key);
	return strcmp(key, name) == 0;
}

bool golden_is(const char *key, const char *source_id)
{
	enum { HEX = 8 };
	struct record_id id;
	size_t prefix = strlen(GOLDEN_IMPORT_PREFIX), len = strlen(key);
	if (!golden_name_valid(key) || record_id_parse(source_id, &id) < 0 ||
		strncmp(id.key, GOLDEN_IMPORT_PREFIX, prefix) != 0 ||
		strncmp(id.key + prefix, key, len) != 0 || id.key[prefix + len] != '.')
		return false;
	const char *random = id.key + prefix + len + 1;
	if (strspn(random, "0123456789abcdef") != HEX)
		return false;
	return random[HEX] == '\0' || strcmp(random + HEX, ".fs") == 0;
}

static bool is_golden(const struct record *rec)
{
	return rec->group[0] == '\0' && golden_is(rec->key, rec->source_id);
}

/* Of several objects the golden one counts, then the damaged one, which may be it. */
static int refuse(const struct pool_object *object, const char *name, struct err *err)
{
	if (object->rec == NULL)
		return err_set(err, ERR_DATA_LOSS,
			"golden image %s is quarantined in pool %s: %s; see ringvol check", name,
			pool_name(object->pool), object->why);
	return err_set(err, ERR_PRECONDITION,
		"snapshot %s in pool %s is no golden image: ringvol import makes those", name,
		pool_name(object->pool));
}

int pools_find_golden(
	const struct pools *pools, const char *name, struct pool_object **ret, struct err *err)
{
	struct pool_object *found = NULL, *other = NULL;
	const struct pool *pool, *unread = NULL;
	for (unsigned i = 0; (pool = pools_at(pools, i)) != NULL; i++) {
		struct pool_object *object = pool_index_find(pool, RECORD_SNAPSHOT, name);
		if (pool_uuid8(pool)[0] == '\0' || pool_state(pool) == POOL_LOADING)
			unread = pool;
		if (object == NULL)
			continue;
		if (object->rec == NULL || !is_golden(object->rec)) {
			if (other == NULL || object->rec == NULL)
				other = object;
		} else if (found != NULL) {
			return err_set(err, ERR_PRECONDITION,
				"pools %s and %s have a golden image %s each: delete one of them (DeleteSnapshot)",
				pool_name(found->pool), pool_name(object->pool), name);
		} else {
			found = object;
		}
	}
	if (found == NULL && other != NULL)
		return refuse(other, name, err);
	if (found == NULL && unread != NULL)
		return err_set(err, ERR_UNAVAILABLE,
			"pool %s may have the golden image %s, and was not read yet: %s",
			pool_name(unread), name, pool_why(unread));
	*ret = found;
	return 0;
}
