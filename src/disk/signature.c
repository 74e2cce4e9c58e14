/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/signature.h"

#include "base/fd.h"

#include <blkid/blkid.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static int probe_setup(blkid_probe pr, int fd)
{
	if (blkid_probe_set_device(pr, fd, 0, 0) != 0 ||
		blkid_probe_enable_superblocks(pr, 1) != 0 ||
		blkid_probe_set_superblocks_flags(pr, BLKID_SUBLKS_TYPE | BLKID_SUBLKS_BADCSUM) !=
			0 ||
		blkid_probe_enable_partitions(pr, 1) != 0 ||
		blkid_probe_set_partitions_flags(pr, BLKID_PARTS_FORCE_GPT) != 0)
		return errno > 0 ? -errno : -EIO;
	return 0;
}

static int find(blkid_probe pr, int fd, char *name, size_t cap)
{
	const char *value = NULL;
	errno = 0;
	int r = probe_setup(pr, fd);
	if (r < 0)
		return r;
	errno = 0;
	r = blkid_do_probe(pr);
	if (r == 1)
		return 0;
	if (r < 0)
		return errno > 0 ? -errno : -EIO;
	if (blkid_probe_lookup_value(pr, "TYPE", &value, NULL) == 0)
		snprintf(name, cap, "%s", value);
	else if (blkid_probe_lookup_value(pr, "PTTYPE", &value, NULL) == 0)
		snprintf(name, cap, "a partition table (%s)", value);
	else
		snprintf(name, cap, "something unknown");
	return 1;
}

int disk_signature(int fd, char *ret_name, size_t cap)
{
	/* An open file of its own: libblkid moves the position and reads unaligned. */
	char path[40];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	_cleanup_fd_ int own_fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (own_fd < 0)
		return -errno;
	blkid_probe pr = blkid_new_probe();
	if (pr == NULL)
		return -ENOMEM;
	int r = find(pr, own_fd, ret_name, cap);
	blkid_free_probe(pr);
	return r;
}

bool disk_signature_is_leg(const char *name)
{
	static const char *const legs[] = {
		"linux_raid_member", "ddf_raid_member", "isw_raid_member", "mpath_member"};
	for (unsigned i = 0; i < sizeof(legs) / sizeof(legs[0]); i++)
		if (strcmp(name, legs[i]) == 0)
			return true;
	return false;
}
