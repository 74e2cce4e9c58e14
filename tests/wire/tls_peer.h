/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of TLS in memory: sessions of ours around an inner session that notes what it is fed
 * and sends what it is told to, or, at the other end, OpenSSL as any client has it (struct alien).
 */
#ifndef RINGVOL_TESTS_WIRE_TLS_PEER_H
#define RINGVOL_TESTS_WIRE_TLS_PEER_H

#include "base/buf.h"
#include "rpc/tls_session.h"
#include "simring/sim.h"
#include "tls_certs.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

/* ---- the inner session ---- */

struct plain {
	struct session base;
	struct buf in, out;
	bool over, drained;
	int refuse; /* what feed() answers */
	unsigned *freed;
};

static inline struct plain *plain_of(const struct session *session)
{
	return (struct plain *)session;
}

static inline int plain_feed(struct session *session, const uint8_t *data, size_t len)
{
	struct plain *p = plain_of(session);
	certs_must(buf_append(&p->in, data, len) == 0);
	return p->refuse;
}

static inline int plain_output(struct session *session, struct buf *out, size_t limit)
{
	struct plain *p = plain_of(session);
	size_t room = limit > out->len ? limit - out->len : 0;
	size_t n = p->out.len < room ? p->out.len : room;
	if (n > 0) {
		certs_must(buf_append(out, p->out.data, n) == 0);
		buf_consume(&p->out, n);
	}
	return p->refuse;
}

static inline bool plain_finished(const struct session *session)
{
	return plain_of(session)->over && plain_of(session)->out.len == 0;
}

static inline enum session_wait plain_waits(const struct session *session, uint64_t *ret_since_ns)
{
	(void)session;
	*ret_since_ns = 7;
	return SESSION_IDLE;
}

static inline void plain_drain(struct session *session)
{
	plain_of(session)->over = plain_of(session)->drained = true;
}

static inline void plain_free(struct session *session)
{
	struct plain *p = plain_of(session);
	(*p->freed)++;
	buf_free(&p->in);
	buf_free(&p->out);
	free(p);
}

static const struct session_ops plain_ops = {.feed = plain_feed,
	.output = plain_output,
	.finished = plain_finished,
	.waits = plain_waits,
	.drain = plain_drain,
	.free = plain_free};

/* ---- an end of ours ---- */

struct end {
	struct tls *tls;
	struct session *session;
	struct plain *plain; /* NULL: the handshake is not over */
	struct grpc_peer peer;
	bool inside;
	int refuse_inner, fed;
	unsigned wakes, freed;
	size_t received; /* ciphertext */
};

static inline void end_wake(void *arg)
{
	struct end *end = arg;
	certs_must(!end->inside);
	end->wakes++;
}

static inline int end_open_inner(void *context, const struct grpc_peer *peer,
	session_wake_fn *on_wake, void *arg, struct session **ret)
{
	struct end *end = context;
	certs_must(on_wake == end_wake && arg == end && !end->inside);
	end->peer = *peer;
	if (end->refuse_inner < 0)
		return end->refuse_inner;
	end->plain = calloc(1, sizeof(*end->plain));
	end->plain->base.ops = &plain_ops;
	end->plain->freed = &end->freed;
	*ret = &end->plain->base;
	return 0;
}

static inline void end_open(struct end *end, struct ring *ring, struct tls *tls, bool client)
{
	struct tls_config config = {
		.tls = tls,
		.ring = ring,
		.client = client,
		.handshake_ms = 10000,
		.from = "192.0.2.1",
		.open_inner = end_open_inner,
		.context = end,
		.on_wake = end_wake,
		.arg = end,
	};
	*end = (struct end){.tls = tls};
	certs_must(tls_session_new(&config, &end->session) == 0);
}

static inline void end_close(struct end *end)
{
	if (end->session != NULL)
		end->session->ops->free(end->session);
	end->session = NULL;
}

static inline void end_feed(struct end *end, const uint8_t *data, size_t len)
{
	end->inside = true;
	end->received += len;
	end->fed = end->session->ops->feed(end->session, data, len);
	end->inside = false;
}

static inline void end_output(struct end *end, struct buf *out, size_t limit)
{
	end->inside = true;
	(void)end->session->ops->output(end->session, out, limit);
	end->inside = false;
}

static inline bool end_finished(const struct end *end)
{
	return end->session->dead || end->session->ops->finished(end->session);
}

static inline void end_say(struct end *end, const void *data, size_t len)
{
	certs_must(buf_append(&end->plain->out, data, len) == 0);
}

static inline const char *end_why(const struct end *end)
{
	return tls_session_why(end->session);
}

/* Turns of the loop until no handshake waits for one. */
static inline void turns(struct ring *ring)
{
	for (unsigned i = 0; i < 4; i++)
		certs_must(ring_turn(ring, false) == 0);
}

