/* SPDX-License-Identifier: Apache-2.0 */
/* The provider for systemd: it needs what makes volumes and what mounts them in one process, and
 * its own directory to be one where volumes may be. */
#include "app/serve_provider.h"

#include "app/serve_own_mounts.h"

int serve_provider_complete(struct serve_options *o, struct err *err)
{
	return o->storage_provider == NULL
		       ? 0
		       : serve_own_mounts(o, "--storage-provider", "--storage-provider-mounts",
				 o->storage_mounts, err);
}

int serve_provider_open(struct provider **ret, const struct serve_options *o, struct csi *csi,
	struct grpc_registry *registry, struct err *err)
{
	if (o->storage_provider == NULL)
		return 0;
	const struct provider_config config = {
		.socket = o->storage_provider,
		.mounts = o->storage_mounts,
		.idle_s = o->storage_idle_s,
		.csi = csi,
		.registry = registry,
	};
	return provider_open(ret, &config, err);
}
