/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task is an operation that outlives its RPC. It holds locks on what it works on; calls that ask
 * for the same thing with equal arguments join it and get its answer, others get ABORTED. A call
 * ends when its client leaves; the task goes on to its end, also when nobody waits for it. One that
 * streams has one call, nobody joins it, and it ends with its client.
 *
 * In a step: struct create *c = csi_task_of(op, struct create). The operation leaves its answer in
 * task.response. Everything it allocated is in task.arena or freed by its cleanup().
 */
#ifndef RINGVOL_CSI_TASK_H
#define RINGVOL_CSI_TASK_H

#include "csi/csi.h"
#include "csi/stream.h"
#include "rpc/grpc.h"

struct csi_rpc; /* rpc.h */
struct csi_operation;
struct pool_group; /* pool/group.h */

enum {
	CSI_LOCKS_MAX = 3,   /* but see csi_task_lock_many() */
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
	const struct csi_rpc *rpc;
	const struct csi_operation *operation; /* of the row's, the one for this volume */
	struct arena *arena;                   /* the starting call's, referenced */
	const ProtobufCMessage *request;
	ProtobufCMessage *response; /* initialised, in arena */
	const char *id;             /* the request's, as the row says; "": it has none */
	const char *method;         /* static */
	/* What the log line names: the object's name, as far as it is known, or what the request
	 * says; in arena. */
	const char *subject;
	/* The claim that the subject was made for, as its record says; in arena. NULL or "": the
	 * record does not say. */
	const char *claim;
	const struct op_step *steps; /* NULL: the row's operation's */
	/* The threads of its calls, and of child operations without a lane of their own. NULL: the
	 * shared lane. */
	struct lane *lane;
	struct csi_task_copy copy;
	const struct pool_group *group; /* its members are what it made; NULL: none */
	struct csi_stream stream;       /* of a row that streams; else zeroed */
	uint64_t number;                /* counts up from 1 */
	/* private */
	struct node_lock *locks, few_locks[CSI_LOCKS_MAX];
	unsigned lock_count, lock_room;
	uint8_t fingerprint[32];
	uint64_t start_ns;
	struct list link, waiters;
	unsigned waiter_count;
};

#define csi_task_of(op_ptr, type)                                                                  \
	container_of(container_of(op_ptr, struct csi_task, op), type, task)

/* In the call's arena; the call is its first waiter. What the row's operation adds is zeroed. NULL:
 * out of memory, and the call has been ended. */
struct csi_task *csi_task_new(struct grpc_call *call, const ProtobufCMessage *request,
	const struct csi_rpc *rpc, const struct csi_operation *operation);
/* Locks by the object's *key* (record_key), so that a create by name and a delete by id meet. An
 * object that is not known is locked all the same. */
void csi_task_lock_name(struct csi_task *task, enum record_kind kind, const char *name);
void csi_task_lock_id(
	struct csi_task *task, enum node_lock_mode mode, enum record_kind kind, const char *id);
/* Before the first lock of a task that takes more than CSI_LOCKS_MAX. ERR_NO_ROOM. */
int csi_task_lock_many(struct csi_task *task, size_t count, struct err *err);
/* By a key that is known; kind: static. */
void csi_task_lock_key(struct csi_task *task, const char *kind, const char *key);
/* Of anything else that no two tasks may make at once; kind: static. */
void csi_task_lock_other(struct csi_task *task, const char *kind, const char *name);
/* Names what it works on in its log line. */
void csi_task_names(struct csi_task *task, const struct record *rec);
/* Joins a running task of equal arguments, or refuses, or starts. Either way the call is taken care
 * of. */
void csi_task_start(struct csi_task *task);
/* Whether one that makes something of this name runs. */
bool csi_task_makes(const struct csi *csi, enum record_kind kind, const char *name);
/* Bytes copied and in all; false while it copies nothing. */
bool csi_task_progress(const struct csi_task *task, uint64_t *ret_done, uint64_t *ret_total);

#endif
