/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes this node, or this controller, a part of a cluster: its certificate, and whether the
 * others are reached with it. Looked at with the flags that the process itself has; a driver that
 * is in no cluster has none of them, and there is nothing to say.
 *
 * How it can fail: files that cannot be used, a certificate of another node or at its end, an
 * address where nobody is, or somebody else. Each is a finding.
 */
#include "tools/doctor_findings.h"

#include "rpc/tls_probe.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

enum { PROBE_WAIT_MS = 5000, DAY = 24 * 60 * 60 };

static const char issue[] = "issue another one with this URI name (docs/cluster.md)";

/* ---- certificates ---- */

static bool names_this_node(const struct doctor *d, const struct grpc_peer *self)
{
	return d->node_id == NULL || self->role != GRPC_PEER_NODE ||
	       strcmp(self->node_id, "*") == 0 || strcmp(self->node_id, d->node_id) == 0;
}

static void add_certificate(struct doctor *d, const struct tls *tls)
{
	char identity[TLS_IDENTITY_MAX];
	struct err err = {0};
	int64_t now = (int64_t)time(NULL);
	int64_t left = tls_not_after(tls) - now;
	enum tls_time stands = tls_time(tls, now, &err);
	tls_identity_print(tls_self(tls), identity);
	if (!names_this_node(d, tls_self(tls)))
		doctor_add(d, DOCTOR_MISSING,
			tool_text(&d->args, "it is %s, this node is %s: no controller lets it join",
				identity, d->node_id),
			issue);
	else if (stands == TLS_TIME_GOOD)
		doctor_add(d, DOCTOR_OK,
			tool_text(&d->args,
				"%s, its key and whom it trusts; it ends in %" PRIi64 " days",
				identity, left / DAY),
			"");
	else
		doctor_add(d, stands == TLS_TIME_ENDING ? DOCTOR_LIMITED : DOCTOR_MISSING,
			stands == TLS_TIME_ENDING
				? tool_text(&d->args, "%s; it ends in %" PRIi64 " days", identity,
					  left / DAY)
				: tool_text(&d->args, "%s; %s", identity, err.message),
			"renew it and replace the files: they are read again without a restart");
}

/* The certificate, for what follows; NULL: there is none. */
static struct tls *look_at_certificate(struct doctor *d)
{
	struct tls *tls = NULL;
	struct err err = {0};
	if (d->tls.cert == NULL || d->tls.key == NULL || d->tls.ca == NULL)
		doctor_add(d, DOCTOR_MISSING,
			"not all of --tls-cert, --tls-key and --tls-ca are given",
			"give the flags of the driver or controller");
	else if (tls_open(&tls, &d->tls, &err) < 0)
		doctor_add(d, DOCTOR_MISSING, err.message,
			"put files in PEM form there that go together");
	else
		add_certificate(d, tls);
	return tls;
}

/* ---- who is reached ---- */

static void look_at_address(
	struct doctor *d, const struct tls *tls, const char *address, enum grpc_peer_role role)
{
	char identity[TLS_IDENTITY_MAX];
	struct grpc_peer peer;
	struct err err = {0};
	if (tls_probe(tls, address, PROBE_WAIT_MS, &peer, &err) < 0) {
		doctor_add(d, DOCTOR_MISSING, tool_text(&d->args, "%s: %s", address, err.message),
			err.code == ERR_UNAVAILABLE
				? "start what listens there; look at its address, the network's policy "
				  "and firewalls"
				: "certificates of both sides have to be of CAs that the other trusts");
		return;
	}
	tls_identity_print(&peer, identity);
	if (peer.role != role || (role == GRPC_PEER_NODE && !names_this_node(d, &peer)))
		doctor_add(d, DOCTOR_MISSING,
			tool_text(&d->args, "%s: %s answers", address, identity),
			"another process listens there; look at the address");
	else
		doctor_add(
			d, DOCTOR_OK, tool_text(&d->args, "%s: %s answers", address, identity), "");
}

static void look_at_cluster(struct doctor *d)
{
	if (d->tls.cert == NULL && d->tls.key == NULL && d->tls.ca == NULL &&
		d->n_controllers == 0 && d->advertise == NULL)
		return;
	struct tls *tls = look_at_certificate(d);
	if (tls == NULL)
		return;
	doctor_begin(d, "controller", false);
	for (unsigned i = 0; i < d->n_controllers; i++)
		look_at_address(d, tls, d->controllers[i], GRPC_PEER_CONTROLLER);
	doctor_begin(d, "advertised", false);
	if (d->advertise != NULL)
		look_at_address(d, tls, d->advertise, GRPC_PEER_NODE);
	tls_free(tls);
}

const struct doctor_check doctor_cluster_checks[] = {
	{"certificate", false, look_at_cluster},
	{NULL},
};
