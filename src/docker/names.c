/* SPDX-License-Identifier: Apache-2.0 */
/* Docker's names, and the volumes and paths that they stand for. Nothing here waits. */
#include "docker/names.h"

#include "node/volume.h"
#include "pool/index.h"
#include "pool/prefixed.h"

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
	return prefixed_name_of(volume, DOCKER_PREFIX);
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
