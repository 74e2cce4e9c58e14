/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table, and what needs no more than an id: the node that has its pool gets the request as it
 * came. An id that is none of ours, or none at all, is answered by any node: what they say of it is
 * the same. It fails where the node is away, or nobody knows the pool: never as "not found", for it
 * is elsewhere, unless somebody has said (--forget-pool) that it is gone for good.
 */
#include "controller/route.h"

#include "controller/capacity.h"
#include "controller/create.h"
#include "controller/delete.h"
#include "controller/forward.h"
#include "controller/groups.h"
#include "controller/hear.h"
#include "controller/home.h"
#include "controller/learn.h"
#include "controller/lists.h"
#include "controller/move.h"
#include "controller/scan.h"
#include "csi.pb-c.h"
#include "csi/messages.h"
#include "csi/services.h"
#include "csi/status.h"
#include "pool/record.h"

#include <errno.h>
#include <stdlib.h>

/* ---- by id ---- */

/* The node of the id in a field; NULL: it is no id of ours. */
static int find_home(struct forward *f, uint32_t field, char id[RECORD_ID_MAX],
	struct store_node **ret, struct err *err)
{
	size_t len;
	const uint8_t *data = grpc_call_bytes(f->client, &len);
	if (scan_string(data, len, field, id, RECORD_ID_MAX) < 0)
		return err_set(err, ERR_INVALID, "the request is malformed");
	return home_of_id(f->controller->store, id, ret, err);
}

/* The same, if that is where the other id's object is as well. Where the first is no id of ours,
 * the other's node says so: another node would not know the other. */
static int check_other(struct forward *f, const char *id, struct store_node **node, struct err *err)
{
	char other[RECORD_ID_MAX];
	struct store_node *there;
	int r = find_home(f, f->route->other_id, other, &there, err);
	if (r < 0 || there == NULL || there == *node)
		return r;
	if (*node == NULL) {
		*node = there;
		return 0;
	}
	return err_set(err, ERR_PRECONDITION,
		"%s is on node %.64s, and %s on node %.64s: they share nothing, so only all of one of them can be told",
		id, (*node)->id, other, there->id);
}

static int find_node(struct forward *f, struct store_node **ret, struct err *err)
{
	const struct store *store = f->controller->store;
	char id[RECORD_ID_MAX] = "";
	int r = find_home(f, f->route->id, id, ret, err);
	f->subject = arena_strdup(f->arena, id);
	if (f->subject == NULL) {
		f->subject = "";
		return err_set(err, ERR_NO_ROOM, "out of memory");
	}
	if (r == 0 && f->route->other_id != 0)
		r = check_other(f, id, ret, err);
	if (r < 0 || *ret != NULL)
		return r;
	*ret = home_anywhere(store);
	return *ret != NULL ? 0
			    : err_set(err, ERR_UNAVAILABLE,
				      "no node has joined this controller yet; try again");
}

static void on_answer(struct forward *f, enum grpc_status status, const char *message)
{
	if (status == GRPC_OK && f->route->learn != NULL && f->controller->only == NULL)
		f->route->learn(f);
	forward_pass(f, status, message);
}

static struct forward *forward_new(
	struct controller *controller, struct grpc_call *call, const struct route *route)
{
	struct forward *f = calloc(1, sizeof(*f));
	if (f == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return NULL;
	}
	f->on_answer = on_answer;
	forward_open(f, controller, call, route);
	return f;
}

/* node NULL: config.node's process. */
static void pass_on(struct forward *f, struct store_node *node)
{
	struct err err = {0};
	size_t len;
	const uint8_t *data = grpc_call_bytes(f->client, &len);
	if (forward_call(f, node, f->route->path, data, len, &err) < 0)
		forward_refuse(f, &err);
}

/* The node that the request names is one of ours. What else is wrong with the request is the
 * volume's node to refuse, and goes first: an id that is missing or too long ("" here), and a
 * capability that is missing. */
static int check_named(struct forward *f, struct err *err)
{
	enum { CAPABILITY = 3 }; /* of ControllerPublishVolumeRequest */
	char id[HEAR_NODE_ID_MAX + 1];
	const uint8_t *capability;
	size_t len, capability_len;
	const uint8_t *data = grpc_call_bytes(f->client, &len);
	if (f->route->node_id == 0)
		return 0;
	if (scan_string(data, len, f->route->node_id, id, sizeof(id)) < 0 ||
		scan_bytes(data, len, CAPABILITY, &capability, &capability_len) < 0)
		return err_set(err, ERR_INVALID, "the request is malformed");
	if (id[0] == '\0' || capability_len == 0 || store_node(f->controller->store, id) != NULL)
		return 0;
	return err_set(err, ERR_NOT_FOUND, "node_id: no node %.64s has ever joined", id);
}

static void by_id(struct controller *controller, struct grpc_call *call, const struct route *route)
{
	struct forward *f = forward_new(controller, call, route);
	struct store_node *node = NULL;
	struct err err = {0};
	if (f == NULL)
		return;
	if (check_named(f, &err) == 0 && find_node(f, &node, &err) == 0)
		pass_on(f, node);
	else if (route->deletes && err.code == ERR_NOT_FOUND)
		forward_end(f, GRPC_OK, NULL); /* an empty message */
	else
		forward_refuse(f, &err);
}

/* ---- what the rows run ---- */

static struct controller *controller_of(const struct grpc_call *call)
{
	return container_of((struct csi *)grpc_call_context(call), struct controller, self);
}

