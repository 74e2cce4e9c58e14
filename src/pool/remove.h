/* SPDX-License-Identifier: Apache-2.0 */
/* Removing a volume or snapshot. */
#ifndef RINGVOL_POOL_REMOVE_H
#define RINGVOL_POOL_REMOVE_H

#include "pool/departure_drop.h"
#include "pool/sync.h"
#include "pool/trash.h"

/* Renamed to trash, durable, out of the index (the object is freed at the end of the operation);
 * reclaiming starts by itself. ERR_PRECONDITION: the image is locked, as it is attached anywhere.
 */
struct pool_remove {
	struct op op;
	struct pool_object *object;
	/* private */
	struct pool *pool;
	struct pool_sync_wait sync;
	struct pool_departure *departure; /* a note that outlived its end: the volume is back */
	struct pool_departure_drop forget;
	int fd, dirfd, trash_fd;
	const char *key;
	enum { REMOVE_BEGUN, REMOVE_GONE, REMOVE_RENAMED, REMOVE_SYNCED } state;
	bool synced_from;
	char trash_name[TRASH_NAME_BYTES];
};
void pool_remove_init(struct pool_remove *r, struct reactor *reactor, struct pool_object *object);

#endif
