/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is on this node, as ringvol.v1.Inspect has it: asked of the driver, or read from the
 * pools where none answers. One arena holds all of it.
 */
#ifndef RINGVOL_TOOLS_INVENTORY_H
#define RINGVOL_TOOLS_INVENTORY_H

#include "base/arena.h"
#include "base/err.h"
#include "inspect.pb-c.h"
#include "pool/record.h"
#include "tools/grpc_client.h"

#include <stdbool.h>

struct inventory_list {
	const ProtobufCMessage **at;
	size_t count, cap;
};

struct inventory {
	struct arena *arena;
	bool offline; /* read from the pools: no driver, operations or I/O, and only what records
		       * and devices say of conditions */
	const Ringvol__V1__Driver *driver; /* NULL: not asked for, or offline */
	/* Messages of the type named. */
	struct inventory_list pools, operations, volumes, borrowed, snapshots, quarantined;
	struct inventory_list nodes; /* ClusterNode: a controller has answered */
};

/* Zeroed *ret is filled; free it in every case. request NULL: all. 0 or a negative errno as
 * grpc_client_call(). */
int inventory_ask(struct inventory *ret, struct grpc_client *client,
	const Ringvol__V1__ListRequest *request, struct err *err);
void inventory_free(struct inventory *inventory);
/* 0 or -ENOMEM. */
int inventory_add(struct inventory_list *list, const ProtobufCMessage *message);

/* What a volume of another node is called here: its name, or the hash of that, as the id has it.
 * After a restart of the driver its tag. */
const char *inventory_borrowed_name(const Ringvol__V1__Borrowed *b, char ret_key[RECORD_KEY_MAX]);

struct inventory_pool {
	const char *name, *path;
};
/* Reads these pools without locking or changing them. A pool that cannot be read is in the answer
 * with its state and why. 0 or -ENOMEM. */
int inventory_read(struct inventory *ret, const struct inventory_pool *pools, unsigned count);

/* Strings of the messages; "" when not set. The unpacked ones end with NUL like ours. */
static inline const char *inventory_str(ProtobufCBinaryData s)
{
	return s.data == NULL ? "" : (const char *)s.data;
}

#endif
