/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of one connection in memory: whom it lets in and why not, bytes in any pieces, how it ends.
 */
#include "tls_peer.h"
#include "unit/sim_time.h"

#include <criterion/criterion.h>
#include <errno.h>

static struct ring_sim sim = {.seed = 1};
static struct ring *ring;
static struct issued ca;
static struct tls *controller, *node;

static const struct spec controller_spec = {.names = "URI:ringvol://controller"},
			 node_spec = {.names = "URI:ringvol://node/node-a"};

static void setup(void)
{
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	ca = issue_ca();
	controller = tls_of(&ca, &controller_spec);
	node = tls_of(&ca, &node_spec);
}

static void teardown(void)
{
	tls_free(controller);
	tls_free(node);
	issued_free(&ca);
	ring_close(ring);
}

TestSuite(tls, .init = setup, .fini = teardown);

static void assert_why(const struct end *end, const char *part)
{
	cr_assert_not_null(strstr(end_why(end), part), "\"%s\" has no \"%s\"", end_why(end), part);
}

/* ---- the happy path ---- */

Test(tls, both_know_each_other)
{
	static const size_t chunks[] = {0, 1, 2, 5, 17, 1000};
	for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
		struct end client, server;
		end_open(&server, ring, controller, false);
		end_open(&client, ring, node, true);
		cr_assert(server.session->paced);
		pump(ring, &client, &server, chunks[i]);
		cr_assert_not_null(client.plain, "%s", end_why(&client));
		cr_assert_not_null(server.plain, "%s", end_why(&server));
		cr_assert_not(server.session->paced);
		cr_assert_eq(client.peer.role, GRPC_PEER_CONTROLLER);
		cr_assert_eq(server.peer.role, GRPC_PEER_NODE);
		cr_assert_str_eq(server.peer.node_id, "node-a");
		end_say(&client, "ping", 4);
		end_say(&server, "pong", 4);
		pump(ring, &client, &server, chunks[i]);
		cr_assert_eq(server.plain->in.len, 4);
		cr_assert_eq(memcmp(server.plain->in.data, "ping", 4), 0);
		cr_assert_eq(memcmp(client.plain->in.data, "pong", 4), 0);
		end_close(&client);
		end_close(&server);
		cr_assert_eq(client.freed + server.freed, 2);
	}
	cr_assert_eq(tls_stats(controller)->handshakes, sizeof(chunks) / sizeof(chunks[0]));
	cr_assert_eq(tls_stats(controller)->refused, 0);
}

static void open_pair(struct end *client, struct end *server)
{
	end_open(server, ring, controller, false);
	end_open(client, ring, node, true);
	pump(ring, client, server, 0);
	cr_assert_not_null(client->plain, "%s", end_why(client));
	cr_assert_not_null(server->plain, "%s", end_why(server));
}

static void close_pair(struct end *client, struct end *server)
{
	end_close(client);
	end_close(server);
}

Test(tls, large_writes)
{
	enum { LEN = 3 << 20 };
	struct end client, server;
	uint8_t *bytes = malloc(LEN);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (uint8_t)(i * 7 + i / 251);
	open_pair(&client, &server);
	end_say(&client, bytes, LEN);
	end_say(&server, bytes, LEN);
	struct buf out = {0};
	end_output(&client, &out, 64 << 10);
	cr_assert_gt(out.len, 64 << 10); /* a limit, and what encryption adds */
	cr_assert_lt(out.len, 66 << 10);
	end_feed(&server, out.data, out.len);
	buf_free(&out);
	pump(ring, &client, &server, 8192);
	cr_assert_eq(server.plain->in.len, LEN);
	cr_assert_eq(memcmp(server.plain->in.data, bytes, LEN), 0);
	cr_assert_eq(client.plain->in.len, LEN);
	cr_assert_eq(memcmp(client.plain->in.data, bytes, LEN), 0);
	close_pair(&client, &server);
	free(bytes);
}

