/* SPDX-License-Identifier: Apache-2.0 */
/* Where calls go, what comes back, and what is known afterwards, on real sockets. */
#include "router_env.h"

#include "controller/forward.h"
#include "controller/route.h"
#include "csi/services.h"
#include "rpc/registry.h"

#define PATH(name) "/csi.v1.Controller/" name
#define ID_A       "aaaaaaaa.vol.01234567"
#define ID_B       "bbbbbbbb.vol.01234567"
#define NONE       "cccccccc.vol.01234567"

static struct asked q, p;

static void setup(void)
{
	env_open();
	serve(NULL);
}

static void teardown(void)
{
	buf_free(&q.got);
	buf_free(&p.got);
	env_close();
}

TestSuite(router, .init = setup, .fini = teardown, .timeout = 60);

/* Every request by id has it in field 1; and a field that nobody here knows. */
static enum grpc_status ask_id(const char *path, const char *id)
{
	struct buf request = {0};
	cr_assert_eq(buf_printf(&request, "\n%c%s", (int)strlen(id), id), 0);
	cr_assert_eq(buf_append(&request, "\xc2\x3e\x03new", 6), 0);
	start_bytes(&q, path, request.data, request.len, 0);
	turn_until(q.ends == 1);
	buf_free(&request);
	return q.status;
}

static const char *const by_volume[] = {PATH("DeleteVolume"), PATH("ValidateVolumeCapabilities"),
	PATH("ControllerExpandVolume"), PATH("ControllerModifyVolume"), PATH("ControllerGetVolume"),
	PATH("ControllerGetVolumeHealth"), PATH("DeleteSnapshot"), PATH("GetSnapshot")};
enum { BY_ID = sizeof(by_volume) / sizeof(by_volume[0]) };

/* ---- the table ---- */

/* What a node serves a controller serves, and nothing else. */
Test(router, every_method_has_a_row)
{
	struct csi csi = {.config = {.services = CSI_IDENTITY | CSI_CONTROLLER | CSI_GROUP |
						 CSI_SNAPSHOT_METADATA,
				  .attach = true}};
	struct grpc_registry *node = grpc_registry_new();
	cr_assert_eq(csi_register(&csi, node), 0);
	const ProtobufCServiceDescriptor *const services[] = {&csi__v1__identity__descriptor,
		&csi__v1__controller__descriptor, &csi__v1__group_controller__descriptor,
		&csi__v1__snapshot_metadata__descriptor};
	unsigned served = 0;
	for (unsigned s = 0; s < 4; s++)
		for (unsigned i = 0; i < services[s]->n_methods; i++) {
			char path[128];
			int len = snprintf(path, sizeof(path), "/%s/%s", services[s]->name,
				services[s]->methods[i].name);
			bool here = grpc_registry_find(clients, path, (size_t)len) != NULL;
			bool there = grpc_registry_find(node, path, (size_t)len) != NULL;
			cr_assert_eq(here, there, "%s", path);
			served += here;
		}
	cr_assert_geq(served, 23);
	grpc_registry_free(node);
}

static void look_at_the_ids(const ProtobufCServiceDescriptor *service,
	const struct grpc_method *methods, const char *snapshot_field)
{
	for (const struct grpc_method *m = methods; m->name != NULL; m++) {
		if ((m->flags & GRPC_RAW) == 0)
			continue;
		const struct route *route = m->row;
		char path[128];
		snprintf(path, sizeof(path), "/%s/%s", service->name, m->name);
		cr_assert_str_eq(route->path, path);
		if (route->id == 0)
			continue;
		const ProtobufCMethodDescriptor *method =
			protobuf_c_service_descriptor_get_method_by_name(service, m->name);
		const ProtobufCFieldDescriptor *field =
			protobuf_c_message_descriptor_get_field(method->input, route->id);
		cr_assert_str_eq(field->name,
			route->kind == STORE_VOLUME ? "volume_id" : snapshot_field, "%s", m->name);
	}
}

/* The field that a row looks at is what it says it is. */
Test(router, rows_look_at_the_ids)
{
	look_at_the_ids(&csi__v1__controller__descriptor, route_controller, "snapshot_id");
	look_at_the_ids(&csi__v1__group_controller__descriptor, route_group, "group_snapshot_id");
}

