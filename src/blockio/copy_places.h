/* SPDX-License-Identifier: Apache-2.0 */
/* An image whose bytes are not in one file, for copy.c: which file or device has them, and where.
 */
#ifndef RINGVOL_BLOCKIO_COPY_PLACES_H
#define RINGVOL_BLOCKIO_COPY_PLACES_H

#include <stdint.h>

/* In the image's order. Offsets and sizes are multiples of COPY_ALIGN. */
struct copy_place {
	int fd;
	uint64_t offset, bytes;
};

struct copy_places {
	unsigned count;
	struct copy_place at[];
};

uint64_t copy_places_bytes(const struct copy_places *places);
/* Where the image's byte `offset` is, which is less than copy_places_bytes(), and how many bytes
 * are there from it on. */
struct copy_place copy_places_at(const struct copy_places *places, uint64_t offset);

#endif