/* From one end to the other, `chunk` bytes at a time (0: all). Whether there were any. */
static inline bool carry(struct ring *ring, struct end *from, struct end *to, size_t chunk)
{
	struct buf out = {0};
	end_output(from, &out, 64 << 10);
	for (size_t at = 0; at < out.len && !end_finished(to);) {
		size_t n = chunk != 0 && chunk < out.len - at ? chunk : out.len - at;
		if (!to->session->paced || to->session->ops->wants_input(to->session)) {
			end_feed(to, out.data + at, n);
			at += n;
		}
		turns(ring);
	}
	bool any = out.len > 0;
	buf_free(&out);
	turns(ring);
	return any;
}

static inline void pump(struct ring *ring, struct end *a, struct end *b, size_t chunk)
{
	turns(ring);
	for (bool moved = true; moved;) {
		moved = carry(ring, a, b, chunk);
		moved |= carry(ring, b, a, chunk);
	}
}

/* ---- an end that is not ours ---- */

struct alien {
	SSL_CTX *ctx;
	SSL *ssl;
	BIO *in, *out;
	bool done;
	int alert; /* that it got from us; -1: none */
};

struct alien_spec {
	bool server;
	int version;              /* 0: 1.3 */
	const char *alpn;         /* "\2h2"; NULL: that; "": none */
	const struct issued *own; /* NULL: no certificate */
};

static inline int alien_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
	const unsigned char *in, unsigned in_len, void *arg)
{
	const char *alpn = arg;
	(void)ssl;
	(void)in;
	(void)in_len;
	*out = (const unsigned char *)alpn + 1;
	*out_len = (unsigned char)alpn[0];
	return alpn[0] != '\0' ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

static inline void alien_open(struct alien *a, const struct alien_spec *spec)
{
	const char *alpn = spec->alpn != NULL ? spec->alpn : "\2h2";
	int version = spec->version != 0 ? spec->version : TLS1_3_VERSION;
	*a = (struct alien){.ctx = SSL_CTX_new(TLS_method()), .alert = -1};
	SSL_CTX_set_security_level(a->ctx, 0);
	SSL_CTX_set_min_proto_version(a->ctx, version);
	SSL_CTX_set_max_proto_version(a->ctx, version);
	if (spec->own != NULL) {
		certs_must(SSL_CTX_use_certificate(a->ctx, spec->own->cert) == 1);
		certs_must(SSL_CTX_use_PrivateKey(a->ctx, spec->own->key) == 1);
	}
	if (spec->server) {
		SSL_CTX_set_verify(a->ctx, SSL_VERIFY_NONE, NULL);
		SSL_CTX_set_alpn_select_cb(a->ctx, alien_alpn, (void *)(uintptr_t)alpn);
	} else if (alpn[0] != '\0') {
		certs_must(SSL_CTX_set_alpn_protos(a->ctx, (const unsigned char *)alpn,
				   (unsigned)strlen(alpn)) == 0);
	}
	a->ssl = SSL_new(a->ctx);
	a->in = BIO_new(BIO_s_mem());
	a->out = BIO_new(BIO_s_mem());
	SSL_set_bio(a->ssl, a->in, a->out);
	if (spec->server)
		SSL_set_accept_state(a->ssl);
	else
		SSL_set_connect_state(a->ssl);
}

static inline void alien_close(struct alien *a)
{
	SSL_free(a->ssl);
	SSL_CTX_free(a->ctx);
	ERR_clear_error();
}

static inline bool alien_carry(struct ring *ring, struct alien *a, struct end *end)
{
	uint8_t bytes[4096];
	bool moved = false;
	char byte;
	size_t len;
	if (!a->done)
		a->done = SSL_do_handshake(a->ssl) == 1;
	else
		(void)SSL_peek_ex(a->ssl, &byte, 1, &len);
	int reason = ERR_GET_REASON(ERR_peek_error());
	if (reason > SSL_AD_REASON_OFFSET)
		a->alert = reason - SSL_AD_REASON_OFFSET;
	ERR_clear_error();
	for (int n; !end_finished(end) && (n = BIO_read(a->out, bytes, sizeof(bytes))) > 0;) {
		end_feed(end, bytes, (size_t)n);
		turns(ring);
		moved = true;
	}
	turns(ring);
	struct buf out = {0};
	end_output(end, &out, 64 << 10);
	if (out.len > 0) {
		certs_must(BIO_write(a->in, out.data, (int)out.len) == (int)out.len);
		moved = true;
	}
	buf_free(&out);
	return moved;
}

static inline void alien_pump(struct ring *ring, struct alien *a, struct end *end)
{
	turns(ring);
	while (alien_carry(ring, a, end))
		;
}

#endif
