/* SPDX-License-Identifier: Apache-2.0 */
/* The images of a raw pool that say that they have an id in the thin pool. */
#ifndef RINGVOL_TOOLS_CHECK_THIN_FILES_H
#define RINGVOL_TOOLS_CHECK_THIN_FILES_H

#include "tools/check_findings.h"

/* An image that says that it has an id. */
struct check_thin_file {
	uint32_t id;
	enum survey_dir dir;
	const char *name;
};
struct check_thin_files {
	struct check *c;
	enum survey_dir dir; /* that is read */
	struct check_thin_file *at;
	size_t count, cap;
};
/* All there are, by id. 0 or -errno; free files->at in every case. */
int check_thin_collect(struct check *c, struct check_thin_files *ret);
/* Whether an image in the trash or being built: dm-thin need not know it. */
bool check_thin_is_trash(const struct check_thin_file *file);
/* The directory of the thin pool's images. -1: there is none. */
int check_thin_open(const struct check *c);
/* Whether one of them has the id. */
bool check_thin_has(const struct check_thin_files *files, uint32_t id);

#endif
