/* SPDX-License-Identifier: Apache-2.0 */
#include "controllers.h"

#include "csi.pb-c.h"
#include "csi/messages.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_MAX = 256 << 10 }; /* channel.h's */

struct controller_sim controllers[CONTROLLERS_MAX];

struct channel {
	struct ring *ring;
	struct controller_sim *controller;
	struct channel_call *call; /* NULL: there is none */
	struct ring_timer turn;    /* what is to be said in the next turn */
	bool welcome;
	char end[256];    /* the call ends; "": it does not */
	struct buf queue; /* lengths and messages that a deaf controller has not read */
	Ringvol__V1__NameVerdict *verdicts[64];
	unsigned n_verdicts;
};

/* ---- what was told ---- */

static struct told *slot(const struct controller_sim *c, const char *id)
{
	uint32_t at = 2166136261u;
	for (const char *p = id; *p != '\0'; p++)
		at = (at ^ (unsigned char)*p) * 16777619u;
	for (;; at++) {
		struct told *t = &c->told[at % TOLD_MAX];
		if (t->id[0] == '\0' || strcmp(t->id, id) == 0)
			return t;
	}
}

/* One that is gone keeps its slot, without an entry. */
const struct told *told_find(const struct controller_sim *c, const char *id)
{
	const struct told *t = slot(c, id);
	return t->entry != NULL ? t : NULL;
}

static const char *string(ProtobufCBinaryData b)
{
	static char ring[8][700];
	static unsigned at;
	char *s = ring[at++ % 8];
	snprintf(s, sizeof(ring[0]), "%.*s", (int)b.len, (const char *)b.data);
	return s;
}

/* The order in which a node lists them. */
static int compare_ids(const char *a, const char *b)
{
	struct record_id x = {0}, y = {0};
	(void)record_id_parse(a, &x);
	(void)record_id_parse(b, &y);
	int order = strcmp(x.pool, y.pool);
	return order != 0 ? order : strcmp(x.key, y.key);
}

static void hear_object(struct controller_sim *c, const Ringvol__V1__NodeObject *object)
{
	const char *id = string(object->id);
	struct told *t = slot(c, id);
	c->objects++;
	c->early = c->early || strncmp(id, c->pool_uuid, 8) != 0;
	bool snapshot = object->kind == RINGVOL__V1__NODE_OBJECT__KIND__SNAPSHOT;
	if (!c->synced) {
		bool order = c->last[0] == '\0' ||
			     (compare_ids(c->last, id) < 0 || slot(c, c->last)->kind != snapshot);
		c->unordered += !order;
		snprintf(c->last, sizeof(c->last), "%s", id);
	}
	if (t->entry == NULL)
		c->count++;
	free(t->entry);
	snprintf(t->id, sizeof(t->id), "%s", id);
	snprintf(t->source_id, sizeof(t->source_id), "%s", string(object->source_id));
	t->kind = snapshot ? RECORD_SNAPSHOT : RECORD_VOLUME;
	t->join = c->hellos;
	t->health_len = object->health.len;
	t->entry_len = object->entry.len;
	t->entry = malloc(t->entry_len + 1);
	memcpy(t->entry, object->entry.data, t->entry_len);
}

static void forget(struct controller_sim *c, struct told *t)
{
	if (t->entry == NULL)
		return;
	free(t->entry);
	t->entry = NULL;
	c->count--;
}

static void hear_pool(struct controller_sim *c, const Ringvol__V1__NodePool *pool)
{
	c->pool = *pool;
	snprintf(c->pool_uuid, sizeof(c->pool_uuid), "%s", string(pool->uuid));
	snprintf(c->pool_why, sizeof(c->pool_why), "%s", string(pool->why));
}

static void hear_claim(struct controller_sim *c, const Ringvol__V1__NameClaim *claim)
{
	struct channel *channel = c->channel;
	c->claims++;
	c->held++;
	snprintf(c->claimed, sizeof(c->claimed), "%s", string(claim->key));
	if (c->no_verdict)
		return;
	assert(channel->n_verdicts < 64);
	Ringvol__V1__NameVerdict *v = channel->verdicts[channel->n_verdicts++] =
		calloc(1, sizeof(*v));
	ringvol__v1__name_verdict__init(v);
	v->kind = claim->kind;
	v->key = csi_bytes(strdup(c->claimed));
	v->granted = c->holder == NULL;
	v->node_id = csi_bytes(c->holder != NULL ? c->holder : "");
	ring_timer_arm(channel->ring, &channel->turn, 0);
}

