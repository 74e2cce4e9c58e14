/* SPDX-License-Identifier: Apache-2.0 */
/* A call of CSI in the same process, as the wait of a job's step. */
#ifndef RINGVOL_DOCKER_CALL_H
#define RINGVOL_DOCKER_CALL_H

#include <protobuf-c/protobuf-c.h>

struct docker_job;

enum {
	DOCKER_RETRY_MS = 200,      /* between calls that may succeed a little later */
	DOCKER_PATIENCE_MS = 30000, /* for all of them of one step */
};

/* In a step's run(), and its end(). The call is made again where another operation was in its way,
 * or what it needs is not there yet. */
int docker_call_run(struct docker_job *job, const char *path, const ProtobufCMessage *request);
int docker_call_end(struct docker_job *job, int res);

#endif
