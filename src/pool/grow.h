/* SPDX-License-Identifier: Apache-2.0 */
/* Growing a volume. */
#ifndef RINGVOL_POOL_GROW_H
#define RINGVOL_POOL_GROW_H

#include "pool/room.h"

struct grow_pieces;

/* Room for the difference (in a raw pool, pieces of the disks), image grown (allocated when thick),
 * durable, record, durable.
 * Idempotent: a larger image left by an attempt cut short is taken as it is. ERR_DATA_LOSS: the
 * image is shorter than its record; it stays as it is. */
struct pool_grow {
	struct op op;
	struct pool_object *object;
	uint64_t size_bytes;
	/* private */
	struct pool_admission room;
	int fd;
	uint64_t had_bytes;
	bool truncated;
	struct grow_pieces *pieces; /* grow_raw.h; NULL: none are needed */
	struct record *rec;
	char record_text[RECORD_BYTES_MAX];
};
void pool_grow_init(struct pool_grow *g, struct reactor *reactor, struct pool_object *object,
	uint64_t size_bytes);

#endif
