/* SPDX-License-Identifier: Apache-2.0 */
/* `ringvol check` of the thin pool of a raw pool, which has been opened and whose objects have been
 * read: whether its metadata are sound, and know what the files say. */
#ifndef RINGVOL_TOOLS_CHECK_THIN_H
#define RINGVOL_TOOLS_CHECK_THIN_H

#include "disk/thin_tree.h"
#include "tools/check_findings.h"

void check_thin(struct check *c);
/* The first bytes (whole blocks of the pool) of a thin image. 0; -ENODATA: what is wrong is said of
 * the thin pool; another -errno. */
int check_thin_read(const struct check *c, uint32_t id, void *buf, size_t bytes);

#endif
