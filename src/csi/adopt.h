/* SPDX-License-Identifier: Apache-2.0 */
/* What adoption.c, which says when devices of earlier runs are looked for, and adopt.c, which
 * looks, have to tell each other. */
#ifndef RINGVOL_CSI_ADOPT_H
#define RINGVOL_CSI_ADOPT_H

#include "csi/csi.h"

/* What came of one look at a backend's devices. */
struct csi_look {
	struct err err;                 /* ERR_OK: all of this is known now */
	uint64_t pool_known[POOLS_MAX]; /* as in csi_adoption */
	unsigned adopted, cleared;
	/* Volumes that were being worked on: another look is needed for them; those of which
	 * nothing was known are listed. */
	bool again;
	uint64_t left_out[CSI_TOUCHED_MAX];
	unsigned left_out_count;
};

/* csi_look_over() follows from the loop. -ENOMEM: it does not. */
int csi_look_start(struct csi_adoption *adoption);
/* Whether what a look under way saw of this object may be over. */
bool csi_look_stale(const struct csi_adoption *adoption, uint64_t hash);
void csi_look_over(struct csi_adoption *adoption, const struct csi_look *look);

/* Thaws, and restores single writers, of a volume that has a node state and that no task has alone;
 * it is held meanwhile. OP_PENDING: on_end follows from the loop, whatever came of it; 0: there is
 * nothing to do; -ENOMEM. */
int csi_marks_start(
	struct csi *csi, struct pool_object *volume, void (*on_end)(void *arg), void *arg);

#endif
