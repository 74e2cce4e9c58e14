/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ringvol doctor` found, one finding for each thing looked at. A check asks the system, by
 * trying where that leaves nothing, and adds what it found; a check never fails.
 */
#ifndef RINGVOL_TOOLS_DOCTOR_FINDINGS_H
#define RINGVOL_TOOLS_DOCTOR_FINDINGS_H

#include "rpc/tls.h"
#include "tools/tool.h"

enum { DOCTOR_CONTROLLERS_MAX = 8 };

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
	/* Of a part of a cluster, as the driver or controller has them; NULL: not given. */
	struct tls_files tls;
	const char *controllers[DOCTOR_CONTROLLERS_MAX];
	unsigned n_controllers;
	const char *advertise, *node_id;
	struct doctor_finding *findings;
	size_t count, cap;
	bool pool_usable; /* one at least */
	bool loop_usable;
	uint64_t capabilities; /* effective */
	/* of the check under way: what its findings get */
	const char *check;
	bool needed;
};

struct doctor_check {
	const char *name;
	bool needed;
	void (*look)(struct doctor *d);
};
/* One table for each file, in the order in which they are looked at; each ends with a NULL look. */
extern const struct doctor_check doctor_kernel_checks[], doctor_pools_checks[],
	doctor_kinds_checks[], doctor_remote_checks[], doctor_process_checks[],
	doctor_node_checks[], doctor_cluster_checks[];

/* Of the check under way. found, remedy: copied; remedy "" where there is nothing to do. */
void doctor_add(
	struct doctor *d, enum doctor_verdict verdict, const char *found, const char *remedy);
/* More findings of the same check have another name: from here on. */
void doctor_begin(struct doctor *d, const char *check, bool needed);

#endif
