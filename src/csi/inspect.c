/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inspect.List: everything the driver knows, one message at a time.
 *
 * Happy path: the pools are measured, if that does not take long; then the stages of the table are
 * gone through; in each a cursor (a number, a place, a key) says what came last, so nothing that is
 * deleted meanwhile is ever pointed to. A turn of the loop looks at TURN_LOOKS things and sends
 * what is wanted of them; then the others have their turn. How it can fail: the client reads
 * slowly, and we wait until it has; it goes away, and that is the end; memory runs out
 * (RESOURCE_EXHAUSTED).
 */
#include "csi/inspect.h"

#include "csi/inspect_items.h"
#include "node/volume.h"

#include "node/refresh.h"
#include "pool/index.h"

#include <string.h>

enum {
	/* A volume with its histograms costs 10 us, so a turn takes half a millisecond (the loop's
	 * processor time, 1,000 volumes). */
	TURN_LOOKS = 48,
	SIZES_AGE_MS = 250, /* how old the measure of a pool may be */
	PATIENCE_MS = 200,  /* for a new one; then what is known is told */
};

enum list_answer { LIST_SKIP, LIST_SEND, LIST_STAGE_END, LIST_NO_MEMORY };

struct list_call {
	struct grpc_call *call;
	struct csi *csi;
	bool wanted[RINGVOL__V1__LIST_REQUEST__KIND__QUARANTINED + 1];
	bool attached_only, histograms;
	struct ring_timer turn;
	struct node_refresh refresh;
	/* the cursor */
	unsigned stage;
	unsigned pool;
	enum record_kind kind;
	uint64_t number;
	struct pool_walk walk;
	char last[RECORD_KEY_MAX]; /* quarantined; borrowed, by tag */
};

typedef Ringvol__V1__ListResponse list_response;

/* ---- stages: the next thing behind the cursor ---- */

#define ITEM(name) RINGVOL__V1__LIST_RESPONSE__ITEM_##name

static enum list_answer answer(const void *message)
{
	return message != NULL ? LIST_SEND : LIST_NO_MEMORY;
}

static enum list_answer next_driver(struct list_call *l, struct arena *arena, list_response *item)
{
	if (l->number++ != 0)
		return LIST_STAGE_END;
	item->item_case = ITEM(DRIVER);
	item->driver = inspect_driver(arena, l->csi);
	return answer(item->driver);
}

static enum list_answer next_pool(struct list_call *l, struct arena *arena, list_response *item)
{
	const struct pool *pool = pools_at(l->csi->pools, l->pool++);
	if (pool == NULL)
		return LIST_STAGE_END;
	item->item_case = ITEM(POOL);
	item->pool = inspect_pool(arena, l->csi, pool);
	return answer(item->pool);
}

/* Tasks are in the order of their numbers. */
static enum list_answer next_operation(
	struct list_call *l, struct arena *arena, list_response *item)
{
	list_for_each (node, &l->csi->tasks) {
		const struct csi_task *task = container_of(node, struct csi_task, link);
		if (task->number <= l->number)
			continue;
		l->number = task->number;
		item->item_case = ITEM(OPERATION);
		item->operation = inspect_operation(arena, task);
		return answer(item->operation);
	}
	return LIST_STAGE_END;
}

static enum list_answer next_volume(struct list_call *l, struct arena *arena, list_response *item)
{
	const struct pool_object *volume = pools_next(l->csi->pools, RECORD_VOLUME, &l->walk);
	if (volume == NULL)
		return LIST_STAGE_END;
	const struct node_volume *node = node_volume_find(volume);
	if (l->attached_only && (node == NULL || !node->dev.attached))
		return LIST_SKIP;
	item->item_case = ITEM(VOLUME);
	item->volume = inspect_volume(arena, l->csi, volume, l->histograms);
	return answer(item->volume);
}

static enum list_answer next_borrowed(struct list_call *l, struct arena *arena, list_response *item)
{
	struct borrows *borrows = l->csi->borrows;
	const struct borrowed *one = borrows != NULL ? borrows_next(borrows, l->last) : NULL;
	if (one == NULL)
		return LIST_STAGE_END;
	memcpy(l->last, one->tag, sizeof(one->tag));
	item->item_case = ITEM(BORROWED);
	item->borrowed = inspect_borrowed(arena, l->csi, one, l->histograms);
	return answer(item->borrowed);
}

static enum list_answer next_snapshot(struct list_call *l, struct arena *arena, list_response *item)
{
	const struct pool_object *snapshot = pools_next(l->csi->pools, RECORD_SNAPSHOT, &l->walk);
	if (snapshot == NULL)
		return LIST_STAGE_END;
	item->item_case = ITEM(SNAPSHOT);
	item->snapshot = inspect_snapshot(arena, snapshot);
	return answer(item->snapshot);
}

static enum list_answer next_quarantined(
	struct list_call *l, struct arena *arena, list_response *item)
{
	const struct pool *pool = pools_at(l->csi->pools, l->pool);
	if (pool == NULL)
		return LIST_STAGE_END;
	const struct pool_object *object = pool_next_object(pool, l->kind, l->last);
	if (object == NULL) {
		l->pool += l->kind == RECORD_SNAPSHOT;
		l->kind = l->kind == RECORD_VOLUME ? RECORD_SNAPSHOT : RECORD_VOLUME;
		l->last[0] = '\0';
		return LIST_SKIP;
	}
	memcpy(l->last, object->key, sizeof(object->key));
	if (object->rec != NULL)
		return LIST_SKIP;
	item->item_case = ITEM(QUARANTINED);
	item->quarantined = inspect_quarantined(arena, object);
	return answer(item->quarantined);
}

