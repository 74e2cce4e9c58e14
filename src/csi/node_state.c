/* SPDX-License-Identifier: Apache-2.0 */
/* The per-volume node state: a device and a short list of mounts, allocated while attached. */
#include "csi/node_state.h"

#include "csi/condition.h"
#include "probes/probes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node_volume *node_volume_find(const struct pool_object *volume)
{
	return volume->node;
}

struct node_volume *node_volume_get(struct pool_object *volume)
{
	if (volume->node == NULL) {
		struct node_volume *node = calloc(1, sizeof(*node));
		if (node == NULL)
			return NULL;
		list_init(&node->mounts);
		list_init(&node->health.link);
		list_init(&node->health.wanted);
		list_init(&node->health.troubled);
		node->volume = volume;
		volume->node = node;
	}
	return volume->node;
}

bool node_volume_has_fs(const struct pool_object *volume)
{
	const struct node_volume *node = node_volume_find(volume);
	return volume->rec->fs != FSIMG_NONE || (node != NULL && node->as_fs);
}

/* Another device has had no errors yet. */
static void health_forget(struct node_volume *node)
{
	struct node_health *health = &node->health;
	list_remove(&health->link);
	list_remove(&health->wanted);
	list_remove(&health->troubled);
	*health = (struct node_health){0};
	list_init(&health->link);
	list_init(&health->wanted);
	list_init(&health->troubled);
}

void node_volume_free(struct node_volume *node)
{
	if (node == NULL)
		return;
	for (struct list *link; (link = list_pop(&node->mounts)) != NULL;)
		free(container_of(link, struct node_mount, link));
	health_forget(node);
	free(node);
}

static bool same_device(const struct backend_dev *a, const struct backend_dev *b)
{
	return a->major == b->major && a->minor == b->minor && a->below_major == b->below_major &&
	       a->below_minor == b->below_minor;
}

void node_volume_set_dev(struct csi *csi, struct node_volume *node, const struct backend_dev *dev)
{
	uint32_t major, minor;
	backend_dev_below(dev, &major, &minor);
	if (node->dev.attached && !same_device(&node->dev, dev))
		node_volume_clear_dev(csi, node);
	node->dev = *dev;
	/* It may be the same number and yet bound anew. */
	node->health.seq = 0;
	node->health.other_file = false;
	if (node->health.gone_ns != 0)
		csi_find(csi, node, CSI_DEVICE_GONE, &node->health.gone_ns, false);
	if (list_empty(&node->health.link))
		list_push(&csi->attached, &node->health.link);
	/* Without memory for it there are no counters, which is no reason to fail. */
	if (csi->probes != NULL)
		(void)probes_track(csi->probes, major, minor, node);
}

void node_volume_clear_dev(struct csi *csi, struct node_volume *node)
{
	uint32_t major, minor;
	backend_dev_below(&node->dev, &major, &minor);
	if (node->dev.attached && csi->probes != NULL)
		probes_untrack(csi->probes, major, minor, node);
	node->dev.attached = false;
	node->detaching = false;
	node->fitted_bytes = 0;
	health_forget(node);
}

void node_volume_settle(struct pool_object *volume)
{
	struct node_volume *node = volume->node;
	if (node != NULL && !node->dev.attached && list_empty(&node->mounts)) {
		node_volume_free(node);
		volume->node = NULL;
	}
}

struct node_mount *node_volume_mount_at(const struct node_volume *node, const char *path)
{
	if (node == NULL)
		return NULL;
	list_for_each (link, &node->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (strcmp(mount->path, path) == 0)
			return mount;
	}
	return NULL;
}

int node_volume_add_mount(
	struct node_volume *node, const char *path, bool read_only, bool single_writer)
{
	struct node_mount *mount = node_volume_mount_at(node, path);
	if (mount == NULL) {
		size_t len = strlen(path) + 1;
		mount = calloc(1, sizeof(*mount) + len);
		if (mount == NULL)
			return -ENOMEM;
		memcpy(mount->path, path, len);
		list_push(&node->mounts, &mount->link);
	}
	mount->read_only = read_only;
	mount->single_writer = single_writer;
	return 0;
}

void node_volume_remove_mount(struct node_volume *node, const char *path)
{
	struct node_mount *mount = node_volume_mount_at(node, path);
	if (mount != NULL) {
		list_remove(&mount->link);
		free(mount);
	}
}

void node_tag(const char *pool_uuid8, const char *random, char ret_tag[64])
{
	snprintf(ret_tag, 64, "ringvol:%s:%s", pool_uuid8, random);
}

bool node_split_tag(const char *tag, char ret_pool[9], char ret_random[9])
{
	return strlen(tag) == strlen("ringvol:") + 8 + 1 + 8 &&
	       sscanf(tag, "ringvol:%8[0-9a-f]:%8[0-9a-f]", ret_pool, ret_random) == 2;
}

void node_volume_tag(const struct pool_object *volume, char ret_tag[64])
{
	node_tag(pool_uuid8(volume->pool), volume->rec->random, ret_tag);
}
