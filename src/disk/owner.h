/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which node serves a pool: its first disk's header says so. A node is its name (`--node-id`) and
 * its machine: DMI's product uuid, or where there is none the machine-id. Both outlive a reboot and
 * belong to no pod.
 */
#ifndef RINGVOL_DISK_OWNER_H
#define RINGVOL_DISK_OWNER_H

#include "disk/header.h"

/* "" if nothing says which machine this is. */
void disk_machine(char ret[DISK_MACHINE_MAX]);

/* Whether the owner is the node of that name on this machine; NULL: whatever its name. */
bool disk_owner_is(const struct disk_header *header, const char *node);
/* Whether a node of that name here may serve the disk: nobody does, or itself. ERR_UNAVAILABLE,
 * naming node and since when, and the remedy. node NULL: a command on this machine asks, whatever
 * its node's name. path: the pool's, for the remedy. */
int disk_owner_check(
	const struct disk_header *header, const char *node, const char *path, struct err *err);
/* Makes the node the owner; NULL: nobody. True if that changed the header, which is to be written
 * then. */
bool disk_owner_set(struct disk_header *header, const char *node);

#endif
