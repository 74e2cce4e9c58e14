/* SPDX-License-Identifier: Apache-2.0 */
/* Looking up places: there are 255 at most (image_map.h), and one lookup for each MiB. */
#include "blockio/copy_places.h"

#include <assert.h>

uint64_t copy_places_bytes(const struct copy_places *places)
{
	uint64_t bytes = 0;
	for (unsigned i = 0; i < places->count; i++)
		bytes += places->at[i].bytes;
	return bytes;
}

struct copy_place copy_places_at(const struct copy_places *places, uint64_t offset)
{
	const struct copy_place *place = places->at;
	for (; offset >= place->bytes; place++) {
		assert(place + 1 < places->at + places->count);
		offset -= place->bytes;
	}
	return (struct copy_place){place->fd, place->offset + offset, place->bytes - offset};
}
