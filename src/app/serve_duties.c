/* SPDX-License-Identifier: Apache-2.0 */
/* The duties of a node: to watch its volumes, to trim them, to sweep what pods have left, to
 * export those that are attached to other nodes, and to keep limits in force. They begin with
 * nothing, and find what adoption finds. */
#include "app/serve_duties.h"

#include "base/log.h"
#include "node/exports.h"
#include "node/limits.h"
#include "node/sweep.h"
#include "node/trim.h"
#include "node/watch.h"

#include <string.h>

int serve_duties_open(struct node *node, const struct serve_options *options)
{
	int r = node_watch_open(node);
	if (r >= 0)
		r = node_trim_open(node, options->trim_interval_s);
	if (r >= 0 && (options->csi.services & CSI_NODE) != 0)
		r = node_sweep_open(node);
	const struct node_exports_config exports = {
		.address = options->export_address,
		.without_auth = options->export_without_auth,
		.tls = options->export_tls,
		.target = &export_nvmet,
	};
	if (r >= 0 && options->csi.attach)
		r = node_exports_open(node, &exports);
	return r < 0 ? r : node_limits_open(node, options->cgroup_root);
}

void serve_duties_borrow(struct csi *csi, const struct serve_options *options)
{
	csi->borrows->waits = options->borrow;
	if ((options->csi.services & CSI_NODE) == 0)
		return;
	int r = borrows_adopt(csi->borrows);
	if (r < 0)
		log_event(LOG_LEVEL_WARN,
			"the device mapper does not say which volumes of other nodes are in use here: calls for them are answered UNAVAILABLE until the driver is started anew",
			log_fields({"error", strerrordesc_np(-r)}));
	borrows_sweep(csi->borrows);
}
