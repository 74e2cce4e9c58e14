/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the tools' command lines. A tool does not run with a value that cannot be. */
#include "tools/tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int keep(struct tool_args *args, const char *value, char **ret, struct err *err)
{
	*ret = arena_strdup(args->arena, value);
	return *ret == NULL ? err_set(err, ERR_NO_ROOM, "out of memory") : 0;
}

int tool_set_endpoint(void *target, const char *value, struct err *err)
{
	struct tool_args *args = target;
	char *copy;
	int r = keep(args, value, &copy, err);
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
	int r = keep(args, value, &name, err);
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

const char *tool_text(struct tool_args *args, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	va_start(ap, fmt);
	int len = vasprintf(&text, fmt, ap);
	va_end(ap);
	const char *copy = len < 0 ? NULL : arena_strdup(args->arena, text);
	if (len >= 0)
		free(text);
	args->failed |= copy == NULL;
	return copy != NULL ? copy : "";
}

int tool_fail(const struct tool_args *args, const char *why)
{
	fprintf(stderr, "ringvol %s: %s\n", args->tool->command.name, why);
	return TOOL_FAILED;
}

int tool_main(const struct tool *tool, int argc, char *const *argv)
{
	const struct tool_args none = {.tool = tool};
	struct options_result result = {0};
	struct err err = {0};
	int status = 0;
	struct tool_args *args = calloc(1, tool->size);
	struct arena *arena = arena_new(0);
	if (args == NULL || arena == NULL) {
		status = tool_fail(&none, "out of memory");
		goto out;
	}
	args->tool = tool;
	args->arena = arena;
	if (options_parse(&tool->command, argc, argv, args, &result, &err) < 0) {
		tool_fail(args, err.message);
		status = TOOL_USAGE;
	} else if (result.help) {
		options_print_help(&tool->command, stdout);
	} else {
		memcpy(args->operands, result.operands, sizeof(args->operands));
		if (args->endpoint == NULL)
			args->endpoint = args->cluster ? TOOL_ENDPOINT_CLUSTER : TOOL_ENDPOINT;
		status = tool->run(args);
		if (args->failed)
			status = tool_fail(args, "out of memory, something is left out");
	}
out:
	arena_unref(arena);
	free(args);
	return status;
}
