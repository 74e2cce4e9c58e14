/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Golden images (pool/golden.h) by name, as classes name them. A node has one of a name. Several
 * nodes may: whoever imports an image there as well says that it is the same.
 */
#ifndef RINGVOL_CONTROLLER_IMAGE_H
#define RINGVOL_CONTROLLER_IMAGE_H

#include "controller/store.h"

/* Whether the node has it, in a pool that is here. */
bool image_is_on(const struct store *store, const char *name, const struct store_node *node);
/* The one that is copied to this node, which has none. Good as a store_object is. ERR_NO_ROOM:
 * several nodes have one, and which of them is meant nobody says. ERR_NOT_FOUND: nobody has it.
 * ERR_UNAVAILABLE: somebody who is away may have it. */
int image_elsewhere(struct store *store, const char *name, const struct store_node *node,
	const struct store_object **ret, struct err *err);

#endif
