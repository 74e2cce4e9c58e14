/* SPDX-License-Identifier: Apache-2.0 */
#include "csi/own_use.h"

#include "csi/messages.h"
#include "pool/index.h"

#include <errno.h>

Csi__V1__VolumeCapability *csi_own_capability(bool block)
{
	static Csi__V1__VolumeCapability__AccessMode mode =
		CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__INIT;
	static Csi__V1__VolumeCapability__MountVolume mount =
		CSI__V1__VOLUME_CAPABILITY__MOUNT_VOLUME__INIT;
	static Csi__V1__VolumeCapability__BlockVolume device =
		CSI__V1__VOLUME_CAPABILITY__BLOCK_VOLUME__INIT;
	static Csi__V1__VolumeCapability of_mount = CSI__V1__VOLUME_CAPABILITY__INIT,
					 of_block = CSI__V1__VOLUME_CAPABILITY__INIT;
	mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_MULTI_WRITER;
	of_mount.access_mode = of_block.access_mode = &mode;
	of_mount.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT;
	of_mount.mount = &mount;
	of_block.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK;
	of_block.block = &device;
	return block ? &of_block : &of_mount;
}

const char *csi_own_id(
	struct op *op, struct arena *arena, const struct pool_object *volume, const char *name)
{
	char id[RECORD_ID_MAX];
	if (volume->rec == NULL) {
		op_fail(op, ERR_DATA_LOSS,
			"volume %s is quarantined in pool %s: %s; see ringvol check", name,
			pool_name(volume->pool), volume->why);
		return NULL;
	}
	pool_object_id(volume, id);
	const char *kept = arena_strdup(arena, id);
	if (kept == NULL)
		op_fail(op, ERR_NO_ROOM, "out of memory");
	return kept;
}

int csi_own_stage(struct csi_own_call *call, const struct csi_own_use *use)
{
	Csi__V1__NodeStageVolumeRequest req = CSI__V1__NODE_STAGE_VOLUME_REQUEST__INIT;
	if (use->id == NULL)
		return -ENOENT;
	req.volume_id = csi_bytes(use->id);
	req.staging_target_path = csi_bytes(use->stage_path);
	req.volume_capability = csi_own_capability(use->block);
	return csi_own_call_run(call, "/csi.v1.Node/NodeStageVolume", &req.base);
}

int csi_own_publish(struct csi_own_call *call, const struct csi_own_use *use)
{
	Csi__V1__NodePublishVolumeRequest req = CSI__V1__NODE_PUBLISH_VOLUME_REQUEST__INIT;
	if (use->id == NULL)
		return -ENOENT;
	req.volume_id = csi_bytes(use->id);
	if (use->staged)
		req.staging_target_path = csi_bytes(use->stage_path);
	req.target_path = csi_bytes(use->target_path);
	req.volume_capability = csi_own_capability(use->block);
	return csi_own_call_run(call, "/csi.v1.Node/NodePublishVolume", &req.base);
}

int csi_own_unpublish(struct csi_own_call *call, const struct csi_own_use *use)
{
	Csi__V1__NodeUnpublishVolumeRequest req = CSI__V1__NODE_UNPUBLISH_VOLUME_REQUEST__INIT;
	if (use->id == NULL)
		return -ENOENT;
	req.volume_id = csi_bytes(use->id);
	req.target_path = csi_bytes(use->target_path);
	return csi_own_call_run(call, "/csi.v1.Node/NodeUnpublishVolume", &req.base);
}

int csi_own_unstage(struct csi_own_call *call, const struct csi_own_use *use)
{
	Csi__V1__NodeUnstageVolumeRequest req = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	if (use->id == NULL)
		return -ENOENT;
	req.volume_id = csi_bytes(use->id);
	req.staging_target_path = csi_bytes(use->stage_path);
	return csi_own_call_run(call, "/csi.v1.Node/NodeUnstageVolume", &req.base);
}
