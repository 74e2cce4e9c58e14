/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process needs for TLS, read from three files into one context: its chain and key, whom it
 * trusts, and rules that nobody can turn off (TLS 1.3, certificates on both sides, HTTP/2, nothing
 * resumed or sent early). Sessions take the context as it is when they begin. A replacement
 * (tls_replace()) is for those to come, and has each session look at its peer again if the trust
 * is another.
 *
 * The files are read whole, with a limit, by one read each: a digest of their bytes says whether
 * they are others. It fails on files, never on memory of a caller. The key's bytes are wiped; the
 * key itself is in no core file (base/process.h).
 */
#include "rpc/tls_state.h"

#include "base/clock.h"
#include "base/fd.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *tls_library_error(void)
{
	unsigned long first = openssl.ERR_get_error();
	const char *text = first != 0 ? openssl.ERR_reason_error_string(first) : NULL;
	openssl.ERR_clear_error();
	return text != NULL ? text : "unknown error";
}

/* ---- files ---- */

struct file {
	const char *flag, *path;
	uint8_t *data;
	size_t len, cap;
};

static void file_free(struct file *file)
{
	if (file->data != NULL)
		openssl.OPENSSL_cleanse(file->data, file->cap);
	free(file->data);
	file->data = NULL;
}

static int file_open(const struct file *file, struct stat *ret, struct err *err)
{
	/* A FIFO has no end to wait for. */
	_cleanup_fd_ int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, ret) < 0)
		return err_sys(err, -errno, "%s %s cannot be read; put the file there", file->flag,
			file->path);
	if (!S_ISREG(ret->st_mode))
		return err_set(err, ERR_INVALID, "%s %s is no file; name a file in PEM form",
			file->flag, file->path);
	if (ret->st_size > TLS_FILE_MAX_BYTES)
		return err_set(err, ERR_INVALID,
			"%s %s has more than %d bytes; is it the right file?", file->flag,
			file->path, TLS_FILE_MAX_BYTES);
	int opened = fd;
	fd = -1;
	return opened;
}

static int file_read(struct file *file, struct err *err)
{
	struct stat st;
	_cleanup_fd_ int fd = file_open(file, &st, err);
	if (fd < 0)
		return fd;
	file->cap = (size_t)st.st_size + 1;
	file->data = malloc(file->cap);
	if (file->data == NULL)
		return err_sys(err, -ENOMEM, "reading %s", file->path);
	while (file->len < file->cap) {
		ssize_t n = read(fd, file->data + file->len, file->cap - file->len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(err, -errno, "%s %s cannot be read", file->flag, file->path);
		if (n == 0)
			return 0;
		file->len += (size_t)n;
	}
	return err_set(err, ERR_UNAVAILABLE, "%s %s grew while it was read; try again", file->flag,
		file->path);
}

static void digest_update(EVP_MD_CTX *md, const struct file *file)
{
	uint64_t len = file->len;
	openssl.EVP_DigestUpdate(md, &len, sizeof(len));
	openssl.EVP_DigestUpdate(md, file->data, file->len);
}

static int files_digest(
	uint8_t ret[TLS_DIGEST_BYTES], const struct file *files, unsigned count, struct err *err)
{
	EVP_MD_CTX *md = openssl.EVP_MD_CTX_new();
	bool good = md != NULL && openssl.EVP_DigestInit_ex(md, openssl.EVP_sha256(), NULL) == 1;
	for (unsigned i = 0; good && i < count; i++)
		digest_update(md, &files[i]);
	good = good && openssl.EVP_DigestFinal_ex(md, ret, NULL) == 1;
	openssl.EVP_MD_CTX_free(md);
	return good ? 0 : err_sys(err, -ENOMEM, "reading %s", files[0].path);
}

/* ---- what is in them ---- */

/* A key with a passphrase: nobody is there to be asked. */
static int no_passphrase(char *buf, int size, int rwflag, void *arg)
{
	(void)buf;
	(void)size;
	(void)rwflag;
	*(bool *)arg = true;
	return -1;
}

static int use_key(SSL_CTX *ctx, const struct file *file, struct err *err)
{
	bool asked = false;
	BIO *bio = openssl.BIO_new_mem_buf(file->data, (int)file->len);
	EVP_PKEY *key = bio != NULL
				? openssl.PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, &asked)
				: NULL;
	openssl.BIO_free(bio);
	if (key == NULL) {
		const char *why = tls_library_error();
		if (asked)
			return err_set(err, ERR_INVALID,
				"%s %s has a passphrase; give the key without one", file->flag,
				file->path);
		return err_set(err, ERR_INVALID,
			"%s %s has no private key in PEM form (%s); give the certificate's key",
			file->flag, file->path, why);
	}
	int used = openssl.SSL_CTX_use_PrivateKey(ctx, key);
	openssl.EVP_PKEY_free(key);
	/* The certificate is there already, so this compares them. */
	if (used != 1 || openssl.SSL_CTX_check_private_key(ctx) != 1)
		return err_set(err, ERR_INVALID,
			"%s %s does not belong to the certificate (%s); give both of one issue",
			file->flag, file->path, tls_library_error());
	return 0;
}

