/* SPDX-License-Identifier: Apache-2.0 */
/* Every field of the answers about sizes, health and what a volume serves. */
#include "answers.h"

#include "node/health.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- sizes ---- */

static void expands(int64_t required, int64_t limit, const char *controller, const char *node)
{
	Csi__V1__ControllerExpandVolumeRequest req =
		CSI__V1__CONTROLLER_EXPAND_VOLUME_REQUEST__INIT;
	Csi__V1__NodeExpandVolumeRequest of_node = CSI__V1__NODE_EXPAND_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	range.required_bytes = required;
	range.limit_bytes = limit;
	req.volume_id = of_node.volume_id = csi_bytes(volume_id);
	req.capacity_range = of_node.capacity_range = &range;
	of_node.volume_path = csi_bytes(target_path);
	says(ASK("Controller", ControllerExpandVolume, controller_expand_volume), "%s", controller);
	says(ask("Node/NodeExpandVolume", &of_node,
		     &csi__v1__node_expand_volume_response__descriptor),
		"%s", node);
}

/* Its file system is the node's to expand, whether it is mounted now or not. */
Test(csi_answers, expansion_of_what_is_not_in_use, .timeout = 300)
{
	char absent[200];
	open_world(WORLD_EXT4, 1, false);
	snprintf(absent, sizeof(absent),
		"5: volume base is not staged or published at volume_path %s", target_path);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	expands(20 * MIB, 0, "capacity_bytes=20971520 node_expansion_required=1", absent);
	world_close(w);
}

static void asks_capacity(const char *key, const char *value, const char *want)
{
	Csi__V1__GetCapacityRequest req = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	Csi__V1__StringPair *parameters[1] = {pair(0, key, value)};
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	req.n_parameters = key[0] != '\0';
	req.parameters = parameters;
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	says(ASK("Controller", GetCapacity, get_capacity), "%s", want);
}

/* 1 MiB of it, which its image then has. */
static void write_to_it(void)
{
	static char data[MIB] = "x";
	int fd = open(target_path, O_WRONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(pwrite(fd, data, sizeof(data), 0), sizeof(data));
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

/* Its image has more blocks than the volume has bytes. */
static void fill_image_beyond(void)
{
	char path[160];
	snprintf(path, sizeof(path), "%s/volumes/base", w->pool_path);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 40 * MIB), 0);
	close(fd);
}

/* The room of the pool for what is asked for; none where nothing of the kind can be made. */
static void capacities(void)
{
	char want[200];
	struct pool_room room;
	struct pool *pool = pools_at(w->pools, 0);
	pool->overcommit = 2.0;
	asks_capacity("pool", "none", "maximum_volume_size{} minimum_volume_size{value=16777216}");
	pool_room(pool, &room);
	cr_assert_neq(room.available_bytes, room.available_thick_bytes);
	static const char fmt[] =
		"available_capacity=%" PRIu64 " maximum_volume_size{value=%" PRIu64
		"} minimum_volume_size{value=%u}";
	snprintf(want, sizeof(want), fmt, room.available_bytes, room.available_bytes, 16777216);
	asks_capacity("", "", want);
	snprintf(want, sizeof(want), fmt, room.available_thick_bytes, room.available_thick_bytes,
		16777216);
	asks_capacity("provisioning", "thick", want);
	block = false;
	fs_type = "xfs";
	snprintf(want, sizeof(want), fmt, room.available_bytes, room.available_bytes, 314572800);
	asks_capacity("", "", want);
	asks_capacity("csi.storage.k8s.io/fstype", "btrfs",
		"maximum_volume_size{} minimum_volume_size{value=16777216}");
	fs_type = "ext4";
	block = true;
}

