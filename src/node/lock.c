/* SPDX-License-Identifier: Apache-2.0 */
/* The locks that are taken, in slots by the hash of their names. */
#include "node/lock.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void node_locks_init(struct node_locks *locks)
{
	locks->releases = 0;
	for (unsigned i = 0; i < NODE_LOCK_SLOTS; i++) {
		list_init(&locks->slots[i].taken);
		locks->slots[i].released = 0;
	}
}

static uint64_t hash_name(const char *name)
{
	uint64_t hash = 0xcbf29ce484222325ULL; /* FNV-1a */
	for (; *name != '\0'; name++)
		hash = (hash ^ (unsigned char)*name) * 0x100000001b3ULL;
	return hash;
}

void node_lock_init(
	struct node_lock *lock, enum node_lock_mode mode, const char *kind, const char *key)
{
	*lock = (struct node_lock){.mode = mode};
	int len = snprintf(lock->name, sizeof(lock->name), "%s/%s", kind, key);
	assert(len > 0 && (size_t)len < sizeof(lock->name));
	(void)len;
	lock->hash = hash_name(lock->name);
}

static unsigned slot_of(const struct node_lock *lock)
{
	return lock->hash % NODE_LOCK_SLOTS;
}

const struct node_lock *node_lock_conflict(
	const struct node_locks *locks, const struct node_lock *wanted)
{
	list_for_each (link, &locks->slots[slot_of(wanted)].taken) {
		const struct node_lock *lock = container_of(link, struct node_lock, link);
		if ((lock->mode != NODE_SHARED || wanted->mode != NODE_SHARED) &&
			lock->hash == wanted->hash && strcmp(lock->name, wanted->name) == 0)
			return lock;
	}
	return NULL;
}

void node_lock_take(struct node_locks *locks, struct node_lock *lock)
{
	list_push(&locks->slots[slot_of(lock)].taken, &lock->link);
}

void node_lock_release(struct node_locks *locks, struct node_lock *lock)
{
	list_remove(&lock->link);
	if (lock->mode == NODE_EXCLUSIVE)
		locks->slots[slot_of(lock)].released = ++locks->releases;
}

bool node_lock_share_volume(
	struct node_locks *locks, struct node_lock *lock, const char *key, const char *what)
{
	node_lock_init(lock, NODE_SHARED, "volume", key);
	lock->what = what;
	if (node_lock_conflict(locks, lock) != NULL)
		return false;
	node_lock_take(locks, lock);
	return true;
}

bool node_lock_alone_since(struct node_locks *locks, const char *key, uint64_t since)
{
	struct node_lock lock;
	node_lock_init(&lock, NODE_SHARED, "volume", key);
	return node_lock_conflict(locks, &lock) != NULL ||
	       locks->slots[slot_of(&lock)].released > since;
}
