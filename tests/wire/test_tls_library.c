/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of TLS when OpenSSL, whose functions are called through a table (rpc/openssl.h),
 * refuses something, and when the files are not read in one piece; and what alerts of a peer mean.
 */
#include "full_queue.h"
#include "rpc/tls_session.h"
#include "rpc/tls_state.h"
#include "rpc/tls_watch.h"
#include "rpc/tls_why.h"
#include "tls_peer.h"
#include "unit/sim_time.h"

#include <criterion/criterion.h>
#include <errno.h>

static struct ring_sim sim = {.seed = 1};
static struct ring *ring;
static struct issued ca, own;
static struct cert_dir dir;
static struct tls_files files;
static struct tls *controller, *node;
static struct openssl_table real;

static const struct spec controller_spec = {.names = "URI:ringvol://controller"},
			 node_spec = {.names = "URI:ringvol://node/node-a"};

static void setup(void)
{
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	ca = issue_ca();
	own = issue(&ca, &node_spec);
	cert_dir_open(&dir);
	write_all(&dir, &own, &ca);
	files = cert_dir_files(&dir);
	controller = tls_of(&ca, &controller_spec);
	node = tls_of(&ca, &node_spec);
	real = openssl;
}

static void teardown(void)
{
	tls_free(controller);
	tls_free(node);
	cert_dir_close(&dir);
	issued_free(&own);
	issued_free(&ca);
	ring_close(ring);
}

TestSuite(tls_library, .init = setup, .fini = teardown);

/* ---- a session that cannot be made ---- */

static int made, freed; /* of what the call counts */

static BIO_METHOD *no_method(int type, const char *name)
{
	(void)type;
	(void)name;
	return NULL;
}

static BIO_METHOD *counted_method(int type, const char *name)
{
	made++;
	return real.BIO_meth_new(type, name);
}

static void counted_method_free(BIO_METHOD *method)
{
	freed += method != NULL;
	real.BIO_meth_free(method);
}

static int no_read(BIO_METHOD *method, int (*fn)(BIO *, char *, size_t, size_t *))
{
	(void)method;
	(void)fn;
	return 0;
}

static int no_write(BIO_METHOD *method, int (*fn)(BIO *, const char *, size_t, size_t *))
{
	(void)method;
	(void)fn;
	return 0;
}

static int no_ctrl(BIO_METHOD *method, long (*fn)(BIO *, int, long, void *))
{
	(void)method;
	(void)fn;
	return 0;
}

static BIO *no_bio(const BIO_METHOD *method)
{
	(void)method;
	return NULL;
}

static BIO *counted_bio(const BIO_METHOD *method)
{
	made++;
	return real.BIO_new(method);
}

static int counted_bio_free(BIO *bio)
{
	freed += bio != NULL;
	return real.BIO_free(bio);
}

static SSL *no_ssl(SSL_CTX *ctx)
{
	(void)ctx;
	ERR_raise(ERR_LIB_SSL, ERR_R_MALLOC_FAILURE);
	return NULL;
}

static void refuse_session(void)
{
	struct end end = {0};
	struct tls_config config = {.tls = controller,
		.ring = ring,
		.handshake_ms = 10000,
		.open_inner = end_open_inner,
		.context = &end,
		.on_wake = end_wake,
		.arg = &end};
	cr_assert_eq(tls_session_new(&config, &end.session), -ENOMEM);
	cr_assert_null(end.session);
	cr_assert(list_empty(&controller->members));
	cr_assert_eq(ERR_peek_error(), 0, "it would be taken for another connection's");
	cr_assert_eq(ring_timer_next_ns(ring), UINT64_MAX);
}

static void open_pair(struct end *client, struct end *server)
{
	end_open(server, ring, controller, false);
	end_open(client, ring, node, true);
	pump(ring, client, server, 0);
}

static void close_pair(struct end *client, struct end *server)
{
	end_close(client);
	end_close(server);
}

/* Nothing is left of it, and the next one has all. */
Test(tls_library, no_session)
{
	struct end client, server;
	openssl.BIO_meth_new = no_method;
	refuse_session();
	openssl.BIO_meth_new = counted_method;
	openssl.BIO_meth_free = counted_method_free;
	openssl.BIO_meth_set_read_ex = no_read;
	refuse_session();
	openssl.BIO_meth_set_read_ex = real.BIO_meth_set_read_ex;
	openssl.BIO_meth_set_write_ex = no_write;
	refuse_session();
	openssl.BIO_meth_set_write_ex = real.BIO_meth_set_write_ex;
	openssl.BIO_meth_set_ctrl = no_ctrl;
	refuse_session();
	cr_assert_eq(made, 3);
	cr_assert_eq(freed, 3);
	openssl = real;
	openssl.BIO_new = no_bio;
	refuse_session();
	made = freed = 0;
	openssl.BIO_new = counted_bio;
	openssl.BIO_free = counted_bio_free;
	openssl.SSL_new = no_ssl;
	refuse_session();
	cr_assert_eq(made, 1);
	cr_assert_eq(freed, 1);
	openssl = real;
	open_pair(&client, &server);
	cr_assert_not_null(server.plain, "%s", end_why(&server));
	close_pair(&client, &server);
}

