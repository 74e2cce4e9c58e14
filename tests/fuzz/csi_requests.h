/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests built along their descriptors by an input's choices. Either of values that make sense
 * somewhere in csi.v1 or nearly do, in fields that have them or not; or sound: each field has a
 * value that suits its name, and now and then another, so that validators are passed, too. An input
 * that has ended chooses what is right.
 */
#ifndef RINGVOL_FUZZ_CSI_REQUESTS_H
#define RINGVOL_FUZZ_CSI_REQUESTS_H

#include "base/buf.h"
#include "fuzz.h"

#include <protobuf-c/protobuf-c.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Appends one, encoded. */
void csi_requests_put(
	struct buf *b, const ProtobufCMessageDescriptor *type, struct fuzz *f, bool sound);

#endif
