/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume without a file system gets the image that has one. Its first NodeStage asks for it: the
 * key that the file system is encrypted with is not known earlier (record.h: unformatted).
 */
#ifndef RINGVOL_POOL_RENEW_H
#define RINGVOL_POOL_RENEW_H

#include "blockio/image_map.h"
#include "pool/raw.h"
#include "pool/sync.h"
#include "pool/thin_keep.h"
#include "pool/trash.h"

/*
 * Three operations in one struct.
 *   make:    a new image of the volume's size, parked in the trash under `name`, with the record
 *            that the volume will have; it asks for no room, as the volume has been promised it. In
 *            a raw pool it waits for zeroed pieces, or gets an id of the thin pool
 *   commit:  whatever was done to it is durable -> it and the volume's image change places, by one
 *            rename [commit] -> durable; the old image is trash
 *   drop:    instead of that: the new image is trash
 * The caller has the volume's lock from make to the end of commit or drop. Until the commit the
 * volume is what it was. After a crash, what is parked is trash at the next load.
 */
struct pool_renew {
	struct op op;
	struct pool_object *object;
	char name[TRASH_PARKED_NAME_BYTES];
	int trash_fd; /* where it is parked */
	/* private */
	bool begun, committed;
	/* Of a raw pool: the pieces that the new image has. NULL: a directory pool. */
	struct disk *disk;
	struct image_map map;
	struct pool_raw_wait pieces_wait;
	struct thin_wait thin_wait; /* of a thin one, whose map has an id */
	bool alien;                 /* dm-thin had that id already, which no file had */
	bool named;
	struct pool_sync_wait sync;
	struct record *rec;
	int fd, dirfd;
	uint64_t image_dev, image_ino;
	unsigned attempts;
	unsigned record_len;
	char record_text[RECORD_BYTES_MAX];
};
void pool_renew_make_init(
	struct pool_renew *n, struct reactor *reactor, struct pool_object *object);
/* ERR_PRECONDITION: somebody has the new image open, a device that was let go for example. */
void pool_renew_commit_init(struct pool_renew *n, struct reactor *reactor);
void pool_renew_drop_init(struct pool_renew *n, struct reactor *reactor);
void pool_renew_free(struct pool_renew *n); /* after the last of them */

#endif
