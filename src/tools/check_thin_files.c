/* SPDX-License-Identifier: Apache-2.0 */
/* The maps of images are read; one that cannot be read is said with the other maps. */
#include "tools/check_thin_files.h"

#include "base/buf.h"
#include "disk/thin_names.h"
#include "pool/raw_load.h"

#include <fcntl.h>
#include <stdlib.h>

int check_thin_open(const struct check *c)
{
	return openat(c->survey.fds[SURVEY_ROOT], THIN_DIR,
		O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool check_thin_is_trash(const struct check_thin_file *file)
{
	return file->dir == SURVEY_TRASH;
}

static int compare_file(const void *a, const void *b)
{
	const struct check_thin_file *x = a, *y = b;
	return x->id < y->id ? -1 : x->id > y->id;
}

static int collect_one(void *arg, const char *name)
{
	struct check_thin_files *files = arg;
	struct check *c = files->c;
	struct image_map map;
	if (pool_raw_map(c->survey.fds[files->dir], name, &map) < 0 || map.thin_id == 0)
		return 0;
	if (array_grow(&files->at, &files->cap, files->count, sizeof(*files->at)) < 0)
		return -ENOMEM;
	files->at[files->count++] =
		(struct check_thin_file){map.thin_id, files->dir, tool_text(c->args, "%s", name)};
	return 0;
}

int check_thin_collect(struct check *c, struct check_thin_files *ret)
{
	ret->c = c;
	ret->count = 0;
	for (ret->dir = SURVEY_VOLUMES; ret->dir < SURVEY_GROUPS; ret->dir++) {
		int r = survey_each(&c->survey, ret->dir, collect_one, ret);
		if (r < 0)
			return r;
	}
	if (ret->count > 0)
		qsort(ret->at, ret->count, sizeof(*ret->at), compare_file);
	return 0;
}

bool check_thin_has(const struct check_thin_files *files, uint32_t id)
{
	const struct check_thin_file key = {.id = id};
	return files->count > 0 &&
	       bsearch(&key, files->at, files->count, sizeof(key), compare_file) != NULL;
}
