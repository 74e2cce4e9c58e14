/* SPDX-License-Identifier: Apache-2.0 */
/* The server's TLS on real sockets: who calls, limits, a trust that changes, drain. */
#include "tls_certs.h"

#include "rpc/listen.h"
#include "server_env.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

static struct issued ca;
static struct tls *keys;
static char address[32];
static struct sockaddr_in where;

/* ---- a service for nodes ---- */

static struct grpc_peer caller;

static void nodes_echo(struct grpc_call *call, const ProtobufCMessage *request)
{
	caller = *grpc_call_peer(call);
	grpc_reply(call, request);
}

static const struct grpc_method nodes_methods[] = {
	{"Echo", nodes_echo},
	{"Hold", test_hold},
	{"Flood", test_flood},
	{NULL},
};
static ProtobufCServiceDescriptor nodes_descriptor;
static struct grpc_service nodes_service = {
	&nodes_descriptor, nodes_methods, NULL, 1 << GRPC_PEER_NODE};

/* ---- the server ---- */

static void setup_tls(void)
{
	setup();
	nodes_descriptor = test_descriptor;
	nodes_descriptor.name = "test.v1.Nodes";
	cr_assert_eq(grpc_registry_add(registry, &nodes_service, test_check), 0);
	ca = issue_ca();
	keys = tls_of(&ca, &(struct spec){.names = "URI:ringvol://controller"});
	socklen_t len = sizeof(where);
	where = (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&where, len), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&where, &len), 0);
	close(fd); /* a port that was free a moment ago */
	snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(where.sin_port));
}

static void teardown_tls(void)
{
	server_close(server);
	server = NULL;
	tls_free(keys);
	issued_free(&ca);
	teardown();
}

TestSuite(server_tls, .init = setup_tls, .fini = teardown_tls);

static void serve(const struct server_limits *limits)
{
	struct err err = {0};
	struct server_config config = {.ring = ring,
		.registry = registry,
		.limits = server_limits_default,
		.tls_limits = *limits};
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen_tls(server, address, keys, &err), 0, "%s", err.message);
	cr_assert_eq(err.code, ERR_OK, "%s", err.message);
}

/* ---- a client ---- */

struct client {
	struct peer *p;
	SSL_CTX *ctx;
	SSL *ssl;
	int fd;
	bool shut; /* close_notify came */
};

static int dial(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&where, sizeof(where)), 0, "%m");
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static void client_open(struct client *c, const char *names)
{
	struct issued own = issue(&ca, &(struct spec){.names = names});
	*c = (struct client){.p = peer_new(), .ctx = SSL_CTX_new(TLS_method()), .fd = dial()};
	SSL_CTX_use_certificate(c->ctx, own.cert);
	SSL_CTX_use_PrivateKey(c->ctx, own.key);
	SSL_CTX_set_alpn_protos(c->ctx, (const unsigned char *)"\2h2", 3);
	SSL_CTX_set_mode(c->ctx, SSL_MODE_AUTO_RETRY);
	c->ssl = SSL_new(c->ctx);
	SSL_set_fd(c->ssl, c->fd);
	SSL_set_connect_state(c->ssl);
	issued_free(&own);
}

static void client_close(struct client *c)
{
	SSL_free(c->ssl);
	SSL_CTX_free(c->ctx);
	close(c->fd);
	peer_free(c->p);
	ERR_clear_error();
}

static bool client_again(struct client *c, int res)
{
	int error = SSL_get_error(c->ssl, res);
	c->shut |= error == SSL_ERROR_ZERO_RETURN;
	ERR_clear_error();
	return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
}

