/* SPDX-License-Identifier: Apache-2.0 */
/* The volume plugin for docker and podman, as `ringvol serve` is told of it. */
#ifndef RINGVOL_SERVE_DOCKER_H
#define RINGVOL_SERVE_DOCKER_H

#include "app/serve_options.h"
#include "docker/plugin.h"

/* Looks the options over, when all are there: where volumes may be mounted. */
int serve_docker_complete(struct serve_options *options, struct err *err);
/* 0 also if none is asked for: then *ret is untouched. */
int serve_docker_open(struct docker **ret, const struct serve_options *options, struct csi *csi,
	struct grpc_registry *registry, struct err *err);

#endif
