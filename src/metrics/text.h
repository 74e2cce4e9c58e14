/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prometheus' text format, version 0.0.4: families with HELP and TYPE, samples, histograms.
 * Written by hand instead of by printf, because 1,000 volumes are 46,000 lines.
 */
#ifndef RINGVOL_METRICS_TEXT_H
#define RINGVOL_METRICS_TEXT_H

#include "base/buf.h"
#include "base/hist.h"

#include <stdbool.h>
#include <stdint.h>

#define TEXT_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

enum {
	TEXT_BOUNDS_MAX = 12,
	TEXT_LABELS_MAX = 512, /* bytes of a label list; the longest value has 128, escaped 256 */
};

struct text {
	struct buf *out;
	bool failed; /* out of memory: nothing is appended any more */
};

/* The upper bounds of a histogram's buckets; the last, +Inf, is not among them. */
struct text_scale {
	unsigned count;
	uint64_t bounds_ns[TEXT_BOUNDS_MAX];
	const char *le[TEXT_BOUNDS_MAX]; /* the same in seconds */
};

/* type: "counter", "gauge", "histogram". help: no backslash, no newline. */
void text_family(struct text *t, const char *name, const char *type, const char *help);

/* labels and more: NULL, or what text_label() made, without braces. */
void text_u64(struct text *t, const char *name, const char *labels, const char *more, uint64_t v);
/* Nanoseconds, written as seconds. */
void text_seconds(
	struct text *t, const char *name, const char *labels, const char *more, uint64_t ns);
/* counts: of each bucket alone, scale->count + 1 of them; scale NULL: +Inf is the only one. */
void text_histogram(struct text *t, const char *name, const char *labels, const char *more,
	const struct text_scale *scale, const uint64_t *counts, uint64_t sum_ns);

/* Puts name="value" at ret (TEXT_LABELS_MAX), value escaped; behind what is there when `append`. */
void text_label(char *ret, bool append, const char *name, const char *value);

/* The bucket of a value. */
unsigned text_scale_bucket(const struct text_scale *scale, uint64_t ns);
/* Counts a histogram's buckets in those of a scale (scale->count + 1); the scale's bounds are ends
 * of buckets. */
void text_scale_regroup(
	const struct text_scale *scale, const struct hist *hist, uint64_t *ret_counts);

#endif