/* Moves what can be moved without waiting. False when the server has closed. */
static bool client_move(struct client *c)
{
	const uint8_t *data;
	ssize_t n;
	int res;
	ring_turn(ring, false);
	if (!SSL_is_init_finished(c->ssl)) {
		res = SSL_do_handshake(c->ssl);
		return res == 1 || client_again(c, res);
	}
	while ((n = nghttp2_session_mem_send(c->p->client, &data)) > 0) {
		while ((res = SSL_write(c->ssl, data, (int)n)) <= 0) {
			if (!client_again(c, res))
				return false;
			ring_turn(ring, false);
		}
	}
	ring_turn(ring, false);
	if (c->p->deaf)
		return true;
	uint8_t in[16384];
	while ((res = SSL_read(c->ssl, in, sizeof(in))) > 0)
		cr_assert_eq(nghttp2_session_mem_recv(c->p->client, in, (size_t)res), res);
	return client_again(c, res);
}

static int32_t client_ask(struct client *c, const char *method, struct buf *b, const char *text)
{
	b->len = 0;
	text_frame(b, text, strlen(text));
	return peer_request(
		c->p, &(struct request){.path = method, .body = b->data, .len = b->len});
}

static int32_t client_call(struct client *c, const char *method)
{
	struct buf b = {0};
	int32_t id = client_ask(c, method, &b, "socket");
	while (!answer_at(c->p, id)->closed)
		cr_assert(client_move(c), "stream %d", id);
	buf_free(&b);
	return id;
}

static bool closed(int fd)
{
	struct pollfd wait = {.fd = fd, .events = POLLRDHUP};
	return poll(&wait, 1, 0) == 1 && (wait.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* ---- */

Test(server_tls, who_calls)
{
	serve(&server_tls_limits_default);
	struct client a, b;
	client_open(&a, "URI:ringvol://node/node-a");
	client_open(&b, "URI:ringvol://node/node-b");
	assert_text(a.p, client_call(&a, "/test.v1.Nodes/Echo"), "socket", 6);
	cr_assert_eq(caller.role, GRPC_PEER_NODE);
	cr_assert_str_eq(caller.node_id, "node-a");
	assert_text(b.p, client_call(&b, "/test.v1.Nodes/Echo"), "socket", 6);
	cr_assert_str_eq(caller.node_id, "node-b");
	/* What is for this host's clients is not for nodes. */
	cr_assert_neq(answer_at(a.p, client_call(&a, "/test.v1.Test/Echo"))->grpc, GRPC_OK);
	cr_assert_eq(world.echoes, 0);
	client_close(&b);

	struct client controller;
	client_open(&controller, "URI:ringvol://controller");
	cr_assert_neq(
		answer_at(controller.p, client_call(&controller, "/test.v1.Nodes/Echo"))->grpc,
		GRPC_OK);
	client_close(&controller);
	client_close(&a);
	turn_until(server_stats(server)->connections == 0);
	cr_assert_eq(tls_stats(keys)->handshakes, 3);
}

Test(server_tls, addresses)
{
	serve(&server_tls_limits_default);
	static const char *const bad[] = {"", "1", "localhost:1", "tcp://127.0.0.1:1", "0.0.0.0:0"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct err err = {0};
		cr_assert_eq(server_listen_tls(server, bad[i], keys, &err), -EINVAL, "%s", bad[i]);
	}
	struct err err = {0};
	cr_assert_eq(server_listen_tls(server, address, keys, &err), -EADDRINUSE);
	cr_assert_not_null(strstr(err.message, address));
}

Test(server_tls, who_has_gone_without_a_word_is_noticed)
{
	struct listen_socket listening;
	struct err err = {0};
	cr_assert_eq(listen_open_any(address, &listening, &err), 0, "%s", err.message);
	int client = dial(), fd = accept(listening.fd, NULL, NULL);
	int on = 0, idle_s = 0;
	socklen_t len = sizeof(int);
	cr_assert_eq(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &len), 0);
	cr_assert_eq(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &len), 0);
	cr_assert_eq(on, 1);
	cr_assert_eq(idle_s, 30);
	close(client);
	close(fd);
	close(listening.fd);
}

