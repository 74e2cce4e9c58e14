/* SPDX-License-Identifier: Apache-2.0 */
/* It fails where the node is away, or for want of memory. An answer that cannot be read
 * is none. */
#include "controller/departed.h"

#include "cluster.pb-c.h"
#include "controller/scan.h"

#include <string.h>

int departed_call(struct forward *f, struct store_node *node, const char *path,
	const ProtobufCMessage *request, struct err *err)
{
	uint8_t *data = arena_alloc(f->arena, protobuf_c_message_get_packed_size(request) + 1);
	if (data == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	return forward_call(f, node, path, data, protobuf_c_message_pack(request, data), err);
}

int departed_ask(struct forward *f, struct store_node *node, const char *id, struct err *err)
{
	Ringvol__V1__GetDepartureRequest request = RINGVOL__V1__GET_DEPARTURE_REQUEST__INIT;
	request.volume_id = (ProtobufCBinaryData){strlen(id), (uint8_t *)(uintptr_t)id};
	return departed_call(f, node, "/ringvol.v1.Member/GetDeparture", &request.base, err);
}

int departed_drop(struct forward *f, struct store_node *node, const char *id, struct err *err)
{
	Ringvol__V1__DropDepartureRequest request = RINGVOL__V1__DROP_DEPARTURE_REQUEST__INIT;
	request.volume_id = (ProtobufCBinaryData){strlen(id), (uint8_t *)(uintptr_t)id};
	return departed_call(f, node, "/ringvol.v1.Member/DropDeparture", &request.base, err);
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
