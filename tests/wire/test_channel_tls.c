/* SPDX-License-Identifier: Apache-2.0 */
/* A channel over TLS: who is at the other end, and what a connection costs when it is not. */
#include "tls_certs.h"

#include "base/utf8.h"
#include "channel_env.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

static struct issued ca, other_ca;
static bool bulk;
static struct tls *ours, *theirs;
static char address[32];
static struct channel *channel;
static struct asked a, b;
static struct grpc_peer caller;

static void whoami(struct grpc_call *call, const ProtobufCMessage *request)
{
	caller = *grpc_call_peer(call);
	grpc_reply(call, request);
}

static const struct grpc_method for_all_methods[] = {
	{"Echo", whoami},
	{"Hold", test_hold},
	{"Flood", test_flood},
	{NULL},
};
static ProtobufCServiceDescriptor for_all_descriptor;
static struct grpc_service for_all = {&for_all_descriptor, for_all_methods, NULL,
	1 << GRPC_PEER_NODE | 1 << GRPC_PEER_CONTROLLER};

static void setup_tls(void)
{
	struct sockaddr_in where = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(where);
	setup();
	for_all_descriptor = test_descriptor;
	for_all_descriptor.name = "test.v1.All";
	cr_assert_eq(grpc_registry_add(registry, &for_all, test_check), 0);
	ca = issue_ca();
	other_ca = issue_ca();
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&where, len), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&where, &len), 0);
	close(fd); /* a port that was free a moment ago */
	snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(where.sin_port));
}

static void teardown_tls(void)
{
	channel_close(channel);
	server_close(server);
	server = NULL;
	tls_free(ours);
	tls_free(theirs);
	issued_free(&ca);
	issued_free(&other_ca);
	buf_free(&a.got);
	buf_free(&b.got);
	cr_assert_eq(grpc_registry_memory(registry), 0);
	teardown();
}

TestSuite(channel_tls, .init = setup_tls, .fini = teardown_tls);

static void serve(const struct issued *by, const char *names)
{
	struct err err = {0};
	struct server_config config = {.ring = ring,
		.registry = registry,
		.limits = server_limits_default,
		.tls_limits = server_tls_limits_default};
	theirs = tls_of(by, &(struct spec){.names = names});
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen_tls(server, address, theirs, &err), 0, "%s", err.message);
}

static void dial(const char *names, const char *peer)
{
	struct err err = {0};
	ours = tls_of(&ca, &(struct spec){.names = names});
	struct channel_config config = {.ring = ring,
		.address = address,
		.tls = ours,
		.peer = peer,
		.registry = registry,
		.bulk = bulk};
	cr_assert_eq(channel_open(&channel, &config, &err), 0, "%s", err.message);
}

static const char controller[] = "URI:ringvol://controller";
static const char node[] = "URI:ringvol://node/node-1";

Test(channel_tls, a_controller_calls_a_node)
{
	serve(&ca, node);
	dial(controller, "ringvol://node/node-1");
	for (unsigned i = 0; i < 20; i++) {
		ask(channel, &a, "/test.v1.All/Echo", "hello");
		turn_until(a.ends == 1);
		assert_asked_text(&a, "hello");
	}
	cr_assert_eq(caller.role, GRPC_PEER_CONTROLLER);
	cr_assert_eq(server_stats(server)->accepted, 1);
	/* What is for processes of the host is not for it. */
	ask(channel, &a, "/test.v1.Test/Echo", "hello");
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_PERMISSION_DENIED);
}

Test(channel_tls, a_node_calls_a_controller)
{
	serve(&ca, controller);
	dial(node, "ringvol://controller");
	ask(channel, &a, "/test.v1.All/Echo", "hello");
	turn_until(a.ends == 1);
	assert_asked_text(&a, "hello");
	cr_assert_eq(caller.role, GRPC_PEER_NODE);
	cr_assert_str_eq(caller.node_id, "node-1");
}

static void take_much_data(void)
{
	serve(&ca, node);
	dial(controller, "ringvol://node/node-1");
	world.flood_left = 3000;
	world.flood_bytes = 10000;
	asked_init(&a, "/test.v1.All/Flood");
	ask_text(channel, &a, "x", true);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_OK);
	cr_assert_eq(a.messages, 3000);
	static char text[GRPC_MESSAGE_MAX_BYTES - 10];
	memset(text, 'x', sizeof(text) - 1);
	ask(channel, &b, "/test.v1.All/Echo", text);
	turn_until(b.ends == 1);
	assert_asked_text(&b, text);
}

