/* SPDX-License-Identifier: Apache-2.0 */
/* Changing which nodes a volume is given to. */
#ifndef RINGVOL_POOL_ATTACH_H
#define RINGVOL_POOL_ATTACH_H

#include "pool/attachment.h"
#include "pool/pool.h"
#include "reactor/op.h"

/* The new attachments, durable, then in memory (pool_object.attachments). A crash leaves the old
 * ones or the new ones. ERR_NO_ROOM: the image's attributes have no room for so many. */
struct pool_attach {
	struct op op;
	struct pool_object *object;
	/* private */
	int dirfd;
	struct attachments *to; /* NULL: none */
	int len, old_len;       /* 0: none */
	char text[ATTACHMENTS_BYTES_MAX], old_text[ATTACHMENTS_BYTES_MAX];
};
/* On the heap, as it is large. Takes over `to` (NULL: none is left). NULL: out of memory, and `to`
 * is freed. */
struct pool_attach *pool_attach_new(
	struct reactor *reactor, struct pool_object *object, struct attachments *to);
/* NULL is legal. */
void pool_attach_free(struct pool_attach *a);

#endif
