/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of one connection, over memory.
 *
 *   HANDSHAKE -> OPEN -> ENDING, each -> ENDING
 *
 * HANDSHAKE: what comes waits in `in` for the connection's turn (tls.c), which takes OpenSSL a step
 * further. At its end the peer is known by name, the inner session is made and has what came behind
 * the handshake. OPEN: ciphertext is decrypted where it lies and fed on; the inner session's output
 * is encrypted as it is fetched. ENDING: only what is in `out` is still sent: close_notify, or the
 * alert that says why not.
 *
 * OpenSSL reads and writes by a BIO of our own: it reads from what is being fed, and writes into
 * `out`, so no byte is copied for the sake of a socket that is not there.
 *
 * It ends by the inner session, by the peer's close_notify, by whatever is no TLS 1.3 with a
 * certificate that we trust, by the deadline of the handshake, by more messages about keys than
 * anybody needs, and when a new trust does not cover the peer.
 */
#include "rpc/tls_session.h"

#include "base/secret.h"
#include "rpc/tls_state.h"
#include "rpc/tls_why.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	RECORD_BYTES = 16 << 10,
	/* Until the handshake is over: certificates, and what a client sends behind them. */
	HANDSHAKE_MAX_BYTES = TLS_CHAIN_MAX_BYTES + (64 << 10),
	/* KeyUpdate and its like, after the handshake. A peer needs one for some hundred GiB. */
	CHATTER_MAX = 64,
	CHATTER_MS = 1000, /* each of them is forgotten after so long */
};

enum tls_state { TLS_HANDSHAKE, TLS_OPEN, TLS_ENDING };

struct tls_session {
	struct session base;
	struct tls_member member;
	struct tls_config config;
	enum tls_state state;
	bool broken;         /* OpenSSL is not to be asked again */
	int inner_error;     /* of its feed() or output() */
	unsigned generation; /* of the trust that the peer was held against */
	SSL *ssl;            /* NULL: there was no context */
	struct session *inner;
	const uint8_t *at; /* what OpenSSL may read */
	size_t left;
	struct buf in, out;
	size_t handshake_bytes;
	unsigned chatter;
	uint64_t chatter_ns;
	struct ring_timer timer;
	uint64_t created_ns;
	char from[INET6_ADDRSTRLEN]; /* "": nobody said */
	char why[256];
};

static struct tls_session *session_of(const struct session *session)
{
	return container_of((struct session *)session, struct tls_session, base);
}

