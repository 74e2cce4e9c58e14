/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inspect.List. Happy path: each node in the order of ids is asked the same, its messages are
 * passed on as they come, with its id added, and then one of our own says how it is. One after the
 * other, so that a slow client holds up one node's answer and no memory. It fails for the client
 * alone: a node that cannot be asked, ends early or is silent is said so in its own message.
 *
 * A message of a node is one field: its number says what it is, and what is in it gets a field
 * `node` behind the others. So items of later versions go through, but for their node.
 */
#include "controller/inspect.h"

#include "base/clock.h"
#include "controller/reach.h"
#include "controller/ready.h"
#include "controller/request.h"
#include "controller/scan.h"
#include "csi/messages.h"
#include "csi/rpc.h"
#include "csi/status.h"
#include "inspect.pb-c.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	ITEM_FIRST = RINGVOL__V1__LIST_RESPONSE__ITEM_POOL,
	ITEM_LAST = RINGVOL__V1__LIST_RESPONSE__ITEM_QUARANTINED,
	ITEM_NODE = 30, /* the field `node` of those that is_named() says */
	ITEM_BORROWED = RINGVOL__V1__LIST_RESPONSE__ITEM_BORROWED,
	ITEM_CLUSTER_NODE = RINGVOL__V1__LIST_RESPONSE__ITEM_CLUSTER_NODE,
};

#define LIST_PATH "/ringvol.v1.Inspect/List"

struct look {
	struct grpc_call *client;
	struct controller *controller;
	Ringvol__V1__ListRequest *request; /* in the client's arena */
	bool wants_nodes, wants_items;
	char node_id[sizeof(((struct grpc_peer *)NULL)->node_id)]; /* the last asked; "" */
	struct channel_call call;
	struct ring_timer silence;
	bool held; /* the client has to read before there is more */
};

static struct controller *controller_of(const struct grpc_call *call)
{
	return container_of((struct csi *)grpc_call_context(call), struct controller, self);
}

static void look_end(struct look *l, enum grpc_status status, const char *message)
{
	struct grpc_call *client = l->client;
	ring_timer_cancel(l->controller->ring, &l->silence);
	channel_cancel(&l->call);
	free(l);
	grpc_end(client, status, message);
}

/* ---- our own message of a node ---- */

static ProtobufCBinaryData text(const char *s)
{
	return csi_bytes(s != NULL ? s : "");
}

static Ringvol__V1__ClusterPool *pool_message(struct arena *arena, const struct store_pool *pool)
{
	Ringvol__V1__ClusterPool *message =
		csi_message_new(arena, &ringvol__v1__cluster_pool__descriptor);
	if (message == NULL)
		return NULL;
	message->name = text(pool->name);
	message->uuid8 = text(pool->uuid8);
	message->state = (Ringvol__V1__Pool__State)pool->state;
	message->why = text(pool->why);
	message->available_bytes = pool->available_bytes;
	message->volumes = (uint32_t)pool->count[STORE_VOLUME];
	message->snapshots = (uint32_t)pool->count[STORE_SNAPSHOT];
	message->forgotten = pool->forgotten;
	return message;
}

static bool add_pools(
	struct arena *arena, Ringvol__V1__ClusterNode *message, const struct store_node *node)
{
	size_t count = 0;
	list_for_each (link, &node->pools)
		count++;
	message->pools = arena_alloc(arena, count * sizeof(*message->pools));
	if (message->pools == NULL)
		return false;
	list_for_each (link, &node->pools) {
		const struct store_pool *pool = container_of(link, struct store_pool, link);
		message->pools[message->n_pools] = pool_message(arena, pool);
		if (message->pools[message->n_pools++] == NULL)
			return false;
	}
	return true;
}

static bool add_topology(
	struct arena *arena, Ringvol__V1__ClusterNode *message, const struct store_node *node)
{
	message->topology = arena_alloc(arena, node->n_topology * sizeof(*message->topology));
	if (message->topology == NULL)
		return false;
	for (size_t i = 0; i < node->n_topology; i++) {
		const char *segment = arena_printf(
			arena, "%s=%s", node->topology[i].key, node->topology[i].value);
		if (segment == NULL)
			return false;
		message->topology[message->n_topology++] = text(segment);
	}
	return true;
}

