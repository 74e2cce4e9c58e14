/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/buf.h"
#include "base/utf8.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	HELD_BYTES = 4096, /* what a pipe that polls writable takes at once */
	TS_BYTES = 64,
};

static enum log_level max_level = LOG_LEVEL_INFO;
static enum log_format format = LOG_FORMAT_LOGFMT;
static _Thread_local bool holding;
static char held[HELD_BYTES]; /* the holding thread's */
static size_t held_len;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_open(enum log_level level, enum log_format fmt)
{
	max_level = level;
	format = fmt;
}

bool log_enabled(enum log_level level)
{
	return level <= max_level;
}

/* What is not UTF-8 would make the line no JSON: it becomes U+FFFD. Control characters, those of a
 * terminal among them, are never written as they are. */
static void put_quoted(struct buf *b, const char *s)
{
	size_t len = strlen(s);
	buf_append(b, "\"", 1);
	for (size_t n; len > 0; s += n, len -= n) {
		uint32_t c = 0;
		n = utf8_char((const uint8_t *)s, len, &c);
		if (n == 0) {
			n = 1;
			buf_append(b, "\xef\xbf\xbd", 3);
		} else if (c == '"' || c == '\\') {
			buf_printf(b, "\\%c", (int)c);
		} else if (c == '\n') {
			buf_append(b, "\\n", 2);
		} else if (c < 0x20 || (c >= 0x7f && c < 0xa0)) {
			buf_printf(b, "\\u%04x", (unsigned)c);
		} else {
			buf_append(b, s, n);
		}
	}
	buf_append(b, "\"", 1);
}

static bool is_bare(const char *s)
{
	if (*s == '\0')
		return false;
	for (; *s != '\0'; s++)
		if ((unsigned char)*s <= 0x20 || (unsigned char)*s >= 0x7f || *s == '"' ||
			*s == '=' || *s == '\\')
			return false;
	return true;
}

static void put_field(struct buf *b, const char *key, const char *value)
{
	if (format == LOG_FORMAT_JSON) {
		buf_append(b, b->len == 0 ? "{" : ",", 1);
		put_quoted(b, key);
		buf_append(b, ":", 1);
		put_quoted(b, value);
		return;
	}
	if (b->len != 0)
		buf_append(b, " ", 1);
	buf_append(b, key, strlen(key));
	buf_append(b, "=", 1);
	if (is_bare(value))
		buf_append(b, value, strlen(value));
	else
		put_quoted(b, value);
}

static size_t line_max(const char *msg, const struct log_field *fields)
{
	enum { ESCAPED = 6, REST = 256 }; /* bytes for one of a value; time, level, braces */
	size_t max = REST + strlen(msg) * ESCAPED;
	for (; fields != NULL && fields->key != NULL; fields++)
		if (fields->value != NULL)
			max += (strlen(fields->key) + strlen(fields->value) + 1) * ESCAPED;
	return max;
}

/* ---- writing ---- */

static void put_out(const void *data, size_t len)
{
	struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
	if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT))
		(void)!write(STDERR_FILENO, data, len);
}

void log_hold(void)
{
	holding = true;
}

void log_flush(void)
{
	if (!holding || held_len == 0)
		return;
	put_out(held, held_len);
	held_len = 0;
}

void log_unhold(void)
{
	log_flush();
	holding = false;
}

static void put_line(enum log_level level, const struct buf *line)
{
	if (holding && held_len + line->len > sizeof(held))
		log_flush();
	if (!holding || line->len > sizeof(held)) {
		put_out(line->data, line->len);
		return;
	}
	memcpy(held + held_len, line->data, line->len);
	held_len += line->len;
	if (level < LOG_LEVEL_INFO)
		log_flush();
}

/* The calendar is asked once a second: it costs as much as the rest of a line. */
static void put_time(char ret[TS_BYTES])
{
	static _Thread_local time_t second;
	static _Thread_local char text[TS_BYTES];
	struct timespec now;
	struct tm tm;
	clock_gettime(CLOCK_REALTIME, &now);
	if (now.tv_sec != second && gmtime_r(&now.tv_sec, &tm) != NULL) {
		strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S.000Z", &tm);
		second = now.tv_sec;
	}
	memcpy(ret, text, sizeof(text));
	char *dot = strrchr(ret, '.');
	for (long ms = now.tv_nsec / 1000000, i = 3; dot != NULL && i > 0; i--, ms /= 10)
		dot[i] = (char)('0' + ms % 10);
}

void log_event(enum log_level level, const char *msg, const struct log_field *fields)
{
	if (!log_enabled(level))
		return;
	char ts[TS_BYTES];
	put_time(ts);

	/* Room for all of it first: half a line is no JSON either. */
	struct buf b = {0};
	if (buf_reserve(&b, line_max(msg, fields)) == NULL)
		return;
	put_field(&b, "ts", ts);
	put_field(&b, "level", level_names[level]);
	put_field(&b, "msg", msg);
	for (; fields != NULL && fields->key != NULL; fields++)
		if (fields->value != NULL)
			put_field(&b, fields->key, fields->value);
	buf_append(&b, format == LOG_FORMAT_JSON ? "}\n" : "\n", format == LOG_FORMAT_JSON ? 2 : 1);
	put_line(level, &b);
	buf_free(&b);
}
