/* SPDX-License-Identifier: Apache-2.0 */
/* The volume plugin for docker: it needs what makes volumes and what mounts them in one process,
 * and its own directory to be one where volumes may be. */
#include "app/serve_docker.h"

#include "app/serve_own_mounts.h"

int serve_docker_complete(struct serve_options *o, struct err *err)
{
	return o->docker_plugin == NULL ? 0
					: serve_own_mounts(o, "--docker-plugin", "--docker-mounts",
						  o->docker_mounts, err);
}

int serve_docker_open(struct docker **ret, const struct serve_options *o, struct csi *csi,
	struct grpc_registry *registry, struct err *err)
{
	if (o->docker_plugin == NULL)
		return 0;
	const struct docker_config config = {
		.socket = o->docker_plugin,
		.mounts = o->docker_mounts,
		.csi = csi,
		.registry = registry,
	};
	return docker_open(ret, &config, err);
}
