/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table in memory, and its layout. Happy path: rows of clean cells, the width of each column, all
 * of it printed. Memory that runs out is remembered and told by table_print().
 */
#include "tools/table.h"

#include "base/buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 2 }; /* blanks between columns */

struct cell {
	const char *text; /* in the arena; NULL: empty */
	unsigned columns;
	enum table_colour colour;
};

struct row {
	struct cell cells[TABLE_COLUMNS_MAX];
	unsigned count;
};

struct table {
	const struct table_column *columns;
	unsigned column_count;
	struct arena *arena;
	struct row *rows;
	size_t count, cap;
	bool failed;
};

struct table *table_new(const struct table_column *columns)
{
	struct table *t = calloc(1, sizeof(*t));
	if (t == NULL)
		return NULL;
	t->columns = columns;
	while (columns[t->column_count].title != NULL)
		t->column_count++;
	t->arena = arena_new(0);
	if (t->arena == NULL) {
		free(t);
		return NULL;
	}
	return t;
}

void table_free(struct table *t)
{
	if (t == NULL)
		return;
	arena_unref(t->arena);
	free(t->rows);
	free(t);
}

void table_row(struct table *t)
{
	if (array_grow(&t->rows, &t->cap, t->count, sizeof(*t->rows)) < 0) {
		t->failed = true;
		return;
	}
	t->rows[t->count++] = (struct row){0};
}

void table_cell(struct table *t, enum table_colour colour, const char *text)
{
	if (t->failed)
		return;
	struct row *row = &t->rows[t->count - 1];
	bool raw = t->columns[row->count].raw;
	const char *copy = raw ? arena_strdup(t->arena, text) : text_clean(t->arena, text);
	if (copy == NULL) {
		t->failed = true;
		return;
	}
	row->cells[row->count++] = (struct cell){copy, text_columns(copy), colour};
}

void table_cellf(struct table *t, enum table_colour colour, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	va_start(ap, fmt);
	int len = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (len < 0) {
		t->failed = true;
		return;
	}
	table_cell(t, colour, text);
	free(text);
}

/* ---- layout ---- */

struct layout {
	unsigned width[TABLE_COLUMNS_MAX];
	bool shown[TABLE_COLUMNS_MAX];
};

static unsigned total_width(const struct table *t, const struct layout *l)
{
	unsigned total = 0;
	for (unsigned i = 0; i < t->column_count; i++)
		if (l->shown[i])
			total += l->width[i] + (total != 0 ? GAP : 0);
	return total;
}

/* The widest of those that may still be shortened; -1 if there is none. */
static int shrinkable(const struct table *t, const struct layout *l)
{
	int widest = -1;
	for (unsigned i = 0; i < t->column_count; i++)
		if (l->shown[i] && t->columns[i].least != 0 && l->width[i] > t->columns[i].least &&
			(widest < 0 || l->width[i] > l->width[widest]))
			widest = (int)i;
	return widest;
}

/* The first column is what a row is about: it stays. */
static int least_needed(const struct table *t, const struct layout *l)
{
	int least = -1;
	for (unsigned i = 1; i < t->column_count; i++)
		if (l->shown[i] && (least < 0 || t->columns[i].needed <= t->columns[least].needed))
			least = (int)i;
	return least;
}

static void natural(const struct table *t, unsigned rows, struct layout *l)
{
	for (unsigned i = 0; i < t->column_count; i++) {
		l->shown[i] = !t->columns[i].if_any;
		l->width[i] = text_columns(t->columns[i].title);
	}
	for (unsigned r = 0; r < rows; r++)
		for (unsigned i = 0; i < t->rows[r].count; i++) {
			unsigned columns = t->rows[r].cells[i].columns;
			l->shown[i] |= columns > 0;
			if (columns > l->width[i])
				l->width[i] = columns;
		}
}

/* What it would take with everything shortened as far as may be. */
static unsigned least_width(const struct table *t, const struct layout *l)
{
	struct layout least = *l;
	for (unsigned i = 0; i < t->column_count; i++)
		if (t->columns[i].least != 0 && least.width[i] > t->columns[i].least)
			least.width[i] = t->columns[i].least;
	return total_width(t, &least);
}

static void fit(const struct table *t, unsigned columns, struct layout *l)
{
	int i;
	while (least_width(t, l) > columns && (i = least_needed(t, l)) >= 0)
		l->shown[i] = false;
	while (total_width(t, l) > columns && (i = shrinkable(t, l)) >= 0)
		l->width[i]--;
	if (total_width(t, l) > columns)
		l->width[0] = columns; /* it alone is left */
}

/* ---- printing ---- */

static const char *const colour_codes[] = {
	[TABLE_PLAIN] = "",
	[TABLE_GOOD] = "\033[32m",
	[TABLE_WARN] = "\033[33m",
	[TABLE_BAD] = "\033[31m",
	[TABLE_DIM] = "\033[2m",
};

static int pad(struct buf *out, unsigned columns)
{
	return columns == 0 ? 0 : buf_printf(out, "%*s", (int)columns, "");
}

struct line {
	const struct table *table;
	const struct layout *layout;
	const struct text_stream *stream;
	struct buf *out;
	unsigned blanks; /* owed before the next text: none at a line's end */
	bool any;
};

static int print_cell(struct line *line, unsigned i, const char *text, const char *code)
{
	const struct table *t = line->table;
	unsigned width = line->layout->width[i];
	text = text_shorten(t->arena, text, width, line->stream->utf8);
	if (text == NULL)
		return -ENOMEM;
	unsigned columns = text_columns(text), left = t->columns[i].right ? width - columns : 0;
	line->blanks += (line->any ? GAP : 0) + left;
	line->any = true;
	int r = 0;
	if (text[0] != '\0') {
		r = pad(line->out, line->blanks);
		line->blanks = 0;
		if (r == 0)
			r = buf_printf(
				line->out, "%s%s%s", code, text, code[0] != '\0' ? "\033[0m" : "");
	}
	line->blanks += width - columns - left;
	return r;
}

int table_print(struct table *t, const struct text_stream *stream, unsigned rows, int marked,
	struct buf *out)
{
	struct layout layout;
	size_t count = rows != 0 && rows < t->count ? rows : t->count;
	natural(t, count, &layout);
	if (stream->columns != 0)
		fit(t, stream->columns, &layout);
	int r = t->failed ? -ENOMEM : 0;
	struct line line = {t, &layout, stream, out, 0, false};
	for (unsigned i = 0; r == 0 && i < t->column_count; i++)
		if (layout.shown[i])
			r = print_cell(&line, i, t->columns[i].title,
				!stream->colour    ? ""
				: (int)i == marked ? "\033[1;4m"
						   : "\033[1m");
	if (r == 0)
		r = buf_append(out, "\n", 1);
	for (size_t k = 0; r == 0 && k < count; k++) {
		const struct row *row = &t->rows[k];
		line = (struct line){t, &layout, stream, out, 0, false};
		for (unsigned i = 0; r == 0 && i < row->count; i++)
			if (layout.shown[i])
				r = print_cell(&line, i, row->cells[i].text,
					stream->colour ? colour_codes[row->cells[i].colour] : "");
		if (r == 0)
			r = buf_append(out, "\n", 1);
	}
	return r;
}