static void run(struct grpc_call *call, const ProtobufCMessage *none)
{
	const struct route *route = grpc_call_row(call);
	struct controller *controller = controller_of(call);
	(void)none;
	if (controller->draining) {
		grpc_end(call, GRPC_UNAVAILABLE, "the controller is about to end; try again");
	} else if (controller->only == NULL) {
		route->run(controller, call, route);
	} else {
		struct forward *f = forward_new(controller, call, route);
		if (f != NULL)
			pass_on(f, NULL);
	}
}

static int probe(struct csi_query *q)
{
	const struct controller *c = container_of(q->csi, struct controller, self);
	Csi__V1__ProbeResponse *response = q->response;
	response->ready = csi_message_new(q->arena, &csi__v1__bool_value__descriptor);
	if (response->ready == NULL)
		return -ENOMEM;
	/* Sidecars wait for a yes at their start, and some restart the driver for a no later: so it
	 * is said once there is anybody to ask, whoever leaves after that. */
	const struct store_node *node = NULL;
	bool met = c->only != NULL;
	while (!met && (node = store_node_next(c->store, node)) != NULL)
		met = node->state == STORE_NODE_PRESENT || node->state == STORE_NODE_ABSENT;
	response->ready->value = met && !c->draining;
	return 0;
}

/* ---- the table ---- */

#define ANSWERED(fn)                                                                               \
	csi_rpc_run, .row = &(const struct csi_rpc)                                                \
	{                                                                                          \
		.answer = fn                                                                       \
	}

const struct grpc_method route_identity[] = {
	{"GetPluginInfo", ANSWERED(csi_plugin_info)},
	{"GetPluginCapabilities", ANSWERED(csi_plugin_capabilities)},
	{"Probe", ANSWERED(probe)},
	{NULL},
};

#define ROUTED_IN(service, name, ...)                                                              \
	{                                                                                          \
#name, run, GRPC_RAW, &(const struct route)                                        \
		{                                                                                  \
			.path = "/csi.v1." #service "/" #name, __VA_ARGS__                         \
		}                                                                                  \
	}
#define ROUTED(name, ...) ROUTED_IN(Controller, name, __VA_ARGS__)
/* Field 1 of each of them. */
#define BY_VOLUME   .run = by_id, .id = 1, .kind = STORE_VOLUME
#define BY_SNAPSHOT .run = by_id, .id = 1, .kind = STORE_SNAPSHOT

const struct grpc_method route_controller[] = {
	/* ROUTE_ATTACHED */
	ROUTED(ControllerPublishVolume, BY_VOLUME, .node_id = 2),
	ROUTED(ControllerUnpublishVolume, BY_VOLUME, .deletes = true),
	ROUTED(CreateVolume, .run = create_volume, .kind = STORE_VOLUME, .learn = learn_made),
	ROUTED(DeleteVolume, .run = delete_volume, .id = 1, .kind = STORE_VOLUME,
		.learn = learn_gone),
	ROUTED(ValidateVolumeCapabilities, BY_VOLUME),
	ROUTED(ListVolumes, .run = list_volumes, .kind = STORE_VOLUME),
	ROUTED(GetCapacity, .run = get_capacity),
	{"ControllerGetCapabilities", ANSWERED(csi_controller_capabilities)},
	ROUTED(CreateSnapshot, .run = create_snapshot, .kind = STORE_SNAPSHOT, .learn = learn_made),
	ROUTED(DeleteSnapshot, BY_SNAPSHOT, .deletes = true, .learn = learn_gone),
	ROUTED(ListSnapshots, .run = list_snapshots, .kind = STORE_SNAPSHOT),
	ROUTED(GetSnapshot, BY_SNAPSHOT),
	ROUTED(ControllerExpandVolume, BY_VOLUME, .learn = learn_grown),
	ROUTED(ControllerModifyVolume, BY_VOLUME),
	ROUTED(ControllerGetVolume, BY_VOLUME),
	ROUTED(ControllerListVolumeHealth, .run = list_health, .kind = STORE_VOLUME),
	ROUTED(ControllerGetVolumeHealth, BY_VOLUME),
	{NULL},
};

const struct grpc_method route_snapshot_metadata[] = {
	ROUTED_IN(SnapshotMetadata, GetMetadataAllocated, BY_SNAPSHOT, .streams = true),
	ROUTED_IN(SnapshotMetadata, GetMetadataDelta, BY_SNAPSHOT, .other_id = 2, .streams = true),
	{NULL},
};

const struct grpc_method route_move[] = {
	{"MoveVolume", run, GRPC_RAW,
		&(const struct route){.path = "/ringvol.v1.Move/MoveVolume",
			.run = move_volume,
			.kind = STORE_VOLUME,
			.learn = learn_moved}},
	{NULL},
};

#define ROUTED_GROUP(name, ...) ROUTED_IN(GroupController, name, __VA_ARGS__)

const struct grpc_method route_group[] = {
	{"GroupControllerGetCapabilities", ANSWERED(csi_group_capabilities)},
	ROUTED_GROUP(CreateVolumeGroupSnapshot, .run = create_group, .learn = learn_group),
	ROUTED_GROUP(
		DeleteVolumeGroupSnapshot, BY_SNAPSHOT, .deletes = true, .learn = learn_group_gone),
	ROUTED_GROUP(GetVolumeGroupSnapshot, BY_SNAPSHOT),
	{NULL},
};
