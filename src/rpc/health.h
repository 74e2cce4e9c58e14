/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grpc.health.v1 (Check, Watch). "" is the whole server; every registered service has the same
 * state. An unknown service is NOT_FOUND for Check and SERVICE_UNKNOWN for Watch.
 */
#ifndef RINGVOL_RPC_HEALTH_H
#define RINGVOL_RPC_HEALTH_H

#include "rpc/grpc.h"

struct health;

struct health *health_new(struct grpc_registry *registry);
/* Tells the watchers when it changed. Starts as not serving. */
void health_set(struct health *health, bool serving);
/* Ends the watches, so before the registry's end; no call may come afterwards. NULL is legal. */
void health_free(struct health *health);

#endif
