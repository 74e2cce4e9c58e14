/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the devices of a backend are scanned (adopt_scan.c does it), and whether all are known.
 *
 * A scan that fails is repeated after NODE_ADOPT_RETRY_MS, until one succeeds. Until then volumes
 * of that backend count as unknown, not as detached. So do volumes of a pool that came back, until
 * the next scan.
 */
#include "node/adopt.h"

#include "base/log.h"
#include "node/adopt_scan.h"
#include "node/node.h"
#include "node/volume.h"

#include <stdio.h>
#include <string.h>

/* ---- scans, and their repeats ---- */

static void start(struct node_adoption *adoption);

/* A scan that fails again and again in the same way is logged once. */
static void log_scan(const struct node_adoption *adoption, const struct node_scan *scan)
{
	const struct err *err = &scan->err, *before = &adoption->why;
	bool same = err->code == before->code && strcmp(err->message, before->message) == 0;
	if (same && scan->adopted == 0 && scan->cleared == 0)
		return;
	char adopted[16], cleared[16];
	snprintf(adopted, sizeof(adopted), "%u", scan->adopted);
	snprintf(cleared, sizeof(cleared), "%u", scan->cleared);
	bool failed = err->code != ERR_OK;
	log_event(failed ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
		failed ? "devices of earlier runs are not known; looked for again and again"
		       : "devices of earlier runs",
		log_fields({"device", adoption->backend->name}, {"adopted", adopted},
			{"cleared", cleared}, {"error", failed ? err->message : NULL}));
}

static void retry(struct node_adoption *adoption, uint64_t delay_ms)
{
	if (!adoption->node->draining)
		ring_timer_arm(adoption->node->reactor->ring, &adoption->retry, delay_ms);
}

static void on_scanned(struct node_adoption *adoption, const struct node_scan *scan)
{
	struct node *node = adoption->node;
	bool again = adoption->state == NODE_ADOPT_SCANNING_AGAIN;
	log_scan(adoption, scan);
	adoption->state = NODE_ADOPT_IDLE;
	adoption->why = scan->err;
	if (scan->err.code == ERR_OK) {
		adoption->known_scan = scan->number;
		memcpy(adoption->pool_known, scan->pool_known, sizeof(scan->pool_known));
	}
	if (scan->left_out != 0)
		retry(adoption, NODE_ADOPT_AGAIN_MS);
	else if (scan->err.code != ERR_OK)
		retry(adoption, NODE_ADOPT_RETRY_MS);
	if (again && !node->draining)
		start(adoption);
	if (!node_adopting(node) && node->on_adopted != NULL)
		node->on_adopted(node->on_adopted_arg);
}

static void on_retry(struct ring_timer *timer)
{
	start(container_of(timer, struct node_adoption, retry));
}

/* A pool that appears during a scan may be too late for it: another one follows. */
static void start(struct node_adoption *adoption)
{
	if (adoption->state != NODE_ADOPT_IDLE) {
		adoption->state = NODE_ADOPT_SCANNING_AGAIN;
		return;
	}
	adoption->retry.fn = on_retry;
	ring_timer_cancel(adoption->node->reactor->ring, &adoption->retry);
	int r = node_scan_start(adoption, on_scanned);
	if (r == 0) {
		adoption->state = NODE_ADOPT_SCANNING;
	} else {
		err_sys(&adoption->why, r, "looking for devices of earlier runs");
		retry(adoption, NODE_ADOPT_RETRY_MS);
	}
}

void node_adopt(struct node *node, void (*on_done)(void *arg), void *arg)
{
	node->on_adopted = on_done;
	node->on_adopted_arg = arg;
	for (unsigned type = 0; type < BACKEND_TYPES; type++) {
		struct node_adoption *adoption = &node->adoption[type];
		adoption->node = node;
		adoption->backend = backend_get(type);
		if (adoption->backend != NULL)
			start(adoption);
	}
	if (!node_adopting(node) && on_done != NULL)
		on_done(arg);
}

bool node_adopting(const struct node *node)
{
	for (unsigned type = 0; type < BACKEND_TYPES; type++)
		if (node->adoption[type].state != NODE_ADOPT_IDLE)
			return true;
	return false;
}

void node_adopt_no_more(struct node *node)
{
	for (unsigned type = 0; type < BACKEND_TYPES; type++)
		ring_timer_cancel(node->reactor->ring, &node->adoption[type].retry);
}

/* ---- what is known ---- */

bool node_knows_pool(const struct node *node, const struct pool *pool)
{
	for (unsigned type = 0; type < BACKEND_TYPES; type++)
		if (backend_get(type) != NULL && node_knows_devices(node, pool, type))
			return true;
	return false;
}

bool node_adopted(const struct node *node, struct err *why)
{
	struct err ignored = {0};
	const struct pool *pool;
	for (unsigned type = 0; type < BACKEND_TYPES; type++) {
		const struct node_adoption *adoption = &node->adoption[type];
		bool known = backend_get(type) == NULL || adoption->known_scan != 0;
		for (unsigned i = 0; known && (pool = pools_at(node->pools, i)) != NULL; i++)
			known = pool_state(pool) != POOL_READY ||
				node_knows_devices(node, pool, type);
		if (known)
			continue;
		err_set(why != NULL ? why : &ignored, ERR_UNAVAILABLE,
			"devices and mounts of earlier runs (device: %s) are still looked for%s%.300s",
			backend_get(type)->name, adoption->why.code != ERR_OK ? ": " : "",
			adoption->why.message);
		return false;
	}
	return true;
}
