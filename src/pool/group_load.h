/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a pool, at a load. */
#ifndef RINGVOL_POOL_GROUP_LOAD_H
#define RINGVOL_POOL_GROUP_LOAD_H

#include "pool/private.h"

struct group_load {
	int *fds;      /* the load's; gets that of groups/ */
	char uuid8[9]; /* the pool's */
	bool read_only, one_log;
	/* What was read of volumes/ and snapshots/, sorted; members without a group are taken out.
	 */
	struct pool_found *found;
	size_t found_count;
	struct list *groups; /* out: pool_group */
	/* out. Where it is lost its members are quarantined: only a directory that is there says
	 * that a group is not. */
	enum groups_dir dir;
	/* private */
	struct pool_group **sorted; /* by key */
	size_t count, cap;
	struct group_aside_file *aside;
	size_t aside_count, aside_cap;
};
/* Blocking. 0 or -errno. */
int group_load_run(struct group_load *l);
/* Takes over what was read; those that have gone are put aside. False: out of memory. */
bool group_load_adopt(struct pool *pool, struct list *groups);

#endif
