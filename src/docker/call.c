/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of CSI for docker's jobs. How one can fail: with what CSI says, which is the job's error.
 * ABORTED (another operation has the volume) and UNAVAILABLE (a pool is being read, devices of an
 * earlier run are looked for) are tried again for a while, because docker never asks twice.
 */
#include "docker/call.h"

#include "docker/job.h"

#include <stdio.h>

static void on_call_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	struct docker_job *job = container_of(local, struct docker_job, local);
	job->status = status;
	snprintf(job->message, sizeof(job->message), "%s", message);
	op_complete(&job->op, 0);
}

static int dispatch(struct docker_job *job)
{
	int r = op_wait(&job->op);
	job->local = (struct grpc_local){.on_end = on_call_end};
	grpc_dispatch_local(job->jobs->registry, job->path, job->data, job->len, &job->local);
	return r;
}

int docker_call_run(struct docker_job *job, const char *path, const ProtobufCMessage *request)
{
	job->path = path;
	job->len = protobuf_c_message_get_packed_size(request);
	job->data = arena_alloc(job->arena, job->len);
	if (job->data == NULL)
		return op_fail(&job->op, ERR_NO_ROOM, "out of memory");
	protobuf_c_message_pack(request, job->data);
	job->patience_end_ns =
		ring_now_ns(job->op.reactor->ring) + DOCKER_PATIENCE_MS * UINT64_C(1000000);
	return dispatch(job);
}

static enum err_code code_of(enum grpc_status status)
{
	switch (status) {
	case GRPC_INVALID_ARGUMENT:
	case GRPC_OUT_OF_RANGE:
		return ERR_INVALID;
	case GRPC_NOT_FOUND:
		return ERR_NOT_FOUND;
	case GRPC_ALREADY_EXISTS:
		return ERR_EXISTS;
	case GRPC_RESOURCE_EXHAUSTED:
		return ERR_NO_ROOM;
	case GRPC_FAILED_PRECONDITION:
		return ERR_PRECONDITION;
	case GRPC_ABORTED:
		return ERR_PENDING;
	case GRPC_UNAVAILABLE:
		return ERR_UNAVAILABLE;
	default:
		return ERR_INTERNAL;
	}
}

int docker_call_end(struct docker_job *job, int res)
{
	if (res < 0)
		return res;
	if (job->pauses) {
		job->pauses = false;
		return dispatch(job);
	}
	if (job->status == GRPC_OK)
		return 0;
	bool later = job->status == GRPC_ABORTED || job->status == GRPC_UNAVAILABLE;
	if (later && !job->jobs->draining &&
		ring_now_ns(job->op.reactor->ring) < job->patience_end_ns) {
		job->pauses = true;
		return op_sleep(&job->op, DOCKER_RETRY_MS);
	}
	return op_fail(&job->op, code_of(job->status), "%s", job->message);
}