/* ---- how it ends ---- */

Test(tls, the_inner_session_ends_it)
{
	struct end client, server;
	open_pair(&client, &server);
	end_say(&server, "bye", 3);
	server.plain->over = true;
	pump(ring, &client, &server, 0);
	cr_assert_eq(client.plain->in.len, 3);
	cr_assert(end_finished(&server));
	cr_assert(end_finished(&client), "close_notify was not heard");
	cr_assert_str_eq(end_why(&client), "");
	cr_assert_str_eq(end_why(&server), "");
	end_feed(&client, (const uint8_t *)"more", 4); /* it is not looked at */
	cr_assert_eq(client.fed, 0);
	close_pair(&client, &server);
}

Test(tls, the_inner_session_fails)
{
	struct end client, server;
	open_pair(&client, &server);
	end_say(&client, "x", 1);
	server.plain->refuse = -EPROTO;
	end_say(&server, "because", 7);
	struct buf out = {0};
	end_output(&client, &out, 1000);
	end_feed(&server, out.data, out.len);
	buf_free(&out);
	cr_assert_eq(server.fed, -EPROTO);
	pump(ring, &client, &server, 0);
	cr_assert_eq(client.plain->in.len, 7);
	cr_assert(end_finished(&server));
	close_pair(&client, &server);
}

Test(tls, the_inner_session_cannot_be_made)
{
	struct end client, server;
	end_open(&server, ring, controller, false);
	end_open(&client, ring, node, true);
	server.refuse_inner = -ENOMEM;
	pump(ring, &client, &server, 0);
	cr_assert(end_finished(&server));
	assert_why(&server, "not accepted");
	cr_assert(end_finished(&client));
	close_pair(&client, &server);
}

Test(tls, a_drain)
{
	struct end client, server, early;
	uint64_t since = 0;
	open_pair(&client, &server);
	end_open(&early, ring, controller, false);
	cr_assert_eq(early.session->ops->waits(early.session, &since), SESSION_HALF_OPEN);
	early.session->ops->drain(early.session);
	cr_assert(end_finished(&early));
	end_close(&early);
	cr_assert_eq(server.session->ops->waits(server.session, &since), SESSION_IDLE);
	cr_assert_eq(since, 7);
	server.session->ops->drain(server.session);
	cr_assert(server.plain->drained);
	pump(ring, &client, &server, 0);
	cr_assert(end_finished(&server) && end_finished(&client));
	close_pair(&client, &server);
}

Test(tls, a_handshake_has_a_deadline)
{
	struct end server;
	end_open(&server, ring, controller, false);
	end_feed(&server, (const uint8_t *)"\x16\x03\x01\x01\x00", 5);
	turns(ring);
	sim_pass_ms(ring, 9000);
	cr_assert_not(end_finished(&server));
	unsigned wakes = server.wakes;
	sim_pass_ms(ring, 2000);
	cr_assert(server.session->dead);
	cr_assert_eq(server.session->end, SESSION_END_HALF_OPEN);
	cr_assert_gt(server.wakes, wakes);
	assert_why(&server, "10000 ms");
	end_close(&server);
	struct end a, b;
	open_pair(&a, &b); /* and what is open has none */
	sim_pass_ms(ring, 20000);
	cr_assert_not(end_finished(&a) || end_finished(&b));
	close_pair(&a, &b);
}

/* ---- who is let in ---- */

static unsigned told;
static char told_from[64], told_why[300];

static void on_refused(void *arg, const char *from, const char *why)
{
	cr_assert_eq(arg, &told);
	told++;
	snprintf(told_from, sizeof(told_from), "%s", from);
	snprintf(told_why, sizeof(told_why), "%s", why);
}

