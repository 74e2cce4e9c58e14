/* SPDX-License-Identifier: Apache-2.0 */
/* What two nodes are asked for a copy between them: the source's node grants it, and the other one
 * is offered it. Both answer the same again to a call that is repeated. */
#ifndef RINGVOL_CONTROLLER_BETWEEN_H
#define RINGVOL_CONTROLLER_BETWEEN_H

#include "controller/forward.h"

/* Strings are in the client's arena. */
struct between {
	const char *source_id;   /* a volume or snapshot */
	const char *source_node; /* has it */
	const char *target_node; /* makes something of it */
	const char *volume_name; /* what it makes */
	bool move;               /* the volume is to leave for the target */
	bool any_node;           /* likewise: or for the node that an earlier call has chosen */
};

/* Each begins a call, as forward_message(). */
int between_grant(struct forward *f, const struct between *between, struct err *err);
/* With the grant that f->answer has, which is what between_grant() was answered. ERR_INTERNAL: it
 * is none. */
int between_offer(struct forward *f, const struct between *between, struct err *err);
/* Whom that grant is of: "" if its node does not say. */
void between_granted_to(const struct forward *f, char ret[STORE_NODE_ID_MAX]);

#endif
