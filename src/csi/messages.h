/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of responses. All lie in the arena; NULL means out of memory. Strings are protobuf
 * `bytes` in the generated C (see proto/wire.sed).
 */
#ifndef RINGVOL_CSI_MESSAGES_H
#define RINGVOL_CSI_MESSAGES_H

#include "base/arena.h"
#include "csi.pb-c.h"
#include "csi/csi.h"

#include <string.h>

/* s must live until the reply is sent (static or in the arena). */
static inline ProtobufCBinaryData csi_bytes(const char *s)
{
	return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)s};
}

/* An initialised message of the descriptor's type. */
void *csi_message_new(struct arena *arena, const ProtobufCMessageDescriptor *descriptor);

Csi__V1__Volume *csi_volume_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume);
Csi__V1__Timestamp *csi_timestamp(struct arena *arena, uint64_t unix_ns);
Csi__V1__Snapshot *csi_snapshot_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *snapshot);
/* Of CSI 1.12. */
Csi__V1__VolumeCondition *csi_condition_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume);

/* The node ids that the volume is attached to, or, without --attach, where it is in use; and (1.12)
 * its condition; for the two messages that carry them. */
struct csi_usage {
	size_t n_nodes;
	ProtobufCBinaryData *nodes;
	Csi__V1__VolumeCondition *condition; /* NULL when it is not asked for (1.13) */
};
/* 0 or -ENOMEM. */
int csi_usage_fill(struct arena *arena, const struct csi *csi, const struct pool_object *volume,
	struct csi_usage *ret);

/* What lists have of an object: a ListVolumesResponse.Entry or ListSnapshotsResponse.Entry. */
ProtobufCMessage *csi_list_entry(
	struct arena *arena, const struct csi *csi, const struct pool_object *object);

#endif
