/* SPDX-License-Identifier: Apache-2.0 */
/* Every field of the answers about the driver, volumes and snapshots, and the words of refusals. */
#include "answers.h"

#include "inspect.pb-c.h"
#include "pool/index.h"
#include "pool/private.h"

#include "node/volume.h"
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct record *record_of(enum record_kind kind, const char *id)
{
	struct pool_object *object;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, kind, id, &object, &err), 0, "%s", err.message);
	return object->rec;
}

/* ---- who and what ---- */

static const struct {
	unsigned health;
	bool expands;
	const char *controller, *node; /* the numbers of the capabilities */
} configs[] = {
	{0, true, "1 3 4 5 6 7 9 12 13 14 15", "1 2 3 5"},
	{CSI_HEALTH_1_12, false, "1 3 4 5 6 7 11 12 13 14 15", "1 2 3 4 5"},
	{CSI_HEALTH_1_13, false, "1 3 4 5 6 7 12 13 14 15 16 17", "1 2 3 5 7 8"},
};

/* Of {rpc{type=1}} and so on. */
static void says_types(const char *got, const char *types)
{
	char want[600] = "", number[40];
	size_t len = 0;
	for (const char *p = types; *p != '\0'; p += strspn(p, " ")) {
		size_t n = strcspn(p, " ");
		snprintf(number, sizeof(number), "%scapabilities{rpc{type=%.*s}}",
			len == 0 ? "" : " ", (int)n, p);
		len += (size_t)snprintf(want + len, sizeof(want) - len, "%s", number);
		p += n;
	}
	says(got, "%s", want);
}

Test(csi_answers, capabilities)
{
	Csi__V1__ControllerGetCapabilitiesRequest req =
		CSI__V1__CONTROLLER_GET_CAPABILITIES_REQUEST__INIT;
	Csi__V1__NodeGetCapabilitiesRequest of_node = CSI__V1__NODE_GET_CAPABILITIES_REQUEST__INIT;
	open_world(WORLD_EXT4, 1, true);
	for (unsigned i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
		w->csi->config.health = configs[i].health;
		w->csi->config.controller_expand = configs[i].expands;
		says_types(
			ASK("Controller", ControllerGetCapabilities, controller_get_capabilities),
			configs[i].controller);
		says_types(ask("Node/NodeGetCapabilities", &of_node,
				   &csi__v1__node_get_capabilities_response__descriptor),
			configs[i].node);
	}
	Csi__V1__GroupControllerGetCapabilitiesRequest of_group =
		CSI__V1__GROUP_CONTROLLER_GET_CAPABILITIES_REQUEST__INIT;
	says_types(ask("GroupController/GroupControllerGetCapabilities", &of_group,
			   &csi__v1__group_controller_get_capabilities_response__descriptor),
		"1");
	/* With --attach, and without staging. */
	w->csi->config.attach = true;
	w->csi->config.staging = false;
	w->csi->config.health = 0;
	says_types(ASK("Controller", ControllerGetCapabilities, controller_get_capabilities),
		"1 2 3 4 5 6 7 8 10 12 13 14 15");
	says_types(ask("Node/NodeGetCapabilities", &of_node,
			   &csi__v1__node_get_capabilities_response__descriptor),
		"2 3 5");
	world_close(w);
}

static void asks_capabilities(unsigned services, const char *want)
{
	Csi__V1__GetPluginCapabilitiesRequest req = CSI__V1__GET_PLUGIN_CAPABILITIES_REQUEST__INIT;
	w->csi->config.services = services;
	says(ASK("Identity", GetPluginCapabilities, get_plugin_capabilities), "%s", want);
}

static void asks_node_info(int64_t max_volumes, const char *want)
{
	Csi__V1__NodeGetInfoRequest req = CSI__V1__NODE_GET_INFO_REQUEST__INIT;
	w->csi->config.max_volumes = max_volumes;
	says(ASK("Node", NodeGetInfo, node_get_info), "%s", want);
}

