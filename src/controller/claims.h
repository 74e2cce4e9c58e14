/* SPDX-License-Identifier: Apache-2.0 */
/* Names that nodes are making: who has which. For store.c, which asks objects as well. */
#ifndef RINGVOL_CONTROLLER_CLAIMS_H
#define RINGVOL_CONTROLLER_CLAIMS_H

#include "controller/names.h"
#include "controller/store.h"

struct claims {
	struct names names;
};

void claims_init(struct claims *claims);
/* The node that makes it; NULL: nobody. */
struct store_node *claims_maker(const struct claims *claims, enum store_kind kind, const char *key);
/* Nobody else makes it. 0 also if it is the node's already; ERR_INVALID: no key; ERR_NO_ROOM. */
int claims_make(struct claims *claims, enum store_kind kind, const char *key,
	struct store_node *node, struct err *err);
void claims_release(struct claims *claims, enum store_kind kind, const char *key);
/* store_name_over(), store_name_is_over(). */
void claims_over(struct claims *claims, enum store_kind kind, const char *key);
bool claims_is_over(const struct claims *claims, enum store_kind kind, const char *key);
/* What an earlier process of the node was about to make: it is told, or was undone. And what this
 * one has not told again since it joined, unless it was asked for it just now. */
void claims_drop_old(
	struct claims *claims, struct store_node *node, const struct store_config *config);
void claims_drop_all(struct claims *claims, struct store_node *node);

#endif
