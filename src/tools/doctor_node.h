/* SPDX-License-Identifier: Apache-2.0 */
/* What on the node may act on a tenant's bytes. */
#ifndef RINGVOL_TOOLS_DOCTOR_NODE_H
#define RINGVOL_TOOLS_DOCTOR_NODE_H

#include "tools/doctor_findings.h"

/* Where to look: the node itself, or a directory that stands for it in a test. */
struct doctor_node {
	const char *root; /* "" or a directory; no '/' at its end */
	bool own;         /* root is the node's: false in a container, which sees /dev alone */
	const uint64_t *diskseqs; /* of our devices that are attached */
	size_t count;
};

/* Whether we have the root of the first process, and that process is the machine's first: a
 * container has its own namespace of processes, or at least its own root. */
bool doctor_on_the_node(void);
void doctor_node_look(struct doctor *d, const struct doctor_node *node);

#endif
