/* SPDX-License-Identifier: Apache-2.0 */
/* Why there is no connection, for people: what OpenSSL found or the peer said, and the remedy. */
#include "rpc/tls_why.h"

#include "rpc/tls_state.h"

#include <stdio.h>

/* What the peer does not like about us, and what to do about it. */
static const char *alert_remedy(int alert)
{
	switch (alert) {
	case SSL_AD_UNKNOWN_CA:
	case SSL_AD_BAD_CERTIFICATE:
		return ": its CA file does not cover our certificate";
	case SSL_AD_CERTIFICATE_EXPIRED:
		return ": our certificate has ended, or is not valid yet by the peer's clock";
	case SSL_AD_CERTIFICATE_REVOKED:
		return ": our certificate is revoked there";
	case SSL_AD_PROTOCOL_VERSION:
		return ": it does not speak TLS 1.3";
	case SSL_AD_NO_APPLICATION_PROTOCOL:
		return ": it does not speak HTTP/2";
	case SSL_AD_CERTIFICATE_REQUIRED:
		return ": it wants a certificate";
	default:
		return "";
	}
}

/* What the peer is, in our words where OpenSSL's are of its own making. NULL: they will do. */
static const char *reason_text(int reason)
{
	switch (reason) {
	case SSL_R_HTTP_REQUEST:
	case SSL_R_HTTPS_PROXY_REQUEST:
	case SSL_R_WRONG_VERSION_NUMBER:
		return "the peer does not speak TLS";
	case SSL_R_UNSUPPORTED_PROTOCOL:
		return "the peer does not speak TLS 1.3";
	case SSL_R_CALLBACK_FAILED: /* on_client_hello(), in tls.c */
	case SSL_R_NO_APPLICATION_PROTOCOL:
		return "the peer does not speak HTTP/2 (ALPN h2)";
	case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
		return "the peer has no certificate";
	default:
		return NULL;
	}
}

void tls_why_verdict(X509_STORE_CTX *ctx, char *ret, size_t cap)
{
	struct err err = {0};
	struct grpc_peer peer;
	char name[TLS_IDENTITY_MAX] = "";
	int verdict = openssl.X509_STORE_CTX_get_error(ctx);
	X509 *cert = openssl.X509_STORE_CTX_get0_cert(ctx);
	if (cert != NULL && tls_cert_identity(cert, &peer, &err) == 0)
		tls_identity_print(&peer, name);
	if (verdict == X509_V_ERR_APPLICATION_VERIFICATION && err.code != ERR_OK)
		snprintf(ret, cap, "the peer's certificate: %s", err.message);
	else
		snprintf(ret, cap, "the peer's certificate is refused: %s%s%s%s",
			openssl.X509_verify_cert_error_string(verdict), name[0] != '\0' ? " (" : "",
			name, name[0] != '\0' ? ")" : "");
}

void tls_why_error(char *ret, size_t cap)
{
	unsigned long first = openssl.ERR_peek_error();
	int reason = ERR_GET_LIB(first) == ERR_LIB_SSL ? ERR_GET_REASON(first) : 0;
	int alert = reason - SSL_AD_REASON_OFFSET;
	if (alert > 0 && alert < 256)
		snprintf(ret, cap, "the peer refuses the connection: %s%s",
			openssl.SSL_alert_desc_string_long(alert), alert_remedy(alert));
	else if (reason_text(reason) != NULL)
		snprintf(ret, cap, "%s", reason_text(reason));
	else
		snprintf(ret, cap, "no TLS connection: %s", tls_library_error());
}
