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
	bool read_only;     /* a mode for readers, or mount flag ro */
	bool single_writer; /* SINGLE_NODE_SINGLE_WRITER: one publish only */
	bool several;       /* a MULTI_NODE mode */
	unsigned mode;      /* enum attachment_mode: of a list: the first one's, a MULTI_NODE
			     * mode before others */
	bool fs_given;      /* the client named a type */
	enum fsimg_type fs; /* the type named, ext4 when none was; FSIMG_NONE for block */
	char options[1024]; /* mount flags, comma-separated, checked */
	/* The SELinux label of every file (mount flag context=), "" for none. Apart from the
	 * others, as it may hold commas. */
	char label[FSIMG_LABEL_BYTES];
};
/* One capability, as Node RPCs carry. default_fs: for a missing fs_type. many: volumes can be
 * attached to several nodes here. ERR_INVALID: missing or malformed; multi-node modes that cannot
 * be served and unknown types are refused by name. */
int csi_access_parse_many(const Csi__V1__VolumeCapability *cap, enum fsimg_type default_fs,
	bool many, struct csi_access *ret, struct err *err);
/* The same where they cannot. */
int csi_access_parse(const Csi__V1__VolumeCapability *cap, enum fsimg_type default_fs,
	struct csi_access *ret, struct err *err);
/* A list, as Controller RPCs carry; it must not be empty, nor mix block and mount. */
int csi_access_parse_list(Csi__V1__VolumeCapability **caps, size_t n, enum fsimg_type default_fs,
	bool many, struct csi_access *ret, struct err *err);
/* 0, or ERR_INVALID: several nodes are asked for, and the volume is one node's (remote: it is not).
 */
int csi_access_check_nodes(const struct csi_access *access, bool remote, struct err *err);

#endif
