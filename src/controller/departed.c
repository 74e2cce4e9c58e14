/* SPDX-License-Identifier: Apache-2.0 */
/* It fails where the node is away, or for want of memory. An answer that cannot be read
 * is none. */
#include "controller/departed.h"

#include "cluster.pb-c.h"
#include "controller/scan.h"
#include "csi/messages.h"

#include <string.h>

int departed_trail_add(struct departed_trail *trail, struct arena *arena,
	const struct store_node *node, struct err *err)
{
	const char *id = arena_strdup(arena, node->id);
	if (id == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	trail->asked[trail->count++] = id;
	return 0;
}

bool departed_trail_has(const struct departed_trail *trail, const struct store_node *node)
{
	for (unsigned i = 0; i < trail->count; i++)
		if (strcmp(trail->asked[i], node->id) == 0)
			return true;
	return trail->count == DEPARTED_HOPS_MAX;
}

int departed_ask(struct forward *f, const struct store_node *node, const char *id, struct err *err)
{
	Ringvol__V1__GetDepartureRequest request = RINGVOL__V1__GET_DEPARTURE_REQUEST__INIT;
	request.volume_id = csi_bytes(id);
	return forward_message(f, node->id, "/ringvol.v1.Member/GetDeparture", &request.base, err);
}

int departed_drop(struct forward *f, const struct store_node *node, const char *id, struct err *err)
{
	Ringvol__V1__DropDepartureRequest request = RINGVOL__V1__DROP_DEPARTURE_REQUEST__INIT;
	request.volume_id = csi_bytes(id);
	return forward_message(f, node->id, "/ringvol.v1.Member/DropDeparture", &request.base, err);
}

static bool is_arriving(const struct buf *answer)
{
	enum { ARRIVING = 3 }; /* of GetDepartureResponse */
	struct scan scan = {answer->data, answer->data + answer->len};
	struct scan_field field;
	bool arriving = false;
	int r;
	while ((r = scan_next(&scan, &field)) > 0)
		if (field.number == ARRIVING && field.wire == SCAN_VARINT)
			arriving = field.value != 0;
	return arriving || r < 0;
}

void departed_read(const struct forward *f, struct departed *ret)
{
	enum { POOL = 1, NODE_ID = 2 }; /* of GetDepartureResponse */
	const struct buf *answer = &f->answer;
	ret->arriving = is_arriving(answer);
	if (scan_string(answer->data, answer->len, POOL, ret->pool, sizeof(ret->pool)) < 0 ||
		scan_string(answer->data, answer->len, NODE_ID, ret->node_id,
			sizeof(ret->node_id)) < 0 ||
		!store_uuid8_valid(ret->pool))
		*ret = (struct departed){.arriving = ret->arriving};
}
