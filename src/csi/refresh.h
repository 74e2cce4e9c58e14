/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What volumes hold and pools have free, measured anew for somebody who wants to see it. A pool
 * that does not answer keeps nobody waiting longer than they like: a wait can be cancelled at any
 * time.
 */
#ifndef RINGVOL_CSI_REFRESH_H
#define RINGVOL_CSI_REFRESH_H

#include "csi/csi.h"

enum { CSI_REFRESH_AGE_MS = 250 }; /* a measure that is younger will do */

/* Embed it; zero-initialised it waits for nothing. */
struct csi_refresh {
	void (*on_end)(struct csi_refresh *refresh); /* from the loop, once */
	struct list link;
	bool waiting;
};

/* Measures every pool that is ready, or joins the measures under way. False: there is nothing to
 * wait for. */
bool csi_refresh_start(struct csi *csi, struct csi_refresh *refresh);
/* on_end is not called any more. */
void csi_refresh_cancel(struct csi_refresh *refresh);

#endif
