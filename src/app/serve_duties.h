/* SPDX-License-Identifier: Apache-2.0 */
/* What a driver does with its volumes by itself. */
#ifndef RINGVOL_SERVE_DUTIES_H
#define RINGVOL_SERVE_DUTIES_H

#include "app/serve_options.h"
#include "csi/csi.h"

/* 0 or -errno. node_close() ends them. */
int serve_duties_open(struct node *node, const struct serve_options *options);

/* Volumes of other nodes: finds those of earlier runs, and has leftovers looked for. Blocking, for
 * as long as the device mapper and sysfs take. What fails is logged. */
void serve_duties_borrow(struct csi *csi, const struct serve_options *options);

#endif
