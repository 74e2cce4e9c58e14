/* SPDX-License-Identifier: Apache-2.0 */
/* What grows: a buffer of bytes, zero-initialised and emptied by buf_free(), and arrays that grow
 * by one item at a time. */
#ifndef RINGVOL_BASE_BUF_H
#define RINGVOL_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

struct buf {
	uint8_t *data;
	size_t len, cap;
};

/* Makes room for `more` bytes behind len and returns their address; NULL when out of memory. */
uint8_t *buf_reserve(struct buf *b, size_t more);
/* 0 or -ENOMEM, nothing appended then. */
int buf_append(struct buf *b, const void *data, size_t len);
/* The same of what may hold a secret: memory that it leaves for a larger one is wiped. */
int buf_append_secret(struct buf *b, const void *data, size_t len);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drops the first n bytes. */
void buf_consume(struct buf *b, size_t n);
void buf_free(struct buf *b);
/* buf_free(), wiped. */
void buf_free_secret(struct buf *b);

/* Makes room for one more item of `size` bytes behind `count` of them. array: the address of the
 * pointer to the first (NULL: none yet), which may move. -ENOMEM: all is as it was. */
int array_grow(void *array, size_t *cap, size_t count, size_t size);

#endif
