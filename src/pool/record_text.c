/* SPDX-License-Identifier: Apache-2.0 */
/* Owns nothing. Printing fails where the buffer is too small, parsing where bytes are damaged,
 * reading as a file does. */
#include "pool/record_text.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUM_DIGITS = 16, SUM_LINE = 4 + SUM_DIGITS + 1 };

bool record_text_is_hex(const char *s, size_t count)
{
	return strspn(s, "0123456789abcdef") >= count;
}

/* The first digits of the SHA-256 of text, and a NUL. */
static void sum_of(const char *text, size_t len, char ret_sum[SUM_DIGITS + 1])
{
	char hex[SHA256_DIGEST_STRING_LENGTH];
	SHA256Data((const uint8_t *)text, len, hex);
	memcpy(ret_sum, hex, SUM_DIGITS);
	ret_sum[SUM_DIGITS] = '\0';
}

/* ---- printing ---- */

void record_text_char(struct record_text *o, char c)
{
	if (o->len + 1 >= o->cap)
		o->full = true;
	else
		o->buf[o->len++] = c;
}

void record_text_put(struct record_text *o, const char *s)
{
	for (; *s != '\0'; s++)
		record_text_char(o, *s);
}

void record_text_encoded(struct record_text *o, const char *s)
{
	for (; *s != '\0'; s++) {
		unsigned char c = (unsigned char)*s;
		if (c < 0x20 || c == 0x7f || c == '%') {
			char hex[4];
			snprintf(hex, sizeof(hex), "%%%02X", c);
			record_text_put(o, hex);
		} else {
			record_text_char(o, *s);
		}
	}
}

void record_text_number(struct record_text *o, uint64_t value)
{
	char text[24];
	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	record_text_put(o, text);
}

int record_text_end(struct record_text *o)
{
	char sum[SUM_DIGITS + 1];
	sum_of(o->buf, o->len, sum);
	record_text_put(o, "sum=");
	record_text_put(o, sum);
	record_text_char(o, '\n');
	if (o->full)
		return -E2BIG;
	o->buf[o->len] = '\0';
	return (int)o->len;
}

/* ---- parsing ---- */

int record_text_open(
	const char *text, size_t len, size_t len_max, const char *head, char **ret_lines)
{
	if (len <= SUM_LINE || len > len_max || memchr(text, '\0', len) != NULL)
		return -EBADMSG;
	const char *sum_line = text + len - SUM_LINE;
	char sum[SUM_DIGITS + 1];
	sum_of(text, len - SUM_LINE, sum);
	if (sum_line[-1] != '\n' || memcmp(sum_line, "sum=", 4) != 0 ||
		memcmp(sum_line + 4, sum, SUM_DIGITS) != 0 || text[len - 1] != '\n')
		return -EBADMSG;
	size_t head_len = strlen(head), word = strcspn(head, " ") + 1;
	if (len < head_len + SUM_LINE || memcmp(text, head, head_len) != 0)
		return strncmp(text, head, word) == 0 ? -EPROTONOSUPPORT : -EBADMSG;
	char *lines = strndup(text + head_len, len - head_len - SUM_LINE);
	if (lines == NULL)
		return -ENOMEM;
	*ret_lines = lines;
	return 0;
}

char *record_text_line(char **rest, char **ret_value)
{
	char *line = *rest;
	char *end = strchr(line, '\n'); /* there is one: record_text_open() */
	*end = '\0';
	*rest = end + 1;
	char *value = strchr(line, '=');
	if (value == NULL)
		return NULL;
	*value = '\0';
	*ret_value = value + 1;
	return line;
}

/* The value of an upper-case hex digit, -1 for anything else. */
static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int record_text_decode(char *s)
{
	char *to = s;
	for (; *s != '\0'; s++) {
		unsigned char c = (unsigned char)*s;
		if (c < 0x20 || c == 0x7f)
			return -EBADMSG;
		if (c == '%') {
			int high = hex_digit(s[1]), low = high < 0 ? -1 : hex_digit(s[2]);
			int value = high * 16 + low;
			if (low < 0 || value == 0 ||
				!(value < 0x20 || value == 0x7f || value == '%'))
				return -EBADMSG;
			c = (unsigned char)value;
			s += 2;
		}
		*to++ = (char)c;
	}
	*to = '\0';
	return 0;
}

int record_text_parse_number(const char *s, uint64_t max, uint64_t *ret)
{
	uint64_t value = 0;
	if (s[0] == '\0' || (s[0] == '0' && s[1] != '\0'))
		return -EBADMSG;
	for (; *s != '\0'; s++) {
		if (*s < '0' || *s > '9')
			return -EBADMSG;
		uint64_t digit = (uint64_t)(*s - '0');
		if (value > (max - digit) / 10)
			return -EBADMSG;
		value = value * 10 + digit;
	}
	*ret = value;
	return 0;
}

int record_text_parse_random(const char *s, char ret[9])
{
	if (strlen(s) != 8 || !record_text_is_hex(s, 8))
		return -EBADMSG;
	strcpy(ret, s);
	return 0;
}

/* ---- files ---- */

const char *record_text_why(int res)
{
	switch (res) {
	case -EPROTONOSUPPORT:
		return "its file is of a later version of ringvol";
	case -EMEDIUMTYPE:
		return "its file is not a regular file";
	case -EBADMSG:
		return "its file is damaged";
	}
	return "its file cannot be read";
}

ssize_t record_text_read(int dirfd, const char *name, char *text, size_t cap)
{
	struct stat st;
	_cleanup_fd_ int fd =
		openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return errno == ELOOP || errno == ENXIO ? -EMEDIUMTYPE : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EMEDIUMTYPE;
	ssize_t n = pread(fd, text, cap, 0);
	return n < 0 ? -errno : n;
}
