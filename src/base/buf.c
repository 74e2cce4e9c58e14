/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "base/secret.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint8_t *buf_reserve(struct buf *b, size_t more)
{
	if (more > SIZE_MAX / 2 - b->len)
		return NULL;
	if (b->cap - b->len < more) {
		size_t cap = b->cap ? b->cap : 256;
		while (cap - b->len < more)
			cap *= 2;
		uint8_t *data = realloc(b->data, cap);
		if (data == NULL)
			return NULL;
		b->data = data;
		b->cap = cap;
	}
	return b->data + b->len;
}

int buf_append(struct buf *b, const void *data, size_t len)
{
	if (len == 0)
		return 0;
	uint8_t *to = buf_reserve(b, len);
	if (to == NULL)
		return -ENOMEM;
	memcpy(to, data, len);
	b->len += len;
	return 0;
}

int buf_append_secret(struct buf *b, const void *data, size_t len)
{
	if (b->cap - b->len >= len)
		return buf_append(b, data, len);
	struct buf larger = {0};
	if (buf_reserve(&larger, 2 * b->cap > b->len + len ? 2 * b->cap : b->len + len) == NULL)
		return -ENOMEM;
	(void)buf_append(&larger, b->data, b->len);
	(void)buf_append(&larger, data, len);
	buf_free_secret(b);
	*b = larger;
	return 0;
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list ap, again;
	va_start(ap, fmt);
	va_copy(again, ap);
	int len = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	uint8_t *to = len < 0 ? NULL : buf_reserve(b, (size_t)len + 1);
	if (to != NULL) {
		vsnprintf((char *)to, (size_t)len + 1, fmt, again);
		b->len += (size_t)len;
	}
	va_end(again);
	return to == NULL ? -ENOMEM : 0;
}

void buf_consume(struct buf *b, size_t n)
{
	memmove(b->data, b->data + n, b->len - n);
	b->len -= n;
}

void buf_free(struct buf *b)
{
	free(b->data);
	*b = (struct buf){0};
}

void buf_free_secret(struct buf *b)
{
	if (b->cap != 0)
		secret_wipe(b->data, b->cap);
	buf_free(b);
}

enum { FIRST = 32 };

int array_grow(void *array, size_t *cap, size_t count, size_t size)
{
	void *items;
	if (count < *cap)
		return 0;
	size_t larger = *cap == 0 ? FIRST : *cap * 2, bytes;
	/* Not reallocarray(): with AddressSanitizer that ends the program instead of failing. */
	if (__builtin_mul_overflow(larger, size, &bytes))
		return -ENOMEM;
	memcpy(&items, array, sizeof(items)); /* whatever it points to */
	items = realloc(items, bytes);
	if (items == NULL)
		return -ENOMEM;
	memcpy(array, &items, sizeof(items));
	*cap = larger;
	return 0;
}
