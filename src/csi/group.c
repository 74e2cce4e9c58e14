/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of snapshots as messages, and GetVolumeGroupSnapshot, which is answered from memory. It
 * fails where the group is not whole: never with fewer members than it has.
 */
#include "csi/group.h"

#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"

#include <errno.h>

Csi__V1__VolumeGroupSnapshot *csi_group_message(
	struct arena *arena, const struct csi *csi, const struct pool_group *group)
{
	char id[RECORD_ID_MAX];
	const char *why;
	Csi__V1__VolumeGroupSnapshot *message =
		csi_message_new(arena, &csi__v1__volume_group_snapshot__descriptor);
	Csi__V1__Snapshot **list = arena_alloc(arena, group->count * sizeof(*list));
	pool_group_id(group, id);
	const char *kept = arena_strdup(arena, id);
	if (message == NULL || list == NULL || kept == NULL)
		return NULL;
	for (unsigned i = 0; i < group->count; i++) {
		const struct pool_object *member = pool_group_member(group, i, &why);
		list[i] = member == NULL ? NULL : csi_snapshot_message(arena, csi, member);
		if (list[i] == NULL)
			return NULL;
	}
	message->group_snapshot_id = csi_bytes(kept);
	message->n_snapshots = group->count;
	message->snapshots = list;
	message->creation_time = csi_timestamp(arena, group->created_ns);
	/* A group has its name when all bytes of all members are there. */
	message->ready_to_use = true;
	return message->creation_time == NULL ? NULL : message;
}

static bool is_member(const struct pool_group *group, const char *id)
{
	for (unsigned i = 0; i < group->count; i++)
		if (strcmp(group->members[i], id) == 0)
			return true;
	return false;
}

int csi_group_check_ids(
	const struct pool_group *group, const ProtobufCBinaryData *ids, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		if (!is_member(group, csi_str(ids[i])))
			return err_set(err, ERR_INVALID,
				"snapshot_ids: %s is no member of group snapshot %s",
				csi_str(ids[i]), group->name);
		for (size_t j = 0; j < i; j++)
			if (strcmp(csi_str(ids[i]), csi_str(ids[j])) == 0)
				return err_set(err, ERR_INVALID, "snapshot_ids: %s is given twice",
					csi_str(ids[i]));
	}
	if (n != group->count)
		return err_set(err, ERR_INVALID,
			"snapshot_ids: %zu are given, group snapshot %s has %u members", n,
			group->name, group->count);
	return 0;
}

int csi_get_group(struct csi_query *q)
{
	const Csi__V1__GetVolumeGroupSnapshotRequest *req = q->request;
	Csi__V1__GetVolumeGroupSnapshotResponse *response = q->response;
	struct pool_group *group;
	int r = pools_find_group(q->csi->pools, csi_str(req->group_snapshot_id), &group, &q->err);
	if (r == 0)
		r = csi_group_check_ids(group, req->snapshot_ids, req->n_snapshot_ids, &q->err);
	if (r == 0)
		r = pool_group_check(group, &q->err);
	if (r < 0)
		return r;
	response->group_snapshot = csi_group_message(q->arena, q->csi, group);
	return response->group_snapshot == NULL ? -ENOMEM : 0;
}
