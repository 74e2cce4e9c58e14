/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of an image's pieces, and its text. One list has one text: numbers are lower-case hex
 * without leading zeros, and pieces that touch are one. Any other text is damaged.
 */
#include "blockio/image_map.h"

#include <assert.h>
#include <errno.h>
#include <sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define MAP_HEAD  "ringvol-map 1\n"
#define THIN_HEAD "ringvol-map 2\n"
#define THIN_KEY  "thin="

enum { SUM_DIGITS = 16, SUM_LINE = 4 + SUM_DIGITS + 1, NUMBER_DIGITS = 16 };

uint64_t image_map_bytes(const struct image_map *map)
{
	uint64_t bytes = 0;
	for (unsigned i = 0; i < map->count; i++)
		bytes += map->pieces[i].bytes;
	return bytes;
}

int image_map_add(struct image_map *map, uint64_t address, uint64_t bytes)
{
	const uint64_t max = INT64_MAX;
	if (bytes == 0 || (address | bytes) % IMAGE_MAP_ALIGN != 0 || address > max ||
		bytes > max - address || bytes > max - image_map_bytes(map))
		return -EINVAL;
	struct image_piece *last = map->count > 0 ? &map->pieces[map->count - 1] : NULL;
	if (last != NULL && last->address + last->bytes == address) {
		last->bytes += bytes;
		return 0;
	}
	if (map->count == IMAGE_MAP_PIECES_MAX)
		return -E2BIG;
	map->pieces[map->count++] = (struct image_piece){address, bytes};
	return 0;
}

void image_map_cut(struct image_map *map, uint64_t bytes)
{
	assert(bytes % IMAGE_MAP_ALIGN == 0);
	unsigned i = 0;
	for (; i < map->count && bytes > 0; i++) {
		struct image_piece *piece = &map->pieces[i];
		if (piece->bytes > bytes)
			piece->bytes = bytes;
		bytes -= piece->bytes;
	}
	map->count = i;
}

bool image_map_equal(const struct image_map *a, const struct image_map *b)
{
	if (a->count != b->count || a->thin_id != b->thin_id)
		return false;
	for (unsigned i = 0; i < a->count; i++)
		if (a->pieces[i].address != b->pieces[i].address ||
			a->pieces[i].bytes != b->pieces[i].bytes)
			return false;
	return true;
}

static bool piece_overlaps(const struct image_piece *a, const struct image_piece *b)
{
	return a->address < b->address + b->bytes && b->address < a->address + a->bytes;
}

bool image_map_overlaps(const struct image_map *a, const struct image_map *b)
{
	if (a->thin_id != 0 && a->thin_id == b->thin_id)
		return true;
	for (unsigned i = 0; i < a->count; i++)
		for (unsigned j = 0; j < b->count; j++)
			if (piece_overlaps(&a->pieces[i], &b->pieces[j]))
				return true;
	return false;
}

/* ---- text ---- */

static void sum_line_of(const char *text, size_t len, char ret[SUM_LINE + 1])
{
	char hex[SHA256_DIGEST_STRING_LENGTH];
	SHA256Data((const uint8_t *)text, len, hex);
	snprintf(ret, SUM_LINE + 1, "sum=%.*s\n", SUM_DIGITS, hex);
}

int image_map_print(const struct image_map *map, char *buf, size_t cap)
{
	int len = snprintf(buf, cap, map->thin_id != 0 ? THIN_HEAD : MAP_HEAD);
	if (map->thin_id != 0 && (size_t)len < cap)
		len += snprintf(
			buf + len, cap - (size_t)len, THIN_KEY "%x\n", (unsigned)map->thin_id);
	for (unsigned i = 0; i < map->count && (size_t)len < cap; i++)
		len += snprintf(buf + len, cap - (size_t)len, "%llx %llx\n",
			(unsigned long long)map->pieces[i].address,
			(unsigned long long)map->pieces[i].bytes);
	if ((size_t)len + SUM_LINE + 1 > cap)
		return -E2BIG;
	sum_line_of(buf, (size_t)len, buf + len);
	return len + SUM_LINE;
}

