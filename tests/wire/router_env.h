/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A controller, nodes that say what they are told to, and a client, on sockets of one process: for
 * test_router.c and its like. What nodes tell is put into the store by hand.
 */
#ifndef RINGVOL_TESTS_WIRE_ROUTER_ENV_H
#define RINGVOL_TESTS_WIRE_ROUTER_ENV_H

#include "cluster.pb-c.h"
#include "controller/controller.h"
#include "controller/reach.h"
#include "csi.pb-c.h"
#include "inspect.pb-c.h"
#include "reactor/ring_uring.h"
#include "rpc/channel.h"
#include "rpc/server.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIB (1ULL << 30)

/* A process at a socket. What it is asked is kept; it answers `answer`, or `status` with `why`. */
struct fake {
	struct grpc_registry *registry;
	struct grpc_service services[5];
	struct server *server;
	char address[128];
	enum grpc_status status;
	const char *why;
	struct buf answer;
	bool hold;      /* until the test ends it */
	bool say;       /* its message, before it is held */
	unsigned again; /* so often List says it once more */
	struct grpc_call *held;
	unsigned gone, calls;
	char methods[256]; /* of the first calls, a blank behind each */
	struct buf request;
	uint64_t deadline_ns;
	unsigned to_stream, streamed; /* messages of a KiB */
	bool hold_grant;              /* it does not answer */
	bool no_member;               /* it cannot copy between nodes */
	struct buf grant;             /* what GrantCopy answers */
	Ringvol__V1__GrantCopyRequest *granted;
	Ringvol__V1__OfferCopyRequest *offered;
	struct buf taken; /* what TakeVolume answers, or take_status */
	enum grpc_status take_status;
	bool hold_take;
	struct buf departed; /* what GetDeparture answers, or departed_status */
	enum grpc_status departed_status;
	bool no_moves; /* it cannot move volumes */
};

static struct ring *ring;
static struct controller *controller;
static struct store *store;
static struct grpc_registry *clients, *nodes;
static struct server *server;
static struct channel *client;
static struct fake a, b, c;
static char dir[] = "/tmp/ringvol-router-XXXXXX";

#define turn_until(done)                                                                           \
	do {                                                                                       \
		while (!(done)) {                                                                  \
			cr_assert_eq(ring_turn(ring, false), 0);                                   \
			usleep(50);                                                                \
		}                                                                                  \
	} while (0)

/* ---- nodes ---- */

static void fake_gone(struct grpc_call *call, void *arg)
{
	struct fake *f = arg;
	f->gone++;
	f->held = NULL;
	grpc_end(call, GRPC_CANCELLED, NULL);
}

static void fake_take(struct fake *f, struct grpc_call *call)
{
	size_t len;
	const uint8_t *data = grpc_call_bytes(call, &len);
	f->calls++;
	size_t at = strlen(f->methods);
	snprintf(f->methods + at, sizeof(f->methods) - at, "%s ", grpc_call_method(call));
	f->deadline_ns = grpc_call_deadline_ns(call);
	f->request.len = 0;
	cr_assert_eq(buf_append(&f->request, data, len), 0);
}

static void fake_answer(struct fake *f, struct grpc_call *call)
{
	if (f->status == GRPC_OK)
		grpc_reply_bytes(call, f->answer.data, f->answer.len);
	else
		grpc_end(call, f->status, f->why);
}

static void fake_call(struct grpc_call *call, const ProtobufCMessage *none)
{
	struct fake *f = grpc_call_context(call);
	(void)none;
	fake_take(f, call);
	if (!f->hold) {
		fake_answer(f, call);
		return;
	}
	if (f->say)
		grpc_send_bytes(call, f->answer.data, f->answer.len);
	f->held = call;
	grpc_on_gone(call, fake_gone, f);
}

static void fake_grant(struct grpc_call *call, const ProtobufCMessage *none)
{
	struct fake *f = grpc_call_context(call);
	(void)none;
	fake_take(f, call);
	if (f->granted != NULL)
		ringvol__v1__grant_copy_request__free_unpacked(f->granted, NULL);
	f->granted = ringvol__v1__grant_copy_request__unpack(NULL, f->request.len, f->request.data);
	cr_assert_not_null(f->granted);
	if (f->hold_grant) {
		f->held = call;
		grpc_on_gone(call, fake_gone, f);
		return;
	}
	if (f->status == GRPC_OK)
		grpc_reply_bytes(call, f->grant.data, f->grant.len);
	else
		grpc_end(call, f->status, f->why);
}

