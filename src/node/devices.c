/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns node->no_device_ns: since when which kind of device is used up.
 *
 * Happy path: nothing was refused, and the node can have as many volumes as the backends of its
 * pools have numbers. How it can fail: an attach finds no device. Until one of ours is let go, or
 * NODE_NO_DEVICE_MS are over, the node can have no more of that kind than it has.
 */
#include "node/devices.h"

#include "node/node.h"
#include "node/volume.h"

void node_devices_note(struct node *node, enum backend_type type, enum err_code code)
{
	if (code == ERR_NO_ROOM)
		node->no_device_ns[type] = ring_now_ns(node->reactor->ring);
	else if (code == ERR_OK)
		node->no_device_ns[type] = 0;
}

void node_devices_freed(struct node *node, enum backend_type type)
{
	node->no_device_ns[type] = 0;
}

bool node_devices_left(const struct node *node, enum backend_type type)
{
	uint64_t since_ns = node->no_device_ns[type];
	return since_ns == 0 ||
	       ring_now_ns(node->reactor->ring) - since_ns >= NODE_NO_DEVICE_MS * UINT64_C(1000000);
}

static uint64_t in_use(const struct node *node, enum backend_type type)
{
	uint64_t count = 0;
	list_for_each (link, &node->attached)
		count += container_of(link, struct node_volume, attached)->volume->rec->device ==
			 (int)type;
	return count;
}

/* Volumes of a raw pool have devices of their own; those of other pools may have any other. */
static bool pools_use(const struct node *node, enum backend_type type)
{
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(node->pools, i)) != NULL; i++)
		if (pool_is_raw(pool) == (type == BACKEND_DISK))
			return true;
	return false;
}

static uint64_t most(const struct node *node, enum backend_type type)
{
	const struct backend *backend = backend_get(type);
	struct err why = {0};
	uint64_t used = in_use(node, type);
	if (!pools_use(node, type) || backend_check(type, false, &why) < 0 ||
		!node_devices_left(node, type))
		return used;
	return used > backend->devices_max ? used : backend->devices_max;
}

uint64_t node_devices_in_use(const struct node *node)
{
	uint64_t used = 0;
	for (unsigned type = 0; type < BACKEND_TYPES; type++)
		used += in_use(node, type);
	return used;
}

static uint64_t inline_in_use(const struct node *node)
{
	uint64_t count = 0;
	list_for_each (link, &node->attached)
		count += record_is_inline(
			container_of(link, struct node_volume, attached)->volume->rec);
	return count;
}

int64_t node_allocatable(const struct node *node, int64_t bound)
{
	uint64_t count = 0, used = node_devices_in_use(node);
	for (unsigned type = 0; type < BACKEND_TYPES; type++)
		count += most(node, type);
	if (bound > 0 && count > (uint64_t)bound)
		count = (uint64_t)bound;
	if (count < used)
		count = used;
	count -= inline_in_use(node);
	return count > 0 ? (int64_t)count : 1;
}
