/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms: every value lands in the bucket that holds it, and reads back within 12%. */
#include "base/hist.h"

#include <criterion/criterion.h>
#include <string.h>

/* A thousand equal values: whatever the quantile, it is that value. */
static double read_back(uint64_t ns, double quantile)
{
	struct hist h = {0};
	h.count[hist_bucket(ns)] = 1000;
	return (double)hist_quantile_ns(&h, quantile);
}

Test(hist, every_value_is_in_its_bucket)
{
	for (uint64_t ns = 1; ns < UINT64_C(40) << HIST_MAX_SHIFT; ns += 1 + ns / 97) {
		uint32_t b = hist_bucket(ns);
		cr_assert_lt(b, HIST_BUCKETS);
		cr_assert_leq(hist_bucket_start_ns(b), ns);
		if (b < HIST_BUCKETS - 1)
			cr_assert_lt(ns, hist_bucket_start_ns(b + 1), "%lu in %u", ns, b);
	}
}

Test(hist, buckets_rise)
{
	for (uint32_t b = 0; b < HIST_BUCKETS; b++)
		cr_assert_lt(hist_bucket_start_ns(b), hist_bucket_start_ns(b + 1));
}

Test(hist, within_twelve_percent)
{
	for (uint64_t ns = UINT64_C(1) << HIST_MIN_SHIFT; ns < UINT64_C(1) << HIST_MAX_SHIFT;
		ns += 1 + ns / 1013) {
		for (double q = 0.01; q < 1; q += 0.49) {
			double back = read_back(ns, q),
			       off = back > (double)ns ? back - (double)ns : (double)ns - back;
			cr_assert_leq(off, 0.12 * (double)ns + 1, "%lu reads back as %.0f at %.2f",
				ns, back, q);
		}
	}
}

Test(hist, quantiles)
{
	struct hist h = {0};
	cr_assert_eq(hist_quantile_ns(&h, 0.5), 0);
	h.count[hist_bucket(10000)] = 99;
	h.count[hist_bucket(1000000)] = 1;
	cr_assert_lt(hist_quantile_ns(&h, 0.5), 12000);
	cr_assert_lt(hist_quantile_ns(&h, 0.99), 12000);
	cr_assert_gt(hist_quantile_ns(&h, 0.995), 800000);
	cr_assert_eq(hist_total(&h), 100);
}

Test(hist, quantiles_lie_within_their_buckets)
{
	struct hist h = {0};
	for (uint64_t ns = 100000; ns < 200000; ns++)
		h.count[hist_bucket(ns)]++;
	for (double q = 0.05; q < 1; q += 0.05) {
		double back = (double)hist_quantile_ns(&h, q), is = 100000 * (1 + q);
		cr_assert(back > 0.9 * is && back < 1.1 * is, "%.2f: %.0f for %.0f", q, back, is);
	}
}

Test(hist, difference_starts_again_where_counts_fell)
{
	struct hist then = {0}, now = {0}, since;
	then.count[3] = 10, now.count[3] = 15;
	then.count[4] = 10, now.count[4] = 2;
	hist_since(&now, &then, &since);
	cr_assert_eq(since.count[3], 5);
	cr_assert_eq(since.count[4], 2);
}
