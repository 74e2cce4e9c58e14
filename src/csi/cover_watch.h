/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Covers that are found suspended (cover.h), and whose volumes are still their owners': a driver
 * was killed, or a call could not end what it had begun. They are resumed, without anybody who
 * asks. Those whose volume is here, or may have left its owner, are left to TakeVolume
 * (arrivals.h).
 */
#ifndef RINGVOL_CSI_COVER_WATCH_H
#define RINGVOL_CSI_COVER_WATCH_H

#include "csi/cover.h"

enum { CSI_COVERS_MS = 1000 }; /* from one look to the next */

/* Zeroed by the owner. */
struct csi_cover_watch {
	struct csi *csi;
	struct ring_timer timer;
	bool closed;
	/* private: of the cover that is looked at */
	struct op op;
	struct csi_cover cover;
	struct node_lock lock;
	bool locked, finished;
	char tag[ATTACH_TAG_BYTES];
	char key[RECORD_KEY_MAX]; /* the volume's */
	char pool_uuid8[RECORD_POOL_DIGITS + 1], random[RECORD_POOL_DIGITS + 1];
	int copies_fds[POOLS_MAX];
	unsigned n_pools;
};

void csi_cover_watch_open(struct csi_cover_watch *watch, struct csi *csi);
/* No more looks; one that is under way ends soon. One that is zero is legal. */
void csi_cover_watch_close(struct csi_cover_watch *watch);
bool csi_cover_watch_idle(const struct csi_cover_watch *watch);

#endif
