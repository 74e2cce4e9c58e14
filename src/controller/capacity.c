/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: the request becomes a class, the nodes that its topology names have answered it, and
 * that is the answer. A class's bytes are the request without topology, packed again after its maps
 * were sorted (csi_check_request()).
 *
 * How it can fail: nobody matches and not everybody who could has joined (UNAVAILABLE); a node that
 * has to be asked is lost, or refuses the parameters, which none of the nodes then answers: its
 * error is the client's.
 */
#include "controller/capacity.h"

#include "controller/forward.h"
#include "controller/join.h"
#include "controller/request.h"
#include "controller/scan.h"
#include "controller/term.h"
#include "csi.pb-c.h"
#include "csi/status.h"

#include <errno.h>
#include <stdlib.h>

#define MS UINT64_C(1000000)

/* Of GetCapacityResponse, and of Int64Value. */
enum { AVAILABLE = 1, MAXIMUM = 2, MINIMUM = 3, VALUE = 1 };

/* What nodes have said, added up. */
struct sum {
	size_t here;                /* nodes that match and are joined */
	size_t known;               /* those of them that have said */
	struct store_node *unknown; /* one that has not */
	const uint8_t *only;        /* what the last that has said */
	size_t only_len;
	int64_t available, maximum, minimum;
	bool has_maximum, has_minimum;
};

struct asked {
	struct controller *controller;
	struct grpc_call *call;
	const struct route *route;
	const Csi__V1__Topology *topology; /* in the call's arena */
	uint32_t class;
};

/* ---- what was said ---- */

/* An Int64Value. */
static int64_t read_value(const struct scan_field *field)
{
	struct scan scan = {field->data, field->data + field->len};
	struct scan_field inner;
	int64_t value = 0;
	while (field->wire == SCAN_BYTES && scan_next(&scan, &inner) > 0)
		if (inner.number == VALUE && inner.wire == SCAN_VARINT)
			value = (int64_t)inner.value;
	return value;
}

/* It is a message: join.c has looked (entry.h). */
static void add_answer(struct sum *sum, const uint8_t *data, size_t len)
{
	struct scan scan = {data, data + len};
	struct scan_field field;
	while (scan_next(&scan, &field) > 0) {
		int64_t value;
		switch (field.number) {
		case AVAILABLE:
			value = field.wire == SCAN_VARINT ? (int64_t)field.value : 0;
			if (value > 0 && __builtin_add_overflow(sum->available, value, &value))
				value = INT64_MAX;
			sum->available = value > sum->available ? value : sum->available;
			break;
		case MAXIMUM:
			value = read_value(&field);
			if (!sum->has_maximum || value > sum->maximum)
				sum->maximum = value;
			sum->has_maximum = true;
			break;
		case MINIMUM:
			value = read_value(&field);
			if (!sum->has_minimum || value < sum->minimum)
				sum->minimum = value;
			sum->has_minimum = true;
			break;
		default:
			break;
		}
	}
}

static struct sum add_up(const struct asked *asked)
{
	const struct store *store = asked->controller->store;
	struct sum sum = {0};
	struct term_walk walk;
	struct store_node *node;
	size_t len;
	term_begin(&walk, store, asked->topology);
	while ((node = term_next(&walk)) != NULL) {
		if (!store_node_here(node))
			continue;
		sum.here++;
		const uint8_t *said = store_capacity(store, node, asked->class, &len);
		if (said == NULL) {
			sum.unknown = node;
			continue;
		}
		sum.known++;
		sum.only = said;
		sum.only_len = len;
		add_answer(&sum, said, len);
	}
	return sum;
}

/* One node's answer as it is; else the sum. */
static int put_answer(const struct sum *sum, struct buf *out)
{
	out->len = 0;
	if (sum->known == 1)
		return buf_append(out, sum->only, sum->only_len);
	Csi__V1__GetCapacityResponse response = CSI__V1__GET_CAPACITY_RESPONSE__INIT;
	Csi__V1__Int64Value maximum = CSI__V1__INT64_VALUE__INIT, minimum = maximum;
	response.available_capacity = sum->available;
	maximum.value = sum->maximum;
	minimum.value = sum->minimum;
	response.maximum_volume_size = &maximum;
	response.minimum_volume_size = sum->has_minimum ? &minimum : NULL;
	uint8_t *at =
		buf_reserve(out, csi__v1__get_capacity_response__get_packed_size(&response) + 1);
	if (at == NULL)
		return -ENOMEM;
	out->len = csi__v1__get_capacity_response__pack(&response, at);
	return 0;
}

static void answer(struct grpc_call *call, const struct sum *sum)
{
	struct buf out = {0};
	if (put_answer(sum, &out) < 0)
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
	else
		grpc_reply_bytes(call, out.data, out.len);
	buf_free(&out);
}

/* ---- a node is asked ---- */

struct question {
	struct forward f;
	struct asked asked;
};

static void on_answer(struct forward *f, enum grpc_status status, const char *message)
{
	struct question *q = container_of(f, struct question, f);
	struct store *store = f->controller->store;
	struct store_node *node = store_node(store, f->node_id);
	size_t len;
	/* What the node has said meanwhile is newer. */
	if (status == GRPC_OK && node != NULL && store_node_here(node) &&
		store_capacity(store, node, q->asked.class, &len) == NULL)
		(void)store_capacity_set(
			store, node, q->asked.class, f->answer.data, f->answer.len);
	struct sum sum = add_up(&q->asked);
	if (status == GRPC_OK && sum.here > 1 && put_answer(&sum, &f->answer) < 0) {
		status = GRPC_RESOURCE_EXHAUSTED;
		message = "out of memory";
	}
	forward_pass(f, status, message);
}