static int64_t time_of(const ASN1_TIME *time)
{
	struct tm tm = {0};
	return openssl.ASN1_TIME_to_tm(time, &tm) == 1 ? timegm(&tm) : 0;
}

static int usable_both_ways(X509 *cert, const struct file *file, struct err *err)
{
	if (openssl.X509_check_purpose(cert, X509_PURPOSE_SSL_CLIENT, 0) == 1 &&
		openssl.X509_check_purpose(cert, X509_PURPOSE_SSL_SERVER, 0) == 1)
		return 0;
	openssl.ERR_clear_error();
	return err_set(err, ERR_INVALID,
		"%s %s may not be used by a server and a client; issue it with both usages (client "
		"auth and server auth, digital signature) or with none",
		file->flag, file->path);
}

static int use_chain(struct tls *tls, const struct file *file, struct err *err)
{
	struct err why = {0};
	BIO *bio = openssl.BIO_new_mem_buf(file->data, (int)file->len);
	X509 *cert = bio != NULL ? openssl.PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
	int res = 0;
	if (cert == NULL)
		res = err_set(err, ERR_INVALID,
			"%s %s has no certificate in PEM form (%s); give our certificate and its "
			"chain",
			file->flag, file->path, tls_library_error());
	if (res == 0 && tls_cert_identity(cert, &tls->self, &why) < 0)
		res = err_set(err, ERR_INVALID, "%s %s: %s", file->flag, file->path, why.message);
	if (res == 0)
		res = usable_both_ways(cert, file, err);
	if (res == 0 && openssl.SSL_CTX_use_certificate(tls->ctx, cert) != 1)
		res = err_set(err, ERR_INVALID, "%s %s cannot be used: %s", file->flag, file->path,
			tls_library_error());
	if (res == 0) {
		tls->not_before = time_of(openssl.X509_get0_notBefore(cert));
		tls->not_after = time_of(openssl.X509_get0_notAfter(cert));
	}
	openssl.X509_free(cert);
	for (X509 *more = NULL; res == 0; more = NULL) {
		more = openssl.PEM_read_bio_X509(bio, NULL, NULL, NULL);
		if (more == NULL)
			break;
		if (openssl.SSL_CTX_ctrl(tls->ctx, SSL_CTRL_CHAIN_CERT, 0, more) == 1)
			continue;
		openssl.X509_free(more);
		res = err_set(err, ERR_INVALID, "%s %s: its chain cannot be used: %s", file->flag,
			file->path, tls_library_error());
	}
	openssl.ERR_clear_error(); /* the end of the file */
	openssl.BIO_free(bio);
	return res;
}

