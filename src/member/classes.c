/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: a class is decoded and checked like a call's request -> asked (csi_capacity) -> its
 * answer differs from the last one -> the link reports it. How it can fail: a request that this
 * node does not understand, or cannot answer, is not answered; the controller asks the node by a
 * call then, and gets its error.
 */
#include "member/classes.h"

#include "csi/messages.h"
#include "csi/request.h"
#include "member/report.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct class_asked {
	struct list link;
	struct member_classes *set;
	uint32_t number;
	struct arena *arena; /* the request's */
	Csi__V1__GetCapacityRequest *request;
	struct buf answer; /* packed, the last one */
	bool reported, due, asked;
	uint64_t asked_ns;
	uint64_t room; /* what was known of the pools then */
};

/* ---- asking ---- */

/* What memory knows of the pools, as far as answers depend on it. */
static uint64_t room_known(const struct csi *csi)
{
	uint64_t hash = REPORT_HASH_START;
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++) {
		struct pool_room room = {0};
		enum pool_state state = pool_state(pool);
		if (state == POOL_READY)
			pool_room(pool, &room);
		const uint64_t words[] = {state, room.available_bytes, room.available_thick_bytes,
			pool_usage(pool)->free_bytes / POOL_SIZE_ALIGN};
		hash = report_hash(hash, words, sizeof(words));
	}
	return hash;
}

static void ask_next(struct member_asker *asker);

/* Whether it is another one than before. */
static int keep_answer(struct class_asked *class, const Csi__V1__GetCapacityResponse *response)
{
	size_t len = csi__v1__get_capacity_response__get_packed_size(response);
	struct buf fresh = {0};
	uint8_t *to = buf_reserve(&fresh, len + 1);
	if (to == NULL)
		return -ENOMEM;
	fresh.len = csi__v1__get_capacity_response__pack(response, to);
	bool same = class->asked && class->answer.len == len &&
		    memcmp(class->answer.data, fresh.data, len) == 0;
	if (same) {
		buf_free(&fresh);
		return 0;
	}
	buf_free(&class->answer);
	class->answer = fresh;
	class->asked = true;
	class->reported = false;
	class->set->on_answer(class->set->arg);
	return 0;
}

static void ask_end(struct op *op)
{
	struct member_asker *asker = container_of(op, struct member_asker, capacity.op);
	struct class_asked *class = asker->of;
	asker->running = false;
	if (class != NULL) {
		class->asked_ns = ring_now_ns(asker->csi->reactor->ring);
		class->room = room_known(asker->csi);
		if (op_failed(op) || keep_answer(class, asker->response) < 0)
			class->due = true; /* out of memory: once more */
	}
	arena_unref(asker->arena);
	arena_unref(asker->request_arena);
	ask_next(asker);
}

/* False: there is no memory for it, or the node does not understand it. */
static bool ask_start(struct member_asker *asker, struct class_asked *class)
{
	struct err err = {0};
	asker->arena = arena_new(0);
	asker->response = asker->arena == NULL
				  ? NULL
				  : csi_message_new(asker->arena,
					    &csi__v1__get_capacity_response__descriptor);
	if (asker->response == NULL || csi_capacity_init(&asker->capacity, asker->csi, asker->arena,
					       class->request, asker->response, &err) < 0) {
		arena_unref(asker->arena);
		return false;
	}
	asker->of = class;
	asker->request_arena = arena_ref(class->arena);
	asker->running = true;
	asker->capacity.op.on_end = ask_end;
	op_start(&asker->capacity.op);
	return true;
}

static uint64_t when_due_ns(const struct class_asked *class)
{
	return class->asked_ns == 0 ? 0 : class->asked_ns + CLASS_PAUSE_MS * UINT64_C(1000000);
}

static void ask_next(struct member_asker *asker)
{
	uint64_t now_ns = ring_now_ns(asker->csi->reactor->ring), first_ns = UINT64_MAX;
	list_for_each (s, &asker->sets) {
		struct member_classes *set = container_of(s, struct member_classes, link);
		list_for_each (l, &set->list) {
			struct class_asked *class = container_of(l, struct class_asked, link);
			if (asker->running || asker->draining)
				return;
			if (!class->due)
				continue;
			uint64_t due_ns = when_due_ns(class);
			if (due_ns > now_ns) {
				first_ns = due_ns < first_ns ? due_ns : first_ns;
				continue;
			}
			class->due = false;
			if (!ask_start(asker, class)) {
				class->asked_ns = now_ns;
				class->room = room_known(asker->csi);
			}
		}
	}
	if (!asker->running && first_ns != UINT64_MAX)
		ring_timer_arm(asker->csi->reactor->ring, &asker->timer,
			(first_ns - now_ns) / 1000000 + 1);
}

