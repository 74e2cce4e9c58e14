/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link found its name taken, and the index knows nobody of that name: the file is left from a
 * link whose answer was lost. It is read, and the index has it from then on. What cannot be read
 * stays unknown, and the next attempt comes here again.
 */
#include "pool/build_learn.h"

#include "pool/build_part.h"
#include "pool/index.h"
#include "pool/private.h"
#include "pool/raw_load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What is read of a name that was taken. */
struct pool_build_learn {
	int dirfd;
	char key[RECORD_KEY_MAX];
	enum record_kind kind;
	struct pool_found found;
	bool raw;
	struct image_map map; /* of a raw pool */
};

static int learn_job(void *arg)
{
	struct pool_build_learn *learn = arg;
	int r = pool_read_object(learn->dirfd, learn->key, learn->kind, &learn->found);
	if (r == 0 && learn->raw && pool_raw_map(learn->dirfd, learn->key, &learn->map) == 0)
		learn->found.allocated_bytes = image_map_bytes(&learn->map);
	learn->found.thin_id = learn->map.thin_id;
	return r;
}

int build_learn_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	b->learn = calloc(1, sizeof(*b->learn));
	if (b->learn == NULL)
		return -ENOMEM;
	b->learn->dirfd = pool_fd_of(b->pool, b->rec->kind);
	b->learn->kind = b->rec->kind;
	b->learn->raw = b->disk != NULL;
	strcpy(b->learn->key, b->rec->key);
	int r = op_work(op, learn_job, b->learn);
	if (r < 0) {
		free(b->learn);
		b->learn = NULL;
	}
	return r;
}

void build_learn_end(struct pool_build *b, int res)
{
	struct pool *pool = b->pool;
	struct pool_found *found = &b->learn->found;
	/* The member of a group counts with its group alone, which the index would know. */
	bool member = found->rec != NULL && found->rec->group[0] != '\0';
	if (res == 0 && pool_loaded(pool) && !member &&
		pool_index_find(pool, found->kind, found->key) == NULL) {
		struct pool_object *o = pool_index_insert(pool, found);
		if (o != NULL)
			o->unsynced = true;
		if (o != NULL && o->rec != NULL)
			pool_family_update(pool, pool_family(o->rec));
		pool_room_stale(pool);
	}
	record_free(found->rec);
	attachments_free(found->attachments);
	free(b->learn);
	b->learn = NULL;
}
