/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log-linear histograms of durations, the same buckets in the kernel's probes, in the driver's own
 * measurements and in what `ringvol top` gets: four to each power of two, so a value read back
 * is at most 12% off.
 *
 * Bucket 0 holds everything below HIST_MIN_NS, the last everything from HIST_MAX_NS on.
 */
#ifndef RINGVOL_BASE_HIST_H
#define RINGVOL_BASE_HIST_H

#include <stdint.h>

enum {
	HIST_MIN_SHIFT = 9,  /* 512 ns: no block device answers sooner */
	HIST_MAX_SHIFT = 33, /* 9 s: longer is hanging, and said elsewhere */
	HIST_STEPS = 4,      /* buckets to a power of two */
	HIST_BUCKETS = (HIST_MAX_SHIFT - HIST_MIN_SHIFT) * HIST_STEPS + 2,
};

/* No branches that a BPF verifier would lose its way in: used by bpf/ too. */
static inline uint32_t hist_bucket(uint64_t ns)
{
	if (ns >> HIST_MIN_SHIFT == 0)
		return 0;
	if (ns >> HIST_MAX_SHIFT != 0)
		return HIST_BUCKETS - 1;
	uint32_t log2 = 0;
	uint64_t v = ns;
	for (uint32_t step = 32; step != 0; step >>= 1) {
		if (v >> step != 0) {
			v >>= step;
			log2 += step;
		}
	}
	return 1 + (log2 - HIST_MIN_SHIFT) * HIST_STEPS +
	       (uint32_t)(ns >> (log2 - 2) & (HIST_STEPS - 1));
}

/* The smallest value of a bucket in ns; bucket HIST_BUCKETS is one past the end of the last. */
uint64_t hist_bucket_start_ns(uint32_t bucket);

struct hist {
	uint64_t count[HIST_BUCKETS];
};

/* The value below which `quantile` (0 to 1) of them lie, in ns; 0 when there are none. */
uint64_t hist_quantile_ns(const struct hist *hist, double quantile);
uint64_t hist_total(const struct hist *hist);
/* now - then, bucket by bucket; what went backwards (a device number used again) counts from 0. */
void hist_since(const struct hist *now, const struct hist *then, struct hist *ret);

#endif
