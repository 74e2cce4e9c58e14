/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task is an operation that outlives its RPC. It holds locks on what it works on; calls that ask
 * for the same thing with equal arguments join it and get its answer, others get ABORTED. A call
 * ends when its client leaves; the task goes on to its end, whoever still waits for it.
 *
 * In a step: struct create *c = csi_task_of(op, struct create). The operation leaves its answer in
 * task.response. Everything it allocated is in task.arena or freed by its row's cleanup().
 */
#ifndef RINGVOL_CSI_TASK_H
#define RINGVOL_CSI_TASK_H

#include "csi/csi.h"

struct csi_rpc;    /* rpc.h */
struct csi_source; /* source.h */

enum csi_lock_mode { CSI_SHARED, CSI_EXCLUSIVE };
enum {
	CSI_LOCKS_MAX = 3,
	CSI_LOCK_BYTES = 224,
	CSI_LONG_MS = 30000, /* an operation that runs longer is logged, again and again */
};

struct csi_lock {
	enum csi_lock_mode mode;
	uint64_t hash;
	char name[CSI_LOCK_BYTES]; /* "volume/<key>", "snapshot/<key>", "path/<hash>" */
};

/* A shared lock of who is no task: it keeps those away that want the object alone. */
struct csi_hold {
	struct list link; /* csi->holds */
	struct csi_lock lock;
	const char *what; /* static: what is being done, for those who are refused */
};

struct csi_task {
	struct op op;
	struct csi *csi;
	const struct csi_rpc *rpc;
	struct arena *arena; /* the starting call's, referenced */
	const ProtobufCMessage *request;
	ProtobufCMessage *response; /* initialised, in arena */
	const char *id;             /* the request's, as the row says; "": it has none */
	const char *method;         /* static */
	/* What the log line names: the object's name, as far as it is known, or what the request
	 * says; in arena. */
	const char *subject;
	/* What that was made for, as the record has it; in arena. NULL or "": nobody said. */
	const char *claim;
	/* The threads of its calls, and of child operations without a lane of their own. NULL: the
	 * shared lane. */
	struct work_lane *lane;
	/* What it may copy from: a copy is stopped when draining, and its progress can be told.
	 * NULL: it copies nothing. */
	struct csi_source *source;
	uint64_t number; /* counts up from 1 */
	/* private */
	struct csi_lock locks[CSI_LOCKS_MAX];
	unsigned lock_count;
	uint8_t fingerprint[32];
	uint64_t start_ns;
	struct list link, waiters;
	unsigned waiter_count;
};

#define csi_task_of(op_ptr, type)                                                                  \
	container_of(container_of(op_ptr, struct csi_task, op), type, task)

/* Zeroed but for what is the same for all: see csi_rpc_run(), which calls it. In the call's arena;
 * the call is its first waiter. NULL: out of memory, and the call has been ended. */
struct csi_task *csi_task_new(
	struct grpc_call *call, const ProtobufCMessage *request, const struct csi_rpc *rpc);
/* Locks by the object's *key* (record_key), so that a create by name and a delete by id meet. An
 * object that is not known is locked all the same. */
void csi_task_lock_name(struct csi_task *task, enum record_kind kind, const char *name);
void csi_task_lock_id(
	struct csi_task *task, enum csi_lock_mode mode, enum record_kind kind, const char *id);
/* Names what it works on in its log line. */
void csi_task_names(struct csi_task *task, const struct record *rec);
/* Joins a running task of equal arguments, or refuses, or starts. Either way the call is taken care
 * of. */
void csi_task_start(struct csi_task *task);
/* Nothing is waited for: false, and nothing is held, if a task has the object alone. */
bool csi_hold_take(struct csi *csi, struct csi_hold *hold, const char *kind, const char *key,
	const char *what);
void csi_hold_release(struct csi_hold *hold);
/* What csi_adoption remembers objects by. */
uint64_t csi_lock_hash(const char *kind, const char *key);
/* For who has ended something that a drain waits for. */
void csi_tell_idle(struct csi *csi);
/* Logs what has been running for long; csi_open() makes it the timer's. */
void csi_task_on_timer(struct ring_timer *timer);

#endif
