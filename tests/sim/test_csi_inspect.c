/* SPDX-License-Identifier: Apache-2.0 */
/* Every field of what `ringvol ls` is told, of one object at a time. */
#include "answers.h"

#include "inspect.pb-c.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KIND(name) RINGVOL__V1__LIST_REQUEST__KIND__##name

static void lists_attached(
	Ringvol__V1__ListRequest__Kind kind, bool attached_only, const char *want)
{
	Ringvol__V1__ListRequest req = RINGVOL__V1__LIST_REQUEST__INIT;
	req.n_kinds = 1;
	req.kinds = &kind;
	req.attached_only = attached_only;
	says(ask("/ringvol.v1.Inspect/List", &req, &ringvol__v1__list_response__descriptor), "%s",
		want);
}

static void lists(Ringvol__V1__ListRequest__Kind kind, const char *want)
{
	lists_attached(kind, false, want);
}

static struct pool_object *object_of(enum record_kind kind, const char *id)
{
	struct pool_object *object;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, kind, id, &object, &err), 0, "%s", err.message);
	return object;
}

static void lists_pool(const char *state, unsigned volumes, unsigned snapshots)
{
	char want[1000], counts[60];
	const struct pool *pool = pools_at(w->pools, 0);
	const struct fs_features *features = &pool->features;
	struct pool_room room;
	Ringvol__V1__ListRequest req = RINGVOL__V1__LIST_REQUEST__INIT;
	Ringvol__V1__ListRequest__Kind kind = KIND(POOLS);
	req.n_kinds = 1;
	req.kinds = &kind;
	const char *got =
		ask("/ringvol.v1.Inspect/List", &req, &ringvol__v1__list_response__descriptor);
	pool_room(pool, &room);
	counts[0] = '\0';
	if (volumes != 0)
		snprintf(counts, sizeof(counts), " volumes=%u snapshots=%u", volumes, snapshots);
	int n = snprintf(want, sizeof(want),
		"pool{name='default' path='%s' uuid8='%s' %s room{capacity_bytes=%" PRIu64
		" free_bytes=%" PRIu64 " ",
		w->pool_path, pool_uuid8(pool), state, room.capacity_bytes, room.free_bytes);
	if (volumes != 0)
		n += snprintf(want + n, sizeof(want) - (size_t)n,
			"provisioned_bytes=%" PRIu64 " allocated_bytes=%" PRIu64 " ",
			room.provisioned_bytes, room.allocated_bytes);
	n += snprintf(want + n, sizeof(want) - (size_t)n,
		"available_bytes=%" PRIu64 " available_thick_bytes=%" PRIu64
		"} features{fs='xfs' reflink=1 ",
		room.available_bytes, room.available_thick_bytes);
	/* Some kernels do not tell. */
	if (features->direct_io)
		n += snprintf(want + n, sizeof(want) - (size_t)n, "direct_io=1 ");
	if (features->dio_align != 0)
		n += snprintf(want + n, sizeof(want) - (size_t)n, "direct_io_align_bytes=%u ",
			(unsigned)features->dio_align);
	snprintf(want + n, sizeof(want) - (size_t)n, "thick=1}%s}", counts);
	says(got, "%s", want);
}

/* Of a volume that is attached: its device and mounts. */
static void lists_in_use(const char *volume, const char *mounts)
{
	char want[1000];
	const struct backend_dev *dev = &node_volume_find(object_of(RECORD_VOLUME, volume_id))->dev;
	cr_assert(dev->attached);
	snprintf(want, sizeof(want),
		"volume{%s device{type='loop' path='%s' major=%u minor=%u%s} %s}", volume,
		dev->path, dev->major, dev->minor, dev->direct_io ? " direct_io=1" : "", mounts);
	lists_attached(KIND(VOLUMES), true, want); /* of what is attached nothing is measured */
}

Test(csi_inspect, of_each_kind, .timeout = 300)
{
	char want[600], volume[400], mounts[200];
	open_world(WORLD_XFS, 1, true);
	lists(KIND(DRIVER), "driver{version='" RINGVOL_VERSION "' driver_name='csi.ringvol.dev' "
			    "node_id='node-1' pid uptime_seconds adopted=1}");
	lists_pool("state=1", 0, 0);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	snprintf(volume, sizeof(volume),
		"id='%s' name='base' pool='default' access_type='block' provisioning='thin' "
		"size_bytes=16777216 block_size=4096 created",
		volume_id);
	snprintf(want, sizeof(want), "volume{%s}", volume);
	lists(KIND(VOLUMES), want);
	lists_attached(KIND(VOLUMES), true, "");
	cr_assert_eq(do_snapshot(), GRPC_OK);
	snprintf(want, sizeof(want),
		"snapshot{id='%s' name='snap' pool='default' source_volume_id='%s' "
		"size_bytes=16777216 allocated_bytes=%" PRIu64 " created shares_extents=1}",
		snapshot_id, volume_id, object_of(RECORD_SNAPSHOT, snapshot_id)->allocated_bytes);
	lists(KIND(SNAPSHOTS), want);
	lists_pool("state=1", 1, 1);
	lists(KIND(QUARANTINED), "");
	lists(KIND(OPERATIONS), "");
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	snprintf(volume + strlen(volume), sizeof(volume) - strlen(volume), " shares_extents=1");
	snprintf(mounts, sizeof(mounts), "mounts{path='%s'}", target_path);
	lists_in_use(volume, mounts);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	lists((Ringvol__V1__ListRequest__Kind)99,
		"3: kinds: holds a kind this driver does not know");
	world_close(w);
}

/* One that is mounted, read-only at its target, and made of another. */
Test(csi_inspect, of_a_copy, .timeout = 300)
{
	char volume[600], mounts[300], base_id[RECORD_ID_MAX];
	open_world(WORLD_XFS, 1, false);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	memcpy(base_id, volume_id, sizeof(base_id));
	take_id(asks_create("copy", FROM_VOLUME), "volume_id", volume_id);
	memcpy(other_id, volume_id, sizeof(other_id));
	memcpy(volume_id, base_id, sizeof(volume_id));
	cr_assert_eq(delete (volume_id), GRPC_OK);
	memcpy(volume_id, other_id, sizeof(volume_id));
	publish_read_only = true;
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	snprintf(volume, sizeof(volume),
		"id='%s' name='copy' pool='default' access_type='mount' fs='ext4' "
		"provisioning='thin' size_bytes=16777216 allocated_bytes=%" PRIu64
		" block_size=4096 created source{kind='volume' id='%s'}",
		volume_id, object_of(RECORD_VOLUME, volume_id)->allocated_bytes, base_id);
	snprintf(mounts, sizeof(mounts), "mounts{path='%s'} mounts{path='%s' read_only=1}",
		staging_path, target_path);
	lists_in_use(volume, mounts);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}
