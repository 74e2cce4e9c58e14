/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners and drain. A multishot accept hands over a socket; the peer is checked; room is made if
 * there are too many connections; server_conns.c and conn.c do the rest. What is spoken is the
 * listener's: gRPC over HTTP/2, or HTTP/1 for probes and metrics, each with limits of connections
 * of its own, so that scrapers never shut out kubelet. A server fails only at start.
 */
#include "rpc/server.h"

#include "base/fd.h"
#include "reactor/ring_bufs.h"
#include "rpc/h2.h"
#include "rpc/http1.h"
#include "rpc/listen.h"
#include "rpc/registry.h"
#include "rpc/server_conns.h"
#include "rpc/tls_session.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/socket.h>

enum {
	SERVER_ACCEPT_PAUSE_MS = 100, /* after EMFILE and the like */
	SERVER_TRIM_BYTES = 4 << 20,  /* of requests and answers, which malloc may have kept */
	SERVER_TRIM_MS = 500,
};

/* idle_ms is 0 because the CSI sidecars exit when their connection is lost. */
const struct server_limits server_limits_default = {
	.connections = 1024,
	.address_connections = 512,
	.streams = 128,
	.header_bytes = 16 << 10,
	.half_open_ms = 10000,
	.idle_ms = 0,
	.write_stall_ms = 30000,
	.ping_min_ms = 5000, /* clients are free to ping every 10 s */
	.send_buffer_bytes = 256 << 10,
};

/* Prometheus keeps its connection between scrapes, a minute apart by default. */
const struct server_limits server_http_limits_default = {
	.connections = 256,
	.address_connections = 128,
	.header_bytes = 16 << 10,
	.half_open_ms = 10000,
	.idle_ms = 150000,
	.write_stall_ms = 30000,
};

/* A node has one connection, a controller one to each node; many of them may come from behind one
 * address. What is silent costs little; a handshake is bounded by half_open_ms, and so is the
 * preface behind it. */
const struct server_limits server_tls_limits_default = {
	.connections = 4096,
	.address_connections = 2048,
	.streams = 128,
	.header_bytes = 16 << 10,
	.half_open_ms = 10000,
	.idle_ms = 0,
	.write_stall_ms = 30000,
	.ping_min_ms = 5000,
	.send_buffer_bytes = 256 << 10,
};

struct listener {
	struct server *server;
	struct speaks *speaks;
	struct list link;
	struct listen_socket socket;
	bool is_unix, closing;
	struct ring_req accept;
	struct ring_timer pause;
};

/* ---- drain ---- */

static void on_drained_posted(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct server *server = container_of(req, struct server, drained);
	if (res == 0 && server->on_drained != NULL)
		server->on_drained(server->on_drained_arg);
}

/* Tells the owner when the last call of a drain is over. */
static void drain_check(struct server *server)
{
	if (!server->draining || server->open > 0 || server->on_drained == NULL ||
		server->drained.fn != NULL)
		return;
	ring_timer_cancel(server->config.ring, &server->drain_timer);
	server->drained.fn = on_drained_posted;
	ring_post(server->config.ring, &server->drained, 0);
}

/* ---- accepting ---- */

/* On a unix socket root and our own user may call. */
static bool process_admitted(int fd, struct remote_key *ret)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return false;
	*ret = remote_key_of_process(peer.pid);
	return peer.uid == 0 || peer.uid == geteuid();
}

/* False also for a peer that is gone already. */
static bool peer_admitted(const struct listener *l, int fd, struct remote_key *ret)
{
	struct sockaddr_storage address;
	socklen_t len = sizeof(address);
	if (l->is_unix)
		return process_admitted(fd, ret);
	if (getpeername(fd, (struct sockaddr *)&address, &len) < 0)
		return false;
	*ret = remote_key_of_address(&address);
	return true;
}

static void listener_free(struct listener *l)
{
	fd_close(&l->socket.fd);
	list_remove(&l->link);
	free(l);
}

static void accept_arm(struct listener *l)
{
	struct ring *ring = l->server->config.ring;
	if (ring_features(ring)->multishot_accept)
		io_uring_prep_multishot_accept(
			&l->accept.sqe, l->socket.fd, NULL, NULL, SOCK_CLOEXEC);
	else
		io_uring_prep_accept(&l->accept.sqe, l->socket.fd, NULL, NULL, SOCK_CLOEXEC);
	ring_submit(ring, &l->accept);
}

static void on_pause_end(struct ring_timer *timer)
{
	accept_arm(container_of(timer, struct listener, pause));
}

/* At a limit of connections, one that only waits makes room. Else a client that opens many and
 * keeps them would shut out all others for as long as it likes, kubelet's probes first. */
static bool room_for_one(struct listener *l, const struct remote_key *key)
{
	const struct server_limits *limits = l->speaks->limits;
	const struct remote *remote = l->is_unix ? NULL : remote_find(&l->speaks->remotes, key);
	if (remote != NULL && remote->connections >= limits->address_connections)
		return conns_make_room(l->server, l->speaks, remote);
	return l->speaks->connections < limits->connections ||
	       conns_make_room(l->server, l->speaks, NULL);
}

