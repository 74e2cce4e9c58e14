/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a directory a pool and says what it can do; a pool that is one already is left as it is. */
#include "app/pool_init_cmd.h"

#include "base/options.h"
#include "pool/pool.h"

#include <stdio.h>

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

int pool_init_main(int argc, char *const *argv)
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
