/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the objects' images are still there, and whole. */
#ifndef RINGVOL_POOL_PRESENCE_H
#define RINGVOL_POOL_PRESENCE_H

#include "pool/layout.h"
#include "pool/pool.h"

enum { POOL_PRESENCE_MAX = 256 }; /* images asked for in turn by one look */

struct pool_presence_item {
	enum record_kind kind;
	char key[RECORD_KEY_MAX];
	int res;
	uint64_t size_bytes, image_dev, image_ino;
};
struct pool_presence {
	struct pool_presence_item *at;
	size_t count, cap;
	unsigned grown, renewed;
	bool lost; /* there were more */
};
/* The watch's descriptor or -errno. Blocking. */
int pool_presence_watch(int volumes_fd, int snapshots_fd);
/* A look: ask on the loop, look on a thread, apply on the loop. */
void pool_presence_ask(struct pool *pool, struct pool_presence *presence);
void pool_presence_look(struct pool_presence *presence, const int fds[POOL_FDS]);
void pool_presence_apply(struct pool *pool, const struct pool_presence *presence);
void pool_presence_free(struct pool_presence *presence);
/* Notes how an object's image is. */
void pool_image_found(struct pool_object *o, enum pool_image image);

#endif
