/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol move` asks a controller: one call at a time, and whether it is worth another. */
#ifndef RINGVOL_TOOLS_MOVE_CALLS_H
#define RINGVOL_TOOLS_MOVE_CALLS_H

#include "tools/grpc_client.h"
#include "tools/inventory.h"

#include <stdbool.h>

enum {
	MOVE_CALL_MS = 60000, /* of one MoveVolume: then it is asked again */
	MOVE_TEXT_MAX = 256,
};

struct move_calls {
	const char *endpoint;
	struct grpc_client *client; /* NULL: not connected */
	bool answered;              /* there is a controller: while it is away it is waited for */
};

struct move_answer {
	char node[MOVE_TEXT_MAX], pool[MOVE_TEXT_MAX];
	bool was_there;
};

enum move_outcome {
	MOVE_DONE,
	MOVE_LATER, /* the reason says why not yet */
	MOVE_NEVER, /* the reason says why not */
};

/* node, pool: "" as the controller chooses. The reason has no endpoint in front. */
enum move_outcome move_ask(struct move_calls *calls, const char *volume, const char *node,
	const char *pool, unsigned ms, struct move_answer *ret, struct err *reason);
/* All nodes, and their volumes and snapshots. The inventory is to be freed in every case. */
enum move_outcome move_list(struct move_calls *calls, struct inventory *ret, struct err *reason);
void move_calls_close(struct move_calls *calls);

#endif
