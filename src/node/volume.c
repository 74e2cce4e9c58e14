/* SPDX-License-Identifier: Apache-2.0 */
/* The per-volume node state: a device and a short list of mounts, allocated while attached. */
#include "node/volume.h"

#include "node/health.h"
#include "node/limit.h"
#include "node/node.h"
#include "pool/index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node_volume *node_volume_get(struct pool_object *volume)
{
	if (volume->node == NULL) {
		struct node_volume *nv = calloc(1, sizeof(*nv));
		if (nv == NULL)
			return NULL;
		list_init(&nv->mounts);
		list_init(&nv->attached);
		list_init(&nv->wanted);
		list_init(&nv->troubled);
		nv->volume = volume;
		volume->node = nv;
	}
	return volume->node;
}

struct node_volume *node_volume_by_id(const struct node *node, const char *id)
{
	struct pool_object *volume;
	struct err gone = {0};
	if (pools_find_id(node->pools, RECORD_VOLUME, id, &volume, &gone) < 0)
		return NULL;
	struct node_volume *nv = node_volume_find(volume);
	return nv == NULL || !nv->dev.attached ? NULL : nv;
}

bool node_knows_devices(const struct node *node, const struct pool *pool, enum backend_type type)
{
	if (backend_get(type) == NULL)
		return true;
	unsigned i = 0;
	while (pools_at(node->pools, i) != NULL && pools_at(node->pools, i) != pool)
		i++;
	return i < POOLS_MAX && node->adoption[type].pool_known[i] == pool_state_since_ns(pool) + 1;
}

_Static_assert(RECORD_DEVICE_MAX == BACKEND_TYPES - 1, "a record's device is an index");

bool node_knows_volume(const struct node *node, const struct pool_object *volume)
{
	return node_knows_devices(node, volume->pool, volume->rec->device) &&
	       (volume->left_out == 0 ||
		       volume->left_out < node->adoption[volume->rec->device].known_scan ||
		       node_volume_find(volume) != NULL);
}

/* Another device has had no errors yet. */
static void health_forget(struct node_volume *nv)
{
	list_remove(&nv->attached);
	list_remove(&nv->wanted);
	list_remove(&nv->troubled);
	nv->health = (struct node_health){0};
}

void node_volume_free(struct node_volume *nv)
{
	if (nv == NULL)
		return;
	for (struct list *link; (link = list_pop(&nv->mounts)) != NULL;)
		free(container_of(link, struct node_mount, link));
	health_forget(nv);
	node_limit_free(nv->limit);
	free(nv);
}

static bool same_device(const struct backend_dev *a, const struct backend_dev *b)
{
	return a->major == b->major && a->minor == b->minor && a->below_major == b->below_major &&
	       a->below_minor == b->below_minor;
}

void node_volume_set_dev(struct node *node, struct node_volume *nv, const struct backend_dev *dev)
{
	uint32_t major, minor;
	backend_dev_below(dev, &major, &minor);
	if (nv->dev.attached && !same_device(&nv->dev, dev))
		node_volume_clear_dev(node, nv);
	nv->dev = *dev;
	/* It may be the same number and yet bound anew. */
	nv->health.seq = 0;
	nv->health.other_file = false;
	if (nv->health.since_ns[NODE_DEVICE_GONE] != 0)
		node_note(node, nv, NODE_DEVICE_GONE, false);
	if (list_empty(&nv->attached))
		list_push(&node->attached, &nv->attached);
	/* Without memory for it there are no counters, which is no reason to fail. What is bound to
	 * the image tells the kind, whatever is stacked on it. */
	enum probe_kind kind =
		nv->volume->rec->device == BACKEND_DISK ? PROBE_BIOS : PROBE_REQUESTS;
	if (node->probes != NULL)
		(void)probes_track(node->probes, kind, major, minor, &nv->probed);
}

