/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a serialized google.protobuf.FileDescriptorSet holds, by file, symbol and extension. Only
 * names and numbers are read; a file's descriptor is handed out as the bytes it came in.
 */
#ifndef RINGVOL_RPC_REFLECTION_INDEX_H
#define RINGVOL_RPC_REFLECTION_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
	const uint8_t *data;
	size_t len;
};

struct reflection_file {
	struct bytes proto; /* the FileDescriptorProto */
	struct bytes name, package;
	size_t import_at, import_count; /* in index->imports */
};

struct reflection_symbol {
	char *name; /* "csi.v1.Controller.CreateVolume" */
	unsigned file;
};

struct reflection_extension {
	struct bytes extendee; /* without the leading dot */
	int32_t number;
	unsigned file;
};

struct reflection_index {
	struct reflection_file *files;
	struct reflection_symbol *symbols; /* sorted by name */
	struct reflection_extension *extensions;
	unsigned *imports; /* file numbers */
	size_t file_count, symbol_count, extension_count, import_count;
};

/* 0, -ENOMEM, or -EBADMSG when the set is damaged or lacks an import. `set` must outlive it. */
int reflection_index_build(struct reflection_index *index, const uint8_t *set, size_t len);
void reflection_index_free(struct reflection_index *index);

/* A file's number or -1. */
int reflection_index_file(const struct reflection_index *index, struct bytes name);
int reflection_index_symbol(const struct reflection_index *index, struct bytes name);

bool bytes_equal(struct bytes a, struct bytes b);

#endif