/* A client with this certificate comes to a controller; or a server that our client has dialled. */
static void refuse_alien(const struct alien_spec *spec, const char *why, int alert)
{
	struct alien alien;
	struct end end;
	told = 0;
	tls_on_refused(controller, on_refused, &told);
	end_open(&end, ring, controller, spec->server);
	alien_open(&alien, spec);
	alien_pump(ring, &alien, &end);
	cr_expect(end_finished(&end), "%s", why);
	cr_expect_null(end.plain, "%s", why);
	cr_expect_not_null(strstr(end_why(&end), why), "\"%s\" has no \"%s\"", end_why(&end), why);
	cr_expect_eq(told, spec->server ? 0 : 1, "%s", why);
	if (!spec->server) {
		cr_expect_str_eq(told_from, "192.0.2.1");
		cr_expect_str_eq(told_why, end_why(&end));
	}
	if (alert >= 0)
		cr_expect_eq(alien.alert, alert, "%s", why);
	alien_close(&alien);
	end_close(&end);
}

static void refuse_cert(
	const struct issued *by, const struct spec *spec, const char *why, int alert, bool server)
{
	struct issued own = issue(by, spec);
	refuse_alien(&(struct alien_spec){.server = server, .own = &own}, why, alert);
	issued_free(&own);
}

Test(tls, certificates_that_are_refused)
{
	struct issued other = issue_ca();
	for (int server = 0; server < 2; server++) {
		refuse_cert(&other, &node_spec, "unable to get local issuer", SSL_AD_UNKNOWN_CA,
			server);
		refuse_cert(NULL, &node_spec, "self-signed", SSL_AD_UNKNOWN_CA, server);
		refuse_cert(&ca,
			&(struct spec){
				.names = "URI:ringvol://node/a", .from_s = -7200, .until_s = -3600},
			"expired (ringvol://node/a)", SSL_AD_CERTIFICATE_EXPIRED, server);
		refuse_cert(&ca, &(struct spec){.names = node_spec.names, .from_s = 3600},
			"not yet valid", SSL_AD_BAD_CERTIFICATE, server);
		refuse_cert(&ca, &(struct spec){0}, "no ringvol:// name", SSL_AD_HANDSHAKE_FAILURE,
			server);
		refuse_cert(&ca, &(struct spec){.names = "DNS:ringvol,URI:spiffe://node/a"},
			"no ringvol:// name", -1, server);
		refuse_cert(&ca,
			&(struct spec){.names = "URI:ringvol://node/a,URI:ringvol://node/b"},
			"more than one", -1, server);
		refuse_cert(&ca,
			&(struct spec){.names = "URI:ringvol://controller,URI:ringvol://node/b"},
			"more than one", -1, server);
		refuse_cert(&ca,
			&(struct spec){.names = "URI:ringvol://node/a,URI:ringvol://pod/b"},
			"is none of", -1, server);
		refuse_cert(&ca,
			&(struct spec){.names = "URI:ringvol://node/a,DNS:ringvol://controller"},
			"more than one", -1, server);
		refuse_cert(&ca, &(struct spec){.names = "DNS:ringvol://pod/b"}, "is none of", -1,
			server);
		refuse_cert(&ca, &(struct spec){.names = "email:ringvol://controller"},
			"no ringvol:// name", -1, server);
		refuse_cert(&ca,
			&(struct spec){.names = node_spec.names,
				.usage = server != 0 ? "clientAuth" : "serverAuth"},
			"purpose", -1, server);
	}
	issued_free(&other);
}

Test(tls, clients_that_are_refused)
{
	struct issued own = issue(&ca, &node_spec);
	refuse_alien(&(struct alien_spec){0}, "has no certificate", SSL_AD_CERTIFICATE_REQUIRED);
	refuse_alien(&(struct alien_spec){.own = &own, .version = TLS1_2_VERSION},
		"does not speak TLS 1.3", SSL_AD_PROTOCOL_VERSION);
	refuse_alien(&(struct alien_spec){.own = &own, .version = TLS1_VERSION},
		"does not speak TLS 1.3", -1);
	refuse_alien(&(struct alien_spec){.own = &own, .alpn = ""}, "(ALPN h2)",
		SSL_AD_NO_APPLICATION_PROTOCOL);
	refuse_alien(&(struct alien_spec){.own = &own, .alpn = "\10http/1.1"}, "(ALPN h2)",
		SSL_AD_NO_APPLICATION_PROTOCOL);
	issued_free(&own);
	cr_assert_eq(tls_stats(controller)->refused, 5);
	cr_assert_eq(tls_stats(controller)->handshakes, 0);
}

