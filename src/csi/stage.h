/* SPDX-License-Identifier: Apache-2.0 */
/* NodeStageVolume's state, and the parts of its steps that look before there is a device
 * (stage_checks.c). The table of steps is in stage.c. */
#ifndef RINGVOL_CSI_STAGE_H
#define RINGVOL_CSI_STAGE_H

#include "blockio/blkdev.h"
#include "csi/volume_op.h"
#include "pool/thin_keep.h"

struct stage {
	struct volume_op n;
	/* Where the file system is mounted, or is to be: the orchestrator's staging path; of a
	 * publish without staging, a place where the volume is published already, or the target. */
	const char *staging_path;
	const char *field; /* of the request, that the path is from */
	bool whole;        /* a publish without staging (publish.c): the path may be missing */
	bool whole_read_only;
	bool mounted; /* found mounted as it should be */
	bool attached;
	bool attached_here;  /* this attempt attached the device */
	bool attached_first; /* likewise, and no earlier run had */
	bool offline_growth; /* ext4 grows only before it is mounted */
	bool in_use;         /* somebody has the device for itself */
	bool asked;          /* the mount was refused, and the device's user looked for */
	struct blkdev_holder holder;
	unsigned attempts; /* to have the device alone, and the pauses between */
	int dirfd;
	const char *image;
	/* Of a block volume that is to be mounted: its capability, which is parsed again when the
	 * type of its file system is known, and why that file system is not mounted. */
	const Csi__V1__VolumeCapability *cap;
	struct csi_access other_access;
	struct err other_err;
	const char *unfit;
	struct thin_wait thin_wait;
	struct fsimg_probe probe;
	uint8_t uuid[16];
	char uuid_text[FSIMG_UUID_TEXT_BYTES];
	struct proc proc;
	struct node_others others;
	struct mnt_mount_req mount;
	struct mnt_label label; /* of what was found mounted */
};

#define stage_of(op_ptr) container_of(volume_op_of(op_ptr), struct stage, n)

/* A volume has one staging path. */
bool stage_elsewhere_done(struct op *op);
int stage_elsewhere_run(struct op *op);
int stage_elsewhere_end(struct op *op, int res);
/* A volume is used in one mode at a time. Only some volumes can be used in the other one at all. */
bool stage_mode_done(struct op *op);
int stage_mode_run(struct op *op);
int stage_mode_end(struct op *op, int res);
/* Waits for tools of a run that was killed. A fresh device is nobody's, and a mounted one is the
 * file system's. */
bool stage_tools_done(struct op *op);
int stage_tools_run(struct op *op);
int stage_tools_end(struct op *op, int res);
/* A work job: -EBUSY while somebody has the device for itself. arg: the stage. */
int stage_users_job(void *arg);
/* The image holds what is to be mounted; if it is encrypted, its device does. */
bool stage_probe_done(struct op *op);
bool stage_probe_device_done(struct op *op);
int stage_probe_call(struct op *op);
int stage_probe_end(struct op *op, int res);

#endif
