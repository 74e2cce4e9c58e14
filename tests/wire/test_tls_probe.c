/* SPDX-License-Identifier: Apache-2.0 */
/* Who listens at an address, asked by a tool: of a server of ours, of one that is none, of nobody.
 */
#include "tls_certs.h"

#include "rpc/tls_probe.h"
#include "server_env.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

/* Long enough for any answer that comes, and what a tool waits for one that does not. */
enum { WAIT_MS = 60000, SHORT_MS = 20 };

static struct issued ca, other_ca;
static struct tls *ours, *theirs;
static int listener;
static unsigned port;

static const struct spec node_spec = {.names = "URI:ringvol://node/node-a"},
			 controller_spec = {.names = "URI:ringvol://controller"};

static void setup_tls(void)
{
	struct sockaddr_in where = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(where);
	setup();
	ca = issue_ca();
	other_ca = issue_ca();
	ours = tls_of(&ca, &node_spec);
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(listener, (struct sockaddr *)&where, len), 0);
	cr_assert_eq(listen(listener, 8), 0);
	cr_assert_eq(getsockname(listener, (struct sockaddr *)&where, &len), 0);
	port = ntohs(where.sin_port);
}

static void teardown_tls(void)
{
	server_close(server);
	server = NULL;
	if (listener >= 0)
		close(listener);
	tls_free(theirs);
	tls_free(ours);
	issued_free(&ca);
	issued_free(&other_ca);
	teardown();
}

TestSuite(tls_probe, .init = setup_tls, .fini = teardown_tls);

static const char *at(const char *host)
{
	static char address[64];
	snprintf(address, sizeof(address), "%s:%u", host, port);
	return address;
}

/* ---- a probe beside the loop ---- */

struct asking {
	pthread_t thread;
	const char *address;
	struct grpc_peer peer;
	struct err err;
	int res;
	_Atomic bool over;
};

static void *ask(void *arg)
{
	struct asking *a = arg;
	a->res = tls_probe(ours, a->address, WAIT_MS, &a->peer, &a->err);
	a->over = true;
	return NULL;
}

/* Asks a server of ours with the certificate `keys`. */
static struct asking ask_server(struct tls *keys, const char *host)
{
	struct asking a = {.address = at(host)};
	struct err err = {0};
	struct server_config config = {.ring = ring,
		.registry = registry,
		.limits = server_limits_default,
		.tls_limits = server_tls_limits_default};
	char address[64];
	theirs = keys;
	close(listener); /* its port is the server's */
	listener = -1;
	snprintf(address, sizeof(address), "127.0.0.1:%u", port);
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen_tls(server, address, theirs, &err), 0, "%s", err.message);
	cr_assert_eq(pthread_create(&a.thread, NULL, ask, &a), 0);
	turn_until(a.over);
	cr_assert_eq(pthread_join(a.thread, NULL), 0);
	return a;
}

#define assert_says(a, is, text)                                                                   \
	do {                                                                                       \
		cr_assert_lt((a).res, 0);                                                          \
		cr_assert_eq((a).err.code, is, "%s", (a).err.message);                             \
		cr_assert_not_null(strstr((a).err.message, text), "%s", (a).err.message);          \
	} while (0)

Test(tls_probe, who_answers)
{
	struct asking a = ask_server(tls_of(&ca, &controller_spec), "127.0.0.1");
	cr_assert_eq(a.res, 0, "%s", a.err.message);
	cr_assert_eq(a.peer.role, GRPC_PEER_CONTROLLER);
	cr_assert_eq(ERR_peek_error(), 0);
}

/* As IPv6 addresses are written. */
Test(tls_probe, an_address_in_brackets)
{
	struct asking a = ask_server(
		tls_of(&ca, &(struct spec){.names = "URI:ringvol://node/b"}), "[127.0.0.1]");
	cr_assert_eq(a.res, 0, "%s", a.err.message);
	cr_assert_eq(a.peer.role, GRPC_PEER_NODE);
	cr_assert_str_eq(a.peer.node_id, "b");
}

Test(tls_probe, one_that_is_not_trusted)
{
	struct asking a = ask_server(tls_of(&other_ca, &controller_spec), "127.0.0.1");
	assert_says(a, ERR_PRECONDITION,
		"its certificate is not trusted: unable to get local issuer certificate");
}

/* Its certificate is good, and ours is none to it: that is known when it has said so. */
Test(tls_probe, one_that_does_not_trust_us)
{
	struct issued own = issue(&ca, &controller_spec);
	struct cert_dir d;
	struct err err = {0};
	struct tls *keys;
	cert_dir_open(&d);
	write_all(&d, &own, &other_ca);
	const struct tls_files files = cert_dir_files(&d);
	cr_assert_eq(tls_open(&keys, &files, &err), 0, "%s", err.message);
	struct asking a = ask_server(keys, "127.0.0.1");
	assert_says(a, ERR_PRECONDITION, "it does not accept our certificate: ");
	cert_dir_close(&d);
	issued_free(&own);
}

/* ---- others than ours ---- */

struct stranger {
	pthread_t thread;
	const struct issued *own; /* NULL: it closes at once */
	bool mute;                /* it shakes hands and closes */
	bool hasty;               /* it closes when it has said its part of the handshake */
};

