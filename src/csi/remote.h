/* SPDX-License-Identifier: Apache-2.0 */
/* A content source that lies on another node: its facts, and its bytes as what a build is filled
 * with. For CreateVolume. */
#ifndef RINGVOL_CSI_REMOTE_H
#define RINGVOL_CSI_REMOTE_H

#include "csi/creation.h"
#include "transfer/pull.h"

struct remote {
	bool used; /* there is one, and it is elsewhere */
	bool look; /* the file system in it is to be looked for */
	struct pull pull;
	struct pool_part part;
	struct fsimg_probe probe;                  /* out, with look */
	int (*on_probe)(struct op *op, void *arg); /* with look: may refuse it */
	void *arg;
	struct pool_build *build;
	/* private */
	struct op op;
	int fd;
};

/* A step: asks the source's node what it is, and fills source->rec. Done where there is no
 * offer. */
int remote_open(struct op *op, struct remote *remote, struct csi_creation *creation,
	const struct offer *offer);
int remote_open_end(struct remote *remote, struct csi_creation *creation, int res);
/* Makes its bytes the build's. */
void remote_fill(struct remote *remote, struct csi_creation *creation, enum record_kind kind);
/* Instead of all these where an earlier attempt has made the volume: the source may be offered all
 * the same, and is let go. */
void remote_leftover(struct remote *remote, struct csi_creation *creation);
/* A step, and the undo of remote_open: lets the source go, unless the part is kept for a retry. */
int remote_close(struct op *op, struct remote *remote);
void remote_free(struct remote *remote);

#endif
