/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operator's commands. They run beside the driver or without one, block as they like, and
 * change nothing (but for `check --repair`, `import` and `move`). Each is a struct tool; here is
 * what they have in common: options that several take, texts, and a main() that parses, helps or
 * runs.
 */
#ifndef RINGVOL_TOOLS_TOOL_H
#define RINGVOL_TOOLS_TOOL_H

#include "base/arena.h"
#include "base/options.h"
#include "pool/pool.h"
#include "tools/inventory.h"

struct tool_args;

struct tool {
	struct command command;
	size_t size; /* of its options, which begin with struct tool_args */
	/* The exit status. Zeroed options were filled from the command line. */
	int (*run)(struct tool_args *args);
};
extern const struct tool check_tool, doctor_tool, health_tool, import_tool, ls_tool, move_tool,
	top_tool;

/* `ringvol key`, which has commands of its own. argv: what follows its name. */
int key_main(int argc, char *const *argv);

/* The first member of every tool's options: setters get the address of both. */
struct tool_args {
	const struct tool *tool;
	struct arena *arena; /* tool_main()'s: until run() has returned */
	bool failed;         /* out of memory, something is left out */
	bool json;
	bool cluster; /* a controller is asked, not this node's driver */
	const char *operands[OPERANDS_MAX];
	const char *endpoint;
	struct inventory_pool pools[POOLS_MAX];
	unsigned pool_count;
};

/* For a raw pool's messages, which say only in part what is to be done. */
#define TOOL_RAW_REMEDY "see docs/raw-pools.md, 'When something is wrong'"

enum { TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* Runs it with what follows its name. The exit status: of run(), or TOOL_USAGE. */
int tool_main(const struct tool *tool, int argc, char *const *argv);

/* Says why on standard error, after the tool's name. Returns TOOL_FAILED. */
int tool_fail(const struct tool_args *args, const char *why);

/* In the arena; "" and args->failed when memory is short. */
const char *tool_text(struct tool_args *args, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* ---- options ---- */

#define TOOL_ENDPOINT         "unix:///run/ringvol/csi.sock"
#define TOOL_ENDPOINT_CLUSTER "unix:///run/ringvol/controller.sock"

/* The first of several: the driver serves the same on each. */
int tool_set_endpoint(void *args, const char *value, struct err *err);
/* One more pool: "NAME=PATH[,...]", what follows the path is for the driver alone; or "PATH", and
 * its last component is the name. */
int tool_set_pool(void *args, const char *value, struct err *err);

/* clang-format off */
#define TOOL_JSON_ROW(about)                                                                       \
	{"--json", .help = about, .kind = OPTION_FLAG, OPTION_IN(struct tool_args, json)}
#define TOOL_ENDPOINT_ROW                                                                          \
	{"--endpoint", "unix:///PATH", {"CSI_ENDPOINT"},                                           \
		.fallback_help = TOOL_ENDPOINT,                                                    \
		.help = "where the driver serves CSI", .set = tool_set_endpoint}
/* For those that ask a controller as well: with TOOL_CLUSTER_ROW. */
#define TOOL_ENDPOINT_CLUSTER_ROW                                                                  \
	{"--endpoint", "unix:///PATH", {"CSI_ENDPOINT"},                                           \
		.fallback_help = TOOL_ENDPOINT "; with --cluster " TOOL_ENDPOINT_CLUSTER,          \
		.help = "where the driver, or the controller, serves CSI",                         \
		.set = tool_set_endpoint}
#define TOOL_CLUSTER_ROW(about)                                                                    \
	{"--cluster", .help = about, .kind = OPTION_FLAG, OPTION_IN(struct tool_args, cluster)}
#define TOOL_POOL_ROW(more)                                                                        \
	{"--pool", "NAME=PATH", {"RINGVOL_POOLS"}, .separator = ';',                               \
		.fallback = "default=/var/lib/ringvol",                                            \
		.help = "a pool to read, as the driver has it; repeatable\n"                       \
			"PATH alone does as well" more,                                            \
		.set = tool_set_pool}
/* clang-format on */

#endif
