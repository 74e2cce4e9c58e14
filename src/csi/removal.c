/* SPDX-License-Identifier: Apache-2.0 */
/* The last step of DeleteVolume, DeleteSnapshot, and of the unpublish of an inline volume. */
#include "csi/removal.h"

enum {
	ATTEMPTS = 7,
	PAUSE_MS = 20, /* doubled each time: 1.3 s in all */
};

int csi_removal_run(struct op *op, struct csi_removal *removal)
{
	pool_remove_init(&removal->remove, op->reactor, removal->object);
	return op_child(op, &removal->remove.op);
}

/* A device just cleared lives on for a moment while somebody looks at it (udev, losetup -a), and
 * the image's lock with it. A snapshot has none. */
int csi_removal_end(struct op *op, struct csi_removal *removal, int res)
{
	if (removal->paused) {
		removal->paused = false;
		return csi_removal_run(op, removal);
	}
	if (res == 0 || op->err.code != ERR_PRECONDITION ||
		removal->object->kind != RECORD_VOLUME || ++removal->attempts == ATTEMPTS)
		return res;
	removal->paused = true;
	return op_sleep(op, (uint64_t)PAUSE_MS << (removal->attempts - 1));
}
