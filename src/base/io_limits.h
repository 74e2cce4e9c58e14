/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O limits of a volume: what it may do in a second at most, for each direction. An operation
 * is a request as the device gets it.
 */
#ifndef RINGVOL_BASE_IO_LIMITS_H
#define RINGVOL_BASE_IO_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

/* Less would look like a disk that hangs. The kernel's io.max takes 32 bits of operations. */
#define IO_LIMITS_IOPS_MIN      UINT64_C(10)
#define IO_LIMITS_IOPS_MAX      UINT64_C(1000000000)
#define IO_LIMITS_BANDWIDTH_MIN (UINT64_C(64) << 10)
#define IO_LIMITS_BANDWIDTH_MAX (UINT64_C(1) << 50)

/* 0: no limit. */
struct io_limits {
	uint64_t read_iops, write_iops;           /* operations a second */
	uint64_t read_bandwidth, write_bandwidth; /* bytes a second */
};

static inline bool io_limits_any(const struct io_limits *l)
{
	return (l->read_iops | l->write_iops | l->read_bandwidth | l->write_bandwidth) != 0;
}

static inline bool io_limits_equal(const struct io_limits *a, const struct io_limits *b)
{
	return a->read_iops == b->read_iops && a->write_iops == b->write_iops &&
	       a->read_bandwidth == b->read_bandwidth && a->write_bandwidth == b->write_bandwidth;
}

#endif
