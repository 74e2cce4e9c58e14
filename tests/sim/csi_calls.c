/* SPDX-License-Identifier: Apache-2.0 */
#include "csi_calls.h"

#include "blockio/boot_mark.h"
#include "csi/messages.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

struct world *w;
char volume_id[RECORD_ID_MAX], other_id[RECORD_ID_MAX], snapshot_id[RECORD_ID_MAX];
char staging_path[96], target_path[96];
bool block, publish_read_only, mode_change;
const char *fs_type = "ext4", *device_type = "loop", *snapshot_name = "snap";
const char *snapshot_freeze = "true", *encryption = "none", *provisioning = "thin";
const char *stage_key, *source_image;
unsigned access_mode;
const char *attach_to;
const char *mount_flag;
bool access_read_only;
uint64_t create_bytes = 16 * MIB;

void open_world(enum world_fs fs, uint64_t seed, bool as_block)
{
	const char *why = NULL;
	w = world_open(fs, seed, &why);
	if (w == NULL)
		cr_skip_test("%s", why);
	block = as_block;
	snprintf(staging_path, sizeof(staging_path), "%s/stage", w->dir);
	snprintf(target_path, sizeof(target_path), "%s/target", w->dir);
}

Csi__V1__VolumeCapability *capability(void)
{
	static Csi__V1__VolumeCapability cap;
	static Csi__V1__VolumeCapability__MountVolume mount;
	static Csi__V1__VolumeCapability__BlockVolume block_volume;
	static Csi__V1__VolumeCapability__AccessMode mode;
	csi__v1__volume_capability__init(&cap);
	csi__v1__volume_capability__mount_volume__init(&mount);
	csi__v1__volume_capability__block_volume__init(&block_volume);
	csi__v1__volume_capability__access_mode__init(&mode);
	mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER;
	if (access_read_only)
		mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_READER_ONLY;
	if (access_mode != 0)
		mode.mode = (Csi__V1__VolumeCapability__AccessMode__Mode)access_mode;
	cap.access_mode = &mode;
	if (block) {
		cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK;
		cap.block = &block_volume;
	} else {
		static ProtobufCBinaryData flags[1];
		mount.fs_type = csi_bytes(fs_type);
		if (mount_flag != NULL) {
			flags[0] = csi_bytes(mount_flag);
			mount.mount_flags = flags;
			mount.n_mount_flags = 1;
		}
		cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT;
		cap.mount = &mount;
	}
	return &cap;
}

struct record *plain_record(
	enum record_kind kind, const char *name, const char *random, uint64_t size_bytes)
{
	struct record from = {.kind = kind,
		.name = name,
		.size_bytes = size_bytes,
		.block_size = 512,
		.mkfs_options = "",
		.source_id = "",
		.family = "",
		.claim = ""};
	snprintf(from.random, sizeof(from.random), "%s", random);
	struct record *rec = record_new(&from);
	cr_assert_not_null(rec);
	return rec;
}

enum grpc_status call(
	const char *method, const ProtobufCMessage *request, struct world_answer *answer)
{
	return world_call(w, method, request, answer);
}

enum grpc_status call_status(const char *method, const ProtobufCMessage *request)
{
	struct world_answer answer;
	enum grpc_status status = call(method, request, &answer);
	world_answer_free(&answer);
	return status;
}

Csi__V1__VolumeContentSource *content_source(enum source from)
{
	static Csi__V1__VolumeContentSource content;
	static Csi__V1__VolumeContentSource__VolumeSource volume;
	static Csi__V1__VolumeContentSource__SnapshotSource snapshot;
	if (from == EMPTY)
		return NULL;
	csi__v1__volume_content_source__init(&content);
	csi__v1__volume_content_source__volume_source__init(&volume);
	csi__v1__volume_content_source__snapshot_source__init(&snapshot);
	volume.volume_id = csi_bytes(volume_id);
	snapshot.snapshot_id = csi_bytes(snapshot_id);
	if (from == FROM_VOLUME) {
		content.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_VOLUME;
		content.volume = &volume;
	} else {
		content.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_SNAPSHOT;
		content.snapshot = &snapshot;
	}
	return &content;
}

