/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking the driver: one Inspect.List, its messages unpacked into the arena (which ends every
 * string with NUL) and sorted into lists. Fails as the call does, or for want of memory.
 */
#include "tools/inventory.h"

#include "base/array.h"

#include <errno.h>
#include <stdlib.h>

static void *unpack_alloc(void *arena, size_t size)
{
	return arena_alloc(arena, size);
}

static void unpack_free(void *arena, void *p)
{
	(void)arena;
	(void)p;
}

int inventory_add(struct inventory_list *list, const ProtobufCMessage *message)
{
	if (array_grow(&list->at, &list->cap, list->count, sizeof(list->at[0])) < 0)
		return -ENOMEM;
	list->at[list->count++] = message;
	return 0;
}

static int on_message(void *arg, const uint8_t *data, size_t len)
{
	struct inventory *inv = arg;
	ProtobufCAllocator allocator = {unpack_alloc, unpack_free, inv->arena};
	Ringvol__V1__ListResponse *item = ringvol__v1__list_response__unpack(&allocator, len, data);
	if (item == NULL)
		return -EPROTO;
	switch (item->item_case) {
	case RINGVOL__V1__LIST_RESPONSE__ITEM_DRIVER:
		inv->driver = item->driver;
		return 0;
	case RINGVOL__V1__LIST_RESPONSE__ITEM_POOL:
		return inventory_add(&inv->pools, &item->pool->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_OPERATION:
		return inventory_add(&inv->operations, &item->operation->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_VOLUME:
		return inventory_add(&inv->volumes, &item->volume->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_SNAPSHOT:
		return inventory_add(&inv->snapshots, &item->snapshot->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_QUARANTINED:
		return inventory_add(&inv->quarantined, &item->quarantined->base);
	default:
		return 0; /* of a later driver */
	}
}

int inventory_ask(struct inventory *ret, struct grpc_client *client,
	const Ringvol__V1__ListRequest *request, struct err *err)
{
	const Ringvol__V1__ListRequest all = RINGVOL__V1__LIST_REQUEST__INIT;
	ret->arena = arena_new(0);
	if (ret->arena == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	return grpc_client_call(client, "/ringvol.v1.Inspect/List",
		request != NULL ? &request->base : &all.base, on_message, ret, err);
}

void inventory_free(struct inventory *inv)
{
	free(inv->pools.at);
	free(inv->operations.at);
	free(inv->volumes.at);
	free(inv->snapshots.at);
	free(inv->quarantined.at);
	arena_unref(inv->arena);
	*inv = (struct inventory){0};
}
