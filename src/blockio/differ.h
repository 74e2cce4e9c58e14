/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In what an image differs from an older copy of it, part after part: by their extents where the
 * file system shares them and says where they lie, else by reading both. Never less than the truth.
 * Synchronous, for work jobs.
 */
#ifndef RINGVOL_BLOCKIO_DIFFER_H
#define RINGVOL_BLOCKIO_DIFFER_H

#include "blockio/extents.h"

enum {
	DIFFER_READ_BYTES = 16 << 20, /* of each image, read at most by one look */
	DIFFER_BLOCK_BYTES = 256 << 10,
	DIFFER_GRAIN_BYTES = 64 << 10, /* what differs in a byte is sent as so much */
};

struct differ {
	/* The owner's, open while the other functions are called; direct I/O is fine. */
	int base_fd, target_fd;
	bool shares; /* extents that lie at one place are the same data (extents_comparable()) */
	/* private */
	struct differ_memory *memory;
};

/* 0 or -ENOMEM. */
int differ_open(struct differ *d);
void differ_close(struct differ *d); /* a zeroed one is legal */

/* What differs in [from, *ret_to), where *ret_to is above from and `to` at most; a multiple of 4096
 * if they are. 0 or -errno. */
int differ_look(
	struct differ *d, uint64_t from, uint64_t to, struct extent_ranges *ret, uint64_t *ret_to);

#endif