Test(csi_answers, identity)
{
	Csi__V1__GetPluginInfoRequest req = CSI__V1__GET_PLUGIN_INFO_REQUEST__INIT;
	open_world(WORLD_EXT4, 1, true);
	says(ASK("Identity", GetPluginInfo, get_plugin_info),
		"name='csi.ringvol.dev' vendor_version='" RINGVOL_VERSION "'");
	asks_capabilities(CSI_IDENTITY | CSI_NODE | CSI_CONTROLLER,
		"capabilities{service{type=2}} capabilities{volume_expansion{type=1}} "
		"capabilities{service{type=1}}");
	asks_capabilities(CSI_IDENTITY | CSI_SNAPSHOT_METADATA,
		"capabilities{service{type=2}} capabilities{volume_expansion{type=1}} "
		"capabilities{service{type=4}}");
	asks_capabilities(CSI_IDENTITY | CSI_NODE,
		"capabilities{service{type=2}} capabilities{volume_expansion{type=1}}");
	asks_capabilities(CSI_IDENTITY | CSI_NODE | CSI_GROUP,
		"capabilities{service{type=2}} capabilities{volume_expansion{type=1}} "
		"capabilities{service{type=3}}");
	asks_node_info(0, "node_id='node-1' max_volumes_per_node=1048576 " TOPOLOGY);
	asks_node_info(17, "node_id='node-1' max_volumes_per_node=17 " TOPOLOGY);
	w->csi->config.topology[w->csi->config.n_topology++] = (struct csi_segment){"zone", "z1"};
	asks_node_info(17, "node_id='node-1' max_volumes_per_node=17 " TOPOLOGY_ZONED);
	w->csi->config.health = CSI_HEALTH_1_13;
	asks_capabilities(CSI_IDENTITY | CSI_NODE | CSI_CONTROLLER,
		"capabilities{service{type=2}} capabilities{volume_expansion{type=1}} "
		"capabilities{service{type=1}} capabilities{service{type=5}}");
	world_close(w);
}

static void asks_probe(const char *probe, const char *health)
{
	Csi__V1__ProbeRequest req = CSI__V1__PROBE_REQUEST__INIT;
	Ringvol__V1__HealthRequest of_health = RINGVOL__V1__HEALTH_REQUEST__INIT;
	says(ASK("Identity", Probe, probe), "%s", probe);
	says(ask("/ringvol.v1.Inspect/Health", &of_health,
		     &ringvol__v1__health_response__descriptor),
		"%s", health);
}

/* What each life of the pool means to who asks whether the driver lives and serves. */
Test(csi_answers, readiness)
{
	char want[300];
	open_world(WORLD_EXT4, 1, true);
	struct pool *pool = pools_at(w->pools, 0);
	asks_probe("ready{value=1}", "live=1 ready=1");
	pool_enter(pool, POOL_READ_ONLY, "%s", "it cannot be written");
	snprintf(want, sizeof(want),
		"live=1 ready_why='pool default (%s) is sick: it cannot be written'", w->pool_path);
	asks_probe("ready{}", want);
	pool_enter(pool, POOL_MUTE, "%s", "it does not answer");
	snprintf(want, sizeof(want),
		"live_why='it does not answer' "
		"ready_why='pool default (%s) is sick: it does not answer'",
		w->pool_path);
	asks_probe("ready{}", want);
	pool_enter(pool, POOL_AWAY, "%s", "it is gone");
	snprintf(want, sizeof(want), "live=1 ready_why='pool default (%s) is missing: it is gone'",
		w->pool_path);
	asks_probe("ready{}", want);
	pool_enter(pool, POOL_SERVED, "%s", "");
	world_adopt(w);
	asks_probe("ready{value=1}", "live=1 ready=1");
	w->csi->node->draining = true;
	asks_probe("ready{}", "live=1 ready_why='the driver is shutting down'");
	w->csi->node->draining = false;
	world_close(w);
}

/* ---- volumes and snapshots ---- */

enum { ANSWER_BYTES = 1000 };

/* As each answer about it has it; "". */
static char snapshot_line[ANSWER_BYTES];

