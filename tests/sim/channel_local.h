/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for rpc/channel.c: a channel that ends in a registry of the same process, on the same
 * simulated ring. A message is delivered in a turn of its own, two wait at most, and a test may cut
 * the connection or change what is delivered.
 */
#ifndef RINGVOL_TESTS_CHANNEL_LOCAL_H
#define RINGVOL_TESTS_CHANNEL_LOCAL_H

#include "rpc/channel.h"

enum channel_fate { FATE_DELIVER, FATE_CUT };

extern struct channel_local {
	struct grpc_registry *registry; /* NULL: nobody answers */
	/* As whom calls are made; role LOCAL unless it is set. */
	struct grpc_peer peer;
	/* Called before each message, which it may change (a copy). NULL: all are delivered. */
	enum channel_fate (*on_message)(const char *path, uint8_t *data, size_t len);
	unsigned calls, messages; /* out */
	char last_address[64], last_peer[128];
	const struct grpc_registry *last_registry;
} channel_local;

#endif
