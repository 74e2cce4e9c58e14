/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O limits of volumes in use: what their records say is put in force, and kept so.
 *
 * A backend with limit() (ublk) limits its device, whoever uses it. Devices of the kernel are
 * limited in the cgroups of the pods that they are published to: the limit is divided among these
 * pods, and holds for what they do, not for what the kernel does for them (journals). A pod's
 * cgroup may come later than the publish, and may be made anew, so what is in force is looked at
 * again and again. What is not in force is the condition LimitNotEnforced.
 */
#ifndef RINGVOL_NODE_LIMITS_H
#define RINGVOL_NODE_LIMITS_H

#include "backends/backend.h"
#include "node/cgroup.h"
#include "pool/pool.h"
#include "reactor/op.h"

struct node;
struct node_volume;

enum {
	NODE_LIMITS_MS = 10000,       /* between two looks at what is in force */
	NODE_LIMITS_SOON_MS = 250,    /* while a pod's cgroup is waited for */
	NODE_LIMITS_GRACE_MS = 15000, /* so long a pod may be without a cgroup */
	NODE_LIMITS_LOOKS_MAX = 4,    /* by the timer, at once */
	NODE_LIMITS_PODS_MAX = 256,   /* of one volume */
};

struct node_limits; /* those of all volumes: node->limits */

/* root: of the cgroups, kept by reference; NULL: none is to be used. 0 or -ENOMEM. */
int node_limits_open(struct node *node, const char *root);
void node_limits_close(struct node *node);
/* No look is under way. */
bool node_limits_idle(const struct node *node);

/* The volume's device or mounts were found, or its record has changed: a look follows by itself. */
void node_limits_follow(struct node *node, struct node_volume *nv);
/* Whether there is anything to put in force, or to take back. */
bool node_limits_matter(const struct node_volume *nv);

/* A look, as a child of an operation that has the volume alone: puts in force what the record says
 * and the mounts in memory ask for. It waits for one that the timer has begun. Ends well whatever
 * cannot be put in force. */
struct node_limits_look {
	struct op op;
	struct node *node;
	char id[RECORD_ID_MAX];
	/* The record is about to have none: what is in force is taken back before that, so that a
	 * crash leaves no limit that no record tells of. */
	bool lift;
	/* private */
	struct list link; /* node_limits.looks: the timer's */
	struct backend_req req;
	const struct backend *backend;
	struct err device_err, root_err;
	uint32_t major, minor;
	struct node_limits_pod *pods;
	unsigned pod_count, unnamed;
	bool holds; /* the volume's limits are this look's alone */
};
void node_limits_look_init(
	struct node_limits_look *look, struct node *node, const struct pool_object *volume);

#endif
