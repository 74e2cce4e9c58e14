/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is served over HTTP, for kubelet's probes and for Prometheus:
 *   /healthz  the loop turns (or there would be no answer) and every pool answers
 *   /readyz   what Probe and the gRPC health service say, with the reason
 *   /metrics  metrics.h
 */
#ifndef RINGVOL_METRICS_ENDPOINTS_H
#define RINGVOL_METRICS_ENDPOINTS_H

#include "csi/csi.h"
#include "metrics/metrics.h"
#include "rpc/http1.h"

struct endpoints {
	const struct csi *csi;
	struct http1_route routes[4];
};

/* Fills *e, which must outlive the server that is given e->routes. */
void endpoints_init(struct endpoints *e, const struct csi *csi, struct metrics *metrics);

#endif
