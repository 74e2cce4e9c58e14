/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conditions: each function below looks at one thing in memory and adds what is wrong with it.
 * Nothing waits and nothing can fail; for want of memory a reason is told without its numbers.
 *
 * A reason says since when by the clock and not how long ago, so that it stays the same text while
 * nothing changes: Kubernetes makes one event of equal messages.
 */
#include "csi/condition.h"

#include "csi/look.h"
#include "csi/node_state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *const csi_condition_names[CSI_CONDITION_KINDS] = {
	[CSI_QUARANTINED] = "Quarantined",
	[CSI_IMAGE_MISSING] = "ImageMissing",
	[CSI_IMAGE_TRUNCATED] = "ImageTruncated",
	[CSI_POOL_MISSING] = "PoolMissing",
	[CSI_POOL_SICK] = "PoolSick",
	[CSI_DEVICE_GONE] = "DeviceGone",
	[CSI_DEVICE_UNSERVED] = "DeviceUnserved",
	[CSI_HANGING] = "Hanging",
	[CSI_FS_SHUT_DOWN] = "FileSystemShutDown",
	[CSI_FS_READ_ONLY] = "FileSystemReadOnly",
	[CSI_IO_ERRORS] = "IOErrors",
	[CSI_POOL_FULL] = "PoolFull",
	[CSI_POOL_NEARLY_FULL] = "PoolNearlyFull",
	[CSI_SLOW] = "Slow",
	[CSI_LOOP_NODE] = "LoopNodePublished",
};

struct list_of {
	struct arena *arena;
	const struct csi *csi;
	struct csi_condition *at;
	unsigned count;
};

enum { SINCE_BYTES = 40, NS_PER_S = 1000000000, NS_PER_MS = 1000000, CLOCK_SLACK_S = 2 };

int64_t csi_unix_time(const struct csi *csi, uint64_t ns)
{
	return csi->clock_zero_unix + (int64_t)(ns / NS_PER_S);
}

void csi_follow_clock(struct csi *csi)
{
	int64_t zero = (int64_t)time(NULL) - (int64_t)(ring_now_ns(csi->reactor->ring) / NS_PER_S);
	int64_t off = zero - csi->clock_zero_unix;
	if (off < -CLOCK_SLACK_S || off > CLOCK_SLACK_S)
		csi->clock_zero_unix = zero;
}

/* " since 2026-07-31T12:00:00Z", or nothing for what began before this run. */
static const char *since_text(const struct csi *csi, uint64_t since_ns, char text[SINCE_BYTES])
{
	struct tm tm;
	time_t unix_time = (time_t)csi_unix_time(csi, since_ns);
	text[0] = '\0';
	if (since_ns != 0 && gmtime_r(&unix_time, &tm) != NULL)
		strftime(text, SINCE_BYTES, " since %Y-%m-%dT%H:%M:%SZ", &tm);
	return text;
}