Test(server_tls, much_at_once)
{
	serve(&server_tls_limits_default);
	struct client c;
	struct buf b = {0};
	client_open(&c, "URI:ringvol://node/node-a");
	nghttp2_session_set_local_window_size(c.p->client, NGHTTP2_FLAG_NONE, 0, 100 << 20);
	nghttp2_settings_entry wide = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 100 << 20};
	nghttp2_submit_settings(c.p->client, NGHTTP2_FLAG_NONE, &wide, 1);
	world.flood_left = 2000;
	world.flood_bytes = 10000;
	int32_t id = client_ask(&c, "/test.v1.Nodes/Flood", &b, "");
	while (!answer_at(c.p, id)->closed)
		cr_assert(client_move(&c));
	cr_assert_eq(answer_at(c.p, id)->grpc, GRPC_OK);
	cr_assert_gt(answer_at(c.p, id)->data.len, 2000 * 10000);
	/* A message of the largest size, the other way. */
	char *text = malloc(3 << 20);
	memset(text, 'x', (3 << 20) - 1);
	text[(3 << 20) - 1] = '\0';
	id = client_ask(&c, "/test.v1.Nodes/Echo", &b, text);
	while (!answer_at(c.p, id)->closed)
		cr_assert(client_move(&c));
	assert_text(c.p, id, text, strlen(text));
	free(text);
	buf_free(&b);
	client_close(&c);
}

/* Neither before nor within nor after its handshake may a client say nothing. */
Test(server_tls, half_open)
{
	struct server_limits limits = server_tls_limits_default;
	limits.half_open_ms = 2500; /* enough for one handshake, on any machine */
	serve(&limits);
	const struct server_stats *stats = server_stats(server);
	struct client c;
	int silent = dial(), begun = dial();
	cr_assert_eq(send(begun, "\x16\x03\x01\x02", 4, 0), 4);
	client_open(&c, "URI:ringvol://node/node-a");
	while (!SSL_is_init_finished(c.ssl))
		cr_assert(client_move(&c));
	turn_until(stats->half_open_closed == 3);
	turn_until(closed(silent) && closed(begun));
	turn_until(stats->connections == 0 || !client_move(&c)); /* one that lingers */
	cr_assert_eq(tls_stats(keys)->refused, 2);
	close(silent);
	close(begun);
	client_close(&c);
}

Test(server_tls, a_crowd_shuts_nobody_out)
{
	enum { MANY = 100, LIMIT = 40 };
	struct server_limits limits = server_tls_limits_default;
	limits.connections = limits.address_connections = LIMIT;
	serve(&limits);
	static int fds[MANY];
	struct client first, last;
	client_open(&first, "URI:ringvol://node/node-a");
	client_call(&first, "/test.v1.Nodes/Echo");
	for (unsigned i = 0; i < MANY; i++) {
		fds[i] = dial();
		if (i % 2 == 0)
			cr_assert_eq(send(fds[i], "\x16\x03\x01\x02", 4, 0), 4);
		ring_turn(ring, false);
	}
	client_open(&last, "URI:ringvol://node/node-b");
	client_call(&last, "/test.v1.Nodes/Echo");
	cr_assert_str_eq(caller.node_id, "node-b");
	cr_assert_leq(server_stats(server)->connections, LIMIT + LIMIT / 8);
	for (unsigned i = 0; i < MANY; i++)
		close(fds[i]);
	client_close(&first);
	client_close(&last);
	turn_until(server_stats(server)->connections == 0);
}