/* ---- a session that ends ---- */

static int no_write_ex(SSL *ssl, const void *data, size_t len, size_t *ret)
{
	(void)ssl;
	(void)data;
	(void)len;
	(void)ret;
	ERR_raise(ERR_LIB_SSL, ERR_R_MALLOC_FAILURE);
	return 0;
}

Test(tls_library, nothing_can_be_sent)
{
	struct end client, server;
	struct buf out = {0};
	open_pair(&client, &server);
	end_say(&server, "x", 1);
	openssl.SSL_write_ex = no_write_ex;
	end_output(&server, &out, 1000);
	openssl = real;
	cr_assert(end_finished(&server));
	cr_assert_str_eq(end_why(&server), "no TLS connection: malloc failure");
	cr_assert_eq(ERR_peek_error(), 0);
	cr_assert_not(end_finished(&client));
	buf_free(&out);
	close_pair(&client, &server);
}

/* Who frees the keys behind the last session does not wait for the turn that it asked for. */
Test(tls_library, nothing_comes_after_the_end)
{
	struct end client;
	end_open(&client, ring, node, true); /* it wants a turn for its hello */
	end_close(&client);
	tls_free(node);
	node = NULL;
	uint64_t completed = ring_stats(ring)->completed;
	turns(ring);
	cr_assert_eq(ring_stats(ring)->completed, completed);
}

static X509 *no_certificate(const SSL *ssl)
{
	(void)ssl;
	return NULL;
}

/* Nobody is let in of whom nothing is known. */
Test(tls_library, a_peer_without_a_certificate)
{
	struct end client, server;
	openssl.SSL_get0_peer_certificate = no_certificate;
	open_pair(&client, &server);
	openssl = real;
	cr_assert_null(server.plain);
	cr_assert_null(client.plain);
	cr_assert(end_finished(&server));
	cr_assert_str_eq(end_why(&server), "the peer's certificate: ");
	cr_assert_eq(tls_stats(controller)->handshakes, 0);
	cr_assert_eq(tls_stats(controller)->refused, 1);
	close_pair(&client, &server);
}

/* Why the session inside has ended is why the connection has. */
Test(tls_library, the_inner_session_says_how_it_ends)
{
	static const enum session_end ends[] = {
		SESSION_END_NONE, SESSION_END_FLOODED, SESSION_END_TOO_MANY_PINGS};
	for (unsigned i = 0; i < 3; i++) {
		struct end client, server;
		open_pair(&client, &server);
		end_say(&client, "x", 1);
		server.plain->base.end = ends[i];
		carry(ring, &client, &server, 0);
		cr_assert_eq(server.session->end, ends[i]);
		close_pair(&client, &server);
	}
}

/* ---- a context that cannot be made ---- */

static void assert_bad(const char *part)
{
	struct tls *tls = NULL;
	struct err err = {0};
	cr_expect_lt(tls_open(&tls, &files, &err), 0, "%s", part);
	cr_assert_null(tls);
	cr_expect_not_null(strstr(err.message, part), "\"%s\" has no \"%s\"", err.message, part);
	cr_expect_eq(ERR_peek_error(), 0);
}

static int refused_command;

static long no_command(SSL_CTX *ctx, int command, long value, void *arg)
{
	return command == refused_command ? 0 : real.SSL_CTX_ctrl(ctx, command, value, arg);
}

static SSL_CTX *counted_ctx(const SSL_METHOD *method)
{
	made++;
	return real.SSL_CTX_new(method);
}

static void counted_ctx_free(SSL_CTX *ctx)
{
	freed++;
	real.SSL_CTX_free(ctx);
}

static SSL_CTX *no_ctx(const SSL_METHOD *method)
{
	(void)method;
	return NULL;
}

static int no_suites(SSL_CTX *ctx, const char *suites)
{
	(void)ctx;
	(void)suites;
	return 0;
}

static int no_tickets(SSL_CTX *ctx, size_t count)
{
	(void)ctx;
	(void)count;
	return 0;
}