static void on_accept(struct ring_req *req, int res, uint32_t flags)
{
	struct listener *l = container_of(req, struct listener, accept);
	struct server *server = l->server;
	struct remote_key key;

	if (res >= 0) {
		if (l->closing || !peer_admitted(l, res, &key) || !room_for_one(l, &key)) {
			server->stats.refused++;
			close(res);
		} else {
			conns_open(server, l->speaks, res, &key);
		}
	}
	if ((flags & IORING_CQE_F_MORE) != 0)
		return;
	if (l->closing)
		listener_free(l);
	else if (res >= 0 || res == -ECONNABORTED)
		accept_arm(l);
	else /* no descriptors or memory: try again, but do not spin */
		ring_timer_arm(server->config.ring, &l->pause, SERVER_ACCEPT_PAUSE_MS);
}

static void listener_close(struct listener *l)
{
	if (l->closing)
		return;
	l->closing = true;
	listen_unlink(&l->socket);
	ring_timer_cancel(l->server->config.ring, &l->pause);
	if (l->accept.armed)
		ring_cancel(l->server->config.ring, &l->accept);
	else
		listener_free(l);
}

/* Takes the socket over, also when it fails. */
static int listener_add(
	struct server *server, struct speaks *speaks, const struct listen_socket *socket)
{
	struct listener *l = calloc(1, sizeof(*l));
	if (l == NULL) {
		struct listen_socket unused = *socket;
		listen_unlink(&unused);
		fd_close(&unused.fd);
		return -ENOMEM;
	}
	l->socket = *socket;
	l->server = server;
	l->speaks = speaks;
	l->is_unix = l->socket.is_unix;
	l->accept.fn = on_accept;
	l->pause.fn = on_pause_end;
	list_push(&server->listeners, &l->link);
	accept_arm(l);
	return 0;
}

int server_listen_on(struct server *server, const struct listen_socket *socket)
{
	return listener_add(server, &server->grpc, socket);
}

static int listen_unix(
	struct server *server, struct speaks *speaks, const char *endpoint, struct err *err)
{
	struct listen_socket socket;
	int res = listen_open(endpoint, &socket, err);
	if (res < 0)
		return res;
	res = listener_add(server, speaks, &socket);
	return res < 0 ? err_sys(err, res, "cannot listen on %s", endpoint) : 0;
}

int server_listen(struct server *server, const char *endpoint, struct err *err)
{
	return listen_unix(server, &server->grpc, endpoint, err);
}

int server_listen_http(struct server *server, const char *address, struct err *err)
{
	assert(server->http1 != NULL && !server->draining);
	struct listen_socket socket;
	int res = listen_open_any(address, &socket, err);
	if (res < 0)
		return res;
	res = listener_add(server, &server->http, &socket);
	return res < 0 ? err_sys(err, res, "cannot listen on %s", address) : 0;
}

int server_listen_http_unix(struct server *server, const char *endpoint, struct err *err)
{
	assert(server->http1 != NULL && !server->draining);
	return listen_unix(server, &server->http, endpoint, err);
}

int server_listen_other_unix(struct server *server, const char *endpoint, struct err *err)
{
	assert(server->config.open_other != NULL && !server->draining);
	return listen_unix(server, &server->other, endpoint, err);
}

int server_listen_tls(struct server *server, const char *address, struct tls *tls, struct err *err)
{
	assert((server->tls_keys == NULL || server->tls_keys == tls) && !server->draining);
	struct listen_socket socket;
	int res = listen_open_any(address, &socket, err);
	if (res < 0)
		return res;
	server->tls_keys = tls;
	res = listener_add(server, &server->tls, &socket);
	return res < 0 ? err_sys(err, res, "cannot listen on %s", address) : 0;
}

void server_unlisten(struct server *server)
{
	list_for_each_safe (l, &server->listeners)
		listener_close(container_of(l, struct listener, link));
}

/* ---- what is spoken ---- */

static bool is_unix_socket(int fd)
{
	int domain = AF_UNSPEC;
	socklen_t len = sizeof(domain);
	return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_UNIX;
}

static int open_grpc(
	struct server *server, int fd, session_wake_fn *on_wake, void *arg, struct session **ret)
{
	struct h2_config config = {
		.ring = server->config.ring,
		.registry = server->config.registry,
		.limits = &server->config.limits,
		.turns = &server->turns,
		.host_may_be_path = is_unix_socket(fd),
		.on_wake = on_wake,
		.arg = arg,
	};
	return h2_session_new(&config, ret);
}

/* The handshake of a connection is over. */
static int open_inside_tls(void *context, const struct grpc_peer *peer, session_wake_fn *on_wake,
	void *arg, struct session **ret)
{
	struct server *server = context;
	struct h2_config config = {
		.ring = server->config.ring,
		.registry = server->config.registry,
		.limits = &server->config.tls_limits,
		.turns = &server->turns,
		.peer = peer,
		.on_wake = on_wake,
		.arg = arg,
	};
	return h2_session_new(&config, ret);
}