static void fake_offer(struct grpc_call *call, const ProtobufCMessage *none)
{
	struct fake *f = grpc_call_context(call);
	(void)none;
	fake_take(f, call);
	if (f->offered != NULL)
		ringvol__v1__offer_copy_request__free_unpacked(f->offered, NULL);
	f->offered = ringvol__v1__offer_copy_request__unpack(NULL, f->request.len, f->request.data);
	cr_assert_not_null(f->offered);
	grpc_reply_bytes(call, NULL, 0);
}

static void fake_take_volume(struct grpc_call *call, const ProtobufCMessage *none)
{
	struct fake *f = grpc_call_context(call);
	(void)none;
	fake_take(f, call);
	if (f->hold_take) {
		f->held = call;
		grpc_on_gone(call, fake_gone, f);
		return;
	}
	if (f->take_status == GRPC_OK)
		grpc_reply_bytes(call, f->taken.data, f->taken.len);
	else
		grpc_end(call, f->take_status, f->why);
}

static void fake_departure(struct grpc_call *call, const ProtobufCMessage *none)
{
	struct fake *f = grpc_call_context(call);
	(void)none;
	fake_take(f, call);
	if (f->departed_status == GRPC_OK)
		grpc_reply_bytes(call, f->departed.data, f->departed.len);
	else
		grpc_end(call, f->departed_status, f->why);
}

static void fake_drop(struct grpc_call *call, const ProtobufCMessage *none)
{
	struct fake *f = grpc_call_context(call);
	(void)none;
	fake_take(f, call);
	f->departed.len = 0;
	grpc_reply_bytes(call, NULL, 0);
}

/* Answers each message of `answer`, which are fields of bytes one behind the other. */
static void fake_list(struct grpc_call *call, const ProtobufCMessage *none)
{
	struct fake *f = grpc_call_context(call);
	(void)none;
	fake_take(f, call);
	if (f->hold) {
		f->held = call;
		grpc_on_gone(call, fake_gone, f);
		return;
	}
	for (unsigned i = 0; f->answer.len != 0 && i <= f->again; i++)
		grpc_send_bytes(call, f->answer.data, f->answer.len);
	grpc_end(call, f->status, f->why);
}

/* As many messages as its client reads; the last one is held back while `hold` is set. */
static void fake_go_on(struct grpc_call *call, void *arg)
{
	struct fake *f = arg;
	uint8_t data[1024];
	bool more = true;
	memset(data, (int)(f->streamed % 251), sizeof(data));
	while (more && f->streamed < f->to_stream) {
		f->streamed++;
		more = grpc_send_bytes(call, data, sizeof(data));
	}
	if (more && !f->hold) {
		f->held = NULL;
		grpc_end(call, f->status, f->why);
	}
}

static void fake_stream(struct grpc_call *call, const ProtobufCMessage *none)
{
	struct fake *f = grpc_call_context(call);
	(void)none;
	fake_take(f, call);
	f->streamed = 0;
	f->held = call;
	grpc_on_gone(call, fake_gone, f);
	grpc_on_writable(call, fake_go_on, f);
	fake_go_on(call, f);
}