Test(csi_answers, sizes, .timeout = 300)
{
	char absent[200];
	static const char below[] =
		"11: capacity_range: limit_bytes (16777216) is too small, the least that serves is "
		"22020096 bytes (sizes are multiples of 1 MiB)";
	static const char usage[] = "usage{available=20971520 total=22020096 used=1048576 unit=1}";
	open_world(WORLD_XFS, 1, true);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	snprintf(absent, sizeof(absent),
		"5: volume base is not staged or published at volume_path %s", target_path);
	expands(20 * MIB, 0, "capacity_bytes=20971520", absent);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	expands(21 * MIB, 0, "capacity_bytes=22020096 node_expansion_required=1",
		"capacity_bytes=22020096");
	expands(16 * MIB, 0, "capacity_bytes=22020096 node_expansion_required=1",
		"capacity_bytes=22020096");
	expands(0, 16 * MIB, below, below);
	expands(0, 0, "3: capacity_range is missing", "capacity_bytes=22020096");
	write_to_it();
	says(asks_stats(), "%s " WELL, usage);
	w->csi->config.health = 0;
	says(asks_stats(), "%s", usage);
	fill_image_beyond();
	says(asks_stats(), "usage{total=22020096 used=22020096 unit=1}");
	w->csi->config.controller_expand = false;
	expands(23 * MIB, 0,
		"12: volumes are expanded by NodeExpandVolume here (--controller-expand node)",
		"capacity_bytes=24117248");
	capacities();
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}

static bool has_inodes, is_shut_down, tells_bytes;

/* The volume's own file system is asked, which says what the test says. */
static int stats_say(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct mnt_info *info = resp;
	int r = mnt_calls[MNT_STATS](req, req_len, resp, resp_len);
	info->total_bytes = tells_bytes ? 100 : 0;
	info->used_bytes = 30;
	info->avail_bytes = 60;
	info->total_inodes = has_inodes ? 10 : 0;
	info->used_inodes = 4;
	info->free_inodes = 6;
	info->shut_down = is_shut_down;
	return r;
}

#define BYTES  "usage{available=60 total=100 used=30 unit=1}"
#define INODES " usage{available=6 total=10 used=4 unit=2}"

Test(csi_answers, sizes_of_a_file_system, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, false);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	w->csi->config.health = 0;
	w->calls[MNT_STATS] = stats_say;
	has_inodes = tells_bytes = true;
	says(asks_stats(), BYTES INODES);
	has_inodes = false;
	says(asks_stats(), BYTES);
	is_shut_down = true;
	says(asks_stats(), BYTES);
	tells_bytes = false;
	says(asks_stats(), "%s", "");
	is_shut_down = false;
	says(asks_stats(), "usage{available=60 used=30 unit=1}");
	w->calls[MNT_STATS] = mnt_calls[MNT_STATS];
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}

/* What is asked of GetCapacity, with up to two parameters. */
static const char *asks_room(const char *key, const char *value, const char *other_key,
	const char *other_value, const char *node)
{
	Csi__V1__GetCapacityRequest req = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	Csi__V1__Topology topology = CSI__V1__TOPOLOGY__INIT;
	Csi__V1__StringPair *parameters[2] = {pair(0, key, value), NULL}, *segments[1];
	segments[0] = pair(2, "topology.ringvol.dev/node", node != NULL ? node : "");
	parameters[1] = pair(1, other_key, other_value);
	req.n_parameters = (key[0] != '\0') + (other_key[0] != '\0');
	req.parameters = parameters;
	topology.segments = segments;
	topology.n_segments = 1;
	if (node != NULL)
		req.accessible_topology = &topology;
	return ASK("Controller", GetCapacity, get_capacity);
}

static void has_room(const char *got, uint64_t available, uint64_t most, unsigned min)
{
	if (available == 0)
		says(got, "maximum_volume_size{} minimum_volume_size{value=%u}", min);
	else
		says(got,
			"available_capacity=%" PRIu64 " maximum_volume_size{value=%" PRIu64
			"} minimum_volume_size{value=%u}",
			available, most, min);
}

