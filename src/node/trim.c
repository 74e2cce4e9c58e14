/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns a timer, and the one trim under way.
 *
 * Happy path: a tick finds a volume that is due -> measure what it has allocated -> windows
 * of its file system, one helper call each, with a rest after each -> measure again -> the log and
 * the counters tell what came back -> the next volume. A window that was quick is followed by a
 * larger one, a slow one by a smaller one. How it can fail: the file system refuses, or a call
 * overstays: the trim is over, and the next one comes an interval later. The device takes no
 * discards: the volume is left out as long as it has that device. The volume is unstaged, or goes:
 * there is nothing left to do.
 *
 * The helper's calls have the key of checkups (node_stats_key): an unmount that finds the file
 * system busy waits behind them, and so for one window at most.
 */
#include "node/trim.h"

#include "base/log.h"
#include "node/health.h"
#include "node/node.h"
#include "node/owner.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/room.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	TICK_MS = 10000, /* how often it looks who is due, or four times an interval */
	TICK_MIN_MS = 250,
	SOON_MS = 10, /* from one trim to the next */
	QUICK_MS = 50,
	SLOW_MS = 500, /* of a window */
};
#define WINDOW_BYTES     (UINT64_C(1) << 30) /* the first one */
#define WINDOW_MIN_BYTES (UINT64_C(64) << 20)
#define WINDOW_MAX_BYTES (UINT64_C(64) << 30)

struct node_trim {
	struct op op;
	struct node *node;
	uint64_t interval_s;
	struct ring_timer timer;
	struct node_trim_stats stats;
	bool busy;
	/* Of the trim under way. */
	char id[RECORD_ID_MAX], key[HELPER_KEY_BYTES]; /* the volume may go meanwhile */
	struct pool_measure measure;
	struct mnt_trim_req req;
	struct mnt_result result;
	uint64_t allocated_bytes; /* before */
	uint64_t window_bytes, start_ns, call_ns;
	unsigned windows, rests;
	bool resting;
	int res;
};

static struct node_trim *trim_of(struct op *op)
{
	return container_of(op, struct node_trim, op);
}

static uint64_t now_ns(const struct node *node)
{
	return ring_now_ns(node->reactor->ring);
}

/* ---- which volume is due? ---- */

/* Counts the intervals, each volume from a moment of its own; never 0. */
static uint64_t interval_of(const struct node_trim *trim, const struct pool_object *volume)
{
	uint64_t phase_s = strtoull(volume->rec->random, NULL, 16) % trim->interval_s;
	int64_t unix_s = node_unix_time(trim->node, now_ns(trim->node));
	return (unix_s > 0 ? (uint64_t)unix_s + phase_s : phase_s) / trim->interval_s + 1;
}

static bool is_well(const struct node_volume *nv)
{
	static const enum node_condition_kind kinds[] = {NODE_DEVICE_GONE, NODE_HANGING,
		NODE_FS_SHUT_DOWN, NODE_FS_READ_ONLY, NODE_IO_ERRORS};
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (nv->health.since_ns[kinds[i]] != 0)
			return false;
	return true;
}

/* dm-crypt passes no discards on: they would show where the volume is empty. */
static bool can_give_back(const struct node_volume *nv)
{
	const struct record *rec = nv->volume->rec;
	const struct node_mount *mount = node_volume_best_mount(nv);
	return !rec->thick && rec->encryption == RECORD_PLAIN && !nv->no_trim &&
	       node_volume_has_fs(nv->volume) && mount != NULL && !mount->read_only &&
	       nv->dev.attached && !nv->dev.read_only;
}

/* Somebody works on it, and might hold it frozen, or unmounts it. */
static bool is_taken(struct node *node, const struct node_volume *nv)
{
	struct node_lock wanted;
	node_lock_init(&wanted, NODE_EXCLUSIVE, "volume", nv->volume->key);
	return nv->detaching || now_ns(node) < nv->alone_until_ns ||
	       node_lock_conflict(&node->locks, &wanted) != NULL;
}

static bool is_ready(const struct node *node, const struct node_volume *nv)
{
	return pool_state(nv->volume->pool) == POOL_READY && can_give_back(nv) && is_well(nv) &&
	       node_hung_since(node, nv->volume) == 0;
}

