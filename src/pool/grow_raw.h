/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What growing does beside in a raw pool: more pieces of the disks for the image, in its map and
 * durable before the image has its size. An attempt cut short leaves a map that is longer than the
 * image; the next one takes it as it is. Its end is not given back: the image may have had its new
 * size, and a device of that size, so the end need not be zeros. For grow.c.
 */
#ifndef RINGVOL_POOL_GROW_RAW_H
#define RINGVOL_POOL_GROW_RAW_H

#include "pool/grow.h"

/* True where there are no pieces: in directory pools, and where they are only promised. */
bool grow_pieces_done(struct op *op);

/* The step "map": reads it. */
int grow_map_run(struct op *op);
int grow_map_end(struct op *op, int res);
int grow_map_undo(struct op *op);
/* What is to be taken, by then. */
uint64_t grow_pieces_bytes(const struct pool_grow *g);

/* The step "pieces": takes them, and waits for zeros if need be. */
int grow_pieces_run(struct op *op);
int grow_pieces_end(struct op *op, int res);
int grow_pieces_undo(struct op *op);

/* The step "write_map": durable when it ends. */
int grow_write_map_run(struct op *op);
int grow_write_map_end(struct op *op, int res);

/* What the image's map has. */
uint64_t grow_map_bytes(const struct pool_grow *g);
void grow_pieces_free(struct pool_grow *g);

#endif
