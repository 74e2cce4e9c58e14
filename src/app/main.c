/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line's first words. Each command is a function of what follows its name; what is not
 * a command ends with status 2, one line and a hint.
 */
#include "app/controller.h"
#include "app/serve.h"
#include "app/ublkd.h"
#include "base/options.h"
#include "base/process.h"
#include "mount/mnt.h"
#include "pool/layout.h"
#include "pool/pool.h"
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
	"  health          whether the driver lives, for probes\n"
	"  check           what is wrong in a pool, and repairs what a crash left\n"
	"  pool init PATH  makes a directory a pool and says what it can do\n"
	"\n"
	"  --version       prints the version\n"
	"  --help          this text; each command has its own\n";

static const char pool_help[] = "usage: ringvol pool COMMAND\n"
				"\n"
				"commands:\n"
				"  init PATH  makes a directory a pool and says what it can do\n";

/* ---- ringvol pool init ---- */

static const struct option_row no_rows[] = {{NULL}};

static const struct command pool_init_command = {
	.name = "pool init",
	.operand = "PATH",
	.summary = "Makes the directory PATH, which is empty or missing, a pool, and says what the "
		   "file\n"
		   "system below it can do. A directory that is a pool already stays as it is.",
	.options = no_rows,
};

static void print_features(const struct fs_features *f)
{
	const char *name = fs_type_name(f->fs_type);
	if (name != NULL)
		printf("  file system    %s\n", name);
	else
		printf("  file system    type 0x%llx\n", (unsigned long long)f->fs_type);
	if (f->no_journal)
		printf("  journal        no: " FS_NO_JOURNAL "\n");
	printf("  reflink        %s\n",
		f->reflink ? "yes: snapshots, clones and fresh volumes share their bytes"
			   : "no: snapshots and clones copy their bytes");
	if (f->direct_io)
		printf("  direct I/O     yes, aligned to %u bytes\n", f->dio_align);
	else
		printf("  direct I/O     no: data is cached twice\n");
	printf("  thick volumes  %s\n", f->nocow_lies
						? "no: it copies on write, space cannot be kept"
					: f->fallocate ? "yes"
						       : "no: it has no fallocate");
}

static int pool_init_main(int argc, char *const *argv)
{
	struct options_result result = {0};
	struct err err = {0};
	if (options_parse(&pool_init_command, argc, argv, NULL, &result, &err) < 0) {
		fprintf(stderr, "ringvol pool init: %s\n", err.message);
		return 2;
	}
	if (result.help) {
		options_print_help(&pool_init_command, stdout);
		return 0;
	}
	struct fs_features features = {0};
	bool existed = false;
	if (pool_init_dir(result.operand, &features, &existed, &err) < 0) {
		fprintf(stderr, "ringvol pool init: %s\n", err.message);
		return 1;
	}
	printf("%s is a pool%s\n", result.operand,
		existed ? " already; nothing was changed" : " now");
	print_features(&features);
	return 0;
}

/* ---- commands ---- */

/* Commands that the driver starts with their end of a socket pair (reactor/spawn.h), not people. */
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
	return helper_main(fd, mnt_calls, MNT_CALLS);
}

static int probes_command(int argc, char *const *argv)
{
	int fd = socket_of("probes", argc, argv);
	return fd < 0 ? 2 : probes_loader_main(fd);
}

static int pool_command(int argc, char *const *argv)
{
	static const char *const names[] = {"init", "--help", NULL};
	if (argc == 0) {
		fprintf(stderr, "ringvol pool: no command; see 'ringvol pool --help'\n");
		return 2;
	}
	if (strcmp(argv[0], "--help") == 0) {
		fputs(pool_help, stdout);
		return 0;
	}
	if (strcmp(argv[0], "init") == 0)
		return pool_init_main(argc - 1, argv + 1);
	const char *near = options_nearest(argv[0], names);
	fprintf(stderr, "ringvol pool: unknown command '%s'; %s'%s'%s\n", argv[0],
		near != NULL ? "did you mean " : "see ",
		near != NULL ? near : "ringvol pool --help", near != NULL ? "?" : "");
	return 2;
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
	{"ls", .tool = &ls_tool},
	{"top", .tool = &top_tool},
	{"pool", pool_command},
	{"helper", helper_command},
	{"probes", probes_command},
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static int fail_unknown(const char *name)
{
	const char *names[COMMANDS + 3];
	unsigned count = 0;
	for (unsigned i = 0; i < COMMANDS; i++)
		if (commands[i].main != helper_command && commands[i].main != probes_command)
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
