/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O limits of one ublk device, as its queues ask for them.
 *
 * A bucket knows when its next request may go. A request that comes takes that moment and moves the
 * bucket's on by what it costs, so requests get their moments in the order in which they come, from
 * whatever queue, and none is ever asked again. What was not used for UBLK_THROTTLE_BURST_MS is
 * kept, so that a thread which wakes late loses nothing. No lock, no memory, no system call: a
 * queue's thread takes a moment by one atomic exchange.
 */
#ifndef RINGVOL_BACKENDS_UBLK_THROTTLE_H
#define RINGVOL_BACKENDS_UBLK_THROTTLE_H

#include "base/io_limits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { UBLK_THROTTLE_BURST_MS = 20 };

/* Of reads and writes alike; moments are in parts of a nanosecond of CLOCK_MONOTONIC. */
struct ublk_bucket {
	_Atomic uint64_t rate; /* a second; 0: no limit */
	_Atomic uint64_t next;
};

struct ublk_throttle {
	struct ublk_bucket requests[2], bytes[2]; /* [0] reads, [1] writes */
	/* Changes with the limits: what waits by the old ones asks anew. */
	_Atomic uint32_t version;
};

/* From any thread. */
void ublk_throttle_set(struct ublk_throttle *t, const struct io_limits *limits, uint64_t now_ns);
/* Whether a request of that direction may have to wait at all. */
static inline bool ublk_throttle_limits(struct ublk_throttle *t, bool write)
{
	return atomic_load_explicit(&t->requests[write].rate, memory_order_relaxed) != 0 ||
	       atomic_load_explicit(&t->bytes[write].rate, memory_order_relaxed) != 0;
}
/* When a request may go (ns; now or earlier: at once). It counts from here. */
uint64_t ublk_throttle_take(struct ublk_throttle *t, bool write, uint32_t bytes, uint64_t now_ns);

#endif