/* ---- groups of snapshots ---- */

#define GROUP(name) "/csi.v1.GroupController/" name
#define GROUP_ID    "aaaaaaaa.g.01234567"

static enum grpc_status ask_group(const char *first, const char *second)
{
	Csi__V1__CreateVolumeGroupSnapshotRequest request =
		CSI__V1__CREATE_VOLUME_GROUP_SNAPSHOT_REQUEST__INIT;
	ProtobufCBinaryData ids[] = {{strlen(first), (uint8_t *)(uintptr_t)first},
		{strlen(second), (uint8_t *)(uintptr_t)second}};
	request.name = (ProtobufCBinaryData){1, (uint8_t *)(uintptr_t) "g"};
	request.n_source_volume_ids = 2;
	request.source_volume_ids = ids;
	return ask(&q, GROUP("CreateVolumeGroupSnapshot"), &request.base);
}

static ProtobufCBinaryData bytes_of(const char *s)
{
	return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* a's answer is a group of two snapshots. */
static void answers_group(void)
{
	Csi__V1__Snapshot snapshots[2] = {CSI__V1__SNAPSHOT__INIT, CSI__V1__SNAPSHOT__INIT};
	Csi__V1__Snapshot *list[2] = {&snapshots[0], &snapshots[1]};
	Csi__V1__VolumeGroupSnapshot group = CSI__V1__VOLUME_GROUP_SNAPSHOT__INIT;
	Csi__V1__CreateVolumeGroupSnapshotResponse response =
		CSI__V1__CREATE_VOLUME_GROUP_SNAPSHOT_RESPONSE__INIT;
	static const char *const ids[] = {"aaaaaaaa.s0.01234567", "aaaaaaaa.s1.01234567"};
	for (unsigned i = 0; i < 2; i++) {
		snapshots[i].snapshot_id = bytes_of(ids[i]);
		snapshots[i].source_volume_id = bytes_of(ID_A);
		snapshots[i].group_snapshot_id = bytes_of(GROUP_ID);
	}
	group.group_snapshot_id = bytes_of(GROUP_ID);
	group.n_snapshots = 2;
	group.snapshots = list;
	response.group_snapshot = &group;
	a.answer.len = 0;
	uint8_t *at = buf_reserve(&a.answer,
		csi__v1__create_volume_group_snapshot_response__get_packed_size(&response));
	a.answer.len = csi__v1__create_volume_group_snapshot_response__pack(&response, at);
}

static enum grpc_status delete_group(const char *group, const char *member)
{
	Csi__V1__DeleteVolumeGroupSnapshotRequest request =
		CSI__V1__DELETE_VOLUME_GROUP_SNAPSHOT_REQUEST__INIT;
	ProtobufCBinaryData ids[] = {bytes_of(member)};
	request.group_snapshot_id = bytes_of(group);
	request.n_snapshot_ids = 1;
	request.snapshot_ids = ids;
	a.answer.len = 0;
	return ask(&q, GROUP("DeleteVolumeGroupSnapshot"), &request.base);
}

Test(router, a_group_goes_to_the_node_of_all_its_volumes)
{
	cr_assert_eq(ask_group("x", "y"), GRPC_UNAVAILABLE);
	assert_said(q.why, "no node has joined");
	join(&a, "a", 'a', GIB);
	struct store_node *node = join(&b, "b", 'b', GIB);
	answers_group();
	cr_assert_eq(ask_group(ID_A, "aaaaaaaa.v.01234567"), GRPC_OK, "%s", q.why);
	cr_assert_eq(a.calls, 1);
	cr_assert_eq(q.got.len, a.answer.len);
	/* An id of nobody is the node's to refuse. */
	cr_assert_eq(ask_group("nonsense", ID_A), GRPC_OK);
	cr_assert_eq(a.calls, 2);
	cr_assert_eq(ask_group(ID_A, ID_B), GRPC_FAILED_PRECONDITION);
	assert_said(q.why, "volume " ID_A " is on node a and volume " ID_B " on node b");
	cr_assert_eq(ask_group(ID_A, NONE), GRPC_UNAVAILABLE);
	assert_said(q.why, "no node that has joined has the pool cccccccc");
	leave(node);
	cr_assert_eq(ask_group(ID_B, ID_B), GRPC_UNAVAILABLE);
	cr_assert_eq(a.calls, 2);
	cr_assert_eq(b.calls, 0);
	/* Not even a message. */
	start_bytes(&q, GROUP("CreateVolumeGroupSnapshot"), (const uint8_t *)"\x12\x05x", 3, 0);
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_INVALID_ARGUMENT);
}

