/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conditions: each function below looks at one thing in memory and adds what is wrong with it.
 * Nothing waits and nothing can fail; for want of memory a reason is told without its numbers.
 *
 * A reason says since when by the clock and not how long ago, so that it stays the same text while
 * nothing changes: Kubernetes makes one event of equal messages.
 */
#include "node/health.h"

#include "base/log.h"

#include "node/checkup.h"
#include "node/limit.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/raw_thin.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *const node_condition_names[NODE_CONDITION_KINDS] = {
	[NODE_QUARANTINED] = "Quarantined",
	[NODE_IMAGE_MISSING] = "ImageMissing",
	[NODE_IMAGE_TRUNCATED] = "ImageTruncated",
	[NODE_POOL_MISSING] = "PoolMissing",
	[NODE_POOL_SICK] = "PoolSick",
	[NODE_THIN_POOL] = "ThinPoolUnusable",
	[NODE_DEVICE_GONE] = "DeviceGone",
	[NODE_DEVICE_UNSERVED] = "DeviceUnserved",
	[NODE_HANGING] = "Hanging",
	[NODE_FS_SHUT_DOWN] = "FileSystemShutDown",
	[NODE_FS_READ_ONLY] = "FileSystemReadOnly",
	[NODE_IO_ERRORS] = "IOErrors",
	[NODE_POOL_FULL] = "PoolFull",
	[NODE_POOL_NEARLY_FULL] = "PoolNearlyFull",
	[NODE_THIN_POOL_LOW] = "ThinPoolLow",
	[NODE_SLOW] = "Slow",
	[NODE_LOOP_NODE] = "LoopNodePublished",
	[NODE_LIMIT_NOT_ENFORCED] = "LimitNotEnforced",
};

struct list_of {
	struct arena *arena;
	const struct node *node;
	struct node_condition *at;
	unsigned count;
	char since[40];
};

enum { NS_PER_S = 1000000000, NS_PER_MS = 1000000, CLOCK_SLACK_S = 2 };

int64_t node_unix_time(const struct node *node, uint64_t ns)
{
	return node->clock_zero_unix + (int64_t)(ns / NS_PER_S);
}

void node_follow_clock(struct node *node)
{
	int64_t zero = (int64_t)time(NULL) - (int64_t)(ring_now_ns(node->reactor->ring) / NS_PER_S);
	int64_t off = zero - node->clock_zero_unix;
	if (off < -CLOCK_SLACK_S || off > CLOCK_SLACK_S)
		node->clock_zero_unix = zero;
}

/* ---- findings ---- */

void node_note(struct node *node, struct node_volume *nv, enum node_condition_kind kind, bool wrong)
{
	uint64_t *since_ns = &nv->health.since_ns[kind];
	char id[RECORD_ID_MAX];
	if (wrong == (*since_ns != 0))
		return;
	*since_ns = wrong ? ring_now_ns(node->reactor->ring) : 0;
	if ((kind == NODE_IO_ERRORS || kind == NODE_HANGING) && list_empty(&nv->troubled))
		list_push(&node->troubled, &nv->troubled);
	pool_object_id(nv->volume, id);
	const char *claim = nv->volume->rec->claim;
	log_event(wrong ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
		wrong ? "volume abnormal" : "volume well again",
		log_fields({"volume", id}, {"claim", claim[0] != '\0' ? claim : NULL},
			{"condition", node_condition_names[kind]}, {"device", nv->dev.path}));
}

void node_note_hanging(struct node *node, struct node_volume *nv, bool wrong)
{
	if (nv != NULL)
		node_note(node, nv, NODE_HANGING, wrong);
}

void node_stats_key(const char *id, char ret_key[HELPER_KEY_BYTES])
{
	snprintf(ret_key, HELPER_KEY_BYTES, "look/%s", id);
}

