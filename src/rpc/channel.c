/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel: calls that wait, and the connections that take them.
 *
 * The happy path: the first call makes the channel dial; the socket becomes a connection (conn.c)
 * with a client's session on it (h2_client.c), inside TLS where there is TLS; with the peer's
 * SETTINGS calls start, as many as it allows. A connection that is leaving (GOAWAY) keeps the calls
 * it has; others take a new one.
 *
 * A connection that cannot be made ends all calls that wait for it. One that is lost ends its own.
 * So does one that was made and ended before any call could start on it: else a peer could keep the
 * channel dialling for ever. The next call dials again, at once: its owner says how often.
 */
#include "rpc/channel.h"

#include "reactor/ring_bufs.h"
#include "rpc/client_calls.h"
#include "rpc/conn.h"
#include "rpc/dial.h"
#include "rpc/h2_client.h"
#include "rpc/registry.h"
#include "rpc/tls_session.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHANNEL_LEAVING_MAX = 4 }; /* connections that end; one more cuts the oldest */

/* One connection. */
struct link {
	struct conn conn;
	struct channel *channel;
	struct list node;
	struct session *outer;  /* the connection's: client, or TLS around it */
	struct session *client; /* h2_client.h; NULL: the handshake is not over, or it has ended */
	bool used;              /* a call has started on it */
};

struct channel {
	struct client_calls calls;
	struct channel_config config;
	struct grpc_peer peer; /* with TLS */
	struct dial_target target;
	struct conn_host host;
	struct list waiting;  /* channel_call.link */
	struct list links;    /* all connections, oldest first */
	struct link *current; /* takes calls, or will; NULL: none */
	struct dial *dial;    /* towards the next one */
	uint64_t connect_end_ns;
	struct ring_timer timer; /* for the connection that is being made */
	struct ring_req go;      /* a connection has ended or leaves */
	bool barren;             /* the last connection took no call */
	bool closing;
	char why[1024];
};

static struct link *link_of(struct conn *conn)
{
	return container_of(conn, struct link, conn);
}

/* ---- calls that wait ---- */

/* Ends all that wait now; what an on_end() starts is left alone. */
static void fail_waiting(struct channel *ch)
{
	struct list failed, *node;
	char why[sizeof(ch->why)];
	memcpy(why, ch->why, sizeof(why));
	list_init(&failed);
	list_splice(&failed, &ch->waiting);
	while ((node = list_pop(&failed)) != NULL)
		client_call_end(
			container_of(node, struct channel_call, link), GRPC_UNAVAILABLE, why);
}

static void start_waiting(struct link *link)
{
	struct channel *ch = link->channel;
	while (ch->current == link && !list_empty(&ch->waiting)) {
		struct list *node = list_pop(&ch->waiting);
		struct channel_call *call = container_of(node, struct channel_call, link);
		if (!h2_client_start(link->client, call)) {
			list_push_front(&ch->waiting, node);
			return;
		}
		link->used = true;
	}
}

/* ---- how connections end ---- */

static void go_later(struct channel *ch)
{
	if (!ch->go.armed && !ch->closing)
		ring_post(ch->config.ring, &ch->go, 0);
}

/* It takes no calls any more; why: a line about it. */
static void link_retire(struct link *link, const char *why)
{
	struct channel *ch = link->channel;
	if (ch->current != link)
		return;
	ch->current = NULL;
	ch->barren = !link->used;
	snprintf(ch->why, sizeof(ch->why), "%s: %s", ch->target.text, why);
	ring_timer_cancel(ch->config.ring, &ch->timer);
}

/* From inside the session: the rest is done when it has returned. */
static void on_leave(void *arg)
{
	struct link *link = arg;
	link_retire(link, h2_client_why(link->client));
	go_later(link->channel);
}

static void on_conn_end(struct conn *conn, const struct session *session)
{
	struct link *link = link_of(conn);
	const char *why = conn->error < 0 ? strerror(-conn->error) : "the peer has hung up";
	if (link->outer == session && session != link->client &&
		tls_session_why(session)[0] != '\0')
		why = tls_session_why(session);
	if (link->client != NULL) {
		h2_client_set_why(link->client, why);
		why = h2_client_why(link->client);
	}
	link_retire(link, why);
	link->client = NULL;
	go_later(link->channel);
}

static void on_conn_free(struct conn *conn)
{
	struct link *link = link_of(conn);
	list_remove(&link->node);
	free(link);
}

