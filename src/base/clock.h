/* SPDX-License-Identifier: Apache-2.0 */
/* The clocks, and times for people and protocols. */
#ifndef RINGVOL_BASE_CLOCK_H
#define RINGVOL_BASE_CLOCK_H

#include <stdint.h>

enum { CLOCK_BYTES = 40 };

/* CLOCK_REALTIME and CLOCK_MONOTONIC, ns. */
uint64_t clock_now_ns(void);
uint64_t clock_monotonic_ns(void);
/* Sleeps; less if a signal comes. Never on the loop: for threads of work, helpers, tools, and
 * starts. */
void clock_sleep_ms(unsigned ms);
/* What CLOCK_REALTIME was at a CLOCK_MONOTONIC, as the two stand now; 0 for 0 and for the future.
 */
uint64_t clock_of_monotonic(uint64_t monotonic_ns);
/* A CLOCK_REALTIME as RFC 3339 has it, UTC, with nanoseconds; "" for 0. */
void clock_print(uint64_t realtime_ns, char ret[CLOCK_BYTES]);

#endif
