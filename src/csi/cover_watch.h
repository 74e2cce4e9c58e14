/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Covers that are found suspended (cover.h) are gone on with, without anybody who asks: a driver
 * was killed, or a call could not end what it had begun. Each has one of three ends. Its volume is
 * in a pool of this node: TakeVolume puts it over that. The volume's part is finished: that is left
 * to whoever takes it (arrivals.h). Else it is resumed, as the volume is still its owner's.
 */
#ifndef RINGVOL_CSI_COVER_WATCH_H
#define RINGVOL_CSI_COVER_WATCH_H

#include "csi/cover.h"
#include "rpc/grpc_local.h"

enum { CSI_COVERS_MS = 1000 }; /* from one look to the next */

/* Zeroed by the owner. */
struct csi_cover_watch {
	struct csi *csi;
	struct grpc_registry *registry; /* it has ringvol.v1.Member */
	struct ring_timer timer;
	struct grpc_local local; /* a TakeVolume */
	bool calling;
	/* Of one cover: */
	struct op op;
	struct csi_cover cover;
	struct node_lock lock;
	bool locked;
	char key[RECORD_KEY_MAX]; /* the volume's; "": not known yet */
	char pool_uuid8[RECORD_POOL_DIGITS + 1], random[RECORD_POOL_DIGITS + 1];
	int copies_fds[POOLS_MAX];
	unsigned n_pools;
	bool finished;
	unsigned next; /* counts looks: which one it is about */
};

void csi_cover_watch_open(
	struct csi_cover_watch *watch, struct csi *csi, struct grpc_registry *registry);
/* No more looks. One that is zero is legal. */
void csi_cover_watch_close(struct csi_cover_watch *watch);
bool csi_cover_watch_idle(const struct csi_cover_watch *watch);

#endif
