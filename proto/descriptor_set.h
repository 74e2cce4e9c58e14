/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The served .proto files and what they import, as protoc describes them: a serialized
 * google.protobuf.FileDescriptorSet, for reflection. Made from the files as they are in the source
 * tree, before wire.sed.
 */
#ifndef RINGVOL_PROTO_DESCRIPTOR_SET_H
#define RINGVOL_PROTO_DESCRIPTOR_SET_H

#include <stddef.h>

extern const unsigned char proto_descriptor_set[];
extern const size_t proto_descriptor_set_len;

#endif
