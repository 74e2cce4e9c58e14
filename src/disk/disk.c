/* SPDX-License-Identifier: Apache-2.0 */
/* The open disks of a pool: how long they live, and where an address is. */
#include "disk/disk.h"

#include "base/fd.h"

#include <assert.h>

struct disk *disk_ref(struct disk *disk)
{
	disk->refs++;
	return disk;
}

void disk_unref(struct disk *disk)
{
	if (disk == NULL || --disk->refs != 0)
		return;
	for (unsigned i = 0; i < disk->count; i++)
		fd_close(&disk->members[i].fd);
	free(disk);
}

const struct disk_member *disk_at(
	const struct disk *disk, uint64_t address, uint64_t *ret_offset, uint64_t *ret_bytes)
{
	for (unsigned i = 0; i < disk->count; i++) {
		const struct disk_member *m = &disk->members[i];
		if (address < m->start || address - m->start >= m->bytes)
			continue;
		*ret_offset = m->offset + (address - m->start);
		*ret_bytes = m->bytes - (address - m->start);
		return m;
	}
	return NULL;
}