/* One that was not in use at its moment waits for the next. */
static bool is_due(const struct node_trim *trim, struct node_volume *nv)
{
	uint64_t interval = interval_of(trim, nv->volume);
	if (nv->trim_interval == 0)
		nv->trim_interval = interval;
	return nv->trim_interval != interval;
}

static struct node_volume *find_due(const struct node_trim *trim)
{
	list_for_each (link, &trim->node->attached) {
		struct node_volume *nv = container_of(link, struct node_volume, attached);
		if (is_due(trim, nv) && !is_taken(trim->node, nv) && is_ready(trim->node, nv))
			return nv;
	}
	return NULL;
}

/* ---- the operation ---- */

static struct node_volume *volume_of(const struct node_trim *trim)
{
	return node_volume_by_id(trim->node, trim->id);
}

static int measure(struct op *op)
{
	struct node_trim *trim = trim_of(op);
	const struct node_volume *nv = volume_of(trim);
	if (nv == NULL)
		return 0;
	pool_measure_init(&trim->measure, op->reactor, nv->volume->pool, 0);
	return op_child(op, &trim->measure.op);
}

static int before_end(struct op *op, int res)
{
	struct node_trim *trim = trim_of(op);
	const struct node_volume *nv = volume_of(trim);
	trim->allocated_bytes = nv != NULL ? nv->volume->allocated_bytes : 0;
	return res;
}

static int rest(struct op *op, uint64_t ms)
{
	trim_of(op)->resting = true;
	return op_sleep(op, ms);
}

/* The next window, or a rest while somebody else has the volume; 0: the trim is over. */
static int window_run(struct op *op)
{
	struct node_trim *trim = trim_of(op);
	const struct node_volume *nv = volume_of(trim);
	if (nv == NULL || !is_ready(trim->node, nv) || trim->node->draining ||
		trim->req.start_bytes >= nv->dev.size_bytes)
		return 0;
	if (is_taken(trim->node, nv)) {
		trim->res = trim->rests++ < NODE_TRIM_RESTS_MAX ? 0 : -EBUSY;
		return trim->res == 0 ? rest(op, NODE_TRIM_REST_MS) : 0;
	}
	trim->resting = false;
	trim->windows++;
	trim->call_ns = now_ns(trim->node);
	trim->req.len_bytes = trim->window_bytes;
	node_on(&trim->req.on, node_volume_best_mount(nv)->path, &nv->dev);
	memset(&trim->result, 0, sizeof(trim->result));
	int r = op_helper(op, MNT_TRIM, trim->key, &trim->req, sizeof(trim->req), &trim->result,
		sizeof(trim->result), NODE_TRIM_CALL_MS);
	if (r == -EAGAIN) { /* no helper to be had */
		trim->res = trim->rests++ < NODE_TRIM_RESTS_MAX ? 0 : r;
		return trim->res == 0 ? rest(op, NODE_TRIM_REST_MS) : 0;
	}
	return r;
}

static void choose_window(struct node_trim *trim, uint64_t took_ms)
{
	if (took_ms < QUICK_MS && trim->window_bytes < WINDOW_MAX_BYTES)
		trim->window_bytes *= 2;
	else if (took_ms > SLOW_MS && trim->window_bytes > WINDOW_MIN_BYTES)
		trim->window_bytes /= 2;
}

static int window_end(struct op *op, int res)
{
	struct node_trim *trim = trim_of(op);
	struct node_volume *nv = volume_of(trim);
	if (trim->resting)
		return res < 0 ? res : window_run(op);
	if (res == -EOPNOTSUPP && nv != NULL)
		nv->no_trim = true;
	/* What is mounted there is not the volume any more: no fault of anybody's. */
	trim->res = res == -EXDEV ? 0 : res;
	if (res < 0)
		return 0;
	uint64_t took_ms = (now_ns(trim->node) - trim->call_ns) / 1000000;
	trim->req.start_bytes = trim->result.next_bytes;
	choose_window(trim, took_ms);
	return rest(op, took_ms > SOON_MS ? took_ms : SOON_MS);
}

static const struct op_step steps[] = {
	{"measure", .run = measure, .end = before_end},
	{"trim", .run = window_run, .end = window_end},
	{"measure again", .run = measure},
	{NULL},
};

/* ---- the schedule ---- */

