/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks: operations that outlive their RPC, their locks, and the calls that wait for them.
 *
 * Happy path: csi_task_new() in the call's arena, locks named, csi_task_start() finds no task in
 * the way and starts the steps of its row; at its end every waiting call gets the same answer, one
 * line is logged, cleanup runs, the arena goes. A call whose client leaves before ends there, and
 * leaves the task to go on, with or without others that wait. How it can fail: a lock is taken.
 * Then a call with equal arguments joins the task that has it, any other gets ABORTED at once;
 * nothing ever waits for a lock, so nothing can deadlock.
 *
 * "Equal" is a SHA-256 over method and packed request without its secrets; csi_check_request() has
 * sorted the maps, whose order on the wire is random.
 */
#include "csi/task.h"

#include "base/log.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/rpc.h"
#include "csi/status.h"
#include "pool/index.h"

#include <assert.h>
#include <inttypes.h>
#include <sha256.h>
#include <stdio.h>
#include <string.h>

/* Lies in its call's arena. */
struct waiter {
	struct list link;
	struct grpc_call *call;
	struct csi_task *task; /* the one it waits for */
};

static void waiter_on_gone(struct grpc_call *call, void *arg)
{
	struct waiter *w = arg;
	list_remove(&w->link);
	w->task->waiter_count--;
	if (w->task->rpc->streams)
		csi_stream_lose(&w->task->stream);
	grpc_end(call, GRPC_CANCELLED, NULL);
}

struct csi_task *csi_task_new(struct grpc_call *call, const ProtobufCMessage *request,
	const struct csi_rpc *rpc, const struct csi_operation *operation)
{
	struct arena *arena = grpc_call_arena(call);
	struct csi_task *task = arena_alloc(arena, operation->size);
	struct waiter *first = arena_new_of(arena, struct waiter);
	ProtobufCMessage *response = csi_message_new(arena, grpc_call_output(call));
	if (task == NULL || first == NULL || response == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED,
			"out of memory: the request does not fit its arena");
		return NULL;
	}
	task->locks = task->few_locks;
	task->lock_room = CSI_LOCKS_MAX;
	task->csi = grpc_call_context(call);
	task->rpc = rpc;
	task->operation = operation;
	task->arena = arena;
	task->request = request;
	task->response = response;
	task->id = rpc->id == NULL ? "" : csi_field(request, rpc->id);
	task->method = grpc_call_method(call);
	task->subject = rpc->name == NULL ? task->id : csi_field(request, rpc->name);
	if (rpc->id != NULL)
		task->lane = pools_lane_of_id(task->csi->pools, task->id);
	list_init(&task->link);
	list_init(&task->waiters);
	first->call = call;
	first->task = task;
	list_push(&task->waiters, &first->link);
	task->waiter_count = 1;
	grpc_on_gone(call, waiter_on_gone, first);
	if (rpc->streams) {
		csi_stream_open(&task->stream, &task->op, call);
		task->copy = (struct csi_task_copy){.stop = csi_stream_stop, .arg = &task->stream};
	}
	return task;
}

void csi_task_names(struct csi_task *task, const struct record *rec)
{
	/* The record may be gone when the line is written. */
	const char *name = arena_strdup(task->arena, rec->name);
	task->subject = name != NULL ? name : task->subject;
	task->claim = arena_strdup(task->arena, rec->claim);
}

/* ---- locks ---- */

static void add_lock(
	struct csi_task *task, enum node_lock_mode mode, enum record_kind kind, const char *key)
{
	assert(task->lock_count < task->lock_room);
	node_lock_init(&task->locks[task->lock_count++], mode,
		kind == RECORD_VOLUME ? "volume" : "snapshot", key);
}