/* Closes those that were given up, and the oldest of too many that are ending. */
static void links_prune(struct channel *ch)
{
	unsigned leaving = 0;
	for (struct list *node = ch->links.prev, *prev; node != &ch->links; node = prev) {
		struct link *link = container_of(node, struct link, node);
		prev = node->prev;
		if (link == ch->current || link->conn.state != CONN_OPEN)
			continue;
		bool over = link->client != NULL && h2_client_state(link->client) == H2_CLIENT_OVER;
		if (over || ++leaving > CHANNEL_LEAVING_MAX)
			conn_close(&link->conn);
	}
}

/* ---- how they begin ---- */

static void on_room(void *arg)
{
	struct link *link = arg;
	struct channel *ch = link->channel;
	if (ch->current != link)
		return;
	ring_timer_cancel(ch->config.ring, &ch->timer);
	ch->why[0] = '\0';
	start_waiting(link);
}

static int client_open(struct link *link, session_wake_fn *on_wake, void *arg, struct session **ret)
{
	struct channel *ch = link->channel;
	const struct h2_client_config config = {
		.ring = ch->config.ring,
		.authority = ch->target.is_unix ? "localhost" : ch->target.text,
		.tls = ch->config.tls != NULL,
		.on_room = on_room,
		.on_leave = on_leave,
		.owner = link,
		.on_wake = on_wake,
		.arg = arg,
	};
	int res = h2_client_new(&config, &link->client);
	if (res == 0)
		*ret = link->client;
	return res;
}

/* A certificate for all nodes is each node's. */
static bool peer_is(const struct grpc_peer *peer, const struct grpc_peer *want)
{
	return peer->role == want->role &&
	       (peer->role != GRPC_PEER_NODE || strcmp(peer->node_id, want->node_id) == 0 ||
		       strcmp(peer->node_id, "*") == 0);
}

static int tls_inner(void *context, const struct grpc_peer *peer, session_wake_fn *on_wake,
	void *arg, struct session **ret)
{
	struct link *link = context;
	struct channel *ch = link->channel;
	char is[TLS_IDENTITY_MAX], want[TLS_IDENTITY_MAX], why[2 * TLS_IDENTITY_MAX + 64];
	if (peer_is(peer, &ch->peer))
		return client_open(link, on_wake, arg, ret);
	tls_identity_print(peer, is);
	tls_identity_print(&ch->peer, want);
	snprintf(why, sizeof(why), "the certificate there is %s's, not %s's", is, want);
	link_retire(link, why);
	return -EACCES;
}

static int session_open(struct link *link)
{
	struct channel *ch = link->channel;
	if (ch->config.tls == NULL)
		return client_open(link, conn_wake, &link->conn, &link->outer);
	const struct tls_config config = {
		.tls = ch->config.tls,
		.ring = ch->config.ring,
		.client = true,
		.handshake_ms = CHANNEL_CONNECT_MS,
		.open_inner = tls_inner,
		.context = link,
		.on_wake = conn_wake,
		.arg = &link->conn,
	};
	return tls_session_new(&config, &link->outer);
}

static void connect_failed(struct channel *ch, const char *why)
{
	snprintf(ch->why, sizeof(ch->why), "%s", why);
	fail_waiting(ch);
}

static void on_dialled(void *arg, int fd, const char *why)
{
	struct channel *ch = arg;
	ch->dial = NULL;
	if (fd < 0) {
		connect_failed(ch, why);
		return;
	}
	struct link *link = calloc(1, sizeof(*link));
	if (link != NULL) {
		link->channel = ch;
		list_init(&link->node);
		conn_init(&link->conn, &ch->host, fd);
	}
	if (link == NULL || session_open(link) < 0) {
		free(link);
		close(fd);
		connect_failed(ch, "out of memory");
		return;
	}
	list_push(&ch->links, &link->node);
	ch->current = link;
	uint64_t now = ring_now_ns(ch->config.ring);
	ring_timer_arm(ch->config.ring, &ch->timer,
		ch->connect_end_ns > now ? (ch->connect_end_ns - now + 999999) / 1000000 : 0);
	conn_begin(&link->conn, link->outer, CHANNEL_STALL_MS);
}

static void on_timer(struct ring_timer *timer)
{
	struct channel *ch = container_of(timer, struct channel, timer);
	struct link *link = ch->current;
	link_retire(link, "connected, but no answer in time");
	conn_close(&link->conn);
}

static void dial(struct channel *ch)
{
	const struct dial_config config = {
		.ring = ch->config.ring,
		.work = ch->config.work,
		.lane = ch->config.lane,
		.target = &ch->target,
		.timeout_ms = CHANNEL_CONNECT_MS,
		.on_end = on_dialled,
		.arg = ch,
	};
	ch->connect_end_ns = ring_now_ns(ch->config.ring) + (uint64_t)CHANNEL_CONNECT_MS * 1000000;
	ch->barren = false;
	if (dial_start(&ch->dial, &config) == 0)
		return;
	snprintf(ch->why, sizeof(ch->why), "%s: out of memory", ch->target.text);
	ch->barren = true;
	go_later(ch);
}

