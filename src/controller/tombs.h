/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ids of what was deleted, until the node has confirmed it: an older report may still say that it
 * is there. For store.c.
 */
#ifndef RINGVOL_CONTROLLER_TOMBS_H
#define RINGVOL_CONTROLLER_TOMBS_H

#include "controller/names.h"
#include "controller/store.h"

struct tombs {
	struct names names;
	struct list order; /* the oldest first */
};

void tombs_init(struct tombs *tombs);
bool tombs_have(const struct tombs *tombs, const char *id);
/* join: the store's last. Without memory for it nothing is kept: an older report may then bring
 * the object back, until its node says "gone". */
void tombs_add(struct tombs *tombs, struct store_pool *pool, const char *id, uint32_t join);
/* The pool that it was in; NULL: the id is none of them. */
struct store_pool *tombs_pool(const struct tombs *tombs, const char *id);
void tombs_confirm(struct tombs *tombs, const char *id);
/* What the pool's node has told since this join is newer than what was deleted before. */
void tombs_drop_old(struct tombs *tombs, struct store_pool *pool, uint32_t join);

#endif
