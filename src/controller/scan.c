/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format: tags, varints, lengths. Nothing is read past the end that was given. */
#include "controller/scan.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum { VARINT_MAX = 10, TAG_WIRE_BITS = 3, NUMBER_MAX = (1 << 29) - 1 };

static bool take_varint(struct scan *scan, uint64_t *ret)
{
	uint64_t value = 0;
	for (unsigned i = 0; i < VARINT_MAX && scan->at < scan->end; i++) {
		uint8_t byte = *scan->at++;
		value |= (uint64_t)(byte & 0x7f) << (7 * i);
		if ((byte & 0x80) == 0) {
			*ret = value;
			return true;
		}
	}
	return false;
}

static bool skip(struct scan *scan, uint64_t n)
{
	if (n > (uint64_t)(scan->end - scan->at))
		return false;
	scan->at += n;
	return true;
}

int scan_next(struct scan *scan, struct scan_field *ret)
{
	uint64_t tag, value;
	if (scan->at == scan->end)
		return 0;
	struct scan_field field = {.whole = scan->at};
	if (!take_varint(scan, &tag) || tag >> TAG_WIRE_BITS == 0 ||
		tag >> TAG_WIRE_BITS > NUMBER_MAX)
		return -EBADMSG;
	field.number = (uint32_t)(tag >> TAG_WIRE_BITS);
	field.wire = (enum scan_wire)(tag & ((1 << TAG_WIRE_BITS) - 1));
	bool ok = false;
	switch (field.wire) {
	case SCAN_VARINT:
		ok = take_varint(scan, &field.value);
		break;
	case SCAN_64:
		ok = skip(scan, 8);
		break;
	case SCAN_32:
		ok = skip(scan, 4);
		break;
	case SCAN_BYTES:
		ok = take_varint(scan, &value);
		field.data = scan->at;
		ok = ok && skip(scan, value);
		field.len = ok ? (size_t)value : 0;
		break;
	}
	if (!ok)
		return -EBADMSG;
	*ret = field;
	return 1;
}

int scan_bytes(const uint8_t *message, size_t len, uint32_t number, const uint8_t **ret_data,
	size_t *ret_len)
{
	struct scan scan = {message, message + len};
	struct scan_field field;
	const uint8_t *data = NULL;
	size_t found = 0;
	int r;
	while ((r = scan_next(&scan, &field)) > 0) {
		if (field.number != number)
			continue;
		if (field.wire != SCAN_BYTES)
			return -EBADMSG;
		data = field.data;
		found = field.len;
	}
	if (r < 0)
		return r;
	*ret_data = data;
	*ret_len = found;
	return 0;
}

int scan_string(const uint8_t *message, size_t len, uint32_t number, char *ret, size_t cap)
{
	const uint8_t *data;
	size_t found;
	int r = scan_bytes(message, len, number, &data, &found);
	if (r < 0)
		return r;
	if (found == 0 || found >= cap || memchr(data, '\0', found) != NULL)
		found = 0;
	else
		memcpy(ret, data, found);
	ret[found] = '\0';
	return 0;
}

/* Returns how many bytes it takes. */
static size_t put_varint(uint8_t *at, uint64_t value)
{
	size_t n = 0;
	for (; value >= 0x80; value >>= 7)
		at[n++] = (uint8_t)(value | 0x80);
	at[n++] = (uint8_t)value;
	return n;
}

int scan_append(struct buf *out, uint32_t number, const void *data, size_t len)
{
	uint8_t *at = buf_reserve(out, len + (size_t)2 * VARINT_MAX);
	if (at == NULL)
		return -ENOMEM;
	size_t n = put_varint(at, (uint64_t)number << TAG_WIRE_BITS | SCAN_BYTES);
	n += put_varint(at + n, len);
	if (len != 0)
		memcpy(at + n, data, len);
	out->len += n + len;
	return 0;
}
