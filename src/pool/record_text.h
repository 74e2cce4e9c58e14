/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text that records are written in: a line that says what it is and its version, lines
 * "name=value", and a line with the sum of all before it. One value has one text.
 *
 *   ringvol-record 1
 *   name=pvc-0a1b
 *   sum=<first 16 hex digits of SHA-256 of everything before this line>
 *
 * For record.c, group_file.c and departure_file.c.
 */
#ifndef RINGVOL_POOL_RECORD_TEXT_H
#define RINGVOL_POOL_RECORD_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- printing ---- */

struct record_text {
	char *buf;
	size_t cap, len;
	bool full;
};

void record_text_char(struct record_text *o, char c);
void record_text_put(struct record_text *o, const char *s);
/* Percent-encoded where it holds '%', control characters or a newline. */
void record_text_encoded(struct record_text *o, const char *s);
void record_text_number(struct record_text *o, uint64_t value);
/* Adds the sum; the length, or -E2BIG. */
int record_text_end(struct record_text *o);

/* ---- parsing ---- */

/* Checks sum and head ("ringvol-record 1\n") and copies the lines between them, each with its
 * newline. -EBADMSG: damaged, or not ours; -EPROTONOSUPPORT: of a later version; -ENOMEM. */
int record_text_open(
	const char *text, size_t len, size_t len_max, const char *head, char **ret_lines);
/* Cuts the line before *rest off, and splits it at its '='. NULL: it has none. */
char *record_text_line(char **rest, char **ret_value);
/* Each: 0 or -EBADMSG. Decodes in place; only what is encoded so is taken. */
int record_text_decode(char *s);
int record_text_parse_number(const char *s, uint64_t max, uint64_t *ret);
/* 8 hex digits. */
int record_text_parse_random(const char *s, char ret[9]);
bool record_text_is_hex(const char *s, size_t count);

/* ---- files that have one ---- */

/* The length or -errno; -EMEDIUMTYPE: it is not a regular file. Blocking. */
ssize_t record_text_read(int dirfd, const char *name, char *text, size_t cap);
/* Why what a file has cannot be understood, by what reading or parsing it said. Static. */
const char *record_text_why(int res);

#endif
