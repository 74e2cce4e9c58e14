/* SPDX-License-Identifier: Apache-2.0 */
/* The volume plugin for docker: it needs what makes volumes and what mounts them in one process,
 * and its own directory to be one where volumes may be. */
#include "app/serve_docker.h"

int serve_docker_complete(struct serve_options *o, struct err *err)
{
	const unsigned needs = CSI_CONTROLLER | CSI_NODE;
	if (o->docker_plugin == NULL)
		return 0;
	if ((o->csi.services & needs) != needs)
		return err_set(err, ERR_INVALID,
			"--docker-plugin needs the services controller and node (--services)");
	if (o->target_root_count == 0)
		return 0;
	if (o->target_root_count == SERVE_TARGET_ROOTS_MAX)
		return err_set(err, ERR_INVALID,
			"--docker-plugin: more than %d roots, with its own (--docker-mounts)",
			SERVE_TARGET_ROOTS_MAX);
	o->target_roots[o->target_root_count++] = o->docker_mounts;
	return 0;
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