/* Reads a number that ends with `end`, and moves *at behind that. */
static int parse_number(const char **at, const char *limit, char end, uint64_t *ret)
{
	uint64_t value = 0;
	const char *c = *at;
	for (; c < limit && *c != end; c++) {
		const char *digit = memchr("0123456789abcdef", *c, 16);
		if (digit == NULL || c - *at == NUMBER_DIGITS || (c > *at && value == 0))
			return -EBADMSG;
		value = value << 4 | (uint64_t)(digit - "0123456789abcdef");
	}
	if (c == limit || c == *at)
		return -EBADMSG;
	*at = c + 1;
	*ret = value;
	return 0;
}

static int compare_pieces(const void *a, const void *b)
{
	const struct image_piece *x = a, *y = b;
	return x->address < y->address ? -1 : x->address > y->address;
}

static bool overlaps_itself(const struct image_map *map)
{
	struct image_map sorted = *map;
	qsort(sorted.pieces, sorted.count, sizeof *sorted.pieces, compare_pieces);
	for (unsigned i = 1; i < sorted.count; i++)
		if (piece_overlaps(&sorted.pieces[i - 1], &sorted.pieces[i]))
			return true;
	return false;
}

/* The one line of a thin image's. */
static int parse_thin(const char *at, const char *limit, struct image_map *ret)
{
	const size_t key_len = strlen(THIN_KEY);
	uint64_t id;
	if ((size_t)(limit - at) < key_len || memcmp(at, THIN_KEY, key_len) != 0)
		return -EBADMSG;
	at += key_len;
	if (parse_number(&at, limit, '\n', &id) < 0 || at != limit || id == 0 ||
		id > IMAGE_MAP_THIN_MAX)
		return -EBADMSG;
	*ret = (struct image_map){.thin_id = (uint32_t)id};
	return 0;
}

int image_map_parse(const char *text, size_t len, struct image_map *ret)
{
	_Static_assert(sizeof(MAP_HEAD) == sizeof(THIN_HEAD), "one length");
	const size_t head_len = strlen(MAP_HEAD);
	char sum[SUM_LINE + 1];
	if (len < head_len + SUM_LINE || len > IMAGE_MAP_TEXT_MAX)
		return -EBADMSG;
	const char *at = text + head_len, *limit = text + len - SUM_LINE;
	sum_line_of(text, len - SUM_LINE, sum);
	if (memcmp(limit, sum, SUM_LINE) != 0)
		return -EBADMSG;
	if (memcmp(text, THIN_HEAD, head_len) == 0)
		return parse_thin(at, limit, ret);
	if (memcmp(text, MAP_HEAD, head_len) != 0)
		return memcmp(text, MAP_HEAD, strlen("ringvol-map ")) == 0 ? -EPROTONOSUPPORT
									   : -EBADMSG;
	struct image_map map = {0};
	while (at < limit) {
		uint64_t address, bytes;
		unsigned before = map.count;
		if (parse_number(&at, limit, ' ', &address) < 0 ||
			parse_number(&at, limit, '\n', &bytes) < 0 ||
			image_map_add(&map, address, bytes) < 0 || map.count == before)
			return -EBADMSG;
	}
	if (overlaps_itself(&map))
		return -EBADMSG;
	*ret = map;
	return 0;
}

/* ---- the attribute ---- */

int image_map_read(int fd, struct image_map *ret)
{
	char text[IMAGE_MAP_TEXT_MAX];
	ssize_t len = fgetxattr(fd, IMAGE_MAP_XATTR, text, sizeof text);
	if (len < 0)
		return errno == ERANGE ? -EBADMSG : -errno;
	return image_map_parse(text, (size_t)len, ret);
}

int image_map_write(int fd, const struct image_map *map)
{
	char text[IMAGE_MAP_TEXT_MAX];
	int len = image_map_print(map, text, sizeof text);
	if (len < 0)
		return len;
	return fsetxattr(fd, IMAGE_MAP_XATTR, text, (size_t)len, 0) < 0 ? -errno : 0;
}
