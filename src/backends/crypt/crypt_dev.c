/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at dm-crypt devices, and taking them away. Owns no memory; the kernel keeps all there is
 * to know.
 *
 * Happy path of finding: look -> what is left half goes, what is suspended goes on. Of taking away:
 * look -> a table that leads nowhere, if a process has it open -> remove. How it can fail: the
 * kernel's errno; a name that is another's, a table that is not ours: left alone.
 */
#include "backends/crypt/crypt_dev.h"

#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define NAME_PREFIX "ringvol-crypt-"

enum { GOING_WAIT_MS = 128 }; /* the longest of the waits, each twice the one before */

/* ---- names ---- */

int crypt_dev_names(
	const char *tag, uint64_t image_ino, char ret_name[DM_NAME_LEN], char ret_uuid[DM_UUID_LEN])
{
	char pool[9], random[9];
	int end = 0;
	if (sscanf(tag, "ringvol:%8[0-9a-f]:%8[0-9a-f]%n", pool, random, &end) != 2 ||
		tag[end] != '\0' || strlen(pool) != 8 || strlen(random) != 8)
		return -EINVAL;
	snprintf(ret_name, DM_NAME_LEN, NAME_PREFIX "%s-%s-%" PRIx64, pool, random, image_ino);
	snprintf(
		ret_uuid, DM_UUID_LEN, CRYPT_UUID_PREFIX "%s-%s-%" PRIx64, pool, random, image_ino);
	return 0;
}

/* The tag and inode that a name says. */
static bool parse_name(const char *name, char ret_tag[64], uint64_t *ret_ino)
{
	char pool[9], random[9], again[DM_NAME_LEN], uuid[DM_UUID_LEN];
	if (sscanf(name, NAME_PREFIX "%8[0-9a-f]-%8[0-9a-f]-%" SCNx64, pool, random, ret_ino) != 3)
		return false;
	snprintf(ret_tag, 64, "ringvol:%s:%s", pool, random);
	return crypt_dev_names(ret_tag, *ret_ino, again, uuid) == 0 && strcmp(name, again) == 0;
}

/* ---- looking ---- */

static int look_at(struct dm *dm, const struct dm_device *device, struct crypt_dev *ret)
{
	struct dm_target target;
	unsigned count = 0;
	ret->major = device->major;
	ret->minor = device->minor;
	ret->half = !device->has_table;
	ret->suspended = device->suspended;
	ret->read_only = device->read_only;
	ret->going_away = device->going_away;
	ret->open = device->open_count > 0;
	if (ret->half)
		return 0;
	int r = dm_shape(dm, device->uuid, &target, 1, &count);
	if (r < 0)
		return r;
	bool whole = count == 1 && target.start_sectors == 0 &&
		     target.length_sectors <= UINT64_MAX / DM_SECTOR_BYTES;
	ret->retired = whole && strcmp(target.type, "error") == 0;
	ret->foreign = !ret->retired && !(whole && strcmp(target.type, "crypt") == 0);
	if (ret->foreign)
		return 0;
	ret->size_bytes = target.length_sectors * DM_SECTOR_BYTES;
	return ret->retired ? 0 : dm_below(dm, device->uuid, &ret->below_major, &ret->below_minor);
}

int crypt_dev_look(struct dm *dm, const char *tag, uint64_t image_ino, struct crypt_dev *ret)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device device;
	*ret = (struct crypt_dev){.image_ino = image_ino};
	snprintf(ret->tag, sizeof(ret->tag), "%s", tag);
	int r = crypt_dev_names(tag, image_ino, name, uuid);
	if (r == 0)
		r = dm_look(dm, uuid, &device);
	if (r == -ENXIO && dm_look_name(dm, name, &device) == 0)
		return -EEXIST;
	if (r < 0)
		return r;
	/* Renamed by somebody. */
	return strcmp(device.name, name) != 0 ? -EEXIST : look_at(dm, &device, ret);
}

/* ---- finding ---- */

/* Once the kernel has taken away the last one, or somebody keeps it from that. */
static int look_until_gone(
	struct dm *dm, const char *tag, uint64_t image_ino, struct crypt_dev *ret)
{
	int r = crypt_dev_look(dm, tag, image_ino, ret);
	for (unsigned ms = 1; r == 0 && ret->going_away && ms <= GOING_WAIT_MS; ms *= 2) {
		clock_sleep_ms(ms);
		r = crypt_dev_look(dm, tag, image_ino, ret);
	}
	return r;
}

static int refuse(const struct crypt_dev *dev, const char *name, uint32_t below_major,
	uint32_t below_minor, struct err *err)
{
	if (dev->going_away || dev->retired)
		return err_set(err, ERR_PRECONDITION,
			"the volume's device /dev/dm-%u was let go and a process or mount still has it open: end that use (fuser -vm /dev/dm-%u)",
			dev->minor, dev->minor);
	if (dev->foreign)
		return err_set(err, ERR_PRECONDITION,
			"the device %s (/dev/dm-%u) has a table that is not ours: see 'dmsetup table %s', and remove it with 'dmsetup remove %s'",
			name, dev->minor, name, name);
	if (dev->below_major != below_major || dev->below_minor != below_minor)
		return err_set(err, ERR_PRECONDITION,
			"the device %s (/dev/dm-%u) stands over %u:%u and not over %u:%u, where the volume's image is: remove it with 'dmsetup remove %s'",
			name, dev->minor, dev->below_major, dev->below_minor, below_major,
			below_minor, name);
	return 0;
}