Test(router, the_members_of_a_group_are_known)
{
	join(&a, "a", 'a', GIB);
	answers_group();
	cr_assert_eq(ask_group(ID_A, ID_A), GRPC_OK);
	cr_assert_not_null(store_object(store, "aaaaaaaa.s0.01234567"));
	cr_assert_not_null(store_object(store, "aaaaaaaa.s1.01234567"));
	/* What is said of another group is not taken for this one's. */
	cr_assert_eq(delete_group("aaaaaaaa.h.01234567", "aaaaaaaa.s0.01234567"), GRPC_OK);
	cr_assert_not_null(store_object(store, "aaaaaaaa.s0.01234567"));
	cr_assert_eq(delete_group(GROUP_ID, "aaaaaaaa.s0.01234567"), GRPC_OK);
	cr_assert_null(store_object(store, "aaaaaaaa.s0.01234567"));
	cr_assert_not_null(store_object(store, "aaaaaaaa.s1.01234567"));
	cr_assert_eq(ask_id(GROUP("GetVolumeGroupSnapshot"), GROUP_ID), GRPC_OK);
	/* Of a pool that is gone for good it counts as deleted. */
	cr_assert_eq(store_forget(store, "cccccccc"), 0);
	cr_assert_eq(ask_id(GROUP("DeleteVolumeGroupSnapshot"), NONE), GRPC_OK);
	cr_assert_eq(ask_id(GROUP("GetVolumeGroupSnapshot"), NONE), GRPC_NOT_FOUND);
	/* An answer that is none is passed on, and nothing is learned. */
	a.answer.len = 0;
	buf_append(&a.answer, "\x0a\x03\x12\x05x", 5);
	cr_assert_eq(ask_group(ID_A, ID_A), GRPC_OK);
}

/* ---- by id ---- */

Test(router, an_id_goes_to_its_pools_node_as_it_came)
{
	join(&a, "a", 'a', GIB);
	join(&b, "b", 'b', GIB);
	buf_append(&a.answer, "\xc2\x3e\x02zz", 5); /* a later version's */
	for (unsigned i = 0; i < BY_ID; i++) {
		cr_assert_eq(ask_id(by_volume[i], ID_A), GRPC_OK, "%s: %s", by_volume[i], q.why);
		cr_assert_eq(a.calls, i + 1, "%s", by_volume[i]);
		cr_assert_eq(a.request.len, 2 + strlen(ID_A) + 6);
		cr_assert_eq(memcmp(a.request.data + 2 + strlen(ID_A), "\xc2\x3e\x03new", 6), 0);
		cr_assert_eq(q.got.len, 5);
		cr_assert_eq(memcmp(q.got.data, "\xc2\x3e\x02zz", 5), 0);
	}
	cr_assert_eq(b.calls, 0);
	cr_assert_eq(ask_id(PATH("ControllerGetVolume"), ID_B), GRPC_OK);
	cr_assert_eq(b.calls, 1);
}

