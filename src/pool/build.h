/* SPDX-License-Identifier: Apache-2.0 */
/* Building a volume or snapshot. */
#ifndef RINGVOL_POOL_BUILD_H
#define RINGVOL_POOL_BUILD_H

#include "blockio/copy_places.h"
#include "blockio/image_map.h"
#include "disk/disk.h"
#include "pool/departure_drop.h"
#include "pool/part.h"
#include "pool/raw.h"
#include "pool/room.h"
#include "pool/sync.h"
#include "pool/thin_fill.h"
#include "pool/thin_keep.h"
#include "pool/trash.h"

/*
 * (open the part) -> admit (room) -> open unnamed, size -> share or fill -> record -> park in the
 * trash (where there is not one log) -> data sync (if fill wrote, or there is not one log) -> link
 * [commit] -> sync, index. ERR_EXISTS when the name is taken on disk; ERR_UNAVAILABLE when a volume
 * of that name has left the pool (departure.h), or is moving in (part.h); ERR_NO_ROOM. In a raw
 * pool pieces of the disks are taken first, and an image that is filled is parked before
 * (build_raw.h). One that is thin there has an id in the thin pool instead (build_thin.h); what it
 * shares it shares by that, and it is a snapshot of a template there.
 */
struct pool_build {
	struct op op;
	struct pool *pool;
	struct record *rec; /* complete but for key/random/created; taken over at commit, when
			       shares_extents says what came to be */
	/* Where the image's extents come from, if they can be shared: an image of this pool, or a
	 * template that is known to be good. Where nothing is shared, or the file system refuses it
	 * after all, fill makes the image. */
	struct pool_object *share_object;
	bool share_frozen; /* its file system is frozen, by us */
	char share_template[RECORD_KEY_MAX];
	/* Serves the current step of `op`. NULL: the image stays empty. dst_fd: read-write, direct
	 * I/O where the pool has it. With fill_end, a pending fill ends there. */
	int (*fill)(struct op *op, int dst_fd, void *arg);
	int (*fill_end)(struct op *op, int res, void *arg);
	void *fill_arg;
	const struct fsimg_spec *format; /* what fill makes; NULL: no copy of a template */
	bool fill_writes;                /* fill writes data (not only shares extents) */
	/* For the fill: where the image's bytes go in a raw pool, in the place of dst_fd. NULL: to
	 * dst_fd. */
	struct copy_places *places;
	/* The image outlives a failure that its fill says is none of the image's (part.h); NULL: it
	 * has no name before its key. */
	struct pool_part *part;
	/* It moves in: its id, its age and its moves are the record's (pool_build_init_moved()). */
	bool keeps_identity;
	/* What it is attached to from its beginning; the build's, the object's from the commit on.
	 * NULL: to nothing. */
	struct attachments *attachments;
	uint64_t need_bytes; /* room to ask for; 0: its image's size for a volume */
	struct pool_object *ret_object;
	/* private */
	struct pool_admission room;
	struct pool_build_learn *learn;
	struct pool_sync_wait sync;
	enum record_kind kind;
	int fd, dirfd, share_dirfd, copies_fd;
	struct pool_departure *departure; /* of one that comes back: the note of how it left */
	struct pool_departure_drop forget;
	const char *share_name;
	bool direct_io;
	bool sharing, indexed;
	enum { BUILD_BEGUN, BUILD_RECORDED, BUILD_LINKED, BUILD_SYNCED } state;
	/* Where the file has a name before its key, in trash/ or copies/; "": nowhere. */
	int parked_fd;
	char parked_name[POOL_PART_NAME_BYTES];
	uint64_t part_bytes; /* allocated, and no longer counted as what it was promised */
	/* in a raw pool: the pieces, and whether a byte was written to them; of one that is
	 * undone, whether the image is a deleted one now, and whether it still has a name */
	struct disk *disk;
	struct image_map *map; /* on the heap: 4 KiB, which few requests need */
	struct pool_raw_wait pieces_wait;
	bool wrote, dropped, named;
	/* of a thin image there: its id (0: it is none), that of what it is a snapshot of, whether
	 * dm-thin knew the id already, and what is written through */
	uint32_t thin_id, thin_origin;
	struct thin_template *thin_template;
	bool thin_alien;
	struct thin_wait thin_wait;
	struct thin_fill thin_device;
	struct err thin_err;
	unsigned record_len;
	char record_text[RECORD_BYTES_MAX];
};
/* rec is copied; random, key and created_ns are drawn here. -ENOMEM. */
int pool_build_init(
	struct pool_build *b, struct reactor *reactor, struct pool *pool, const struct record *rec);
/* Of a volume that moves in, whole in a part or brought by the fill: random and created_ns are the
 * record's, as are born and moves, which the caller has set. Of a name that has left the pool only
 * that volume itself is let in, moved once more. -ENOMEM. */
int pool_build_init_moved(
	struct pool_build *b, struct reactor *reactor, struct pool *pool, const struct record *rec);
void pool_build_free(struct pool_build *b); /* what is left after the end */

#endif