static Ringvol__V1__ClusterNode *node_message(
	struct arena *arena, const struct store_node *node, const char *why)
{
	char heard[CLOCK_BYTES];
	Ringvol__V1__ClusterNode *message =
		csi_message_new(arena, &ringvol__v1__cluster_node__descriptor);
	if (message == NULL)
		return NULL;
	clock_print((uint64_t)node->seen_unix * 1000000000, heard);
	message->last_heard = text(arena_strdup(arena, heard));
	message->id = text(node->id);
	message->state = (Ringvol__V1__ClusterNode__State)node->state;
	message->version = text(node->version);
	message->address = text(node->address);
	message->why = text(why);
	return add_pools(arena, message, node) && add_topology(arena, message, node) ? message
										     : NULL;
}

/* False: the client has to read first. */
static bool send_node(struct look *l, const struct store_node *node, const char *why)
{
	if (!l->wants_nodes)
		return true;
	struct arena *arena = arena_new(0);
	Ringvol__V1__ListResponse item = RINGVOL__V1__LIST_RESPONSE__INIT;
	item.item_case = RINGVOL__V1__LIST_RESPONSE__ITEM_CLUSTER_NODE;
	item.cluster_node = arena != NULL ? node_message(arena, node, why) : NULL;
	/* Without memory a node is left out: what is asked of it will be missed as well. */
	bool more = item.cluster_node == NULL || grpc_send(l->client, &item.base);
	arena_unref(arena);
	return more;
}

/* ---- a node's messages ---- */

/* Items that lie on one node. */
static bool is_named(uint32_t item)
{
	return (item >= ITEM_FIRST && item <= ITEM_LAST) || item == ITEM_BORROWED;
}

/* Adds the node to each item of the message, which is appended to out. 0, -EBADMSG, -ENOMEM. */
static int name_items(const uint8_t *data, size_t len, const char *node_id, struct buf *out)
{
	struct scan scan = {data, data + len};
	struct scan_field field;
	int r;
	while ((r = scan_next(&scan, &field)) > 0) {
		if (field.number == ITEM_CLUSTER_NODE)
			continue; /* no node speaks of others */
		struct buf item = {0};
		bool named = is_named(field.number);
		if (!named) {
			r = buf_append(out, field.whole, (size_t)(scan.at - field.whole));
		} else {
			r = field.wire != SCAN_BYTES ? -EBADMSG
						     : buf_append(&item, field.data, field.len);
			if (r == 0)
				r = scan_append(&item, ITEM_NODE, node_id, strlen(node_id));
			if (r == 0)
				r = scan_append(out, field.number, item.data, item.len);
			buf_free(&item);
		}
		if (r < 0)
			return r;
	}
	return r;
}

static void go_on(struct look *l);

static void node_over(struct look *l, const char *why)
{
	const struct store_node *node = store_node(l->controller->store, l->node_id);
	ring_timer_cancel(l->controller->ring, &l->silence);
	l->held = node != NULL && !send_node(l, node, why);
	if (!l->held)
		go_on(l);
}

static void on_silence(struct ring_timer *timer)
{
	struct look *l = container_of(timer, struct look, silence);
	channel_cancel(&l->call);
	if (l->controller->only != NULL)
		look_end(l, GRPC_UNAVAILABLE, "the node does not answer");
	else
		node_over(l, "it does not answer");
}

static bool on_message(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct look *l = container_of(call, struct look, call);
	struct buf out = {0};
	bool more = true;
	if (l->controller->only != NULL)
		more = grpc_send_bytes(l->client, data, len);
	else if (name_items(data, len, l->node_id, &out) == 0 && out.len != 0)
		more = grpc_send_bytes(l->client, out.data, out.len);
	buf_free(&out);
	l->held = !more;
	if (more)
		ring_timer_arm(l->controller->ring, &l->silence, INSPECT_SILENCE_MS);
	else
		ring_timer_cancel(l->controller->ring, &l->silence);
	return more;
}

static void on_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	struct look *l = container_of(call, struct look, call);
	(void)sent;
	if (l->controller->only != NULL)
		look_end(l, status, message);
	else
		node_over(l, status == GRPC_OK ? "" : message);
}

