/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passing on. Happy path: a call to the node, its answer kept until its status is here (a stream's
 * messages are not), the answer passed on as it is. It fails as the node's call does; what is lost
 * in the middle is UNAVAILABLE, and to repeat it is the client's.
 */
#include "controller/forward.h"

#include "base/budget.h"
#include "base/log.h"
#include "controller/reach.h"
#include "csi/status.h"
#include "rpc/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- counting ---- */

static struct controller_routed *routed(struct controller *c, const char *method)
{
	for (unsigned i = 0; i < c->routed_count; i++)
		if (c->routed[i].method == method)
			return &c->routed[i];
	if (c->routed_count == CONTROLLER_ROUTES_MAX)
		return NULL;
	c->routed[c->routed_count].method = method;
	return &c->routed[c->routed_count++];
}

static void count(const struct forward *f, enum grpc_status status)
{
	struct controller_routed *r = routed(f->controller, f->route->path);
	if (r == NULL)
		return;
	uint64_t ns = ring_now_ns(f->controller->ring) - f->start_ns;
	r->time.count[hist_bucket(ns)]++;
	r->sum_ns += ns;
	r->failed += status != GRPC_OK;
}

/* ---- the end ---- */

static struct budget *memory(const struct forward *f)
{
	return f->controller->clients->memory;
}

/* The answer has grown or gone. */
static void answer_count(struct forward *f)
{
	budget_give(memory(f), f->counted);
	f->counted = f->answer.cap;
	budget_add(memory(f), f->counted);
}

static void forward_free(struct forward *f)
{
	list_remove(&f->link);
	buf_free(&f->answer);
	answer_count(f);
	struct arena *arena = f->arena;
	free(f);
	arena_unref(arena);
}

void forward_end(struct forward *f, enum grpc_status status, const char *message)
{
	struct grpc_call *client = f->client;
	count(f, status);
	if (status == GRPC_OK && !f->route->streams)
		grpc_reply_bytes(client, f->answer.data, f->answer.len);
	else
		grpc_end(client, status, message);
	forward_free(f);
}

/* Whether it is the node, and not the request, that such an answer tells of. */
static bool tells_of_node(enum grpc_status status)
{
	switch (status) {
	case GRPC_RESOURCE_EXHAUSTED:
	case GRPC_FAILED_PRECONDITION:
	case GRPC_INTERNAL:
	case GRPC_UNAVAILABLE:
	case GRPC_DATA_LOSS:
	case GRPC_UNKNOWN:
	case GRPC_PERMISSION_DENIED:
	case GRPC_UNAUTHENTICATED:
		return true;
	default:
		return false;
	}
}

/* What changes something; the rest is asked often. */
void forward_log(const struct forward *f, enum grpc_status status, const char *message)
{
	char took[32], code[16];
	if (f->route->learn == NULL || f->node_id[0] == '\0')
		return;
	snprintf(took, sizeof(took), "%.1f",
		(double)(ring_now_ns(f->controller->ring) - f->start_ns) / 1e6);
	snprintf(code, sizeof(code), "%d", status);
	log_event(LOG_LEVEL_INFO, "call passed on",
		log_fields({"op", grpc_call_method(f->client)}, {"volume", f->subject},
			{"node", f->node_id}, {"status", status != GRPC_OK ? code : NULL},
			{"error", status != GRPC_OK ? message : NULL}, {"took_ms", took}));
}

void forward_pass(struct forward *f, enum grpc_status status, const char *message)
{
	const char *named = NULL;
	forward_log(f, status, message);
	if (f->node_id[0] != '\0' && tells_of_node(status))
		named = arena_printf(f->arena, "node %s: %s", f->node_id, message);
	forward_end(f, status, named != NULL ? named : message);
}

void forward_refuse(struct forward *f, const struct err *err)
{
	struct grpc_call *client = f->client;
	count(f, csi_status(err->code));
	csi_refuse(client, err);
	forward_free(f);
}

