/* SPDX-License-Identifier: Apache-2.0 */
/* One volume as two devices: from the one to the other. Nothing fails. */
#include "backends/crypt/crypt_stack.h"

#include "blockio/blkdev.h"
#include "blockio/luks_room.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void crypt_put_over(const struct crypt_dev *crypt, struct backend_dev *dev)
{
	uint32_t dev_major, dev_minor;
	backend_dev_below(dev, &dev_major, &dev_minor);
	dev->below_major = dev_major;
	dev->below_minor = dev_minor;
	dev->major = crypt->major;
	dev->minor = crypt->minor;
	dev->crypt = true;
	dev->bare = false;
	dev->size_bytes = crypt->size_bytes;
	dev->read_only = crypt->read_only;
	dev->going_away |= crypt->going_away;
	memcpy(dev->tag, crypt->tag, sizeof(dev->tag));
	snprintf(dev->path, sizeof(dev->path), "/dev/dm-%u", crypt->minor);
}

bool crypt_add(const struct crypt_dev *crypt, struct backend_dev *dev)
{
	bool over = !crypt->foreign && crypt->below_major != 0 && dev->below_major == 0 &&
		    crypt->image_ino == dev->image_ino && crypt->below_major == dev->major &&
		    crypt->below_minor == dev->minor;
	if (over)
		crypt_put_over(crypt, dev);
	return over;
}

/* The node of a device by its number: by the backend's rule, or as sysfs has it. */
static void node_path(
	enum backend_type type, uint32_t dev_major, uint32_t dev_minor, char *ret, size_t size)
{
	char name[24];
	if (type == BACKEND_UBLK) {
		if (blkdev_name(dev_major, dev_minor, name, sizeof(name)) < 0)
			name[0] = '\0';
		snprintf(ret, size, "/dev/%s", name);
		return;
	}
	snprintf(ret, size, "/dev/%s%u", type == BACKEND_LOOP ? "loop" : "dm-", dev_minor);
}

struct backend_dev crypt_below(enum backend_type type, const struct backend_dev *dev)
{
	struct backend_dev below = *dev;
	if (!dev->crypt || dev->below_major == 0)
		return below;
	below.major = dev->below_major;
	below.minor = dev->below_minor;
	below.below_major = below.below_minor = 0;
	below.crypt = false;
	below.size_bytes = dev->size_bytes + LUKS_HEADER_BYTES;
	node_path(type, below.major, below.minor, below.path, sizeof(below.path));
	return below;
}
