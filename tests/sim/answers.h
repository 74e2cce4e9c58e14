/* SPDX-License-Identifier: Apache-2.0 */
/* Answers as one line of text each, with every field that is set. */
#ifndef RINGVOL_TESTS_ANSWERS_H
#define RINGVOL_TESTS_ANSWERS_H

#include "csi_calls.h"

#include "csi/messages.h"

#define TOPOLOGY "accessible_topology{segments{key='topology.ringvol.dev/node' value='node-1'}}"
#define TOPOLOGY_ZONED                                                                             \
	"accessible_topology{segments{key='topology.ringvol.dev/node' value='node-1'} "            \
	"segments{key='zone' value='z1'}}"
#define WELL "volume_condition{message='the volume is well'}"

/* The answer; or its status and message. Static, until the next call. */
const char *ask(
	const char *method, const void *request, const ProtobufCMessageDescriptor *response);
/* A packed message; likewise. */
const char *line_of(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t len);
/* ASK("Controller", ListVolumes, list_volumes): of a request `req`. */
#define ASK(service, Method, method)                                                               \
	ask(service "/" #Method, &req, &csi__v1__##method##_response__descriptor)

/* A line that is another is told, and the test goes on. */
void says(const char *got, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The fields of a device, for says(): what is 0 is left out, and /dev/loop0 has the number 0.
 * Static, until the next call. */
const char *device_fields(
	const char *type, const char *path, uint32_t dev_major, uint32_t dev_minor);
/* A parameter; there are four of them. */
Csi__V1__StringPair *pair(unsigned i, const char *key, const char *value);
/* What node-2 alone can meet. */
Csi__V1__TopologyRequirement *elsewhere(void);
/* The value of the answer's first field of that name. */
void take_id(const char *answer, const char *name, char *ret_id);
/* CreateVolume, of 16 MiB, and of volume_id or snapshot_id. */
const char *asks_create(const char *name, enum source from);
/* Of volume_id, without secrets. */
const char *asks_stage(void), *asks_unstage(void);
const char *asks_publish(void), *asks_unpublish(void);
const char *asks_stats(void), *asks_delete(void);
/* ControllerModifyVolume of volume_id, with one parameter. */
const char *asks_modify(const char *key, const char *value);

/* The answer, while operations of that name fail, of which there is one at least. */
const char *while_silent(const char *op_name, const char *(*asks)(void));
#define SILENT_MOUNTS "13: node others: scan mounts: Input/output error"

#endif
