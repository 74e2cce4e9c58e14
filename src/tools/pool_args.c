/* SPDX-License-Identifier: Apache-2.0 */
/* Reading --pool for tools that only look. A value that is no pool is said so. */
#include "tools/pool_args.h"

#include <string.h>

int pool_args_add(struct pool_args *args, const char *value, struct err *err)
{
	char *name = arena_strdup(args->arena, value);
	if (name == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	char *path = name, *equals = strchr(name, '=');
	/* A path may hold an equals sign, a pool's name no slash. */
	if (equals != NULL && memchr(name, '/', (size_t)(equals - name)) == NULL) {
		*equals = '\0';
		path = equals + 1;
		path[strcspn(path, ",")] = '\0';
	} else {
		const char *slash = strrchr(path, '/');
		name = slash != NULL && slash[1] != '\0' ? (char *)slash + 1 : path;
	}
	if (path[0] != '/')
		return err_set(err, ERR_INVALID, "a pool's path must be absolute");
	if (args->count == POOLS_MAX)
		return err_set(err, ERR_INVALID, "more than %d pools", POOLS_MAX);
	args->pools[args->count++] = (struct inventory_pool){.name = name, .path = path};
	return 0;
}
