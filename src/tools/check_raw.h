/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol check` finds in raw pools alone. */
#ifndef RINGVOL_TOOLS_CHECK_RAW_H
#define RINGVOL_TOOLS_CHECK_RAW_H

#include "tools/check_findings.h"

/* The maps of all files, and the devices of volumes. Its objects have been read. */
void check_raw(struct check *c);

/* A file in memory that begins as the volume does and has its size: what a probe of file systems
 * reads. The caller closes it; or -errno. */
int check_raw_head(const struct check *c, const struct pool_found *o);

#endif
