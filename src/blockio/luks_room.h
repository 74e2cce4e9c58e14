/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an encrypted image is laid out: LUKS2's header and key slots first, then what the device
 * shows. The image is larger than the volume by that room, so that the size asked is the size had.
 */
#ifndef RINGVOL_BLOCKIO_LUKS_ROOM_H
#define RINGVOL_BLOCKIO_LUKS_ROOM_H

/* What cryptsetup itself leaves: two copies of the header, and key slots for eight keys and more.
 * It is where the data begins, so it is a multiple of a raw pool's unit and of every sector size.
 */
#define LUKS_HEADER_BYTES (UINT64_C(16) << 20)

#include <stdint.h>

/* Of the image of an encrypted volume of that size. */
static inline uint64_t luks_image_bytes(uint64_t volume_bytes)
{
	return volume_bytes + LUKS_HEADER_BYTES;
}

#endif
