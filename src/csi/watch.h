/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch over the volumes in use: keeps node_health true, so that whoever asks is answered from
 * memory. What the kernel pushes is looked at every CSI_WATCH_MS (I/O errors by the probes, devices
 * by uevents): two reads when nothing has happened, however many volumes there are. What it does
 * not push is looked at in turn, CSI_LOOK_MS apart, unless somebody else has just looked.
 */
#ifndef RINGVOL_CSI_WATCH_H
#define RINGVOL_CSI_WATCH_H

#include "csi/csi.h"
#include "mount/mnt.h"

enum {
	CSI_WATCH_MS = 500,
	CSI_LOOK_MS = 60000,      /* each volume: latencies, and its file system if nobody did */
	CSI_ROUND_MS = 2000,      /* those due meanwhile are looked at together */
	CSI_HUNG_LOOK_MS = 10000, /* a volume that hangs */
	CSI_LOOKS_MAX = MNT_MANY_MAX, /* at once */
	CSI_ERRORS_QUIET_MS = 10000,  /* I/O errors are over after this long without a new one */
	CSI_ERRORS_QUIET_MAX_MS = 600000,
	CSI_ERRORS_RELAPSE_MS = 3600000, /* back within this long: twice as long next time */
	CSI_SLOW_MS = 1000,              /* 99th percentile of a minute's reads and writes */
	CSI_SLOW_OPS_MIN = 100,
	CSI_SLOW_BUCKETS = 14, /* of base/hist.h, from that of CSI_SLOW_MS on */
};

/* 0 or -ENOMEM. Starts at once; without uevents (said in the log) devices are looked at in turn. */
int csi_watch_open(struct csi *csi);
/* False while a look is under way; none begins when draining. NULL is legal. */
bool csi_watch_idle(const struct csi_watch *watch);
void csi_watch_close(struct csi *csi); /* when idle, or without a watch */

#endif
