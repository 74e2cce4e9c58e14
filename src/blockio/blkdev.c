/* SPDX-License-Identifier: Apache-2.0 */
/* Two attributes of /sys/dev/block/M:N. */
#include "blockio/blkdev.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

static int read_number(uint32_t dev_major, uint32_t dev_minor, const char *name, uint64_t *ret)
{
	char path[64], text[32];
	snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s", dev_major, dev_minor, name);
	ssize_t n = fd_read_file(AT_FDCWD, path, text, sizeof text);
	if (n < 0)
		return (int)n;
	*ret = strtoull(text, NULL, 10);
	return 0;
}

int blkdev_look(uint32_t dev_major, uint32_t dev_minor, struct blkdev *ret)
{
	uint64_t sectors, seq = 0;
	int r = read_number(dev_major, dev_minor, "size", &sectors);
	if (r == 0)
		r = read_number(dev_major, dev_minor, "diskseq", &seq);
	if (r == -ENOENT && seq == 0)
		r = read_number(
			dev_major, dev_minor, "size", &sectors); /* an old kernel, or gone */
	if (r < 0)
		return r == -ENODEV || r == -ENXIO ? -ENOENT : r;
	*ret = (struct blkdev){.size_bytes = sectors * 512, .seq = seq};
	return 0;
}
