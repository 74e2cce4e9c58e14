/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command lines of the tools have in common: options that several take, and a main() that
 * parses, helps or runs.
 */
#ifndef RINGVOL_TOOLS_ARGS_H
#define RINGVOL_TOOLS_ARGS_H

#include "base/arena.h"
#include "base/options.h"
#include "pool/pool.h"
#include "tools/inventory.h"

/* The first member of every tool's options: setters get the address of both. */
struct tool_args {
	struct arena *arena; /* tool_main()'s: until run() has returned */
	bool json;
	const char *endpoint;
	struct inventory_pool pools[POOLS_MAX];
	unsigned pool_count;
};

/* The first of several: the driver serves the same on each. */
int tool_set_endpoint(void *args, const char *value, struct err *err);
/* One more pool: "NAME=PATH[,...]", what follows the path is the driver's affair; or "PATH", whose
 * name is its last component. */
int tool_set_pool(void *args, const char *value, struct err *err);
/* A copy of the value that lives as long as the options. 0 or -ENOMEM. */
int tool_keep(struct tool_args *args, const char *value, char **ret, struct err *err);

/* clang-format off */
#define TOOL_JSON_ROW(about)                                                                       \
	{"--json", .help = about, .kind = OPTION_FLAG, OPTION_IN(struct tool_args, json)}
#define TOOL_ENDPOINT_ROW                                                                          \
	{"--endpoint", "unix:///PATH", {"CSI_ENDPOINT"},                                           \
		.fallback = "unix:///run/ringvol/csi.sock",                                        \
		.help = "where the driver serves CSI", .set = tool_set_endpoint}
#define TOOL_POOL_ROW(more)                                                                        \
	{"--pool", "NAME=PATH", {"RINGVOL_POOLS"}, .separator = ';',                               \
		.fallback = "default=/var/lib/ringvol",                                            \
		.help = "a pool to read, as the driver has it; repeatable\n"                       \
			"PATH alone does as well" more,                                            \
		.set = tool_set_pool}
/* clang-format on */

enum { TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* Says why on standard error, after the tool's name. Returns TOOL_FAILED. */
int tool_fail(const struct command *command, const char *why);

/* Fills *args, which begins the command's options, from argv (what follows the command's name), and
 * runs it, or prints its help. The exit status: of run, or TOOL_USAGE. */
int tool_main(const struct command *command, int argc, char *const *argv, struct tool_args *args,
	int (*run)(struct tool_args *args));

#endif
