/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's part in a cluster, as `ringvol serve` is told of it: certificates, the address where
 * controllers and other nodes call it, and the controllers it joins. Without --controller there is
 * nothing of it.
 */
#ifndef RINGVOL_SERVE_CLUSTER_H
#define RINGVOL_SERVE_CLUSTER_H

#include "app/serve_address.h"
#include "app/serve_options.h"
#include "app/tls_options.h"
#include "csi/arrivals.h"
#include "csi/cover_watch.h"
#include "csi/csi.h"
#include "member/member.h"
#include "metrics/metrics.h"
#include "rpc/server.h"

struct serve_cluster {
	const struct serve_options *options;
	struct ring *ring;
	struct tls_keys keys;
	struct grpc_registry *registry; /* of --listen; NULL: there is none */
	struct server *server;
	struct member *member;
	struct csi_arrivals arrivals;
	struct csi_cover_watch covers;
	struct serve_address listen;
	bool draining;
};

/* Zeroed *c; first of all, as the others need its keys. 0, or -errno with err. */
int serve_cluster_open_keys(struct serve_cluster *c, const struct serve_options *options,
	struct reactor *reactor, struct err *err);
/* With the services there: listens, and joins from the loop on. */
int serve_cluster_open(
	struct serve_cluster *c, struct csi *csi, struct metrics *metrics, struct err *err);
/* Leaves the controllers at once; running calls may end. on_drained: always, later or at once. */
void serve_cluster_drain(
	struct serve_cluster *c, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg);
/* Nothing is under way. */
bool serve_cluster_idle(const struct serve_cluster *c);
/* In this order: connections; then, when nobody calls any more, the rest, before csi is closed; at
 * last the keys. Half of it may be missing. */
void serve_cluster_close_server(struct serve_cluster *c);
void serve_cluster_close(struct serve_cluster *c);
void serve_cluster_close_keys(struct serve_cluster *c);

#endif
