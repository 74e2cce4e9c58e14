/* SPDX-License-Identifier: Apache-2.0 */
#include "channel_local.h"

#include "reactor/ring_chore.h"
#include "rpc/call.h"
#include "rpc/registry.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAITING_MAX = 2 };

struct channel_local channel_local;

struct channel {
	struct ring *ring;
	bool bulk;
};

struct message {
	struct list link;
	size_t len;
	uint8_t data[];
};

/* Both ends of a call. */
struct line {
	struct grpc_call call;       /* the server's; it has a reference until the line is gone */
	struct channel_call *client; /* NULL: it has gone */
	struct ring *ring;
	bool bulk; /* what comes is a chore, as on a connection */
	struct ring_req turn;
	struct ring_chore chore;
	struct list messages;
	unsigned waiting;
	bool ended, posted;
	enum grpc_status status;
	char text[512];
};

static void line_post(struct line *line);

static int line_message(struct grpc_call *call, const struct grpc_payload *payload, bool last)
{
	struct line *line = container_of(call, struct line, call);
	(void)last;
	struct message *m = malloc(sizeof(*m) + payload->size);
	assert(m != NULL);
	m->len = payload->size;
	grpc_payload_put(payload, m->data);
	list_push(&line->messages, &m->link);
	line->waiting++;
	line_post(line);
	return 0;
}

static bool line_writable(struct grpc_call *call)
{
	return container_of(call, struct line, call)->waiting < WAITING_MAX;
}

static void line_end(struct grpc_call *call, enum grpc_status status, const char *message)
{
	struct line *line = container_of(call, struct line, call);
	line->ended = true;
	line->status = status;
	snprintf(line->text, sizeof(line->text), "%s", message != NULL ? message : "");
	line_post(line);
}

static void line_free(struct grpc_call *call)
{
	struct line *line = container_of(call, struct line, call);
	for (struct list *l; (l = list_pop(&line->messages)) != NULL;)
		free(container_of(l, struct message, link));
	if (!line->posted)
		free(line);
}

static const struct grpc_carrier carrier = {line_message, line_writable, line_end, line_free};

static void client_ends(struct line *line, enum grpc_status status, const char *text)
{
	struct channel_call *client = line->client;
	line->client = NULL;
	if (client == NULL)
		return;
	client->calls = NULL;
	client->on_end(client, status, text, true);
}

/* The client is gone, or the line is. */
static void line_cut(struct line *line)
{
	grpc_call_lose(&line->call, GRPC_CANCELLED);
	grpc_call_unref(&line->call);
}

static void line_come(struct line *line)
{
	line->posted = false;
	if (line->call.refs == 0) {
		free(line);
		return;
	}
	struct channel_call *client = line->client;
	if (client == NULL || client->held)
		return;
	struct list *l = list_pop(&line->messages);
	if (l == NULL) {
		if (line->ended) {
			client_ends(line, line->status, line->text);
			grpc_call_unref(&line->call);
		}
		return;
	}
	struct message *m = container_of(l, struct message, link);
	line->waiting--;
	channel_local.messages++;
	if (channel_local.on_message != NULL &&
		channel_local.on_message(client->path, m->data, m->len) == FATE_CUT) {
		free(m);
		client_ends(line, GRPC_UNAVAILABLE, "the connection was cut");
		line_cut(line);
		return;
	}
	line_post(line);
	line->call.refs++; /* the client may leave */
	if (client->on_message != NULL && !client->on_message(client, m->data, m->len))
		client->held = true;
	free(m);
	if (line->client != NULL && line->waiting < WAITING_MAX)
		grpc_call_resume(&line->call);
	grpc_call_unref(&line->call);
}

static void line_turn(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	line_come(container_of(req, struct line, turn));
}

static void line_chore(struct ring_chore *chore)
{
	line_come(container_of(chore, struct line, chore));
}

static void line_post(struct line *line)
{
	if (line->posted)
		return;
	line->posted = true;
	line->turn.fn = line_turn;
	line->chore.fn = line_chore;
	if (line->bulk)
		ring_chore_want(line->ring, &line->chore);
	else
		ring_post(line->ring, &line->turn, 0);
}

int channel_open(struct channel **ret, const struct channel_config *config, struct err *err)
{
	struct channel *channel = calloc(1, sizeof(*channel));
	(void)err;
	assert(channel != NULL);
	channel->ring = config->ring;
	channel->bulk = config->bulk;
	snprintf(channel_local.last_address, sizeof(channel_local.last_address), "%s",
		config->address);
	snprintf(channel_local.last_peer, sizeof(channel_local.last_peer), "%s", config->peer);
	channel_local.last_registry = config->registry;
	*ret = channel;
	return 0;
}

void channel_close(struct channel *channel)
{
	free(channel);
}

const char *channel_why(const struct channel *channel)
{
	(void)channel;
	return channel_local.registry == NULL ? "nobody is there" : "";
}

enum channel_state channel_state(const struct channel *channel)
{
	(void)channel;
	return CHANNEL_UP;
}

/* Every call has one message here. */
bool channel_send(struct channel_call *call, const uint8_t *data, size_t len)
{
	(void)call;
	(void)data;
	(void)len;
	abort();
}

void channel_send_end(struct channel_call *call)
{
	(void)call;
	abort();
}

void channel_start(struct channel *channel, struct channel_call *call, const uint8_t *data,
	size_t len, bool last)
{
	struct line *line = calloc(1, sizeof(*line));
	assert(line != NULL && last);
	channel_local.calls++;
	call->calls = (void *)line; /* private fields: nobody else has the call */
	call->held = false;
	line->ring = channel->ring;
	line->bulk = channel->bulk;
	line->client = call;
	list_init(&line->messages);
	if (channel_local.registry == NULL) {
		line->call.carrier = &carrier;
		line->call.refs = 1;
		line_end(&line->call, GRPC_UNAVAILABLE, "nobody is there");
		return;
	}
	grpc_call_init(&line->call, &carrier, channel_local.registry);
	if (channel_local.peer.role != GRPC_PEER_LOCAL)
		line->call.caller = grpc_caller_new(&channel_local.peer);
	line->call.entry =
		grpc_registry_find(channel_local.registry, call->path, strlen(call->path));
	const char *why;
	if (!grpc_call_admit(&line->call))
		return;
	enum grpc_status status = grpc_call_decode(&line->call, data, len, &why);
	if (status != GRPC_OK)
		grpc_call_refuse(&line->call, status, why);
	else
		grpc_call_run(&line->call);
}

void channel_read(struct channel_call *call)
{
	call->held = false;
	line_post((struct line *)(void *)call->calls);
}

void channel_cancel(struct channel_call *call)
{
	if (call->calls == NULL)
		return;
	struct line *line = (struct line *)(void *)call->calls;
	call->calls = NULL;
	line->client = NULL;
	line_cut(line);
}