enum grpc_status create(const char *name, enum source source, char *ret_id)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	Csi__V1__StringPair freeze = CSI__V1__STRING_PAIR__INIT, device = freeze, change = freeze;
	Csi__V1__StringPair encrypt = freeze, provision = freeze, image = freeze, attach = freeze;
	Csi__V1__StringPair *parameters[7] = {
		&freeze, &device, &change, &encrypt, &provision, &attach, &image};
	attach.key = csi_bytes("attach");
	attach.value = csi_bytes(attach_to != NULL ? attach_to : "local");
	encrypt.key = csi_bytes("encryption");
	encrypt.value = csi_bytes(encryption);
	provision.key = csi_bytes("provisioning");
	provision.value = csi_bytes(provisioning);
	freeze.key = csi_bytes("snapshotFreeze");
	freeze.value = csi_bytes(snapshot_freeze);
	device.key = csi_bytes("device");
	device.value = csi_bytes(device_type);
	change.key = csi_bytes("allowVolumeModeChange");
	change.value = csi_bytes(mode_change ? "true" : "false");
	req.n_parameters = 6;
	if (source_image != NULL) {
		image.key = csi_bytes("source");
		image.value = csi_bytes(source_image);
		req.n_parameters = 7;
	}
	req.parameters = parameters;
	range.required_bytes = (int64_t)create_bytes;
	req.name = csi_bytes(name);
	req.capacity_range = &range;
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	req.volume_content_source = content_source(source);
	struct world_answer answer;
	enum grpc_status status = call("Controller/CreateVolume", &req.base, &answer);
	if (status == GRPC_OK) {
		Csi__V1__CreateVolumeResponse *response =
			csi__v1__create_volume_response__unpack(NULL, answer.len, answer.data);
		cr_assert_not_null(response);
		snprintf(ret_id, RECORD_ID_MAX, "%.*s", (int)response->volume->volume_id.len,
			(char *)response->volume->volume_id.data);
		csi__v1__create_volume_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

enum grpc_status delete (const char *id) {
	Csi__V1__DeleteVolumeRequest req = CSI__V1__DELETE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(id);
	enum grpc_status status = call_status("Controller/DeleteVolume", &req.base);
	world_settle(w);
	return status;
}

enum grpc_status delete_patiently(const char *id)
{
	enum grpc_status status = delete (id);
	for (int i = 0; status == GRPC_FAILED_PRECONDITION && i < 200; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
		status = delete (id);
	}
	return status;
}

enum grpc_status expand(uint64_t size_bytes)
{
	Csi__V1__ControllerExpandVolumeRequest req =
		CSI__V1__CONTROLLER_EXPAND_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	range.required_bytes = (int64_t)size_bytes;
	req.volume_id = csi_bytes(volume_id);
	req.capacity_range = &range;
	return call_status("Controller/ControllerExpandVolume", &req.base);
}

enum grpc_status node_expand(uint64_t size_bytes)
{
	Csi__V1__NodeExpandVolumeRequest req = CSI__V1__NODE_EXPAND_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	range.required_bytes = (int64_t)size_bytes;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(target_path);
	req.capacity_range = &range;
	return call_status("Node/NodeExpandVolume", &req.base);
}

enum grpc_status do_create(void)
{
	return create("other", EMPTY, other_id);
}

enum grpc_status undo_create(void)
{
	return delete (other_id);
}

enum grpc_status do_clone(void)
{
	return create("other", FROM_VOLUME, other_id);
}

enum grpc_status do_snapshot(void)
{
	Csi__V1__CreateSnapshotRequest req = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	req.name = csi_bytes(snapshot_name);
	req.source_volume_id = csi_bytes(volume_id);
	struct world_answer answer;
	enum grpc_status status = call("Controller/CreateSnapshot", &req.base, &answer);
	if (status == GRPC_OK) {
		Csi__V1__CreateSnapshotResponse *response =
			csi__v1__create_snapshot_response__unpack(NULL, answer.len, answer.data);
		snprintf(snapshot_id, sizeof(snapshot_id), "%.*s",
			(int)response->snapshot->snapshot_id.len,
			(char *)response->snapshot->snapshot_id.data);
		csi__v1__create_snapshot_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

bool is_frozen_at(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	bool frozen = ioctl(fd, FIFREEZE, 0) < 0;
	cr_assert(!frozen || errno == EBUSY);
	cr_assert(frozen || ioctl(fd, FITHAW, 0) == 0);
	close(fd);
	return frozen;
}

bool is_frozen(void)
{
	return is_frozen_at(staging_path);
}

enum grpc_status undo_snapshot(void)
{
	Csi__V1__DeleteSnapshotRequest req = CSI__V1__DELETE_SNAPSHOT_REQUEST__INIT;
	req.snapshot_id = csi_bytes(snapshot_id);
	enum grpc_status status = call_status("Controller/DeleteSnapshot", &req.base);
	world_settle(w);
	return status;
}

const struct attach_pair *context;
size_t context_count;

enum { CONTEXT_MAX = 16 };

Csi__V1__StringPair **context_message(size_t *ret_count)
{
	static Csi__V1__StringPair pairs[CONTEXT_MAX], *list[CONTEXT_MAX];
	cr_assert_leq(context_count, CONTEXT_MAX);
	for (size_t i = 0; i < context_count; i++) {
		csi__v1__string_pair__init(&pairs[i]);
		pairs[i].key = csi_bytes(context[i].key);
		pairs[i].value = csi_bytes(context[i].value);
		list[i] = &pairs[i];
	}
	*ret_count = context_count;
	return list;
}

Csi__V1__NodeStageVolumeRequest stage_request(void)
{
	Csi__V1__NodeStageVolumeRequest req = CSI__V1__NODE_STAGE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(staging_path);
	req.volume_capability = capability();
	req.publish_context = context_message(&req.n_publish_context);
	return req;
}

Csi__V1__NodeUnstageVolumeRequest unstage_request(void)
{
	Csi__V1__NodeUnstageVolumeRequest req = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(staging_path);
	return req;
}

Csi__V1__NodePublishVolumeRequest publish_request(void)
{
	Csi__V1__NodePublishVolumeRequest req = CSI__V1__NODE_PUBLISH_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(staging_path);
	req.target_path = csi_bytes(target_path);
	req.readonly = publish_read_only;
	req.volume_capability = capability();
	req.publish_context = context_message(&req.n_publish_context);
	return req;
}

Csi__V1__NodeUnpublishVolumeRequest unpublish_request(void)
{
	Csi__V1__NodeUnpublishVolumeRequest req = CSI__V1__NODE_UNPUBLISH_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.target_path = csi_bytes(target_path);
	return req;
}

Csi__V1__NodeGetVolumeStatsRequest stats_request(void)
{
	Csi__V1__NodeGetVolumeStatsRequest req = CSI__V1__NODE_GET_VOLUME_STATS_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(target_path);
	return req;
}

enum grpc_status do_stage(void)
{
	Csi__V1__NodeStageVolumeRequest req = stage_request();
	Csi__V1__StringPair key = CSI__V1__STRING_PAIR__INIT, *secrets[1] = {&key};
	key.key = csi_bytes("key");
	if (stage_key != NULL) {
		key.value = csi_bytes(stage_key);
		req.secrets = secrets;
		req.n_secrets = 1;
	}
	return call_status("Node/NodeStageVolume", &req.base);
}

enum grpc_status undo_stage(void)
{
	Csi__V1__NodeUnstageVolumeRequest req = unstage_request();
	return call_status("Node/NodeUnstageVolume", &req.base);
}

enum grpc_status do_publish(void)
{
	Csi__V1__NodePublishVolumeRequest req = publish_request();
	return call_status("Node/NodePublishVolume", &req.base);
}

enum grpc_status undo_publish(void)
{
	Csi__V1__NodeUnpublishVolumeRequest req = unpublish_request();
	return call_status("Node/NodeUnpublishVolume", &req.base);
}

enum grpc_status do_stats(void)
{
	Csi__V1__NodeGetVolumeStatsRequest req = stats_request();
	return call_status("Node/NodeGetVolumeStats", &req.base);
}

enum grpc_status do_allocated(void)
{
	Csi__V1__GetMetadataAllocatedRequest req = CSI__V1__GET_METADATA_ALLOCATED_REQUEST__INIT;
	req.snapshot_id = csi_bytes(snapshot_id);
	return call_status("SnapshotMetadata/GetMetadataAllocated", &req.base);
}

enum grpc_status do_delta(void)
{
	Csi__V1__GetMetadataDeltaRequest req = CSI__V1__GET_METADATA_DELTA_REQUEST__INIT;
	req.base_snapshot_id = req.target_snapshot_id = csi_bytes(snapshot_id);
	return call_status("SnapshotMetadata/GetMetadataDelta", &req.base);
}

void make_image(const char *name)
{
	char keeps[RECORD_ID_MAX], volume[RECORD_NAME_MAX];
	const char *keeps_name = snapshot_name, *keeps_image = source_image;
	memcpy(keeps, volume_id, sizeof(keeps));
	snprintf(volume, sizeof(volume), "import.%s.0123abcd", name);
	source_image = NULL;
	snapshot_name = name;
	cr_assert_eq(create(volume, EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(delete (volume_id), GRPC_OK);
	memcpy(volume_id, keeps, sizeof(keeps));
	snapshot_name = keeps_name;
	source_image = keeps_image;
}

void leave_frozen_image(const char *image)
{
	int fd = open(image, O_RDONLY | O_CLOEXEC);
	int root = open(staging_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert(fd >= 0 && root >= 0);
	cr_assert_eq(boot_mark_set(fd, BOOT_MARK_FROZEN, ""), 0);
	cr_assert(ioctl(root, FIFREEZE, 0) == 0 || errno == EBUSY);
	close(root);
	close(fd);
}

void leave_frozen(void)
{
	char image[128];
	snprintf(image, sizeof(image), "%s/volumes/base", w->pool_path);
	leave_frozen_image(image);
}

void bear_elsewhere(const char *name, char id[RECORD_ID_MAX])
{
	char path[256], text[RECORD_BYTES_MAX];
	const struct pool_object *o = pools_find_name(w->pools, RECORD_VOLUME, name);
	cr_assert_not_null(o);
	struct record rec = *o->rec;
	rec.born = "deadbeef";
	rec.moves = 1;
	int len = record_print(&rec, text, sizeof(text));
	snprintf(path, sizeof(path), "%s/volumes/%s", w->pool_path, o->key);
	cr_assert(len > 0 && setxattr(path, RECORD_XATTR, text, (size_t)len, 0) == 0);
	world_restart(w);
	pool_object_id(pools_find_name(w->pools, RECORD_VOLUME, name), id);
	cr_assert_eq(strncmp(id, "deadbeef.", 9), 0);
}

void fill_image(const char *command)
{
	char line[400];
	snprintf(line, sizeof(line),
		"i=%s/volumes/base; fallocate -z -l $(stat -c %%s $i) $i && (%s) >/dev/null 2>&1",
		w->pool_path, command);
	cr_assert_eq(system(line), 0, "%s", line);
}

static const char *tools_path(void)
{
	static char path[112];
	snprintf(path, sizeof(path), "%s/tools", w->dir);
	cr_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
	return path;
}

void put_tool(const char *name, const char *script)
{
	char path[160];
	snprintf(path, sizeof(path), "%s/%s", tools_path(), name);
	cr_assert(unlink(path) == 0 || errno == ENOENT);
	if (script == NULL)
		return;
	FILE *file = fopen(path, "we");
	cr_assert_not_null(file);
	cr_assert_gt(fprintf(file, "#!/bin/sh\n%s\n", script), 0);
	cr_assert_eq(fclose(file), 0);
	cr_assert_eq(chmod(path, 0700), 0);
}

void tools_alone(bool alone)
{
	static char before[4096];
	if (before[0] == '\0')
		snprintf(before, sizeof(before), "%s", getenv("PATH"));
	cr_assert_eq(setenv("PATH", alone ? tools_path() : before, 1), 0);
}

void no_device(void)
{
	char left[INVENTORY_BYTES];
	world_settle(w);
	world_inventory(w, left, sizeof(left));
	cr_expect_null(strstr(left, "\ndevice "), "%s", left);
	cr_expect_null(strstr(left, "mount "), "%s", left);
}