Test(server_tls, a_trust_that_changes)
{
	serve(&server_tls_limits_default);
	struct client c;
	struct buf b = {0};
	struct issued other = issue_ca();
	client_open(&c, "URI:ringvol://node/node-a");
	client_call(&c, "/test.v1.Nodes/Echo");
	client_ask(&c, "/test.v1.Nodes/Hold", &b, "");
	while (world.held == NULL)
		cr_assert(client_move(&c));
	tls_replace(keys, tls_of(&ca, &(struct spec){.names = "URI:ringvol://controller"}));
	for (unsigned i = 0; i < 20; i++)
		cr_assert(client_move(&c)); /* the same trust */
	tls_replace(keys, tls_of(&other, &(struct spec){.names = "URI:ringvol://controller"}));
	turn_until(world.gone == 1);
	struct grpc_call *call = world.held;
	grpc_end(call, GRPC_OK, NULL);
	turn_until(server_stats(server)->connections == 0);
	cr_assert_not(client_move(&c));
	cr_assert_eq(tls_stats(keys)->revoked, 1);
	client_close(&c);
	issued_free(&ca);
	ca = other;
	client_open(&c, "URI:ringvol://node/node-z");
	client_call(&c, "/test.v1.Nodes/Echo");
	cr_assert_str_eq(caller.node_id, "node-z");
	client_close(&c);
	buf_free(&b);
}

Test(server_tls, drain)
{
	serve(&server_tls_limits_default);
	struct client c;
	struct buf b = {0};
	unsigned drained = 0;
	int begun = dial();
	cr_assert_eq(send(begun, "\x16\x03\x01\x02", 4, 0), 4);
	client_open(&c, "URI:ringvol://node/node-a");
	int32_t id = client_ask(&c, "/test.v1.Nodes/Hold", &b, "");
	while (world.held == NULL)
		cr_assert(client_move(&c));
	server_drain(server, 60000, on_drained, &drained);
	while (!c.p->goaway || c.p->goaway_last != id)
		cr_assert(client_move(&c));
	cr_assert_eq(drained, 0);
	turn_until(closed(begun));
	struct grpc_call *call = world.held;
	grpc_end(call, GRPC_OK, NULL);
	while (client_move(&c))
		;
	assert_answer(c.p, id, GRPC_OK);
	cr_assert(c.shut, "no close_notify");
	turn_until(drained == 1);
	cr_assert_eq(server_stats(server)->drain_cut, 0);
	close(begun);
	client_close(&c);
	buf_free(&b);
}

Test(server_tls, a_client_that_stops_reading)
{
	struct server_limits limits = server_tls_limits_default;
	limits.write_stall_ms = 50;
	serve(&limits);
	world.flood_left = 1 << 20;
	world.flood_bytes = 10000;
	struct client c;
	struct buf b = {0};
	client_open(&c, "URI:ringvol://node/node-a");
	nghttp2_settings_entry wide = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7FFFFFFF};
	nghttp2_submit_settings(c.p->client, NGHTTP2_FLAG_NONE, &wide, 1);
	nghttp2_submit_window_update(c.p->client, NGHTTP2_FLAG_NONE, 0, 0x7FFFFFFF - 65535);
	c.p->deaf = true;
	client_ask(&c, "/test.v1.Nodes/Flood", &b, "");
	for (unsigned i = 0; i < 1000 && world.flood_left == 1 << 20; i++)
		cr_assert(client_move(&c));
	turn_until(server_stats(server)->connections == 0);
	cr_assert_eq(grpc_registry_in_flight(registry), 0);
	client_close(&c);
	buf_free(&b);
}

Test(server_tls, closing_in_the_middle)
{
	serve(&server_tls_limits_default);
	struct client c;
	struct buf b = {0};
	int begun = dial();
	cr_assert_eq(send(begun, "\x16\x03\x01\x02", 4, 0), 4);
	client_open(&c, "URI:ringvol://node/node-a");
	client_ask(&c, "/test.v1.Nodes/Hold", &b, "");
	while (world.held == NULL)
		cr_assert(client_move(&c));
	server_close(server);
	server = NULL;
	cr_assert_eq(world.gone, 1);
	struct grpc_call *call = world.held;
	grpc_end(call, GRPC_OK, NULL);
	close(begun);
	client_close(&c);
	buf_free(&b);
}
