/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One after the other, as the sweep. A round: list what the target has of ours -> end what has no
 * attachment -> each volume with exports that were not looked at since its device came: lock it,
 * make its exports, of which those that are there are left as they are. After a reboot the address
 * is opened for all of them when no volume and no pool is missing any more, or at last without.
 *
 * In doubt nothing is ended: the pool is not served here, or a volume of it is in quarantine, whose
 * attachments nobody can read. How it can fail: somebody works on the volume, or any call fails;
 * then the next round looks again.
 */
#include "node/exports.h"

#include "base/buf.h"
#include "base/log.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/departure.h"
#include "pool/index.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKS_MAX = 256 };

struct node_exports {
	struct op op;
	struct node *node;
	struct node_exports_config config;
	struct ring_timer timer;
	bool busy;
	/* Whether the address is open, which is known from the first list on. */
	bool opened;
	uint64_t began_ns;
	size_t name_count, name_cap;
	struct export_names *names; /* to be opened */
	/* The round's volume. */
	struct pool_walk at;
	struct pool_object *volume;
	struct node_lock lock;
	struct node_export_all all;
	/* The round's beginning. */
	struct err why; /* of a call */
	bool listed, found_open;
	size_t found_count, found_cap;
	struct found {
		char subsystem[ATTACH_NQN_BYTES];
		const struct pool *pool; /* whose volume it was; NULL: of none that is served */
		char uuid[UUID_BYTES];
		bool stays;
	} * found;
};

static struct node_exports *exports_of(struct op *op)
{
	return container_of(op, struct node_exports, op);
}

static void arm(struct node_exports *x, uint64_t ms)
{
	if (!x->node->draining)
		ring_timer_arm(x->node->reactor->ring, &x->timer, ms);
}

/* ---- what has no attachment ---- */

static int keep_name(void *arg, const char *subsystem)
{
	struct node_exports *x = arg;
	if (array_grow(&x->found, &x->found_cap, x->found_count, sizeof(*x->found)) < 0)
		return -ENOMEM;
	struct found *f = &x->found[x->found_count++];
	*f = (struct found){.stays = true};
	snprintf(f->subsystem, sizeof(f->subsystem), "%s", subsystem);
	return 0;
}

static int list_call(struct op *op)
{
	struct node_exports *x = exports_of(op);
	x->found_count = 0;
	x->found_open = x->config.address != NULL && x->config.target->is_open(x->config.address);
	return x->config.target->each(keep_name, x);
}

/* Whose it was. What cannot be taken apart stays. */
static void place(const struct node_exports *x, struct found *f)
{
	char pool_id[9];
	bool ours = export_names_split(f->subsystem, pool_id, f->uuid);
	f->pool = ours ? pools_by_uuid8(x->node->pools, pool_id) : NULL;
	f->stays = f->pool == NULL || pool_state(f->pool) != POOL_READY;
}

static int compare_found(const void *a, const void *b)
{
	const struct found *x = a, *y = b;
	int r = strcmp(x->uuid, y->uuid);
	return r != 0 ? r
		      : ((uintptr_t)x->pool > (uintptr_t)y->pool) -
				((uintptr_t)x->pool < (uintptr_t)y->pool);
}

static void stay_of_pool(struct node_exports *x, const struct pool *pool)
{
	for (size_t i = 0; i < x->found_count; i++)
		x->found[i].stays |= x->found[i].pool == pool;
}

static void stay_of_volume(struct node_exports *x, const struct pool_object *volume)
{
	const struct attachment *a;
	for (unsigned at = 0; (a = attachments_next_exported(volume->attachments, &at)) != NULL;
		at++) {
		struct found key = {.pool = volume->pool};
		snprintf(key.uuid, sizeof(key.uuid), "%s", a->export);
		struct found *f =
			bsearch(&key, x->found, x->found_count, sizeof(key), compare_found);
		if (f != NULL)
			f->stays = true;
	}
}

/* Looks at each volume once: there may be as many exports as volumes. */
static void look_who_stays(struct node_exports *x)
{
	const struct pool *pool;
	for (size_t i = 0; i < x->found_count; i++)
		place(x, &x->found[i]);
	qsort(x->found, x->found_count, sizeof(*x->found), compare_found);
	for (unsigned i = 0; (pool = pools_at(x->node->pools, i)) != NULL; i++) {
		const struct pool_object *volume;
		char key[RECORD_KEY_MAX] = "";
		while ((volume = pool_next_object(pool, RECORD_VOLUME, key)) != NULL) {
			if (volume->rec == NULL)
				stay_of_pool(x, pool);
			else if (!pool_object_has_left(volume))
				stay_of_volume(x, volume);
			memcpy(key, volume->key, sizeof(key));
		}
	}
}

