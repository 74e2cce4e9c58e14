/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol pool`: commands for people, which block as they like. Each is a row: its options, what
 * it says, what it does. A pool is a directory; with --device it is a raw pool, on disks.
 */
#include "app/pool.h"

#include "base/options.h"
#include "disk/init.h"
#include "pool/layout.h"
#include "pool/raw_init.h"

#include <stdio.h>
#include <string.h>

struct pool_options {
	const char *device;
	bool take_over;
};

/* ---- saying it ---- */

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

static void print_raw(const struct raw_made *made)
{
	printf("  pool           %s\n", made->uuid);
	printf("  volumes        %llu MiB\n", (unsigned long long)(made->area_bytes >> 20));
	printf("  records        %llu MiB\n", (unsigned long long)(made->records_bytes >> 20));
}

/* ---- init ---- */

static int init_directory(const char *path, struct err *err)
{
	struct fs_features features = {0};
	bool existed = false;
	int r = pool_init_dir(path, &features, &existed, err);
	if (r < 0)
		return r;
	printf("%s is a pool%s\n", path, existed ? " already; nothing was changed" : " now");
	print_features(&features);
	return 0;
}

static int run_init(const struct pool_options *o, const char *path, struct err *err)
{
	struct raw_made made;
	if (o->device == NULL)
		return init_directory(path, err);
	int r = raw_init(o->device, path, &made, err);
	if (r < 0)
		return r;
	if (made.existed)
		printf("%s is the disk of a raw pool already; nothing on it was changed, and %s is "
		       "its place\n",
			o->device, path);
	else
		printf("%s is a raw pool now, on %s\n", path, o->device);
	print_raw(&made);
	return 0;
}

/* ---- grow and release ---- */

static int run_grow(const struct pool_options *o, const char *path, struct err *err)
{
	struct raw_made made;
	int r = raw_grow(path, o->device, &made, err);
	if (r < 0)
		return r;
	if (made.existed)
		printf("%s has all of its disks already; nothing was changed\n", path);
	else
		printf("%s has %llu MiB more for volumes, as soon as a driver has overwritten them\n",
			path, (unsigned long long)(made.area_bytes >> 20));
	return 0;
}

static int run_release(const struct pool_options *o, const char *path, struct err *err)
{
	int r = disk_release(path, o->take_over, err);
	if (r == 0)
		printf("no node serves the pool at %s any more; its disks may move\n", path);
	return r;
}

/* ---- commands ---- */

static const struct option_row init_rows[] = {
	{"--device", "DEV",
		.help = "a disk, partition, md array or logical volume that holds nothing: the pool's\n"
			"volumes are on it, and PATH holds only a file that names it",
		.kind = OPTION_PATH, OPTION_IN(struct pool_options, device)},
	{NULL},
};
static const struct option_row grow_rows[] = {
	{"--device", "DEV",
		.help = "one more disk for the pool, which holds nothing; without it the pool takes in\n"
			"what its disks have grown by",
		.kind = OPTION_PATH, OPTION_IN(struct pool_options, device)},
	{NULL},
};
static const struct option_row release_rows[] = {
	{"--take-over",
		.help = "the pool is another node's, which is off for good: what that node may still\n"
			"write destroys the pool",
		.kind = OPTION_FLAG, OPTION_IN(struct pool_options, take_over)},
	{NULL},
};

static const struct pool_command {
	struct command command; /* its name begins with "pool " */
	int (*run)(const struct pool_options *options, const char *path, struct err *err);
} pool_commands[] = {
	{{.name = "pool init",
		 .operands = {"PATH"},
		 .summary =
			 "Makes the directory PATH, which is empty or missing, a pool, and says what the file\n"
			 "system below it can do. A directory that is a pool already stays as it is.",
		 .options = init_rows},
		run_init},
	{{.name = "pool grow",
		 .operands = {"PATH"},
		 .summary = "Gives the raw pool at PATH more room. No driver serves it meanwhile.",
		 .options = grow_rows},
		run_grow},
	{{.name = "pool release",
		 .operands = {"PATH"},
		 .summary =
			 "Says that this node does not serve the raw pool at PATH any more, so that its disks\n"
			 "may move to another node.",
		 .options = release_rows},
		run_release},
};
enum { COMMANDS = sizeof(pool_commands) / sizeof(pool_commands[0]) };

static const char help[] = "usage: ringvol pool COMMAND\n"
			   "\n"
			   "commands:\n"
			   "  init PATH     makes a directory, or a disk, a pool\n"
			   "  grow PATH     gives a raw pool more room\n"
			   "  release PATH  lets the disks of a raw pool move to another node\n";

static int run(const struct pool_command *command, int argc, char *const *argv)
{
	struct options_result result = {0};
	struct pool_options options = {0};
	struct err err = {0};
	if (options_parse(&command->command, argc, argv, &options, &result, &err) < 0) {
		fprintf(stderr, "ringvol %s: %s\n", command->command.name, err.message);
		return 2;
	}
	if (result.help) {
		options_print_help(&command->command, stdout);
		return 0;
	}
	if (command->run(&options, result.operands[0], &err) < 0) {
		fprintf(stderr, "ringvol %s: %s\n", command->command.name, err.message);
		return 1;
	}
	return 0;
}

int pool_main(int argc, char *const *argv)
{
	static const char *const names[] = {"init", "grow", "release", "--help", NULL};
	if (argc == 0) {
		fprintf(stderr, "ringvol pool: no command; see 'ringvol pool --help'\n");
		return 2;
	}
	if (strcmp(argv[0], "--help") == 0) {
		fputs(help, stdout);
		return 0;
	}
	for (unsigned i = 0; i < COMMANDS; i++)
		if (strcmp(argv[0], names[i]) == 0)
			return run(&pool_commands[i], argc - 1, argv + 1);
	const char *near = options_nearest(argv[0], names);
	fprintf(stderr, "ringvol pool: unknown command '%s'; %s'%s'%s\n", argv[0],
		near != NULL ? "did you mean " : "see ",
		near != NULL ? near : "ringvol pool --help", near != NULL ? "?" : "");
	return 2;
}
