/* SPDX-License-Identifier: Apache-2.0 */
/* Making a group of snapshots. */
#ifndef RINGVOL_POOL_GROUP_MAKE_H
#define RINGVOL_POOL_GROUP_MAKE_H

#include "pool/fill.h"
#include "pool/group.h"
#include "pool/group_file.h"
#include "pool/room.h"
#include "pool/thin_keep.h"
#include "pool/trash.h"

/* A member to be. */
struct pool_group_part {
	struct pool_object *source; /* a volume of the pool, locked by the caller */
	bool share;                 /* its extents; else they are copied */
	/* private */
	struct record *rec;
	int fd, source_fd;
	bool parked, linked;
	/* in a raw pool */
	uint32_t thin_id, thin_origin;
	bool thin_alien; /* dm-thin knew the id, and no file has it */
	bool dropped;    /* a deleted image was made of its file */
	char parked_name[TRASH_PARKED_NAME_BYTES];
	struct pool_object *made;
};

/*
 * admit (room of all) -> open unnamed files, and the sources -> hold still -> share or copy ->
 * release -> records -> the group's file, under a name that says that it is being made -> (park,
 * data) -> name all members -> rename the file [commit] -> sync, index. Between hold and release
 * one trip to a thread shares what is shared. In a raw pool that is a message for each member
 * (group_thin.h); all sources have to be thin there. ERR_EXISTS when the group's name is taken;
 * ERR_NO_ROOM.
 */
struct pool_group_make {
	struct op op;
	struct pool *pool;
	struct pool_group_part *parts;
	unsigned count;
	/* Serve the current step of `op`: from when hold has ended well until release, nothing is
	 * written to any of the volumes. When hold fails, it has released. NULL: nobody writes. */
	int (*hold)(struct op *op, void *arg);
	int (*release)(struct op *op, void *arg);
	/* Whether a freeze of hold's holds the i-th; on a thread. NULL: none does. */
	bool (*is_frozen)(const void *arg, unsigned i);
	void *hold_arg;
	uint64_t need_bytes;          /* room to ask for */
	struct pool_group *ret_group; /* the pool's */
	/* private */
	struct reactor *reactor;
	struct pool_group *group;
	const char *claim;
	struct pool_admission room;
	struct pool_clone clone;
	unsigned at;
	bool stopped, direct_io, file_named, indexed;
	int snapshots_fd, volumes_fd, trash_fd, groups_fd, file_fd;
	uint64_t removed;
	char file_name[GROUP_ASIDE_BYTES]; /* of the group's file, before the commit */
	char *text;
	unsigned text_len;
	struct disk *disk; /* of a raw pool */
	struct thin_wait thin_wait;
	bool said; /* dm-thin may know the members */
};
#define for_each_part(p, m)                                                                        \
	for (struct pool_group_part *p = (m)->parts; p < (m)->parts + (m)->count; p++)

/* `parts` has source and share of each, and is copied. claim: of the members; it outlives the
 * operation. -ENOMEM; free it all the same. */
int pool_group_make_init(struct pool_group_make *m, struct reactor *reactor, struct pool *pool,
	const char *name, const char *claim, const struct pool_group_part *parts, unsigned count);
/* Stops a copy, also one that has not begun. */
void pool_group_make_stop(struct pool_group_make *m);
void pool_group_make_free(struct pool_group_make *m); /* what is left after the end */

#endif