#define KIND(name) RINGVOL__V1__LIST_REQUEST__KIND__##name

static const struct {
	Ringvol__V1__ListRequest__Kind kind;
	enum list_answer (*next)(struct list_call *l, struct arena *arena, list_response *item);
} stages[] = {
	{KIND(DRIVER), next_driver},
	{KIND(POOLS), next_pool},
	{KIND(OPERATIONS), next_operation},
	{KIND(VOLUMES), next_volume},
	{KIND(VOLUMES), next_borrowed},
	{KIND(SNAPSHOTS), next_snapshot},
	{KIND(QUARANTINED), next_quarantined},
};
enum { STAGES = sizeof(stages) / sizeof(stages[0]) };

_Static_assert((int)RECORD_KEY_MAX >= (int)ATTACH_TAG_BYTES, "one cursor for both");

/* ---- the stream ---- */

static void next_stage(struct list_call *l)
{
	l->stage++;
	l->pool = 0;
	l->kind = RECORD_VOLUME;
	l->number = 0;
	l->walk = (struct pool_walk){0};
	l->last[0] = '\0';
}

static void list_end(struct list_call *l, enum grpc_status status, const char *message)
{
	ring_timer_cancel(l->csi->reactor->ring, &l->turn);
	node_refresh_cancel(&l->refresh);
	grpc_end(l->call, status, message);
}

/* False: the call has ended, or waits for its client. */
static bool look(struct list_call *l, struct arena *arena)
{
	if (l->stage == STAGES) {
		list_end(l, GRPC_OK, NULL);
		return false;
	}
	if (!l->wanted[stages[l->stage].kind]) {
		next_stage(l);
		return true;
	}
	list_response item = RINGVOL__V1__LIST_RESPONSE__INIT;
	switch (stages[l->stage].next(l, arena, &item)) {
	case LIST_SEND:
		return grpc_send(l->call, &item.base);
	case LIST_STAGE_END:
		next_stage(l);
		return true;
	case LIST_SKIP:
		return true;
	case LIST_NO_MEMORY:
		break;
	}
	list_end(l, GRPC_RESOURCE_EXHAUSTED, "out of memory");
	return false;
}

/* What is sent is packed at once, so a turn's memory goes with it. */
static void list_turn(struct list_call *l)
{
	struct ring *ring = l->csi->reactor->ring;
	struct arena *arena = arena_new(0);
	if (arena == NULL) {
		list_end(l, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	unsigned looks = 0;
	while (looks < TURN_LOOKS && look(l, arena))
		looks++;
	if (looks == TURN_LOOKS)
		ring_timer_arm(ring, &l->turn, 0);
	arena_unref(arena);
}

static void on_turn(struct ring_timer *timer)
{
	struct list_call *l = container_of(timer, struct list_call, turn);
	node_refresh_cancel(&l->refresh);
	list_turn(l);
}

static void on_refreshed(struct node_refresh *refresh)
{
	struct list_call *l = container_of(refresh, struct list_call, refresh);
	ring_timer_arm(l->csi->reactor->ring, &l->turn, 0);
}

/* Who looks at attached volumes looks at their I/O, every second. */
static bool wants_sizes(const struct list_call *l)
{
	return !l->attached_only &&
	       (l->wanted[KIND(POOLS)] || l->wanted[KIND(VOLUMES)] || l->wanted[KIND(SNAPSHOTS)]);
}

static void on_writable(struct grpc_call *call, void *arg)
{
	(void)call;
	struct list_call *l = arg;
	if (!ring_timer_armed(&l->turn))
		ring_timer_arm(l->csi->reactor->ring, &l->turn, 0);
}

static void on_gone(struct grpc_call *call, void *arg)
{
	(void)call;
	list_end(arg, GRPC_CANCELLED, NULL);
}

void csi_inspect_list(struct grpc_call *call, const ProtobufCMessage *message)
{
	const Ringvol__V1__ListRequest *request = (const void *)message;
	struct list_call *l = arena_new_of(grpc_call_arena(call), struct list_call);
	if (l == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	l->call = call;
	l->csi = grpc_call_context(call);
	l->attached_only = request->attached_only;
	l->histograms = request->histograms;
	l->turn.fn = on_turn;
	bool all = request->n_kinds == 0;
	for (size_t i = 0; i < request->n_kinds; i++) {
		int kind = (int)request->kinds[i];
		if (kind < 0 || kind > KIND(QUARANTINED)) {
			grpc_end(call, GRPC_INVALID_ARGUMENT,
				"kinds: holds a kind this driver does not know; nodes are what a controller knows");
			return;
		}
		all |= kind == KIND(ALL);
		l->wanted[kind] = true;
	}
	for (unsigned i = 0; all && i < STAGES; i++)
		l->wanted[stages[i].kind] = true;
	grpc_on_writable(call, on_writable, l);
	grpc_on_gone(call, on_gone, l);
	l->refresh.on_end = on_refreshed;
	if (!wants_sizes(l) ||
		!node_refresh_start(l->csi->node, &l->refresh, SIZES_AGE_MS, PATIENCE_MS))
		list_turn(l);
}
