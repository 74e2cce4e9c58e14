/* SPDX-License-Identifier: Apache-2.0 */
/* A place for each piece of a map. */
#include "disk/places.h"

#include <errno.h>
#include <stdlib.h>

int disk_places(const struct disk *disk, const struct image_map *map, struct copy_places **ret)
{
	struct copy_places *places = calloc(1, sizeof *places + map->count * sizeof places->at[0]);
	if (places == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < map->count; i++) {
		uint64_t offset, left;
		const struct disk_member *member =
			disk_at(disk, map->pieces[i].address, &offset, &left);
		if (member == NULL || left < map->pieces[i].bytes) {
			free(places);
			return -ERANGE;
		}
		places->at[places->count++] =
			(struct copy_place){member->fd, offset, map->pieces[i].bytes};
	}
	*ret = places;
	return 0;
}
