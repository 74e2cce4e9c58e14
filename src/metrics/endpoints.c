/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP endpoints. A probe reads states that are kept anyway and asks nothing of a pool: one
 * whose calls hang was found out by the pool's own check and cannot make the answer wait. Nothing
 * here can fail.
 */
#include "metrics/endpoints.h"

#include <stdio.h>

static void healthz(struct http1_call *call, void *arg)
{
	const struct endpoints *e = arg;
	struct err why = {0};
	if (csi_check_live(e->csi, &why) < 0)
		http1_reply(call, 503, why.message);
	else
		http1_reply(call, 200, "ok");
}

static void readyz(struct http1_call *call, void *arg)
{
	const struct endpoints *e = arg;
	struct err why = {0};
	if (csi_check_ready(e->csi, &why) < 0)
		http1_reply(call, 503, why.message);
	else
		http1_reply(call, 200, "ready");
}

void endpoints_init(struct endpoints *e, const struct csi *csi, struct metrics *metrics)
{
	*e = (struct endpoints){
		.csi = csi,
		.routes =
			{
				{"/healthz", healthz, e},
				{"/readyz", readyz, e},
				{"/metrics", metrics_scrape, metrics},
				{NULL, NULL, NULL},
			},
	};
}
