/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ringvol doctor` found, one finding for each thing looked at. A check asks the system, by
 * trying where that leaves nothing, and adds what it found; a check never fails.
 */
#ifndef RINGVOL_TOOLS_DOCTOR_H
#define RINGVOL_TOOLS_DOCTOR_H

#include "tools/args.h"

enum doctor_verdict {
	DOCTOR_OK,
	DOCTOR_LIMITED, /* it works, but not all of it or not as well */
	DOCTOR_MISSING,
	DOCTOR_UNKNOWN, /* it cannot be seen from where this runs */
};

struct doctor_finding {
	const char *check; /* "pool default" */
	enum doctor_verdict verdict;
	bool needed; /* without it there are no volumes at all */
	const char *found, *remedy;
};

struct doctor {
	struct tool_args args;
	const char *kubelet_root;
	struct doctor_finding *findings;
	size_t count, cap;
	bool failed;      /* out of memory */
	bool pool_usable; /* one at least */
	bool loop_usable;
	uint64_t capabilities; /* effective */
};

/* found, remedy: copied; remedy "" where there is nothing to do. */
void doctor_add(struct doctor *d, const char *check, enum doctor_verdict verdict, bool needed,
	const char *found, const char *remedy);
/* In d's arena; "" when memory is short. */
const char *doctor_text(struct doctor *d, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* ---- the kernel ---- */

void doctor_kernel(struct doctor *d);
void doctor_capabilities(struct doctor *d);
void doctor_io_uring(struct doctor *d);
void doctor_file_systems(struct doctor *d);
void doctor_device_mapper(struct doctor *d);
void doctor_ublk(struct doctor *d);
void doctor_probes(struct doctor *d);

/* ---- devices and pools ---- */

void doctor_loop(struct doctor *d);
void doctor_pools(struct doctor *d);

/* ---- what is around ---- */

void doctor_tools(struct doctor *d);
void doctor_limits(struct doctor *d);
void doctor_kubelet(struct doctor *d);
void doctor_driver(struct doctor *d);

/* ---- what on the node may act on a tenant's bytes ---- */

/* Where to look: the node itself, or a directory that stands for it in a test. */
struct doctor_node {
	const char *root; /* "" or a directory; no '/' at its end */
	bool own;         /* root is the node's: false in a container, which sees /dev alone */
	const uint64_t *diskseqs; /* of our devices that are attached */
	size_t count;
};

void doctor_node_look(struct doctor *d, const struct doctor_node *node);
/* The same of this machine. */
void doctor_node(struct doctor *d);

#endif
