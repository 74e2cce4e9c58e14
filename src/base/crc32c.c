/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C by the processor's instruction where it has one (SSE 4.2), else eight bytes at a time by
 * tables, which are made at the first use. */
#include "base/crc32c.h"

#include <stdbool.h>
#include <string.h>

enum { TABLES = 8 };
#define POLYNOMIAL 0x82f63b78u /* Castagnoli's, bits reversed */

static uint32_t tables[TABLES][256];

static void make_tables(void)
{
	for (unsigned i = 0; i < 256; i++) {
		uint32_t c = i;
		for (unsigned bit = 0; bit < 8; bit++)
			c = (c & 1) != 0 ? c >> 1 ^ POLYNOMIAL : c >> 1;
		tables[0][i] = c;
	}
	for (unsigned t = 1; t < TABLES; t++)
		for (unsigned i = 0; i < 256; i++)
			tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 0xff];
}

static uint32_t by_table(uint32_t before, const void *data, size_t len)
{
	const uint8_t *p = data;
	uint32_t c = ~before;
	if (tables[0][1] == 0)
		make_tables();
	for (; len >= 8; p += 8, len -= 8) {
		c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
		     (uint32_t)p[3] << 24;
		c = tables[7][c & 0xff] ^ tables[6][c >> 8 & 0xff] ^ tables[5][c >> 16 & 0xff] ^
		    tables[4][c >> 24] ^ tables[3][p[4]] ^ tables[2][p[5]] ^ tables[1][p[6]] ^
		    tables[0][p[7]];
	}
	for (; len > 0; p++, len--)
		c = c >> 8 ^ tables[0][(c ^ *p) & 0xff];
	return ~c;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t by_instruction(
	uint32_t before, const void *data, size_t len)
{
	const uint8_t *p = data;
	uint64_t c = ~before;
	for (; len >= 8; p += 8, len -= 8) {
		uint64_t word;
		memcpy(&word, p, sizeof(word));
		c = _mm_crc32_u64(c, word);
	}
	for (; len > 0; p++, len--)
		c = _mm_crc32_u8((uint32_t)c, *p);
	return ~(uint32_t)c;
}

uint32_t crc32c_on(uint32_t before, const void *data, size_t len)
{
	return __builtin_cpu_supports("sse4.2") ? by_instruction(before, data, len)
						: by_table(before, data, len);
}
#else
uint32_t crc32c_on(uint32_t before, const void *data, size_t len)
{
	return by_table(before, data, len);
}
#endif

uint32_t crc32c(const void *data, size_t len)
{
	return crc32c_on(0, data, len);
}

uint32_t crc32c_by_table(const void *data, size_t len)
{
	return by_table(0, data, len);
}
