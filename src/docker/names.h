/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Docker's volumes among the pools'. The volume that docker calls NAME is ringvol's "docker-NAME",
 * and nothing else tells them apart: what CSI makes under such a name is docker's as well.
 *
 * A volume is mounted for each container that has it: at MOUNTS/NAME/mounts/ID, where ID is what
 * docker says with Mount and Unmount, beside MOUNTS/NAME/stage. So the kernel's own list of mounts
 * is the count of who uses it, and survives any restart of the driver.
 */
#ifndef RINGVOL_DOCKER_NAMES_H
#define RINGVOL_DOCKER_NAMES_H

#include "base/arena.h"
#include "docker/request.h"
#include "pool/pool.h"

#define DOCKER_PREFIX "docker-"

/* "docker-NAME"; in the arena, NULL: out of memory. */
char *docker_volume_name(struct arena *arena, const char *name);
/* NULL: there is none; a quarantined one counts. */
struct pool_object *docker_find(const struct pools *pools, struct arena *arena, const char *name);
/* What docker calls a volume; NULL: it is none of docker's, or nobody can tell. */
const char *docker_name_of(const struct pool_object *volume);

/* In the arena; NULL: out of memory. */
char *docker_stage_path(struct arena *arena, const char *mounts, const char *name);
char *docker_mount_path(struct arena *arena, const char *mounts, const char *name, const char *id);
/* Where one of its containers has it, as far as the driver knows; NULL: nowhere. */
const char *docker_mounted_at(
	const struct pool_object *volume, const char *mounts, const char *name);

#endif
