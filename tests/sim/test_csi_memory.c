/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of which an allocation fails, each once: they end with RESOURCE_EXHAUSTED, or with the
 * whole answer, and the next one is answered as before. */
#include "answers.h"
#include "failing_arena.h"

#include "inspect.pb-c.h"
#include "pool/group.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the allocation that fails ---- */

char *__wrap_arena_printf(struct arena *a, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

char *__wrap_arena_printf(struct arena *a, const char *fmt, ...)
{
	static char text[4096];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return __wrap_arena_strdup(a, text);
}

/* ---- calls ---- */

struct asked {
	const char *method;
	const ProtobufCMessageDescriptor *request, *response;
	struct {
		const char *field, *value;
	} fields[3];
	bool tolerant;                       /* text for which there is no memory is left out */
	bool partial;                        /* and messages, too */
	Ringvol__V1__ListRequest__Kind kind; /* of Inspect/List: the last message is looked at */
};

static const ProtobufCFieldDescriptor *field_of(const ProtobufCMessage *message, const char *name)
{
	return protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
}

static void put_capability(ProtobufCMessage *request)
{
	static Csi__V1__VolumeCapability *caps[1];
	const ProtobufCFieldDescriptor *one = field_of(request, "volume_capability");
	const ProtobufCFieldDescriptor *several = field_of(request, "volume_capabilities");
	caps[0] = capability();
	if (one != NULL)
		*(void **)((char *)request + one->offset) = caps[0];
	if (several == NULL)
		return;
	*(size_t *)((char *)request + several->quantifier_offset) = 1;
	*(void **)((char *)request + several->offset) = caps;
}

/* 16 MiB, which all volumes have. */
static void put_range(ProtobufCMessage *request)
{
	static Csi__V1__CapacityRange range;
	const ProtobufCFieldDescriptor *field = field_of(request, "capacity_range");
	csi__v1__capacity_range__init(&range);
	range.required_bytes = 16 * MIB;
	if (field != NULL)
		*(void **)((char *)request + field->offset) = &range;
}

static void put_kind(ProtobufCMessage *request, const Ringvol__V1__ListRequest__Kind *kind)
{
	const ProtobufCFieldDescriptor *field = field_of(request, "kinds");
	if (field == NULL || *kind == RINGVOL__V1__LIST_REQUEST__KIND__ALL)
		return;
	*(size_t *)((char *)request + field->quantifier_offset) = 1;
	*(const void **)((char *)request + field->offset) = kind;
}

/* A repeated field gets one value. */
static const char *asks(const struct asked *a)
{
	static ProtobufCBinaryData values[3];
	ProtobufCMessage *request = calloc(1, a->request->sizeof_message);
	cr_assert_not_null(request);
	protobuf_c_message_init(a->request, request);
	for (unsigned i = 0; i < 3 && a->fields[i].field != NULL; i++) {
		const ProtobufCFieldDescriptor *field = field_of(request, a->fields[i].field);
		cr_assert_not_null(field, "%s", a->fields[i].field);
		values[i] = csi_bytes(a->fields[i].value);
		if (field->label == PROTOBUF_C_LABEL_REPEATED) {
			*(size_t *)((char *)request + field->quantifier_offset) = 1;
			*(void **)((char *)request + field->offset) = &values[i];
		} else {
			*(ProtobufCBinaryData *)((char *)request + field->offset) = values[i];
		}
	}
	put_capability(request);
	put_range(request);
	put_kind(request, &a->kind);
	const char *got = ask(a->method, request, a->response);
	free(request);
	return got;
}

enum { ALLOCATIONS_MAX = 300 };

static unsigned messages_in(const char *line)
{
	unsigned count = 0;
	for (; *line != '\0'; line++)
		count += *line == '{';
	return count;
}

static void runs_out(const struct asked *a)
{
	char whole[6000];
	unsigned refused = 0;
	snprintf(whole, sizeof(whole), "%s", asks(a));
	cr_expect_not(whole[0] >= '0' && whole[0] <= '9', "%s: %s", a->method, whole);
	for (int n = 0;; n++) {
		fails_after = n;
		failed = false;
		const char *got = asks(a);
		fails_after = -1;
		if (!failed)
			break;
		bool is_refused = strncmp(got, "8: ", 3) == 0;
		refused += is_refused;
		if (!is_refused && !a->tolerant)
			cr_expect_str_eq(got, whole, "%s, allocation %d: it says\n%s\nand not\n%s",
				a->method, n, got, whole);
		else if (!is_refused)
			cr_expect((a->partial || messages_in(got) == messages_in(whole)) &&
					  !(got[0] >= '0' && got[0] <= '9'),
				"%s, allocation %d: %s", a->method, n, got);
		cr_assert_lt(n, ALLOCATIONS_MAX, "%s", a->method);
	}
	cr_expect_gt(refused, 0, "%s", a->method);
	says(asks(a), "%s", whole);
}

#define OF(service, Name, name)                                                                    \
	.method = service "/" #Name, .request = &csi__v1__##name##_request__descriptor,            \
	.response = &csi__v1__##name##_response__descriptor

static void make_snapshot_group(char id[RECORD_ID_MAX], char member[RECORD_ID_MAX])
{
	const struct asked group = {
		OF("GroupController", CreateVolumeGroupSnapshot, create_volume_group_snapshot),
		{{"name", "group"}, {"source_volume_ids", other_id}}};
	take_id(asks(&group), "group_snapshot_id", id);
	memcpy(member, pools_find_group_name(w->pools, "group")->members[0], RECORD_ID_MAX);
}

/* A volume with limits that is staged and published, a snapshot of it, a group of another. */
static void open_full(char group[RECORD_ID_MAX], char member[RECORD_ID_MAX])
{
	open_world(WORLD_XFS, 1, false);
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_OK);
	cr_assert_eq(create("v", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	make_snapshot_group(group, member);
	pools_find_name(w->pools, RECORD_VOLUME, "v")->rec->limits.read_iops = 500;
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	world_settle(w);
}

static void close_full(const char *group, const char *member)
{
	const struct asked deletes = {
		OF("GroupController", DeleteVolumeGroupSnapshot, delete_volume_group_snapshot),
		{{"group_snapshot_id", group}, {"snapshot_ids", member}}};
	says(asks(&deletes), "%s", "");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	cr_assert_eq(delete_patiently(other_id), GRPC_OK);
	world_close(w);
}

Test(csi_memory, of_questions, .timeout = 300)
{
	char group[RECORD_ID_MAX], member[RECORD_ID_MAX];
	open_full(group, member);
	const struct asked all[] = {
		{OF("Identity", GetPluginInfo, get_plugin_info)},
		{OF("Identity", GetPluginCapabilities, get_plugin_capabilities)},
		{OF("Identity", Probe, probe)},
		{OF("Controller", ControllerGetCapabilities, controller_get_capabilities)},
		{OF("Controller", ListVolumes, list_volumes)},
		{OF("Controller", ListSnapshots, list_snapshots)},
		{OF("Controller", ListSnapshots, list_snapshots), {{"snapshot_id", snapshot_id}}},
		{OF("Controller", GetSnapshot, get_snapshot), {{"snapshot_id", snapshot_id}}},
		{OF("Controller", GetCapacity, get_capacity)},
		{OF("Controller", ControllerGetVolume, controller_get_volume),
			{{"volume_id", volume_id}}},
		{OF("Controller", ControllerGetVolumeHealth, controller_get_volume_health),
			{{"volume_id", volume_id}}},
		{OF("Controller", ValidateVolumeCapabilities, validate_volume_capabilities),
			{{"volume_id", volume_id}}},
		{.method = "GroupController/GroupControllerGetCapabilities",
			.request = &csi__v1__group_controller_get_capabilities_request__descriptor,
			.response =
				&csi__v1__group_controller_get_capabilities_response__descriptor},
		{OF("GroupController", GetVolumeGroupSnapshot, get_volume_group_snapshot),
			{{"group_snapshot_id", group}, {"snapshot_ids", member}}},
		{OF("Node", NodeGetInfo, node_get_info)},
		{OF("Node", NodeGetCapabilities, node_get_capabilities)},
		{OF("Node", NodeGetVolumeHealth, node_get_volume_health),
			{{"volume_id", volume_id}}},
		{.method = "/ringvol.v1.Inspect/Health",
			.request = &ringvol__v1__health_request__descriptor,
			.response = &ringvol__v1__health_response__descriptor},
		{.method = "/ringvol.v1.Inspect/List",
			.request = &ringvol__v1__list_request__descriptor,
			.response = &ringvol__v1__list_response__descriptor,
			.tolerant = true},
		{.method = "/ringvol.v1.Inspect/List",
			.request = &ringvol__v1__list_request__descriptor,
			.response = &ringvol__v1__list_response__descriptor,
			.tolerant = true,
			.kind = RINGVOL__V1__LIST_REQUEST__KIND__VOLUMES},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		runs_out(&all[i]);
	close_full(group, member);
}

/* What is there already is told by operations, too. */
Test(csi_memory, of_repeats, .timeout = 300)
{
	char group[RECORD_ID_MAX], member[RECORD_ID_MAX], plain[RECORD_ID_MAX];
	open_full(group, member);
	const struct asked all[] = {
		{OF("Controller", CreateVolume, create_volume), {{"name", "plain"}}},
		{OF("Controller", CreateSnapshot, create_snapshot),
			{{"name", "snap"}, {"source_volume_id", volume_id}}},
		{OF("GroupController", CreateVolumeGroupSnapshot, create_volume_group_snapshot),
			{{"name", "group"}, {"source_volume_ids", other_id}}},
		{OF("Controller", ControllerExpandVolume, controller_expand_volume),
			{{"volume_id", volume_id}}},
		{OF("Node", NodeStageVolume, node_stage_volume),
			{{"volume_id", volume_id}, {"staging_target_path", staging_path}}},
		{OF("Node", NodePublishVolume, node_publish_volume),
			{{"volume_id", volume_id}, {"staging_target_path", staging_path},
				{"target_path", target_path}}},
		{OF("Node", NodeGetVolumeStats, node_get_volume_stats),
			{{"volume_id", volume_id}, {"volume_path", target_path}}, .tolerant = true,
			.partial = true},
	};
	take_id(asks(&all[0]), "volume_id", plain);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		runs_out(&all[i]);
	cr_assert_eq(delete_patiently(plain), GRPC_OK);
	close_full(group, member);
}

/* A volume and its pool that are not well: in sentences that take memory. */
Test(csi_memory, of_conditions, .timeout = 300)
{
	open_world(WORLD_EXT4, 1, true);
	cr_assert_eq(create("v", EMPTY, volume_id), GRPC_OK);
	w->csi->config.health = CSI_HEALTH_1_13;
	const struct asked all[] = {
		{OF("Controller", ControllerGetVolumeHealth, controller_get_volume_health),
			{{"volume_id", volume_id}}, .tolerant = true},
		{OF("Controller", ControllerListVolumeHealth, controller_list_volume_health),
			.tolerant = true},
		{OF("Node", NodeGetVolumeHealth, node_get_volume_health),
			{{"volume_id", volume_id}}, .tolerant = true},
		{OF("Node", NodeGetStorageHealth, node_get_storage_health), .tolerant = true},
	};
	static const enum pool_life lives[] = {POOL_READ_ONLY, POOL_AWAY};
	struct pool *pool = pools_at(w->pools, 0);
	for (unsigned n = 0; n < 2; n++) {
		pool_enter(pool, lives[n], "a reason");
		for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
			runs_out(&all[i]);
		pool_enter(pool, POOL_SERVED, "%s", "");
	}
	world_adopt(w);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}