static void ask(const struct asked *asked, struct store_node *node)
{
	struct question *q = calloc(1, sizeof(*q));
	struct err err = {0};
	size_t len;
	if (q == NULL) {
		grpc_end(asked->call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	q->asked = *asked;
	q->f.on_answer = on_answer;
	forward_open(&q->f, asked->controller, asked->call, asked->route);
	const uint8_t *request = grpc_call_bytes(asked->call, &len);
	uint32_t class = asked->class, found;
	const uint8_t *plain;
	size_t plain_len;
	/* Without topology: the node is not the only one that it names. */
	if (store_class_at(asked->controller->store, class % STORE_CLASSES_MAX, &found, &plain,
		    &plain_len) &&
		found == class) {
		request = plain;
		len = plain_len;
	}
	if (forward_call(&q->f, node, asked->route->path, request, len, &err) < 0)
		forward_refuse(&q->f, &err);
}

/* ---- several nodes have to say ---- */

struct capacity {
	struct ring *ring;
	struct list waits;
	struct ring_timer timer;
};

struct wait {
	struct list link;
	struct asked asked;
	uint64_t end_ns;
};

static void wait_free(struct wait *wait)
{
	grpc_on_gone(wait->asked.call, NULL, NULL);
	list_remove(&wait->link);
	free(wait);
}

static void on_gone(struct grpc_call *call, void *arg)
{
	wait_free(arg);
	grpc_end(call, GRPC_CANCELLED, NULL);
}

/* False: it goes on waiting. */
static bool try_answer(const struct asked *asked, bool late)
{
	struct sum sum = add_up(asked);
	struct err err = {0};
	if (sum.here == 0 && store_whole(asked->controller->store, &err) < 0)
		csi_refuse(asked->call, &err);
	else if (sum.unknown == NULL || (late && sum.known > 0))
		answer(asked->call, &sum);
	else if (sum.here == 1 || late)
		ask(asked, sum.unknown);
	else
		return false;
	return true;
}

static void on_tick(struct ring_timer *timer)
{
	struct capacity *capacity = container_of(timer, struct capacity, timer);
	uint64_t now = ring_now_ns(capacity->ring);
	list_for_each_safe (l, &capacity->waits) {
		struct wait *wait = container_of(l, struct wait, link);
		struct asked asked = wait->asked;
		struct sum sum = add_up(&asked);
		bool late = now >= wait->end_ns;
		if (!late && sum.unknown != NULL && sum.here > 1)
			continue;
		wait_free(wait);
		(void)try_answer(&asked, late);
	}
	if (!list_empty(&capacity->waits))
		ring_timer_arm(capacity->ring, timer, CAPACITY_TICK_MS);
}

static void wait_for(const struct asked *asked)
{
	struct capacity *capacity = asked->controller->capacity;
	struct wait *wait = calloc(1, sizeof(*wait));
	if (wait == NULL) {
		grpc_end(asked->call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	wait->asked = *asked;
	wait->end_ns = ring_now_ns(capacity->ring) + CAPACITY_WAIT_MS * MS;
	list_push(&capacity->waits, &wait->link);
	grpc_on_gone(asked->call, on_gone, wait);
	if (!ring_timer_armed(&capacity->timer))
		ring_timer_arm(capacity->ring, &capacity->timer, CAPACITY_TICK_MS);
}

int capacity_open(struct capacity **ret, struct ring *ring)
{
	struct capacity *capacity = calloc(1, sizeof(*capacity));
	if (capacity == NULL)
		return -ENOMEM;
	capacity->ring = ring;
	capacity->timer.fn = on_tick;
	list_init(&capacity->waits);
	*ret = capacity;
	return 0;
}

void capacity_drain(struct capacity *capacity)
{
	ring_timer_cancel(capacity->ring, &capacity->timer);
	while (!list_empty(&capacity->waits)) {
		struct wait *wait = container_of(capacity->waits.next, struct wait, link);
		struct grpc_call *call = wait->asked.call;
		wait_free(wait);
		grpc_end(call, GRPC_UNAVAILABLE, "the controller is about to end; try again");
	}
}

void capacity_close(struct capacity *capacity)
{
	if (capacity == NULL)
		return;
	capacity_drain(capacity);
	free(capacity);
}

/* ---- the call ---- */

/* The class of the request; it loses its topology. */
static int find_class(struct controller *c, struct arena *arena,
	Csi__V1__GetCapacityRequest *request, uint32_t *ret_class, struct err *err)
{
	bool is_new;
	request->accessible_topology = NULL;
	size_t len = csi__v1__get_capacity_request__get_packed_size(request);
	uint8_t *packed = arena_alloc(arena, len);
	int r = -ENOMEM;
	if (packed != NULL) {
		csi__v1__get_capacity_request__pack(request, packed);
		r = store_class(c->store, packed, len, ret_class, &is_new);
	}
	if (r == -EMSGSIZE)
		return err_set(err, ERR_INVALID,
			"the request has %zu bytes without its topology, %d are allowed", len,
			CLASS_REQUEST_MAX);
	if (r < 0)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	if (is_new && c->joins != NULL)
		joins_tell_classes(c->joins);
	return 0;
}

void get_capacity(struct controller *c, struct grpc_call *call, const struct route *route)
{
	struct asked asked = {.controller = c, .call = call, .route = route};
	struct err err = {0};
	Csi__V1__GetCapacityRequest *request =
		(void *)request_unpack(call, &csi__v1__get_capacity_request__descriptor, &err);
	int r = -1;
	if (request != NULL) {
		asked.topology = request->accessible_topology;
		r = find_class(c, grpc_call_arena(call), request, &asked.class, &err);
	}
	if (r < 0)
		csi_refuse(call, &err);
	else if (!try_answer(&asked, false))
		wait_for(&asked);
}
