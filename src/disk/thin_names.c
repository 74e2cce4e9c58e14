/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files and devices. Owns nothing. */
#include "disk/thin_names.h"

#include <errno.h>
#include <stdio.h>

static const struct {
	const char *file, *device;
} words[THIN_DEVICES] = {
	[THIN_METADATA] = {THIN_METADATA_FILE, "thinmeta"},
	[THIN_DATA] = {THIN_DATA_FILE, "thindata"},
	[THIN_POOL] = {NULL, "thinpool"},
};

const char *thin_file_name(enum thin_device device)
{
	return words[device].file;
}

void thin_names(enum thin_device device, const char *pool_uuid, char ret_name[DM_NAME_LEN],
	char ret_uuid[DM_UUID_LEN])
{
	snprintf(ret_name, DM_NAME_LEN, "ringvol-%s-%.8s", words[device].device, pool_uuid);
	snprintf(ret_uuid, DM_UUID_LEN, DM_OUR_UUID "%s-%.36s", words[device].device, pool_uuid);
}

int thin_number(struct dm *dm, const char *pool_uuid, uint32_t *ret_major, uint32_t *ret_minor)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device device;
	thin_names(THIN_POOL, pool_uuid, name, uuid);
	int r = dm_look(dm, uuid, &device);
	if (r < 0)
		return r;
	if (!device.has_table)
		return -ENXIO;
	*ret_major = device.major;
	*ret_minor = device.minor;
	return 0;
}
