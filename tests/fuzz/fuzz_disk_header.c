/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a disk says of itself, and the file that names a pool's disk. The first byte chooses:
 *   a block of a disk as it is;
 *   lines with a right sum put under them;
 *   the text of ringvol.disk.
 */
#include "fuzz.h"

#include "disk/header.h"
#include "disk/place.h"

#include <errno.h>
#include <sha256.h>
#include <stdio.h>
#include <string.h>

enum { SUM_LINE = 21 };

static void check_sizes(const struct disk_header *h)
{
	uint64_t end = h->size_bytes - DISK_UNIT_BYTES;
	must(h->generation > 0 && h->state < DISK_STATES);
	must(h->bytes > 0 && h->offset >= DISK_UNIT_BYTES && h->offset + h->bytes <= end);
	must((h->offset | h->bytes | h->start | h->size_bytes) % DISK_UNIT_BYTES == 0);
	must(h->start + h->bytes <= INT64_MAX);
	must(h->index < DISK_MEMBERS_MAX && h->count <= DISK_MEMBERS_MAX);
	must((h->index == 0) == (h->count > 0) && (h->index == 0) == (h->records_bytes > 0));
	if (h->index == 0) {
		must(h->records_offset >= DISK_UNIT_BYTES);
		must(h->records_offset + h->records_bytes <= h->offset);
		must(strcmp(h->disks[0], h->disk) == 0);
	}
}

static void try_block(const char *block)
{
	char again[DISK_HEADER_BYTES];
	struct disk_header h = {.count = 77};
	int r = disk_header_parse(block, &h);
	must(r == 0 || r == -ENODATA || r == -EBADMSG || r == -EPROTONOSUPPORT);
	must(r == 0 || h.count == 77);
	if (r != 0)
		return;
	check_sizes(&h);
	/* One header has one text. */
	must(disk_header_print(&h, again) == 0);
	must(memcmp(again, block, sizeof(again)) == 0);
}

static void try_summed(const uint8_t *data, size_t len)
{
	char block[DISK_HEADER_BYTES] = {0}, hex[SHA256_DIGEST_STRING_LENGTH];
	if (len > sizeof(block) - SUM_LINE - 1)
		return;
	memcpy(block, data, len);
	SHA256Data(data, len, hex);
	snprintf(block + len, SUM_LINE + 1, "sum=%.16s\n", hex);
	try_block(block);
}

static void try_place(const char *text, size_t len)
{
	struct disk_place place = {.device = "?"};
	int r = disk_place_parse(text, len, &place);
	must(r == 0 || r == -EBADMSG);
	must((r == 0) == (place.device[0] == '/'));
	must(r != 0 || (uuid_valid(place.pool) && uuid_valid(place.disk)));
	must(strnlen(place.device, sizeof(place.device)) < sizeof(place.device));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	if (len == 0)
		return 0;
	uint8_t what = *data++ % 3;
	len--;
	if (what == 0) {
		char block[DISK_HEADER_BYTES] = {0};
		memcpy(block, data, len < sizeof(block) ? len : sizeof(block));
		try_block(block);
	} else if (what == 1) {
		try_summed(data, len);
	} else {
		try_place((const char *)data, len);
	}
	return 0;
}