/* Where such a volume cannot be made or used here there is no room, and no error. */
Test(csi_answers, room_for_what_can_be_made, .timeout = 120)
{
	enum { EXT4_MIN = 16 << 20 };
	struct pool_room room;
	open_world(WORLD_XFS, 1, true);
	struct pool *pool = pools_at(w->pools, 0);
	struct node *node = w->csi->node;
	has_room(asks_room("", "", "", "", "node-2"), 0, 0, EXT4_MIN);
	says(asks_room("provisioning", "fat", "", "", NULL),
		"3: parameters: provisioning is 'fat', but takes thin or thick");
	const char *got = asks_room("", "", "", "", "node-1");
	pool_room(pool, &room);
	has_room(got, room.available_bytes, room.available_bytes, EXT4_MIN);
	/* The largest volume there may be. */
	pool->overcommit = 1e9;
	pool_room(pool, &room);
	cr_assert_gt(room.available_bytes, UINT64_C(1) << 50);
	has_room(
		asks_room("", "", "", "", NULL), room.available_bytes, UINT64_C(1) << 50, EXT4_MIN);
	pool->overcommit = 1.0;
	/* No device for it was to be had lately. */
	node->no_device_ns[BACKEND_LOOP] = ring_now_ns(w->reactor.ring);
	has_room(asks_room("device", "loop", "", "", NULL), 0, 0, EXT4_MIN);
	w->csi->config.services &= ~(unsigned)CSI_NODE; /* then it is used elsewhere */
	pool_room(pool, &room);
	has_room(asks_room("device", "loop", "", "", NULL), room.available_bytes,
		room.available_bytes, EXT4_MIN);
	w->csi->config.services |= CSI_NODE;
	node->no_device_ns[BACKEND_LOOP] = 0;
	pool->features.nocow_lies = true; /* a feature that it lacks */
	has_room(asks_room("provisioning", "thick", "", "", NULL), 0, 0, EXT4_MIN);
	pool->features.nocow_lies = false;
	w->fault_hit = false;
	w->work_fault_after = 0; /* it cannot be measured */
	has_room(asks_room("", "", "", "", NULL), 0, 0, EXT4_MIN);
	cr_expect(w->fault_hit);
	w->work_fault_after = -1;
	pool_enter(pool, POOL_READ_ONLY, "it cannot be written");
	has_room(asks_room("", "", "", "", NULL), 0, 0, EXT4_MIN);
	pool_enter(pool, POOL_SERVED, "%s", "");
	world_close(w);
}

static bool has_dm_crypt;

static int check_dm_crypt(struct err *err)
{
	return has_dm_crypt ? 0 : err_set(err, ERR_PRECONDITION, "no dm-crypt here");
}

/* An encrypted one's image has a header besides. */
Test(csi_answers, room_for_encrypted_volumes, .timeout = 120)
{
	enum { HEADER = 16 << 20, EXT4_MIN = 16 << 20 };
	struct pool_room room;
	open_world(WORLD_XFS, 1, true);
	struct pool *pool = pools_at(w->pools, 0);
	w->csi->config.services &= ~(unsigned)CSI_NODE; /* which may have no dm-crypt */
	(void)asks_room("", "", "", "", NULL);          /* measures */
	static const uint64_t left[] = {100 * MIB, HEADER + MIB, HEADER, HEADER - MIB, 0};
	for (unsigned i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
		pool_room(pool, &room);
		cr_assert_geq(room.available_bytes, left[i]);
		pool->reserved_bytes += room.available_bytes - left[i];
		const char *got = asks_room("encryption", "luks2", "", "", NULL);
		pool_room(pool, &room);
		cr_assert_eq(room.available_bytes, left[i]);
		uint64_t want = left[i] > HEADER ? left[i] - HEADER : 0;
		has_room(got, want, want, EXT4_MIN);
		pool->reserved_bytes = 0;
	}
	/* Where it is used, too, the kernel has to open it. */
	w->csi->config.services |= CSI_NODE;
	const struct backend *loop = backend_get(BACKEND_LOOP);
	struct backend fake = *loop;
	fake.check_encrypted = check_dm_crypt;
	backend_add(&fake);
	for (unsigned i = 0; i < 2; i++) {
		has_dm_crypt = i == 1;
		const char *got = asks_room("encryption", "luks2", "device", "loop", NULL);
		pool_room(pool, &room);
		uint64_t want = has_dm_crypt ? room.available_bytes - HEADER : 0;
		has_room(got, want, want, EXT4_MIN);
		got = asks_room("encryption", "none", "device", "loop", NULL);
		has_room(got, room.available_bytes, room.available_bytes, EXT4_MIN);
	}
	backend_add(loop);
	world_close(w);
}

/* ---- health ---- */

