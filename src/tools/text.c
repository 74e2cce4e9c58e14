/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making text fit and harmless. Widths are those of the C library for Unicode (a locale of our own,
 * C.UTF-8, whatever the user's is). It fails for want of memory only.
 */
#include "tools/text.h"

#include "base/buf.h"
#include "base/hist.h"
#include "base/utf8.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

/* ---- the stream ---- */

/* wcwidth() goes by the thread's locale. */
static void use_unicode(void)
{
	static locale_t unicode;
	if (unicode == (locale_t)0)
		unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
	if (unicode != (locale_t)0)
		uselocale(unicode);
}

static bool user_has_utf8(void)
{
	locale_t users = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
	if (users == (locale_t)0)
		return false;
	bool utf8 = strcmp(nl_langinfo_l(CODESET, users), "UTF-8") == 0;
	freelocale(users);
	return utf8;
}

void text_stream_of(int fd, struct text_stream *ret)
{
	*ret = (struct text_stream){.terminal = isatty(fd) == 1};
	ret->utf8 = !ret->terminal || user_has_utf8();
	if (!ret->terminal)
		return;
	const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
	ret->colour = (no_colour == NULL || no_colour[0] == '\0') && term != NULL &&
		      term[0] != '\0' && strcmp(term, "dumb") != 0;
	struct winsize size = {0};
	if (ioctl(fd, TIOCGWINSZ, &size) < 0)
		size = (struct winsize){0};
	ret->columns = size.ws_col != 0 ? size.ws_col : 80;
	ret->lines = size.ws_row != 0 ? size.ws_row : 24;
}

/* ---- cleaning ---- */

/* Controls (C0, DEL, C1), line and paragraph ends, what sets or marks direction, and what cannot be
 * seen at all. */
static bool is_harmful(uint32_t c)
{
	return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x61C ||
	       (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
	       (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF0 && c <= 0xFFFB) ||
	       (c >= 0xE0000 && c <= 0xE0FFF);
}

static int print_char(struct buf *out, const uint8_t *s, size_t len, uint32_t c)
{
	if (len == 0)
		return buf_printf(out, "\\x%02x", s[0]);
	if (!is_harmful(c))
		return buf_append(out, s, len);
	if (c < 0x80)
		return buf_printf(out, "\\x%02x", (unsigned)c);
	return buf_printf(out, c > 0xFFFF ? "\\U%08x" : "\\u%04x", (unsigned)c);
}

char *text_clean(struct arena *arena, const char *s)
{
	const uint8_t *at = (const uint8_t *)s, *end = at + strlen(s);
	struct buf out = {0};
	int r = 0;
	while (r == 0 && at < end) {
		uint32_t c = 0;
		size_t len = utf8_char(at, (size_t)(end - at), &c);
		r = print_char(&out, at, len, c);
		at += len == 0 ? 1 : len;
	}
	char *clean = r < 0 ? NULL : arena_alloc(arena, out.len + 1);
	if (clean != NULL && out.len > 0)
		memcpy(clean, out.data, out.len);
	buf_free(&out);
	return clean;
}

/* ---- widths ---- */

static unsigned char_columns(uint32_t c)
{
	if (c < 0x80)
		return 1;
	use_unicode();
	int columns = wcwidth((wchar_t)c);
	return columns < 0 ? 1 : (unsigned)columns;
}

/* The next character of a clean string. */
static size_t next_char(const char *s, unsigned *ret_columns)
{
	uint32_t c;
	size_t len = utf8_char((const uint8_t *)s, strlen(s), &c);
	*ret_columns = len == 0 ? 1 : char_columns(c);
	return len == 0 ? 1 : len;
}

unsigned text_columns(const char *clean)
{
	unsigned total = 0, columns;
	for (; *clean != '\0'; total += columns)
		clean += next_char(clean, &columns);
	return total;
}

size_t text_fit(const char *s, unsigned columns)
{
	size_t at = 0;
	unsigned width;
	while (s[at] != '\0') {
		size_t len = next_char(s + at, &width);
		if (width > columns)
			break;
		columns -= width;
		at += len;
	}
	/* What takes no column belongs to the character before it. */
	while (s[at] != '\0') {
		size_t len = next_char(s + at, &width);
		if (width != 0)
			break;
		at += len;
	}
	return at;
}

const char *text_shorten(struct arena *arena, const char *clean, unsigned columns, bool utf8)
{
	unsigned total = text_columns(clean);
	if (total <= columns)
		return clean;
	if (columns == 0)
		return "";
	/* Names differ at their ends more often than at their beginnings. */
	unsigned head = (columns - 1) / 2, tail = columns - 1 - head;
	size_t head_len = text_fit(clean, head);
	const char *rest = clean;
	unsigned width;
	while (total > tail) {
		rest += next_char(rest, &width);
		total -= width;
	}
	return arena_printf(arena, "%.*s%s%s", (int)head_len, clean, utf8 ? "…" : "~", rest);
}

/* ---- numbers ---- */

/* Three digits that mean something, and a unit. */
static void print_scaled(double value, const char *const *units, unsigned count, double step,
	char ret[TEXT_NUMBER_BYTES])
{
	unsigned unit = 0;
	/* 999.5 would be printed as 1000. */
	while (value >= (step == 1024 ? 1023.5 : 999.5) && unit + 1 < count) {
		value /= step;
		unit++;
	}
	double over = value - (double)(uint64_t)value; /* 0 to 1 */
	bool whole = value >= 9.95 || over < 0.05 || over > 0.95;
	snprintf(ret, TEXT_NUMBER_BYTES, whole ? "%.0f%s" : "%.1f%s", value, units[unit]);
}

void text_size(uint64_t bytes, char ret[TEXT_NUMBER_BYTES])
{
	static const char *const units[] = {"", "K", "M", "G", "T", "P", "E"};
	print_scaled((double)bytes, units, 7, 1024, ret);
}

void text_count(double value, char ret[TEXT_NUMBER_BYTES])
{
	static const char *const units[] = {"", "k", "M", "G", "T"};
	print_scaled(value, units, 5, 1000, ret);
}

void text_duration(uint64_t ns, char ret[TEXT_NUMBER_BYTES])
{
	static const char *const units[] = {"n", "u", "m", "s"};
	if (ns == 0)
		snprintf(ret, TEXT_NUMBER_BYTES, "-");
	else
		print_scaled((double)ns, units, 4, 1000, ret);
}

void text_age(uint64_t seconds, char ret[TEXT_NUMBER_BYTES])
{
	static const struct {
		uint64_t seconds;
		char unit;
	} units[] = {{31557600, 'y'}, {86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
	unsigned i = 0;
	while (i < 4 && seconds < units[i].seconds)
		i++;
	snprintf(ret, TEXT_NUMBER_BYTES, "%llu%c", (unsigned long long)(seconds / units[i].seconds),
		units[i].unit);
}

void text_sparkline(const uint64_t *values, size_t count, bool utf8, char *ret)
{
	static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
	static const char *const ascii[] = {"_", ".", "-", "~", "=", "+", "*", "#"};
	uint32_t least = UINT32_MAX, most = 0;
	for (size_t i = 0; i < count; i++) {
		uint32_t bucket = hist_bucket(values[i]);
		if (values[i] != 0 && bucket < least)
			least = bucket;
		if (values[i] != 0 && bucket > most)
			most = bucket;
	}
	for (size_t i = 0; i < count; i++) {
		unsigned level = values[i] != 0 && most > least
					 ? (hist_bucket(values[i]) - least) * 7 / (most - least)
					 : 0;
		const char *s = values[i] == 0 ? " " : (utf8 ? blocks : ascii)[level];
		size_t len = strlen(s);
		memcpy(ret, s, len);
		ret += len;
	}
	*ret = '\0';
}

static unsigned columns_of(const char *clean, size_t len)
{
	unsigned total = 0, columns;
	for (size_t at = 0; at < len; total += columns)
		at += next_char(clean + at, &columns);
	return total;
}

void text_print_wrapped(const char *clean, unsigned indent, unsigned columns)
{
	unsigned room = columns > indent ? columns - indent : 0, at = 0;
	while (*clean != '\0') {
		size_t word = strcspn(clean, " "), len = room != 0 ? text_fit(clean, room) : word;
		if (len > word || len == 0)
			len = word;
		unsigned width = columns_of(clean, len);
		if (at > 0 && room != 0 && at + 1 + width > room) {
			printf("\n%*s", (int)indent, "");
			at = 0;
		} else if (at > 0) {
			putchar(' ');
			at++;
		}
		printf("%.*s", (int)len, clean);
		at += width;
		clean += len;
		if (len < word) { /* it is longer than a line */
			printf("\n%*s", (int)indent, "");
			at = 0;
		} else {
			clean += *clean == ' ';
		}
	}
	putchar('\n');
}
