/* SPDX-License-Identifier: Apache-2.0 */
/* Docker's names, and the volumes and paths that they stand for. Nothing here waits. */
#include "docker/names.h"

#include "node/volume.h"
#include "pool/index.h"

#include <stdio.h>
#include <string.h>

char *docker_volume_name(struct arena *arena, const char *name)
{
	return arena_printf(arena, DOCKER_PREFIX "%s", name);
}

struct pool_object *docker_find(const struct pools *pools, struct arena *arena, const char *name)
{
	const char *whole = docker_volume_name(arena, name);
	return whole != NULL ? pools_find_name(pools, RECORD_VOLUME, whole) : NULL;
}

const char *docker_name_of(const struct pool_object *volume)
{
	const struct record *rec = volume->rec;
	if (rec == NULL || record_is_inline(rec) ||
		strncmp(rec->name, DOCKER_PREFIX, strlen(DOCKER_PREFIX)) != 0)
		return NULL;
	return rec->name + strlen(DOCKER_PREFIX);
}

/* Keys are in the order of bytes: long names, whose keys are hashes, begin with '='; then there are
 * the others. */
static const char *skip_to(const char *key)
{
	if (key[0] < '=')
		return "=";
	return key[0] > '=' && strcmp(key, DOCKER_PREFIX) < 0 ? DOCKER_PREFIX : key;
}

static bool is_past(const struct pool_object *object)
{
	return strncmp(object->key, DOCKER_PREFIX, strlen(DOCKER_PREFIX)) > 0;
}

struct pool_object *docker_next(const struct pool *pool, const struct pool_object *after)
{
	const char *key = after != NULL ? after->key : "";
	for (;;) {
		struct pool_object *next = pool_next_object(pool, RECORD_VOLUME, skip_to(key));
		if (next == NULL || is_past(next))
			return NULL;
		if (docker_name_of(next) != NULL)
			return next;
		key = next->key;
	}
}

char *docker_stage_path(struct arena *arena, const char *mounts, const char *name)
{
	return arena_printf(arena, "%s/%s/stage", mounts, name);
}

char *docker_mount_path(struct arena *arena, const char *mounts, const char *name, const char *id)
{
	return arena_printf(arena, "%s/%s/mounts/%s", mounts, name, id);
}

const char *docker_mounted_at(
	const struct pool_object *volume, const char *mounts, const char *name)
{
	const struct node_volume *node = node_volume_find(volume);
	char below[MNT_PATH_BYTES];
	int len = snprintf(below, sizeof(below), "%s/%s/mounts/", mounts, name);
	if (node == NULL || len >= (int)sizeof(below))
		return NULL;
	list_for_each (link, &node->mounts) {
		const struct node_mount *mount = container_of(link, struct node_mount, link);
		if (strncmp(mount->path, below, (size_t)len) == 0)
			return mount->path;
	}
	return NULL;
}
