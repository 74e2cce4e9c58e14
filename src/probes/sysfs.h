/* SPDX-License-Identifier: Apache-2.0 */
/* The block layer's own counters of a device. */
#ifndef RINGVOL_PROBES_SYSFS_H
#define RINGVOL_PROBES_SYSFS_H

#include "probes/probes.h"

struct probe_sysfs {
	uint64_t ops[PROBE_OPS], bytes[PROBE_OPS], busy_ns[PROBE_OPS];
	uint32_t in_flight[PROBE_OPS]; /* reads and writes; the rest is not told apart */
};

/* -EINVAL for what is not such a file. */
int probe_sysfs_parse(const char *stat, const char *inflight, struct probe_sysfs *ret);
int probe_sysfs_read(uint32_t major, uint32_t minor, struct probe_sysfs *ret);

#endif
