/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/buf.h"
#include "base/utf8.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static enum log_level max_level = LOG_LEVEL_INFO;
static enum log_format format = LOG_FORMAT_LOGFMT;

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
	buf_printf(b, "%s%s=", b->len == 0 ? "" : " ", key);
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

void log_event(enum log_level level, const char *msg, const struct log_field *fields)
{
	if (!log_enabled(level))
		return;
	struct timespec now;
	struct tm tm;
	char ts[64], full[80];
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	strftime(ts, sizeof(ts), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(full, sizeof(full), "%s.%03ldZ", ts, now.tv_nsec / 1000000);

	/* Room for all of it first: half a line is no JSON either. */
	struct buf b = {0};
	if (buf_reserve(&b, line_max(msg, fields)) == NULL)
		return;
	put_field(&b, "ts", full);
	put_field(&b, "level", level_names[level]);
	put_field(&b, "msg", msg);
	for (; fields != NULL && fields->key != NULL; fields++)
		if (fields->value != NULL)
			put_field(&b, fields->key, fields->value);
	buf_append(&b, format == LOG_FORMAT_JSON ? "}\n" : "\n", format == LOG_FORMAT_JSON ? 2 : 1);
	struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
	if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT))
		(void)!write(STDERR_FILENO, b.data, b.len);
	buf_free(&b);
}
