/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as it comes from outside. Pure functions. */
#ifndef RINGVOL_BASE_UTF8_H
#define RINGVOL_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of the well-formed character that s begins with, 1 to 4, and which one it is (may be
 * NULL); 0 when there is none: a stray or overlong byte, a surrogate, past U+10FFFF, cut off. */
size_t utf8_char(const uint8_t *s, size_t len, uint32_t *ret_char);
bool utf8_valid(const uint8_t *s, size_t len);

#endif