static void say_why(struct tls_session *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* A server's side; a client's why is its owner's to tell. */
static void tell_refused(const struct tls_session *s)
{
	const struct tls *tls = s->member.tls;
	if (tls->on_refused != NULL && !s->config.client)
		tls->on_refused(tls->arg, s->from[0] != '\0' ? s->from : NULL, s->why);
}

/* The first reason stays. */
static void say_why(struct tls_session *s, const char *fmt, ...)
{
	va_list ap;
	if (s->why[0] != '\0')
		return;
	va_start(ap, fmt);
	vsnprintf(s->why, sizeof(s->why), fmt, ap);
	va_end(ap);
}

static void to_ending(struct tls_session *s)
{
	assert(s->state < TLS_ENDING);
	s->state = TLS_ENDING;
	s->base.paced = false;
	ring_timer_cancel(s->config.ring, &s->timer);
	buf_free(&s->in);
	s->left = 0;
}

/* If the handshake was not over, the peer was refused. */
static void count_refused(struct tls_session *s)
{
	if (s->state != TLS_HANDSHAKE)
		return;
	s->member.tls->stats.refused++;
	tell_refused(s);
}

/* Without another word, also if the peer does not read. */
static void cut(struct tls_session *s)
{
	count_refused(s);
	to_ending(s);
	buf_free(&s->out);
	s->base.dead = true;
}

/* With close_notify. */
static void shut(struct tls_session *s)
{
	if (!s->broken)
		(void)openssl.SSL_shutdown(s->ssl);
	openssl.ERR_clear_error();
	count_refused(s);
	to_ending(s);
}

/* ---- OpenSSL's way to the bytes ---- */

static int bio_read(BIO *bio, char *to, size_t len, size_t *ret)
{
	struct tls_session *s = openssl.BIO_get_data(bio);
	size_t n = len < s->left ? len : s->left;
	openssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
	if (n == 0 || s->chatter > CHATTER_MAX) {
		openssl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
		return 0;
	}
	memcpy(to, s->at, n);
	s->at += n;
	s->left -= n;
	*ret = n;
	return 1;
}

static int bio_write(BIO *bio, const char *data, size_t len, size_t *ret)
{
	struct tls_session *s = openssl.BIO_get_data(bio);
	openssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
	if (buf_append(&s->out, data, len) < 0)
		return 0;
	*ret = len;
	return 1;
}

static long bio_ctrl(BIO *bio, int command, long number, void *data)
{
	(void)bio;
	(void)number;
	(void)data;
	return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *bio_method(struct tls *tls)
{
	if (tls->bio != NULL)
		return tls->bio;
	BIO_METHOD *method =
		openssl.BIO_meth_new(BIO_TYPE_SOURCE_SINK | openssl.BIO_get_new_index(), "ringvol");
	if (method == NULL || openssl.BIO_meth_set_read_ex(method, bio_read) != 1 ||
		openssl.BIO_meth_set_write_ex(method, bio_write) != 1 ||
		openssl.BIO_meth_set_ctrl(method, bio_ctrl) != 1) {
		openssl.BIO_meth_free(method);
		return NULL;
	}
	tls->bio = method;
	return method;
}

/* Messages after the handshake ask for keys to be made anew, and tell nothing else. */
static void on_message(
	int write, int version, int type, const void *data, size_t len, SSL *ssl, void *arg)
{
	struct tls_session *s = arg;
	uint64_t now = ring_now_ns(s->config.ring);
	(void)version;
	(void)data;
	(void)len;
	(void)ssl;
	if (write != 0 || type != SSL3_RT_HANDSHAKE || s->state != TLS_OPEN)
		return;
	uint64_t back = (now - s->chatter_ns) / (UINT64_C(1000000) * CHATTER_MS);
	if (back > 0) {
		s->chatter -= back < s->chatter ? (unsigned)back : s->chatter;
		s->chatter_ns = now;
	}
	s->chatter++;
}

/* ---- what went wrong ---- */

static void say_verdict(struct tls_session *s, X509_STORE_CTX *ctx)
{
	if (s->why[0] == '\0')
		tls_why_verdict(ctx, s->why, sizeof(s->why));
}

/* Whose it was is known here alone: OpenSSL does not keep a certificate that it refuses. */
static int on_verify(int good, X509_STORE_CTX *ctx)
{
	good = tls_on_verify(good, ctx);
	SSL *ssl = openssl.X509_STORE_CTX_get_ex_data(
		ctx, openssl.SSL_get_ex_data_X509_STORE_CTX_idx());
	if (!good)
		say_verdict(openssl.BIO_get_data(openssl.SSL_get_rbio(ssl)), ctx);
	return good;
}

/* After a call of OpenSSL that failed for good. */
static void say_error(struct tls_session *s)
{
	s->broken = true;
	if (s->why[0] == '\0')
		tls_why_error(s->why, sizeof(s->why));
	openssl.ERR_clear_error();
}

/* ---- plaintext ---- */

/* Decrypts what there is to read. */
static void read_on(struct tls_session *s)
{
	uint8_t plain[RECORD_BYTES];
	size_t len;
	while (s->state == TLS_OPEN) {
		int res = openssl.SSL_read_ex(s->ssl, plain, sizeof(plain), &len);
		if (s->chatter > CHATTER_MAX) {
			say_why(s, "the peer asks for new keys all the time");
			s->base.end = SESSION_END_FLOODED;
			shut(s);
			return;
		}
		if (res == 1) {
			if (s->inner_error == 0)
				s->inner_error = s->inner->ops->feed(s->inner, plain, len);
			if (s->inner->secretive)
				secret_wipe(plain, len);
			continue;
		}
		int error = openssl.SSL_get_error(s->ssl, res);
		if (error == SSL_ERROR_WANT_READ)
			return;
		if (error != SSL_ERROR_ZERO_RETURN)
			say_error(s);
		shut(s);
	}
}

static void encrypt(struct tls_session *s, struct buf *plain)
{
	size_t written;
	size_t records = plain->len / RECORD_BYTES + 1;
	if (buf_reserve(&s->out, plain->len + records * 64) != NULL &&
		openssl.SSL_write_ex(s->ssl, plain->data, plain->len, &written) == 1)
		return;
	say_error(s);
	shut(s);
}

/* ---- the handshake ---- */

static void open_inner(struct tls_session *s)
{
	const unsigned char *alpn;
	unsigned alpn_len;
	struct grpc_peer peer;
	struct err err = {0};
	openssl.SSL_get0_alpn_selected(s->ssl, &alpn, &alpn_len);
	if (alpn_len != 2 || memcmp(alpn, "h2", 2) != 0) {
		say_why(s, "the peer does not speak HTTP/2 (ALPN h2)");
		shut(s);
		return;
	}
	X509 *cert = openssl.SSL_get0_peer_certificate(s->ssl);
	if (cert == NULL || tls_cert_identity(cert, &peer, &err) < 0) {
		say_why(s, "the peer's certificate: %s", err.message);
		shut(s);
		return;
	}
	int res = s->config.open_inner(
		s->config.context, &peer, s->config.on_wake, s->config.arg, &s->inner);
	if (res < 0) {
		say_why(s, "the connection was not accepted");
		shut(s);
		return;
	}
	assert(!s->inner->paced);
	s->state = TLS_OPEN;
	s->base.paced = false;
	s->member.tls->stats.handshakes++;
	ring_timer_cancel(s->config.ring, &s->timer);
	read_on(s);
}

static void handshake(struct tls_session *s)
{
	s->at = s->in.data;
	s->left = s->in.len;
	int res = openssl.SSL_do_handshake(s->ssl);
	if (res == 1) {
		open_inner(s);
	} else if (openssl.SSL_get_error(s->ssl, res) != SSL_ERROR_WANT_READ) {
		say_error(s);
		shut(s);
	}
	assert(s->left == 0 || s->state == TLS_ENDING);
	s->left = 0;
	buf_free(&s->in);
}

/* ---- a trust that has changed ---- */

static bool still_trusted(struct tls_session *s)
{
	X509_STORE_CTX *ctx = openssl.X509_STORE_CTX_new();
	X509 *cert = openssl.SSL_get0_peer_certificate(s->ssl);
	bool good =
		ctx != NULL && cert != NULL &&
		openssl.X509_STORE_CTX_init(ctx, openssl.SSL_CTX_get_cert_store(s->member.tls->ctx),
			cert, openssl.SSL_get_peer_cert_chain(s->ssl)) == 1 &&
		openssl.X509_STORE_CTX_set_default(
			ctx, s->config.client ? "ssl_server" : "ssl_client") == 1;
	if (good) {
		/* A certificate that ends ends no connection. */
		openssl.X509_STORE_CTX_set_flags(ctx, X509_V_FLAG_NO_CHECK_TIME);
		openssl.X509_STORE_CTX_set_verify_cb(ctx, tls_on_verify);
		good = openssl.X509_verify_cert(ctx) == 1;
		if (!good)
			say_verdict(s, ctx);
	}
	openssl.X509_STORE_CTX_free(ctx);
	openssl.ERR_clear_error();
	return good;
}

static void review(struct tls_session *s)
{
	s->generation = s->member.tls->generation;
	if (still_trusted(s))
		return;
	say_why(s, "the peer's certificate cannot be checked");
	s->member.tls->stats.revoked++;
	tell_refused(s);
	cut(s);
}

/* ---- turns and time ---- */

static void on_work(struct tls_member *member)
{
	struct tls_session *s = container_of(member, struct tls_session, member);
	if (s->state == TLS_HANDSHAKE)
		handshake(s);
	if (s->state == TLS_OPEN && s->generation != s->member.tls->generation)
		review(s);
	s->config.on_wake(s->config.arg); /* last: its owner may free it */
}

static void on_timer(struct ring_timer *timer)
{
	struct tls_session *s = container_of(timer, struct tls_session, timer);
	if (s->state != TLS_HANDSHAKE)
		return;
	say_why(s, "the handshake was not over after %llu ms",
		(unsigned long long)s->config.handshake_ms);
	s->base.end = SESSION_END_HALF_OPEN;
	cut(s);
	s->config.on_wake(s->config.arg);
}

/* ---- the session ---- */

static int on_feed(struct session *session, const uint8_t *data, size_t len)
{
	struct tls_session *s = session_of(session);
	if (s->state == TLS_HANDSHAKE) {
		s->handshake_bytes += len;
		if (s->handshake_bytes > HANDSHAKE_MAX_BYTES)
			say_why(s, "the handshake has more than %d bytes", HANDSHAKE_MAX_BYTES);
		if (s->handshake_bytes > HANDSHAKE_MAX_BYTES || buf_append(&s->in, data, len) < 0)
			cut(s);
		else
			tls_want_turn(&s->member);
	} else if (s->state == TLS_OPEN) {
		s->at = data;
		s->left = len;
		read_on(s);
		s->left = 0;
		if (s->inner->end != SESSION_END_NONE)
			s->base.end = s->inner->end;
	}
	return s->inner_error;
}

/* While what came waits for its turn, no more of it. */
static bool on_wants_input(const struct session *session)
{
	const struct tls_session *s = session_of(session);
	return s->state != TLS_HANDSHAKE || s->in.len == 0;
}

static int on_output(struct session *session, struct buf *out, size_t limit)
{
	struct tls_session *s = session_of(session);
	struct buf plain = {0};
	int res = 0;
	if (s->state == TLS_OPEN && out->len + s->out.len < limit) {
		res = s->inner->ops->output(s->inner, &plain, limit - out->len - s->out.len);
		if (s->inner->end != SESSION_END_NONE)
			s->base.end = s->inner->end;
		if (res < 0)
			s->inner_error = res;
		if (plain.len > 0)
			encrypt(s, &plain);
		else if (s->inner_error < 0 || s->inner->ops->finished(s->inner))
			shut(s);
		if (s->config.client)
			buf_free_secret(&plain); /* requests */
		else
			buf_free(&plain);
	}
	if (s->out.len == 0)
		return s->inner_error;
	if (out->data == NULL) {
		*out = s->out;
		s->out = (struct buf){0};
		return s->inner_error;
	}
	res = buf_append(out, s->out.data, s->out.len);
	buf_free(&s->out);
	return res < 0 ? res : s->inner_error;
}

static bool on_finished(const struct session *session)
{
	const struct tls_session *s = session_of(session);
	return s->state == TLS_ENDING && s->out.len == 0;
}

static enum session_wait on_waits(const struct session *session, uint64_t *ret_since_ns)
{
	const struct tls_session *s = session_of(session);
	if (s->state == TLS_OPEN)
		return s->inner->ops->waits(s->inner, ret_since_ns);
	*ret_since_ns = s->created_ns;
	return SESSION_HALF_OPEN;
}

static void on_rest(struct session *session)
{
	struct tls_session *s = session_of(session);
	if (s->out.len == 0)
		buf_free(&s->out);
	if (s->in.len == 0)
		buf_free(&s->in);
	if (s->state == TLS_OPEN && s->inner->ops->rest != NULL)
		s->inner->ops->rest(s->inner);
}

static void on_drain(struct session *session)
{
	struct tls_session *s = session_of(session);
	if (s->state == TLS_OPEN)
		s->inner->ops->drain(s->inner);
	if (s->state != TLS_HANDSHAKE)
		return;
	say_why(s, "this end is closing");
	to_ending(s);
}

static void on_free(struct session *session)
{
	struct tls_session *s = session_of(session);
	ring_timer_cancel(s->config.ring, &s->timer);
	tls_leave(&s->member);
	if (s->inner != NULL)
		s->inner->ops->free(s->inner);
	if (s->ssl != NULL)
		openssl.SSL_free(s->ssl);
	buf_free(&s->in);
	buf_free(&s->out);
	free(s);
}

static const struct session_ops session_ops = {.feed = on_feed,
	.wants_input = on_wants_input,
	.output = on_output,
	.finished = on_finished,
	.waits = on_waits,
	.rest = on_rest,
	.drain = on_drain,
	.free = on_free};

static int open_ssl(struct tls_session *s)
{
	struct tls *tls = s->config.tls;
	BIO_METHOD *method = bio_method(tls);
	BIO *bio = method != NULL ? openssl.BIO_new(method) : NULL;
	s->ssl = bio != NULL ? openssl.SSL_new(tls->ctx) : NULL;
	if (s->ssl == NULL) {
		openssl.BIO_free(bio);
		openssl.ERR_clear_error();
		return -ENOMEM;
	}
	openssl.BIO_set_data(bio, s);
	openssl.BIO_set_init(bio, 1);
	openssl.SSL_set_bio(s->ssl, bio, bio);
	openssl.SSL_set_verify(
		s->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, on_verify);
	openssl.SSL_set_msg_callback(s->ssl, on_message);
	openssl.SSL_ctrl(s->ssl, SSL_CTRL_SET_MSG_CALLBACK_ARG, 0, s);
	if (s->config.client) {
		openssl.SSL_set_connect_state(s->ssl);
	} else {
		openssl.SSL_set_accept_state(s->ssl);
		/* It decrypts in a buffer of its own. Of answers, copies among them, nothing is
		 * secret. */
		openssl.SSL_set_options(s->ssl, SSL_OP_CLEANSE_PLAINTEXT);
	}
	return 0;
}

int tls_session_new(const struct tls_config *config, struct session **ret)
{
	struct tls_session *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return -ENOMEM;
	s->base.ops = &session_ops;
	s->base.paced = true;
	s->config = *config;
	if (config->from != NULL)
		snprintf(s->from, sizeof(s->from), "%s", config->from);
	s->config.from = NULL;
	s->member.work = on_work;
	s->timer.fn = on_timer;
	s->created_ns = ring_now_ns(config->ring);
	s->generation = config->tls->generation;
	tls_join(config->tls, &s->member, config->ring);
	if (config->tls->ctx == NULL) {
		say_why(s, "%s", config->tls->why);
		to_ending(s);
	} else if (open_ssl(s) < 0) {
		on_free(&s->base);
		return -ENOMEM;
	} else {
		ring_timer_arm(config->ring, &s->timer, config->handshake_ms);
	}
	/* A client speaks first; who has nothing to speak with says so. */
	if (config->client || s->state == TLS_ENDING)
		tls_want_turn(&s->member);
	*ret = &s->base;
	return 0;
}

const char *tls_session_why(const struct session *session)
{
	return session_of(session)->why;
}
