/* SPDX-License-Identifier: Apache-2.0 */
/* Terms of topology: which nodes have all segments of one. Absent nodes are among them. */
#ifndef RINGVOL_CONTROLLER_TERM_H
#define RINGVOL_CONTROLLER_TERM_H

#include "controller/store.h"
#include "csi.pb-c.h"

/* A term without a segment, or NULL, is every node. */
bool term_matches(const Csi__V1__Topology *term, const struct store_node *node);

/* All that match, in no order; good until a node comes or goes. */
struct term_walk {
	const struct store *store;
	const Csi__V1__Topology *term;
	struct store_node *const *some; /* those with the segment that fewest have; NULL: all */
	size_t count, at;
	struct store_node *last; /* of all */
};
void term_begin(struct term_walk *walk, const struct store *store, const Csi__V1__Topology *term);
struct store_node *term_next(struct term_walk *walk); /* NULL: no more */

#endif
