/* SPDX-License-Identifier: Apache-2.0 */
/* What the nodes that a volume is attached to (pool/attachment.h) mean for those who use it. */
#ifndef RINGVOL_CSI_ATTACH_H
#define RINGVOL_CSI_ATTACH_H

#include "csi/access.h"
#include "csi/csi.h"

/* Whether the volume may be used on this node: it is attached to it, or to none at all. What is
 * attached to be read is read-only, whatever the capability says. ERR_PRECONDITION: it is attached
 * to others alone. */
int csi_attach_check_use(const struct csi *csi, const struct pool_object *volume,
	struct csi_access *access, struct err *err);
/* ERR_PRECONDITION: a volume that is attached is not deleted. */
int csi_attach_check_free(const struct csi *csi, const struct pool_object *volume, struct err *err);

/* The volume's attachment to this node as its own, and not by an export; NULL: there is none. */
const struct attachment *csi_attach_own(const struct csi *csi, const struct pool_object *volume);

#endif