static int use_trust(SSL_CTX *ctx, const struct file *file, struct err *err)
{
	BIO *bio = openssl.BIO_new_mem_buf(file->data, (int)file->len);
	OPENSSL_STACK *all = NULL;
	X509_STORE *store = openssl.SSL_CTX_get_cert_store(ctx);
	unsigned certs = 0;
	bool crls = false;
	if (bio != NULL)
		all = (OPENSSL_STACK *)openssl.PEM_X509_INFO_read_bio(bio, NULL, NULL, NULL);
	bool good = all != NULL;
	for (int i = 0; i < openssl.OPENSSL_sk_num(all); i++) {
		X509_INFO *info = openssl.OPENSSL_sk_value(all, i);
		if (good && info->x509 != NULL)
			good = openssl.X509_STORE_add_cert(store, info->x509) == 1;
		if (good && info->crl != NULL)
			good = openssl.X509_STORE_add_crl(store, info->crl) == 1;
		certs += info->x509 != NULL;
		crls |= info->crl != NULL;
		openssl.X509_INFO_free(info);
	}
	openssl.OPENSSL_sk_free(all);
	openssl.BIO_free(bio);
	if (!good || certs == 0) {
		return err_set(err, ERR_INVALID,
			"%s %s has no certificate in PEM form (%s); give those of the CA that "
			"signs the peers' certificates",
			file->flag, file->path, good ? "none" : tls_library_error());
	}
	/* What is in the file is trusted, be it a root or below one. */
	openssl.X509_STORE_set_flags(
		store, X509_V_FLAG_PARTIAL_CHAIN | (crls ? X509_V_FLAG_CRL_CHECK : 0));
	return 0;
}

/* ---- the rules ---- */

static const unsigned char alpn[] = {2, 'h', '2'};

/* A client that does not say what it wants to speak is refused before it costs a signature. */
static int on_client_hello(SSL *ssl, int *alert, void *arg)
{
	const unsigned char *data;
	size_t len;
	(void)arg;
	if (openssl.SSL_client_hello_get0_ext(
		    ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &data, &len) == 1)
		return SSL_CLIENT_HELLO_SUCCESS;
	*alert = SSL_AD_NO_APPLICATION_PROTOCOL;
	return SSL_CLIENT_HELLO_ERROR;
}

static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
	const unsigned char *in, unsigned in_len, void *arg)
{
	unsigned char *chosen;
	(void)ssl;
	(void)arg;
	if (openssl.SSL_select_next_proto(&chosen, out_len, alpn, sizeof(alpn), in, in_len) !=
		OPENSSL_NPN_NEGOTIATED)
		return SSL_TLSEXT_ERR_ALERT_FATAL;
	*out = chosen;
	return SSL_TLSEXT_ERR_OK;
}

/* Lists of revoked certificates are optional for each CA, and one that was not renewed in time
 * still names whom not to trust. */
static bool forgivable(int error)
{
	return error == X509_V_ERR_UNABLE_TO_GET_CRL || error == X509_V_ERR_CRL_HAS_EXPIRED ||
	       error == X509_V_ERR_CRL_NOT_YET_VALID;
}

int tls_on_verify(int good, X509_STORE_CTX *ctx)
{
	struct grpc_peer peer;
	struct err why = {0};
	if (!good && forgivable(openssl.X509_STORE_CTX_get_error(ctx))) {
		openssl.X509_STORE_CTX_set_error(ctx, X509_V_OK);
		good = 1;
	}
	if (good && openssl.X509_STORE_CTX_get_error_depth(ctx) == 0 &&
		tls_cert_identity(openssl.X509_STORE_CTX_get_current_cert(ctx), &peer, &why) < 0) {
		openssl.X509_STORE_CTX_set_error(ctx, X509_V_ERR_APPLICATION_VERIFICATION);
		good = 0;
	}
	return good;
}

static long set(SSL_CTX *ctx, int what, long value)
{
	return openssl.SSL_CTX_ctrl(ctx, what, value, NULL);
}

