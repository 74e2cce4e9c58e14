/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver tells Prometheus, docs/metrics.md lists it. Calls, steps and turns of the loop
 * are counted as they happen; pools and volumes are looked at while a scrape is rendered, a slice
 * at a time (rpc/http1.h), so that neither many volumes nor many scrapers make a long turn.
 *
 * Memory is bounded: one histogram for each method and status met and for each step met, up to
 * METRICS_STEPS_MAX; nothing is kept for a volume.
 */
#ifndef RINGVOL_METRICS_METRICS_H
#define RINGVOL_METRICS_METRICS_H

#include "controller/controller.h"
#include "csi/csi.h"
#include "rpc/http1.h"

enum {
	METRICS_STEPS_MAX = 512, /* (operation, step) pairs; what is past them counts as "other" */
	METRICS_MEASURE_MS = 10 * 1000, /* how old a scrape lets the measure of a pool be */
	METRICS_WAIT_MS = 250,          /* how long a scrape waits for a new one */
};

struct metrics;
struct member; /* member/member.h */
struct tls;    /* rpc/tls.h */

/* Takes the hooks of the registry and the reactor. All must outlive it. Of a node (csi) or of a
 * controller; the other is NULL. 0 or -ENOMEM. */
int metrics_open(struct metrics **ret, struct reactor *reactor, struct csi *csi,
	struct controller *controller, struct grpc_registry *registry);
/* A node's part in a cluster: what controllers call, whose calls are counted with the others, and
 * the controllers it joins. Both outlive the metrics. */
void metrics_cluster(
	struct metrics *metrics, struct grpc_registry *routed, const struct member *member);
/* The certificates of a process of a cluster, which outlive the metrics. */
void metrics_tls(struct metrics *metrics, const struct tls *tls);
void metrics_close(struct metrics *metrics); /* no scrape may be left; NULL is legal */

/*
 * What is served over HTTP, for kubelet's probes and for Prometheus:
 *   /healthz  the loop turns (or there would be no answer) and every pool answers
 *   /readyz   what Probe and the gRPC health service say, with the reason; of a controller: whether
 *             everybody who is known has joined
 *   /metrics
 */
struct endpoints {
	const struct csi *csi;
	struct controller *controller;
	struct http1_route routes[4];
};

/* Fills *e, which must outlive the server that is given e->routes. */
void endpoints_init(struct endpoints *e, const struct csi *csi, struct controller *controller,
	struct metrics *metrics);

#endif
