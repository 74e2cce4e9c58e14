/* SPDX-License-Identifier: Apache-2.0 */
/* Put together from the inside out, since a field's length comes before it. It fails by memory. */
#include "controller/roster.h"

#include "controller/scan.h"

#include <string.h>

enum {
	/* Numbers of fields, as in proto/cluster.proto. */
	REPORT_ROSTER = 4,
	ROSTER_NODES = 1,
	NODE_ID = 1,
	NODE_POOLS = 2,
};

/* Nothing, if the node has nothing. */
static int add_node(struct buf *nodes, const struct store_node *node)
{
	struct buf one = {0};
	int r = scan_append(&one, NODE_ID, node->id, strlen(node->id));
	bool any = false;
	list_for_each (l, &node->pools) {
		const struct store_pool *pool = container_of(l, struct store_pool, link);
		if (r < 0 || !store_pool_in_roster(pool))
			continue;
		any = true;
		r = scan_append(&one, NODE_POOLS, pool->uuid8, STORE_UUID8);
	}
	if (r == 0 && any)
		r = scan_append(nodes, ROSTER_NODES, one.data, one.len);
	buf_free(&one);
	return r;
}

int roster_pack(const struct store *store, struct buf *out)
{
	struct buf nodes = {0};
	const struct store_node *node = NULL;
	int r = 0;
	while (r == 0 && (node = store_node_next(store, node)) != NULL)
		r = add_node(&nodes, node);
	if (r == 0) {
		buf_free(out);
		r = scan_append(out, REPORT_ROSTER, nodes.data, nodes.len);
	}
	buf_free(&nodes);
	return r;
}
