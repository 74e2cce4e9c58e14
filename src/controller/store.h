/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the nodes have told: who they are, their pools, their volumes and snapshots, names that are
 * being made, and what they answer to GetCapacity. Memory alone, filled by join.c from the nodes'
 * reports; everything else reads it.
 *
 * A node that has left stays known, with all it last told: what is on it is away and not gone. What
 * is known of a node that this process has never seen is its id and pools, from the rosters that
 * other nodes brought along.
 *
 * 100,000 volumes on 1,000 nodes take less than 30 MiB: an object is one allocation (objects.h),
 * its entry as the node packed it, its id a part of that. Objects of a pool are kept in the order
 * of their ids, pools in the order of their uuids, so that a list is a walk and a token is an id.
 *
 * An object is in the pool that its node tells, which is not the one that its id begins with once
 * it has moved. In lists it is where it is: the place of an object in them (store_place()) is its
 * id with its pool's digits in front.
 *
 * A pool or object that a function returns is good until something is set, removed or told. A node
 * is good until on_drop() of store_config.
 */
#ifndef RINGVOL_CONTROLLER_STORE_H
#define RINGVOL_CONTROLLER_STORE_H

#include "base/err.h"
#include "base/list.h"
#include "controller/classes.h"
#include "controller/objects.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	STORE_NODE_ID_MAX = 256, /* bytes of an id, with its NUL */
	STORE_NODES_MAX = 5000,  /* beyond: the node that left longest ago and had nothing goes */
	STORE_POOLS_MAX = 20000,
	STORE_ROSTER_NODES_MAX = 5000, /* beside those that have joined once */
	STORE_ROSTER_POOLS_MAX = 10000,
	STORE_NODE_POOLS_MAX = 64,
	STORE_GONE_POOLS_MAX = 256, /* told and gone empty: rosters do not bring them back */
	/* Beyond these an object is left out: its node is not whole, and the log says so. */
	STORE_OBJECTS_MAX = 1000000,
	STORE_NODE_OBJECTS_MAX = 50000,
	STORE_NODE_BYTES_MAX = 64 << 20, /* that the objects of one node take */
	STORE_CLAIMS_MAX = 65536,        /* names that are being made */
	STORE_NODE_CLAIMS_MAX = 4096,
	STORE_TOMBS_MAX = 16384, /* ids taken away and not confirmed; the oldest goes first */
	STORE_CLASSES_MAX = CLASSES_MAX,
	STORE_UUID8 = 8, /* digits of an uuid that ids begin with */
};

struct store;

struct store_segment {
	const char *key, *value;
};

enum store_node_state {
	STORE_NODE_ROSTER,  /* others told of it; this process has never seen it */
	STORE_NODE_JOINING, /* it tells what it has, and can be called */
	STORE_NODE_PRESENT,
	STORE_NODE_ABSENT, /* it was present and has left */
	STORE_NODE_STATES,
};

struct store_node {
	struct list link; /* in the order of ids */
	enum store_node_state state;
	const char *id;
	/* From its Hello; NULL while it is in the roster alone. */
	const char *instance, *address, *version;
	const struct store_segment *topology;
	size_t n_topology;
	int64_t seen_unix; /* of its last report, CLOCK_REALTIME seconds: for people */
	struct list pools; /* struct store_pool */
	unsigned n_pools;
	void *user; /* its channel: route.c's */
	/* private */
	void *joined;           /* its stream: join.c's */
	uint32_t join;          /* counts the Hellos of all nodes: which one is the last of this */
	uint32_t instance_join; /* the first Hello of this instance */
	bool told_all;          /* it was synced once */
	bool vouched;           /* others have told that it has something */
	bool partial;           /* objects of it were left out, for want of room */
	uint32_t partial_join;  /* the join that told the last of them */
	struct list claims;     /* claims.c's */
	unsigned n_claims;
	struct class_answers answers;
};

enum store_pool_state { STORE_POOL_LOADING, STORE_POOL_READY, STORE_POOL_MISSING, STORE_POOL_SICK };

struct store_pool {
	struct list link;            /* of its node */
	struct store_node *node;     /* the last to have it; NULL: nobody had it, it is forgotten */
	char uuid8[STORE_UUID8 + 1]; /* unique: the first to claim it while present has it */
	char uuid[33];               /* "" while it is in the roster alone */
	const char *name, *why;
	enum store_pool_state state;
	uint64_t available_bytes;
	bool forgotten; /* --forget-pool: gone for good */
	size_t count[STORE_KINDS];
	/* private */
	size_t strangers;  /* its snapshots whose volume's id begins with another pool */
	uint32_t told;     /* the join that told it */
	struct list tombs; /* tombs.c's */
	size_t bytes;      /* of the objects */
	struct shelf shelves[STORE_KINDS];
};

