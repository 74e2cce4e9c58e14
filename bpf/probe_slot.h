/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the probes in the kernel and the driver share. A tracked device has one slot, shared by all
 * CPUs (histograms for each CPU would cost 7 KiB a CPU and volume) and added to atomically. Slots
 * come in chunks, arrays that the driver adds as it needs them, because the kernel allocates an
 * array whole.
 */
#ifndef RINGVOL_BPF_PROBE_SLOT_H
#define RINGVOL_BPF_PROBE_SLOT_H

#include "base/hist.h"

enum {
	PROBE_SLOT_OPS = 4,     /* enum probe_op: read, write, flush, discard */
	PROBE_TAGS = 256,       /* requests of a device that are timed at once */
	PROBE_CHUNK_SLOTS = 16, /* 30 pages, of which 3% are not used */
	PROBE_CHUNKS = 1024,
	PROBE_RQ_MAJORS = 2,             /* loop and, for ublk, the block layer's own 259 */
	PROBE_BIO_ROW = PROBE_RQ_MAJORS, /* the device mapper's, of devices that take bios */
	PROBE_MAJORS,
	PROBE_MINORS = 1 << 14,
	PROBE_BIOS_MAX = 1 << 13, /* beyond those, of all such devices; others are not counted */
	PROBE_BIO_SETS_LOG2 = 10,
	PROBE_BIO_SETS = 1 << PROBE_BIO_SETS_LOG2, /* most are noted in these */
	PROBE_BIO_WAYS = 4,
	PROBE_LEFT =
		UINT16_MAX, /* in place of a slot: not tracked any more, bios may be under way */
	PROBE_FAILED = 64,  /* errors that the driver hears of one by one */
};

struct probe_slot_op {
	uint64_t bytes;
	uint64_t busy_ns;
	uint64_t errors;
	uint64_t last_error_ns;
	uint64_t last_status; /* blk_status_t */
	uint64_t latency[HIST_BUCKETS];
	uint64_t queue[HIST_BUCKETS];
};

struct probe_slot {
	uint64_t since_ns;
	struct probe_slot_op op[PROBE_SLOT_OPS];
	uint32_t mark[PROBE_TAGS];          /* of a device that takes requests */
	uint32_t in_flight[PROBE_SLOT_OPS]; /* of one that takes bios */
};

/* The request that has the tag, or had it last; 0: none yet. */
enum {
	PROBE_MARK_OP = 3,
	PROBE_MARK_ISSUED = 4, /* in flight: the rest is the time of its issue, in steps of 8 ns */
	PROBE_MARK_BITS = 7,   /* over: the rest is the time of its start */
};

/* A bio that is under way, by its address. */
struct probe_bio {
	uint64_t address; /* 0: none */
	uint64_t start_ns;
	uint32_t bytes;
	uint16_t slot; /* plus one */
	uint8_t op;
};

/* Where a bio is noted follows from its address. */
struct probe_bio_set {
	struct probe_bio way[PROBE_BIO_WAYS];
};

/* Global variables of the programs, which the driver has mapped. */
struct probe_tracked {
	uint32_t majors[PROBE_MAJORS];             /* 0: none yet */
	uint16_t slot[PROBE_MAJORS][PROBE_MINORS]; /* plus one; 0: not tracked */
	/* Errors so far, and the devices of the last ones: major << 20 | minor, put in after the
	 * count has moved. The driver takes them out (0). */
	uint64_t errors;
	uint32_t failed[PROBE_FAILED];
	uint64_t spilled; /* bios for which their set had no room */
};

#endif
