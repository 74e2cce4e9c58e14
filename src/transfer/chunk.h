/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringvol.v1.ReadCopyResponse as it lies on the wire. It is written and read here by hand, so that
 * the bytes of an image are not copied on their way.
 */
#ifndef RINGVOL_TRANSFER_CHUNK_H
#define RINGVOL_TRANSFER_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CHUNK_ALIGN = 4096,            /* of offsets and lengths */
	CHUNK_BYTES = 512 << 10,       /* that we send */
	CHUNK_SMALL_BYTES = 128 << 10, /* while RPCs come (ring_chores_small()) */
	CHUNK_BYTES_MAX = 1 << 20,     /* that we take */
	CHUNK_HEAD_MAX = 32,
};

struct chunk {
	uint64_t offset;
	const uint8_t *data; /* within what was parsed; NULL: none */
	size_t len;
	uint32_t checksum;
	bool end;
};

/* The checksum that it has to have: of data and offset. */
uint32_t chunk_sum(const struct chunk *chunk);
/* Writes what comes before the data to the CHUNK_HEAD_MAX bytes that end at `data`; returns where
 * it begins. With end there is no data, and this is all. */
uint8_t *chunk_put_head(const struct chunk *chunk, uint8_t *data, size_t *ret_len);
/* False: no such message. What is unknown in it is skipped, as protobuf asks for. Nothing is said
 * of whether its fields make sense. */
bool chunk_parse(const uint8_t *message, size_t len, struct chunk *ret);
/* Why a chunk cannot be what comes behind `next` of an image of that size; NULL: it can. Looks at
 * the checksum, too. Static. */
const char *chunk_why_wrong(const struct chunk *chunk, uint64_t next, uint64_t size_bytes);

#endif