struct store_config {
	/* A node is about to be forgotten for want of room. NULL: nobody cares. */
	void (*on_drop)(void *arg, struct store_node *node);
	/* A call of this controller for the name is under way. NULL: none ever is. */
	bool (*is_asked)(void *arg, enum store_kind kind, const char *key);
	void *arg;
};

int store_open(struct store **ret); /* 0 or -ENOMEM */
void store_close(struct store *store);
void store_configure(struct store *store, const struct store_config *config);

/* ---- nodes ---- */

struct store_node *store_node(const struct store *store, const char *id); /* NULL: not known */
/* after NULL: the first. */
struct store_node *store_node_next(const struct store *store, const struct store_node *after);
size_t store_count(const struct store *store, enum store_kind kind); /* of all nodes */
/* It is joined: calls can be made to it. */
static inline bool store_node_here(const struct store_node *node)
{
	return node->state == STORE_NODE_JOINING || node->state == STORE_NODE_PRESENT;
}
/* The nodes that have a segment, absent ones among them, in no order. */
struct store_node *const *store_nodes_with(
	const struct store *store, const char *key, const char *value, size_t *ret_n);

/* A node's Hello. A present node of the same id and instance is replaced (its connection is new);
 * of another instance: ERR_EXISTS, two nodes have one id, until the first is absent. ERR_NO_ROOM:
 * STORE_NODES_MAX. */
int store_join(struct store *store, const char *id, const char *instance, const char *address,
	const char *version, const struct store_segment *topology, size_t n_topology,
	struct store_node **ret, struct err *err);
/* It has told everything: what it did not tell of its ready pools is gone, and so are claims that
 * it did not tell again, unless is_asked(). Pools that it did not tell are away. */
void store_synced(struct store *store, struct store_node *node);
void store_leave(struct store *store, struct store_node *node);
/* Others know of a node with these pools. Nothing, if this process knows better: another node has
 * the pool, or the node is here and the pool was told and went away empty. 0, -ENOMEM, -ENOSPC. */
int store_roster(struct store *store, const char *id, const char *const *uuid8s, size_t n);
/* Changes whenever a roster made of what is known would be another one: pools for which
 * store_pool_in_roster(), by node. */
uint64_t store_roster_version(const struct store *store);

/* ---- pools ---- */

/* ERR_EXISTS: a present node has this pool (one that says MISSING has it not). One of an absent
 * node moves here, with its objects. ERR_INVALID: an uuid of another pool with the same 8 digits.
 * ERR_NO_ROOM: a limit. */
int store_pool_set(struct store *store, struct store_node *node, const char *uuid, const char *name,
	enum store_pool_state state, const char *why, uint64_t available_bytes,
	struct store_pool **ret, struct err *err);
/* The node has it no longer. What was in it stays known, as away; an empty pool is forgotten. */
void store_pool_gone(struct store *store, struct store_pool *pool);
struct store_pool *store_pool(const struct store *store, const char *uuid8); /* NULL: not known */
bool store_uuid8_valid(const char *uuid8);
/* In the order of uuids; after NULL: the first. */
struct store_pool *store_pool_next(const struct store *store, const struct store_pool *after);
/* Its node is joined and has told it since: calls for it can be made there. */
bool store_pool_here(const struct store_pool *pool);
/* It holds something, or may soon since its node has names that are being made, or nobody has told
 * yet whether it does. */
bool store_pool_in_roster(const struct store_pool *pool);
/* --forget-pool: known from the start, whether a node brings it or not. A node that brings it takes
 * it out of forgetting, and the log says so. 0, -ENOMEM, -EINVAL. */
int store_forget(struct store *store, const char *uuid8);

/* ---- objects ---- */

/* What the node says. Copies all. An id that was taken away by store_object_remove() and is not
 * confirmed yet is not added again (a report may be older than a delete's answer). Another of the
 * same kind and key in the pool goes: the key is the name of its file. One id in two pools is the
 * object that has moved more often, whatever the order in which they are told.
 *
 * ERR_INVALID: the id is none, or the pool another node's; a text is too long. ERR_NO_ROOM: memory,
 * or a limit: then store_node_partial(). */
int store_object_tell(struct store *store, struct store_node *node, const struct object_text *text,
	struct err *err);
/* The same of an object that is where it was; a new one is in the pool of its id. */
int store_object_set(struct store *store, struct store_node *node, enum store_kind kind,
	const char *id, const uint8_t *entry, size_t entry_len, const uint8_t *health,
	size_t health_len, const char *source_id, struct err *err);