static void hear_capacity(struct controller_sim *c, const Ringvol__V1__NodeCapacity *capacity)
{
	Csi__V1__GetCapacityResponse *r = csi__v1__get_capacity_response__unpack(
		NULL, capacity->response.len, capacity->response.data);
	assert(r != NULL);
	c->capacities++;
	c->class = capacity->class_;
	c->available = r->available_capacity;
	csi__v1__get_capacity_response__free_unpacked(r, NULL);
}

static void hear_rest(struct controller_sim *c, const Ringvol__V1__NodeReport *report)
{
	for (size_t i = 0; i < report->n_pools; i++)
		hear_pool(c, report->pools[i]);
	for (size_t i = 0; i < report->n_objects; i++)
		hear_object(c, report->objects[i]);
	for (size_t i = 0; i < report->n_gone; i++) {
		c->gone++;
		snprintf(c->gone_id, sizeof(c->gone_id), "%s", string(report->gone[i]));
		forget(c, slot(c, c->gone_id));
	}
	/* In a report releases come first. */
	for (size_t i = 0; i < report->n_released; i++) {
		c->released++;
		c->held--;
		snprintf(c->released_key, sizeof(c->released_key), "%s",
			string(report->released[i]->key));
	}
	c->unheld = c->unheld || c->held < 0;
	for (size_t i = 0; i < report->n_claims; i++)
		hear_claim(c, report->claims[i]);
	for (size_t i = 0; i < report->n_capacities; i++)
		hear_capacity(c, report->capacities[i]);
	if (!report->synced)
		return;
	for (size_t i = 0; i < TOLD_MAX; i++)
		if (c->told[i].join != c->hellos)
			forget(c, &c->told[i]);
	c->synced = true;
}

static void hear(struct channel *channel, const uint8_t *data, size_t len)
{
	struct controller_sim *c = channel->controller;
	Ringvol__V1__NodeReport *report = ringvol__v1__node_report__unpack(NULL, len, data);
	assert(report != NULL);
	c->reports++;
	c->empty += len == 0;
	unsigned gap_ms = (unsigned)((ring_now_ns(channel->ring) - c->heard_ns) / 1000000);
	if (c->joined && gap_ms > c->gap_ms)
		c->gap_ms = gap_ms;
	c->heard_ns = ring_now_ns(channel->ring);
	c->largest = len > c->largest ? (unsigned)len : c->largest;
	hear_rest(c, report);
	if (report->hello == NULL) {
		ringvol__v1__node_report__free_unpacked(report, NULL);
		return;
	}
	assert(!c->joined);
	c->hellos++;
	c->joined = true;
	if (c->hello != NULL)
		ringvol__v1__node_report__free_unpacked(c->hello, NULL);
	c->hello = report;
}

/* ---- what is said ---- */

void controller_say_bytes(struct controller_sim *c, const uint8_t *data, size_t len)
{
	struct channel_call *call = c->channel->call;
	assert(call != NULL);
	call->on_message(call, data, len);
}

void controller_say(struct controller_sim *c, const Ringvol__V1__ControllerReport *report)
{
	size_t len = ringvol__v1__controller_report__get_packed_size(report);
	uint8_t *data = malloc(len + 1);
	ringvol__v1__controller_report__pack(report, data);
	controller_say_bytes(c, data, len);
	free(data);
}

void controller_beat(struct controller_sim *c)
{
	if (c->channel != NULL && c->channel->call != NULL)
		controller_say_bytes(c, (const uint8_t *)"", 0);
}

static void say_verdicts(struct channel *channel)
{
	Ringvol__V1__ControllerReport report = RINGVOL__V1__CONTROLLER_REPORT__INIT;
	Ringvol__V1__NameVerdict *verdicts[64];
	report.n_verdicts = channel->n_verdicts;
	report.verdicts = verdicts;
	memcpy(verdicts, channel->verdicts, sizeof(verdicts));
	channel->n_verdicts = 0;
	if (report.n_verdicts != 0 && channel->call != NULL)
		controller_say(channel->controller, &report);
	for (size_t i = 0; i < report.n_verdicts; i++) {
		free(verdicts[i]->key.data);
		free(verdicts[i]);
	}
}

static void leave(struct channel *channel)
{
	channel->call->carrier_at = NULL;
	channel->call = NULL;
	channel->controller->joined = channel->controller->synced = false;
	channel->controller->last[0] = '\0';
	channel->welcome = false;
	channel->end[0] = '\0';
	buf_free(&channel->queue);
	channel->controller->queued = 0;
}

