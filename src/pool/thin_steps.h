/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of the operation that keeps a thin pool. For thin_keep.c and thin_retire.c. */
#ifndef RINGVOL_POOL_THIN_STEPS_H
#define RINGVOL_POOL_THIN_STEPS_H

#include "blockio/image_map.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/thin_files.h"
#include "pool/thin_keep.h"

struct thin_keep {
	struct op op;
	struct pool *pool;
	struct ring_timer timer;
	struct list waiting; /* thin_wait */
	bool again;          /* somebody has asked while it ran */
	bool begun;
	bool checks;            /* thin_check runs; the timer says when it has taken long */
	uint64_t idle_since_ns; /* no file had an id, but templates'; 0: one had */
	/* of the jobs, which touch nothing else */
	struct disk *disk;
	int dirfd, templates_fd, trash_fd;
	struct thin_files files;
	struct proc proc;
	/* What was taken for the images: their maps as they are to be. */
	struct image_map metadata, data;
	uint64_t first_bytes;
	struct pool_raw_wait pieces_wait;
	bool grows;
	struct list templates; /* that are deleted */
};

extern const struct op_step thin_steps[];

/* In a step. */
static inline struct thin_keep *thin_keep_of(struct op *op)
{
	return container_of(op, struct thin_keep, op);
}
static inline struct pool_thin *thin_of(const struct thin_keep *k)
{
	return &k->pool->raw->thin;
}

#endif
