/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns that align and fit. On a terminal a table that is too wide first shortens the texts that
 * may be, then leaves out columns, the least needed first; a pipe gets all of it. Every cell is
 * made safe on its way in.
 */
#ifndef RINGVOL_TOOLS_TABLE_H
#define RINGVOL_TOOLS_TABLE_H

#include "base/buf.h"
#include "tools/text.h"

enum { TABLE_COLUMNS_MAX = 16 };

enum table_colour { TABLE_PLAIN, TABLE_GOOD, TABLE_WARN, TABLE_BAD, TABLE_DIM };

struct table_column {
	const char *title;
	bool right;
	bool raw;        /* our own text (a sparkline): not cleaned */
	bool if_any;     /* left out while all its cells are empty */
	unsigned least;  /* it may be shortened to so many columns; 0: it may not */
	unsigned needed; /* those with the least are left out first; equal ones from the right */
};

struct table;

/* Columns end with a NULL title and outlive the table. NULL when out of memory. */
struct table *table_new(const struct table_column *columns);
void table_free(struct table *table);
/* Begins a row; its cells follow in order. What is not given stays empty. */
void table_row(struct table *table);
void table_cell(struct table *table, enum table_colour colour, const char *text);
void table_cellf(struct table *table, enum table_colour colour, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The title and at most `rows` rows (0: all), each ending with a newline; titles marks one column's
 * title (-1: none). 0 or -ENOMEM, also for cells that were lost for want of memory. */
int table_print(struct table *table, const struct text_stream *stream, unsigned rows, int marked,
	struct buf *out);

#endif
