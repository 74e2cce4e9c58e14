/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol top` asks the driver: attached volumes with their histograms. */
#include "tools/top.h"

#include "base/when.h"

#include <stdio.h>

static void take_driver(struct top *top, const Ringvol__V1__Driver *driver)
{
	if (driver == NULL)
		return;
	snprintf(top->node, sizeof(top->node), "%s", inventory_str(driver->node_id));
	snprintf(top->probes_why, sizeof(top->probes_why), "%s", inventory_str(driver->probes_why));
	top->exact = driver->probes == RINGVOL__V1__DRIVER__PROBES__BPF;
	top->uptime_seconds = driver->uptime_seconds;
}

int top_ask(struct top *top)
{
	Ringvol__V1__ListRequest__Kind kinds[] = {
		RINGVOL__V1__LIST_REQUEST__KIND__DRIVER, RINGVOL__V1__LIST_REQUEST__KIND__VOLUMES};
	Ringvol__V1__ListRequest request = RINGVOL__V1__LIST_REQUEST__INIT;
	struct inventory inv = {0};
	struct err err = {0};
	request.kinds = kinds;
	request.n_kinds = 2;
	request.attached_only = true;
	request.histograms = true;
	int r = 0;
	if (top->client == NULL)
		r = grpc_client_open(&top->client, top->args.endpoint, &err);
	if (r == 0)
		r = inventory_ask(&inv, top->client, &request, &err);
	if (r == 0) {
		take_driver(top, inv.driver);
		r = rates_take(&top->rates, &inv, when_monotonic_ns());
		if (r < 0)
			err_sys(&err, r, "volumes");
		top->answers++;
	} else {
		grpc_client_close(top->client);
		top->client = NULL;
	}
	inventory_free(&inv);
	top->err = err;
	return r;
}