/* A node that never joined is nobody's to attach a volume to. What else is wrong goes first. */
Test(router, a_volume_is_attached_to_nodes_that_are_known)
{
	Csi__V1__ControllerPublishVolumeRequest request =
		CSI__V1__CONTROLLER_PUBLISH_VOLUME_REQUEST__INIT;
	Csi__V1__VolumeCapability cap = CSI__V1__VOLUME_CAPABILITY__INIT;
	Csi__V1__VolumeCapability__AccessMode mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__INIT;
	join(&a, "a", 'a', GIB);
	join(&b, "b", 'b', GIB);
	cap.access_mode = &mode;
	mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER;
	request.volume_id = text(ID_A);
	request.volume_capability = &cap;
	request.node_id = text("c");
	cr_assert_eq(ask(&q, PATH("ControllerPublishVolume"), &request.base), GRPC_NOT_FOUND);
	assert_said(q.why, "c");
	request.node_id = text("b");
	cr_assert_eq(ask(&q, PATH("ControllerPublishVolume"), &request.base), GRPC_OK);
	cr_assert_eq(a.calls, 1);
	request.node_id = text("c");
	request.volume_capability = NULL;
	cr_assert_eq(ask(&q, PATH("ControllerPublishVolume"), &request.base), GRPC_OK);
	cr_assert_eq(a.calls, 2);
	cr_assert_eq(b.calls, 0);
	/* A node that is gone is taken from all the same. */
	Csi__V1__ControllerUnpublishVolumeRequest from =
		CSI__V1__CONTROLLER_UNPUBLISH_VOLUME_REQUEST__INIT;
	from.volume_id = text(ID_A);
	from.node_id = text("c");
	cr_assert_eq(ask(&q, PATH("ControllerUnpublishVolume"), &from.base), GRPC_OK);
	cr_assert_eq(a.calls, 3);
}

Test(router, an_id_of_nobody_is_answered_by_anybody)
{
	cr_assert_eq(ask_id(PATH("ControllerGetVolume"), "vol"), GRPC_UNAVAILABLE);
	assert_said(q.why, "no node has joined");
	join(&b, "b", 'b', GIB);
	b.status = GRPC_NOT_FOUND;
	b.why = "volume vol does not exist";
	cr_assert_eq(ask_id(PATH("ControllerGetVolume"), "vol"), GRPC_NOT_FOUND);
	cr_assert_str_eq(q.why, b.why);
	b.status = GRPC_INVALID_ARGUMENT;
	b.why = "volume_id is missing";
	cr_assert_eq(ask_id(PATH("DeleteVolume"), ""), GRPC_INVALID_ARGUMENT);
	cr_assert_str_eq(q.why, b.why);
	/* Not even a message. */
	start_bytes(&q, PATH("DeleteVolume"), (const uint8_t *)"\x0a\x05x", 3, 0);
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_INVALID_ARGUMENT);
	cr_assert_eq(b.calls, 2);
}

Test(router, what_is_away_is_not_gone)
{
	struct store_node *node = join(&a, "a", 'a', GIB);
	leave(node);
	for (unsigned i = 0; i < BY_ID; i++) {
		cr_assert_eq(ask_id(by_volume[i], ID_A), GRPC_UNAVAILABLE, "%s", by_volume[i]);
		assert_said(
			q.why, "pool aaaaaaaa is on node a, which was last heard of at 2027-01");
		cr_assert_eq(ask_id(by_volume[i], NONE), GRPC_UNAVAILABLE, "%s", by_volume[i]);
		assert_said(q.why, "no node that has joined has the pool cccccccc");
		assert_said(q.why, "--forget-pool cccccccc");
	}
	cr_assert_eq(a.calls, 0);
}

Test(router, what_is_gone_for_good_counts_as_deleted)
{
	cr_assert_eq(store_forget(store, "cccccccc"), 0);
	/* It may have moved to a node that has not told yet. */
	cr_assert_eq(ask_id(PATH("DeleteVolume"), NONE), GRPC_UNAVAILABLE);
	assert_said(q.why, "may have moved to another node before, and: no node has joined");
	join(&a, "a", 'a', GIB);
	cr_assert_eq(ask_id(PATH("DeleteVolume"), NONE), GRPC_OK);
	cr_assert(q.messages == 1 && q.got.len == 0);
	cr_assert_eq(ask_id(PATH("DeleteSnapshot"), NONE), GRPC_OK);
	cr_assert_eq(ask_id(PATH("ControllerGetVolume"), NONE), GRPC_NOT_FOUND);
	assert_said(q.why, "--forget-pool");
	cr_assert_eq(ask_id(PATH("ControllerExpandVolume"), NONE), GRPC_NOT_FOUND);
	cr_assert_eq(ask_id(PATH("GetSnapshot"), NONE), GRPC_NOT_FOUND);
}

/* ---- what comes back ---- */

