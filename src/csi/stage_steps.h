/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps from an image to a device, and to what is mounted at stage.staging_path.
 * NodeStageVolume is these and little else (stage.c); a publish without staging begins with them
 * (publish.c). The order of the rows is the story.
 */
#ifndef RINGVOL_CSI_STAGE_STEPS_H
#define RINGVOL_CSI_STAGE_STEPS_H

#include "csi/stage.h"

/* What the steps need of a stage whose volume was found. */
void stage_begin(struct stage *s, const Csi__V1__VolumeCapability *cap);

bool stage_inspect_done(struct op *op);
int stage_inspect_run(struct op *op);
int stage_inspect_end(struct op *op, int res);
bool stage_thin_done(struct op *op);
int stage_thin_run(struct op *op);
int stage_thin_end(struct op *op, int res);
bool stage_attach_done(struct op *op);
int stage_attach_run(struct op *op);
int stage_attach_end(struct op *op, int res);
int stage_attach_undo(struct op *op);
int stage_probe_run(struct op *op);
bool stage_check_mount_done(struct op *op);
int stage_check_mount_run(struct op *op);
bool stage_check_label_done(struct op *op);
int stage_check_label_run(struct op *op);
int stage_check_label_end(struct op *op, int res);
bool stage_check_users_done(struct op *op);
int stage_check_users_run(struct op *op);
int stage_check_users_end(struct op *op, int res);
bool stage_fsck_done(struct op *op);
int stage_fsck_run(struct op *op);
int stage_fsck_end(struct op *op, int res);
bool stage_grow_offline_done(struct op *op);
int stage_grow_offline_run(struct op *op);
int stage_grow_offline_end(struct op *op, int res);
bool stage_new_uuid_done(struct op *op);
int stage_new_uuid_run(struct op *op);
bool stage_mount_done(struct op *op);
int stage_mount_run(struct op *op);
int stage_mount_end(struct op *op, int res);
bool stage_remember_done(struct op *op);
int stage_remember_run(struct op *op);
bool stage_grow_done(struct op *op);
int stage_grow_run(struct op *op);
int stage_grow_end(struct op *op, int res);
int stage_plan_growth_run(struct op *op);
int stage_fitted_run(struct op *op);

/* clang-format off */
#define STAGE_STEPS \
	{"key", .run = volume_op_take_key}, \
	{"inspect", .done = stage_inspect_done, .run = stage_inspect_run, .end = stage_inspect_end}, \
	{"check other staging path", .done = stage_elsewhere_done, .run = stage_elsewhere_run, \
		.end = stage_elsewhere_end}, \
	{"check other mode", .done = stage_mode_done, .run = stage_mode_run, .end = stage_mode_end}, \
	{"wait for tools", .done = stage_tools_done, .run = stage_tools_run, \
		.end = stage_tools_end}, \
	{"make durable", .done = volume_op_durable_done, .run = volume_op_durable_run}, \
	{"format", .done = volume_op_first_done, .run = volume_op_first_run, \
		.end = volume_op_first_end}, \
	{"thin pool", .done = stage_thin_done, .run = stage_thin_run, .end = stage_thin_end}, \
	{"probe image", .done = stage_probe_done, .run = stage_probe_run}, \
	{"attach", .done = stage_attach_done, .run = stage_attach_run, .end = stage_attach_end, .undo = stage_attach_undo}, \
	{"probe device", .done = stage_probe_device_done, .call = stage_probe_call, \
		.end = stage_probe_end}, \
	{"check what is mounted", .done = stage_check_mount_done, .run = stage_check_mount_run}, \
	{"check label", .done = stage_check_label_done, .run = stage_check_label_run, .end = stage_check_label_end}, \
	{"plan growth", .done = stage_mount_done, .run = stage_plan_growth_run}, \
	{"look for users", .done = stage_check_users_done, .run = stage_check_users_run, \
		.end = stage_check_users_end}, \
	{"check file system", .done = stage_fsck_done, .run = stage_fsck_run, .end = stage_fsck_end}, \
	{"grow offline", .done = stage_grow_offline_done, .run = stage_grow_offline_run, \
		.end = stage_grow_offline_end}, \
	{"set btrfs uuid", .done = stage_new_uuid_done, .run = stage_new_uuid_run, .end = volume_op_ignore}, \
	{"mount", .done = stage_mount_done, .run = stage_mount_run, .end = stage_mount_end, .flags = OP_COMMIT}, \
	{"remember", .done = stage_remember_done, .run = stage_remember_run}, \
	{"prepare growth", .done = stage_grow_done, .run = volume_op_prepare_growth}, \
	{"grow", .done = stage_grow_done, .run = stage_grow_run, .end = stage_grow_end}, \
	{"clean log", .done = stage_grow_done, .run = volume_op_clean_log}, \
	{"remember growth", .run = stage_fitted_run}
/* clang-format on */

#endif
