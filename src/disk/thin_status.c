/* SPDX-License-Identifier: Apache-2.0 */
/* Words and numbers. What cannot be is refused, so that nothing is made of a kernel's words that
 * this version does not know; words after those that it knows are left unread. */
#include "disk/thin_status.h"

#include "disk/dm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- status ---- */

static bool has_word(const char *text, const char *word)
{
	size_t len = strlen(word);
	for (const char *at = text; (at = strstr(at, word)) != NULL; at += len)
		if ((at == text || at[-1] == ' ') && (at[len] == '\0' || at[len] == ' '))
			return true;
	return false;
}

static int parse_mode(const char *word, enum thin_mode *ret)
{
	if (strcmp(word, "rw") == 0)
		*ret = THIN_WRITES;
	else if (strcmp(word, "out_of_data_space") == 0)
		*ret = THIN_DATA_FULL;
	else if (strcmp(word, "ro") == 0)
		*ret = THIN_READ_ONLY;
	else
		return -EBADMSG;
	return 0;
}

/* "<transaction> <metadata used>/<total> <data used>/<total> <held root> <mode> <discards>
 * <queue or error> <needs_check or -> ..." */
int thin_status_parse(const char *params, struct thin_status *ret)
{
	struct thin_status status = {0};
	uint64_t transaction;
	char held[24], mode[24];
	int end = 0;
	if (strcmp(params, "Fail") == 0 || strcmp(params, "Error") == 0) {
		*ret = (struct thin_status){.mode = THIN_FAILED, .needs_check = true};
		return 0;
	}
	if (sscanf(params,
		    "%" SCNu64 " %" SCNu64 "/%" SCNu64 " %" SCNu64 "/%" SCNu64 " %23s %23s%n",
		    &transaction, &status.metadata_used, &status.metadata_total, &status.data_used,
		    &status.data_total, held, mode, &end) != 7 ||
		parse_mode(mode, &status.mode) < 0 ||
		status.metadata_used > status.metadata_total ||
		status.data_used > status.data_total)
		return -EBADMSG;
	status.needs_check = has_word(params + end, "needs_check");
	status.fails_when_full = has_word(params + end, "error_if_no_space");
	*ret = status;
	return 0;
}

/* "<mapped sectors> <highest mapped sector or ->" */
int thin_volume_status_parse(const char *params, uint64_t *ret_mapped_bytes)
{
	uint64_t sectors;
	char highest[24], extra;
	if (strcmp(params, "Fail") == 0 || strcmp(params, "Error") == 0 || strcmp(params, "-") == 0)
		return -ENODATA;
	if (sscanf(params, "%" SCNu64 " %23s %c", &sectors, highest, &extra) != 2 ||
		sectors > INT64_MAX / DM_SECTOR_BYTES)
		return -EBADMSG;
	*ret_mapped_bytes = sectors * DM_SECTOR_BYTES;
	return 0;
}

/* ---- tables ---- */

static bool is_block(uint64_t bytes)
{
	return bytes >= THIN_BLOCK_MIN && bytes <= THIN_BLOCK_MAX && (bytes & (bytes - 1)) == 0;
}

/* Discards give blocks back to the pool, and go no further: nothing waits for the disk. */
int thin_table_print(const struct thin_table *table, char *buf, size_t cap)
{
	int len = snprintf(buf, cap, "%u:%u %u:%u %u %" PRIu64 " %s", table->metadata_major,
		table->metadata_minor, table->data_major, table->data_minor,
		table->block_bytes / DM_SECTOR_BYTES, table->low_water_blocks,
		table->fails_when_full ? "2 no_discard_passdown error_if_no_space"
				       : "1 no_discard_passdown");
	return len < 0 || (size_t)len >= cap ? -E2BIG : len;
}

int thin_table_parse(const char *params, struct thin_table *ret)
{
	struct thin_table table = {0};
	uint32_t block_sectors, features;
	int end = 0;
	if (sscanf(params,
		    "%" SCNu32 ":%" SCNu32 " %" SCNu32 ":%" SCNu32 " %" SCNu32 " %" SCNu64
		    " %" SCNu32 "%n",
		    &table.metadata_major, &table.metadata_minor, &table.data_major,
		    &table.data_minor, &block_sectors, &table.low_water_blocks, &features,
		    &end) != 7 ||
		!is_block((uint64_t)block_sectors * DM_SECTOR_BYTES))
		return -EBADMSG;
	const char *words = params + end;
	/* One that shows what others wrote, or was made by others. */
	if (has_word(words, "skip_block_zeroing") || has_word(words, "read_only") ||
		has_word(words, "ignore_discard"))
		return -EBADMSG;
	table.block_bytes = block_sectors * DM_SECTOR_BYTES;
	table.fails_when_full = has_word(words, "error_if_no_space");
	*ret = table;
	return 0;
}

/* ---- the superblock ---- */

/* Little endian, from the block's beginning: csum 4, flags 4, blocknr 8, uuid 16, magic 8,
 * version 4, time 4, transaction 8, held root 8, the roots of the data's and the metadata's space
 * map 128 each (which begin with the number of blocks, and of those in use), two roots of trees 8
 * each, block size in sectors 4. */
enum {
	FLAGS_AT = 4,
	MAGIC_AT = 32,
	VERSION_AT = 40,
	DATA_TOTAL_AT = 64,
	DATA_USED_AT = 72,
	BLOCK_AT = 336,
	NEEDS_CHECK = 1 << 0,
	VERSION_MAX = 2,
};
#define MAGIC 27022010u

static uint64_t get(const uint8_t *block, unsigned at, unsigned bytes)
{
	uint64_t value = 0;
	for (unsigned i = bytes; i-- > 0;)
		value = value << 8 | block[at + i];
	return value;
}

static bool is_blank(const uint8_t block[THIN_SUPER_BYTES])
{
	for (unsigned i = 0; i < THIN_SUPER_BYTES; i++)
		if (block[i] != 0)
			return false;
	return true;
}

int thin_super_parse(const uint8_t block[THIN_SUPER_BYTES], struct thin_super *ret)
{
	uint64_t version = get(block, VERSION_AT, 4);
	uint64_t block_bytes = get(block, BLOCK_AT, 4) * DM_SECTOR_BYTES;
	if (is_blank(block)) {
		*ret = (struct thin_super){.blank = true};
		return 0;
	}
	if (get(block, MAGIC_AT, 8) != MAGIC || version == 0 || version > VERSION_MAX ||
		!is_block(block_bytes))
		return -EBADMSG;
	*ret = (struct thin_super){
		.needs_check = (get(block, FLAGS_AT, 4) & NEEDS_CHECK) != 0,
		.block_bytes = (uint32_t)block_bytes,
		.data_total = get(block, DATA_TOTAL_AT, 8),
		.data_used = get(block, DATA_USED_AT, 8),
	};
	return 0;
}