Test(router, a_nodes_error_is_the_clients)
{
	static const bool named[] = {
		[GRPC_UNKNOWN] = true,
		[GRPC_PERMISSION_DENIED] = true,
		[GRPC_RESOURCE_EXHAUSTED] = true,
		[GRPC_FAILED_PRECONDITION] = true,
		[GRPC_INTERNAL] = true,
		[GRPC_UNAVAILABLE] = true,
		[GRPC_DATA_LOSS] = true,
		[GRPC_UNAUTHENTICATED] = true,
	};
	join(&a, "a", 'a', GIB);
	a.why = "this and that";
	for (a.status = GRPC_CANCELLED; a.status <= GRPC_UNAUTHENTICATED; a.status++) {
		cr_assert_eq(ask_id(PATH("ControllerGetVolume"), ID_A), a.status);
		cr_assert_str_eq(
			q.why, named[a.status] ? "node a: this and that" : a.why, "%d", a.status);
	}
}

Test(router, a_deadline_is_the_nodes_too)
{
	join(&a, "a", 'a', GIB);
	a.hold = true;
	start_bytes(&q, PATH("ControllerGetVolume"), (const uint8_t *)"\x0a\x15" ID_A, 23, 300);
	turn_until(a.held != NULL);
	cr_assert_lt(a.deadline_ns, ring_now_ns(ring) + 300000000);
	turn_until(q.ends == 1 && a.gone == 1);
	cr_assert_eq(q.status, GRPC_DEADLINE_EXCEEDED);
	turn_until(list_empty(&controller->forwards));
}

Test(router, a_client_that_goes_takes_its_call_along)
{
	join(&a, "a", 'a', GIB);
	a.hold = true;
	start_bytes(&q, PATH("ControllerGetVolume"), (const uint8_t *)"\x0a\x15" ID_A, 23, 0);
	turn_until(a.held != NULL);
	channel_cancel(&q.call);
	turn_until(a.gone == 1 && list_empty(&controller->forwards));
	cr_assert_eq(q.ends, 0);
}

Test(router, a_node_lost_in_the_middle)
{
	struct store_node *node = join(&a, "a", 'a', GIB);
	a.hold = true;
	start_bytes(&q, PATH("ControllerGetVolume"), (const uint8_t *)"\x0a\x15" ID_A, 23, 0);
	turn_until(a.held != NULL);
	fake_shut(&a); /* the process is killed */
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
	assert_said(q.why, "node a: ");
	/* It is back: the next call is made anew. */
	fake_open(&a, "a");
	start_bytes(&q, PATH("ControllerGetVolume"), (const uint8_t *)"\x0a\x15" ID_A, 23, 0);
	turn_until(a.held != NULL);
	/* Its stream ends: it has left. */
	leave(node);
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
	turn_until(a.gone == 2);
}

Test(router, a_node_at_another_address)
{
	join(&a, "a", 'a', GIB);
	cr_assert_eq(ask_id(PATH("ControllerGetVolume"), ID_A), GRPC_OK);
	fake_open(&b, "elsewhere");
	struct store_node *node = store_node(store, "a");
	leave(node);
	join(&b, "a", 'a', GIB);
	cr_assert_eq(ask_id(PATH("ControllerGetVolume"), ID_A), GRPC_OK);
	cr_assert(a.calls == 1 && b.calls == 1);
}

Test(router, nothing_begins_in_a_drain)
{
	join(&a, "a", 'a', GIB);
	controller_drain(controller);
	cr_assert_eq(ask_id(PATH("ControllerGetVolume"), ID_A), GRPC_UNAVAILABLE);
	assert_said(q.why, "about to end");
	cr_assert_eq(a.calls, 0);
}

/* ---- answered here ---- */

