/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When devices and mounts of earlier runs are looked for (adopt.c does it), and what is known of
 * them.
 *
 * Each backend has a look of its own, so that a data process which does not answer keeps no loop
 * volume from being known. A look that fails is repeated after CSI_ADOPT_RETRY_MS, until it
 * succeeds; meanwhile volumes of that backend count as unknown, not as detached. So do volumes of a
 * pool that came back, until it was looked at again.
 */
#include "csi/adopt.h"

#include "base/log.h"
#include "csi/node_state.h"
#include "csi/task.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- looks, and their repeats ---- */

static void start(struct csi_adoption *adoption);

/* What fails for ever is said once. */
static void log_look(const struct csi_adoption *adoption, const struct csi_look *look)
{
	const struct err *err = &look->err, *before = &adoption->why;
	bool same = err->code == before->code && strcmp(err->message, before->message) == 0;
	if (same && look->adopted == 0 && look->cleared == 0)
		return;
	char adopted[16], cleared[16];
	snprintf(adopted, sizeof(adopted), "%u", look->adopted);
	snprintf(cleared, sizeof(cleared), "%u", look->cleared);
	bool failed = err->code != ERR_OK;
	log_event(failed ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
		failed ? "devices of earlier runs are not known; looked for again and again"
		       : "devices of earlier runs",
		log_fields({"device", adoption->backend->name}, {"adopted", adopted},
			{"cleared", cleared}, {"error", failed ? err->message : NULL}));
}

static void retry(struct csi_adoption *adoption, uint64_t delay_ms)
{
	if (!adoption->csi->draining)
		ring_timer_arm(adoption->csi->reactor->ring, &adoption->retry, delay_ms);
}

void csi_look_over(struct csi_adoption *adoption, const struct csi_look *look)
{
	struct csi *csi = adoption->csi;
	log_look(adoption, look);
	adoption->running = false;
	adoption->why = look->err;
	if (look->err.code == ERR_OK) {
		adoption->known = true;
		memcpy(adoption->pool_known, look->pool_known, sizeof(look->pool_known));
		memcpy(adoption->left_out, look->left_out, sizeof(look->left_out));
		adoption->left_out_count = look->left_out_count;
	}
	if (look->err.code != ERR_OK || look->again)
		retry(adoption, look->again ? CSI_ADOPT_AGAIN_MS : CSI_ADOPT_RETRY_MS);
	if (adoption->again && !csi->draining)
		start(adoption);
	if (!csi_adopting(csi) && csi->on_adopted != NULL)
		csi->on_adopted(csi->on_adopted_arg);
}

static void on_retry(struct ring_timer *timer)
{
	start(container_of(timer, struct csi_adoption, retry));
}

/* A pool that appears while a look runs may be too late for it: another one follows. */
static void start(struct csi_adoption *adoption)
{
	adoption->again = adoption->running;
	if (adoption->running)
		return;
	adoption->retry.fn = on_retry;
	ring_timer_cancel(adoption->csi->reactor->ring, &adoption->retry);
	adoption->touched_count = 0;
	int r = csi_look_start(adoption);
	adoption->running = r == 0;
	if (r < 0) {
		err_sys(&adoption->why, r, "looking for devices of earlier runs");
		retry(adoption, CSI_ADOPT_RETRY_MS);
	}
}

void csi_adopt(struct csi *csi, void (*on_done)(void *arg), void *arg)
{
	csi->on_adopted = on_done;
	csi->on_adopted_arg = arg;
	for (unsigned type = 0; type < BACKEND_TYPES; type++) {
		struct csi_adoption *adoption = &csi->adoption[type];
		adoption->csi = csi;
		adoption->backend = backend_get(type);
		if (adoption->backend != NULL)
			start(adoption);
	}
	if (!csi_adopting(csi) && on_done != NULL)
		on_done(arg);
}

bool csi_adopting(const struct csi *csi)
{
	for (unsigned type = 0; type < BACKEND_TYPES; type++)
		if (csi->adoption[type].running)
			return true;
	return false;
}

void csi_adopt_no_more(struct csi *csi)
{
	for (unsigned type = 0; type < BACKEND_TYPES; type++)
		ring_timer_cancel(csi->reactor->ring, &csi->adoption[type].retry);
}

/* ---- volumes that are worked on meanwhile ---- */

void csi_adopt_touch(struct csi *csi, uint64_t hash)
{
	for (unsigned type = 0; type < BACKEND_TYPES; type++) {
		struct csi_adoption *adoption = &csi->adoption[type];
		if (adoption->running && adoption->touched_count < CSI_TOUCHED_MAX)
			adoption->touched[adoption->touched_count++] = hash;
	}
}

static bool has(const uint64_t *list, unsigned count, uint64_t hash)
{
	for (unsigned i = 0; i < count; i++)
		if (list[i] == hash)
			return true;
	return count == CSI_TOUCHED_MAX; /* not all of them are listed */
}

bool csi_look_stale(const struct csi_adoption *adoption, uint64_t hash)
{
	return has(adoption->touched, adoption->touched_count, hash);
}

/* ---- what is known ---- */

static bool is_known(const struct csi *csi, const struct pool *pool, unsigned type)
{
	if (backend_get(type) == NULL)
		return true;
	unsigned i = 0;
	while (pools_at(csi->pools, i) != NULL && pools_at(csi->pools, i) != pool)
		i++;
	return i < POOLS_MAX && csi->adoption[type].pool_known[i] == pool_state_since_ns(pool) + 1;
}

_Static_assert(RECORD_DEVICE_MAX == BACKEND_TYPES - 1, "a record's device is an index");

bool csi_knows_volume(const struct csi *csi, const struct pool_object *volume)
{
	const struct csi_adoption *adoption = &csi->adoption[volume->rec->device];
	return is_known(csi, volume->pool, volume->rec->device) &&
	       (adoption->left_out_count == 0 || node_volume_find(volume) != NULL ||
		       !has(adoption->left_out, adoption->left_out_count,
			       csi_lock_hash("volume", volume->key)));
}

bool csi_knows_pool(const struct csi *csi, const struct pool *pool)
{
	for (unsigned type = 0; type < BACKEND_TYPES; type++)
		if (backend_get(type) != NULL && is_known(csi, pool, type))
			return true;
	return false;
}

bool csi_adopted(const struct csi *csi, struct err *why)
{
	struct err ignored = {0};
	const struct pool *pool;
	for (unsigned type = 0; type < BACKEND_TYPES; type++) {
		const struct csi_adoption *adoption = &csi->adoption[type];
		bool known = backend_get(type) == NULL || adoption->known;
		for (unsigned i = 0; known && (pool = pools_at(csi->pools, i)) != NULL; i++)
			known = pool_state(pool) != POOL_READY || is_known(csi, pool, type);
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