static void ask(struct look *l, struct channel *channel)
{
	struct arena *arena = grpc_call_arena(l->client);
	size_t len = ringvol__v1__list_request__get_packed_size(l->request);
	uint8_t *data = arena_alloc(arena, len);
	if (data == NULL) {
		look_end(l, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	ringvol__v1__list_request__pack(l->request, data);
	l->call = (struct channel_call){
		.path = LIST_PATH,
		.deadline_ns = grpc_call_deadline_ns(l->client),
		.on_message = on_message,
		.on_end = on_end,
	};
	ring_timer_arm(l->controller->ring, &l->silence, INSPECT_SILENCE_MS);
	channel_start(channel, &l->call, data, len, true);
}

/* Nodes come and go meanwhile. */
static struct store_node *next_node(const struct look *l)
{
	const struct store *store = l->controller->store;
	struct store_node *node = store_node(store, l->node_id);
	if (node != NULL)
		return store_node_next(store, node);
	while ((node = store_node_next(store, node)) != NULL)
		if (strcmp(node->id, l->node_id) > 0)
			break;
	return node;
}

/* Asks the next node that is here; what there is to say of others is said on the way. */
static void go_on(struct look *l)
{
	struct store_node *node;
	while (!l->held && (node = next_node(l)) != NULL) {
		struct channel *channel;
		struct err err = {0};
		strcpy(l->node_id, node->id);
		if (l->wants_items && store_node_here(node) &&
			reach_node(l->controller, node, &channel, &err) == 0) {
			ask(l, channel);
			return;
		}
		l->held = !send_node(l, node, err.message);
	}
	if (!l->held)
		look_end(l, GRPC_OK, NULL);
}

/* ---- the client ---- */

static void on_writable(struct grpc_call *call, void *arg)
{
	struct look *l = arg;
	(void)call;
	if (!l->held)
		return;
	l->held = false;
	if (!channel_call_active(&l->call)) {
		go_on(l);
		return;
	}
	ring_timer_arm(l->controller->ring, &l->silence, INSPECT_SILENCE_MS);
	channel_read(&l->call);
}

static void on_gone(struct grpc_call *call, void *arg)
{
	(void)call;
	look_end(arg, GRPC_CANCELLED, NULL);
}

/* What a node is asked: the same, without what only a controller knows. */
static void split_kinds(struct look *l)
{
	Ringvol__V1__ListRequest *request = l->request;
	size_t kept = 0;
	bool all = request->n_kinds == 0;
	for (size_t i = 0; i < request->n_kinds; i++) {
		all |= request->kinds[i] == RINGVOL__V1__LIST_REQUEST__KIND__ALL;
		l->wants_nodes |= request->kinds[i] == RINGVOL__V1__LIST_REQUEST__KIND__NODES;
		if (request->kinds[i] != RINGVOL__V1__LIST_REQUEST__KIND__NODES)
			request->kinds[kept++] = request->kinds[i];
	}
	request->n_kinds = kept;
	l->wants_nodes |= all;
	l->wants_items = all || kept != 0;
}

static void list(struct grpc_call *call, const ProtobufCMessage *none)
{
	(void)none;
	struct err err = {0};
	struct look *l = calloc(1, sizeof(*l));
	if (l == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	l->client = call;
	l->controller = controller_of(call);
	l->silence.fn = on_silence;
	l->request = (void *)request_unpack(call, &ringvol__v1__list_request__descriptor, &err);
	if (l->request == NULL) {
		look_end(l, csi_status(err.code), err.message);
		return;
	}
	grpc_on_writable(call, on_writable, l);
	grpc_on_gone(call, on_gone, l);
	split_kinds(l);
	if (l->controller->only != NULL)
		ask(l, l->controller->only);
	else
		go_on(l);
}

static int health(struct csi_query *q)
{
	const struct controller *c = container_of(q->csi, struct controller, self);
	Ringvol__V1__HealthResponse *response = q->response;
	struct err why = {0};
	response->live = true; /* or nobody could ask */
	response->ready = ready_check(c, &why) == 0;
	const char *text_of = arena_strdup(q->arena, why.message);
	if (text_of == NULL)
		return -ENOMEM;
	response->ready_why = csi_bytes(text_of);
	return 0;
}

const struct grpc_method inspect_methods[] = {
	{"List", list, GRPC_RAW},
	{"Health", csi_rpc_run, .row = &(const struct csi_rpc){.answer = health}},
	{NULL},
};
