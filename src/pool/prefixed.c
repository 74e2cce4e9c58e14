/* SPDX-License-Identifier: Apache-2.0 */
/* Looks for volumes by the beginning of their names, in the order of the index. Nothing waits. */
#include "pool/prefixed.h"

#include "pool/index.h"

#include <string.h>

const char *prefixed_name_of(const struct pool_object *volume, const char *prefix)
{
	const struct record *rec = volume->rec;
	if (rec == NULL || record_is_inline(rec) || strncmp(rec->name, prefix, strlen(prefix)) != 0)
		return NULL;
	return rec->name + strlen(prefix);
}

/* Keys are in the order of bytes: long names, whose keys are hashes, begin with '='; then there are
 * the others. */
static const char *skip_to(const char *prefix, const char *key)
{
	if (key[0] < '=')
		return "=";
	return key[0] > '=' && strcmp(key, prefix) < 0 ? prefix : key;
}

struct pool_object *prefixed_next(
	const struct pool *pool, const char *prefix, const char *after_key)
{
	const char *key = after_key;
	for (;;) {
		struct pool_object *next =
			pool_next_object(pool, RECORD_VOLUME, skip_to(prefix, key));
		if (next == NULL || strncmp(next->key, prefix, strlen(prefix)) > 0)
			return NULL;
		if (prefixed_name_of(next, prefix) != NULL)
			return next;
		key = next->key;
	}
}
