/* SPDX-License-Identifier: Apache-2.0 */
/* A device mapper in memory that packs and checks as the kernel does (Linux 6.12,
 * drivers/md/dm-ioctl.c). */
#ifndef RINGVOL_TESTS_FAKE_DM_H
#define RINGVOL_TESTS_FAKE_DM_H

#include "disk/dm.h"

enum { FAKE_DM_DEVICES = 4, FAKE_DM_MAJOR = 253, FAKE_DM_MINOR = 300 /* of the first */ };

struct fake_table {
	struct dm_target targets[DM_TARGETS_MAX];
	unsigned count;
	bool read_only;
};

struct fake_device {
	bool there, suspended, deferred, read_only;
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	unsigned open;
	struct fake_table now, next;
};

/* All of them, and how often tables were loaded and swapped in. */
extern struct fake_device fake_dm_devices[FAKE_DM_DEVICES];
extern unsigned fake_dm_loads, fake_dm_resumes;
/* The next call of that request fails so; after it none does. */
extern int fake_dm_fail_with;
extern unsigned long fake_dm_fail_request;

/* struct dm's call */
int fake_dm_call(struct dm *dm, unsigned long request, struct dm_ioctl *head);

#endif
