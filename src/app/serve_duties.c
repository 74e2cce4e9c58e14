/* SPDX-License-Identifier: Apache-2.0 */
/* The duties of a node: to watch its volumes, to trim them, to sweep what pods have left, and to
 * keep limits in force. They begin with nothing, and find what adoption finds. */
#include "app/serve_duties.h"

#include "node/limits.h"
#include "node/sweep.h"
#include "node/trim.h"
#include "node/watch.h"

int serve_duties_open(struct node *node, const struct serve_options *options)
{
	int r = node_watch_open(node);
	if (r >= 0)
		r = node_trim_open(node, options->trim_interval_s);
	if (r >= 0 && (options->csi.services & CSI_NODE) != 0)
		r = node_sweep_open(node);
	return r < 0 ? r : node_limits_open(node, options->cgroup_root);
}
