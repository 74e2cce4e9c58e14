/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading requests and writing responses. Strings are protobuf `bytes` in the generated C (see
 * proto/wire.sed); after the edge check each is UTF-8 without NUL, and followed by a NUL.
 */
#ifndef RINGVOL_CSI_FIELDS_H
#define RINGVOL_CSI_FIELDS_H

#include "csi.pb-c.h"
#include "csi/csi.h"
#include "node/health.h"

#include <string.h>

/* A request's string; "" when it is missing. */
static inline const char *csi_str(ProtobufCBinaryData field)
{
	return field.data == NULL ? "" : (const char *)field.data;
}

/* A response's string; s must live until the reply is sent (static or in the arena). */
static inline ProtobufCBinaryData csi_bytes(const char *s)
{
	return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)s};
}

/* ---- capacity ---- */

/* A CapacityRange (NULL: none). Sizes are rounded up to 1 MiB and at least min_bytes; *ret_size is
 * the size to make (ret_limit 0: no limit). ERR_INVALID: negative; ERR_RANGE: limit below what is
 * needed, or past CSI_SIZE_MAX. default_bytes is taken when nothing is required. */
int csi_capacity(const Csi__V1__CapacityRange *range, uint64_t default_bytes, uint64_t min_bytes,
	uint64_t *ret_size, uint64_t *ret_limit, struct err *err);

/* ---- capabilities ---- */

struct csi_access {
	bool block;
	bool read_only;     /* SINGLE_NODE_READER_ONLY, or mount flag ro */
	bool single_writer; /* SINGLE_NODE_SINGLE_WRITER: one publish only */
	bool fs_given;      /* the client named a type */
	enum fsimg_type fs; /* the type named, ext4 when none was; FSIMG_NONE for block */
	char options[1024]; /* mount flags, comma-separated, checked */
	/* The SELinux label of every file (mount flag context=), "" for none. Apart from the
	 * others, as it may hold commas. */
	char label[FSIMG_LABEL_BYTES];
};
/* One capability, as Node RPCs carry. default_fs: for a missing fs_type. ERR_INVALID: missing or
 * malformed; multi-node modes and unknown types are refused by name. */
int csi_access_parse(const Csi__V1__VolumeCapability *cap, enum fsimg_type default_fs,
	struct csi_access *ret, struct err *err);
/* A list, as Controller RPCs carry; it must not be empty, nor mix block and mount. */
int csi_access_parse_list(Csi__V1__VolumeCapability **caps, size_t n, enum fsimg_type default_fs,
	struct csi_access *ret, struct err *err);

/* ---- parameters ---- */

struct csi_params {
	const char *pool; /* name; "default" */
	bool pool_given;  /* otherwise a volume from a source goes to the source's pool */
	uint8_t device;   /* enum backend_type */
	bool thick;
	bool fs_given;
	enum fsimg_type fs;
	const char *mkfs_options;
	uint32_t block_size; /* 0: the pool's */
	enum record_erase erase;
	bool snapshot_freeze;
	bool allow_mode_change;
};
/* StorageClass parameters; unknown keys are ERR_INVALID by name, except under csi.storage.k8s.io/.
 */
int csi_params_parse(
	Csi__V1__StringPair **pairs, size_t n, struct csi_params *ret, struct err *err);

/* ---- objects ---- */

/* All in `arena`; NULL when out of memory. */
Csi__V1__Volume *csi_volume_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume);
Csi__V1__Snapshot *csi_snapshot_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *snapshot);
Csi__V1__Topology *csi_topology_message(struct arena *arena, const struct csi *csi);
/* True when the requirement (NULL: none) can be met by this node: it is in requisite, or there is
 * none. */
bool csi_topology_met(const Csi__V1__TopologyRequirement *req, const struct csi *csi);
bool csi_topology_is_here(const Csi__V1__Topology *topology, const struct csi *csi);

#endif
