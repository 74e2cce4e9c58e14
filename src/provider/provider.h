/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A provider of storage for systemd (docs/storage-provider.md): the interface
 * io.systemd.StorageProvider, spoken in varlink on a unix socket, beside CSI. Volumes are ordinary
 * ones: what is asked for becomes calls of CSI's own services in this process, with their checks,
 * locks, logs and metrics.
 */
#ifndef RINGVOL_PROVIDER_PROVIDER_H
#define RINGVOL_PROVIDER_PROVIDER_H

#include "csi/csi.h"
#include "rpc/grpc.h"

struct provider;

struct provider_config {
	const char *socket; /* a path */
	/* Below it volumes are mounted; an absolute path, kept by reference. It is made. */
	const char *mounts;
	unsigned idle_s; /* a volume stays attached for so long when nobody uses it; at least 1 */
	struct csi *csi;
	struct grpc_registry *registry; /* of the Controller and Node services */
};

/* Makes the directory, for root alone, and listens. Blocking, before the loop starts. 0 or -errno
 * with err. */
int provider_open(struct provider **ret, const struct provider_config *config, struct err *err);
/* No new calls; those that run end. on_drained: when there is none, or after timeout_ms, when
 * nobody hears of them any more. */
void provider_drain(
	struct provider *provider, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg);
/* No job runs. */
bool provider_idle(const struct provider *provider);
/* Idle; turns the ring, so not from a callback. NULL is legal. */
void provider_close(struct provider *provider);

#endif
