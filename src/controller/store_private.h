/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the store share: store.c, store_pools.c, store_objects.c, store_find.c. */
#ifndef RINGVOL_CONTROLLER_STORE_PRIVATE_H
#define RINGVOL_CONTROLLER_STORE_PRIVATE_H

#include "controller/claims.h"
#include "controller/segments.h"
#include "controller/store.h"
#include "controller/tombs.h"

struct store {
	struct store_config config;
	struct list node_list;
	struct store_node **nodes; /* in the order of ids */
	size_t n_nodes, nodes_cap;
	size_t n_roster_nodes, n_roster_pools; /* of those, that no node has told itself */
	struct store_pool **pools;             /* in the order of uuid8 */
	size_t n_pools, pools_cap;
	size_t counts[STORE_KINDS];
	struct object_table table;
	struct tombs tombs;
	struct claims claims;
	struct segments segments;
	struct classes classes;
	uint32_t joins;
	uint64_t roster_version;
	/* Pools that were told and went away empty, the last so many: an older roster that has one
	 * as a pool of a node that is here is wrong. */
	char gone[STORE_GONE_POOLS_MAX][STORE_UUID8 + 1];
	size_t n_gone;
	bool settled;     /* time has passed */
	bool whole_known; /* whole_err is how it is */
	struct err whole_err;
};

/* Who is missing, or what a roster says, may be another answer now. */
void store_changed(struct store *store);
/* The node had n_claims before: whether it makes anything is in the roster. */
void store_claims_changed(struct store *store, const struct store_node *node, unsigned n_claims);
/* Where it is, or would be. */
size_t store_node_place(const struct store *store, const char *id);
size_t store_pool_place(const struct store *store, const char *uuid8); /* 8 digits are looked at */

void store_object_drop(struct store *store, struct store_object *object);

/* Of no node yet. NULL: out of memory, or STORE_POOLS_MAX. */
struct store_pool *store_pool_new(struct store *store, const char *uuid8);
void store_pool_move(struct store *store, struct store_pool *pool, struct store_node *node);
/* With what is on its shelves: they hold nothing that the table knows. */
void store_pool_free(struct store *store, struct store_pool *pool);
/* What its node told before and not since it joined is gone, if it has told the pool as ready: one
 * that is missing, sick or still read may have more than the node knows. */
void store_pool_synced(struct store *store, struct store_pool *pool);

#endif
