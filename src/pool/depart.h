/* SPDX-License-Identifier: Apache-2.0 */
/* A volume leaves its pool for good (departure.h). */
#ifndef RINGVOL_POOL_DEPART_H
#define RINGVOL_POOL_DEPART_H

#include "pool/departure_drop.h"
#include "pool/remove.h"

/*
 * (lock the image) -> note [commit], durable -> the image goes to the trash (remove.h). The caller
 * has the volume alone. A repeat is welcome: a note that is there is made durable if it is not
 * known to be, and what is left of the image goes. What cannot go to the trash now goes by a
 * repeat (transfer/parting.h) or at the next load, and is no failure.
 *
 * ERR_PRECONDITION: the image is locked, as it is attached anywhere, or somebody has it open. Once
 * the note has its name the volume is in use no more, also where the operation fails because the
 * note could not be made durable: only a repeat, or the next load, tells which it is.
 */
struct pool_depart {
	struct op op;
	struct pool *pool;
	struct pool_object *volume; /* NULL: its image is gone; only the note is looked at */
	struct pool_departure note; /* filled in but for link, pool and key */
	/* Set before it runs: its device stays attached for now, and nothing is written through it.
	 * The image is not locked and not removed: that is for a repeat, once the device is gone.
	 */
	bool attached;
	struct pool_departure *ret_note; /* the pool's */
	/* private */
	struct pool_departure *made;
	struct pool_remove remove;
	int volumes_fd, departed_fd;
	bool locked, named, changes;
	char image[RECORD_KEY_MAX];
	unsigned text_len;
	char text[DEPARTURE_TEXT_MAX];
};
/* note: id, moves, to, node_id and grant. */
void pool_depart_init(struct pool_depart *d, struct reactor *reactor, struct pool *pool,
	struct pool_object *volume, const struct pool_departure *note);
void pool_depart_free(struct pool_depart *d); /* what is left after the end */

#endif
