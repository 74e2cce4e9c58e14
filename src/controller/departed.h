/* SPDX-License-Identifier: Apache-2.0 */
/* What a node is asked of volumes that have left it: the calls, and what their answers say. */
#ifndef RINGVOL_CONTROLLER_DEPARTED_H
#define RINGVOL_CONTROLLER_DEPARTED_H

#include "controller/forward.h"

enum {
	DEPARTED_HOPS_MAX = 8, /* of notes that are followed, one to the next */
	DEPARTED_NODE_MAX = 256,
};

/* Where a volume has gone by a node's note; pool "": none has left it by that id. arriving: then
 * something of it is there, that is no volume yet. */
struct departed {
	char pool[STORE_UUID8 + 1];
	char node_id[DEPARTED_NODE_MAX];
	bool arriving;
};

/* A call of Member at the node, with a packed request: as forward_call(). */
int departed_call(struct forward *f, struct store_node *node, const char *path,
	const ProtobufCMessage *request, struct err *err);
/* Member.GetDeparture and DropDeparture. */
int departed_ask(struct forward *f, struct store_node *node, const char *id, struct err *err);
int departed_drop(struct forward *f, struct store_node *node, const char *id, struct err *err);
/* The answer to departed_ask(), as f has it. What cannot be read is taken for one that arrives. */
void departed_read(const struct forward *f, struct departed *ret);

#endif
