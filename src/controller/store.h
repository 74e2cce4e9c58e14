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
 * 100,000 volumes on 1,000 nodes take less than 64 MiB of the process: an object is one allocation,
 * its entry as the node packed it, its id a part of that. Objects of a pool are kept in the order of
 * their ids, pools in the order of their uuids, so that a list is a walk and a token is an id.
 */
#ifndef RINGVOL_CONTROLLER_STORE_H
#define RINGVOL_CONTROLLER_STORE_H

#include "base/err.h"
#include "base/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	STORE_NODES_MAX = 5000,
	STORE_POOLS_MAX = 20000,
	STORE_OBJECTS_MAX = 1000000, /* beyond: a node's report is refused, and the log says so */
	STORE_CLASSES_MAX = 64,      /* of GetCapacity; the one asked for longest ago goes first */
};

enum store_kind { STORE_VOLUME, STORE_SNAPSHOT, STORE_KINDS };

struct store;

struct store_segment {
	const char *key, *value;
};

enum store_node_state {
	STORE_NODE_ROSTER,  /* others told of it; this process has never seen it */
	STORE_NODE_JOINING, /* it tells what it has */
	STORE_NODE_PRESENT,
	STORE_NODE_ABSENT, /* it was present and has left */
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
	void *user;        /* its channel: route.c's */
};

enum store_pool_state { STORE_POOL_LOADING, STORE_POOL_READY, STORE_POOL_MISSING, STORE_POOL_SICK };

struct store_pool {
	struct list link; /* of its node */
	struct store_node *node;
	char uuid8[9];    /* unique: the first to claim it while present has it */
	char uuid[33];    /* "" while it is in the roster alone */
	const char *name;
	enum store_pool_state state;
	const char *why;
	uint64_t available_bytes;
	bool forgotten; /* --forget-pool: gone for good */
	size_t count[STORE_KINDS];
	/* private: the objects, in order */
	struct store_object **objects[STORE_KINDS];
	size_t room[STORE_KINDS];
};

struct store_object {
	struct store_pool *pool;
	enum store_kind kind;
	const char *id;
	const char *source_id; /* of a snapshot; "" */
	const uint8_t *entry;  /* a packed Entry of the list it is in */
	size_t entry_len;
	const uint8_t *health; /* a packed VolumeHealth; health_len 0: it is well */
	size_t health_len;
	/* private */
	uint64_t told; /* the join that told it last: what a new one does not tell is gone */
};

int store_open(struct store **ret); /* 0 or -ENOMEM */
void store_close(struct store *store);

/* ---- nodes ---- */

struct store_node *store_node(const struct store *store, const char *id); /* NULL: not known */
struct store_node *store_node_next(const struct store *store, const struct store_node *after);
size_t store_count(const struct store *store, enum store_kind kind); /* of all nodes */

/* A node's Hello. A present node of the same id and instance is replaced (its connection is new);
 * of another instance: ERR_EXISTS, two nodes have one id, until the first is absent. */
int store_join(struct store *store, const char *id, const char *instance, const char *address,
	const char *version, const struct store_segment *topology, size_t n_topology,
	struct store_node **ret, struct err *err);
/* It has told everything: what it did not tell is gone. */
void store_synced(struct store *store, struct store_node *node);
void store_leave(struct store *store, struct store_node *node);
/* Others know of a node with these pools. Nothing, if this process knows better. */
int store_roster(struct store *store, const char *id, const char *const *uuid8s, size_t n);

/* ---- pools ---- */

/* ERR_EXISTS: a present node has this pool. One of an absent node moves here, with its objects. */
int store_pool_set(struct store *store, struct store_node *node, const char *uuid, const char *name,
	enum store_pool_state state, const char *why, uint64_t available_bytes,
	struct store_pool **ret, struct err *err);
void store_pool_gone(struct store *store, struct store_pool *pool);
struct store_pool *store_pool(const struct store *store, const char *uuid8); /* NULL: not known */
struct store_pool *store_pool_next(const struct store *store, const struct store_pool *after);
/* --forget-pool: known from the start, whether a node brings it or not. A node that brings it takes
 * it out of forgetting, and the log says so. */
int store_forget(struct store *store, const char *uuid8);

/* ---- objects ---- */

/* Copies all. An id that was taken away by store_object_remove() and is not confirmed yet is not
 * added again (a report may be older than a delete's answer). ERR_INVALID: the id is none, or of
 * another node's pool. */
int store_object_set(struct store *store, struct store_node *node, enum store_kind kind,
	const char *id, const uint8_t *entry, size_t entry_len, const uint8_t *health,
	size_t health_len, const char *source_id, struct err *err);
/* The node says that it is gone. */
void store_object_gone(struct store *store, const char *id);
/* A delete was answered: gone, whatever an older report says. */
void store_object_remove(struct store *store, const char *id);
const struct store_object *store_object(const struct store *store, const char *id);
/* The first whose id is behind `after` ("": the first). */
const struct store_object *store_object_next(
	const struct store *store, enum store_kind kind, const char *after);
/* By name: the object that has the key (pool/record.h's record_key(), which the caller computes).
 * Several: one of a present node first. */
const struct store_object *store_object_by_key(
	const struct store *store, enum store_kind kind, const char *key);

/* ---- names that are being made ---- */

/* Gives the name to the node until its object is told, or store_name_release(). ERR_EXISTS with
 * *ret_node: another has it, finished or not. */
int store_name_claim(struct store *store, enum store_kind kind, const char *key,
	struct store_node *node, struct store_node **ret_node, struct err *err);
void store_name_release(struct store *store, enum store_kind kind, const char *key);
/* Who makes it or has it; NULL: nobody that is known. */
struct store_node *store_name(const struct store *store, enum store_kind kind, const char *key);

/* ---- GetCapacity ---- */

/* The class of a packed request without topology; it is made if need be, and *ret_new says that the
 * nodes have to be told. */
int store_class(struct store *store, const uint8_t *request, size_t len, uint32_t *ret_class,
	bool *ret_new);
/* The packed requests of all classes, for a node that joins. False: there is no class at i. */
bool store_class_at(const struct store *store, unsigned i, uint32_t *ret_class,
	const uint8_t **ret_request, size_t *ret_len);
int store_capacity_set(struct store *store, struct store_node *node, uint32_t class,
	const uint8_t *response, size_t len);
/* NULL: the node has not said. */
const uint8_t *store_capacity(const struct store *store, const struct store_node *node,
	uint32_t class, size_t *ret_len);

/* ---- who is missing ---- */

/* Everybody that is known is here or has been: lists are whole. Else ERR_UNAVAILABLE naming nodes
 * that this process has never seen, or that none has joined yet, and the remedy. */
int store_whole(const struct store *store, struct err *err);

#endif
