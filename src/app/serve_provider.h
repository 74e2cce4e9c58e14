/* SPDX-License-Identifier: Apache-2.0 */
/* The provider of storage for systemd, as `ringvol serve` is told of it. */
#ifndef RINGVOL_SERVE_PROVIDER_H
#define RINGVOL_SERVE_PROVIDER_H

#include "app/serve_options.h"
#include "provider/provider.h"

/* Looks the options over, when all are there: where volumes may be mounted. */
int serve_provider_complete(struct serve_options *options, struct err *err);
/* 0 also if none is asked for: then *ret is untouched. */
int serve_provider_open(struct provider **ret, const struct serve_options *options, struct csi *csi,
	struct grpc_registry *registry, struct err *err);

#endif
