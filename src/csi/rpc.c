/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a request to an answer, or to an operation that runs. Happy path: the request says what it
 * must -> a query is answered at once; of an operation the object is locked and prepare() called ->
 * it starts, joins an equal one, or is in another's way (task.h).
 * How it can fail: as a refusal, before anything was touched.
 */
#include "csi/rpc.h"

#include "csi/borrow.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/status.h"

#include <errno.h>

static int check_request(
	const struct csi_rpc *rpc, const ProtobufCMessage *request, struct err *err)
{
	const char *const fields[] = {rpc->name, rpc->id, rpc->paths[0], rpc->paths[1],
		rpc->required[0], rpc->required[1]};
	enum { PATHS = 2, OTHERS = 4 };
	int r = 0;
	for (unsigned i = 0; r == 0 && i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (fields[i] == NULL)
			continue;
		r = i >= PATHS && i < OTHERS
			    ? csi_check_path(fields[i], csi_field(request, fields[i]), err)
			    : csi_check_given(request, fields[i], err);
	}
	return r;
}

static void answer(const struct csi_rpc *rpc, struct grpc_call *call, struct csi_query *q)
{
	int r = q->response == NULL ? -ENOMEM : rpc->answer(q);
	if (r < 0 && q->err.code == ERR_OK)
		err_set(&q->err, ERR_NO_ROOM, "out of memory");
	if (r < 0)
		csi_refuse(call, &q->err);
	else
		grpc_reply(call, q->response);
}

void csi_rpc_go(struct grpc_call *call, const ProtobufCMessage *request)
{
	const struct csi_rpc *rpc = grpc_call_row(call);
	const struct csi_operation *operation = rpc->operation;
	if (rpc->borrowed != NULL && csi_is_borrowed(grpc_call_context(call), rpc, request))
		operation = rpc->borrowed;
	struct csi_task *task = csi_task_new(call, request, rpc, operation);
	struct err err = {0};
	if (task == NULL)
		return;
	if (rpc->name != NULL)
		csi_task_lock_name(task, rpc->kind, task->subject);
	else if (rpc->id != NULL && !rpc->poll && !rpc->own_locks)
		csi_task_lock_id(
			task, rpc->streams ? NODE_SHARED : NODE_EXCLUSIVE, rpc->kind, task->id);
	int r = operation->prepare(task, &err);
	if (r < 0) {
		if (operation == rpc->borrowed)
			operation->cleanup(task); /* no key stays */
		csi_refuse(call, &err);
	} else if (r == CSI_ANSWERED)
		grpc_reply(call, task->response);
	else
		csi_task_start(task);
}

static void operate(
	const struct csi_rpc *rpc, struct grpc_call *call, const ProtobufCMessage *request)
{
	const struct csi *csi = grpc_call_context(call);
	const struct csi_hooks *hooks = &csi->hooks;
	if (rpc->name == NULL || hooks->on_create == NULL ||
		!hooks->on_create(
			hooks->arg, call, request, rpc->kind, csi_field(request, rpc->name)))
		csi_rpc_go(call, request);
}

void csi_rpc_run(struct grpc_call *call, const ProtobufCMessage *request)
{
	const struct csi_rpc *rpc = grpc_call_row(call);
	struct csi_query q = {
		.csi = grpc_call_context(call),
		.arena = grpc_call_arena(call),
		.request = request,
	};
	if (check_request(rpc, request, &q.err) < 0) {
		csi_refuse(call, &q.err);
		return;
	}
	if (rpc->answer == NULL) {
		operate(rpc, call, request);
		return;
	}
	q.response = csi_message_new(q.arena, grpc_call_output(call));
	answer(rpc, call, &q);
}