static void *answer(void *arg)
{
	const struct stranger *s = arg;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	(void)poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1);
	if (s->hasty) { /* what it says leaves with its end */
		fcntl(fd, F_SETFL, O_NONBLOCK);
		setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){1}, sizeof(int));
	}
	if (s->own != NULL) {
		char byte;
		SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
		SSL_CTX_use_certificate(ctx, s->own->cert);
		SSL_CTX_use_PrivateKey(ctx, s->own->key);
		SSL *ssl = SSL_new(ctx);
		SSL_set_fd(ssl, fd);
		if (SSL_accept(ssl) == 1)
			(void)SSL_read(ssl, &byte, 1);
		if (s->mute)
			SSL_shutdown(ssl);
		SSL_free(ssl);
		SSL_CTX_free(ctx);
	}
	close(fd);
	return NULL;
}

static struct asking ask_stranger(struct stranger *s)
{
	struct asking a = {.address = at("127.0.0.1")};
	cr_assert_eq(pthread_create(&s->thread, NULL, answer, s), 0);
	ask(&a);
	cr_assert_eq(pthread_join(s->thread, NULL), 0);
	return a;
}

Test(tls_probe, certificates_of_no_part_of_a_cluster)
{
	struct issued named = issue(&ca, &(struct spec){.names = "DNS:www"});
	struct issued client = issue(
		&ca, &(struct spec){.names = "URI:ringvol://controller", .usage = "clientAuth"});
	struct asking a = ask_stranger(&(struct stranger){.own = &named});
	assert_says(a, ERR_PRECONDITION, "its certificate names no part of a cluster");
	a = ask_stranger(&(struct stranger){.own = &client});
	assert_says(a, ERR_PRECONDITION, "its certificate is not trusted: ");
	cr_assert_not_null(strstr(a.err.message, "purpose"), "%s", a.err.message);
	issued_free(&named);
	issued_free(&client);
}

/* Nothing is known of who ends the connection, whatever the certificate is. */
Test(tls_probe, one_that_goes)
{
	struct issued own = issue(&ca, &controller_spec);
	struct asking a = ask_stranger(&(struct stranger){0});
	assert_says(a, ERR_UNAVAILABLE, "the handshake failed: the connection ended");
	a = ask_stranger(&(struct stranger){.own = &own});
	assert_says(a, ERR_UNAVAILABLE, "the connection ended");
	a = ask_stranger(&(struct stranger){.own = &own, .mute = true});
	assert_says(a, ERR_UNAVAILABLE, "the connection ended");
	/* What is written to it is no reason to die. */
	const struct sigaction by_default = {.sa_handler = SIG_DFL};
	struct sigaction after;
	cr_assert_eq(sigaction(SIGPIPE, &by_default, NULL), 0);
	a = ask_stranger(&(struct stranger){.own = &own, .hasty = true});
	assert_says(a, ERR_UNAVAILABLE, "the connection ended");
	cr_assert_eq(sigaction(SIGPIPE, NULL, &after), 0);
	cr_assert_eq(after.sa_handler, SIG_DFL);
	issued_free(&own);
}

/* ---- nobody ---- */

static struct asking ask_alone(const struct tls *tls, const char *address)
{
	struct asking a = {.address = address};
	a.res = tls_probe(tls, address, SHORT_MS, &a.peer, &a.err);
	return a;
}

Test(tls_probe, one_that_says_nothing)
{
	struct asking a = ask_alone(ours, at("127.0.0.1"));
	assert_says(
		a, ERR_UNAVAILABLE, "the handshake failed: the connection ended or said nothing");
}

Test(tls_probe, nobody_there)
{
	close(listener);
	listener = -1;
	struct asking a = ask_alone(ours, at("127.0.0.1"));
	assert_says(a, ERR_UNAVAILABLE, "nobody is reached: Connection refused");
}

Test(tls_probe, addresses_that_are_none)
{
	char longest[300];
	static const char *const none[] = {"", "127.0.0.1", ":1", "127.0.0.1:"};
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		struct asking a = ask_alone(ours, none[i]);
		assert_says(a, ERR_INVALID, "is not HOST:PORT");
	}
	/* A host's name has up to 255 bytes, and it is asked for as it is. */
	for (unsigned len = 255; len <= 256; len++) {
		memset(longest, 'h', len);
		strcpy(longest + len, ":no-such-port");
		struct asking a = ask_alone(ours, longest);
		assert_says(a, len < 256 ? ERR_UNAVAILABLE : ERR_INVALID,
			len < 256 ? "hhh: " : "is not HOST:PORT");
	}
}

/* Brackets that belong together are no part of the host's name. A port that is none is refused
 * before the name is asked for. */
Test(tls_probe, names_and_brackets)
{
	static const char *const rows[][2] = {
		{"[h]", "h: "}, {"[h", "[h: "}, {"h]", "h]: "}, {"h[h]", "h[h]: "}, {"[]", "[]: "}};
	char address[64];
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		snprintf(address, sizeof(address), "%s:no-such-port", rows[i][0]);
		struct asking a = ask_alone(ours, address);
		cr_assert_eq(a.err.code, ERR_UNAVAILABLE);
		cr_assert_eq(strncmp(a.err.message, rows[i][1], strlen(rows[i][1])), 0, "%s",
			a.err.message);
	}
}

Test(tls_probe, nothing_to_ask_with)
{
	struct tls *empty = tls_open_empty("the files are not there");
	struct asking a = ask_alone(empty, at("127.0.0.1"));
	assert_says(a, ERR_PRECONDITION, "the files are not there");
	tls_free(empty);
}
