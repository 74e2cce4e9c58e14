/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol check` looks for in volumes and snapshots. */
#ifndef RINGVOL_TOOLS_CHECK_OBJECTS_H
#define RINGVOL_TOOLS_CHECK_OBJECTS_H

#include "tools/check_findings.h"

/* The pool's objects of a kind, which have been read. */
void check_objects(struct check *c, enum record_kind kind);

#endif
