/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What another node sends of a copy. The first byte chooses how the rest is looked at: as a message
 * for an image that has been read up to some place, or as the fields of one that is written and
 * read again.
 */
#include "fuzz.h"

#include "base/crc32c.h"
#include "transfer/chunk.h"

#include <string.h>

#define SIZE (UINT64_C(64) << 20)

/* Data, and behind it the offset as 8 bytes. */
static uint32_t sum_of(const struct chunk *chunk)
{
	static uint8_t both[CHUNK_BYTES_MAX + 8];
	memcpy(both, chunk->data, chunk->len);
	for (unsigned i = 0; i < 8; i++)
		both[chunk->len + i] = (uint8_t)(chunk->offset >> 8 * i);
	return crc32c_by_table(both, chunk->len + 8);
}

static void try_message(const uint8_t *data, size_t len, uint64_t next)
{
	struct chunk chunk = {.offset = 1, .len = 1};
	/* A copy of its own, so that a read past its end is seen. */
	uint8_t *message = (uint8_t *)fuzz_text(data, len);
	if (chunk_parse(message, len, &chunk)) {
		must(chunk.data == NULL || (chunk.data >= message && chunk.len <= len &&
						   chunk.data + chunk.len <= message + len));
		must(chunk.data != NULL || chunk.len == 0);
		if (chunk_why_wrong(&chunk, next, SIZE) == NULL && !chunk.end) {
			must(chunk.offset >= next && chunk.offset + chunk.len <= SIZE);
			must(chunk.len > 0 && chunk.len <= CHUNK_BYTES_MAX);
			must(chunk.offset % CHUNK_ALIGN == 0 && chunk.len % CHUNK_ALIGN == 0);
			must(sum_of(&chunk) == chunk.checksum);
		}
		if (chunk_why_wrong(&chunk, next, SIZE) == NULL && chunk.end)
			must(chunk.offset == SIZE && chunk.len == 0);
	} else {
		must(chunk.offset == 1 && chunk.len == 1);
	}
	free(message);
}

static void try_fields(struct fuzz *f)
{
	static uint8_t mem[CHUNK_HEAD_MAX + CHUNK_ALIGN];
	struct chunk chunk = {.offset = (uint64_t)fuzz_u32(f) << (fuzz_byte(f) % 32),
		.data = mem + CHUNK_HEAD_MAX,
		.checksum = fuzz_u32(f),
		.end = fuzz_below(f, 2) != 0};
	struct chunk back;
	struct fuzz rest = fuzz_take(f, CHUNK_ALIGN);
	if (rest.len > 0)
		memcpy(mem + CHUNK_HEAD_MAX, rest.data, rest.len);
	chunk.len = rest.len;
	size_t len;
	const uint8_t *message = chunk_put_head(&chunk, mem + CHUNK_HEAD_MAX, &len);
	must(message >= mem);
	must(chunk_parse(message, len, &back));
	must(back.offset == chunk.offset && back.end == chunk.end);
	must(chunk.end || (back.len == chunk.len && back.checksum == chunk.checksum));
	must(chunk.end || back.data == chunk.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz f = {data, len};
	unsigned how = fuzz_below(&f, 3);
	if (how == 2)
		try_fields(&f);
	else
		try_message(f.data, f.len, how == 0 ? 0 : CHUNK_ALIGN);
	return 0;
}