static void asks_create_snapshot(void)
{
	Csi__V1__CreateSnapshotRequest req = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	req.name = csi_bytes("snap");
	req.source_volume_id = csi_bytes(volume_id);
	const char *got = ASK("Controller", CreateSnapshot, create_snapshot);
	take_id(got, "snapshot_id", snapshot_id);
	const struct record *rec = record_of(RECORD_SNAPSHOT, snapshot_id);
	cr_expect_str_eq(rec->name, "snap");
	snprintf(snapshot_line, sizeof(snapshot_line),
		"snapshot{size_bytes=16777216 snapshot_id='%s' source_volume_id='%s' "
		"creation_time{seconds=%" PRIu64 " nanos=%" PRIu64 "} ready_to_use=1 " TOPOLOGY "}",
		snapshot_id, volume_id, rec->created_ns / 1000000000, rec->created_ns % 1000000000);
	says(got, "%s", snapshot_line);
	says(ASK("Controller", CreateSnapshot, create_snapshot), "%s", snapshot_line);
	Csi__V1__GetSnapshotRequest get = CSI__V1__GET_SNAPSHOT_REQUEST__INIT;
	get.snapshot_id = csi_bytes(snapshot_id);
	says(ask("Controller/GetSnapshot", &get, &csi__v1__get_snapshot_response__descriptor), "%s",
		snapshot_line);
}

static void lists_snapshots(
	const char *of_volume, const char *id, int32_t max, const char *token, const char *want)
{
	Csi__V1__ListSnapshotsRequest req = CSI__V1__LIST_SNAPSHOTS_REQUEST__INIT;
	req.source_volume_id = csi_bytes(of_volume);
	req.snapshot_id = csi_bytes(id);
	req.max_entries = max;
	req.starting_token = csi_bytes(token);
	says(ASK("Controller", ListSnapshots, list_snapshots), "%s", want);
}

static void snapshots(void)
{
	char entry[ANSWER_BYTES + 20];
	static const char negative[] = "3: max_entries: -1 is negative";
	lists_snapshots("", "", 0, "", "");
	asks_create_snapshot();
	snprintf(entry, sizeof(entry), "entries{%s}", snapshot_line);
	lists_snapshots("", "", 0, "", entry);
	lists_snapshots("", "", 1, "", entry);
	lists_snapshots(volume_id, "", 0, "", entry);
	lists_snapshots(volume_id, snapshot_id, 0, "", entry);
	lists_snapshots("", snapshot_id, 1, "", entry);
	lists_snapshots(snapshot_id, snapshot_id, 0, "", "");
	lists_snapshots(snapshot_id, "", 0, "", "");
	lists_snapshots("", volume_id, 0, "", "");
	lists_snapshots("", "", -1, "", negative);
	lists_snapshots("", snapshot_id, -1, "", negative);
	lists_snapshots("", "", 0, "v:00000000:x",
		"10: starting_token: is none of this driver's; list again from the start");
}

static void lists_volumes(int32_t max, const char *token, const char *want)
{
	Csi__V1__ListVolumesRequest req = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
	req.max_entries = max;
	req.starting_token = csi_bytes(token);
	says(ASK("Controller", ListVolumes, list_volumes), "%s", want);
}

static void gets_volume(const char *want)
{
	Csi__V1__ControllerGetVolumeRequest req = CSI__V1__CONTROLLER_GET_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	says(ASK("Controller", ControllerGetVolume, controller_get_volume), "%s", want);
}

/* Both, one by one, and what is no token of theirs. */
static void list_two(const char *first, const char *second)
{
	char want[2 * ANSWER_BYTES], token[RECORD_ID_MAX] = "";
	snprintf(want, sizeof(want), "entries{%s status{" WELL "}} entries{%s status{" WELL "}}",
		first, second);
	lists_volumes(0, "", want);
	lists_volumes(2, "", want);
	lists_volumes(3, "", want);
	Csi__V1__ListVolumesRequest req = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
	req.max_entries = 1;
	const char *got = ASK("Controller", ListVolumes, list_volumes);
	take_id(got, "next_token", token);
	snprintf(want, sizeof(want), "entries{%s status{" WELL "}} next_token='%s'", first, token);
	says(got, "%s", want);
	cr_expect(strncmp(token, "v:", 2) == 0 && strcmp(token + 11, volume_id) == 0, "%s", token);
	snprintf(want, sizeof(want), "entries{%s status{" WELL "}}", second);
	lists_volumes(1, token, want);
	static const char no_token[] =
		"10: starting_token: is none of this driver's; list again from the start";
	lists_volumes(-1, token, "3: max_entries: -1 is negative");
	token[0] = 's';
	lists_volumes(0, token, no_token);
	lists_volumes(0, "v:00000000:x", no_token);
	lists_volumes(0, "v:811c9dc5:", no_token); /* the sum of no id */
}

