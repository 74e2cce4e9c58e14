/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What volumes hold and pools have free, measured anew for somebody who wants to see it (`ringvol
 * ls`, a scrape). A pool that does not answer keeps nobody waiting longer than they like, and only
 * the first of them that long.
 */
#ifndef RINGVOL_CSI_REFRESH_H
#define RINGVOL_CSI_REFRESH_H

#include "csi/csi.h"

/* One pool's, under way, on csi->measures. */
struct csi_measure {
	struct pool_measure measure;
	struct list link;
	struct csi *csi;
	uint64_t start_ns;
	bool overdue; /* nobody waits for it any more */
};

/* Embed it; zero-initialised it waits for nothing. */
struct csi_refresh {
	void (*on_end)(struct csi_refresh *refresh); /* from the loop, once */
	/* private */
	struct csi *csi;
	struct list link;
	struct ring_timer patience;
	uint64_t start_ns;
	bool waiting;
};

/* Measures every pool that is ready and was last measured more than max_age_ms ago, or joins the
 * measure under way; on_end follows when all have ended, or patience_ms later. False: there is
 * nothing to wait for. */
bool csi_refresh_start(
	struct csi *csi, struct csi_refresh *refresh, uint64_t max_age_ms, uint64_t patience_ms);
/* on_end is not called any more. */
void csi_refresh_cancel(struct csi_refresh *refresh);

#endif
