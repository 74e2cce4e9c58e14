/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks on volumes, snapshots and paths: shared, or exclusive for whoever must have the object
 * alone. Nothing ever waits for a lock, so nothing can deadlock: a lock that is in the way is an
 * answer. Tasks take them (csi/task.h); adoption keeps a volume as it is while it looks at it.
 */
#ifndef RINGVOL_NODE_LOCK_H
#define RINGVOL_NODE_LOCK_H

#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>

enum node_lock_mode { NODE_SHARED, NODE_EXCLUSIVE };
enum {
	NODE_LOCK_BYTES = 224,
	NODE_LOCK_SLOTS = 1024,
};

struct node_lock {
	struct list link; /* its slot's */
	enum node_lock_mode mode;
	uint64_t hash;
	char name[NODE_LOCK_BYTES]; /* "volume/<key>", "snapshot/<key>", "path/<hash>" */
	void *owner;                /* the task that has it; NULL: no task */
	const char *what;           /* static, without a task: what is being done meanwhile */
};

/* Every exclusive lock that is released gets a number, and its slot remembers the last one. Objects
 * that share a slot share that answer: it may say "released" of one that was not, and never the
 * other way round. */
struct node_locks {
	uint64_t releases;
	struct node_lock_slot {
		struct list taken;
		uint64_t released;
	} slots[NODE_LOCK_SLOTS];
};

void node_locks_init(struct node_locks *locks);
/* kind: "volume" or "snapshot", with the object's *key* (record_key), so that a create by name and
 * a delete by id meet. */
void node_lock_init(
	struct node_lock *lock, enum node_lock_mode mode, const char *kind, const char *key);
/* A lock taken that is in the way of the one wanted; NULL: none is. */
const struct node_lock *node_lock_conflict(
	const struct node_locks *locks, const struct node_lock *wanted);
/* Nothing is in its way. */
void node_lock_take(struct node_locks *locks, struct node_lock *lock);
void node_lock_release(struct node_locks *locks, struct node_lock *lock);
/* A shared lock on a volume without a task, if nobody has the volume alone; false: somebody has. */
bool node_lock_share_volume(
	struct node_locks *locks, struct node_lock *lock, const char *key, const char *what);
/* Whether somebody has the volume alone, or had it since locks->releases was `since`. */
bool node_lock_alone_since(struct node_locks *locks, const char *key, uint64_t since);

#endif