/* A token says where a volume is, and not where it was born. */
Test(csi_answers, list_with_a_volume_that_has_moved, .timeout = 120)
{
	char moved[RECORD_ID_MAX], token[RECORD_ID_MAX] = "", id[RECORD_ID_MAX],
				   want[RECORD_ID_MAX];
	static const char *const names[] = {"a", "m", "z"};
	open_world(WORLD_XFS, 1, true);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(create(names[i], EMPTY, volume_id), GRPC_OK);
	bear_elsewhere("m", moved);
	for (unsigned i = 0; i < 3; i++) {
		Csi__V1__ListVolumesRequest req = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
		req.max_entries = 1;
		req.starting_token = csi_bytes(token);
		const char *got = ASK("Controller", ListVolumes, list_volumes);
		const struct pool_object *o = pools_find_name(w->pools, RECORD_VOLUME, names[i]);
		take_id(got, "volume_id", id);
		pool_object_id(o, want);
		cr_expect_str_eq(id, want);
		if (i == 2)
			break;
		take_id(got, "next_token", token);
		snprintf(want, sizeof(want), "%s.%s.%s", pool_uuid8(o->pool), o->key,
			o->rec->random);
		cr_expect_str_eq(token + 11, want);
	}
	world_close(w);
}

Test(csi_answers, volumes_and_snapshots, .timeout = 300)
{
	char base[300], copy[600], copy_id[RECORD_ID_MAX];
	open_world(WORLD_XFS, 1, true);
	lists_volumes(0, "", "");
	const char *got = asks_create("base", EMPTY);
	take_id(got, "volume_id", volume_id);
	snprintf(base, sizeof(base), "volume{capacity_bytes=16777216 volume_id='%s' " TOPOLOGY "}",
		volume_id);
	says(got, "%s", base);
	says(asks_create("base", EMPTY), "%s", base);
	snapshots();
	got = asks_create("restored", FROM_SNAPSHOT);
	take_id(got, "volume_id", other_id);
	says(got,
		"volume{capacity_bytes=16777216 volume_id='%s' "
		"content_source{snapshot{snapshot_id='%s'}} " TOPOLOGY "}",
		other_id, snapshot_id);
	cr_assert_eq(delete (other_id), GRPC_OK);
	got = asks_create("clone", FROM_VOLUME);
	take_id(got, "volume_id", copy_id);
	snprintf(copy, sizeof(copy),
		"volume{capacity_bytes=16777216 volume_id='%s' "
		"content_source{volume{volume_id='%s'}} " TOPOLOGY "}",
		copy_id, volume_id);
	says(got, "%s", copy);
	list_two(base, copy);
	snprintf(copy, sizeof(copy), "%s status{" WELL "}", base);
	gets_volume(copy);
	cr_assert_eq(do_stage(), GRPC_OK);
	snprintf(copy, sizeof(copy), "%s status{published_node_ids='node-1' " WELL "}", base);
	gets_volume(copy);
	w->csi->config.health = 0;
	snprintf(copy, sizeof(copy), "%s status{published_node_ids='node-1'}", base);
	gets_volume(copy);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	snprintf(copy, sizeof(copy), "5: volume %s does not exist", volume_id);
	gets_volume(copy);
	world_close(w);
}

/* ---- what ringvol ls is told ---- */

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
	snprintf(want, sizeof(want), "volume{%s device{%s%s} %s}", volume,
		device_fields("loop", dev->path, dev->major, dev->minor),
		dev->direct_io ? " direct_io=1" : "", mounts);
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
		"3: kinds: holds a kind this driver does not know; nodes are what a "
		"controller knows");
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