Test(router, names_and_capabilities)
{
	Csi__V1__GetPluginInfoRequest info = CSI__V1__GET_PLUGIN_INFO_REQUEST__INIT;
	Csi__V1__ProbeRequest probe = CSI__V1__PROBE_REQUEST__INIT;
	Csi__V1__ControllerGetCapabilitiesRequest capabilities =
		CSI__V1__CONTROLLER_GET_CAPABILITIES_REQUEST__INIT;
	cr_assert_eq(ask(&q, "/csi.v1.Identity/GetPluginInfo", &info.base), GRPC_OK);
	cr_assert_not_null(memmem(q.got.data, q.got.len, "csi.ringvol.dev", 15));
	cr_assert_eq(ask(&q, PATH("ControllerGetCapabilities"), &capabilities.base), GRPC_OK);
	Csi__V1__ControllerGetCapabilitiesResponse *response =
		csi__v1__controller_get_capabilities_response__unpack(NULL, q.got.len, q.got.data);
	cr_assert_geq(response->n_capabilities, 12);
	csi__v1__controller_get_capabilities_response__free_unpacked(response, NULL);
	/* Ready when there is anybody to ask, and from then on. */
	cr_assert_eq(ask(&q, "/csi.v1.Identity/Probe", &probe.base), GRPC_OK);
	cr_assert_eq(q.got.len, 2);
	struct store_node *node = join(&a, "a", 'a', GIB);
	cr_assert_eq(ask(&q, "/csi.v1.Identity/Probe", &probe.base), GRPC_OK);
	cr_assert_eq(memcmp(q.got.data, "\x0a\x02\x08\x01", 4), 0);
	leave(node);
	cr_assert_eq(ask(&q, "/csi.v1.Identity/Probe", &probe.base), GRPC_OK);
	cr_assert_eq(q.got.len, 4);
}

/* ---- what answers tell ---- */

static int64_t told_capacity(const char *id)
{
	const struct store_object *object = store_object(store, id);
	struct buf entry = {0};
	if (object == NULL)
		return -1;
	cr_assert_eq(object_entry(object, &entry), 0);
	Csi__V1__CreateVolumeResponse *as =
		csi__v1__create_volume_response__unpack(NULL, entry.len, entry.data);
	int64_t bytes = as->volume->capacity_bytes;
	csi__v1__create_volume_response__free_unpacked(as, NULL);
	buf_free(&entry);
	return bytes;
}

static enum grpc_status create(const char *name)
{
	Csi__V1__CreateVolumeRequest request = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	request.name = text(name);
	return ask(&q, PATH("CreateVolume"), &request.base);
}

Test(router, a_list_after_a_create_has_it)
{
	join(&a, "a", 'a', GIB);
	answers_volume(&a, ID_A, 1 << 30);
	cr_assert_eq(create("vol"), GRPC_OK, "%s", q.why);
	cr_assert_eq(told_capacity(ID_A), 1 << 30);
	cr_assert_null(store_name_maker(store, STORE_VOLUME, "vol"));
	/* Grown. */
	Csi__V1__ControllerExpandVolumeResponse grown =
		CSI__V1__CONTROLLER_EXPAND_VOLUME_RESPONSE__INIT;
	grown.capacity_bytes = 5LL << 30;
	pack_into(&a.answer, &grown.base);
	cr_assert_eq(ask_id(PATH("ControllerExpandVolume"), ID_A), GRPC_OK);
	cr_assert_eq(told_capacity(ID_A), 5LL << 30);
	/* Failures tell nothing. */
	a.status = GRPC_INTERNAL;
	cr_assert_eq(ask_id(PATH("DeleteVolume"), ID_A), GRPC_INTERNAL);
	cr_assert_eq(told_capacity(ID_A), 5LL << 30);
	/* Gone. */
	a.status = GRPC_OK;
	a.answer.len = 0;
	cr_assert_eq(ask_id(PATH("DeleteVolume"), ID_A), GRPC_OK);
	cr_assert_null(store_object(store, ID_A));
}

/* What a node answers may be anything; the store does not get it, nor who asks for a new name. */
Test(router, an_answer_that_is_none)
{
	join(&a, "a", 'a', GIB);
	join(&b, "b", 'b', 0);
	answers_volume(&a, ID_B, 1); /* another's */
	cr_assert_eq(create("vol"), GRPC_INTERNAL);
	cr_assert_null(store_object(store, ID_B));
	answers_volume(&a, "vol", 1); /* no id */
	cr_assert_eq(create("vol"), GRPC_INTERNAL);
	a.answer.len = 0;
	buf_append(&a.answer, "\x0a\x7f", 2);
	cr_assert_eq(create("vol"), GRPC_INTERNAL);
	cr_assert_eq(store_count(store, STORE_VOLUME), 0);
	answers_volume(&a, ID_A, 1);
	cr_assert_eq(create("vol"), GRPC_OK);
	a.answer.len = 0;
	buf_append(&a.answer, "\x08", 1);
	cr_assert_eq(ask_id(PATH("ControllerExpandVolume"), ID_A), GRPC_OK);
	cr_assert_eq(told_capacity(ID_A), 1);
}

