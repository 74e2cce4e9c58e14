/* SPDX-License-Identifier: Apache-2.0 */
/* TakeVolume, for its files: take_volume.c, take_fill.c and take_pass.c. */
#ifndef RINGVOL_CSI_TAKE_H
#define RINGVOL_CSI_TAKE_H

#include "csi/cover.h"
#include "csi/take_text.h"
#include "csi/task.h"
#include "node/lock.h"
#include "pool/arrival.h"
#include "pool/attachment.h"
#include "pool/build.h"
#include "transfer/pull.h"

struct take {
	struct csi_task task;
	const char *name;
	struct pool *pool;
	struct pool_object *object; /* here, found or made */
	struct pool_resync settle;
	struct offer offer;
	struct pull pull;
	struct pool_part part;
	struct pool_build build;
	bool pulling, building, stopped;
	bool finished;         /* its part, by an earlier call or by this one; or it may be */
	struct node_lock lock; /* the volume's, from when it is held still */
	bool locked;
	struct csi_cover cover;
	struct pull_attached attached; /* to this node */
	int fd;
	char key[RECORD_KEY_MAX];
	/* Where an earlier call may have finished one: pools, and their copies/. */
	struct pool *pools[POOLS_MAX];
	int copies_fds[POOLS_MAX];
	unsigned n_pools, found_in;
	/* As it is to be here; the task's. NULL: not known yet. */
	struct record *rec;
	ssize_t text_len;
	char text[POOL_PART_TEXT_MAX];
	struct op fill;
	/* Catching up (take_pass.c). */
	struct op pass;
	unsigned passes;
	uint64_t pass_bytes, before_bytes; /* of the last one, and of the one before */
};

/* The volume is this call's alone: for as long as it takes to hold it still and finish. Nothing if
 * it is already. ERR_UNAVAILABLE: another call works on it. */
int take_lock(struct op *op, struct take *k);
void take_unlock(struct take *k);
/* As the volume is in this pool, made of what it was before. NULL: out of memory. */
struct record *take_record(const struct take *k, const struct record *there);
/* What the part is of (take_pass.c): the image of the offer's grant. */
void take_describe(struct take *k);
/* A step of the fill. The part has the grant's image, and gets what a later one has else, pass by
 * pass, until little is left. */
int take_catch_up_run(struct op *op, struct take *k);
int take_catch_up_end(struct op *op, struct take *k, int res);
/* From here on the part is no image of a grant any more. A pass that is cut may leave what the
 * volume had for a moment, where it has by the next one what the grant's image has: that would not
 * be told as changed. So the part is begun anew then, whatever dies. */
int take_spoil(struct op *op, struct take *k);
int take_spoil_end(struct op *op, const struct take *k, int res);
/* pool_build's fill; arg: a struct take. */
int take_fill(struct op *op, int dst_fd, void *arg);

#endif
