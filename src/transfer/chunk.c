/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of ReadCopy. What comes is another node's word: lengths are compared with what is
 * there before they are believed, and a chunk is looked over before a byte of it is written.
 */
#include "transfer/chunk.h"

#include "base/crc32c.h"

#include <string.h>

/* proto/cluster.proto: fields of ReadCopyResponse, and how protobuf writes them. */
enum { FIELD_OFFSET = 1, FIELD_DATA = 2, FIELD_CHECKSUM = 3, FIELD_END = 4 };
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

uint32_t chunk_sum(const struct chunk *chunk)
{
	uint8_t offset[8];
	for (unsigned i = 0; i < 8; i++)
		offset[i] = (uint8_t)(chunk->offset >> 8 * i);
	return crc32c_on(crc32c(chunk->data, chunk->len), offset, sizeof(offset));
}

static uint8_t *put_varint(uint8_t *at, uint64_t value)
{
	for (; value >= 0x80; value >>= 7)
		*at++ = (uint8_t)(value | 0x80);
	*at++ = (uint8_t)value;
	return at;
}

uint8_t *chunk_put_head(const struct chunk *chunk, uint8_t *data, size_t *ret_len)
{
	uint8_t head[CHUNK_HEAD_MAX], *at = head;
	*at++ = FIELD_OFFSET << 3 | WIRE_VARINT;
	at = put_varint(at, chunk->offset);
	if (chunk->end) {
		*at++ = FIELD_END << 3 | WIRE_VARINT;
		*at++ = 1;
	} else {
		*at++ = FIELD_CHECKSUM << 3 | WIRE_32;
		for (unsigned i = 0; i < 4; i++)
			*at++ = (uint8_t)(chunk->checksum >> 8 * i);
		*at++ = FIELD_DATA << 3 | WIRE_BYTES;
		at = put_varint(at, chunk->len);
	}
	size_t len = (size_t)(at - head);
	memcpy(data - len, head, len);
	*ret_len = len + (chunk->end ? 0 : chunk->len);
	return data - len;
}

/* NULL: it does not end, or is no 64 bits. */
static const uint8_t *take_varint(const uint8_t *at, const uint8_t *end, uint64_t *ret)
{
	uint64_t value = 0;
	for (unsigned shift = 0; at < end && shift < 64; shift += 7, at++) {
		value |= (uint64_t)(*at & 0x7f) << shift;
		if ((*at & 0x80) != 0)
			continue;
		*ret = value;
		return at + 1;
	}
	return NULL;
}

static const uint8_t *take_fixed(
	const uint8_t *at, const uint8_t *end, unsigned bytes, uint64_t *ret)
{
	if ((size_t)(end - at) < bytes)
		return NULL;
	*ret = 0;
	for (unsigned i = 0; i < bytes; i++)
		*ret |= (uint64_t)at[i] << 8 * i;
	return at + bytes;
}

static void take_field(struct chunk *chunk, uint64_t tag, uint64_t value, const uint8_t *data)
{
	switch (tag) {
	case FIELD_OFFSET << 3 | WIRE_VARINT:
		chunk->offset = value;
		break;
	case FIELD_DATA << 3 | WIRE_BYTES:
		chunk->data = data;
		chunk->len = (size_t)value;
		break;
	case FIELD_CHECKSUM << 3 | WIRE_32:
		chunk->checksum = (uint32_t)value;
		break;
	case FIELD_END << 3 | WIRE_VARINT:
		chunk->end = value != 0;
		break;
	}
}

bool chunk_parse(const uint8_t *at, size_t len, struct chunk *ret)
{
	const uint8_t *end = at + len, *data = NULL;
	struct chunk chunk = {0};
	while (at < end) {
		uint64_t tag, value = 0;
		at = take_varint(at, end, &tag);
		if (at == NULL || tag >> 3 == 0 || tag >> 32 != 0)
			return false;
		switch (tag & 7) {
		case WIRE_VARINT:
			at = take_varint(at, end, &value);
			break;
		case WIRE_64:
			at = take_fixed(at, end, 8, &value);
			break;
		case WIRE_32:
			at = take_fixed(at, end, 4, &value);
			break;
		case WIRE_BYTES:
			at = take_varint(at, end, &value);
			data = at;
			if (at != NULL)
				at = value <= (size_t)(end - at) ? at + value : NULL;
			break;
		default:
			return false;
		}
		if (at == NULL)
			return false;
		take_field(&chunk, tag, value, data);
	}
	*ret = chunk;
	return true;
}

const char *chunk_why_wrong(const struct chunk *chunk, uint64_t next, uint64_t size_bytes)
{
	if (chunk->offset < next)
		return "an extent that lies before what was sent already";
	if (chunk->end)
		return chunk->len != 0               ? "data behind the end"
		       : chunk->offset != size_bytes ? "an end that is not the end of the image"
						     : NULL;
	if (chunk->len == 0 || chunk->len > CHUNK_BYTES_MAX)
		return "an extent that is empty or too long";
	if (chunk->offset % CHUNK_ALIGN != 0 || chunk->len % CHUNK_ALIGN != 0)
		return "an extent that is not aligned";
	if (chunk->offset > size_bytes || chunk->len > size_bytes - chunk->offset)
		return "an extent that lies behind the end of the image";
	if (chunk_sum(chunk) != chunk->checksum)
		return "data or an offset with another checksum than it says";
	return NULL;
}
