/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets: when the next request may go. Nothing here waits or fails. */
#include "backends/ublk/ublk_throttle.h"

/* A moment is counted in sixteenths of a nanosecond, so that what one costs is exact to a
 * thousandth at ten million a second; 64 bits last for 36 years of uptime. */
enum { PARTS = 16 };

static const uint64_t burst_parts = UBLK_THROTTLE_BURST_MS * UINT64_C(1000000) * PARTS;

static void bucket_set(struct ublk_bucket *b, uint64_t rate, uint64_t now)
{
	atomic_store(&b->next, now);
	atomic_store(&b->rate, rate);
}

void ublk_throttle_set(struct ublk_throttle *t, const struct io_limits *limits, uint64_t now_ns)
{
	uint64_t now = now_ns * PARTS;
	bucket_set(&t->requests[0], limits->read_iops, now);
	bucket_set(&t->requests[1], limits->write_iops, now);
	bucket_set(&t->bytes[0], limits->read_bandwidth, now);
	bucket_set(&t->bytes[1], limits->write_bandwidth, now);
	atomic_fetch_add(&t->version, 1);
}

/* The moment that `amount` gets. */
static uint64_t bucket_take(struct ublk_bucket *b, uint64_t amount, uint64_t now)
{
	uint64_t rate = atomic_load_explicit(&b->rate, memory_order_relaxed);
	if (rate == 0 || amount == 0)
		return 0;
	uint64_t cost = amount * UINT64_C(1000000000) * PARTS / rate;
	uint64_t least = now > burst_parts ? now - burst_parts : 0;
	uint64_t next = atomic_load_explicit(&b->next, memory_order_relaxed), mine;
	do
		mine = next > least ? next : least;
	while (!atomic_compare_exchange_weak_explicit(
		&b->next, &next, mine + cost, memory_order_relaxed, memory_order_relaxed));
	return mine;
}

uint64_t ublk_throttle_take(struct ublk_throttle *t, bool write, uint32_t bytes, uint64_t now_ns)
{
	uint64_t now = now_ns * PARTS;
	uint64_t by_count = bucket_take(&t->requests[write], 1, now);
	uint64_t by_bytes = bucket_take(&t->bytes[write], bytes, now);
	uint64_t at = by_count > by_bytes ? by_count : by_bytes;
	return (at + PARTS - 1) / PARTS;
}
