/* SPDX-License-Identifier: Apache-2.0 */
/* Volume capabilities: how a volume is to be used. */
#ifndef RINGVOL_CSI_ACCESS_H
#define RINGVOL_CSI_ACCESS_H

#include "base/err.h"
#include "blockio/fsimg.h"
#include "csi.pb-c.h"

#include <stdbool.h>

struct csi_access {
	bool block;
	bool read_only;     /* SINGLE_NODE_READER_ONLY, or mount flag ro */
	bool single_writer; /* SINGLE_NODE_SINGLE_WRITER: one publish only */
	unsigned mode;      /* enum attachment_mode: of a list: the first one's */
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
/* The same for a volume that is given to several nodes: their modes are served. One reads only. A
 * file system that several nodes would write to is refused. */
int csi_access_parse_shared(const Csi__V1__VolumeCapability *cap, enum fsimg_type default_fs,
	struct csi_access *ret, struct err *err);
/* A list, as Controller RPCs carry; it must not be empty, nor mix block and mount. */
int csi_access_parse_list(Csi__V1__VolumeCapability **caps, size_t n, enum fsimg_type default_fs,
	struct csi_access *ret, struct err *err);

#endif
