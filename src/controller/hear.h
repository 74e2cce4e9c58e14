/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node says, taken apart: everything is checked, as if it came from an enemy, and what holds
 * goes into the store. Lengths, numbers and texts have limits; what a later version says and this
 * one does not know is left out.
 *
 * Messages are decoded into an arena (base/arena.h), whose bytes can be read as strings.
 */
#ifndef RINGVOL_CONTROLLER_HEAR_H
#define RINGVOL_CONTROLLER_HEAR_H

#include "base/buf.h"
#include "cluster.pb-c.h"
#include "controller/store.h"
#include "rpc/grpc.h"

enum {
	HEAR_NODE_ID_MAX = 255, /* bytes, as the others */
	HEAR_TEXT_MAX = 255,    /* driver, version, instance, address, a pool's name */
	HEAR_WHY_MAX = 1024,
	HEAR_SEGMENTS_MAX = 32, /* of a topology */
	HEAR_KEY_MAX = 317,     /* of a segment: a label's prefix, a slash and a name */
	HEAR_NOTICES_MAX = 3,   /* lines of one kind in the log, of one call */
};

/* A pool that the node says it has, and does not get. */
struct hear_refused {
	char uuid8[STORE_UUID8 + 1];
	bool at_another; /* it may be told again when the other node has let go */
};

/* One node's call. Zero-initialised but for what is above refused. */
struct hear {
	struct store *store;
	struct store_node *node;
	/* Whether a create of the name is passed on just now. NULL: none ever is. */
	bool (*is_passed_on)(void *arg, enum store_kind kind, const char *key);
	void *arg;
	struct hear_refused *refused;
	size_t n_refused, refused_cap;
	uint64_t skipped;  /* objects of pools that are not the node's */
	uint64_t left_out; /* objects for which there is no room */
	unsigned noticed;  /* lines about names that are at two nodes */
};

/* Who it is: 0, or ERR_INVALID naming the field; ERR_PRECONDITION: another driver's; ERR_EXISTS as
 * store_join() has it. It has joined then, as h->node; its roster is taken in. peer: its
 * certificate's. */
int hear_hello(struct hear *h, const Ringvol__V1__Hello *hello, const char *driver_name,
	const struct grpc_peer *peer, struct err *err);
/* Whether the certificate is of this node, before anything else is looked at. */
bool hear_peer_may_be(const struct grpc_peer *peer, const char *node_id);
/* Any other message, but for its hello. Verdicts on what it claims are appended to `out` as fields
 * of a ControllerReport. 0; ERR_INVALID, ERR_NO_ROOM: the call is to end. *ret_synced: the node has
 * told all. */
int hear_report(struct hear *h, const Ringvol__V1__NodeReport *report, struct buf *out,
	bool *ret_synced, struct err *err);
/* A pool that was refused, most often because another node had it, can be had now: by the next
 * call, since what is in it was left out of this one. NULL: none. */
const char *hear_freed_pool(const struct hear *h);
void hear_free(struct hear *h);

#endif
