/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grpc.reflection.v1: lists the registry's services and serves the compiled-in file descriptors
 * (a serialized FileDescriptorSet made by protoc at build time).
 */
#ifndef RINGVOL_RPC_REFLECTION_H
#define RINGVOL_RPC_REFLECTION_H

#include "rpc/grpc.h"

struct reflection;

/* set: must outlive the result. NULL when it cannot be read or memory is short. */
struct reflection *reflection_new(struct grpc_registry *registry, const uint8_t *set, size_t len);
void reflection_free(struct reflection *reflection);

#endif
