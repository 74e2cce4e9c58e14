/* SPDX-License-Identifier: Apache-2.0 */
/* One character at a time; what is not well-formed has no length. Nothing else can fail. */
#include "base/utf8.h"

size_t utf8_char(const uint8_t *s, size_t len, uint32_t *ret_char)
{
	if (len == 0)
		return 0;
	uint8_t c = s[0];
	size_t more = c < 0x80                ? 0
		      : c >= 0xC2 && c < 0xE0 ? 1
		      : c >= 0xE0 && c < 0xF0 ? 2
		      : c >= 0xF0 && c < 0xF5 ? 3
					      : SIZE_MAX;
	if (more == SIZE_MAX || len <= more)
		return 0;
	uint32_t value = more == 0 ? c : c & (0x3F >> more);
	for (size_t k = 1; k <= more; k++) {
		if ((s[k] & 0xC0) != 0x80)
			return 0;
		value = value << 6 | (s[k] & 0x3F);
	}
	/* overlong forms, surrogates, past U+10FFFF */
	if ((c == 0xE0 && s[1] < 0xA0) || (c == 0xED && s[1] > 0x9F) ||
		(c == 0xF0 && s[1] < 0x90) || (c == 0xF4 && s[1] > 0x8F))
		return 0;
	if (ret_char != NULL)
		*ret_char = value;
	return more + 1;
}

bool utf8_valid(const uint8_t *s, size_t len)
{
	for (size_t at = 0, n; at < len; at += n) {
		n = utf8_char(s + at, len - at, NULL);
		if (n == 0)
			return false;
	}
	return true;
}
