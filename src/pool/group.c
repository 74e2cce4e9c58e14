/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The groups of a pool as memory has them: a vector of pointers sorted by key, found by id, by
 * name, in order. Whether a group is whole is looked up when it is asked, in the index. Nothing
 * here can fail but for want of memory.
 */
#include "pool/group.h"

#include "base/buf.h"
#include "pool/index.h"
#include "pool/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where key is (true) or belongs (false). */
static bool search(const struct pool_groups *groups, const char *key, size_t *ret_at)
{
	size_t low = 0, high = groups->count;
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = strcmp(groups->at[mid]->key, key);
		if (order == 0) {
			*ret_at = mid;
			return true;
		}
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	*ret_at = low;
	return false;
}

struct pool_group *pool_group_find(const struct pool *pool, const char *key)
{
	size_t at;
	return search(&pool->groups, key, &at) ? pool->groups.at[at] : NULL;
}

int pool_group_insert(struct pool *pool, struct pool_group *group)
{
	struct pool_groups *groups = &pool->groups;
	size_t at;
	if (array_grow(&groups->at, &groups->cap, groups->count, sizeof(struct pool_group *)) < 0)
		return -ENOMEM;
	search(groups, group->key, &at);
	memmove(&groups->at[at + 1], &groups->at[at], (groups->count - at) * sizeof(*groups->at));
	groups->at[at] = group;
	groups->count++;
	group->pool = pool;
	return 0;
}

static void take_out(struct pool_group *group, struct list *to)
{
	struct pool_groups *groups = &group->pool->groups;
	size_t at;
	if (!search(groups, group->key, &at) || groups->at[at] != group)
		return;
	groups->count--;
	memmove(&groups->at[at], &groups->at[at + 1], (groups->count - at) * sizeof(*groups->at));
	list_push(to, &group->link);
}

void pool_group_put_aside(struct pool_group *group)
{
	take_out(group, &group->pool->groups.dead);
}

void pool_group_deleted(struct pool_group *group)
{
	take_out(group, &group->pool->groups.unswept);
}

struct pool_group *pool_group_new(const char *key, unsigned members)
{
	struct pool_group *group = calloc(1, sizeof(*group));
	if (group == NULL)
		return NULL;
	list_init(&group->link);
	strcpy(group->key, key);
	group->members = calloc(members, sizeof(*group->members));
	if (group->members != NULL)
		return group;
	free(group);
	return NULL;
}

void pool_group_free(struct pool_group *group)
{
	if (group == NULL)
		return;
	list_remove(&group->link);
	free(group->members);
	free(group);
}

void pool_groups_close(struct pool *pool)
{
	struct pool_groups *groups = &pool->groups;
	for (size_t i = 0; i < groups->count; i++)
		pool_group_free(groups->at[i]);
	list_splice(&groups->dead, &groups->unswept);
	for (struct list *l; (l = list_pop(&groups->dead)) != NULL;)
		pool_group_free(container_of(l, struct pool_group, link));
	free(groups->at);
	groups->at = NULL;
	groups->count = groups->cap = 0;
}

/* ---- asked from above ---- */

struct pool_group *pools_find_group_name(const struct pools *pools, const char *name)
{
	char key[RECORD_KEY_MAX];
	record_key(name, key);
	for (unsigned i = 0; i < pools->count; i++) {
		struct pool_group *group = pool_group_find(pools->at[i], key);
		if (group != NULL && (group->why != NULL || strcmp(group->name, name) == 0))
			return group;
	}
	return NULL;
}

int pools_find_group(
	const struct pools *pools, const char *id, struct pool_group **ret, struct err *err)
{
	struct record_id parsed;
	struct pool *pool;
	int r = pools_find_pool_of_id(pools, "group snapshot", id, &parsed, &pool, err);
	if (r < 0)
		return r;
	struct pool_group *group = pool_group_find(pool, parsed.key);
	if (group == NULL || (group->why == NULL && strcmp(group->random, parsed.random) != 0))
		return err_set(err, ERR_NOT_FOUND, "group snapshot %s does not exist", id);
	if (group->why != NULL)
		return err_set(err, ERR_DATA_LOSS,
			"group snapshot %s in pool %s cannot be told: %s; look at it with ringvol check",
			id, pool->name, group->why);
	*ret = group;
	return 0;
}

struct pool_group *pool_next_group(const struct pool *pool, const char *after_key)
{
	size_t at;
	if (search(&pool->groups, after_key, &at))
		at++;
	return at < pool->groups.count ? pool->groups.at[at] : NULL;
}

void pool_group_id(const struct pool_group *group, char ret_id[RECORD_ID_MAX])
{
	snprintf(ret_id, RECORD_ID_MAX, "%s.%s.%s", group->pool->uuid8, group->key, group->random);
}

struct pool_object *pool_group_member(
	const struct pool_group *group, unsigned i, const char **ret_why)
{
	struct record_id id;
	struct pool_object *o = NULL;
	if (record_id_parse(group->members[i], &id) == 0)
		o = pool_index_find(group->pool, RECORD_SNAPSHOT, id.key);
	if (o != NULL && o->rec == NULL) {
		*ret_why = o->why;
		return NULL;
	}
	if (o == NULL || strcmp(o->rec->random, id.random) != 0) {
		*ret_why = "it is gone";
		return NULL;
	}
	*ret_why = NULL;
	return o;
}

int pool_group_check(const struct pool_group *group, struct err *err)
{
	const char *why;
	for (unsigned i = 0; i < group->count; i++)
		if (pool_group_member(group, i, &why) == NULL)
			return err_set(err, ERR_DATA_LOSS,
				"group snapshot %s in pool %s has lost its member %s: %s; look at it with ringvol check, and delete the group",
				group->name, group->pool->name, group->members[i],
				why != NULL ? why : "damaged");
	return 0;
}