/* That one says 0 when it is done. */
static int no_alpn(SSL_CTX *ctx, const unsigned char *protos, unsigned len)
{
	(void)ctx;
	(void)protos;
	(void)len;
	return 1;
}

static int no_cert(SSL_CTX *ctx, X509 *cert)
{
	(void)ctx;
	(void)cert;
	return 0;
}

/* A rule that cannot be set is not left out. */
Test(tls_library, no_context)
{
	static const char what[] = "TLS cannot be set up: ";
	openssl.SSL_CTX_new = no_ctx;
	assert_bad(what);
	openssl.SSL_CTX_new = counted_ctx;
	openssl.SSL_CTX_free = counted_ctx_free;
	openssl.SSL_CTX_set_ciphersuites = no_suites;
	assert_bad(what);
	openssl.SSL_CTX_set_ciphersuites = real.SSL_CTX_set_ciphersuites;
	openssl.SSL_CTX_set_num_tickets = no_tickets;
	assert_bad(what);
	openssl.SSL_CTX_set_num_tickets = real.SSL_CTX_set_num_tickets;
	openssl.SSL_CTX_set_alpn_protos = no_alpn;
	assert_bad(what);
	openssl.SSL_CTX_set_alpn_protos = real.SSL_CTX_set_alpn_protos;
	openssl.SSL_CTX_ctrl = no_command;
	refused_command = SSL_CTRL_SET_MIN_PROTO_VERSION;
	assert_bad(what);
	refused_command = SSL_CTRL_SET_MAX_PROTO_VERSION;
	assert_bad(what);
	cr_assert_eq(made, 5);
	cr_assert_eq(freed, 5);
}

/* Of what comes with the certificate nothing is left out either. */
Test(tls_library, no_chain)
{
	struct issued below = issue(&ca, &(struct spec){.ca = true});
	struct issued leaf = issue(&below, &node_spec);
	write_all(&dir, &leaf, &ca);
	FILE *file = cert_file(dir.cert);
	cr_assert_eq(PEM_write_X509(file, leaf.cert), 1);
	cr_assert_eq(PEM_write_X509(file, below.cert), 1);
	cert_file_done(file, dir.cert);
	openssl.SSL_CTX_use_certificate = no_cert;
	assert_bad(" cannot be used: ");
	openssl.SSL_CTX_use_certificate = real.SSL_CTX_use_certificate;
	openssl.SSL_CTX_ctrl = no_command;
	refused_command = SSL_CTRL_CHAIN_CERT;
	assert_bad(": its chain cannot be used: ");
	assert_bad(dir.cert);
	openssl = real;
	struct tls *tls = NULL;
	struct err err = {0};
	cr_assert_eq(tls_open(&tls, &files, &err), 0, "%s", err.message);
	tls_free(tls);
	issued_free(&below);
	issued_free(&leaf);
}

/* ---- files ---- */

static unsigned interruptions, reads;
static bool grows;

ssize_t __real_read(int fd, void *data, size_t len);
ssize_t __wrap_read(int fd, void *data, size_t len);
ssize_t __wrap_read(int fd, void *data, size_t len)
{
	reads++;
	if (interruptions > 0) {
		interruptions--;
		errno = EINTR;
		return -1;
	}
	if (grows) {
		memset(data, 'x', len);
		return (ssize_t)len;
	}
	return __real_read(fd, data, len < 100 ? len : 100);
}

Test(tls_library, files_in_pieces)
{
	struct tls *tls = NULL;
	struct err err = {0};
	interruptions = 2;
	cr_assert_eq(tls_open(&tls, &files, &err), 0, "%s", err.message);
	cr_assert_eq(interruptions, 0);
	cr_assert_gt(reads, 8, "in one piece");
	cr_assert_str_eq(tls_self(tls)->node_id, "node-a");
	tls_free(tls);
	tls = NULL;
	grows = true;
	cr_assert_eq(tls_open(&tls, &files, &err), -EAGAIN);
	cr_assert_null(tls);
	cr_assert_eq(err.code, ERR_UNAVAILABLE);
	cr_assert_not_null(strstr(err.message, "grew while it was read; try again"));
	cr_assert_not_null(strstr(err.message, dir.cert));
	grows = false;
}

/* ---- names in a certificate ---- */

static void assert_no_identity(X509 *cert, const char *why)
{
	struct grpc_peer peer;
	struct err err = {0};
	cr_expect_eq(tls_cert_identity(cert, &peer, &err), -EINVAL, "%s", why);
	cr_expect_eq(strncmp(err.message, why, strlen(why)), 0, "%s", err.message);
}

