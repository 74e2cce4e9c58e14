/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child that opens an encrypted volume. Owns the key for as long as it lives.
 *
 * Happy path of opening: read the order -> lock the header -> (format) -> the volume key -> make
 * the dm-crypt device -> load its table -> swap it in. Of growing: read the table back, load it
 * with the length that the device below has now, swap it in. A kill in between leaves a device
 * without a table in use, which the driver takes away. How it can fail: as enum luks_code has it.
 *
 * The volume's key is a part of the table, not a key of the kernel's keyrings: what grows the
 * device months later has no key but that one, and a keyring of root's is open to every process of
 * that user, in pods too.
 */
#include "backends/crypt/luks.h"

#include "backends/crypt/luks_header.h"
#include "backends/crypt/luks_lib.h"
#include "base/fd.h"
#include "base/process.h"
#include "blockio/luks_room.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DM_CRYPT_SYSFS "/sys/module/dm_crypt"
enum { ROOM_BYTES = 80 << 20 }; /* for Argon2id's 64 MiB */

/* Static, so that no copy of a key is on a stack. */
static struct {
	uint8_t order[LUKS_ORDER_BYTES_MAX + 1];
	struct luks_shape shape;
	struct dm_target target;
} keys;

static enum luks_code fail(struct luks_says *says, enum luks_code code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static enum luks_code fail(struct luks_says *says, enum luks_code code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(says->text, sizeof(says->text), fmt, ap);
	va_end(ap);
	return code;
}

/* ---- the device below ---- */

static enum luks_code open_below(
	const struct luks_order *order, int *ret_fd, uint64_t *ret_sectors, struct luks_says *says)
{
	struct stat st;
	uint64_t bytes;
	_cleanup_fd_ int fd = order->what == LUKS_OPEN
				      ? LUKS_DEVICE_FD
				      : open(order->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return fail(
			says, LUKS_FAILED, "opening %s: %s", order->path, strerrordesc_np(errno));
	if (!S_ISBLK(st.st_mode) || st.st_rdev != makedev(order->major, order->minor))
		return fail(says, LUKS_FAILED, "%s is not the device %u:%u", order->path,
			order->major, order->minor);
	if (ioctl(fd, BLKGETSIZE64, &bytes) < 0)
		return fail(says, LUKS_FAILED, "asking %s for its size: %s", order->path,
			strerrordesc_np(errno));
	if (bytes <= LUKS_HEADER_BYTES)
		return fail(says, LUKS_OTHER_SHAPE, "%s has no room behind the LUKS2 header",
			order->path);
	*ret_sectors = (bytes - LUKS_HEADER_BYTES) / DM_SECTOR_BYTES;
	*ret_fd = fd;
	fd = -1;
	return LUKS_OK;
}

/* The library writes zeros up to where the data begins. */
static void give_back_room(int fd)
{
	const uint64_t range[] = {LUKS_USED_BYTES, LUKS_HEADER_BYTES - LUKS_USED_BYTES};
	(void)ioctl(fd, BLKDISCARD, range);
}

/* ---- the table ---- */

static void put_table(const struct luks_order *order, const struct luks_shape *shape,
	uint64_t sectors, bool queues, struct dm_target *ret)
{
	uint64_t unit = shape->sector_bytes / DM_SECTOR_BYTES;
	char hex[2 * LUKS_VOLUME_KEY_BYTES + 1];
	for (unsigned i = 0; i < LUKS_VOLUME_KEY_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", shape->volume_key[i]);
	*ret = (struct dm_target){.length_sectors = sectors / unit * unit, .type = "crypt"};
	unsigned options = !order->no_discard + !queues * 2 + (unit != 1);
	int len = snprintf(ret->params, sizeof(ret->params), "aes-xts-plain64 %s 0 %u:%u %" PRIu64,
		hex, order->major, order->minor, LUKS_HEADER_BYTES / DM_SECTOR_BYTES);
	if (options != 0)
		len += snprintf(ret->params + len, sizeof(ret->params) - (size_t)len, " %u%s%s%s",
			options, order->no_discard ? "" : " allow_discards",
			queues ? "" : " no_read_workqueue no_write_workqueue",
			unit == 1 ? "" : " sector_size:4096");
	secret_wipe(hex, sizeof(hex));
}

/* No name of a target that the kernel knows, and nothing that it could load. */
static enum luks_code refuse_table(const struct luks_order *order, int res, struct luks_says *says)
{
	if (res == -EINVAL && access(DM_CRYPT_SYSFS, F_OK) < 0)
		return fail(says, LUKS_NO_DM_CRYPT,
			"the kernel has no dm-crypt: load its module (modprobe dm_crypt)");
	if (res == -ENOENT)
		return fail(says, LUKS_NO_DM_CRYPT,
			"the kernel has no aes-xts-plain64: load its modules (modprobe xts aes)");
	return fail(says, LUKS_FAILED, "loading the table of the device-mapper device %s: %s",
		order->name, strerrordesc_np(-res));
}

static enum luks_code swap_in(
	struct dm *dm, const struct luks_order *order, bool read_only, struct luks_says *says)
{
	struct dm_device device;
	int r = dm_load(dm, order->uuid, &keys.target, 1, read_only);
	if (r < 0)
		return refuse_table(order, r, says);
	r = dm_resume(dm, order->uuid, &device);
	return r < 0 ? fail(says, LUKS_FAILED,
			       "swapping in the table of the device-mapper device %s: %s",
			       order->name, strerrordesc_np(-r))
		     : LUKS_OK;
}

static enum luks_code open_dm(struct dm *ret, struct luks_says *says)
{
	int r = dm_open(ret, DM_CONTROL_PATH);
	if (r < 0)
		return fail(says, LUKS_NO_DM_CRYPT,
			"the device mapper cannot be used (%s: %s): load its module (modprobe dm_mod)",
			DM_CONTROL_PATH, strerrordesc_np(-r));
	ret->secret = true;
	return LUKS_OK;
}

/* ---- orders ---- */

static enum luks_code make_device(
	const struct luks_order *order, uint64_t sectors, struct luks_says *says)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct dm_device device;
	bool waits;
	enum luks_code code = open_dm(&dm, says);
	if (code != LUKS_OK)
		return code;
	int r = dm_create(&dm, order->name, order->uuid, &device);
	if (r < 0)
		return fail(says, LUKS_FAILED, "making the device-mapper device %s: %s",
			order->name, strerrordesc_np(-r));
	/* Linux 5.9 and newer do without work queues where they can. */
	put_table(order, &keys.shape, sectors, false, &keys.target);
	code = swap_in(&dm, order, order->read_only, says);
	if (code == LUKS_FAILED) {
		put_table(order, &keys.shape, sectors, true, &keys.target);
		code = swap_in(&dm, order, order->read_only, says);
	}
	if (code != LUKS_OK)
		(void)dm_remove(&dm, order->uuid, &waits);
	return code;
}

static enum luks_code do_open(const struct luks_order *order, struct luks_says *says)
{
	const struct luks_key key = {order->key, order->key_len};
	_cleanup_fd_ int fd = -1;
	char path[32];
	uint64_t sectors;
	struct err err = {0};
	if (luks_load(&err) < 0)
		return fail(says, LUKS_NO_LIBRARY, "%.250s", err.message);
	enum luks_code code = open_below(order, &fd, &sectors, says);
	if (code == LUKS_OK)
		code = luks_header_lock(fd, says);
	if (code != LUKS_OK)
		return code;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (order->format)
		code = luks_header_format(path, order->sector_bytes, &key, says);
	if (order->format && code == LUKS_OK && !order->no_discard)
		give_back_room(fd);
	if (code == LUKS_OK)
		code = luks_header_unlock(path, &key, &keys.shape, says);
	return code == LUKS_OK ? make_device(order, sectors, says) : code;
}

static enum luks_code do_grow(const struct luks_order *order, struct luks_says *says)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	_cleanup_fd_ int fd = -1;
	struct dm_device device;
	uint64_t sectors;
	unsigned count = 0;
	int read_only = 0;
	enum luks_code code = open_below(order, &fd, &sectors, says);
	if (code == LUKS_OK)
		code = open_dm(&dm, says);
	if (code != LUKS_OK)
		return code;
	int r = dm_table(&dm, order->uuid, &keys.target, 1, &count);
	if (r < 0 || count != 1 || strcmp(keys.target.type, "crypt") != 0)
		return fail(says, LUKS_FAILED,
			"reading the table of the device-mapper device %s: %s", order->name,
			r < 0 ? strerrordesc_np(-r) : "it is not one of dm-crypt");
	uint64_t unit = strstr(keys.target.params, " sector_size:4096") != NULL ? 8 : 1;
	sectors = sectors / unit * unit;
	if (sectors <= keys.target.length_sectors)
		return LUKS_OK;
	keys.target.length_sectors = sectors;
	(void)ioctl(fd, BLKROGET, &read_only);
	/* Where it alone was made read-only, for a publish, it stays so. */
	bool itself = dm_look(&dm, order->uuid, &device) == 0 && device.read_only;
	return swap_in(&dm, order, read_only != 0 || itself, says);
}

/* ---- the process ---- */

/* Where it may. The pages come when they are used, or a library would count with all of its text.
 * What is mapped later fails where the limit is small, which must not fail a key slot. */
static void lock_memory(void)
{
	if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) < 0)
		return;
	void *tried = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (tried == MAP_FAILED)
		munlockall();
	else
		munmap(tried, ROOM_BYTES);
	(void)mlock(&keys, sizeof(keys));
}