Test(channel_tls, much_data)
{
	take_much_data();
}

Test(channel_tls, much_data_in_bulk)
{
	bulk = true;
	take_much_data();
}

static void assert_refused(const char *why)
{
	ask(channel, &a, "/test.v1.All/Echo", "hello");
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert_not(a.sent);
	cr_assert_not_null(strstr(a.message, why), "\"%s\"", a.message);
	cr_assert_not_null(strstr(a.message, address), "\"%s\"", a.message);
	cr_assert_str_eq(channel_why(channel), a.message);
}

Test(channel_tls, another_is_there)
{
	static const char *const wrong[] = {
		"ringvol://node/node-2", "ringvol://node/node-", "ringvol://controller"};
	serve(&ca, node);
	for (unsigned i = 0; i < 3; i++) {
		dial(controller, wrong[i]);
		assert_refused("ringvol://node/node-1");
		assert_refused(wrong[i]);
		channel_close(channel);
		channel = NULL;
		tls_free(ours);
		ours = NULL;
	}
	cr_assert_eq(world.echoes, 0);
}

Test(channel_tls, a_certificate_of_all_nodes)
{
	serve(&ca, "URI:ringvol://node/*");
	dial(controller, "ringvol://node/node-7");
	ask(channel, &a, "/test.v1.All/Echo", "hello");
	turn_until(a.ends == 1);
	assert_asked_text(&a, "hello");
}

/* Which is not a controller's. */
Test(channel_tls, a_node_is_no_controller)
{
	serve(&ca, "URI:ringvol://node/*");
	dial(node, "ringvol://controller");
	assert_refused("ringvol://controller");
}

Test(channel_tls, a_stranger_is_there)
{
	serve(&other_ca, node);
	dial(controller, "ringvol://node/node-1");
	assert_refused("certificate");
	assert_refused("certificate");
}

/* Plain HTTP/2 is answered there, or nothing that is TLS. */
Test(channel_tls, no_tls_is_there)
{
	struct sockaddr_in where = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(where);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	cr_assert_eq(bind(listener, (struct sockaddr *)&where, len), 0);
	cr_assert_eq(listen(listener, 1), 0);
	cr_assert_eq(getsockname(listener, (struct sockaddr *)&where, &len), 0);
	snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(where.sin_port));
	dial(controller, "ringvol://node/node-1");
	ask(channel, &a, "/test.v1.All/Echo", "hello");
	int fd = -1;
	turn_until((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
	cr_assert_eq(write(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28), 28);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert_not(a.sent);
	close(fd);
	close(listener);
}

/* A trust that is replaced ends the connection under its calls. */
Test(channel_tls, a_trust_that_is_replaced)
{
	serve(&ca, node);
	dial(controller, "ringvol://node/node-1");
	ask(channel, &a, "/test.v1.All/Hold", "x");
	turn_until(world.held != NULL);
	tls_replace(ours, tls_of(&other_ca, &(struct spec){.names = controller}));
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert(a.sent);
	turn_until(world.gone == 1);
	grpc_end(world.held, GRPC_OK, NULL);
	assert_refused("certificate");
}

Test(channel_tls, identities_that_are_refused)
{
	static const char *const wrong[] = {NULL, "", "node-1", "ringvol://node/", "https://x"};
	ours = tls_of(&ca, &(struct spec){.names = controller});
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct err err = {0};
		struct channel_config config = {
			.ring = ring, .address = address, .tls = ours, .peer = wrong[i]};
		cr_assert_eq(channel_open(&channel, &config, &err), -EINVAL);
		cr_assert_not_null(strstr(err.message, "identity"), "%s", err.message);
	}
}

Test(channel_tls, closing_at_every_turn)
{
	serve(&ca, node);
	for (unsigned turns = 0; turns < 60; turns++) {
		dial(controller, "ringvol://node/node-1");
		ask(channel, &a, "/test.v1.All/Echo", "hello");
		for (unsigned i = 0; i < turns; i++)
			cr_assert_eq(ring_turn(ring, false), 0);
		channel_close(channel);
		channel = NULL;
		cr_assert_eq(a.ends, 1);
		tls_free(ours);
		ours = NULL;
		turn_until(server_stats(server)->connections == 0);
	}
}
