/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line's first words. Each command is a function of what follows its name; what is not
 * a command ends with status 2, one line and a hint.
 */
#include "app/controller.h"
#include "app/pool.h"
#include "app/serve.h"
#include "app/ublkd.h"
#include "attach/calls.h"
#include "backends/crypt/luks.h"
#include "base/options.h"
#include "base/process.h"
#include "probes/probes.h"
#include "reactor/helper.h"
#include "tools/tool.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help[] =
	"usage: ringvol COMMAND [OPTION...]\n"
	"\n"
	"A CSI driver for storage that lives on the node.\n"
	"\n"
	"commands:\n"
	"  serve           the driver\n"
	"  controller      the controller service of a cluster, for the drivers on its nodes\n"
	"  ublkd           the data process of ublk devices\n"
	"  doctor          what this node can do, and what to do about the rest\n"
	"  ls              volumes and snapshots, and how they are\n"
	"  top             what attached volumes do, live\n"
	"  move            moves volumes to other nodes of a cluster\n"
	"  health          whether the driver lives, for probes\n"
	"  import          makes a golden image, or a volume, of an image, a tree or an archive\n"
	"  check           what is wrong in a pool, and repairs what a crash left\n"
	"  key             adds and removes keys of encrypted volumes\n"
	"  pool            makes pools, and grows and lets go of those on raw disks\n"
	"\n"
	"  --version       prints the version\n"
	"  --help          this text; each command has its own\n";

/* ---- commands ---- */

/* Commands that the driver starts, not people: with their end of a socket pair (reactor/spawn.h),
 * or of a pipe. */
static int socket_of(const char *command, int argc, char *const *argv)
{
	char *end;
	errno = 0;
	long fd = argc == 1 ? strtol(argv[0], &end, 10) : -1;
	if (fd >= 0 && fd <= INT_MAX && errno == 0 && *argv[0] != '\0' && *end == '\0')
		return (int)fd;
	fprintf(stderr, "ringvol %s: started by the driver only\n", command);
	return -1;
}

static int helper_command(int argc, char *const *argv)
{
	int fd = socket_of("helper", argc, argv);
	if (fd < 0)
		return 2;
	/* It lives as long as the driver's end is open: a Ctrl-C or SIGTERM for all of the process
	 * group must not break what a draining driver is about to finish. */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	process_be_prompt(true);
	helper_fn *calls[ATTACH_CALLS];
	attach_calls_fill(calls);
	return helper_main(fd, calls, ATTACH_CALLS);
}

static int probes_command(int argc, char *const *argv)
{
	int fd = socket_of("probes", argc, argv);
	return fd < 0 ? 2 : probes_loader_main(fd);
}

static int luks_command(int argc, char *const *argv)
{
	int fd = socket_of("luks", argc, argv);
	return fd < 0 ? 2 : luks_main(fd);
}

static const struct {
	const char *name;
	int (*main)(int argc, char *const *argv); /* what follows the name */
	const struct tool *tool;                  /* where main is NULL */
} commands[] = {
	{"serve", serve_main},
	{"controller", controller_main},
	{"ublkd", ublkd_main},
	{"check", .tool = &check_tool},
	{"doctor", .tool = &doctor_tool},
	{"health", .tool = &health_tool},
	{"import", .tool = &import_tool},
	{"ls", .tool = &ls_tool},
	{"move", .tool = &move_tool},
	{"top", .tool = &top_tool},
	{"pool", pool_main},
	{"key", key_main},
	{"helper", helper_command},
	{"luks", luks_command},
	{"probes", probes_command},
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static int fail_unknown(const char *name)
{
	const char *names[COMMANDS + 3];
	unsigned count = 0;
	for (unsigned i = 0; i < COMMANDS; i++)
		if (commands[i].main != helper_command && commands[i].main != luks_command &&
			commands[i].main != probes_command)
			names[count++] = commands[i].name;
	names[count++] = "--version";
	names[count++] = "--help";
	names[count] = NULL;
	const char *near = strcmp(name, "-h") == 0 ? "--help" : options_nearest(name, names);
	fprintf(stderr, "ringvol: unknown %s '%s'; %s'%s'%s\n",
		name[0] == '-' ? "option" : "command", name,
		near != NULL ? "did you mean " : "see ", near != NULL ? near : "ringvol --help",
		near != NULL ? "?" : "");
	return 2;
}

static int command(int argc, char *const *argv)
{
	if (argc < 2) {
		fprintf(stderr, "ringvol: no command; see 'ringvol --help'\n");
		return 2;
	}
	for (unsigned i = 0; i < COMMANDS; i++)
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].main != NULL
				       ? commands[i].main(argc - 2, argv + 2)
				       : tool_main(commands[i].tool, argc - 2, argv + 2);
	if (strcmp(argv[1], "--version") == 0) {
		puts("ringvol " RINGVOL_VERSION);
		return 0;
	}
	if (strcmp(argv[1], "--help") == 0) {
		fputs(help, stdout);
		return 0;
	}
	return fail_unknown(argv[1]);
}

int main(int argc, char **argv)
{
	/* Work threads would each get an arena of their own, and what one of them or a burst of
	 * calls needed would stay resident. */
	mallopt(M_ARENA_MAX, 1);
	process_keep_memory(false);
	umask(0077);
	/* Our parent may have ignored it, and that survives exec: the kernel would reap our
	 * children, and nobody would know how they ended. */
	signal(SIGCHLD, SIG_DFL);
	int status = command(argc, argv);
	if (fflush(stdout) != 0 && status == 0)
		status = 1;
	return status;
}
