/* SPDX-License-Identifier: Apache-2.0 */
/* Copies the data of an image, or overwrites it with zeros, through the ring. */
#ifndef RINGVOL_BLOCKIO_COPY_H
#define RINGVOL_BLOCKIO_COPY_H

#include "blockio/copy_places.h"
#include "reactor/op.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	COPY_BUFFER_BYTES = 1 << 20,
	COPY_IN_FLIGHT = 16, /* buffers of one copy: some are being read while others are written */
};

/*
 * COPY_DATA copies the data of src to dst. Holes of src stay holes of dst, which is a fresh file,
 * or a preallocated one when the volume is thick. COPY_ZEROS overwrites the data of dst in place;
 * what was never written holds nothing, and stays so; src_fd is not looked at.
 *
 * An image whose bytes are not in one file has places instead of a descriptor, at either end of
 * COPY_DATA. All of such a src is looked at: it has no holes, but what reads as zeros is not
 * written. Such a dst reads as zeros. They last until the copy has ended, and have `size` bytes or
 * more: else -ERANGE.
 *
 * Direct I/O is used when both fds were opened with O_DIRECT. A copy ends after the last write;
 * making it durable is the caller's. It runs as a child operation. Setting `stop` cancels it: then
 * it ends with -ECANCELED.
 */
enum copy_kind { COPY_DATA, COPY_ZEROS };

struct copy {
	struct op op;
	/* set before copy_init(); stop too: true ends it before it begins */
	enum copy_kind kind;
	int src_fd, dst_fd;
	/* NULL: src_fd and dst_fd; else those are not looked at */
	const struct copy_places *src_places, *dst_places;
	uint64_t size; /* bytes of src to look at */
	/* progress, readable at any time from the loop */
	uint64_t done_bytes;   /* data copied */
	uint64_t looked_bytes; /* offset up to which src is done */
	bool stop;
	/* private */
	struct copy_state *state;
};
void copy_init(struct copy *copy, struct reactor *reactor);

#endif
