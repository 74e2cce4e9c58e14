/* SPDX-License-Identifier: Apache-2.0 */
/* Where things are at home, and what a client is told when that node is away. */
#ifndef RINGVOL_CONTROLLER_HOME_H
#define RINGVOL_CONTROLLER_HOME_H

#include "base/err.h"
#include "controller/store.h"
#include "rpc/grpc.h"

#include <stdbool.h>

/* 0 if the node can be called. Else ERR_UNAVAILABLE: "<what> is on node N, which ...", with the
 * remedies. uuid8: of the pool that may be gone for good; NULL: that is no remedy. */
int home_check(const struct store_node *node, const char *what, const char *uuid8, struct err *err);

/* The node that has the object of an id; of one that nobody has told, that which has the pool of
 * the id. 0; ERR_UNAVAILABLE: it is away, or not known; ERR_NOT_FOUND: the pool is gone for good,
 * and everybody who may have the object is known. *ret NULL: it is no id of ours, so every node
 * knows as much of it. */
int home_of_id(struct store *store, const char *id, struct store_node **ret, struct err *err);

/* The node that has the key of a name, finished or being made: a create goes there, whatever has
 * changed since. NULL: nobody has it, and everybody who could is known. Else ERR_UNAVAILABLE: a
 * node that is away has it or may have it. */
int home_of_name(struct store *store, enum store_kind kind, const char *key, const char *name,
	struct store_node **ret, struct err *err);

/* Whether a node that answers a create so has begun nothing, or has undone it, if no other call for
 * the name was there before: then the name is free again. Else the node may still be making it, and
 * its reports say what became of it. */
bool home_name_is_free(enum grpc_status status);

/* Any node that can be called; NULL: none is here. */
struct store_node *home_anywhere(const struct store *store);

#endif