uint64_t node_hung_since(const struct node *node, const struct pool_object *volume)
{
	const struct helpers *helpers = node->reactor->helpers;
	char id[RECORD_ID_MAX], key[HELPER_KEY_BYTES];
	if (helpers_hung_count(helpers) == 0)
		return 0;
	pool_object_id(volume, id);
	node_stats_key(id, key);
	uint64_t since_ns = helpers_hung_since(helpers, id);
	uint64_t look_since_ns = helpers_hung_since(helpers, key);
	return since_ns == 0 || (look_since_ns != 0 && look_since_ns < since_ns) ? look_since_ns
										 : since_ns;
}

/* ---- conditions ---- */

/* " since 2026-07-31T12:00:00Z", or nothing for what began before this run. Until the next call. */
static const char *since(struct list_of *list, uint64_t since_ns)
{
	struct tm tm;
	time_t unix_time = (time_t)node_unix_time(list->node, since_ns);
	list->since[0] = '\0';
	if (since_ns != 0 && gmtime_r(&unix_time, &tm) != NULL)
		strftime(list->since, sizeof(list->since), " since %Y-%m-%dT%H:%M:%SZ", &tm);
	return list->since;
}

__attribute__((format(printf, 4, 5))) static void add(struct list_of *list,
	enum node_condition_kind kind, uint64_t since_ns, const char *fmt, ...)
{
	char reason[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(reason, sizeof(reason), fmt, ap);
	va_end(ap);
	const char *kept = arena_strdup(list->arena, reason);
	list->at[list->count++] = (struct node_condition){
		.kind = kind,
		.since_ns = since_ns,
		.since_unix = since_ns != 0 ? node_unix_time(list->node, since_ns) : 0,
		.reason = kept != NULL ? kept : node_condition_names[kind],
	};
}

/* ---- the image ---- */

static void add_image(struct list_of *list, const struct pool_object *volume)
{
	uint64_t since_ns = volume->wrong_since_ns;
	if (volume->image == POOL_IMAGE_MISSING)
		add(list, NODE_IMAGE_MISSING, since_ns,
			"the image %s is not in pool %s any more%s, and not by the driver: put it back, or restore it from a snapshot",
			volume->key, pool_name(volume->pool), since(list, since_ns));
	if (volume->image == POOL_IMAGE_TRUNCATED)
		add(list, NODE_IMAGE_TRUNCATED, since_ns,
			"the image %s is shorter than its record says%s, data is missing: restore it from a snapshot",
			volume->key, since(list, since_ns));
}

/* ---- the pool ---- */

static void add_pool(struct list_of *list, const struct pool *pool)
{
	enum pool_state state = pool_state(pool);
	uint64_t since_ns = pool_state_since_ns(pool);
	if (state == POOL_READY)
		return;
	add(list, state == POOL_SICK ? NODE_POOL_SICK : NODE_POOL_MISSING, since_ns, "%s (%s%s)",
		pool_why(pool),
		state == POOL_SICK      ? "sick"
		: state == POOL_LOADING ? "loading"
					: "missing",
		since(list, since_ns));
}

static void add_pool_usage(struct list_of *list, const struct pool *pool)
{
	const struct pool_usage *fill = pool_usage(pool);
	bool full = fill->level == POOL_FULL;
	if (full || fill->level == POOL_NEARLY_FULL)
		add(list, full ? NODE_POOL_FULL : NODE_POOL_NEARLY_FULL, fill->since_ns,
			"pool %s is %s%s (%" PRIu64 " MiB free of %" PRIu64
			"): %sdelete volumes or snapshots, or grow its file system%s",
			pool_name(pool), full ? "full" : "nearly full", since(list, fill->since_ns),
			fill->free_bytes >> 20, fill->capacity_bytes >> 20,
			full ? "writes to new blocks fail; " : "",
			full ? "" : " before writes fail");
}

/* Worse than a full pool, and before it. */
static void add_thin_pool(struct list_of *list, const struct pool *pool)
{
	struct pool_thin_state state;
	pool_thin_state(pool, &state);
	if (state.wrong)
		add(list, NODE_THIN_POOL, state.wrong_since_ns,
			"the thin pool of pool %s cannot be used%s: %s", pool_name(pool),
			since(list, state.wrong_since_ns), state.why);
}

static void add_thin_pool_low(struct list_of *list, const struct pool *pool)
{
	struct pool_thin_state state;
	pool_thin_state(pool, &state);
	if (state.low)
		add(list, NODE_THIN_POOL_LOW, state.low_since_ns,
			"the thin pool of pool %s has %" PRIu64
			" MiB unused and cannot be grown%s; when they are used up, writes to new blocks fail: delete volumes or snapshots, or add a disk with 'ringvol pool grow'",
			pool_name(pool), state.unused_bytes >> 20, since(list, state.low_since_ns));
}

/* ---- in use ---- */

static void add_device(
	struct list_of *list, const struct pool_object *volume, const struct node_volume *nv)
{
	const struct backend *backend = backend_get(volume->rec->device);
	uint64_t away_ns = 0;
	if (nv->dev.attached && backend != NULL && backend->away_since_ns != NULL)
		away_ns = backend->away_since_ns(backend);
	if (nv->health.since_ns[NODE_DEVICE_GONE] != 0)
		add(list, NODE_DEVICE_GONE, nv->health.since_ns[NODE_DEVICE_GONE],
			"its device %s %s%s, %s: stage the volume anew (restart its pods)",
			nv->dev.path,
			nv->health.other_file ? "serves another file than its image"
					      : "was taken away",
			since(list, nv->health.since_ns[NODE_DEVICE_GONE]),
			nv->health.other_file ? "which the driver did not do"
					      : "and not by the driver");
	if (away_ns != 0)
		add(list, NODE_DEVICE_UNSERVED, away_ns,
			"the data process that serves its device %s has not answered%s, its I/O waits: start it again (ringvol ublkd)",
			nv->dev.path, since(list, away_ns));
}

static void add_hanging(
	struct list_of *list, const struct pool_object *volume, const struct node_volume *nv)
{
	uint64_t since_ns = node_hung_since(list->node, volume);
	if (since_ns == 0 && nv != NULL)
		since_ns = nv->health.since_ns[NODE_HANGING];
	if (since_ns != 0)
		add(list, NODE_HANGING, since_ns,
			"a call on its file system has been hanging%s: look for its device and the pool's disk in the kernel log",
			since(list, since_ns));
}

static void add_fs(struct list_of *list, const struct node_health *health)
{
	if (health->since_ns[NODE_FS_SHUT_DOWN] != 0)
		add(list, NODE_FS_SHUT_DOWN, health->since_ns[NODE_FS_SHUT_DOWN],
			"the file system has shut down%s and answers nothing but errors: see the kernel log for the cause, then stage the volume anew (restart its pods)",
			since(list, health->since_ns[NODE_FS_SHUT_DOWN]));
	if (health->since_ns[NODE_FS_READ_ONLY] != 0)
		add(list, NODE_FS_READ_ONLY, health->since_ns[NODE_FS_READ_ONLY],
			"the file system turned read-only%s: see the kernel log for the cause, then stage the volume anew (restart its pods), which checks it",
			since(list, health->since_ns[NODE_FS_READ_ONLY]));
}

static void add_errors(struct list_of *list, const struct node_volume *nv)
{
	const struct node_health *health = &nv->health;
	char counts[128];
	size_t len = 0;
	if (health->since_ns[NODE_IO_ERRORS] == 0)
		return;
	counts[0] = '\0';
	for (unsigned op = 0; op < PROBE_OPS; op++)
		if (health->errors[op] != 0)
			len += (size_t)snprintf(counts + len, sizeof(counts) - len,
				"%s%" PRIu64 " %s", len == 0 ? "" : ", ", health->errors[op],
				probe_op_names[op]);
	add(list, NODE_IO_ERRORS, health->since_ns[NODE_IO_ERRORS],
		"I/O errors on %s%s: %s, the last was %s; look for the pool's disk in the kernel log",
		nv->dev.path, since(list, health->since_ns[NODE_IO_ERRORS]), counts,
		health->last_errno == 0 ? "not named" : strerrordesc_np(health->last_errno));
}

static void add_slow(struct list_of *list, const struct node_health *health)
{
	if (health->since_ns[NODE_SLOW] != 0)
		add(list, NODE_SLOW, health->since_ns[NODE_SLOW],
			"the backing disk is slow%s: in the last minute 1%% of %" PRIu64
			" reads and writes took %" PRIu64 " ms or longer; look at the pool's disk",
			since(list, health->since_ns[NODE_SLOW]), health->slow_ops,
			health->slow_p99_ns / NS_PER_MS);
}

/* Not from now on, and not while no pod has it: the next stage or publish guards it. */
static void add_loop_node(
	struct list_of *list, const struct pool_object *volume, const struct node_volume *nv)
{
	if (!node_volume_has_fs(volume) && nv->dev.attached && nv->dev.bare &&
		!list_empty(&nv->mounts))
		add(list, NODE_LOOP_NODE, 0,
			"an earlier version published volume %s as the loop node %s, which obeys whoever holds it: delete its pods, so that it is unstaged and staged again",
			volume->rec->name, nv->dev.path);
}

static void add_limits(struct list_of *list, const struct node_volume *nv)
{
	uint64_t since_ns = nv->health.since_ns[NODE_LIMIT_NOT_ENFORCED];
	if (nv->limit != NULL && nv->limit->why[0] != '\0')
		add(list, NODE_LIMIT_NOT_ENFORCED, since_ns,
			"its I/O limits are not enforced%s: %s", since(list, since_ns),
			nv->limit->why);
}

/* ---- all of it ---- */

/* Whether it may still need blocks that the pool has not got. */
static bool needs_room(const struct pool_object *volume)
{
	return volume->shared || !volume->rec->thick;
}

unsigned node_volume_conditions(struct arena *arena, const struct node *node,
	const struct pool_object *volume, struct node_condition ret[NODE_CONDITION_KINDS])
{
	struct list_of list = {.arena = arena, .node = node, .at = ret};
	const struct node_volume *nv = node_volume_find(volume);
	if (volume->rec == NULL)
		add(&list, NODE_QUARANTINED, 0, "quarantined, %s: look at it with ringvol check",
			volume->why != NULL ? volume->why : "damaged");
	add_image(&list, volume);
	add_pool(&list, volume->pool);
	if (volume->rec == NULL)
		return list.count;
	bool thin = pool_is_raw(volume->pool) && !volume->rec->thick;
	if (thin && pool_state(volume->pool) == POOL_READY)
		add_thin_pool(&list, volume->pool);
	if (nv != NULL)
		add_device(&list, volume, nv);
	add_hanging(&list, volume, nv);
	if (nv != NULL) {
		add_fs(&list, &nv->health);
		add_errors(&list, nv);
	}
	if (pool_state(volume->pool) == POOL_READY && needs_room(volume))
		add_pool_usage(&list, volume->pool);
	if (thin && pool_state(volume->pool) == POOL_READY)
		add_thin_pool_low(&list, volume->pool);
	if (nv != NULL) {
		add_slow(&list, &nv->health);
		add_loop_node(&list, volume, nv);
		add_limits(&list, nv);
	}
	return list.count;
}

unsigned node_pool_conditions(struct arena *arena, const struct node *node, const struct pool *pool,
	struct node_condition ret[NODE_CONDITION_KINDS])
{
	struct list_of list = {.arena = arena, .node = node, .at = ret};
	add_pool(&list, pool);
	if (pool_state(pool) == POOL_READY) {
		add_thin_pool(&list, pool);
		add_pool_usage(&list, pool);
		add_thin_pool_low(&list, pool);
	}
	return list.count;
}

const char *node_volume_abnormal(
	struct arena *arena, const struct node *node, const struct pool_object *volume)
{
	struct node_condition conditions[NODE_CONDITION_KINDS];
	return node_volume_conditions(arena, node, volume, conditions) == 0 ? NULL
									    : conditions[0].reason;
}
