/* SPDX-License-Identifier: Apache-2.0 */
/* What a pull has made of its part (pool/part.h): how much of it is durable, and the way back to
 * that. */
#ifndef RINGVOL_TRANSFER_PULL_PART_H
#define RINGVOL_TRANSFER_PULL_PART_H

#include "pool/build.h"

struct pull_part {
	/* The owner's. res: 0 or -errno. */
	struct reactor *reactor;
	struct pool_build *build; /* the part's; its lane is the pool's */
	int fd;
	void (*on_marked)(struct pull_part *part, int res);
	void (*on_cut)(struct pull_part *part, int res);
	void *arg;
	/* Bytes from the beginning that are durable, and noted. */
	uint64_t noted_bytes;
	bool marking, cutting; /* under way: one of each at most */
	/* private */
	struct ring_req sync;
	struct work_job note, cut;
	uint64_t upto_bytes, allocated_bytes;
};

/* Makes durable and notes what is written; on_marked() is called later. All before upto_bytes was
 * written, or is a hole. */
void pull_part_mark(struct pull_part *part, uint64_t upto_bytes);
/* Takes away what lies behind noted_bytes, and gives the part its size again (a thick one its
 * blocks, too); on_cut() is called later, or at once if that cannot begin. Nothing is written
 * meanwhile. */
void pull_part_cut(struct pull_part *part);

#endif
