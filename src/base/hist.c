/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms of durations: reading them. Nothing here can fail. */
#include "base/hist.h"

_Static_assert(HIST_STEPS == 4, "hist_bucket() takes the two bits below the highest");

/* The widest bucket goes from 4 to 5: no less will do for both of its ends (1.11 and 0.89). */
#define HIST_OFF_MAX 0.12

uint64_t hist_bucket_start_ns(uint32_t bucket)
{
	if (bucket == 0)
		return 0;
	if (bucket >= HIST_BUCKETS)
		return UINT64_C(2) << HIST_MAX_SHIFT;
	uint32_t log2 = HIST_MIN_SHIFT + (bucket - 1) / HIST_STEPS;
	uint64_t step = (bucket - 1) % HIST_STEPS;
	return (HIST_STEPS + step) << (log2 - 2);
}

uint64_t hist_total(const struct hist *hist)
{
	uint64_t total = 0;
	for (uint32_t i = 0; i < HIST_BUCKETS; i++)
		total += hist->count[i];
	return total;
}

/* At a part of the bucket, as if its values were spread evenly; but wherever they are, all at one
 * end even, not further than HIST_OFF_MAX from them. */
static uint64_t within_bucket_ns(uint32_t bucket, double part)
{
	double start = (double)hist_bucket_start_ns(bucket);
	double end = (double)hist_bucket_start_ns(bucket + 1);
	double value = start + part * (end - start);
	double least = end * (1 - HIST_OFF_MAX), most = start * (1 + HIST_OFF_MAX);
	if (bucket == 0 || bucket == HIST_BUCKETS - 1) /* who knows */
		return (uint64_t)value;
	return (uint64_t)(value < least ? least : value > most ? most : value);
}

uint64_t hist_quantile_ns(const struct hist *hist, double quantile)
{
	uint64_t total = hist_total(hist), below = 0;
	double rank = quantile * (double)total;
	for (uint32_t i = 0; i < HIST_BUCKETS; below += hist->count[i++]) {
		double n = (double)hist->count[i];
		if (n > 0 && (double)below + n >= rank)
			return within_bucket_ns(i, (rank - (double)below) / n);
	}
	return 0;
}

void hist_since(const struct hist *now, const struct hist *then, struct hist *ret)
{
	for (uint32_t i = 0; i < HIST_BUCKETS; i++) {
		uint64_t n = now->count[i], t = then->count[i];
		ret->count[i] = n >= t ? n - t : n;
	}
}