/* Those that are left in the list are ended. */
static int list_end(struct op *op, int res)
{
	struct node_exports *x = exports_of(op);
	size_t count = 0;
	x->opened |= x->found_open;
	if (res < 0)
		return op_fail_sys(op, res, "looking for exports of earlier runs");
	if (x->found_count > 0)
		look_who_stays(x);
	for (size_t i = 0; i < x->found_count; i++)
		if (!x->found[i].stays)
			x->found[count++] = x->found[i];
	x->found_count = count;
	return 0;
}

static bool no_orphans(struct op *op)
{
	return exports_of(op)->found_count == 0;
}

static int end_orphans_call(struct op *op)
{
	struct node_exports *x = exports_of(op);
	int r = 0;
	for (size_t i = 0; i < x->found_count; i++) {
		char pool_id[9];
		struct nvmet_export e = {.key = "", .device = ""};
		struct err why = {0};
		if (!export_names_split(x->found[i].subsystem, pool_id, e.uuid))
			continue;
		export_names_of(pool_id, e.uuid, &e.names);
		int one = x->config.target->end(&e, &why);
		r = one < 0 ? one : r;
	}
	return r;
}

static int end_orphans_end(struct op *op, int res)
{
	const struct node_exports *x = exports_of(op);
	for (size_t i = 0; i < x->found_count; i++)
		log_event(res < 0 ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
			res < 0 ? "export without attachment cannot be ended"
				: "export without attachment ended",
			log_fields({"subsystem", x->found[i].subsystem}));
	return res < 0 ? op_fail_sys(op, res, "ending exports without attachment") : 0;
}

static const struct op_step round_steps[] = {
	{"list exports", .call = list_call, .end = list_end},
	{"end orphans", .done = no_orphans, .call = end_orphans_call, .end = end_orphans_end},
	{NULL},
};

static void round_ended(struct op *op)
{
	struct node_exports *x = exports_of(op);
	if (op_failed(op))
		log_event(LOG_LEVEL_WARN, "exports cannot be looked for",
			log_fields({"error", op->err.message}));
	x->listed = true;
	x->busy = false;
	arm(x, NODE_EXPORTS_NEXT_MS);
	node_tell_quiet(x->node);
}

/* ---- a volume's ---- */

static int make_run(struct op *op)
{
	struct node_exports *x = exports_of(op);
	node_export_all_init(&x->all, x->node, x->volume, node_export_make_init);
	x->all.keep_closed = !x->opened;
	return op_child(op, &x->all.op);
}

static const struct op_step volume_steps[] = {
	{"export", .run = make_run},
	{NULL},
};

static void volume_ended(struct op *op)
{
	struct node_exports *x = exports_of(op);
	struct node_volume *nv = node_volume_find(x->volume);
	node_lock_release(&x->node->locks, &x->lock);
	if (!op_failed(op) && nv != NULL)
		nv->exported = true;
	if (op_failed(op))
		log_event(LOG_LEVEL_WARN, "volume cannot be exported",
			log_fields({"volume", x->volume->rec->name}, {"error", op->err.message}));
	x->busy = false;
	arm(x, NODE_EXPORTS_NEXT_MS);
	node_tell_quiet(x->node);
}

static bool is_made(const struct pool_object *volume)
{
	const struct node_volume *nv = node_volume_find(volume);
	return nv != NULL && nv->exported;
}

static bool is_wanted(const struct node_exports *x, const struct pool_object *volume)
{
	return attachments_exported(volume->attachments) && !is_made(volume) &&
	       x->config.address != NULL && pool_state(volume->pool) == POOL_READY &&
	       node_knows_volume(x->node, volume);
}

static bool start(struct node_exports *x, struct pool_object *volume)
{
	node_lock_init(&x->lock, NODE_EXCLUSIVE, "volume", volume->key);
	x->lock.owner = NULL;
	x->lock.what = "its exports are being made again";
	if (node_lock_conflict(&x->node->locks, &x->lock) != NULL)
		return false;
	node_lock_take(&x->node->locks, &x->lock);
	x->volume = volume;
	x->busy = true;
	op_init(&x->op, x->node->reactor, "exports", volume_steps, volume_ended);
	x->op.lane = pool_lane(volume->pool);
	op_start(&x->op);
	return true;
}

/* ---- the address ---- */

static bool waited_enough(const struct node_exports *x)
{
	uint64_t ms = x->config.wait_ms != 0 ? x->config.wait_ms : NODE_EXPORTS_WAIT_MS;
	return ring_now_ns(x->node->reactor->ring) - x->began_ns >= ms * 1000000;
}

/* Its volumes are not known yet. */
static bool misses_pool(const struct node_exports *x)
{
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(x->node->pools, i)) != NULL; i++)
		if (pool_state(pool) != POOL_READY)
			return true;
	return false;
}

static bool misses_volume(const struct node_exports *x)
{
	const struct pool_object *volume;
	struct pool_walk walk = {0};
	while ((volume = pools_next(x->node->pools, RECORD_VOLUME, &walk)) != NULL) {
		if (attachments_exported(volume->attachments) && !is_made(volume))
			return true;
	}
	return false;
}