/* A peer's certificates take so much memory and no more, though OpenSSL would take 100 KiB. */
Test(tls, certificates_that_are_long)
{
	static const size_t sizes[] = {TLS_CHAIN_MAX_BYTES - 4096, TLS_CHAIN_MAX_BYTES};
	static const char filler[] =
		",DNS:sixty-letters-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
	static char names[TLS_CHAIN_MAX_BYTES * 2];
	for (size_t i = 0; i < 2; i++) {
		struct alien alien;
		struct end end;
		size_t len = (size_t)snprintf(names, sizeof(names), "%s", node_spec.names);
		for (size_t at = 0; at + sizeof(filler) < sizes[i]; at += sizeof(filler) - 4)
			len += (size_t)snprintf(names + len, sizeof(names) - len, "%s", filler);
		const struct spec spec = {.names = names};
		if (i == 1) {
			refuse_cert(&ca, &spec, "excessive message size", -1, false);
			refuse_cert(&ca, &spec, "excessive message size", -1, true);
			continue;
		}
		struct issued own = issue(&ca, &spec);
		end_open(&end, ring, controller, false);
		alien_open(&alien, &(struct alien_spec){.own = &own});
		alien_pump(ring, &alien, &end);
		cr_expect_not_null(end.plain, "%s", end_why(&end));
		alien_close(&alien);
		end_close(&end);
		issued_free(&own);
	}
}

Test(tls, servers_that_are_refused)
{
	struct issued own = issue(&ca, &node_spec);
	refuse_alien(&(struct alien_spec){.own = &own, .server = true, .version = TLS1_2_VERSION},
		"protocol version", -1);
	refuse_alien(&(struct alien_spec){.own = &own, .server = true, .alpn = ""},
		"does not speak HTTP/2", -1);
	issued_free(&own);
}

Test(tls, what_else_a_certificate_has_does_not_matter)
{
	static const struct spec specs[] = {
		{.names = "DNS:a,URI:spiffe://x/y,URI:ringvol://node/node-a,IP:1.2.3.4"},
		{.names = "URI:ringvol://node/node-a", .usage = ""},
		{.names = "DNS:ringvol://node/node-a,DNS:node-a"}, /* as helm makes them */
	};
	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		struct issued own = issue(&ca, &specs[i]);
		struct alien alien;
		struct end end;
		end_open(&end, ring, controller, false);
		alien_open(&alien, &(struct alien_spec){.own = &own});
		alien_pump(ring, &alien, &end);
		cr_assert_not_null(end.plain, "%s", end_why(&end));
		cr_assert_str_eq(end.peer.node_id, "node-a");
		alien_close(&alien);
		end_close(&end);
		issued_free(&own);
	}
}

/* The one who dialled is told what to do. */
Test(tls, a_client_says_why_it_was_refused)
{
	struct issued other = issue_ca();
	struct tls *stranger = tls_of(&other, &node_spec);
	struct end client, server;
	end_open(&server, ring, controller, false);
	end_open(&client, ring, stranger, true);
	pump(ring, &client, &server, 0);
	/* Each refuses the other; the client is the first. */
	assert_why(&client, "unable to get local issuer certificate (ringvol://controller)");
	assert_why(&server, "its CA file does not cover our certificate");
	close_pair(&client, &server);
	tls_free(stranger);
	issued_free(&other);
}