int crypt_dev_find(struct dm *dm, const char *tag, uint64_t image_ino, uint32_t below_major,
	uint32_t below_minor, struct crypt_dev *ret, struct err *err)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device device;
	int r = crypt_dev_names(tag, image_ino, name, uuid);
	if (r < 0)
		return err_sys(err, r, "an encrypted image with the tag %s", tag);
	r = look_until_gone(dm, tag, image_ino, ret);
	if (r == 0 && (ret->half || (ret->retired && !ret->open))) {
		r = crypt_dev_sweep(dm, tag, image_ino, err);
		return r == 0 ? -ENXIO : r;
	}
	if (r == -EEXIST)
		return err_set(err, ERR_PRECONDITION,
			"a device-mapper device has the name %s, or another name with its uuid, and is not ours: see 'dmsetup info -c' and remove or rename it with dmsetup",
			name);
	if (r < 0 && r != -ENXIO)
		return err_sys(err, r, "looking at the device-mapper device %s", name);
	if (r == 0)
		r = refuse(ret, name, below_major, below_minor, err);
	if (r < 0 || !ret->suspended)
		return r;
	r = dm_resume(dm, uuid, &device);
	return r < 0 ? err_sys(err, r, "resuming the device-mapper device %s", name) : 0;
}

/* ---- removing ---- */

static int remove_named(struct dm *dm, const char *tag, uint64_t image_ino, struct err *err)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	bool waits;
	int r = crypt_dev_names(tag, image_ino, name, uuid);
	if (r == 0)
		r = dm_remove(dm, uuid, &waits);
	return r < 0 ? err_sys(err, r, "removing the device-mapper device %s", name) : 0;
}

int crypt_dev_sweep(struct dm *dm, const char *tag, uint64_t image_ino, struct err *err)
{
	struct crypt_dev dev;
	int r = crypt_dev_look(dm, tag, image_ino, &dev);
	if (r == -ENXIO || r == -EEXIST || r == -EINVAL)
		return 0;
	if (r < 0)
		return err_sys(err, r, "looking at the dm-crypt device of %s", tag);
	if (dev.half || (dev.retired && !dev.open))
		return remove_named(dm, tag, image_ino, err);
	return 0;
}

/* Whether somebody has the device for himself: a mount in any mount namespace, a device on it.
 * Where that cannot be known he counts as one who has; without a node or device nobody does. */
static bool is_claimed(const struct crypt_dev *dev, int *ret_node_fd)
{
	char path[32];
	struct stat st;
	snprintf(path, sizeof(path), "/dev/dm-%u", dev->minor);
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_EXCL | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno != ENOENT && errno != ENXIO;
	if (fstat(fd, &st) < 0 || !S_ISBLK(st.st_mode) ||
		st.st_rdev != makedev(dev->major, dev->minor))
		return false;
	*ret_node_fd = fd;
	fd = -1;
	return false;
}

/* Lets go of the device below, and with it of the key. What a process wrote that has the device
 * open may be in memory yet; what cannot be written must still be let go. */
static int retire(struct dm *dm, const struct crypt_dev *dev, int node_fd)
{
	const struct dm_target table = {
		.length_sectors = dev->size_bytes / DM_SECTOR_BYTES, .type = "error"};
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device now;
	if (node_fd >= 0)
		(void)fsync(node_fd);
	int r = crypt_dev_names(dev->tag, dev->image_ino, name, uuid);
	if (r == 0)
		r = dm_load(dm, uuid, &table, 1, false);
	return r == 0 ? dm_resume(dm, uuid, &now) : r;
}

int crypt_dev_remove(struct dm *dm, const char *tag, uint64_t image_ino, struct err *err)
{
	struct crypt_dev dev;
	int r = crypt_dev_look(dm, tag, image_ino, &dev);
	if (r == -ENXIO || r == -EEXIST || r == -EINVAL || (r == 0 && dev.foreign))
		return 0;
	if (r < 0)
		return err_sys(err, r, "looking at the dm-crypt device of %s", tag);
	_cleanup_fd_ int node_fd = -1;
	/* Without its help the removal below frees the device, and waits for that. */
	if (dev.open && !dev.half && !dev.retired && !is_claimed(&dev, &node_fd))
		(void)retire(dm, &dev, node_fd);
	fd_close(&node_fd);
	return remove_named(dm, tag, image_ino, err);
}

/* ---- all of them ---- */

struct names {
	struct dm *dm;
	void (*each)(void *arg, const struct crypt_dev *dev);
	void *arg;
	int res;
};

/* One that goes while it is looked at is not there. */
static void on_name(void *arg, const char *name, uint32_t dev_major, uint32_t dev_minor)
{
	struct names *names = arg;
	struct crypt_dev dev;
	char tag[64];
	uint64_t ino;
	(void)dev_major;
	(void)dev_minor;
	if (!parse_name(name, tag, &ino))
		return;
	int r = crypt_dev_look(names->dm, tag, ino, &dev);
	if (r == 0)
		names->each(names->arg, &dev);
	else if (r != -ENXIO && r != -EEXIST && names->res == 0)
		names->res = r;
}

int crypt_dev_each(struct dm *dm, void (*each)(void *arg, const struct crypt_dev *dev), void *arg)
{
	struct names names = {dm, each, arg, 0};
	int r = dm_list(dm, on_name, &names);
	return r < 0 ? r : names.res;
}