static const struct forward *newest(void)
{
	return container_of(controller->forwards.prev, struct forward, link);
}

/* What nodes have answered and not ended counts with all that is under way. */
Test(router, answers_that_are_held_back)
{
	static uint8_t body[64 << 10] = {0xfa, 0x7f, 0xfb, 0xff, 0x03}; /* a field nobody knows */
	struct budget *memory = clients->memory;
	struct asked other = {0};
	join(&a, "a", 'a', GIB);
	size_t before = memory->used_bytes;
	buf_append(&a.answer, body, sizeof(body));
	a.hold = a.say = true;
	start_bytes(&q, PATH("ControllerGetVolume"), (const uint8_t *)"\x0a\x15" ID_A, 23, 0);
	turn_until(!list_empty(&controller->forwards) && newest()->answer.len == sizeof(body));
	cr_assert_geq(memory->used_bytes, before + sizeof(body));
	struct grpc_call *first = a.held;

	/* There is room for the next as it comes, and not for keeping it. */
	memory->max_bytes = (memory->used_bytes + (160 << 10)) / 3 * 4;
	start_bytes(&other, PATH("ControllerGetVolume"), (const uint8_t *)"\x0a\x15" ID_A, 23, 0);
	turn_until(a.calls == 2 && newest()->lost);
	grpc_end(a.held, GRPC_OK, NULL);
	turn_until(other.ends == 1);
	cr_assert_eq(other.status, GRPC_UNAVAILABLE);
	assert_said(other.why, "try again");

	memory->max_bytes = GRPC_MEMORY_MAX_BYTES;
	grpc_end(first, GRPC_OK, NULL);
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_OK, "%s", q.why);
	cr_assert_eq(q.got.len, sizeof(body));
	turn_until(memory->used_bytes <= before);
	buf_free(&other.got);
}

/* ---- one process alone ---- */

TestSuite(only, .init = env_open, .fini = teardown, .timeout = 60);

Test(only, all_of_the_controller_service_goes_there)
{
	char node[128];
	snprintf(node, sizeof(node), "unix://%s/node", dir);
	serve(node);
	/* It is away. */
	cr_assert_eq(ask_id(PATH("ControllerGetVolume"), ID_A), GRPC_UNAVAILABLE);
	fake_open(&a, "node");
	buf_append(&a.answer, "\xc2\x3e\x02zz", 5);
	unsigned calls = 0;
	for (const struct grpc_method *m = route_controller; m->name != NULL; m++) {
		if ((m->flags & GRPC_RAW) == 0)
			continue;
		char path[128];
		snprintf(path, sizeof(path), PATH("%s"), m->name);
		cr_assert_eq(ask_id(path, "vol"), GRPC_OK, "%s: %s", path, q.why);
		cr_assert_eq(a.calls, ++calls);
		cr_assert_eq(a.request.len, 2 + 3 + 6);
		cr_assert_eq(q.got.len, 5);
	}
	cr_assert_geq(calls, 9);
	a.status = GRPC_INTERNAL;
	a.why = "its own words";
	cr_assert_eq(ask_id(PATH("DeleteVolume"), ID_A), GRPC_INTERNAL);
	cr_assert_str_eq(q.why, "its own words");
	/* Identity is ours. */
	Csi__V1__ProbeRequest probe = CSI__V1__PROBE_REQUEST__INIT;
	cr_assert_eq(ask(&q, "/csi.v1.Identity/Probe", &probe.base), GRPC_OK);
	cr_assert_eq(memcmp(q.got.data, "\x0a\x02\x08\x01", 4), 0);
	cr_assert_eq(a.calls, calls + 1);
}
