/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata of a thin pool, written by hand: blocks in memory, for tests and the fuzzer. A node's
 * values are numbers, put in its first 8 bytes.
 */
#ifndef RINGVOL_TESTS_THIN_METADATA_H
#define RINGVOL_TESTS_THIN_METADATA_H

#include "base/crc32c.h"
#include "disk/thin_status.h"

#include <stdbool.h>
#include <string.h>

enum { META_BLOCK = THIN_METADATA_BLOCK_BYTES, META_DETAILS = 24 };

struct meta_super {
	uint64_t transaction, details, mappings;
	uint64_t metadata_used, metadata_total, data_used, data_total;
	uint32_t block_bytes, version;
	bool needs_check;
};

static inline void meta_put(uint8_t *at, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> 8 * i);
}

/* Makes its checksum right. */
static inline void meta_sum(uint8_t *block, bool super)
{
	meta_put(block, ~crc32c(block + 4, META_BLOCK - 4) ^ (super ? 160774u : 121107u), 4);
}

static inline void meta_write_super(uint8_t *block, const struct meta_super *s)
{
	memset(block, 0, META_BLOCK);
	meta_put(block + 4, s->needs_check ? 1 : 0, 4);
	meta_put(block + 32, 27022010, 8);
	meta_put(block + 40, s->version, 4);
	meta_put(block + 48, s->transaction, 8);
	meta_put(block + 64, s->data_total, 8);
	meta_put(block + 72, s->data_used, 8);
	meta_put(block + 192, s->metadata_total, 8);
	meta_put(block + 200, s->metadata_used, 8);
	meta_put(block + 320, s->mappings, 8);
	meta_put(block + 328, s->details, 8);
	meta_put(block + 336, s->block_bytes / 512, 4);
	meta_sum(block, true);
}

static inline void meta_write_node(uint8_t *block, uint64_t number, bool leaf, unsigned value_bytes,
	const uint64_t (*pairs)[2], unsigned count)
{
	unsigned max = (META_BLOCK - 32) / (8 + value_bytes) / 3 * 3;
	memset(block, 0, META_BLOCK);
	meta_put(block + 4, leaf ? 2 : 1, 4);
	meta_put(block + 8, number, 8);
	meta_put(block + 16, count, 4);
	meta_put(block + 20, max, 4);
	meta_put(block + 24, value_bytes, 4);
	for (unsigned i = 0; i < count; i++) {
		meta_put(block + 32 + 8 * (size_t)i, pairs[i][0], 8);
		meta_put(block + 32 + 8 * (size_t)max + (size_t)value_bytes * i, pairs[i][1], 8);
	}
	meta_sum(block, false);
}

#endif
