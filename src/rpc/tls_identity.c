/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who a certificate speaks for: its one name of the form ringvol://, which is a URI, or a DNS name
 * of that text. Other names are nobody's business here. A certificate with two of ours, or one that
 * is misspelled, speaks for nobody: what it was meant to say is not guessed.
 */
#include "rpc/tls_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char scheme[] = "ringvol://", node_prefix[] = "ringvol://node/";

static bool is_id_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       (c != '\0' && strchr("-._~:@!$&'()+,;=", c) != NULL);
}

bool tls_identity_parse(const char *uri, struct grpc_peer *ret)
{
	struct grpc_peer peer = {.role = GRPC_PEER_CONTROLLER};
	if (strcmp(uri, "ringvol://controller") != 0) {
		size_t prefix = sizeof(node_prefix) - 1;
		if (strncmp(uri, node_prefix, prefix) != 0)
			return false;
		const char *id = uri + prefix;
		size_t len = strlen(id);
		bool good = len > 0 && len < sizeof(peer.node_id);
		for (size_t i = 0; good && i < len; i++)
			good = is_id_char(id[i]);
		if (!good && strcmp(id, "*") != 0)
			return false;
		peer.role = GRPC_PEER_NODE;
		memcpy(peer.node_id, id, len + 1);
	}
	*ret = peer;
	return true;
}

void tls_identity_print(const struct grpc_peer *peer, char ret[TLS_IDENTITY_MAX])
{
	if (peer->role == GRPC_PEER_NODE)
		snprintf(ret, TLS_IDENTITY_MAX, "%s%s", node_prefix, peer->node_id);
	else
		snprintf(ret, TLS_IDENTITY_MAX, "%s",
			peer->role == GRPC_PEER_CONTROLLER ? "ringvol://controller" : "local");
}

/* One name: 1 if it is ours and good, 0 if it is another's, -EINVAL. */
static int read_name(const GENERAL_NAME *name, struct grpc_peer *ret)
{
	char uri[TLS_IDENTITY_MAX];
	/* helm makes no URI names, and who checks DNS names signs none with a scheme. */
	if (name->type != GEN_URI && name->type != GEN_DNS)
		return 0;
	const ASN1_IA5STRING *text = name->d.ia5;
	size_t len = (size_t)openssl.ASN1_STRING_length(text);
	const char *data = (const char *)openssl.ASN1_STRING_get0_data(text);
	if (len < sizeof(scheme) - 1 || memcmp(data, scheme, sizeof(scheme) - 1) != 0)
		return 0;
	if (len >= sizeof(uri) || memchr(data, '\0', len) != NULL)
		return -EINVAL;
	memcpy(uri, data, len);
	uri[len] = '\0';
	return tls_identity_parse(uri, ret) ? 1 : -EINVAL;
}

int tls_cert_identity(X509 *cert, struct grpc_peer *ret, struct err *err)
{
	struct grpc_peer peer;
	int found = 0, res = 0, critical = 0;
	GENERAL_NAMES *names =
		openssl.X509_get_ext_d2i(cert, NID_subject_alt_name, &critical, NULL);
	if (names == NULL && critical != -1)
		return err_set(err, ERR_INVALID, "its alternative names cannot be read");
	for (int i = 0; i < openssl.OPENSSL_sk_num((const OPENSSL_STACK *)names) && res >= 0; i++) {
		res = read_name(openssl.OPENSSL_sk_value((const OPENSSL_STACK *)names, i), &peer);
		found += res > 0;
	}
	openssl.GENERAL_NAMES_free(names);
	if (res < 0)
		return err_set(err, ERR_INVALID,
			"its ringvol:// name (URI) is none of ringvol://controller, "
			"ringvol://node/NODE-ID and ringvol://node/*");
	if (found != 1)
		return err_set(err, ERR_INVALID,
			"it has %s; it needs exactly one URI name ringvol://controller, "
			"ringvol://node/NODE-ID or ringvol://node/*",
			found == 0 ? "no ringvol:// name" : "more than one ringvol:// name");
	*ret = peer;
	return 0;
}
