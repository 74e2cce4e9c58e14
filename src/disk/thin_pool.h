/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thin pool of a raw pool: dm-thin over two images (thin_names.h). It has the bytes of all thin
 * volumes and snapshots, each under an id that the image's map says. A thin volume's own device is
 * made by mapped.h. Synchronous, for work jobs.
 *
 * dm-thin keeps which blocks whose are in its metadata, in transactions. What a message has done is
 * durable when it returns. A new block is zeroed before anything of it can be read, so nobody reads
 * what another wrote; that needs no zeros on the disks, and no discards.
 *
 * While the area has room, a thin pool that is full *queues*: who writes waits until it is grown,
 * for a minute at most (dm_thin_pool's no_space_timeout). Where the area has none it *fails*: who
 * writes gets ENOSPC at once.
 */
#ifndef RINGVOL_DISK_THIN_POOL_H
#define RINGVOL_DISK_THIN_POOL_H

#include "base/err.h"
#include "blockio/image_map.h"
#include "disk/disk.h"
#include "disk/dm.h"
#include "disk/thin_names.h"
#include "disk/thin_status.h"

struct thin_pool_spec {
	const struct disk *disk;
	const struct image_map *metadata, *data; /* all of their pieces are used */
	uint32_t block_bytes;                    /* see thin_block_bytes() */
	uint64_t low_water_bytes;                /* an event is raised once so little is unused */
	bool fails_when_full;                    /* else it queues */
};

/* How large the blocks of a new thin pool are, and its metadata, in an area of that size. */
uint32_t thin_block_bytes(uint64_t area_bytes);
uint64_t thin_metadata_bytes(uint64_t area_bytes);

/* Makes what is missing of the three devices, or lets what is there be as the spec says: either
 * image may have grown, and whether it queues may have changed. ERR_PRECONDITION: the kernel has no
 * dm-thin, or a name is another's; ERR_DATA_LOSS: the metadata are damaged, or not those of this
 * data; ERR_UNAVAILABLE: a disk is gone. */
int thin_pool_make(struct dm *dm, const struct thin_pool_spec *spec, struct err *err);
/* Takes them away. *ret_busy: a thin volume's device stands on it, or somebody
 * has one open, and what is left of them stays. */
int thin_pool_remove(struct dm *dm, const char *pool_uuid, bool *ret_busy);
/* -ENXIO: it is not active. -EBADMSG: the kernel says what is not understood. */
int thin_pool_status(struct dm *dm, const char *pool_uuid, struct thin_status *ret);
/* Whether what is active takes writes and leads to the disks as they are now. */
bool thin_pool_is_sound(struct dm *dm, const struct disk *disk, const struct image_map *metadata,
	const struct image_map *data);
/* How much of the volume whose device has that uuid has blocks. -ENXIO: it has no device. */
int thin_volume_bytes(struct dm *dm, const char *volume_uuid, uint64_t *ret_mapped_bytes);

/* Each durable with 0. -ENXIO: it is not active; -EOPNOTSUPP: it is read-only. */

/* An empty one. -EEXIST: the id is taken. */
int thin_pool_create(struct dm *dm, const char *pool_uuid, uint32_t id);
/* What may have to be held still for a moment: the devices of a volume by their uuids, the one that
 * is used first, below it those that it stands on. Any of them may not be there. */
struct thin_still {
	unsigned count;
	char uuids[2][DM_UUID_LEN];
	bool frozen; /* the file system on it is frozen already */
};
/* One with what origin has now. */
struct thin_snap {
	uint32_t id, origin;
	struct thin_still still; /* origin's */
	unsigned held;           /* private */
};
/* All of them, of one moment: the devices of all origins are suspended, a file system that is
 * mounted from them is frozen, and then the messages are said. *ret_at: which one it failed at;
 * those before it may be there. Whatever happens the devices go on, unless the process is killed,
 * or the kernel refuses: then the next snapshot lets them, or adoption (mapped_wake()). -EEXIST;
 * -ENODATA: there is no origin; -EBUSY: somebody else has frozen the file system. */
int thin_pool_snap(struct dm *dm, const char *pool_uuid, struct thin_snap *snaps, unsigned count,
	unsigned *ret_at);
/* -ENODATA: there is none; -EBUSY: it has a device. Takes long where it has much. */
int thin_pool_delete(struct dm *dm, const char *pool_uuid, uint32_t id);

/* The first block of the metadata, as it is on the disks. Needs no device, and no driver. */
int thin_super_read(
	const struct disk *disk, const struct image_map *metadata, struct thin_super *ret);

#endif