Test(tls, identities)
{
	static const struct {
		const char *uri, *node_id; /* NULL: it is none; "": the controller's */
	} rows[] = {
		{"ringvol://controller", ""},
		{"ringvol://node/a", "a"},
		{"ringvol://node/*", "*"},
		{"ringvol://node/ip-10-0-0-1.ec2.internal", "ip-10-0-0-1.ec2.internal"},
		{"ringvol://node/A_b~c:@!$&'()+,;=", "A_b~c:@!$&'()+,;="},
		{"ringvol://node/", NULL},
		{"ringvol://node", NULL},
		{"ringvol://node/a/b", NULL},
		{"ringvol://node/a*", NULL},
		{"ringvol://node/**", NULL},
		{"ringvol://node/a?b", NULL},
		{"ringvol://node/a%2fb", NULL},
		{"ringvol://node/a b", NULL},
		{"ringvol://node/\xc3\xa4", NULL},
		{"ringvol://controller/", NULL},
		{"ringvol://Controller", NULL},
		{"RINGVOL://controller", NULL},
		{"", NULL},
	};
	struct grpc_peer peer;
	char text[TLS_IDENTITY_MAX];
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		bool good = tls_identity_parse(rows[i].uri, &peer);
		cr_expect_eq(good, rows[i].node_id != NULL, "%s", rows[i].uri);
		if (!good)
			continue;
		cr_expect_str_eq(peer.node_id, rows[i].node_id);
		tls_identity_print(&peer, text);
		cr_expect_str_eq(text, rows[i].uri);
	}
	char uri[400] = "ringvol://node/";
	memset(uri + 15, 'n', 255);
	cr_expect(tls_identity_parse(uri, &peer));
	tls_identity_print(&peer, text);
	cr_expect_str_eq(text, uri);
	uri[15 + 255] = 'n';
	cr_expect_not(tls_identity_parse(uri, &peer));
}

/* ---- hostile bytes ---- */

Test(tls, garbage_instead_of_a_handshake)
{
	static const struct {
		const char *data;
		size_t len;
		const char *why;
	} rows[] = {
		{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27, "does not speak TLS"},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24, ""},
		{"\0\0\0\0\0\0\0\0\0\0\0\0", 12, ""},
		{"\x16\x03\x01\xff\xff", 5, "packet length"},
		{"\x17\x03\x03\x00\x05hello", 10, ""},
		{"\x15\x03\x03\x00\x02\x02\x28", 7, "unexpected message"},
		{"\x16\x03\x01\x00\x04\x01\xff\xff\xff", 9, "excessive message size"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct end server;
		end_open(&server, ring, controller, false);
		end_feed(&server, (const uint8_t *)rows[i].data, rows[i].len);
		turns(ring);
		struct buf out = {0};
		end_output(&server, &out, 1000);
		buf_free(&out);
		cr_expect(end_finished(&server), "row %zu", i);
		cr_expect_str_neq(end_why(&server), "");
		cr_expect_not_null(strstr(end_why(&server), rows[i].why), "%s", end_why(&server));
		end_close(&server);
	}
}

/* A record that never ends cannot make us keep more than so much. */
Test(tls, a_handshake_has_a_size)
{
	struct end server;
	static uint8_t piece[4096];
	end_open(&server, ring, controller, false);
	for (unsigned i = 0; i < 64 && !end_finished(&server); i++)
		end_feed(&server, piece, sizeof(piece)); /* no turn: nothing is looked at */
	cr_assert(server.session->dead);
	assert_why(&server, "bytes");
	end_close(&server);
}

Test(tls, bytes_that_were_changed)
{
	for (unsigned at = 0; at < 2000; at += 37) {
		struct end client, server;
		struct buf out = {0};
		end_open(&server, ring, controller, false);
		end_open(&client, ring, node, true);
		turns(ring);
		end_output(&client, &out, 10000);
		end_feed(&server, out.data, out.len);
		turns(ring);
		out.len = 0;
		end_output(&server, &out, 10000);
		end_feed(&client, out.data, out.len);
		turns(ring);
		out.len = 0;
		end_output(&client, &out, 10000);
		out.data[at % out.len] ^= 0x10;
		end_feed(&server, out.data, out.len);
		turns(ring);
		out.len = 0;
		end_output(&server, &out, 10000);
		buf_free(&out);
		cr_assert_null(server.plain, "byte %u was changed", at);
		close_pair(&client, &server);
	}
}