static int gather_of(struct node_exports *x, const struct pool_object *volume)
{
	const struct attachment *a;
	for (unsigned at = 0; (a = attachments_next_exported(volume->attachments, &at)) != NULL;
		at++) {
		if (array_grow(&x->names, &x->name_cap, x->name_count, sizeof(*x->names)) < 0)
			return -ENOMEM;
		export_names_of(pool_uuid8(volume->pool), a->export, &x->names[x->name_count++]);
	}
	return 0;
}

static int gather(struct node_exports *x)
{
	const struct pool_object *volume;
	struct pool_walk walk = {0};
	int r = 0;
	x->name_count = 0;
	while (r == 0 && (volume = pools_next(x->node->pools, RECORD_VOLUME, &walk)) != NULL) {
		if (is_made(volume))
			r = gather_of(x, volume);
	}
	return r;
}

static int open_run(struct op *op)
{
	int r = gather(exports_of(op));
	return r < 0 ? op_fail(op, ERR_NO_ROOM, "out of memory") : 0;
}

static bool opened_done(struct op *op)
{
	return exports_of(op)->name_count == 0;
}

static int open_call(struct op *op)
{
	struct node_exports *x = exports_of(op);
	return x->config.target->open(
		x->config.address, x->config.tls, x->names, x->name_count, &x->why);
}

static int open_end(struct op *op, int res)
{
	if (res < 0)
		op->err = exports_of(op)->why;
	return res;
}

static const struct op_step open_steps[] = {
	{"gather", .run = open_run},
	{"open address", .done = opened_done, .call = open_call, .end = open_end},
	{NULL},
};

static void open_ended(struct op *op)
{
	struct node_exports *x = exports_of(op);
	x->opened = !op_failed(op);
	if (op_failed(op))
		log_event(LOG_LEVEL_WARN, "volumes of other nodes cannot be reached",
			log_fields({"error", op->err.message}));
	x->busy = false;
	arm(x, x->opened ? NODE_EXPORTS_MS : NODE_EXPORTS_CLOSED_MS);
	node_tell_quiet(x->node);
}

static void start_open(struct node_exports *x)
{
	x->busy = true;
	op_init(&x->op, x->node->reactor, "exports", open_steps, open_ended);
	op_start(&x->op);
}

bool node_exports_closed(struct node *node, const struct pool_object *volume)
{
	struct node_exports *x = node->exports;
	const struct pool_object *other;
	struct pool_walk walk = {0};
	if (x->opened)
		return false;
	if (misses_pool(x) && !waited_enough(x))
		return true;
	while ((other = pools_next(node->pools, RECORD_VOLUME, &walk)) != NULL) {
		if (other != volume && attachments_exported(other->attachments))
			return true;
	}
	x->opened = true; /* by what is exported now */
	return false;
}

/* ---- one after the other ---- */

static void end_walk(struct node_exports *x)
{
	x->at = (struct pool_walk){0};
	x->listed = false;
	if (x->opened)
		arm(x, NODE_EXPORTS_MS);
	else if (!waited_enough(x) && (misses_pool(x) || misses_volume(x)))
		arm(x, NODE_EXPORTS_CLOSED_MS);
	else
		start_open(x);
}

static void start_round(struct node_exports *x)
{
	x->busy = true;
	op_init(&x->op, x->node->reactor, "exports", round_steps, round_ended);
	op_start(&x->op);
}

static void on_tick(struct ring_timer *timer)
{
	struct node_exports *x = container_of(timer, struct node_exports, timer);
	struct pool_object *volume;
	if (x->node->draining || x->busy)
		return; /* what ends arms it again */
	if (!x->listed) {
		start_round(x);
		return;
	}
	for (unsigned i = 0; i < LOOKS_MAX; i++) {
		volume = pools_next(x->node->pools, RECORD_VOLUME, &x->at);
		if (volume == NULL) {
			end_walk(x);
			return;
		}
		if (is_wanted(x, volume) && start(x, volume))
			return;
	}
	arm(x, NODE_EXPORTS_NEXT_MS);
}

bool node_exports_idle(const struct node_exports *exports)
{
	return exports == NULL || !exports->busy;
}

int node_exports_open(struct node *node, const struct node_exports_config *config)
{
	struct node_exports *x = calloc(1, sizeof(*x));
	if (x == NULL)
		return -ENOMEM;
	x->node = node;
	x->config = *config;
	x->opened = config->address == NULL;
	x->began_ns = ring_now_ns(node->reactor->ring);
	x->timer.fn = on_tick;
	node->exports = x;
	node->export_config = &x->config;
	arm(x, NODE_EXPORTS_NEXT_MS);
	return 0;
}

void node_exports_close(struct node *node)
{
	if (node->exports == NULL)
		return;
	ring_timer_cancel(node->reactor->ring, &node->exports->timer);
	free(node->exports->found);
	free(node->exports->names);
	free(node->exports);
	node->exports = NULL;
	node->export_config = NULL;
}