static SSL_CTX *new_ctx(void)
{
	SSL_CTX *ctx = openssl.SSL_CTX_new(openssl.TLS_method());
	if (ctx == NULL)
		return NULL;
	openssl.SSL_CTX_set_security_level(ctx, 2);
	openssl.SSL_CTX_set_options(
		ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
	set(ctx, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF);
	set(ctx, SSL_CTRL_SET_MAX_CERT_LIST, TLS_CHAIN_MAX_BYTES);
	openssl.SSL_CTX_set_verify(
		ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, tls_on_verify);
	openssl.SSL_CTX_set_verify_depth(ctx, 8);
	/* A thousand connections that say nothing keep no buffers. */
	set(ctx, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
	openssl.SSL_CTX_set_client_hello_cb(ctx, on_client_hello, NULL);
	openssl.SSL_CTX_set_alpn_select_cb(ctx, on_alpn, NULL);
	/* All of them are strong; the first is the fastest. */
	static const char suites[] = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
				     "TLS_CHACHA20_POLY1305_SHA256";
	if (openssl.SSL_CTX_set_ciphersuites(ctx, suites) == 1 &&
		set(ctx, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION) == 1 &&
		set(ctx, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION) == 1 &&
		openssl.SSL_CTX_set_num_tickets(ctx, 0) == 1 &&
		openssl.SSL_CTX_set_alpn_protos(ctx, alpn, sizeof(alpn)) == 0)
		return ctx;
	openssl.SSL_CTX_free(ctx);
	return NULL;
}

/* ---- turns ---- */

static void on_turn(struct ring_req *req, int res, uint32_t flags)
{
	struct tls *tls = container_of(req, struct tls, turn);
	uint64_t end_ns = clock_monotonic_ns() + TLS_TURN_NS;
	(void)res;
	(void)flags;
	while (!list_empty(&tls->ready)) {
		struct tls_member *member = container_of(tls->ready.next, struct tls_member, ready);
		list_remove(&member->ready);
		member->work(member);
		if (clock_monotonic_ns() >= end_ns)
			break;
	}
	if (!list_empty(&tls->ready) && !tls->turn.armed)
		ring_post(tls->ring, &tls->turn, 0);
}

void tls_want_turn(struct tls_member *member)
{
	struct tls *tls = member->tls;
	if (!list_empty(&member->ready))
		return;
	list_push(&tls->ready, &member->ready);
	if (!tls->turn.armed)
		ring_post(tls->ring, &tls->turn, 0);
}

void tls_join(struct tls *tls, struct tls_member *member, struct ring *ring)
{
	tls->ring = ring;
	member->tls = tls;
	list_init(&member->ready);
	list_push(&tls->members, &member->link);
}

void tls_leave(struct tls_member *member)
{
	list_remove(&member->ready);
	list_remove(&member->link);
}

/* ---- life ---- */

static struct tls *tls_new(void)
{
	struct tls *tls = calloc(1, sizeof(*tls));
	if (tls == NULL)
		return NULL;
	list_init(&tls->members);
	list_init(&tls->ready);
	tls->turn.fn = on_turn;
	return tls;
}

struct tls *tls_open_empty(const char *why)
{
	struct tls *tls = tls_new();
	if (tls != NULL)
		snprintf(tls->why, sizeof(tls->why), "%s", why);
	return tls;
}

int tls_open(struct tls **ret, const struct tls_files *files, struct err *err)
{
	struct file all[] = {
		{"--tls-cert", files->cert}, {"--tls-key", files->key}, {"--tls-ca", files->ca}};
	struct tls *tls = tls_new();
	int res =
		tls != NULL ? openssl_load(err) : err_sys(err, -ENOMEM, "reading %s", files->cert);
	for (unsigned i = 0; i < 3 && res == 0; i++)
		res = file_read(&all[i], err);
	if (res == 0)
		res = files_digest(tls->digest, all, 3, err);
	if (res == 0)
		res = files_digest(tls->trust_digest, &all[2], 1, err);
	if (res == 0) {
		tls->cert_path = strdup(files->cert);
		tls->ctx = new_ctx();
		if (tls->ctx == NULL || tls->cert_path == NULL)
			res = err_set(
				err, ERR_INTERNAL, "TLS cannot be set up: %s", tls_library_error());
	}
	if (res == 0)
		res = use_chain(tls, &all[0], err);
	if (res == 0)
		res = use_key(tls->ctx, &all[1], err);
	if (res == 0)
		res = use_trust(tls->ctx, &all[2], err);
	for (unsigned i = 0; i < 3; i++)
		file_free(&all[i]);
	if (res < 0)
		tls_free(tls);
	else
		*ret = tls;
	return res;
}

void tls_free(struct tls *tls)
{
	if (tls == NULL)
		return;
	assert(list_empty(&tls->members));
	if (tls->ring != NULL)
		ring_discard(tls->ring, &tls->turn);
	if (tls->ctx != NULL)
		openssl.SSL_CTX_free(tls->ctx);
	if (tls->bio != NULL)
		openssl.BIO_meth_free(tls->bio);
	free(tls->cert_path);
	free(tls);
}

void tls_replace(struct tls *tls, struct tls *fresh)
{
	bool same_trust = tls->ctx != NULL &&
			  memcmp(tls->trust_digest, fresh->trust_digest, TLS_DIGEST_BYTES) == 0;
	assert(list_empty(&fresh->members) && fresh->ctx != NULL);
	openssl.SSL_CTX_free(tls->ctx);
	free(tls->cert_path);
	tls->ctx = fresh->ctx;
	tls->cert_path = fresh->cert_path;
	tls->self = fresh->self;
	tls->not_before = fresh->not_before;
	tls->not_after = fresh->not_after;
	memcpy(tls->digest, fresh->digest, TLS_DIGEST_BYTES);
	memcpy(tls->trust_digest, fresh->trust_digest, TLS_DIGEST_BYTES);
	fresh->ctx = NULL;
	fresh->cert_path = NULL;
	tls_free(fresh);
	if (same_trust)
		return;
	tls->generation++;
	list_for_each (node, &tls->members)
		tls_want_turn(container_of(node, struct tls_member, link));
}

bool tls_equal(const struct tls *a, const struct tls *b)
{
	return a->ctx != NULL && b->ctx != NULL &&
	       memcmp(a->digest, b->digest, TLS_DIGEST_BYTES) == 0;
}

const struct grpc_peer *tls_self(const struct tls *tls)
{
	return tls->ctx != NULL ? &tls->self : NULL;
}

int64_t tls_not_after(const struct tls *tls)
{
	return tls->not_after;
}

enum tls_time tls_time(const struct tls *tls, int64_t now, struct err *err)
{
	static const char *const texts[] = {
		[TLS_TIME_EARLY] = "is not valid before",
		[TLS_TIME_ENDING] = "has not been renewed and ends",
		[TLS_TIME_OVER] = "has ended",
	};
	char when[CLOCK_BYTES];
	int64_t all = tls->not_after - tls->not_before, edge = tls->not_after;
	enum tls_time time = TLS_TIME_GOOD;
	if (tls->ctx == NULL)
		return time;
	if (now < tls->not_before)
		time = TLS_TIME_EARLY, edge = tls->not_before;
	else if (now > tls->not_after)
		time = TLS_TIME_OVER;
	else if (tls->not_after - now < all / 10)
		time = TLS_TIME_ENDING;
	if (time == TLS_TIME_GOOD || err == NULL)
		return time;
	clock_print((uint64_t)edge * 1000000000, when);
	err_set(err, ERR_PRECONDITION, "the certificate %s %s %s; %s", tls->cert_path, texts[time],
		when, time == TLS_TIME_EARLY ? "is this host's clock right?" : "issue a new one");
	return time;
}

void tls_on_refused(struct tls *tls, tls_refused_fn *fn, void *arg)
{
	tls->on_refused = fn;
	tls->arg = arg;
}

const struct tls_stats *tls_stats(const struct tls *tls)
{
	return &tls->stats;
}
