/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume's device for a user that is no stage or publish of this node: an export, or the cover of
 * a volume that has moved here in use (attach/calls.h). Of an encrypted volume that is the device
 * with the ciphertext: who uses it opens it himself. The caller has the volume alone.
 */
#ifndef RINGVOL_NODE_TAKE_DEVICE_H
#define RINGVOL_NODE_TAKE_DEVICE_H

#include "backends/backend.h"
#include "node/owner.h"
#include "pool/thin_keep.h"

struct node;

/* A child operation: the device is attached, if it is not. When it fails, nothing is. */
struct node_take_device {
	struct op op;
	struct node *node;
	struct pool_object *volume;
	struct backend_req dev; /* out: dev.dev */
	bool attached_here;     /* out: it was not */
	/* private */
	const struct backend *backend;
	struct thin_wait thin_wait;
};
void node_take_device_init(
	struct node_take_device *t, struct node *node, struct pool_object *volume);

/*
 * A child operation: a device that nobody uses any more goes. Nothing is done while the volume is
 * mounted anywhere, or a cover stands on its device (attach/calls.h); that no other node has it is
 * the caller's to know.
 */
struct node_let_go {
	struct op op;
	struct node *node;
	struct pool_object *volume;
	/* private */
	const struct backend *backend;
	struct node_others others;
	struct backend_req dev;
};
void node_let_go_init(struct node_let_go *l, struct node *node, struct pool_object *volume);

#endif
