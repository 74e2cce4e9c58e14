/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /proc/self/mountinfo, whose paths and sources other people choose. The linker puts a buffer in
 * the file's place (--wrap=fopen64, as meson builds for large files), so the parser is the one that
 * runs.
 */
#include "fuzz.h"

#include "mount/mnt_scan.h"

#include <string.h>

FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);

static struct fuzz content;

FILE *__wrap_fopen64(const char *path, const char *mode)
{
	if (strcmp(path, "/proc/self/mountinfo") != 0)
		return __real_fopen64(path, mode);
	return fmemopen((void *)content.data, content.len, "r");
}

static bool on_line(void *arg, const struct mnt_line *line)
{
	unsigned *lines = arg;
	(*lines)++;
	must(line->root != NULL && line->path != NULL && line->options != NULL);
	must(line->fs_type != NULL && line->source != NULL && line->fs_options != NULL);
	must(strlen(line->path) < content.len && strlen(line->source) < content.len);
	must(mnt_has_option(line->options, line->options) == (strchr(line->options, ',') == NULL));
	return *lines < 1000;
}

static void on_entry(void *arg, const struct mnt_entry *entry)
{
	(void)arg;
	must(entry->dev_major != 0 && entry->path != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	unsigned lines = 0;
	if (len == 0) /* fmemopen() takes no empty buffer */
		return 0;
	content = (struct fuzz){data, len};
	must(mnt_each_line(on_line, &lines) == 0);
	must(mnt_scan(on_entry, NULL) == 0);
	return 0;
}