/* What the node has told since it joined is not all in the store: there are limits. */
static inline bool store_node_partial(const struct store_node *node)
{
	return node->partial && node->partial_join == node->join;
}
/* The node says that it is gone. Nothing, if another node has it, or had it when it was deleted. */
void store_object_gone(struct store *store, const struct store_node *node, const char *id);
/* A delete was answered: gone, whatever an older report says. */
void store_object_remove(struct store *store, const char *id);
const struct store_object *store_object(const struct store *store, const char *id);
/* By name: the object that has the key (pool/record.h's record_key(), which the caller computes).
 * Several: one of a present node first. */
const struct store_object *store_object_by_key(
	const struct store *store, enum store_kind kind, const char *key);

/* All that have the key, in no order; *at is 0 before the first. NULL: no more. */
const struct store_object *store_object_same(
	const struct store *store, enum store_kind kind, const char *key, size_t *at);

/* Its pool's digits and the rest of its id: the order of lists. */
void store_place(const struct store_object *object, char ret_place[RECORD_ID_MAX]);

/* All of a kind, in the order of their places. */
struct store_walk {
	struct store *store;
	enum store_kind kind;
	/* A pool's digits: only pools are walked that may have snapshots of volumes whose ids begin
	 * so. NULL: all */
	const char *source;
	/* private */
	size_t pool, item;
};
/* Begins behind a place; "": at the first. The walk is good until something is set or removed. */
void store_walk_begin(
	struct store_walk *walk, struct store *store, enum store_kind kind, const char *after);
const struct store_object *store_walk_next(struct store_walk *walk); /* NULL: no more */

/* ---- names that are being made ---- */

/* Gives the name to the node until its object is told, or store_name_release(). ERR_EXISTS with
 * *ret_node: another has it, finished or not. ERR_NO_ROOM: a limit. */
int store_name_claim(struct store *store, enum store_kind kind, const char *key,
	struct store_node *node, struct store_node **ret_node, struct err *err);
void store_name_release(struct store *store, enum store_kind kind, const char *key);
/* The node has released it, and keeps it: a create that is on its way there may be a later one than
 * what is over. Until it is claimed again. */
void store_name_over(struct store *store, enum store_kind kind, const char *key);
bool store_name_is_over(const struct store *store, enum store_kind kind, const char *key);
/* Who makes it; NULL: it was not claimed, or has been told since. */
struct store_node *store_name_maker(
	const struct store *store, enum store_kind kind, const char *key);
/* Who makes it or has it, one that is present first; NULL: nobody that is known. */
struct store_node *store_name(const struct store *store, enum store_kind kind, const char *key);

/* ---- GetCapacity ---- */

/* The class of a packed request without topology; it is made if need be, and *ret_new says that the
 * nodes have to be told. 0, -ENOMEM, -EMSGSIZE (CLASS_REQUEST_MAX). */
int store_class(struct store *store, const uint8_t *request, size_t len, uint32_t *ret_class,
	bool *ret_new);
/* The packed requests of all classes, for a node that joins: i below STORE_CLASSES_MAX. False:
 * there is no class at i. */
bool store_class_at(const struct store *store, unsigned i, uint32_t *ret_class,
	const uint8_t **ret_request, size_t *ret_len);
/* Counts the classes that were made; that of a class itself. A node that was told at a count lacks
 * the classes that came later. */
uint32_t store_class_rounds(const struct store *store);
static inline uint32_t store_class_round(uint32_t class)
{
	return class / STORE_CLASSES_MAX;
}
/* 0, -ENOMEM, -EMSGSIZE (CLASS_ANSWER_MAX). An answer for a class that is no more is dropped. */
int store_capacity_set(struct store *store, struct store_node *node, uint32_t class,
	const uint8_t *response, size_t len);
/* NULL: the node has not said. */
const uint8_t *store_capacity(
	const struct store *store, const struct store_node *node, uint32_t class, size_t *ret_len);

/* ---- who is missing ---- */

/* Time enough has passed for nodes to dial a controller that has just started: until then nobody
 * knows who is missing, whatever rosters say, which may be old. join.c says so. */
void store_settle(struct store *store);
/* Everybody that is known is here or has been, with all its pools: lists are whole, and a name that
 * is not known is nobody's. Else ERR_UNAVAILABLE naming a node that this process has never seen,
 * that still tells, that came without a pool or that has more than is taken, or that none has
 * joined yet, and the remedy. */
int store_whole(struct store *store, struct err *err);

/* ---- for metrics ---- */

struct store_stats {
	size_t nodes[STORE_NODE_STATES];
	size_t pools, pools_away, pools_forgotten;
	size_t objects[STORE_KINDS];
	size_t duplicates; /* objects whose name another pool has as well */
	size_t claims, tombs, classes;
	size_t object_bytes; /* what they take, without the memory allocator's own */
};
void store_stats(const struct store *store, struct store_stats *ret);
size_t store_duplicates(const struct store *store);

#endif
