/* SPDX-License-Identifier: Apache-2.0 */
/* Deleting a group with its snapshots. */
#ifndef RINGVOL_POOL_GROUP_REMOVE_H
#define RINGVOL_POOL_GROUP_REMOVE_H

#include "pool/group_sync.h"
#include "reactor/op.h"

/*
 * Locks the members' images -> renames the group's file [commit]: group and members are out of the
 * index -> sync -> the images to the trash, which gives back what they hold. A crash behind the
 * commit leaves members of a deleted group, which the next load sweeps. What is missing of the
 * group is gone already; a member that is quarantined is never deleted: ERR_DATA_LOSS.
 * ERR_PRECONDITION: an image is locked, as it is attached anywhere.
 */
struct pool_group_remove {
	struct op op;
	struct pool_group *group; /* its memory stays until the pool is closed */
	/* private */
	struct pool *pool;
	struct pool_group_victim *victims;
	unsigned count;
	struct pool_group_sync sync;
	int snapshots_fd, groups_fd;
};
void pool_group_remove_init(
	struct pool_group_remove *r, struct reactor *reactor, struct pool_group *group);
void pool_group_remove_free(struct pool_group_remove *r); /* what is left after the end */

#endif
