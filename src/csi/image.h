/* SPDX-License-Identifier: Apache-2.0 */
/* A golden image (pool/golden.h) that a class or a pod names as the source of a volume. */
#ifndef RINGVOL_CSI_IMAGE_H
#define RINGVOL_CSI_IMAGE_H

#include "base/arena.h"
#include "csi/csi.h"

/* The id of the image that a volume of this name can be made of: one of this node's pools, or one
 * of another node's that a controller has offered for it. In the arena. ERR_NO_ROOM: there is
 * neither, so that the pod is scheduled anew. Else as pools_find_golden(). */
int csi_image_find(struct csi *csi, struct arena *arena, const char *name, const char *volume_name,
	const char **ret_id, struct err *err);
/* Whether a volume was made of an image of that name. */
bool csi_image_made(const struct record *rec, const char *name);

#endif
