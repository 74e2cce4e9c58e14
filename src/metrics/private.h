/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of src/metrics share. */
#ifndef RINGVOL_METRICS_PRIVATE_H
#define RINGVOL_METRICS_PRIVATE_H

#include "base/hist.h"
#include "metrics/metrics.h"
#include "metrics/text.h"
#include "node/refresh.h"
#include "pool/index.h"

enum {
	METRICS_CODES = GRPC_UNAUTHENTICATED + 1,
	METRICS_METHODS_MAX = GRPC_METHODS_MAX + 1, /* and "unknown" */
	METRICS_STEP_SLOTS = 4 * METRICS_STEPS_MAX,
	METRICS_FEATURES_MAX = 120,
	SCRAPE_WORK_MAX = 500, /* about a microsecond each, in one turn of the loop */
};

struct metrics_histogram {
	uint64_t counts[TEXT_BOUNDS_MAX + 1];
	uint64_t sum_ns;
};

struct metrics_method {
	const char *path;                               /* the registry's */
	const char *other;                              /* the other registry's; NULL: not met */
	struct metrics_histogram *codes[METRICS_CODES]; /* NULL: never met */
};

struct metrics_step {
	const char *operation, *step;
	struct metrics_histogram histogram;
};

/* Where a pair of addresses leads: equal names of different files share a series. */
struct metrics_step_slot {
	const char *operation, *step;
	struct metrics_step *to;
};

struct metrics {
	struct reactor *reactor;
	struct csi *csi;               /* NULL: of a controller */
	struct controller *controller; /* NULL: of a node */
	struct grpc_registry *registry;
	struct grpc_registry *routed; /* of a node: what controllers call; NULL: none do */
	const struct member *member;  /* likewise */
	const struct tls *tls;        /* NULL: of no cluster */
	struct op_observer observer;
	char kernel[65], features[METRICS_FEATURES_MAX];
	uint64_t start_ns; /* CLOCK_REALTIME */

	struct metrics_method methods[METRICS_METHODS_MAX];
	unsigned method_count;
	struct metrics_step *steps[METRICS_STEPS_MAX];
	unsigned step_count;
	struct metrics_step other;
	struct metrics_step_slot slots[METRICS_STEP_SLOTS];
	unsigned slots_used;

	uint64_t turn_ns; /* when scrapes last had a turn, and the work they did in it */
	unsigned turn_work;
};

extern const struct text_scale metrics_rpc_scale, metrics_step_scale;

/* One /metrics being answered. */
struct scrape {
	struct http1_source source;
	struct metrics *metrics;
	struct node_refresh refresh;
	bool measured;           /* the pools are, or were waited for */
	unsigned table, family;  /* what is rendered */
	bool begun;              /* its HELP and TYPE are out */
	unsigned at;             /* how far the family is, where it counts */
	struct pool_walk cursor; /* the last volume looked at */
	char last[256 + 1];      /* likewise the last node, or borrowed volume */
	unsigned work;           /* of SCRAPE_WORK_MAX, by all scrapes in this turn */
	struct arena *arena;     /* of this piece */
};

struct volume; /* volumes.c */
struct borrowed;
struct probe_counters;

/* A row: its text, and where its values come from. render is called until it answers true, and
 * appends a bounded amount each time; it has one of what follows it for its values. */
struct family {
	const char *name, *type, *help;
	bool (*render)(struct scrape *s, const struct family *f, struct text *t);
	uint64_t (*number)(const struct metrics *m);
	uint64_t (*pool)(const struct pool *pool);
	size_t room_field; /* offset in struct pool_room */
	bool raw_alone;    /* of raw pools: the others have no such thing */
	size_t stat_field; /* offset in struct store_stats */
	bool copy_size;    /* how large what is copied is, not how far the copy has come */
	void (*volume)(struct text *t, const char *name, struct volume *v);
	uint64_t (*borrowed)(const struct borrowed *b);
	/* Of a volume's device. exact_alone: of what BPF counts, sysfs does not know it. */
	void (*io)(struct text *t, const char *name, const char *labels,
		const struct probe_counters *c);
	bool exact_alone;
};

/* volumes.c: what there is of every attached volume; ends with a NULL render. */
extern const struct family volume_families[];
/* borrowed.c: what there is of every volume of another node that is used here. */
extern const struct family borrowed_families[];
/* values.c: pools, and what is copied in them. */
extern const struct family pool_families[];
/* member.c: the controllers that a node joins. */
extern const struct family member_families[];
/* tls.c: our certificate, and who comes. */
extern const struct family tls_families[];
/* cluster.c: nodes, and calls that go to them. */
extern const struct family cluster_families[];
/* values.c: the rest. */
extern const struct family value_families[];

#endif
