/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and checking requests. Strings are protobuf `bytes` in the generated C (see
 * proto/wire.sed); after csi_check_request() each is UTF-8 without NUL, and followed by a NUL.
 */
#ifndef RINGVOL_CSI_REQUEST_H
#define RINGVOL_CSI_REQUEST_H

#include "base/err.h"
#include "csi.pb-c.h"
#include "rpc/grpc.h"

#include <stdbool.h>
#include <stdint.h>

/* Sizes in bytes; the contract's numbers. */
#define CSI_SIZE_MIN     (16ULL << 20)
#define CSI_SIZE_DEFAULT (1ULL << 30)
#define CSI_SIZE_MAX     (1ULL << 50)

/* For every request, before its method sees it: UTF-8, no NUL, CSI's size limits, maps sorted by
 * key. A grpc_check_fn. */
enum grpc_status csi_check_request(const ProtobufCMessage *request, struct err *err);

/* A request's string; "" when it is missing. */
static inline const char *csi_str(ProtobufCBinaryData field)
{
	return field.data == NULL ? "" : (const char *)field.data;
}
/* The same by the field's name. */
const char *csi_field(const ProtobufCMessage *request, const char *field);
/* 0, or ERR_INVALID naming the field (a string, a message, a list), which is empty. */
int csi_check_given(const ProtobufCMessage *request, const char *field, struct err *err);
/* 0, or ERR_INVALID naming the field: an absolute path that leads nowhere up. */
int csi_check_path(const char *field, const char *path, struct err *err);

/* A CapacityRange (NULL: none). Sizes are rounded up to 1 MiB and at least min_bytes; *ret_size is
 * the size to make (ret_limit 0: no limit). ERR_INVALID: negative; ERR_RANGE: limit below what is
 * needed, or past CSI_SIZE_MAX. default_bytes is taken when nothing is required. */
int csi_capacity(const Csi__V1__CapacityRange *range, uint64_t default_bytes, uint64_t min_bytes,
	uint64_t *ret_size, uint64_t *ret_limit, struct err *err);

#endif
