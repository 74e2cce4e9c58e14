/* SPDX-License-Identifier: Apache-2.0 */
/* Two clocks and one format. A time past the calendar prints as "". */
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

static uint64_t clock_of(clockid_t id)
{
	struct timespec ts;
	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t clock_now_ns(void)
{
	return clock_of(CLOCK_REALTIME);
}

uint64_t clock_monotonic_ns(void)
{
	return clock_of(CLOCK_MONOTONIC);
}

void clock_sleep_ms(unsigned ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

uint64_t clock_of_monotonic(uint64_t monotonic_ns)
{
	uint64_t now_ns = clock_monotonic_ns(), realtime_ns = clock_now_ns();
	if (monotonic_ns == 0 || monotonic_ns > now_ns || now_ns - monotonic_ns > realtime_ns)
		return 0;
	return realtime_ns - (now_ns - monotonic_ns);
}

void clock_print(uint64_t realtime_ns, char ret[CLOCK_BYTES])
{
	struct tm tm;
	time_t seconds = (time_t)(realtime_ns / 1000000000u);
	ret[0] = '\0';
	if (realtime_ns == 0 || gmtime_r(&seconds, &tm) == NULL)
		return;
	size_t len = strftime(ret, CLOCK_BYTES, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(ret + len, CLOCK_BYTES - len, ".%09" PRIu64 "Z", realtime_ns % 1000000000u);
}
