/* SPDX-License-Identifier: Apache-2.0 */
/* What sysfs says of a block device of any kind. It waits for no device: two small files, 10 us. */
#ifndef RINGVOL_BLOCKIO_BLKDEV_H
#define RINGVOL_BLOCKIO_BLKDEV_H

#include <stdint.h>

struct blkdev {
	uint64_t size_bytes; /* 0: nothing is bound to it */
	uint64_t seq; /* diskseq: another one for whatever is bound to it next; 0 before Linux 5.15
		       */
};

/* 0; -ENOENT: no such device. */
int blkdev_look(uint32_t dev_major, uint32_t dev_minor, struct blkdev *ret);

#endif