__attribute__((format(printf, 4, 5))) static void add(
	struct list_of *list, enum csi_condition_kind kind, uint64_t since_ns, const char *fmt, ...)
{
	char reason[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(reason, sizeof(reason), fmt, ap);
	va_end(ap);
	const char *kept = arena_strdup(list->arena, reason);
	list->at[list->count++] = (struct csi_condition){
		.kind = kind,
		.since_ns = since_ns,
		.since_unix = since_ns != 0 ? csi_unix_time(list->csi, since_ns) : 0,
		.reason = kept != NULL ? kept : csi_condition_names[kind],
	};
}

/* ---- the image ---- */

static void add_image(struct list_of *list, const struct pool_object *volume)
{
	char since[SINCE_BYTES];
	since_text(list->csi, volume->wrong_since_ns, since);
	if (volume->missing)
		add(list, CSI_IMAGE_MISSING, volume->wrong_since_ns,
			"the image %s is not in pool %s any more%s, and not by the driver: put it back, or restore it from a snapshot",
			volume->key, pool_name(volume->pool), since);
	if (volume->truncated)
		add(list, CSI_IMAGE_TRUNCATED, volume->wrong_since_ns,
			"the image %s is shorter than its record says%s, data is missing: restore it from a snapshot",
			volume->key, since);
}

/* ---- the pool ---- */

static void add_pool(struct list_of *list, const struct pool *pool)
{
	char since[SINCE_BYTES];
	enum pool_state state = pool_state(pool);
	uint64_t since_ns = pool_state_since_ns(pool);
	if (state == POOL_READY)
		return;
	add(list, state == POOL_SICK ? CSI_POOL_SICK : CSI_POOL_MISSING, since_ns, "%s (%s%s)",
		pool_why(pool),
		state == POOL_SICK      ? "sick"
		: state == POOL_LOADING ? "loading"
					: "missing",
		since_text(list->csi, since_ns, since));
}

static void add_pool_fill(struct list_of *list, const struct pool *pool)
{
	char since[SINCE_BYTES];
	const struct pool_fill *fill = pool_fill(pool);
	since_text(list->csi, fill->since_ns, since);
	if (fill->level == POOL_FULL)
		add(list, CSI_POOL_FULL, fill->since_ns,
			"pool %s is full%s (%" PRIu64 " MiB free of %" PRIu64
			"): writes to new blocks fail; delete volumes or snapshots, or grow its file system",
			pool_name(pool), since, fill->free_bytes >> 20, fill->capacity_bytes >> 20);
	else if (fill->level == POOL_NEARLY_FULL)
		add(list, CSI_POOL_NEARLY_FULL, fill->since_ns,
			"pool %s is nearly full%s (%" PRIu64 " MiB free of %" PRIu64
			"): delete volumes or snapshots, or grow its file system before writes fail",
			pool_name(pool), since, fill->free_bytes >> 20, fill->capacity_bytes >> 20);
}

/* ---- in use ---- */

static void add_device(
	struct list_of *list, const struct pool_object *volume, const struct node_volume *node)
{
	const struct backend *backend = backend_get(volume->rec->device);
	char since[SINCE_BYTES];
	uint64_t away_ns = 0;
	if (node->dev.attached && backend != NULL && backend->away_since_ns != NULL)
		away_ns = backend->away_since_ns(backend);
	if (node->health.gone_ns != 0 && node->health.other_file)
		add(list, CSI_DEVICE_GONE, node->health.gone_ns,
			"its device %s serves another file than its image%s, which the driver did not do: stage the volume anew (restart its pods)",
			node->dev.path, since_text(list->csi, node->health.gone_ns, since));
	else if (node->health.gone_ns != 0)
		add(list, CSI_DEVICE_GONE, node->health.gone_ns,
			"its device %s was taken away%s, and not by the driver: stage the volume anew (restart its pods)",
			node->dev.path, since_text(list->csi, node->health.gone_ns, since));
	if (away_ns != 0)
		add(list, CSI_DEVICE_UNSERVED, away_ns,
			"the data process that serves its device %s has not answered%s, its I/O waits: start it again (ringvol ublkd)",
			node->dev.path, since_text(list->csi, away_ns, since));
}

static void add_hanging(
	struct list_of *list, const struct pool_object *volume, const struct node_volume *node)
{
	char since[SINCE_BYTES];
	uint64_t since_ns = csi_hung_since(list->csi, volume);
	if (since_ns == 0 && node != NULL)
		since_ns = node->health.hung_ns;
	if (since_ns != 0)
		add(list, CSI_HANGING, since_ns,
			"a call on its file system has been hanging%s: look for its device and the pool's disk in the kernel log",
			since_text(list->csi, since_ns, since));
}

static void add_fs(struct list_of *list, const struct node_health *health)
{
	char since[SINCE_BYTES];
	if (health->shut_down_ns != 0)
		add(list, CSI_FS_SHUT_DOWN, health->shut_down_ns,
			"the file system has shut down%s and answers nothing but errors: see the kernel log for the cause, then stage the volume anew (restart its pods)",
			since_text(list->csi, health->shut_down_ns, since));
	if (health->read_only_ns != 0)
		add(list, CSI_FS_READ_ONLY, health->read_only_ns,
			"the file system turned read-only%s: see the kernel log for the cause, then stage the volume anew (restart its pods), which checks it",
			since_text(list->csi, health->read_only_ns, since));
}

static void add_errors(struct list_of *list, const struct node_volume *node)
{
	const struct node_health *health = &node->health;
	char since[SINCE_BYTES], counts[128];
	size_t len = 0;
	if (health->errors_ns == 0)
		return;
	counts[0] = '\0';
	for (unsigned op = 0; op < PROBE_OPS; op++)
		if (health->errors[op] != 0)
			len += (size_t)snprintf(counts + len, sizeof(counts) - len,
				"%s%" PRIu64 " %s", len == 0 ? "" : ", ", health->errors[op],
				probe_op_names[op]);
	add(list, CSI_IO_ERRORS, health->errors_ns,
		"I/O errors on %s%s: %s, the last was %s; look for the pool's disk in the kernel log",
		node->dev.path, since_text(list->csi, health->errors_ns, since), counts,
		health->last_errno == 0 ? "not named" : strerrordesc_np(health->last_errno));
}

static void add_slow(struct list_of *list, const struct node_health *health)
{
	char since[SINCE_BYTES];
	if (health->slow_ns != 0)
		add(list, CSI_SLOW, health->slow_ns,
			"the backing disk is slow%s: in the last minute 1%% of %" PRIu64
			" reads and writes took %" PRIu64 " ms or longer; look at the pool's disk",
			since_text(list->csi, health->slow_ns, since), health->slow_ops,
			health->slow_p99_ns / NS_PER_MS);
}

/* Not from now on, and not while no pod has it: the next stage or publish guards it. */
static void add_loop_node(
	struct list_of *list, const struct pool_object *volume, const struct node_volume *node)
{
	if (!node_volume_has_fs(volume) && node->dev.attached && node->dev.bare &&
		!list_empty(&node->mounts))
		add(list, CSI_LOOP_NODE, 0,
			"an earlier version published volume %s as the loop node %s, which obeys whoever holds it: delete its pods, so that it is unstaged and staged again",
			volume->rec->name, node->dev.path);
}

/* ---- all of it ---- */

/* Whether it may still need blocks that the pool has not got. */
static bool needs_room(const struct pool_object *volume)
{
	return volume->shared || !volume->rec->thick;
}

unsigned csi_volume_conditions(struct arena *arena, const struct csi *csi,
	const struct pool_object *volume, struct csi_condition ret[CSI_CONDITION_KINDS])
{
	struct list_of list = {.arena = arena, .csi = csi, .at = ret};
	const struct node_volume *node = node_volume_find(volume);
	if (volume->rec == NULL)
		add(&list, CSI_QUARANTINED, 0, "quarantined, %s: look at it with ringvol check",
			volume->why != NULL ? volume->why : "damaged");
	add_image(&list, volume);
	add_pool(&list, volume->pool);
	if (volume->rec == NULL)
		return list.count;
	if (node != NULL)
		add_device(&list, volume, node);
	add_hanging(&list, volume, node);
	if (node != NULL) {
		add_fs(&list, &node->health);
		add_errors(&list, node);
	}
	if (pool_state(volume->pool) == POOL_READY && needs_room(volume))
		add_pool_fill(&list, volume->pool);
	if (node != NULL) {
		add_slow(&list, &node->health);
		add_loop_node(&list, volume, node);
	}
	return list.count;
}

unsigned csi_pool_conditions(struct arena *arena, const struct csi *csi, const struct pool *pool,
	struct csi_condition ret[CSI_CONDITION_KINDS])
{
	struct list_of list = {.arena = arena, .csi = csi, .at = ret};
	add_pool(&list, pool);
	if (pool_state(pool) == POOL_READY)
		add_pool_fill(&list, pool);
	return list.count;
}

const char *csi_volume_abnormal(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume)
{
	struct csi_condition conditions[CSI_CONDITION_KINDS];
	return csi_volume_conditions(arena, csi, volume, conditions) == 0 ? NULL
									  : conditions[0].reason;
}