void node_volume_clear_dev(struct node *node, struct node_volume *nv)
{
	uint32_t major, minor;
	backend_dev_below(&nv->dev, &major, &minor);
	if (nv->dev.attached && node->probes != NULL)
		probes_untrack(node->probes, major, minor, &nv->probed);
	nv->dev.attached = false;
	nv->detaching = false;
	nv->exported = false;
	nv->fitted_bytes = 0;
	nv->no_trim = false;
	node_limit_free(nv->limit);
	nv->limit = NULL;
	health_forget(nv);
}

void node_volume_forget(struct pool_object *volume)
{
	struct node_volume *nv = volume->node;
	if (nv != NULL && !nv->dev.attached && list_empty(&nv->mounts)) {
		node_volume_free(nv);
		volume->node = NULL;
	}
}

struct node_mount *node_volume_mount_at(const struct node_volume *nv, const char *path)
{
	if (nv == NULL)
		return NULL;
	list_for_each (link, &nv->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (strcmp(mount->path, path) == 0)
			return mount;
	}
	return NULL;
}

int node_volume_add_mount(
	struct node_volume *nv, const char *path, bool read_only, bool single_writer)
{
	struct node_mount *mount = node_volume_mount_at(nv, path);
	if (mount == NULL) {
		size_t len = strlen(path) + 1;
		mount = calloc(1, sizeof(*mount) + len);
		if (mount == NULL)
			return -ENOMEM;
		memcpy(mount->path, path, len);
		list_push(&nv->mounts, &mount->link);
	}
	mount->major = nv->dev.major;
	mount->minor = nv->dev.minor;
	mount->read_only = read_only;
	mount->single_writer = single_writer;
	return 0;
}

struct node_mount *node_volume_staged(const struct node_volume *nv)
{
	struct node_mount *first = NULL;
	if (nv == NULL)
		return NULL;
	list_for_each (link, &nv->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (mount->staging)
			return mount;
		if (mount->first && nv->marks_read && !nv->whole && !mount->single_writer)
			first = mount;
	}
	return first;
}

const struct node_mount *node_volume_best_mount(const struct node_volume *nv)
{
	const struct node_mount *best = NULL;
	list_for_each (link, &nv->mounts) {
		const struct node_mount *mount = container_of(link, struct node_mount, link);
		if (best == NULL || (best->read_only && !mount->read_only) ||
			(mount->staging && best->read_only == mount->read_only))
			best = mount;
	}
	return best;
}

void node_volume_remove_mount(struct node_volume *nv, const char *path)
{
	struct node_mount *mount = node_volume_mount_at(nv, path);
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
	node_tag(record_id_pool(volume->rec, pool_uuid8(volume->pool)), volume->rec->random,
		ret_tag);
}

bool node_is_formatting(const struct node *node, const char *tag)
{
	list_for_each (link, &node->formatting)
		if (strcmp(container_of(link, struct node_formatting, link)->tag, tag) == 0)
			return true;
	return false;
}

void node_volume_request(const struct pool_object *volume, struct backend_req *ret)
{
	const struct record *rec = volume->rec;
	struct node_volume *node = node_volume_find(volume);
	*ret = (struct backend_req){
		.dirfd = pool_dirfd(volume->pool, RECORD_VOLUME),
		.image = volume->key,
		.block_size = rec->block_size,
		.no_discard = rec->thick,
		.direct_io = pool_features(volume->pool)->direct_io,
		.raw = !node_volume_has_fs(volume),
		.encrypted = rec->encryption != RECORD_PLAIN,
		.limits = rec->limits,
		.lock_fd = pool_lock_fd(volume->pool),
	};
	node_volume_tag(volume, ret->tag);
	if (node != NULL)
		ret->dev = node->dev;
}

void node_request_stored(struct backend_req *req)
{
	req->raw &= !req->encrypted;
	req->encrypted = false;
}

int node_open_image(int dirfd, const struct pool_object *volume)
{
	int fd = openat(dirfd, volume->key, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int node_check_whole(const struct pool_object *object, struct err *err)
{
	if (object->image == POOL_IMAGE_WHOLE)
		return 0;
	return err_set(err, ERR_DATA_LOSS, "%s: its image %s", object->rec->name,
		object->image == POOL_IMAGE_MISSING ? "is not there any more"
						    : "is shorter than its record says");
}