static void add_garbage(X509 *cert)
{
	ASN1_OCTET_STRING *data = ASN1_OCTET_STRING_new();
	cr_assert_eq(ASN1_OCTET_STRING_set(data, (const unsigned char *)"nonsense", 8), 1);
	X509_EXTENSION *extension =
		X509_EXTENSION_create_by_NID(NULL, NID_subject_alt_name, 0, data);
	cr_assert_eq(X509_add_ext(cert, extension, -1), 1);
	X509_EXTENSION_free(extension);
	ASN1_OCTET_STRING_free(data);
}

/* A name that is longer than any node's, and names that are none at all. */
Test(tls_library, names_that_cannot_be_read)
{
	static const char none[] = "its ringvol:// name (URI) is none of ",
			  unread[] = "its alternative names cannot be read";
	char name[TLS_IDENTITY_MAX + 64] = "URI:ringvol://node/";
	size_t begins = strlen(name), most = TLS_IDENTITY_MAX + strlen("URI:");
	for (size_t len = most - 2; len <= most + 1; len++) {
		memset(name + begins, 'x', len - begins);
		name[len] = '\0';
		struct issued issued = issue(&ca, &(struct spec){.names = name});
		assert_no_identity(issued.cert, none);
		issued_free(&issued);
	}
	struct issued garbage = issue(&ca, &(struct spec){0});
	assert_no_identity(garbage.cert, "it has no ringvol:// name");
	add_garbage(garbage.cert);
	assert_no_identity(garbage.cert, unread);
	struct issued twice = issue(&ca, &node_spec);
	add_garbage(twice.cert);
	assert_no_identity(twice.cert, unread);
	issued_free(&twice);
	issued_free(&garbage);
	ERR_clear_error();
}

/* ---- what the peer says ---- */

Test(tls_library, alerts)
{
	static const struct {
		int alert;
		const char *remedy;
	} rows[] = {
		{SSL_AD_UNKNOWN_CA, ": its CA file does not cover our certificate"},
		{SSL_AD_BAD_CERTIFICATE, ": its CA file does not cover our certificate"},
		{SSL_AD_CERTIFICATE_EXPIRED,
			": our certificate has ended, or is not valid yet by the peer's clock"},
		{SSL_AD_CERTIFICATE_REVOKED, ": our certificate is revoked there"},
		{SSL_AD_PROTOCOL_VERSION, ": it does not speak TLS 1.3"},
		{SSL_AD_NO_APPLICATION_PROTOCOL, ": it does not speak HTTP/2"},
		{SSL_AD_CERTIFICATE_REQUIRED, ": it wants a certificate"},
		{SSL_AD_HANDSHAKE_FAILURE, ""},
		{255, ""},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char why[300], want[300];
		ERR_raise(ERR_LIB_SSL, SSL_AD_REASON_OFFSET + rows[i].alert);
		tls_why_error(why, sizeof(why));
		ERR_clear_error();
		snprintf(want, sizeof(want), "the peer refuses the connection: %s%s",
			SSL_alert_desc_string_long(rows[i].alert), rows[i].remedy);
		cr_expect_str_eq(why, want);
	}
}

/* ---- the watch ---- */

static unsigned replaced;

static void on_event(void *arg, const struct err *err, bool in_force)
{
	cr_assert_eq(arg, &replaced);
	cr_assert_null(err, "%s", err->message);
	(void)in_force;
	replaced++;
}

/* One look is left out when no thread is to be had; the next one finds what has changed. */
Test(tls_library, a_watch_without_a_thread)
{
	struct issued next = issue(&ca, &(struct spec){.names = "URI:ringvol://node/next"});
	struct work *work;
	struct tls_watch *watch;
	struct tls *tls = NULL;
	struct err err = {0};
	cr_assert_eq(work_open(&work, ring, 1), 0);
	cr_assert_eq(tls_open(&tls, &files, &err), 0, "%s", err.message);
	const struct tls_watch_config config = {.ring = ring,
		.work = work,
		.tls = tls,
		.files = files,
		.on_event = on_event,
		.arg = &replaced};
	cr_assert_eq(tls_watch_open(&watch, &config), 0);
	write_all(&dir, &next, &ca);
	/* What is submitted within a turn runs after it: the timer comes first. */
	sim_pass_ms(ring, TLS_WATCH_MS - 100);
	cr_assert_eq(fill_queue(work), WORK_QUEUE_MAX);
	sim_pass_ms(ring, 10 * (TLS_WATCH_MS + 100));
	cr_assert_eq(queue_jobs_ended, WORK_QUEUE_MAX);
	cr_assert_eq(replaced, 1);
	cr_assert_str_eq(tls_self(tls)->node_id, "next");
	tls_watch_close(watch);
	tls_free(tls);
	work_close(work);
	issued_free(&next);
}
