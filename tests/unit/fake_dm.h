/* SPDX-License-Identifier: Apache-2.0 */
/* A device mapper in memory that packs and checks as the kernel does (Linux 6.12,
 * drivers/md/dm-ioctl.c). */
#ifndef RINGVOL_TESTS_FAKE_DM_H
#define RINGVOL_TESTS_FAKE_DM_H

#include "disk/dm.h"

enum { FAKE_DM_DEVICES = 16, FAKE_DM_MAJOR = 253, FAKE_DM_MINOR = 300 /* of the first */ };

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

/* dm-thin: which ids each message has left, and what the targets say of themselves. */
enum { FAKE_THIN_IDS = 64, FAKE_THIN_BYTES = 64 << 10 /* one that is not empty has */ };
struct fake_thin {
	uint32_t id, origin; /* origin 0: none */
	bool used;           /* it has bytes */
};
extern struct fake_thin fake_thins[FAKE_THIN_IDS];
extern unsigned fake_thin_count, fake_thin_messages;
extern bool fake_thin_absent;            /* the kernel has no dm-thin */
extern const char *fake_thin_pool_words; /* its status, NULL: made up of what is there */
/* A thin pool's table was loaded, over the metadata that this target leads to; NULL: nobody asks.
 */
extern void (*fake_thin_on_pool)(const struct dm_target *metadata);
/* The id of an origin whose device is not suspended may not be snapped: counts those. */
extern unsigned fake_thin_torn;
/* The most devices of thin volumes that were not suspended when any id was snapped. */
extern unsigned fake_thin_moving;
bool fake_thin_has(uint32_t id);

/* Everything of it is gone, as after a reboot of the kernel; keeps_ids: the metadata are there. */
void fake_dm_reboot(bool keeps_ids);
/* struct dm's call */
int fake_dm_call(struct dm *dm, unsigned long request, struct dm_ioctl *head);

#endif
