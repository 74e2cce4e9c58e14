/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of a StorageClass, and the mutable ones of a VolumeAttributesClass. */
#ifndef RINGVOL_CSI_PARAMS_H
#define RINGVOL_CSI_PARAMS_H

#include "base/arena.h"
#include "csi/access.h"
#include "pool/pool.h"

/* Which file system a class makes, as provisioners have it. */
#define CSI_PARAM_FSTYPE "csi.storage.k8s.io/fstype"

struct csi_params {
	const char *pool; /* name; "default" */
	bool pool_given;  /* otherwise a volume from a source goes to the source's pool */
	/* The golden image that it begins as, where no content source is given; "": it is empty. */
	const char *source;
	unsigned device;                /* enum backend_type */
	unsigned thick;                 /* a bool */
	bool device_given, thick_given; /* otherwise they are as csi_params_settle() says */
	bool fs_given;
	enum fsimg_type fs;
	const char *mkfs_options;
	unsigned block_size;                         /* 0: the pool's */
	unsigned erase;                              /* enum record_erase */
	unsigned snapshot_freeze, allow_mode_change; /* bools */
	unsigned encryption;                         /* enum record_encryption */
	unsigned attach;                             /* enum record_attach */
	struct io_limits limits;
	unsigned given; /* of what can change later: enum csi_mutable */
};

/* What can be changed later. */
enum csi_mutable {
	CSI_READ_IOPS = 1 << 0,
	CSI_WRITE_IOPS = 1 << 1,
	CSI_READ_BANDWIDTH = 1 << 2,
	CSI_WRITE_BANDWIDTH = 1 << 3,
	CSI_LIMITS = (1 << 4) - 1,
	CSI_ERASE = 1 << 4,
	CSI_SNAPSHOT_FREEZE = 1 << 5,
};

/* StorageClass parameters; unknown keys are ERR_INVALID by name, except under csi.storage.k8s.io/.
 */
int csi_params_parse(
	Csi__V1__StringPair **pairs, size_t n, struct csi_params *ret, struct err *err);
/* Adds mutable parameters, which go before a class's. On failure *params is untouched. */
int csi_params_parse_mutable(
	Csi__V1__StringPair **pairs, size_t n, struct csi_params *params, struct err *err);
/* Those limits that are given, over what a volume has. */
void csi_params_lay_limits(const struct csi_params *params, struct io_limits *limits);
/* "namespace/name" of the Kubernetes object that this is made for, of kind "pvc" or
 * "volumesnapshot", as the sidecars' --extra-create-metadata names it; "" if they do not, or where
 * it is no such name. In the arena. */
const char *csi_params_claim(
	struct arena *arena, Csi__V1__StringPair **pairs, size_t n, const char *kind);
/* For requests whose parameters have no keys of ours: ERR_INVALID naming the first, except under
 * csi.storage.k8s.io/. deletionPolicy is taken, if it is one: it is a field of classes of
 * snapshots, which Kubernetes' own tests and people write among the parameters as well. */
int csi_params_check_none(Csi__V1__StringPair **pairs, size_t n, struct err *err);
/* The file system to make: the capability's, else the parameter's, else the source's (FSIMG_NONE:
 * there is no source), else ext4; FSIMG_NONE for block. ERR_INVALID: the two contradict each other,
 * or mkfsOptions do not suit it. */
int csi_params_choose_fs(const struct csi_params *params, const struct csi_access *access,
	enum fsimg_type source_fs, enum fsimg_type *ret, struct err *err);
/* Settles, once the pool is known, what the request did not say and the pool decides: volumes of
 * raw pools are thick and have devices of their own. ERR_PRECONDITION: the request says otherwise.
 */
int csi_params_settle(struct csi_params *params, const struct pool *pool, struct err *err);
/* 0, or why the pool cannot have such a volume. raw: as backend_check(). */
int csi_params_check_pool(
	const struct csi_params *params, const struct pool *pool, bool raw, struct err *err);
/* 0, or why what is deleted of the pool cannot be erased so. */
int csi_params_check_erase(enum record_erase erase, const struct pool *pool, struct err *err);
/* 0 when an existing volume is what parameters and capabilities ask for; else ERR_EXISTS naming
 * what differs. */
int csi_params_compare(const struct csi_params *given, const struct csi_access *access,
	const struct pool_object *volume, struct err *err);
/* Likewise of the mutable parameters that are given. */
int csi_params_compare_mutable(
	const struct csi_params *given, const struct pool_object *volume, struct err *err);

#endif
