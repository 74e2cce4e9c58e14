/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block layer's own counters of a device, for when BPF cannot be had: stat and inflight in
 * /sys/dev/block/M:N. They began when the kernel made the device, know no errors and no histograms,
 * and count times in milliseconds. Reading them (10 us) waits for no device.
 *
 * How it can fail: the device is gone (-ENOENT, -ENODEV); with iostats off they stand still.
 */
#include "probes/sysfs.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { SECTOR_BYTES = 512, NS_PER_MS = 1000000 };

/* Linux 5.5 and newer: 17 numbers. */
enum {
	STAT_READS,
	STAT_READS_MERGED,
	STAT_READ_SECTORS,
	STAT_READ_MS,
	STAT_WRITES,
	STAT_WRITES_MERGED,
	STAT_WRITE_SECTORS,
	STAT_WRITE_MS,
	STAT_IN_FLIGHT,
	STAT_IO_MS,
	STAT_QUEUE_MS,
	STAT_DISCARDS,
	STAT_DISCARDS_MERGED,
	STAT_DISCARD_SECTORS,
	STAT_DISCARD_MS,
	STAT_FLUSHES,
	STAT_FLUSH_MS,
	STAT_FIELDS,
};

static int parse_numbers(const char *text, uint64_t *ret, int count)
{
	for (int i = 0; i < count; i++) {
		text += strspn(text, " ");
		if (*text < '0' || *text > '9')
			return -EINVAL;
		char *end;
		errno = 0;
		ret[i] = strtoull(text, &end, 10);
		if (errno != 0)
			return -EINVAL;
		text = end;
	}
	return 0;
}

int probe_sysfs_parse(const char *stat, const char *inflight, struct probe_sysfs *ret)
{
	uint64_t s[STAT_FIELDS], in[2];
	if (parse_numbers(stat, s, STAT_FIELDS) < 0 || parse_numbers(inflight, in, 2) < 0)
		return -EINVAL;
	*ret = (struct probe_sysfs){
		.ops = {[PROBE_READ] = s[STAT_READS],
			[PROBE_WRITE] = s[STAT_WRITES],
			[PROBE_FLUSH] = s[STAT_FLUSHES],
			[PROBE_DISCARD] = s[STAT_DISCARDS]},
		.bytes = {[PROBE_READ] = s[STAT_READ_SECTORS] * SECTOR_BYTES,
			[PROBE_WRITE] = s[STAT_WRITE_SECTORS] * SECTOR_BYTES,
			[PROBE_DISCARD] = s[STAT_DISCARD_SECTORS] * SECTOR_BYTES},
		.busy_ns = {[PROBE_READ] = s[STAT_READ_MS] * NS_PER_MS,
			[PROBE_WRITE] = s[STAT_WRITE_MS] * NS_PER_MS,
			[PROBE_FLUSH] = s[STAT_FLUSH_MS] * NS_PER_MS,
			[PROBE_DISCARD] = s[STAT_DISCARD_MS] * NS_PER_MS},
		.in_flight = {[PROBE_READ] = (uint32_t)in[0], [PROBE_WRITE] = (uint32_t)in[1]},
	};
	return 0;
}

int probe_sysfs_read(uint32_t major, uint32_t minor, struct probe_sysfs *ret)
{
	char path[64], stat[512], inflight[64];
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/stat", major, minor);
	ssize_t n = fd_read_file(AT_FDCWD, path, stat, sizeof(stat));
	if (n < 0)
		return (int)n;
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/inflight", major, minor);
	n = fd_read_file(AT_FDCWD, path, inflight, sizeof(inflight));
	if (n < 0)
		return (int)n;
	return probe_sysfs_parse(stat, inflight, ret);
}
