/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the tools' command lines. A value that cannot be is said so, and the tool does not run.
 */
#include "tools/args.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int tool_keep(struct tool_args *args, const char *value, char **ret, struct err *err)
{
	char *copy = arena_strdup(args->arena, value);
	if (copy == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	*ret = copy;
	return 0;
}

int tool_set_endpoint(void *target, const char *value, struct err *err)
{
	struct tool_args *args = target;
	char *copy;
	int r = tool_keep(args, value, &copy, err);
	if (r < 0)
		return r;
	copy[strcspn(copy, ",;")] = '\0';
	args->endpoint = copy;
	return 0;
}

int tool_set_pool(void *target, const char *value, struct err *err)
{
	struct tool_args *args = target;
	char *name;
	int r = tool_keep(args, value, &name, err);
	if (r < 0)
		return r;
	char *path = name, *equals = strchr(name, '=');
	/* A path may hold an equals sign, a pool's name no slash. */
	if (equals != NULL && memchr(name, '/', (size_t)(equals - name)) == NULL) {
		*equals = '\0';
		path = equals + 1;
		path[strcspn(path, ",")] = '\0';
	} else {
		char *slash = strrchr(path, '/');
		name = slash != NULL && slash[1] != '\0' ? slash + 1 : path;
	}
	if (path[0] != '/')
		return err_set(err, ERR_INVALID, "a pool's path must be absolute");
	if (args->pool_count == POOLS_MAX)
		return err_set(err, ERR_INVALID, "more than %d pools", POOLS_MAX);
	args->pools[args->pool_count++] = (struct inventory_pool){.name = name, .path = path};
	return 0;
}

int tool_fail(const struct command *command, const char *why)
{
	fprintf(stderr, "ringvol %s: %s\n", command->name, why);
	return TOOL_FAILED;
}

int tool_main(const struct command *command, int argc, char *const *argv, struct tool_args *args,
	int (*run)(struct tool_args *args))
{
	struct options_result result = {0};
	struct err err = {0};
	int status = 0;
	args->arena = arena_new(0);
	if (args->arena == NULL)
		return tool_fail(command, "out of memory");
	if (options_parse(command, argc, argv, args, &result, &err) < 0) {
		tool_fail(command, err.message);
		status = TOOL_USAGE;
	} else if (result.help) {
		options_print_help(command, stdout);
	} else {
		status = run(args);
	}
	arena_unref(args->arena);
	return status;
}
