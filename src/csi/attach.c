/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refusals by attachments. A driver without --attach is asked for no attachment and can end none:
 * those of the own node then mean nothing, and those of other nodes still keep the volume from
 * being used in two places.
 */
#include "csi/attach.h"

#include <string.h>

static const struct attachment *another_nodes(
	const struct csi *csi, const struct pool_object *volume)
{
	const struct attachments *a = volume->attachments;
	for (unsigned i = 0; a != NULL && i < a->count; i++)
		if (strcmp(a->at[i].node, csi->config.node_id) != 0)
			return &a->at[i];
	return NULL;
}

static const char *remedy(const struct csi *csi)
{
	return csi->config.attach ? "ControllerUnpublishVolume ends that"
				  : "ControllerUnpublishVolume ends that, with --attach";
}

int csi_attach_check_use(const struct csi *csi, const struct pool_object *volume,
	struct csi_access *access, struct err *err)
{
	const struct attachment *its = attachments_find(volume->attachments, csi->config.node_id);
	const struct attachment *other = another_nodes(csi, volume);
	if (its != NULL && (csi->config.attach || other != NULL))
		access->read_only |= its->read_only;
	if (its != NULL || other == NULL)
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"volume %s is attached to node %.64s, and not to this one, %.64s; %s",
		volume->rec->name, other->node, csi->config.node_id, remedy(csi));
}

int csi_attach_check_free(const struct csi *csi, const struct pool_object *volume, struct err *err)
{
	const struct attachment *other = another_nodes(csi, volume);
	if (other == NULL && csi->config.attach)
		other = attachments_find(volume->attachments, csi->config.node_id);
	if (other == NULL)
		return 0;
	return err_set(err, ERR_PRECONDITION, "volume %s is in use: attached to node %.64s; %s",
		volume->rec->name, other->node, remedy(csi));
}

const struct attachment *csi_attach_own(const struct csi *csi, const struct pool_object *volume)
{
	const struct attachment *its = attachments_find(volume->attachments, csi->config.node_id);
	return its != NULL && its->export[0] == '\0' ? its : NULL;
}