void forward_end_streams(struct controller *controller)
{
	list_for_each_safe (link, &controller->forwards) {
		struct forward *f = container_of(link, struct forward, link);
		if (!f->route->streams)
			continue;
		channel_cancel(&f->call);
		forward_end(f, GRPC_UNAVAILABLE,
			"the controller is about to end; go on with starting_offset behind what was received");
	}
}

bool forward_others(const struct forward *f)
{
	list_for_each (link, &f->controller->forwards) {
		const struct forward *other = container_of(link, struct forward, link);
		if (other != f && other->route == f->route && strcmp(other->key, f->key) == 0)
			return true;
	}
	return false;
}

bool forward_is_under_way(void *arg, enum store_kind kind, const char *key)
{
	const struct controller *controller = arg;
	list_for_each (link, &controller->forwards) {
		const struct forward *f = container_of(link, struct forward, link);
		if (f->route->kind == kind && strcmp(f->key, key) == 0)
			return true;
	}
	return false;
}

/* ---- a call ---- */

/* One message is all that most calls answer; of a peer that sends more, the last. */
static bool on_message(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct forward *f = container_of(call, struct forward, call);
	if (f->route->streams)
		return grpc_send_bytes(f->client, data, len);
	f->answer.len = 0;
	f->lost = !budget_has_share(memory(f), len) || buf_append(&f->answer, data, len) < 0;
	answer_count(f);
	return true;
}

static void on_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	struct forward *f = container_of(call, struct forward, call);
	f->sent = sent;
	if (f->lost && status == GRPC_OK) {
		/* What the node has done stays done; the client asks again. */
		status = GRPC_UNAVAILABLE;
		message = "too much of requests and answers is under way: try again";
	}
	f->on_answer(f, status, message);
}

static void on_client_gone(struct grpc_call *client, void *arg)
{
	struct forward *f = arg;
	f->sent = f->call.sent;
	channel_cancel(&f->call);
	count(f, GRPC_CANCELLED);
	forward_log(f, GRPC_CANCELLED, "the client has gone");
	if (f->on_gone != NULL)
		f->on_gone(f);
	grpc_end(client, GRPC_CANCELLED, NULL);
	forward_free(f);
}

static void on_client_writable(struct grpc_call *client, void *arg)
{
	struct forward *f = arg;
	(void)client;
	if (channel_call_active(&f->call))
		channel_read(&f->call);
}

void forward_open(struct forward *f, struct controller *controller, struct grpc_call *client,
	const struct route *route)
{
	f->controller = controller;
	f->client = client;
	f->route = route;
	f->node_id = f->subject = "";
	f->start_ns = ring_now_ns(controller->ring);
	f->arena = arena_ref(grpc_call_arena(client));
	list_push(&controller->forwards, &f->link);
	grpc_on_gone(client, on_client_gone, f);
	grpc_on_writable(client, on_client_writable, f);
}

int forward_call(struct forward *f, struct store_node *node, const char *path, const uint8_t *data,
	size_t len, struct err *err)
{
	struct channel *channel = f->controller->only;
	if (node != NULL) {
		int r = reach_node(f->controller, node, &channel, err);
		if (r < 0)
			return r;
		f->node_id = arena_strdup(f->arena, node->id);
		if (f->node_id == NULL) {
			f->node_id = "";
			return err_set(err, ERR_NO_ROOM, "out of memory");
		}
	}
	f->answer.len = 0;
	f->lost = f->sent = false;
	f->call = (struct channel_call){
		.path = path,
		.deadline_ns = grpc_call_deadline_ns(f->client),
		.on_message = on_message,
		.on_end = on_end,
	};
	channel_start(channel, &f->call, data, len, true);
	return 0;
}

int forward_message(struct forward *f, const char *node_id, const char *path,
	const ProtobufCMessage *request, struct err *err)
{
	struct store_node *node = store_node(f->controller->store, node_id);
	if (node == NULL)
		return err_set(err, ERR_UNAVAILABLE, "node %s is not known any more", node_id);
	uint8_t *data = arena_alloc(f->arena, protobuf_c_message_get_packed_size(request) + 1);
	if (data == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	return forward_call(f, node, path, data, protobuf_c_message_pack(request, data), err);
}
