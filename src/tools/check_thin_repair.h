/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol check --repair` does with damaged metadata of a thin pool. */
#ifndef RINGVOL_TOOLS_CHECK_THIN_REPAIR_H
#define RINGVOL_TOOLS_CHECK_THIN_REPAIR_H

#include "tools/check_findings.h"

/* check_repair_fn: thin_repair writes new metadata beside the old ones, which stay until
 * thin_check has found the new ones sound and every image's id is in them. */
int check_thin_repair(struct check *c, const struct check_finding *f);

#endif