static const struct grpc_method fake_controller[] = {
	{"ControllerPublishVolume", fake_call, GRPC_RAW},
	{"ControllerUnpublishVolume", fake_call, GRPC_RAW},
	{"CreateVolume", fake_call, GRPC_RAW},
	{"DeleteVolume", fake_call, GRPC_RAW},
	{"ValidateVolumeCapabilities", fake_call, GRPC_RAW},
	{"ListVolumes", fake_call, GRPC_RAW},
	{"GetCapacity", fake_call, GRPC_RAW},
	{"CreateSnapshot", fake_call, GRPC_RAW},
	{"DeleteSnapshot", fake_call, GRPC_RAW},
	{"ListSnapshots", fake_call, GRPC_RAW},
	{"GetSnapshot", fake_call, GRPC_RAW},
	{"ControllerExpandVolume", fake_call, GRPC_RAW},
	{"ControllerModifyVolume", fake_call, GRPC_RAW},
	{"ControllerGetVolume", fake_call, GRPC_RAW},
	{"ControllerGetVolumeHealth", fake_call, GRPC_RAW},
	{"ControllerListVolumeHealth", fake_call, GRPC_RAW},
	{NULL},
};
static const struct grpc_method fake_group[] = {
	{"CreateVolumeGroupSnapshot", fake_call, GRPC_RAW},
	{"DeleteVolumeGroupSnapshot", fake_call, GRPC_RAW},
	{"GetVolumeGroupSnapshot", fake_call, GRPC_RAW},
	{NULL},
};
static const struct grpc_method fake_member[] = {
	{"GrantCopy", fake_grant, GRPC_RAW},
	{"OfferCopy", fake_offer, GRPC_RAW},
	{"TakeVolume", fake_take_volume, GRPC_RAW},
	{"GetDeparture", fake_departure, GRPC_RAW},
	{"DropDeparture", fake_drop, GRPC_RAW},
	{NULL},
};
static const struct grpc_method fake_old_member[] = {
	{"GrantCopy", fake_grant, GRPC_RAW},
	{"OfferCopy", fake_offer, GRPC_RAW},
	{NULL},
};
static const struct grpc_method fake_metadata[] = {
	{"GetMetadataAllocated", fake_stream, GRPC_RAW},
	{"GetMetadataDelta", fake_stream, GRPC_RAW},
	{NULL},
};
static const struct grpc_method fake_inspect[] = {
	{"List", fake_list, GRPC_RAW},
	{NULL},
};

static inline void fake_open(struct fake *f, const char *name)
{
	struct err err = {0};
	f->services[0] =
		(struct grpc_service){&csi__v1__controller__descriptor, fake_controller, f};
	f->services[1] = (struct grpc_service){&ringvol__v1__inspect__descriptor, fake_inspect, f};
	f->services[2] =
		(struct grpc_service){&csi__v1__snapshot_metadata__descriptor, fake_metadata, f};
	f->services[3] =
		(struct grpc_service){&csi__v1__group_controller__descriptor, fake_group, f};
	f->services[4] = (struct grpc_service){
		&ringvol__v1__member__descriptor, f->no_moves ? fake_old_member : fake_member, f};
	f->registry = grpc_registry_new();
	for (unsigned i = 0; i < (f->no_member ? 4 : 5); i++)
		cr_assert_eq(grpc_registry_add(f->registry, &f->services[i], NULL), 0);
	const struct server_config config = {
		.ring = ring, .registry = f->registry, .limits = server_limits_default};
	snprintf(f->address, sizeof(f->address), "unix://%s/%s", dir, name);
	cr_assert_eq(server_open(&f->server, &config), 0);
	cr_assert_eq(server_listen(f->server, f->address, &err), 0, "%s", err.message);
}

static inline void fake_shut(struct fake *f)
{
	server_close(f->server);
	grpc_registry_free(f->registry);
	f->server = NULL;
	f->registry = NULL;
}

static inline void fake_close(struct fake *f)
{
	fake_shut(f);
	buf_free(&f->answer);
	buf_free(&f->request);
	buf_free(&f->grant);
	buf_free(&f->taken);
	buf_free(&f->departed);
	if (f->granted != NULL)
		ringvol__v1__grant_copy_request__free_unpacked(f->granted, NULL);
	if (f->offered != NULL)
		ringvol__v1__offer_copy_request__free_unpacked(f->offered, NULL);
}

/* Present, with a pool "default" whose uuid is 32 times that digit. */
static inline struct store_node *join(
	struct fake *f, const char *id, char digit, uint64_t available_bytes)
{
	struct err err = {0};
	struct store_node *node;
	struct store_pool *pool;
	char uuid[33] = "";
	const struct store_segment segment = {"topology.ringvol.dev/node", id};
	if (f->server == NULL)
		fake_open(f, id);
	memset(uuid, digit, 32);
	cr_assert_eq(store_join(store, id, id, f->address, "1.0", &segment, 1, &node, &err), 0,
		"%s", err.message);
	cr_assert_eq(store_pool_set(store, node, uuid, "default", STORE_POOL_READY, "",
			     available_bytes, &pool, &err),
		0, "%s", err.message);
	node->seen_unix = 1800000000;
	store_synced(store, node);
	return node;
}

static inline void leave(struct store_node *node)
{
	store_leave(store, node);
	reach_close(node);
}

/* ---- the client ---- */

