/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From two answers of the driver to what volumes did between them. Pure but for memory. A volume is
 * told by its id; counters that are smaller than they were have begun anew.
 */
#ifndef RINGVOL_TOOLS_RATES_H
#define RINGVOL_TOOLS_RATES_H

#include "base/hist.h"
#include "tools/inventory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	RATES_OPS = 4, /* read, write, flush, discard, as inspect.proto has them */
	RATES_HISTORY = 24,
};
extern const char *const rates_op_names[RATES_OPS];

struct rates_op {
	uint64_t ops, bytes, errors; /* in the interval */
	uint64_t errors_total;       /* since the volume was attached */
	uint32_t in_flight;
	bool timed; /* the two below are known: counted by BPF, and something ended */
	uint64_t p50_ns, p99_ns;
};

struct rates_volume {
	char id[132], device[32];
	char *name, *pool, *node; /* node: "", or of a cluster */
	bool counted;             /* there is something to compare: at least two answers had it */
	bool exact;               /* by BPF */
	bool abnormal;            /* the driver says so */
	double seconds;           /* the interval; for one attached meanwhile as long */
	struct rates_op op[RATES_OPS], all;
	uint64_t history[RATES_HISTORY]; /* all.p99_ns, the newest last; 0: nothing ended */
	/* private: the last answer */
	uint64_t ops[RATES_OPS], bytes[RATES_OPS], errors[RATES_OPS];
	struct hist latency[RATES_OPS];
	bool seen;
};

struct rates {
	struct rates_volume *at; /* by id */
	size_t count, cap;
	uint64_t last_ns; /* of the last answer, 0: none yet */
};

/* Takes an answer in (volumes with histograms) that came at monotonic_ns. Volumes it does not have
 * are forgotten. 0 or -ENOMEM. */
int rates_take(struct rates *rates, const struct inventory *inv, uint64_t monotonic_ns);
void rates_free(struct rates *rates);

/* In the order of the choices of `ringvol top --sort`. */
enum rates_key {
	RATES_BY_NAME,
	RATES_BY_IOPS,
	RATES_BY_READ,
	RATES_BY_WRITE,
	RATES_BY_BYTES,
	RATES_BY_P50,
	RATES_BY_P99,
	RATES_BY_IN_FLIGHT,
	RATES_BY_ERRORS,
	RATES_KEYS,
};
/* Pointers to all of them in that order: numbers from the greatest, names from the first; equal
 * ones by name. reverse turns it round. NULL when out of memory, or when there is none. */
const struct rates_volume **rates_sort(const struct rates *rates, enum rates_key key, bool reverse);

#endif
