/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text for a person: what a stream can show, strings made safe for it, numbers in few columns.
 * Names come from outside and could hold anything; nothing reaches a terminal but by text_clean().
 */
#ifndef RINGVOL_TOOLS_TEXT_H
#define RINGVOL_TOOLS_TEXT_H

#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text_stream {
	bool terminal;
	bool colour;      /* a terminal that has it, and NO_COLOR is not set */
	bool utf8;        /* the locale's characters, or a pipe: block elements can be shown */
	unsigned columns; /* of the terminal; 0: no limit */
	unsigned lines;
};
void text_stream_of(int fd, struct text_stream *ret);

/* A copy without control characters, broken UTF-8, or what turns the direction of text: each such
 * byte or character becomes an escape, \x1b or \u202e. NULL when out of memory. */
char *text_clean(struct arena *arena, const char *s);
/* Columns a clean string takes. */
unsigned text_columns(const char *clean);
/* The bytes of its beginning that take at most `columns`. */
size_t text_fit(const char *clean, unsigned columns);
/* A clean string in at most `columns` columns: its middle becomes "~" ("…" with utf8). The string
 * itself where it fits; NULL when out of memory. */
const char *text_shorten(struct arena *arena, const char *clean, unsigned columns, bool utf8);

/* A clean text on standard output, its words in lines of `columns` (0: one line), each line but the
 * first behind `indent` blanks, and a newline. */
void text_print_wrapped(const char *clean, unsigned indent, unsigned columns);

enum { TEXT_NUMBER_BYTES = 24 };
/* "512", "1.5K", "64M", "931G": powers of 1024, at most five columns. */
void text_size(uint64_t bytes, char ret[TEXT_NUMBER_BYTES]);
/* The same by powers of 1000, for rates: "0.5", "12", "1.2k", "310k". */
void text_count(double value, char ret[TEXT_NUMBER_BYTES]);
/* "-" for 0, "850n", "12.3u", "4.5m", "1.2s". */
void text_duration(uint64_t ns, char ret[TEXT_NUMBER_BYTES]);
/* "3s", "12m", "5h", "3d", "2y": whole units, rounded down. */
void text_age(uint64_t seconds, char ret[TEXT_NUMBER_BYTES]);

/* One character for each value in ns, the highest the full block (ASCII without utf8); 0 is a
 * blank. A value is shown by its logarithm between the least and the greatest, for latencies differ
 * by powers. ret: 3 * count + 1 bytes. */
void text_sparkline(const uint64_t *values, size_t count, bool utf8, char *ret);

#endif