static void on_timer(struct ring_timer *timer)
{
	ask_next(container_of(timer, struct member_asker, timer));
}

void member_asker_look(struct member_asker *asker)
{
	uint64_t room = room_known(asker->csi);
	list_for_each (s, &asker->sets) {
		struct member_classes *set = container_of(s, struct member_classes, link);
		list_for_each (l, &set->list) {
			struct class_asked *class = container_of(l, struct class_asked, link);
			class->due = class->due || class->room != room;
		}
	}
	ask_next(asker);
}

void member_asker_open(struct member_asker *asker, struct csi *csi)
{
	*asker = (struct member_asker){.csi = csi, .timer.fn = on_timer};
	list_init(&asker->sets);
}

void member_asker_drain(struct member_asker *asker)
{
	asker->draining = true;
	ring_timer_cancel(asker->csi->reactor->ring, &asker->timer);
}

bool member_asker_idle(const struct member_asker *asker)
{
	return !asker->running;
}

/* ---- what is asked for ---- */

static void class_free(struct class_asked *class)
{
	struct member_asker *asker = class->set->asker;
	if (asker->of == class)
		asker->of = NULL;
	list_remove(&class->link);
	class->set->count--;
	arena_unref(class->arena);
	buf_free(&class->answer);
	free(class);
}

/* In an arena of its own. -EINVAL: it is no request, or one with topology, which a class has not.
 */
static int decode(struct class_asked *class, ProtobufCBinaryData request)
{
	class->arena = arena_new(8 * CLASS_REQUEST_MAX);
	if (class->arena == NULL)
		return -ENOMEM;
	class->request = report_unpack(class->arena, &csi__v1__get_capacity_request__descriptor,
		request.data, request.len);
	struct err err = {0};
	if (class->request == NULL || csi_check_request(&class->request->base, &err) != GRPC_OK ||
		class->request->accessible_topology != NULL)
		return -EINVAL;
	return 0;
}

/* The one whose place a class of this number takes. */
static struct class_asked *find(const struct member_classes *set, uint32_t number)
{
	list_for_each (l, &set->list) {
		struct class_asked *class = container_of(l, struct class_asked, link);
		if (class->number % CLASSES_MAX == number % CLASSES_MAX)
			return class;
	}
	return NULL;
}

int member_classes_add(struct member_classes *set, const Ringvol__V1__CapacityClass *given)
{
	struct class_asked *class;
	if (given->request.len > CLASS_REQUEST_MAX)
		return -EINVAL;
	if ((class = find(set, given->class_)) != NULL)
		class_free(class);
	assert(set->count < CLASSES_MAX);
	class = calloc(1, sizeof(*class));
	if (class == NULL)
		return -ENOMEM;
	*class = (struct class_asked){
		.set = set, .number = given->class_, .due = true, .reported = true};
	list_push(&set->list, &class->link);
	set->count++;
	int r = decode(class, given->request);
	if (r < 0) {
		class_free(class);
		return r;
	}
	ask_next(set->asker);
	return 0;
}

int member_classes_report(struct member_classes *set, struct buf *b)
{
	int r = 0;
	list_for_each (l, &set->list) {
		struct class_asked *class = container_of(l, struct class_asked, link);
		if (r < 0 || class->reported)
			continue;
		Ringvol__V1__NodeCapacity told = RINGVOL__V1__NODE_CAPACITY__INIT;
		told.class_ = class->number;
		told.response = (ProtobufCBinaryData){class->answer.len, class->answer.data};
		r = report_message(b, REPORT_CAPACITIES, &told.base);
		class->reported = r == 0;
	}
	return r;
}

void member_classes_open(struct member_classes *set, struct member_asker *asker,
	void (*on_answer)(void *arg), void *arg)
{
	*set = (struct member_classes){.asker = asker, .on_answer = on_answer, .arg = arg};
	list_init(&set->list);
	list_push(&asker->sets, &set->link);
}

void member_classes_clear(struct member_classes *set)
{
	while (!list_empty(&set->list))
		class_free(container_of(set->list.next, struct class_asked, link));
}

void member_classes_close(struct member_classes *set)
{
	member_classes_clear(set);
	list_remove(&set->link);
}
