/* SPDX-License-Identifier: Apache-2.0 */
/* The disks of the pools that are loaded in this process: a short table under a mutex. */
#include "disk/disk.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
	UUID8_BYTES = 9,
	PUBLISHED_MAX = 32, /* more than a driver has pools */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	char uuid8[UUID8_BYTES];
	struct disk *disk; /* a reference; NULL: nobody has the row */
} rows[PUBLISHED_MAX];

/* The row of that pool; else a free one if `or_free`; else -1. */
static int find(const char *uuid8, bool or_free)
{
	int empty = -1;
	for (int i = PUBLISHED_MAX - 1; i >= 0; i--) {
		if (rows[i].disk == NULL)
			empty = i;
		else if (strncmp(rows[i].uuid8, uuid8, UUID8_BYTES - 1) == 0)
			return i;
	}
	return or_free ? empty : -1;
}

void disk_publish(const char *uuid8, struct disk *disk)
{
	struct disk *before = NULL;
	pthread_mutex_lock(&lock);
	int row = find(uuid8, disk != NULL);
	if (row >= 0) {
		before = rows[row].disk;
		rows[row].disk = disk != NULL ? disk_ref(disk) : NULL;
		snprintf(rows[row].uuid8, UUID8_BYTES, "%.8s", uuid8);
	}
	assert(row >= 0 || disk == NULL);
	pthread_mutex_unlock(&lock);
	disk_unref(before);
}

struct disk *disk_published(const char *uuid8)
{
	pthread_mutex_lock(&lock);
	int row = find(uuid8, false);
	struct disk *disk = row >= 0 ? disk_ref(rows[row].disk) : NULL;
	pthread_mutex_unlock(&lock);
	return disk;
}
