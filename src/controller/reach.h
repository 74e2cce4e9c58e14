/* SPDX-License-Identifier: Apache-2.0 */
/* Channels to nodes: one to each that is here, opened when the first call needs it. */
#ifndef RINGVOL_CONTROLLER_REACH_H
#define RINGVOL_CONTROLLER_REACH_H

#include "controller/controller.h"

/* 0; ERR_UNAVAILABLE: the node is away; -ENOMEM, -EINVAL (its address) with err. */
int reach_node(struct controller *controller, struct store_node *node, struct channel **ret,
	struct err *err);
/* The node has left: its calls end with UNAVAILABLE. Not from inside a callback of the channel. */
void reach_close(struct store_node *node);

#endif