static ssize_t read_all(int fd, uint8_t *buf, size_t cap)
{
	size_t len = 0;
	for (;;) {
		ssize_t n = read(fd, buf + len, cap - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : (ssize_t)len;
		len += (size_t)n;
	}
}

/* The next driver looks for devices once: none may appear behind its back. It waits for the lock
 * that we have as an open file, which a child that was killed in a call into the kernel keeps until
 * that call has ended. This is what makes that wait short. */
static void end_with_driver(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int luks_main(int fd)
{
	struct luks_order order;
	struct luks_says says = {""};
	enum luks_code code;
	end_with_driver();
	process_hide_memory();
	lock_memory();
	ssize_t len = read_all(fd, keys.order, sizeof(keys.order));
	if (len < 0 || luks_order_parse(keys.order, (size_t)len, &order) < 0)
		code = fail(&says, LUKS_FAILED, "this is no order of the driver's");
	else if (getppid() != order.driver) /* it died before the kernel was told */
		code = fail(&says, LUKS_FAILED, "the driver that gave the order has ended");
	else
		code = order.what == LUKS_OPEN ? do_open(&order, &says) : do_grow(&order, &says);
	secret_wipe(&keys, sizeof(keys));
	if (code != LUKS_OK)
		printf("\n" LUKS_SAYS "%s\n", says.text);
	return code;
}
