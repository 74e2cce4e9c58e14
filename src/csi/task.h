/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task is an operation that outlives its RPC. It holds locks on what it works on; calls that ask
 * for the same thing with equal arguments join it and get its answer, others get ABORTED. A call
 * ends when its client leaves; the task goes on to its end, also when nobody waits for it.
 *
 *   struct create *c = csi_task_new(call, sizeof(*c));       // struct csi_task task; is its first
 *   csi_task_lock(&c->task, NODE_EXCLUSIVE, "volume", key);   // member
 *   csi_task_start(&c->task, name, pool_lane(pool), steps);
 *
 * In a step: struct create *c = csi_task_of(op, struct create). The operation leaves its answer in
 * task.response (in task.arena). Everything it allocated is in task.arena or freed by task.cleanup.
 */
#ifndef RINGVOL_CSI_TASK_H
#define RINGVOL_CSI_TASK_H

#include "csi/csi.h"

enum {
	CSI_LOCKS_MAX = 3,
	CSI_LONG_MS = 30000, /* an operation that runs longer is logged, again and again */
};

/* What of a task takes long: it is stopped when draining, and its progress can be told. */
struct csi_task_copy {
	void (*stop)(void *arg); /* NULL: there is nothing of the kind */
	/* Bytes looked at and in all; false while nothing is copied. */
	bool (*progress)(const void *arg, uint64_t *ret_done, uint64_t *ret_total);
	void *arg;
};

struct csi_task {
	struct op op;
	struct csi *csi;
	struct arena *arena; /* the starting call's, referenced */
	const ProtobufCMessage *request;
	ProtobufCMessage *response; /* in arena; needed when the operation ends well */
	const char *method;         /* static */
	const char *subject;        /* what the log line names: a volume's name or id; in arena */
	/* The claim that the subject was made for, as its record says; in arena. NULL or "": the
	 * record does not say. */
	const char *claim;
	/* Called once after the answer was sent, NULL if there is nothing to free. */
	void (*cleanup)(struct csi_task *task);
	struct csi_task_copy copy;
	/* It changes nothing and is asked again and again: one that ends well is logged for
	 * debugging only. */
	bool poll;
	uint64_t number; /* counts up from 1 */
	/* private */
	struct node_lock locks[CSI_LOCKS_MAX];
	unsigned lock_count;
	uint8_t fingerprint[32];
	uint64_t start_ns;
	struct list link, waiters;
	unsigned waiter_count;
};

#define csi_task_of(op_ptr, type)                                                                  \
	container_of(container_of(op_ptr, struct csi_task, op), type, task)

/* Zeroed, in the call's arena; the call is its first waiter. NULL: out of memory, and the call has
 * been ended. */
void *csi_task_new(struct grpc_call *call, const ProtobufCMessage *request, size_t size);
/* kind and key: as node_lock_init(). */
void csi_task_lock(
	struct csi_task *task, enum node_lock_mode mode, const char *kind, const char *key);
/* Its log line names the claim that the record was made for. */
void csi_task_claim(struct csi_task *task, const struct record *rec);
/* Joins a running task of equal arguments, or refuses, or starts. Either way the call is taken care
 * of. subject: copied. lane: what its calls share with others, and those of its child operations
 * that have no lane of their own. NULL: the shared lane. */
void csi_task_start(
	struct csi_task *task, const char *subject, struct lane *lane, const struct op_step *steps);
/* Bytes copied and in all; false while it copies nothing. */
bool csi_task_progress(const struct csi_task *task, uint64_t *ret_done, uint64_t *ret_total);
/* Allocates and initialises a response in the task's arena (init: csi__v1__..._response__init). */
#define csi_task_response(task_ptr, Type, init)                                                    \
	({                                                                                         \
		Type *r_ = arena_alloc((task_ptr)->arena, sizeof(Type));                           \
		if (r_ != NULL) {                                                                  \
			init(r_);                                                                  \
			(task_ptr)->response = &r_->base;                                          \
		}                                                                                  \
		r_;                                                                                \
	})

#endif