/* NULL: no volume, or pool, is told of. */
static void asks_health(const char *volume, const char *listed, const char *pools)
{
	Csi__V1__ControllerGetVolumeHealthRequest req =
		CSI__V1__CONTROLLER_GET_VOLUME_HEALTH_REQUEST__INIT;
	Csi__V1__NodeGetVolumeHealthRequest of_node = CSI__V1__NODE_GET_VOLUME_HEALTH_REQUEST__INIT;
	Csi__V1__NodeGetStorageHealthRequest of_pools =
		CSI__V1__NODE_GET_STORAGE_HEALTH_REQUEST__INIT;
	Csi__V1__ControllerListVolumeHealthRequest of_all =
		CSI__V1__CONTROLLER_LIST_VOLUME_HEALTH_REQUEST__INIT;
	req.volume_id = of_node.volume_id = csi_bytes(volume_id);
	says(ASK("Controller", ControllerGetVolumeHealth, controller_get_volume_health), "%s",
		volume);
	says(ask("Node/NodeGetVolumeHealth", &of_node,
		     &csi__v1__node_get_volume_health_response__descriptor),
		"%s", volume);
	says(ask("Controller/ControllerListVolumeHealth", &of_all,
		     &csi__v1__controller_list_volume_health_response__descriptor),
		"%s", listed);
	says(ask("Node/NodeGetStorageHealth", &of_pools,
		     &csi__v1__node_get_storage_health_response__descriptor),
		"%s", pools);
}

static void asks_health_in(enum pool_life life, const char *why, const char *reason, bool is_known)
{
	struct pool *pool = pools_at(w->pools, 0);
	char since[40], volume[500], listed[500], pools[200], known[300];
	pool_enter(pool, life, "%s", why);
	time_t unix_time = (time_t)node_unix_time(w->csi->node, pool_state_since_ns(pool));
	strftime(since, sizeof(since), "%Y-%m-%dT%H:%M:%SZ", gmtime(&unix_time));
	snprintf(pools, sizeof(pools), "status=2 reason='%s' message='%s (%s since %s)'", reason,
		why, strcmp(reason, "PoolSick") == 0 ? "sick" : "missing", since);
	snprintf(listed, sizeof(listed), "entries{volume_id='%s' health_statuses{%s}}", volume_id,
		pools);
	snprintf(known, sizeof(known), "status=2 reason='%s' message='volume %s: %s'", reason,
		volume_id, why);
	snprintf(volume, sizeof(volume), "volume_health{volume_id='%s' health_statuses{%s}}",
		volume_id, is_known ? pools : known);
	char storage[300];
	snprintf(storage, sizeof(storage), "backend_health{%s}", pools);
	asks_health(volume, listed, storage);
}

Test(csi_answers, health, .timeout = 300)
{
	char want[300];
	open_world(WORLD_EXT4, 1, true);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	snprintf(want, sizeof(want), "volume_health{volume_id='%s'}", volume_id);
	asks_health(want, "", "");
	asks_health_in(POOL_READ_ONLY, "it cannot be written", "PoolSick", true);
	asks_health_in(POOL_AWAY, "it is gone", "PoolMissing", false);
	pool_enter(pools_at(w->pools, 0), POOL_SERVED, "%s", "");
	volume_id[0] = volume_id[0] == '0' ? '1' : '0';
	snprintf(want, sizeof(want),
		"14: volume %s: no pool on this node has the uuid %.8s...; ask the node that has "
		"it, or give its pool to this driver with --pool",
		volume_id, volume_id);
	asks_health(want, "", "");
	world_close(w);
}

/* An image that is gone or short: what needs its bytes says so, and what takes it away goes on. */
static void lost_image(enum pool_image image)
{
	open_world(WORLD_XFS, 1, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, "base");
	volume->image = image;
	cr_assert_eq(create("base", EMPTY, other_id), GRPC_DATA_LOSS);
	cr_assert_eq(do_clone(), GRPC_DATA_LOSS);
	cr_assert_eq(do_snapshot(), GRPC_DATA_LOSS);
	volume->image = POOL_IMAGE_WHOLE;
	cr_assert_eq(create("base", EMPTY, other_id), GRPC_OK);
	cr_assert_str_eq(other_id, volume_id);
	cr_assert_eq(delete (volume_id), GRPC_OK);
	world_close(w);
}

