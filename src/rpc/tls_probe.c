/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection over TLS, blocking, to learn who is there: name, connection, handshake, the first
 * bytes of HTTP/2. It uses the context of the sessions, so what it accepts they accept.
 *
 * In TLS 1.3 a client's handshake is over before the server has looked at the client's certificate.
 * So nothing is known until the server has said something.
 */
#include "rpc/tls_probe.h"

#include "base/fd.h"
#include "rpc/tls_state.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { HOST_BYTES = 256 };

/* ---- a connection ---- */

/* "HOST:PORT" or "[ADDRESS]:PORT". */
static int split(const char *address, char host[HOST_BYTES], const char **ret_port)
{
	const char *colon = strrchr(address, ':');
	if (colon == NULL || colon == address || colon[1] == '\0')
		return -EINVAL;
	const char *from = address;
	size_t len = (size_t)(colon - address);
	if (from[0] == '[' && len > 2 && from[len - 1] == ']')
		from++, len -= 2;
	if (len >= HOST_BYTES)
		return -EINVAL;
	memcpy(host, from, len);
	host[len] = '\0';
	*ret_port = colon + 1;
	return 0;
}

/* A connected socket whose calls end after wait_ms; or -errno. */
static int connect_one(const struct addrinfo *to, int wait_ms)
{
	int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol);
	if (fd < 0)
		return -errno;
	const struct timeval wait = {
		.tv_sec = wait_ms / 1000, .tv_usec = wait_ms % 1000 * (suseconds_t)1000};
	int r = 0;
	/* A connect() ends after the time to send. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) < 0 ||
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) < 0 ||
		connect(fd, to->ai_addr, to->ai_addrlen) < 0)
		r = errno == EINPROGRESS ? -ETIMEDOUT : -errno;
	if (r < 0)
		fd_close(&fd);
	return r < 0 ? r : fd;
}

static int connect_to(const char *address, int wait_ms, struct err *err)
{
	char host[HOST_BYTES];
	const char *port;
	struct addrinfo *all = NULL;
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	if (split(address, host, &port) < 0)
		return err_set(err, ERR_INVALID, "%s is not HOST:PORT", address);
	int r = getaddrinfo(host, port, &hints, &all);
	if (r != 0)
		return err_set(err, ERR_UNAVAILABLE, "%s: %s", host, gai_strerror(r));
	int fd = -EHOSTUNREACH;
	for (const struct addrinfo *one = all; one != NULL && fd < 0; one = one->ai_next)
		fd = connect_one(one, wait_ms);
	freeaddrinfo(all);
	if (fd < 0)
		return err_set(err, ERR_UNAVAILABLE, "nobody is reached: %s", strerrordesc_np(-fd));
	return fd;
}

/* ---- TLS on it ---- */

/* Whether OpenSSL complains of nothing but the end of the connection. */
static bool is_end(unsigned long first)
{
	return first == 0 || (ERR_GET_LIB(first) == ERR_LIB_SSL &&
				     ERR_GET_REASON(first) == SSL_R_UNEXPECTED_EOF_WHILE_READING);
}

static int say_failure(SSL *ssl, const char *what, struct err *err)
{
	long verdict = openssl.SSL_get_verify_result(ssl);
	if (verdict == X509_V_ERR_APPLICATION_VERIFICATION)
		return err_set(err, ERR_PRECONDITION,
			"its certificate names no part of a cluster (URI ringvol://...)");
	if (verdict != X509_V_OK)
		return err_set(err, ERR_PRECONDITION, "its certificate is not trusted: %s",
			openssl.X509_verify_cert_error_string(verdict));
	if (!is_end(openssl.ERR_peek_error()))
		return err_set(err, ERR_PRECONDITION, "%s: %s", what, tls_library_error());
	return err_set(err, ERR_UNAVAILABLE, "%s: the connection ended or said nothing", what);
}

/* The client's preface with empty SETTINGS; the answer begins with the server's. */
static const char hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";

static int shake_hands(SSL *ssl, struct grpc_peer *ret, struct err *err)
{
	struct err why = {0};
	char first;
	size_t n;
	openssl.SSL_set_verify(
		ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, tls_on_verify);
	openssl.SSL_set_connect_state(ssl);
	if (openssl.SSL_do_handshake(ssl) != 1)
		return say_failure(ssl, "the handshake failed", err);
	X509 *cert = openssl.SSL_get0_peer_certificate(ssl);
	if (cert == NULL || tls_cert_identity(cert, ret, &why) < 0)
		return err_set(err, ERR_PRECONDITION, "its certificate: %s", why.message);
	if (openssl.SSL_write_ex(ssl, hello, sizeof(hello), &n) != 1 ||
		openssl.SSL_read_ex(ssl, &first, 1, &n) != 1)
		return say_failure(ssl, "it does not accept our certificate", err);
	return 0;
}

/* A write to a connection that has ended is to fail and not to kill. */
static int shake_hands_quietly(SSL *ssl, struct grpc_peer *ret, struct err *err)
{
	const struct sigaction ignored = {.sa_handler = SIG_IGN};
	struct sigaction before;
	sigaction(SIGPIPE, &ignored, &before);
	int r = shake_hands(ssl, ret, err);
	sigaction(SIGPIPE, &before, NULL);
	return r;
}

int tls_probe(const struct tls *tls, const char *address, int wait_ms, struct grpc_peer *ret,
	struct err *err)
{
	struct grpc_peer peer;
	if (tls->ctx == NULL)
		return err_set(err, ERR_PRECONDITION, "%s", tls->why);
	_cleanup_fd_ int fd = connect_to(address, wait_ms, err);
	if (fd < 0)
		return fd;
	openssl.ERR_clear_error();
	SSL *ssl = openssl.SSL_new(tls->ctx);
	int r = ssl != NULL && openssl.SSL_set_fd(ssl, fd) == 1
			? shake_hands_quietly(ssl, &peer, err)
			: err_set(err, ERR_INTERNAL, "TLS: %s", tls_library_error());
	openssl.SSL_free(ssl);
	openssl.ERR_clear_error();
	if (r == 0)
		*ret = peer;
	return r;
}