int csi_task_lock_many(struct csi_task *task, size_t count, struct err *err)
{
	assert(task->lock_count == 0);
	struct node_lock *locks = arena_alloc(task->arena, count * sizeof(*locks));
	if (locks == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	task->locks = locks;
	task->lock_room = (unsigned)count;
	return 0;
}

void csi_task_lock_key(struct csi_task *task, const char *kind, const char *key)
{
	assert(task->lock_count < task->lock_room);
	node_lock_init(&task->locks[task->lock_count++], NODE_EXCLUSIVE, kind, key);
}

void csi_task_lock_name(struct csi_task *task, enum record_kind kind, const char *name)
{
	char key[RECORD_KEY_MAX];
	record_key(name, key);
	add_lock(task, NODE_EXCLUSIVE, kind, key);
}

void csi_task_lock_id(
	struct csi_task *task, enum node_lock_mode mode, enum record_kind kind, const char *id)
{
	struct record_id parsed;
	char key[RECORD_KEY_MAX];
	if (record_id_parse(id, &parsed) == 0)
		memcpy(key, parsed.key, sizeof(key));
	else
		record_key(id, key);
	add_lock(task, mode, kind, key);
}

void csi_task_lock_other(struct csi_task *task, const char *kind, const char *name)
{
	char key[RECORD_KEY_MAX];
	record_key(name, key);
	csi_task_lock_key(task, kind, key);
}

/* A lock that is in the way of the task's; NULL: none is. */
static const struct node_lock *find_conflict(const struct csi_task *task)
{
	const struct node_lock *lock = NULL;
	for (unsigned i = 0; lock == NULL && i < task->lock_count; i++)
		lock = node_lock_conflict(&task->csi->node->locks, &task->locks[i]);
	return lock;
}

static void take_locks(struct csi_task *task)
{
	for (unsigned i = 0; i < task->lock_count; i++) {
		task->locks[i].owner = task;
		node_lock_take(&task->csi->node->locks, &task->locks[i]);
	}
}

static void release_locks(struct csi_task *task)
{
	for (unsigned i = 0; i < task->lock_count; i++)
		node_lock_release(&task->csi->node->locks, &task->locks[i]);
}

/* ---- equal arguments ---- */

static bool take_fingerprint(struct csi_task *task)
{
	const ProtobufCMessageDescriptor *descriptor = task->request->descriptor;
	/* A shallow copy whose secrets are left out; what it points to is the request's. */
	ProtobufCMessage *copy = arena_alloc(task->arena, descriptor->sizeof_message);
	if (copy == NULL)
		return false;
	memcpy(copy, task->request, descriptor->sizeof_message);
	const ProtobufCFieldDescriptor *secrets =
		protobuf_c_message_descriptor_get_field_by_name(descriptor, "secrets");
	if (secrets != NULL)
		*(size_t *)((char *)copy + secrets->quantifier_offset) = 0;

	size_t len = protobuf_c_message_get_packed_size(copy);
	uint8_t *packed = arena_alloc(task->arena, len);
	if (packed == NULL)
		return false;
	protobuf_c_message_pack(copy, packed);
	SHA2_CTX ctx;
	SHA256Init(&ctx);
	SHA256Update(&ctx, (const uint8_t *)task->method, strlen(task->method) + 1);
	SHA256Update(&ctx, packed, len);
	SHA256Final(task->fingerprint, &ctx);
	return true;
}

/* ---- the end ---- */

static const char *claim_shown(const struct csi_task *task)
{
	return task->claim != NULL && task->claim[0] != '\0' ? task->claim : NULL;
}

static void log_end(const struct csi_task *task)
{
	char duration[32], waiters[16];
	uint64_t ns = ring_now_ns(task->csi->reactor->ring) - task->start_ns;
	snprintf(duration, sizeof(duration), "%" PRIu64 ".%03u", ns / 1000000,
		(unsigned)(ns / 1000 % 1000));
	snprintf(waiters, sizeof(waiters), "%u", task->waiter_count);
	const struct err *err = &task->op.err;
	bool failed = err->code != ERR_OK;
	enum log_level level = failed            ? LOG_LEVEL_WARN
			       : task->rpc->poll ? LOG_LEVEL_DEBUG
						 : LOG_LEVEL_INFO;
	if (!log_enabled(level))
		return;
	log_event(level, failed ? "operation failed" : "operation done",
		log_fields({"op", task->method}, {"subject", task->subject},
			{"claim", claim_shown(task)}, {"step", failed ? err->step : NULL},
			{"code", failed ? err_code_name(err->code) : NULL},
			{"error", failed ? err->message : NULL}, {"ms", duration},
			{"waiters", task->waiter_count > 1 ? waiters : NULL},
			{"client", task->rpc->streams && task->waiter_count == 0 ? "gone" : NULL}));
}

static void answer(const struct csi_task *task, struct grpc_call *call)
{
	const struct err *err = &task->op.err;
	if (err->code != ERR_OK)
		grpc_end(call, csi_status(err->code), err->message);
	else if (task->rpc->streams)
		grpc_end(call, GRPC_OK, NULL);
	else
		grpc_reply(call, task->response);
}

static void tell_idle(void *arg)
{
	struct csi *csi = arg;
	if (csi->node->draining && csi->task_count == 0 && node_quiet(csi->node) &&
		borrows_quiet(csi->borrows) && csi->on_idle != NULL)
		csi->on_idle(csi->on_idle_arg);
}

static void task_end(struct op *op)
{
	struct csi_task *task = container_of(op, struct csi_task, op);
	struct csi *csi = task->csi;

	/* The locks go first: an answered client may call again at once. */
	list_remove(&task->link);
	release_locks(task);
	csi->task_count--;
	if (csi->task_count == 0)
		ring_timer_cancel(csi->reactor->ring, &csi->long_timer);
	log_end(task);
	if (csi->hooks.on_task_end != NULL)
		csi->hooks.on_task_end(csi->hooks.arg, task);
	for (struct list *node; (node = list_pop(&task->waiters)) != NULL;) {
		/* The waiter lies in its call's arena: nothing of it may be read afterwards. */
		struct grpc_call *call = container_of(node, struct waiter, link)->call;
		answer(task, call);
	}
	if (task->operation->cleanup != NULL)
		task->operation->cleanup(task);
	arena_unref(task->arena);
	tell_idle(csi);
}

bool csi_task_makes(const struct csi *csi, enum record_kind kind, const char *name)
{
	list_for_each (link, &csi->tasks) {
		const struct csi_task *task = container_of(link, struct csi_task, link);
		if (task->rpc->name != NULL && task->rpc->kind == kind &&
			strcmp(csi_field(task->request, task->rpc->name), name) == 0)
			return true;
	}
	return false;
}

/* ---- what takes long ---- */

bool csi_task_progress(const struct csi_task *task, uint64_t *ret_done, uint64_t *ret_total)
{
	const struct csi_task_copy *copy = &task->copy;
	return copy->progress != NULL && copy->progress(copy->arg, ret_done, ret_total);
}

static void log_long(const struct csi_task *task, uint64_t ns)
{
	char seconds[24], done[32] = "";
	uint64_t bytes, total;
	snprintf(seconds, sizeof(seconds), "%" PRIu64, ns / UINT64_C(1000000000));
	if (csi_task_progress(task, &bytes, &total))
		snprintf(done, sizeof(done), "%.1f%%", (double)bytes * 100 / (double)total);
	log_event(LOG_LEVEL_INFO, "operation is still running",
		log_fields({"op", task->method}, {"subject", task->subject},
			{"claim", claim_shown(task)}, {"step", task->op.steps[task->op.at].name},
			{"s", seconds}, {"copied", done[0] != '\0' ? done : NULL}));
}

static void on_long_timer(struct ring_timer *timer)
{
	struct csi *csi = container_of(timer, struct csi, long_timer);
	uint64_t now_ns = ring_now_ns(csi->reactor->ring);
	list_for_each (node, &csi->tasks) {
		const struct csi_task *task = container_of(node, struct csi_task, link);
		if (now_ns - task->start_ns >= CSI_LONG_MS * UINT64_C(1000000))
			log_long(task, now_ns - task->start_ns);
	}
	if (csi->task_count > 0)
		ring_timer_arm(csi->reactor->ring, timer, CSI_LONG_MS);
}

/* ---- the start ---- */

/* A task that does not start has one call. */
static struct waiter *only_waiter(struct csi_task *task)
{
	return container_of(list_pop(&task->waiters), struct waiter, link);
}

static void refuse(struct csi_task *task, struct err *err)
{
	csi_refuse(only_waiter(task)->call, err);
}

static void join(struct csi_task *running, struct csi_task *task)
{
	if (running->waiter_count >= CSI_WAITERS_MAX) {
		struct err err = {0};
		err_set(&err, ERR_PENDING,
			"an operation is pending for %s: %u calls wait for this %s already; try again later",
			running->subject, running->waiter_count, running->method);
		refuse(task, &err);
		return;
	}
	struct waiter *w = only_waiter(task);
	w->task = running;
	list_push(&running->waiters, &w->link);
	running->waiter_count++;
}

/* Why it cannot start; 0: it can. lock: the one in its way; NULL: none is. */
static int check_start(const struct csi_task *task, const struct node_lock *lock, struct err *err)
{
	const struct csi *csi = task->csi;
	const struct csi_task *running = lock != NULL ? lock->owner : NULL;
	if (running != NULL) {
		uint64_t ns = ring_now_ns(csi->reactor->ring) - running->start_ns;
		return err_set(err, ERR_PENDING,
			"an operation is pending for %s: %s has been running for %.1f s; try again later",
			lock->name, running->method, (double)ns / 1e9);
	}
	if (lock != NULL)
		return err_set(err, ERR_PENDING,
			"an operation is pending for %s: %s; try again later", lock->name,
			lock->what);
	if (csi->node->draining)
		return err_set(err, ERR_UNAVAILABLE, "the driver is shutting down");
	if (csi->task_count >= CSI_TASKS_MAX)
		return err_set(
			err, ERR_NO_ROOM, "%u operations are running, the limit", csi->task_count);
	return 0;
}

void csi_task_start(struct csi_task *task)
{
	struct csi *csi = task->csi;
	struct err err = {0};
	/* Nobody can be in the way of a task without locks, nor join it. */
	if (task->lock_count != 0 && !take_fingerprint(task)) {
		err_set(&err, ERR_NO_ROOM, "%s: the request does not fit its arena", task->method);
		refuse(task, &err);
		return;
	}
	const struct node_lock *lock = find_conflict(task);
	struct csi_task *running = lock != NULL ? lock->owner : NULL;
	if (running != NULL &&
		memcmp(running->fingerprint, task->fingerprint, sizeof(task->fingerprint)) == 0) {
		join(running, task);
		return;
	}
	if (check_start(task, lock, &err) < 0) {
		refuse(task, &err);
		return;
	}
	arena_ref(task->arena);
	task->start_ns = ring_now_ns(csi->reactor->ring);
	task->number = ++csi->task_number;
	take_locks(task);
	list_push(&csi->tasks, &task->link);
	csi->task_count++;
	csi->long_timer.fn = on_long_timer;
	if (!ring_timer_armed(&csi->long_timer))
		ring_timer_arm(csi->reactor->ring, &csi->long_timer, CSI_LONG_MS);
	op_init(&task->op, csi->reactor, task->method,
		task->steps != NULL ? task->steps : task->operation->steps, task_end);
	task->op.lane = task->lane;
	op_start(&task->op);
}

void csi_drain(struct csi *csi, void (*on_idle)(void *arg), void *arg)
{
	csi->on_idle = on_idle;
	csi->on_idle_arg = arg;
	node_drain(csi->node, tell_idle, csi);
	borrows_drain(csi->borrows, tell_idle, csi);
	list_for_each_safe (link, &csi->tasks) {
		struct csi_task *task = container_of(link, struct csi_task, link);
		if (task->copy.stop != NULL)
			task->copy.stop(task->copy.arg);
	}
	tell_idle(csi);
}