Test(csi_answers, an_image_that_is_gone, .timeout = 300)
{
	lost_image(POOL_IMAGE_MISSING);
}

Test(csi_answers, an_image_that_is_short, .timeout = 300)
{
	lost_image(POOL_IMAGE_TRUNCATED);
}

/* ---- what a volume serves ---- */

static void validates(Csi__V1__ValidateVolumeCapabilitiesRequest *req, const char *want)
{
	req->volume_id = csi_bytes(volume_id);
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	req->n_volume_capabilities = 1;
	req->volume_capabilities = caps;
	says(ask("Controller/ValidateVolumeCapabilities", req,
		     &csi__v1__validate_volume_capabilities_response__descriptor),
		"%s", want);
}

Test(csi_answers, validation)
{
	Csi__V1__ValidateVolumeCapabilitiesRequest
		plain = CSI__V1__VALIDATE_VOLUME_CAPABILITIES_REQUEST__INIT,
		req = plain;
	Csi__V1__StringPair *foreign[1] = {pair(1, "example.com/key", "1")};
	Csi__V1__StringPair *unknown[1] = {pair(2, "key", "1")};
	Csi__V1__StringPair *device[1] = {pair(3, "device", "loop")};
	open_world(WORLD_EXT4, 1, true);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	validates(&req, "confirmed{volume_capabilities{block{} access_mode{mode=1}}}");
	req.n_volume_context = 1;
	req.volume_context = foreign;
	req.n_parameters = 1;
	req.parameters = device;
	validates(&req,
		"confirmed{volume_context{key='example.com/key' value='1'} volume_capabilities{block{} access_mode{mode=1}} parameters{key='device' value='loop'}}");
	req.volume_context = unknown;
	validates(&req, "message='volume_context: holds a key that this driver never gave out'");
	req = plain;
	req.n_parameters = 1;
	req.parameters = unknown;
	validates(&req, "message='parameters: 'key' is not known'");
	req = plain;
	req.n_mutable_parameters = 1;
	req.mutable_parameters = device;
	validates(&req,
		"message='mutable_parameters: device cannot be changed later: it belongs to the StorageClass'");
	req = plain;
	req.n_mutable_parameters = 1;
	Csi__V1__StringPair *limit[1] = {pair(0, "readIops", "100")};
	req.mutable_parameters = limit;
	validates(&req, "message='volume base exists with another readIops'");
	block = false;
	validates(&plain, "message='volume_capabilities: volume base is a block volume'");
	/* One that may change its mode serves as whatever it holds. */
	struct record *rec = pools_find_name(w->pools, RECORD_VOLUME, "base")->rec;
	rec->allow_mode_change = true;
	validates(&plain,
		"confirmed{volume_capabilities{mount{fs_type='ext4'} access_mode{mode=1}}}");
	rec->allow_mode_change = false;
	rec->fs = FSIMG_EXT4;
	validates(&plain,
		"confirmed{volume_capabilities{mount{fs_type='ext4'} access_mode{mode=1}}}");
	fs_type = "xfs";
	validates(&plain, "message='volume_capabilities: volume base holds ext4'");
	fs_type = "";
	rec->fs = FSIMG_XFS; /* what it holds is what one asks for that names none */
	validates(&plain, "confirmed{volume_capabilities{mount{} access_mode{mode=1}}}");
	block = true;
	validates(&plain, "message='volume_capabilities: volume base is a mount volume'");
	access_mode = 5;
	validates(&plain,
		"message='volume_capability: access_mode MULTI_NODE_MULTI_WRITER (ReadWriteMany) cannot be served, a volume lives on one node; ask for a SINGLE_NODE mode (ReadWriteOnce), or, with --attach, for a class with attach: remote'");
	rec->fs = FSIMG_NONE;
	rec->attach = RECORD_ATTACH_REMOTE;
	validates(&plain, "confirmed{volume_capabilities{block{} access_mode{mode=5}}}");
	volume_id[0] = volume_id[0] == '0' ? '1' : '0';
	char want[300];
	snprintf(want, sizeof(want),
		"14: volume %s: no pool on this node has the uuid %.8s...; ask the node that has it, or give its pool to this driver with --pool",
		volume_id, volume_id);
	validates(&plain, want);
	world_close(w);
}
