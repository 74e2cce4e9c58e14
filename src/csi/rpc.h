/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row for each RPC: what its request has to say, what it works on and locks, and how it is
 * answered. services.c has the table; csi_rpc_run() does what is alike for all of them.
 *
 * There are two kinds. An answer is given at once, from memory. An operation is a task (task.h). It
 * has one answer, or streams: its steps send as many messages as they like (stream.h).
 */
#ifndef RINGVOL_CSI_RPC_H
#define RINGVOL_CSI_RPC_H

#include "csi/task.h"

/* A call that is answered at once. */
struct csi_query {
	struct csi *csi;
	struct arena *arena; /* the call's */
	const void *request;
	void *response; /* initialised, in the arena */
	struct err err;
};

/* 0, or an error with q->err set; without it: out of memory. */
typedef int csi_answer_fn(struct csi_query *q);

enum { CSI_ANSWERED = 1 };

struct csi_operation {
	size_t size; /* of its struct, which begins with its struct csi_task */
	/* Takes the request apart and refuses what cannot be. 0: the steps are to run.
	 * CSI_ANSWERED: there is nothing to do, task->response is the answer. Else refused with
	 * err. May set subject, lane, claim, copy, other steps, and take more locks. */
	int (*prepare)(struct csi_task *task, struct err *err);
	const struct op_step *steps;
	/* Called once after the answer was sent. NULL: there is nothing to free. */
	void (*cleanup)(struct csi_task *task);
};

/* It has an answer or an operation. */
struct csi_rpc {
	csi_answer_fn *answer;
	const struct csi_operation *operation;
	/* In the place of `operation` where the volume is borrowed (borrow.h); NULL: such volumes
	 * are none of its affair. */
	const struct csi_operation *borrowed;
	/* Fields of the request. They must not be empty, and are asked for in this order. */
	const char *name;        /* of what is to be made */
	const char *id;          /* of what it works on, or makes something of */
	const char *paths[2];    /* absolute paths */
	const char *required[2]; /* others */
	/* An operation has the object alone that the request names, by name where it makes one,
	 * else by id; its kind is: */
	enum record_kind kind;
	/* It only looks, and is asked again and again: it locks nothing, and an end that is well is
	 * logged for debugging. */
	bool poll;
	/* prepare() takes its locks; none is taken for the fields above. */
	bool own_locks;
	/* Its steps send the messages of its answer. It only looks: the object is locked so that it
	 * stays, and others may look at it as well. */
	bool streams;
};

/* A grpc_method_fn, for methods that have a row. */
grpc_method_fn csi_rpc_run;
/* Goes on with a call that csi_hooks.on_create() has taken. */
void csi_rpc_go(struct grpc_call *call, const ProtobufCMessage *request);

#endif
