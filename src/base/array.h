/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow by one item at a time. */
#ifndef RINGVOL_BASE_ARRAY_H
#define RINGVOL_BASE_ARRAY_H

#include <stddef.h>

/* Makes room for one more item of `size` bytes behind `count` of them. array: the address of the
 * pointer to the first (NULL: none yet), which may move. -ENOMEM: all is as it was. */
int array_grow(void *array, size_t *cap, size_t count, size_t size);

#endif
