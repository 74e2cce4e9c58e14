/* SPDX-License-Identifier: Apache-2.0 */
/* What a node is asked of volumes that have left it: the calls, and what their answers say. */
#ifndef RINGVOL_CONTROLLER_DEPARTED_H
#define RINGVOL_CONTROLLER_DEPARTED_H

#include "controller/forward.h"

enum {
	DEPARTED_HOPS_MAX = 8, /* of notes that are followed, one to the next */
};

/* Where a volume has gone by a node's note; pool "": none has left it by that id. arriving: then
 * something of it is there, that is no volume yet. */
struct departed {
	char pool[STORE_UUID8 + 1];
	char node_id[STORE_NODE_ID_MAX];
	bool arriving;
};

/* The nodes that were asked, by id, in the client's arena: no way leads to one of them again. */
struct departed_trail {
	const char *asked[DEPARTED_HOPS_MAX];
	unsigned count;
};

/* The node is asked next; it is not on the trail. ERR_NO_ROOM: out of memory. */
int departed_trail_add(struct departed_trail *trail, struct arena *arena,
	const struct store_node *node, struct err *err);
/* The node was asked; or so many were that nobody else is. */
bool departed_trail_has(const struct departed_trail *trail, const struct store_node *node);

/* Member.GetDeparture and DropDeparture, as forward_message(). */
int departed_ask(struct forward *f, const struct store_node *node, const char *id, struct err *err);
int departed_drop(
	struct forward *f, const struct store_node *node, const char *id, struct err *err);
/* The answer to departed_ask(), as f has it. What cannot be read is taken for one that arrives. */
void departed_read(const struct forward *f, struct departed *ret);

#endif
