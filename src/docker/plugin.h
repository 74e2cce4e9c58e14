/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume plugin for docker and podman (docs/docker.md): their protocol, JSON over HTTP on a unix
 * socket, beside CSI. Volumes are ordinary ones: what docker asks for becomes calls of CSI's own
 * services in this process, with their checks, locks, logs and metrics.
 */
#ifndef RINGVOL_DOCKER_PLUGIN_H
#define RINGVOL_DOCKER_PLUGIN_H

#include "csi/csi.h"
#include "rpc/grpc.h"

struct docker;

struct docker_config {
	const char *socket; /* a path */
	/* Below it volumes are mounted; an absolute path, kept by reference. It is made. */
	const char *mounts;
	struct csi *csi;
	struct grpc_registry *registry; /* of the Controller and Node services */
};

/* Makes the directory, for root alone, and listens. Blocking, before the loop starts. 0 or -errno
 * with err. */
int docker_open(struct docker **ret, const struct docker_config *config, struct err *err);
/* No new requests; those that run end. on_drained: when there is none, or after timeout_ms, when
 * nobody hears of them any more. */
void docker_drain(
	struct docker *docker, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg);
/* No request runs. */
bool docker_idle(const struct docker *docker);
/* Idle; turns the ring, so not from a callback. NULL is legal. */
void docker_close(struct docker *docker);

#endif
