/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps of images. The first byte chooses:
 *   a map's text as it is;
 *   the same with a right sum put under it, so that the lines are reached;
 *   takes, gives and cuts, in an area of 2 disks: no unit is in two maps, and what is free and
 *   what is in maps is everything.
 */
#include "fuzz.h"

#include "disk/area.h"

#include <errno.h>
#include <sha256.h>
#include <string.h>

enum { SUM_LINE = 21, IMAGES = 6, UNIT = IMAGE_MAP_ALIGN };

static void check_map(const struct image_map *map)
{
	uint64_t bytes = 0;
	must(map->count <= IMAGE_MAP_PIECES_MAX);
	for (unsigned i = 0; i < map->count; i++) {
		const struct image_piece *piece = &map->pieces[i];
		must(piece->bytes > 0 && piece->bytes % UNIT == 0 && piece->address % UNIT == 0);
		must(piece->address + piece->bytes <= INT64_MAX);
		bytes += piece->bytes;
		for (unsigned j = 0; j < i; j++) {
			const struct image_piece *other = &map->pieces[j];
			must(piece->address + piece->bytes <= other->address ||
				other->address + other->bytes <= piece->address);
		}
	}
	must(bytes == image_map_bytes(map));
}

static void try_text(const char *text, size_t len)
{
	char again[IMAGE_MAP_TEXT_MAX];
	struct image_map map = {.count = 77}, cut;
	int r = image_map_parse(text, len, &map);
	must(r == 0 || r == -EBADMSG || r == -EPROTONOSUPPORT);
	must(r == 0 || map.count == 77);
	if (r != 0)
		return;
	check_map(&map);
	/* One map has one text. */
	must(image_map_print(&map, again, sizeof again) == (int)len);
	must(memcmp(again, text, len) == 0);
	must(image_map_overlaps(&map, &map) == (map.count > 0 || map.thin_id != 0));
	must(map.thin_id == 0 || (map.count == 0 && map.thin_id <= IMAGE_MAP_THIN_MAX));
	cut = map;
	image_map_cut(&cut, image_map_bytes(&map) / 2 / UNIT * UNIT);
	check_map(&cut);
	must(image_map_bytes(&cut) == image_map_bytes(&map) / 2 / UNIT * UNIT);
}

static void try_summed(const uint8_t *data, size_t len)
{
	char hex[SHA256_DIGEST_STRING_LENGTH];
	char *text = malloc(len + SUM_LINE + 1);
	must(text != NULL);
	memcpy(text, data, len);
	SHA256Data(data, len, hex);
	snprintf(text + len, SUM_LINE + 1, "sum=%.16s\n", hex);
	try_text(text, len + SUM_LINE);
	free(text);
}

static void step(struct fuzz *f, struct area *area, struct image_map *map)
{
	uint64_t units = image_map_bytes(map) / UNIT, arg = fuzz_byte(f);
	struct image_map was = *map;
	switch (fuzz_below(f, 3)) {
	case 0: {
		uint64_t free_bytes = area_free_bytes(area);
		int r = area_take(area, arg * UNIT, map);
		must(r == 0 || (r == -ENOSPC && arg * UNIT > free_bytes) || r == -E2BIG);
		must(r == 0 || image_map_equal(map, &was));
		must(free_bytes - area_free_bytes(area) == (r == 0 ? arg * UNIT : 0));
		break;
	}
	case 1:
		arg = units > 0 ? arg % units : 0;
		area_give_map(area, map, arg * UNIT);
		image_map_cut(map, arg * UNIT);
		break;
	default:
		must(area_occupy(area, arg * UNIT, UNIT) != 0 ||
			(area_give(area, arg * UNIT, UNIT), true));
		for (unsigned i = 0; i < map->count; i++)
			must(area_occupy(area, map->pieces[i].address, map->pieces[i].bytes) ==
				-EEXIST);
		break;
	}
}

static void try_area(struct fuzz f)
{
	static struct image_map maps[IMAGES];
	struct area *area = area_new();
	must(area != NULL);
	memset(maps, 0, sizeof maps);
	must(area_add(area, 2 * UNIT, 300ull * UNIT) == 0);
	must(area_add(area, 400ull * UNIT, 500ull * UNIT) == 0);
	while (f.len > 0) {
		step(&f, area, &maps[fuzz_below(&f, IMAGES)]);
		uint64_t used = 0;
		for (unsigned i = 0; i < IMAGES; i++) {
			check_map(&maps[i]);
			used += image_map_bytes(&maps[i]);
			for (unsigned j = 0; j < i; j++)
				must(!image_map_overlaps(&maps[i], &maps[j]));
		}
		must(used + area_free_bytes(area) == area_total_bytes(area));
		must(area_takeable_bytes(area) <= area_free_bytes(area));
	}
	for (unsigned i = 0; i < IMAGES; i++)
		area_give_map(area, &maps[i], 0);
	must(area_free_extents(area) == 2 && area_free_bytes(area) == 800ull * UNIT);
	area_free(area);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	if (len == 0)
		return 0;
	char *text = fuzz_text(data + 1, len - 1);
	switch (data[0] % 3) {
	case 0:
		try_text(text, len - 1);
		break;
	case 1:
		try_summed(data + 1, len - 1);
		break;
	default:
		try_area((struct fuzz){data + 1, len - 1});
		break;
	}
	free(text);
	return 0;
}
