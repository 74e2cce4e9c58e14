/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of docker's jobs (job.h). */
#ifndef RINGVOL_DOCKER_STEPS_H
#define RINGVOL_DOCKER_STEPS_H

#include "reactor/op.h"

extern const struct op_step docker_create_steps[], docker_remove_steps[], docker_mount_steps[],
	docker_unmount_steps[];

#endif