static int open_tls(
	struct server *server, int fd, session_wake_fn *on_wake, void *arg, struct session **ret)
{
	char from[INET6_ADDRSTRLEN] = "";
	struct sockaddr_storage address = {0};
	socklen_t len = sizeof(address);
	if (getpeername(fd, (struct sockaddr *)&address, &len) == 0)
		(void)inet_ntop(address.ss_family,
			address.ss_family == AF_INET6
				? (const void *)&((const struct sockaddr_in6 *)&address)->sin6_addr
				: &((const struct sockaddr_in *)&address)->sin_addr,
			from, sizeof(from));
	struct tls_config config = {
		.from = from[0] != '\0' ? from : NULL,
		.tls = server->tls_keys,
		.ring = server->config.ring,
		.handshake_ms = server->config.tls_limits.half_open_ms,
		.open_inner = open_inside_tls,
		.context = server,
		.on_wake = on_wake,
		.arg = arg,
	};
	return tls_session_new(&config, ret);
}

static int open_http(
	struct server *server, int fd, session_wake_fn *on_wake, void *arg, struct session **ret)
{
	(void)fd;
	return http1_session_new(server->http1, on_wake, arg, ret);
}

static int open_other(
	struct server *server, int fd, session_wake_fn *on_wake, void *arg, struct session **ret)
{
	(void)fd;
	return server->config.open_other(server->config.open_other_arg, on_wake, arg, ret);
}

/* ---- memory ---- */

/* Memory that a burst of calls needed goes back to the system soon after it. */
static void trim_later(struct server *server)
{
	if (server->config.registry->memory->high_bytes >= SERVER_TRIM_BYTES &&
		!ring_timer_armed(&server->trim_timer))
		ring_timer_arm(server->config.ring, &server->trim_timer, SERVER_TRIM_MS);
}

/* Freed pieces between those in use stay resident until malloc is told. That takes milliseconds
 * after tens of megabytes, so it waits until little of them is in use, and is done once. */
static void on_trim(struct ring_timer *timer)
{
	struct server *server = container_of(timer, struct server, trim_timer);
	struct budget *memory = server->config.registry->memory;
	if (memory->used_bytes <= memory->high_bytes / 4) {
		malloc_trim(0);
		memory->high_bytes = memory->used_bytes;
		server->stats.trims++;
	}
	trim_later(server);
}

/* ---- the server ---- */

int server_open(struct server **ret, const struct server_config *config)
{
	struct server *server = calloc(1, sizeof(*server));
	if (server == NULL)
		return -ENOMEM;
	server->config = *config;
	server->grpc = (struct speaks){.open = open_grpc, .limits = &server->config.limits};
	server->http = (struct speaks){.open = open_http, .limits = &server->config.http_limits};
	server->other = (struct speaks){.open = open_other, .limits = &server->config.http_limits};
	server->tls = (struct speaks){.open = open_tls, .limits = &server->config.tls_limits};
	list_init(&server->grpc.remotes);
	list_init(&server->http.remotes);
	list_init(&server->other.remotes);
	list_init(&server->tls.remotes);
	list_init(&server->listeners);
	h2_turns_init(&server->turns, config->ring);
	server->trim_timer.fn = on_trim;
	server->on_conn_end = drain_check;
	server->on_conn_flush = trim_later;
	int res = conn_bufs_open(config->ring, false, &server->bufs);
	conns_init(server);
	if (res == 0 && config->http_routes != NULL)
		res = http1_new(&server->http1, config->ring, &server->config.http_limits,
			config->http_routes);
	if (res < 0) {
		ring_bufs_close(server->bufs);
		free(server);
		return res;
	}
	*ret = server;
	return 0;
}

static void on_drain_timeout(struct ring_timer *timer)
{
	struct server *server = container_of(timer, struct server, drain_timer);
	server->stats.drain_cut = server->stats.connections;
	conns_cut(server);
	drain_check(server);
}

void server_drain(
	struct server *server, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg)
{
	assert(!server->draining);
	server->draining = true;
	server->on_drained = on_drained;
	server->on_drained_arg = arg;
	server->drain_timer.fn = on_drain_timeout;
	ring_timer_arm(server->config.ring, &server->drain_timer, timeout_ms);
	server_unlisten(server);
	conns_drain(server);
	drain_check(server);
}

void server_close(struct server *server)
{
	if (server == NULL)
		return;
	struct ring *ring = server->config.ring;
	server_unlisten(server);
	server->on_drained = NULL;
	ring_timer_cancel(ring, &server->drain_timer);
	conns_cut(server);
	ring_timer_cancel(ring, &server->trim_timer);
	while (!list_empty(&server->listeners) || !list_empty(&server->conns) ||
		server->drained.armed || server->turns.go.armed || !http1_idle(server->http1)) {
		if (ring_turn(ring, true) < 0)
			return; /* the kernel may still write to this memory */
	}
	http1_free(server->http1);
	ring_bufs_close(server->bufs);
	free(server);
}

const struct server_stats *server_stats(const struct server *server)
{
	return &server->stats;
}
