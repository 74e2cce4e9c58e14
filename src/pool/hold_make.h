/* SPDX-License-Identifier: Apache-2.0 */
/* Making a hold (hold.h). */
#ifndef RINGVOL_POOL_HOLD_MAKE_H
#define RINGVOL_POOL_HOLD_MAKE_H

#include "pool/fill.h"
#include "pool/hold.h"
#include "pool/room.h"

/*
 * admit (room) -> a second name for a snapshot's image, or a file that shares or copies a volume's,
 * made durable and named -> the file that says for whom [commit]. The caller has locked the source,
 * and holds a volume still.
 */
struct pool_hold_make {
	struct op op;
	struct pool_object *source;
	bool share;          /* its extents; else they are copied */
	bool held_briefly;   /* it is in use, and held still for sharing alone */
	bool move;           /* hold.h */
	uint64_t need_bytes; /* room to ask for */
	/* Set grant to "" to have one drawn. */
	const char *node_id, *volume_name, *source_id;
	struct pool_hold *ret_hold;
	/* private */
	struct pool_hold *hold;
	struct pool_admission room;
	struct pool_clone clone;
	int copies_fd, dir_fd, share_fd, fd;
	bool shared, stopped;
	unsigned text_len;
	char *text;
};
void pool_hold_make_init(
	struct pool_hold_make *m, struct reactor *reactor, struct pool_object *source, bool share);
/* Stops a copy, also one that has not begun. */
void pool_hold_make_stop(struct pool_hold_make *m);
void pool_hold_make_free(struct pool_hold_make *m); /* what is left after the end */

#endif
