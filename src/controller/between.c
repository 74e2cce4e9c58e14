/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/between.h"

#include "cluster.pb-c.h"
#include "controller/scan.h"
#include "csi/messages.h"

#include <string.h>

enum { GRANT = 1, GRANTED_TO = 2, GRANT_DIGITS = 32 }; /* of GrantCopyResponse */

int between_grant(struct forward *f, const struct between *b, struct err *err)
{
	Ringvol__V1__GrantCopyRequest request = RINGVOL__V1__GRANT_COPY_REQUEST__INIT;
	request.source_id = csi_bytes(b->source_id);
	request.node_id = csi_bytes(b->target_node);
	request.volume_name = csi_bytes(b->volume_name);
	request.move = b->move;
	request.any_node = b->any_node;
	return forward_message(
		f, b->source_node, "/ringvol.v1.Member/GrantCopy", &request.base, err);
}

int between_offer(struct forward *f, const struct between *b, struct err *err)
{
	Ringvol__V1__OfferCopyRequest request = RINGVOL__V1__OFFER_COPY_REQUEST__INIT;
	char grant[GRANT_DIGITS + 1];
	const struct store_node *source = store_node(f->controller->store, b->source_node);
	if (source == NULL)
		return err_set(
			err, ERR_UNAVAILABLE, "node %s is not known any more", b->source_node);
	if (scan_string(f->answer.data, f->answer.len, GRANT, grant, sizeof(grant)) < 0 ||
		strlen(grant) != GRANT_DIGITS)
		return err_set(
			err, ERR_INTERNAL, "node %s: its grant of a copy is none", b->source_node);
	request.source_id = csi_bytes(b->source_id);
	request.volume_name = csi_bytes(b->volume_name);
	request.grant = csi_bytes(grant);
	request.node_id = csi_bytes(b->source_node);
	request.address = csi_bytes(source->address);
	return forward_message(
		f, b->target_node, "/ringvol.v1.Member/OfferCopy", &request.base, err);
}

void between_granted_to(const struct forward *f, char ret[STORE_NODE_ID_MAX])
{
	if (scan_string(f->answer.data, f->answer.len, GRANTED_TO, ret, STORE_NODE_ID_MAX) < 0)
		ret[0] = '\0';
}
