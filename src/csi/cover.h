/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume that moves to the node that uses it, over its owner's export (docs/moving.md). Its cover
 * (attach/calls.h) is suspended while the last of it is copied, and then goes on over the volume's
 * own device here. Who has it mounted or open sees its I/O pause.
 *
 * The kernel keeps a cover suspended, also when the driver dies. While the volume's part is
 * finished (pool/part.h) nobody but TakeVolume lets it go on: what was written after that would be
 * lost if the volume has left its node. One that is found suspended is gone on with: arrivals.h has
 * TakeVolume put it over a volume that is here, and cover_watch.h resumes the others.
 */
#ifndef RINGVOL_CSI_COVER_H
#define RINGVOL_CSI_COVER_H

#include "csi/csi.h"
#include "node/take_device.h"

/* The tag that the id says. False: no id of ours. */
bool csi_cover_tag(const char *id, char ret_tag[ATTACH_TAG_BYTES]);
/* The volume of the id, if it is in use here by a cover; NULL: it is not. */
struct borrowed *csi_cover_of(const struct csi *csi, const char *id);
/* The volume that a suspended cover is to go on over: it is in a pool of this node, and attached to
 * this node. NULL: there is none. */
const struct pool_object *csi_cover_own(const struct csi *csi, const struct borrowed *one);

struct csi_cover {
	struct csi *csi;
	char tag[ATTACH_TAG_BYTES];
	struct attach_volume_req ask;
	struct attach_swap_req swap;
	struct attach_info info;
	struct op op; /* of cover_resume_init() and cover_swap_init() */
	struct node_take_device take;
};

/* The caller has the volume alone. */

/* ---- parts of a step ---- */

/* What is under way has ended afterwards, and nothing more goes through. key: the volume's. */
int cover_suspend(
	struct op *op, struct csi_cover *c, struct csi *csi, struct borrowed *one, const char *key);
int cover_suspend_end(struct op *op, struct csi_cover *c, int res);
/* ---- child operations ---- */

/* It goes on as before. */
void cover_resume_init(struct csi_cover *c, struct csi *csi, const struct borrowed *one);
/* The cover goes on over the device of the volume, which is in a pool of this
 * node now. */
void cover_swap_init(struct csi_cover *c, struct csi *csi, struct pool_object *volume);

#endif
