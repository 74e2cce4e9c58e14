/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scan's parts: operations of their own on what it has found, all at once. The scan is over when
 * the last of them is. adopt_scan.h says what a scan is.
 */
#ifndef RINGVOL_NODE_ADOPT_PART_H
#define RINGVOL_NODE_ADOPT_PART_H

#include "node/adopt_scan.h"
#include "node/lock.h"
#include "reactor/op.h"

/* A scan under way; adopt_scan.c owns it. */
struct adopt {
	struct op op;
	struct node *node;
	struct node_adoption *adoption;
	const struct backend *backend;
	struct err scan_err;
	struct backend_dev *devs;
	size_t dev_count, dev_cap;
	struct found_mount *mounts; /* adopt_scan.c */
	size_t mount_count, mount_cap;
	int res;          /* what has gone wrong besides */
	unsigned pending; /* parts under way, and the matching itself */
	uint64_t since;   /* node->locks.releases when the scan began */
	void (*on_end)(struct node_adoption *adoption, const struct node_scan *scan);
	struct node_scan scan;
};

/* Zeroed, and counted; freed by its own end. NULL, and noted in res: no memory. */
void *adopt_part_new(struct adopt *a, size_t size);
/* In the pool's lane. on_end calls adopt_part_over(), which may free the scan. */
void adopt_part_start(struct adopt *a, struct op *op, const struct pool *pool, const char *name,
	const struct op_step *steps, void (*on_end)(struct op *op));
void adopt_part_over(struct adopt *a);
/* The volume of that key stays what it is until the lock is released. Nobody has it alone: whoever
 * calls has just seen that. */
void adopt_part_share(struct adopt *a, struct node_lock *lock, const char *key, const char *what);

#endif
