/* SPDX-License-Identifier: Apache-2.0 */
/* Growing doubles the room, so that n items are moved fewer than n times. */
#include "base/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