/* ---- after the handshake ---- */

static void open_alien(struct alien *alien, struct end *end, struct issued *own)
{
	*own = issue(&ca, &node_spec);
	end_open(end, ring, controller, false);
	alien_open(alien, &(struct alien_spec){.own = own});
	alien_pump(ring, alien, end);
	cr_assert_not_null(end->plain, "%s", end_why(end));
	cr_assert(alien->done);
}

static void alien_say(struct alien *alien, const char *text)
{
	cr_assert_eq(SSL_write(alien->ssl, text, (int)strlen(text)), (int)strlen(text));
}

Test(tls, keys_made_anew)
{
	struct alien alien;
	struct end end;
	struct issued own;
	open_alien(&alien, &end, &own);
	for (unsigned i = 0; i < 200; i++) { /* now and then */
		cr_assert_eq(SSL_key_update(alien.ssl, SSL_KEY_UPDATE_REQUESTED), 1);
		alien_say(&alien, "x");
		alien_pump(ring, &alien, &end);
		sim_pass_ms(ring, 1500);
	}
	cr_assert_eq(end.plain->in.len, 200);
	end_say(&end, "and back", 8);
	alien_pump(ring, &alien, &end);
	char text[16];
	cr_assert_eq(SSL_read(alien.ssl, text, sizeof(text)), 8);
	cr_assert_not(end_finished(&end), "%s", end_why(&end));
	for (unsigned i = 0; i < 200 && !end_finished(&end); i++) { /* all the time */
		cr_assert_eq(SSL_key_update(alien.ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
		alien_say(&alien, "x");
		alien_carry(ring, &alien, &end);
	}
	cr_assert(end_finished(&end));
	cr_assert_eq(end.session->end, SESSION_END_FLOODED);
	assert_why(&end, "new keys");
	alien_close(&alien);
	end_close(&end);
	issued_free(&own);
}

Test(tls, empty_records_are_no_conversation)
{
	struct alien alien;
	struct end end;
	struct issued own;
	open_alien(&alien, &end, &own);
	SSL_set_options(alien.ssl, 0);
	struct buf bytes = {0};
	for (unsigned i = 0; i < 100;
		i++) { /* records of nothing but padding are not sent by OpenSSL */
		alien_say(&alien, "y");
		uint8_t piece[100];
		int n = BIO_read(alien.out, piece, sizeof(piece));
		cr_assert_eq(buf_append(&bytes, piece, (size_t)n), 0);
	}
	/* A record that comes twice is no record. */
	end_feed(&end, bytes.data, bytes.len / 100);
	end_feed(&end, bytes.data, bytes.len / 100);
	cr_assert_eq(end.plain->in.len, 1);
	struct buf out = {0};
	end_output(&end, &out, 1000);
	buf_free(&out);
	cr_assert(end_finished(&end));
	assert_why(&end, "bad record mac");
	buf_free(&bytes);
	alien_close(&alien);
	end_close(&end);
	issued_free(&own);
}

Test(tls, a_peer_that_goes_in_the_middle)
{
	struct alien alien;
	struct end end;
	struct issued own;
	open_alien(&alien, &end, &own);
	alien_say(&alien, "x");
	SSL_shutdown(alien.ssl);
	alien_pump(ring, &alien, &end);
	cr_assert_eq(end.plain->in.len, 1);
	cr_assert(end_finished(&end));
	cr_assert_str_eq(end_why(&end), "");
	alien_close(&alien);
	end_close(&end);
	issued_free(&own);
}