static void on_go(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct channel *ch = container_of(req, struct channel, go);
	links_prune(ch);
	if (list_empty(&ch->waiting) || ch->current != NULL || ch->dial != NULL)
		return;
	if (ch->barren)
		fail_waiting(ch);
	else
		dial(ch);
}

/* ---- for owners ---- */

void channel_start(
	struct channel *ch, struct channel_call *call, const uint8_t *data, size_t len, bool last)
{
	assert(!ch->closing);
	if (!client_call_begin(&ch->calls, call, data, len, last))
		return;
	list_push(&ch->waiting, &call->link);
	if (ch->current != NULL && ch->current->client != NULL)
		start_waiting(ch->current);
	else if (ch->current == NULL && ch->dial == NULL)
		dial(ch);
}

enum channel_state channel_state(const struct channel *ch)
{
	if (ch->current != NULL && ch->current->client != NULL &&
		h2_client_state(ch->current->client) == H2_CLIENT_UP)
		return CHANNEL_UP;
	if (ch->current != NULL || ch->dial != NULL)
		return CHANNEL_CONNECTING;
	return list_empty(&ch->links) ? CHANNEL_IDLE : CHANNEL_LEAVING;
}

const char *channel_why(const struct channel *ch)
{
	return ch->why;
}

/* ---- life ---- */

static int address_check(struct channel *ch, struct err *err)
{
	const struct channel_config *config = &ch->config;
	int res = dial_parse(config->address, &ch->target, err);
	if (res < 0)
		return res;
	bool unsafe = config->tls == NULL && !ch->target.is_unix;
	if (unsafe && !(config->plain && dial_is_loopback(&ch->target)))
		return err_set(
			err, ERR_INVALID, "%s cannot be called without TLS", config->address);
	if (config->tls != NULL &&
		(config->peer == NULL || !tls_identity_parse(config->peer, &ch->peer)))
		return err_set(err, ERR_INVALID, "\"%.64s\" is no identity",
			config->peer != NULL ? config->peer : "");
	return 0;
}

int channel_open(struct channel **ret, const struct channel_config *config, struct err *err)
{
	struct channel *ch = calloc(1, sizeof(*ch));
	struct ring_bufs *bufs = NULL;
	if (ch == NULL)
		return err_sys(err, -ENOMEM, "a channel");
	ch->config = *config;
	int res = address_check(ch, err);
	if (res == 0) {
		res = conn_bufs_open(config->ring, config->bulk, &bufs);
		if (res < 0)
			err_sys(err, res, "a channel to %s", config->address);
	}
	if (res < 0) {
		free(ch);
		return res;
	}
	struct budget *memory = config->registry != NULL ? config->registry->memory : NULL;
	client_calls_init(&ch->calls, config->ring, memory);
	ch->host = (struct conn_host){
		.ring = config->ring,
		.bufs = bufs,
		.bulk = config->bulk,
		.memory = memory,
		.on_end = on_conn_end,
		.on_free = on_conn_free,
	};
	ch->config.address = ch->config.peer = NULL; /* the caller's */
	ch->timer.fn = on_timer;
	ch->go.fn = on_go;
	list_init(&ch->waiting);
	list_init(&ch->links);
	*ret = ch;
	return 0;
}

static void destroy(struct channel *ch)
{
	while (!list_empty(&ch->links))
		conn_discard(&container_of(ch->links.next, struct link, node)->conn);
	client_calls_close(&ch->calls);
	ring_discard(ch->config.ring, &ch->go);
	ring_bufs_close(ch->host.bufs);
	free(ch);
}

static void on_destroy(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	destroy(container_of(req, struct channel, go));
}

void channel_close(struct channel *ch)
{
	static const char why[] = "the channel is closed";
	if (ch == NULL)
		return;
	assert(!ch->closing);
	ch->closing = true;
	ch->current = NULL;
	memcpy(ch->why, why, sizeof(why));
	dial_cancel(ch->dial);
	ring_timer_cancel(ch->config.ring, &ch->timer);
	ring_discard(ch->config.ring, &ch->go);
	fail_waiting(ch);
	list_for_each (node, &ch->links) {
		struct link *link = container_of(node, struct link, node);
		if (link->client != NULL)
			h2_client_end_calls(link->client, why);
	}
	client_calls_end(&ch->calls, why);
	if (ch->calls.depth == 0) {
		destroy(ch);
	} else { /* in a callback: those who called it are not through with it */
		ch->go.fn = on_destroy;
		ring_post(ch->config.ring, &ch->go, 0);
	}
}