static void say(const struct node_trim *trim, const struct node_volume *nv, uint64_t returned)
{
	char bytes[24], windows[16], ms[24];
	const char *why = trim->op.err.code != ERR_OK   ? trim->op.err.message
			  : trim->result.why[0] != '\0' ? trim->result.why
							: strerrordesc_np(-trim->res);
	bool failed = trim->res < 0 || trim->op.err.code != ERR_OK;
	snprintf(bytes, sizeof(bytes), "%" PRIu64, returned);
	snprintf(windows, sizeof(windows), "%u", trim->windows);
	snprintf(ms, sizeof(ms), "%" PRIu64, (now_ns(trim->node) - trim->start_ns) / 1000000);
	log_event(failed && trim->res != -EOPNOTSUPP ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
		failed ? "trim failed" : "volume trimmed",
		log_fields({"volume", nv->volume->rec->name},
			{"claim",
				nv->volume->rec->claim[0] != '\0' ? nv->volume->rec->claim : NULL},
			{"pool", pool_name(nv->volume->pool)}, {"returned_bytes", bytes},
			{"windows", windows}, {"ms", ms}, {"error", failed ? why : NULL}));
}

static void trim_ended(struct op *op)
{
	struct node_trim *trim = trim_of(op);
	struct node *node = trim->node;
	const struct node_volume *nv = volume_of(trim);
	trim->busy = false;
	if (nv != NULL && !node->draining) {
		uint64_t now_bytes = nv->volume->allocated_bytes;
		uint64_t returned =
			now_bytes < trim->allocated_bytes ? trim->allocated_bytes - now_bytes : 0;
		bool failed = trim->res < 0 || op_failed(op);
		trim->stats.done += !failed;
		trim->stats.failed += failed;
		trim->stats.returned_bytes += returned;
		say(trim, nv, returned);
	}
	if (!node->draining)
		ring_timer_arm(node->reactor->ring, &trim->timer, SOON_MS);
	node_tell_quiet(node);
}

static void start_trim(struct node_trim *trim, struct node_volume *nv)
{
	nv->trim_interval = interval_of(trim, nv->volume);
	pool_object_id(nv->volume, trim->id);
	node_stats_key(trim->id, trim->key);
	trim->req.start_bytes = trim->allocated_bytes = 0;
	trim->window_bytes = WINDOW_BYTES;
	trim->start_ns = now_ns(trim->node);
	trim->windows = trim->rests = 0;
	trim->resting = false;
	trim->res = 0;
	memset(&trim->result, 0, sizeof(trim->result));
	trim->busy = true;
	op_init(&trim->op, trim->node->reactor, "trim", steps, trim_ended);
	op_start(&trim->op);
}

static void on_tick(struct ring_timer *timer)
{
	struct node_trim *trim = container_of(timer, struct node_trim, timer);
	if (trim->node->draining || trim->busy)
		return; /* the end of a trim arms it again */
	struct node_volume *nv = find_due(trim);
	if (nv != NULL) {
		start_trim(trim, nv);
		return;
	}
	uint64_t quarter_ms = trim->interval_s * 1000 / 4;
	ring_timer_arm(trim->node->reactor->ring, timer,
		quarter_ms > TICK_MS       ? TICK_MS
		: quarter_ms < TICK_MIN_MS ? TICK_MIN_MS
					   : quarter_ms);
}

bool node_trim_idle(const struct node_trim *trim)
{
	return trim == NULL || !trim->busy;
}

struct node_trim_stats node_trim_stats(const struct node_trim *trim)
{
	return trim != NULL ? trim->stats : (struct node_trim_stats){0};
}

int node_trim_open(struct node *node, uint64_t interval_s)
{
	if (interval_s == 0)
		return 0;
	struct node_trim *trim = calloc(1, sizeof(*trim));
	if (trim == NULL)
		return -ENOMEM;
	trim->node = node;
	trim->interval_s = interval_s;
	trim->timer.fn = on_tick;
	node->trim = trim;
	ring_timer_arm(node->reactor->ring, &trim->timer, TICK_MIN_MS);
	return 0;
}

void node_trim_close(struct node *node)
{
	if (node->trim == NULL)
		return;
	ring_timer_cancel(node->reactor->ring, &node->trim->timer);
	free(node->trim);
	node->trim = NULL;
}