struct asked {
	struct channel_call call;
	struct buf got;
	unsigned messages, ends;
	enum grpc_status status;
	char why[512];
};

static inline bool asked_message(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct asked *q = container_of(call, struct asked, call);
	q->messages++;
	cr_assert_eq(buf_append(&q->got, data, len), 0);
	return true;
}

static inline void asked_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	struct asked *q = container_of(call, struct asked, call);
	(void)sent;
	q->ends++;
	q->status = status;
	snprintf(q->why, sizeof(q->why), "%s", message);
}

static inline void start_bytes(
	struct asked *q, const char *path, const uint8_t *data, size_t len, uint64_t ms)
{
	buf_free(&q->got);
	*q = (struct asked){
		.call =
			{
				.path = path,
				.deadline_ns =
					ms != 0 ? ring_now_ns(ring) + ms * 1000000 : UINT64_MAX,
				.on_message = asked_message,
				.on_end = asked_end,
			},
	};
	channel_start(client, &q->call, data, len, true);
}

static inline void start(struct asked *q, const char *path, const ProtobufCMessage *request)
{
	size_t len = protobuf_c_message_get_packed_size(request);
	uint8_t *data = malloc(len + 1);
	protobuf_c_message_pack(request, data);
	start_bytes(q, path, data, len, 0);
	free(data);
}

/* Its status, when it has ended; the words are in q->why. */
static inline enum grpc_status ask(
	struct asked *q, const char *path, const ProtobufCMessage *request)
{
	start(q, path, request);
	turn_until(q->ends == 1);
	return q->status;
}

/* ---- messages ---- */

static inline ProtobufCBinaryData text(const char *s)
{
	return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)s};
}

static inline void pack_into(struct buf *out, const ProtobufCMessage *message)
{
	out->len = 0;
	uint8_t *at = buf_reserve(out, protobuf_c_message_get_packed_size(message) + 1);
	cr_assert_not_null(at);
	out->len = protobuf_c_message_pack(message, at);
}

/* CreateVolumeResponse. */
static inline void answers_volume(struct fake *f, const char *id, int64_t bytes)
{
	Csi__V1__CreateVolumeResponse response = CSI__V1__CREATE_VOLUME_RESPONSE__INIT;
	Csi__V1__Volume volume = CSI__V1__VOLUME__INIT;
	volume.volume_id = text(id);
	volume.capacity_bytes = bytes;
	response.volume = &volume;
	pack_into(&f->answer, &response.base);
}

static inline void assert_said(const char *said, const char *words)
{
	cr_assert(strstr(said, words) != NULL, "'%s' lacks '%s'", said, words);
}

/* ---- life ---- */

static inline void serve(const char *only)
{
	struct err err = {0};
	char endpoint[128];
	const struct controller_config config = {
		.driver_name = "csi.ringvol.dev",
		.version = "1.0",
		.health = CSI_HEALTH_1_12 | CSI_HEALTH_1_13,
		.controller_expand = true,
		.attach = true,
		.node = only,
	};
	cr_assert_eq(controller_open(&controller, ring, &config, &err), 0, "%s", err.message);
	store = controller->store;
	store_settle(store);
	clients = grpc_registry_new();
	nodes = grpc_registry_new();
	cr_assert_eq(controller_register(controller, clients, nodes), 0);
	const struct server_config serving = {
		.ring = ring, .registry = clients, .limits = server_limits_default};
	snprintf(endpoint, sizeof(endpoint), "unix://%s/ctl", dir);
	cr_assert_eq(server_open(&server, &serving), 0);
	cr_assert_eq(server_listen(server, endpoint, &err), 0, "%s", err.message);
	const struct channel_config to = {.ring = ring, .address = endpoint};
	cr_assert_eq(channel_open(&client, &to, &err), 0, "%s", err.message);
}

static inline void env_open(void)
{
	cr_assert_not_null(mkdtemp(dir));
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
}

static inline void env_close(void)
{
	channel_close(client);
	server_close(server);
	controller_close(controller);
	grpc_registry_free(clients);
	grpc_registry_free(nodes);
	struct fake *fakes[] = {&a, &b, &c};
	for (unsigned i = 0; i < 3; i++)
		fake_close(fakes[i]);
	ring_close(ring);
	cr_assert_eq(rmdir(dir), 0, "something is left in %s", dir);
}

#endif
