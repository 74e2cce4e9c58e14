/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP endpoints. A probe reads states that are kept anyway and asks nothing of a pool, so a
 * pool with calls that hang (its own check finds that out) cannot make the answer wait. Nothing
 * here can fail.
 */
#include "metrics/endpoints.h"

#include <stdio.h>

static void answer(struct http1_call *call, int well, const struct err *why, const char *text)
{
	http1_reply(call, well < 0 ? 503 : 200, well < 0 ? why->message : text);
}

static void healthz(struct http1_call *call, void *arg)
{
	struct err why = {0};
	int live = csi_check_live(((const struct endpoints *)arg)->csi, &why);
	answer(call, live, &why, "ok");
}

static void readyz(struct http1_call *call, void *arg)
{
	struct err why = {0};
	int ready = csi_check_ready(((const struct endpoints *)arg)->csi, &why);
	answer(call, ready, &why, "ready");
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
