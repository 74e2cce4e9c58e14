/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text format. A sample is one reservation and a few copies. It fails by memory only, and says
 * so in `failed`.
 */
#include "metrics/text.h"

#include <assert.h>
#include <string.h>

enum { NUMBER_MAX = 24 }; /* bytes */

static char *put(char *at, const char *s)
{
	size_t len = strlen(s);
	memcpy(at, s, len);
	return at + len;
}

static char *put_u64(char *at, uint64_t v)
{
	char digits[NUMBER_MAX];
	unsigned n = sizeof(digits);
	do {
		digits[--n] = (char)('0' + v % 10);
		v /= 10;
	} while (v != 0);
	memcpy(at, digits + n, sizeof(digits) - n);
	return at + sizeof(digits) - n;
}

/* All nine digits of the fraction, so that a sum never loses what was added. */
static char *put_seconds(char *at, uint64_t ns)
{
	at = put_u64(at, ns / 1000000000);
	*at++ = '.';
	uint64_t fraction = ns % 1000000000;
	for (unsigned i = 9; i-- > 0; fraction /= 10)
		at[i] = (char)('0' + fraction % 10);
	return at + 9;
}

static size_t length(const char *s)
{
	return s != NULL ? strlen(s) : 0;
}

static char *reserve(struct text *t, size_t len)
{
	char *at = t->failed ? NULL : (char *)buf_reserve(t->out, len);
	t->failed = at == NULL;
	return at;
}

static void commit(struct text *t, const char *end)
{
	t->out->len = (size_t)((const uint8_t *)end - t->out->data);
}

void text_family(struct text *t, const char *name, const char *type, const char *help)
{
	char *at = reserve(t, 2 * strlen(name) + strlen(help) + strlen(type) + 32);
	if (at == NULL)
		return;
	at = put(put(put(put(at, "# HELP "), name), " "), help);
	at = put(put(put(put(at, "\n# TYPE "), name), " "), type);
	*at++ = '\n';
	commit(t, at);
}

/* name suffix {labels,more,le="le"} and a blank; at has room for all of it. */
static char *put_name(char *at, const char *name, const char *suffix, const char *labels,
	const char *more, const char *le)
{
	at = put(put(at, name), suffix);
	char between = '{';
	if (labels != NULL) {
		*at++ = between;
		at = put(at, labels);
		between = ',';
	}
	if (more != NULL) {
		*at++ = between;
		at = put(at, more);
		between = ',';
	}
	if (le != NULL) {
		*at++ = between;
		at = put(put(put(at, "le=\""), le), "\"");
		between = ',';
	}
	if (between != '{')
		*at++ = '}';
	*at++ = ' ';
	return at;
}

static size_t line_max(const char *name, const char *labels, const char *more)
{
	return strlen(name) + length(labels) + length(more) + sizeof("_bucket{,,le=\"\"} \n") +
	       2 * NUMBER_MAX;
}

void text_u64(struct text *t, const char *name, const char *labels, const char *more, uint64_t v)
{
	char *at = reserve(t, line_max(name, labels, more));
	if (at == NULL)
		return;
	at = put_u64(put_name(at, name, "", labels, more, NULL), v);
	*at++ = '\n';
	commit(t, at);
}

void text_seconds(
	struct text *t, const char *name, const char *labels, const char *more, uint64_t ns)
{
	char *at = reserve(t, line_max(name, labels, more));
	if (at == NULL)
		return;
	at = put_seconds(put_name(at, name, "", labels, more, NULL), ns);
	*at++ = '\n';
	commit(t, at);
}

void text_histogram(struct text *t, const char *name, const char *labels, const char *more,
	const struct text_scale *scale, const uint64_t *counts, uint64_t sum_ns)
{
	unsigned bounds = scale != NULL ? scale->count : 0;
	uint64_t below = 0;
	char *at = reserve(t, (bounds + 3) * line_max(name, labels, more));
	if (at == NULL)
		return;
	for (unsigned i = 0; i <= bounds; i++) {
		below += counts[i];
		const char *le = i < bounds ? scale->le[i] : "+Inf";
		at = put_u64(put_name(at, name, "_bucket", labels, more, le), below);
		*at++ = '\n';
	}
	at = put_seconds(put_name(at, name, "_sum", labels, more, NULL), sum_ns);
	*at++ = '\n';
	at = put_u64(put_name(at, name, "_count", labels, more, NULL), below);
	*at++ = '\n';
	commit(t, at);
}

void text_label(char *ret, bool append, const char *name, const char *value)
{
	char *at = append ? ret + strlen(ret) : ret;
	/* The comma, ="" and an escaped byte, the NUL. */
	char *end = ret + TEXT_LABELS_MAX - 4;
	assert(at + strlen(name) + 4 < end);
	if (append)
		*at++ = ',';
	at = put(put(at, name), "=\"");
	for (; *value != '\0' && at < end; value++) {
		if (*value == '\\' || *value == '"' || *value == '\n')
			*at++ = '\\';
		*at++ = *value == '\n' ? 'n' : *value;
	}
	*at++ = '"';
	*at = '\0';
}

unsigned text_scale_bucket(const struct text_scale *scale, uint64_t ns)
{
	unsigned i = 0;
	while (i < scale->count && ns > scale->bounds_ns[i])
		i++;
	return i;
}

void text_scale_regroup(
	const struct text_scale *scale, const struct hist *hist, uint64_t *ret_counts)
{
	unsigned bound = 0;
	memset(ret_counts, 0, (scale->count + 1) * sizeof(*ret_counts));
	for (uint32_t i = 0; i < HIST_BUCKETS; i++) {
		while (bound < scale->count && hist_bucket_start_ns(i) >= scale->bounds_ns[bound])
			bound++;
		ret_counts[bound] += hist->count[i];
	}
}
