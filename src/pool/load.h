/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a pool: read on a thread, taken over on the loop. For pools.c. */
#ifndef RINGVOL_POOL_LOAD_H
#define RINGVOL_POOL_LOAD_H

#include "pool/private.h"

struct pool_load {
	char *name, *path;
	char *node;              /* who serves it */
	pool_root_fn *open_root; /* the pools' */
	bool init;
	bool had_snapshots; /* as memory has it, of a pool that was here before */
	/* out */
	enum pool_life life; /* if it is a loaded one, all below is true */
	char why[POOL_WHY_BYTES];
	int fds[POOL_FDS];
	char uuid[POOL_UUID_BYTES];
	struct fs_features features;
	bool probed, unwatched;
	uint64_t capacity_bytes, free_bytes;
	struct pool_found *found;
	size_t found_count, found_cap;
	struct disk *disk;      /* of a raw pool, until raw has it */
	struct pool_raw *raw;   /* likewise */
	struct list holds;      /* pool_hold; the caller has it initialised */
	struct list groups;     /* pool_group; likewise */
	struct list departures; /* pool_departure; likewise */
	struct list arrivals;   /* pool_arrival; likewise */
	enum groups_dir groups_dir;
};
/* Blocking: opens, locks and reads a pool. */
void pool_load_run(struct pool_load *load);
/* What the file system can do, or (disk not NULL) the records and the disks of a raw pool;
 * blocking. One that is full is served, or nothing could be deleted from it: 0, with *ret_probed
 * false and what can be told without room. */
int pool_probe(int root, const struct disk *disk, struct fs_features *ret, bool *ret_probed);
/* Takes what was read into the pool; on the loop. */
void pool_load_adopt(struct pool_load *load, struct pool *pool);
/* Whether anything of it was left over: of a pool that was refused, or an earlier load. */
bool pool_load_holds(const struct pool_load *load);
/* That is let go. Blocking: the last descriptor of a raw pool's records unmounts them, which waits
 * for the disk. */
void pool_load_let_go(struct pool_load *load);
void pool_load_clean(struct pool_load *load); /* all of it; does not block after that */

/* Puts /dev/null in the place of the descriptors of a pool that is gone: its file system must not
 * stay busy, nor its lock taken. Blocking: the last reference may unmount. */
void pool_fds_retire(const int fds[POOL_FDS]);

#endif
