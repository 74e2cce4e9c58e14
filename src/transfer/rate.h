/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a node sends and receives copies, all together: --transfer-rate. */
#ifndef RINGVOL_TRANSFER_RATE_H
#define RINGVOL_TRANSFER_RATE_H

#include <stdint.h>

enum { RATE_BURST_MS = 100 }; /* what was not used for longer is lost */

struct rate {
	uint64_t bytes_per_s; /* 0: no limit */
	uint64_t free_ns;     /* when what was taken is paid for, by the ring's clock */
};

/* Takes so many bytes, and says after how many milliseconds the next may be taken; 0: at once. */
static inline uint64_t rate_take(struct rate *rate, uint64_t now_ns, uint64_t bytes)
{
	uint64_t burst_ns = RATE_BURST_MS * UINT64_C(1000000);
	if (rate->bytes_per_s == 0)
		return 0;
	if (now_ns > burst_ns && rate->free_ns < now_ns - burst_ns)
		rate->free_ns = now_ns - burst_ns;
	rate->free_ns += (uint64_t)((double)bytes * 1e9 / (double)rate->bytes_per_s);
	return rate->free_ns > now_ns ? (rate->free_ns - now_ns + 999999) / 1000000 : 0;
}

/* After how many milliseconds something may be taken. */
static inline uint64_t rate_wait_ms(const struct rate *rate, uint64_t now_ns)
{
	return rate->bytes_per_s != 0 && rate->free_ns > now_ns
		       ? (rate->free_ns - now_ns + 999999) / 1000000
		       : 0;
}

#endif