static void on_turn(struct ring_timer *timer)
{
	struct channel *channel = container_of(timer, struct channel, turn);
	struct channel_call *call = channel->call;
	if (call != NULL && channel->end[0] != '\0') {
		char message[256];
		strcpy(message, channel->end);
		leave(channel);
		call->on_end(call, GRPC_UNAVAILABLE, message, true);
		return;
	}
	if (channel->welcome && call != NULL) {
		Ringvol__V1__ControllerReport report = RINGVOL__V1__CONTROLLER_REPORT__INIT;
		Ringvol__V1__Welcome welcome = RINGVOL__V1__WELCOME__INIT;
		welcome.version = csi_bytes("0.1.0");
		welcome.instance = csi_bytes("c0ffee");
		report.welcome = &welcome;
		channel->welcome = false;
		controller_say(channel->controller, &report);
	}
	say_verdicts(channel);
}

void controller_cut(struct controller_sim *c, const char *message)
{
	snprintf(c->channel->end, sizeof(c->channel->end), "%s", message);
	ring_timer_arm(c->channel->ring, &c->channel->turn, 0);
}

void controller_read(struct controller_sim *c)
{
	struct channel *channel = c->channel;
	struct buf queue = channel->queue;
	channel->queue = (struct buf){0};
	c->queued = 0;
	c->deaf = false;
	for (size_t at = 0, len; at < queue.len; at += sizeof(len) + len) {
		memcpy(&len, queue.data + at, sizeof(len));
		hear(channel, queue.data + at + sizeof(len), len);
	}
	buf_free(&queue);
	if (channel->call != NULL)
		channel->call->on_writable(channel->call);
}

void controllers_reset(void)
{
	for (unsigned i = 0; i < CONTROLLERS_MAX; i++) {
		struct controller_sim *c = &controllers[i];
		for (size_t t = 0; c->told != NULL && t < TOLD_MAX; t++)
			free(c->told[t].entry);
		free(c->told);
		if (c->hello != NULL)
			ringvol__v1__node_report__free_unpacked(c->hello, NULL);
		*c = (struct controller_sim){.told = calloc(TOLD_MAX, sizeof(struct told))};
	}
}

/* ---- the channel's ---- */

int channel_open(struct channel **ret, const struct channel_config *config, struct err *err)
{
	assert(config->tls == NULL && strcmp(config->peer, "ringvol://controller") == 0);
	if (strncmp(config->address, "sim:", 4) != 0)
		return err_set(err, ERR_INVALID, "not an address");
	struct channel *channel = calloc(1, sizeof(*channel));
	channel->ring = config->ring;
	channel->controller = &controllers[config->address[4] - '0'];
	channel->controller->address = config->address;
	channel->controller->registry = config->registry;
	channel->controller->channel = channel;
	channel->turn.fn = on_turn;
	*ret = channel;
	return 0;
}

void channel_close(struct channel *channel)
{
	if (channel == NULL)
		return;
	assert(channel->call == NULL);
	ring_timer_cancel(channel->ring, &channel->turn);
	for (unsigned i = 0; i < channel->n_verdicts; i++) {
		free(channel->verdicts[i]->key.data);
		free(channel->verdicts[i]);
	}
	channel->controller->channel = NULL;
	buf_free(&channel->queue);
	free(channel);
}

void channel_start(struct channel *channel, struct channel_call *call, const uint8_t *data,
	size_t len, bool last)
{
	struct controller_sim *c = channel->controller;
	assert(!last && channel->call == NULL &&
		strcmp(call->path, "/ringvol.v1.Cluster/Join") == 0);
	channel->call = call;
	call->carrier_at = channel; /* private of channel.c, and so of us */
	c->dials++;
	if (c->away || c->ends != NULL)
		snprintf(channel->end, sizeof(channel->end), "%s",
			c->ends != NULL ? c->ends : "connection refused");
	else
		hear(channel, data, len);
	channel->welcome = !c->mute;
	ring_timer_arm(channel->ring, &channel->turn, 0);
}

bool channel_send(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct channel *channel = call->carrier_at;
	assert(channel != NULL && channel->call == call);
	if (!channel->controller->deaf) {
		hear(channel, data, len);
		return true;
	}
	buf_append(&channel->queue, &len, sizeof(len));
	buf_append(&channel->queue, data, len);
	channel->controller->queued += len;
	return channel->controller->queued <= QUEUE_MAX;
}

void channel_cancel(struct channel_call *call)
{
	if (call->carrier_at != NULL)
		leave(call->carrier_at);
}

/* ---- of channel.h and not used by a member ---- */

enum channel_state channel_state(const struct channel *channel)
{
	return channel->call != NULL ? CHANNEL_UP : CHANNEL_IDLE;
}

const char *channel_why(const struct channel *channel)
{
	(void)channel;
	return "";
}

void channel_read(struct channel_call *call)
{
	(void)call;
	assert(false);
}

void channel_send_end(struct channel_call *call)
{
	(void)call;
	assert(false);
}
