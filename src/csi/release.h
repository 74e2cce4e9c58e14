/* SPDX-License-Identifier: Apache-2.0 */
/* NodeUnpublishVolume and NodeUnstageVolume: what they have in hand, and whose it is
 * (release_find.c). */
#ifndef RINGVOL_CSI_RELEASE_H
#define RINGVOL_CSI_RELEASE_H

#include "csi/removal.h"
#include "csi/volume_op.h"

struct release {
	struct volume_op n;
	bool unstage; /* else unpublish */
	/* The device goes with the mount: by an unstage, and by the last unpublish of what is
	 * published without staging. */
	bool detaches;
	bool deletes, exports; /* an inline volume ends; other nodes use its device, which stays */
	struct csi_removal removal;
	const char *path;
	const char *field;
	struct err
		away; /* why the volume is not known, while a pool that may have it is not here */
	/* What is mounted at the path. */
	enum { AT_NOTHING, AT_OURS, AT_LEFT, AT_STRANGE } at;
	struct backend_dev mine; /* attached: the volume's device, as the kernel has it */
	struct node_owner owner;
	struct node_others others;
	bool all_others; /* of the volume's device; else the one that memory knows of first */
	struct mnt_on_req on;
	struct mnt_unmount_req unmount;
	enum { UNMOUNT_FIRST, UNMOUNT_WAITS, UNMOUNT_LAST } attempt;
	char look_key[HELPER_KEY_BYTES];
};

#define release_of(op_ptr) container_of(volume_op_of(op_ptr), struct release, n)

/* NULL: nothing is known of it, or it is not known itself. */
static inline struct node_volume *release_state(const struct release *r)
{
	return r->n.volume == NULL ? NULL : node_volume_find(r->n.volume);
}

/* Steps: whose is the mount at the path? */
bool release_owner_done(struct op *op);
int release_owner_run(struct op *op);
int release_owner_end(struct op *op, int res);
/* Of what is detached: where is the volume's device? */
bool release_device_done(struct op *op);
int release_device_run(struct op *op);
int release_device_end(struct op *op, int res);

#endif
