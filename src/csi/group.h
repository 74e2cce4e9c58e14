/* SPDX-License-Identifier: Apache-2.0 */
/* What the RPCs of GroupController share. */
#ifndef RINGVOL_CSI_GROUP_H
#define RINGVOL_CSI_GROUP_H

#include "base/arena.h"
#include "csi.pb-c.h"
#include "csi/csi.h"
#include "pool/group.h"

#define CSI_GROUP_LOCK "group" /* kind of the lock of a group's key: csi_task_lock_key() */

/* In the arena; NULL: out of memory. The group is whole (pool_group_check). */
Csi__V1__VolumeGroupSnapshot *csi_group_message(
	struct arena *arena, const struct csi *csi, const struct pool_group *group);
/* 0 if the ids are those of all its members, in any order; else ERR_INVALID. */
int csi_group_check_ids(
	const struct pool_group *group, const ProtobufCBinaryData *ids, size_t n, struct err *err);

#endif
