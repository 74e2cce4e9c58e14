/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool as its directory tree shows it, for the tools: read from outside the driver, while one
 * serves the pool or none does. Blocking. Nothing is made or changed.
 */
#ifndef RINGVOL_POOL_SURVEY_H
#define RINGVOL_POOL_SURVEY_H

#include "disk/disk.h"
#include "pool/layout.h"
#include "pool/pool.h"

#include <stddef.h>

enum survey_dir {
	SURVEY_ROOT,
	SURVEY_VOLUMES,
	SURVEY_SNAPSHOTS,
	SURVEY_TEMPLATES,
	SURVEY_TRASH,
	SURVEY_COPIES,
	SURVEY_GROUPS,   /* a pool of an older driver has none */
	SURVEY_DEPARTED, /* likewise */
	SURVEY_THIN,     /* of a raw pool */
	SURVEY_DIRS,
};
/* "", "volumes", ... */
extern const char *const survey_dir_names[SURVEY_DIRS];

enum survey_use {
	SURVEY_LOOK,
	SURVEY_LOCK, /* takes the pool's lock, unless a driver has it (served): none begins to
		      * serve the pool until survey_close() */
	SURVEY_MEND, /* the same, and what is found may be written to */
};

struct survey {
	const char *path;
	/* READY, or what a driver would call it and why; a pool that a driver serves is READY. */
	enum pool_state state;
	char why[512];
	char uuid[37]; /* "" unless ringvol.pool could be read */
	bool served;   /* the lock was asked for, and a driver has it */
	bool read_only;
	/* Of a raw pool: its area, and what no image has, or a deleted one. */
	uint64_t capacity_bytes, free_bytes, fs_type;
	struct disk *disk; /* of a raw pool; NULL: a directory pool, or one that was not opened */
	int fds[SURVEY_DIRS]; /* -1: not there */
	/* private */
	int lock_fd;
};

/* Only memory can fail it; look at state. */
void survey_open(struct survey *ret, const char *path, enum survey_use use);
void survey_close(struct survey *survey);

/* Each name in a directory but . and .., in no order, until each() answers other than 0. Its
 * answer, or -errno. */
int survey_each(const struct survey *survey, enum survey_dir dir,
	int (*each)(void *arg, const char *name), void *arg);

/* Whether a name in that directory is one that ringvol gives. */
bool survey_name_is_ours(enum survey_dir dir, const char *name);

/* All objects of one kind by key. 0 or -errno. */
int survey_objects(const struct survey *survey, enum record_kind kind, struct pool_found **ret,
	size_t *ret_count);
/* NULL is legal. */
void survey_objects_free(struct pool_found *objects, size_t count);

#endif
