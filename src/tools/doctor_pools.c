/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loop devices and pools, by trying: a loop device of an unused number is made on an unnamed file
 * and removed again; what a pool's file system can do is found on unnamed files in it.
 *
 * How it can fail: devices are not allowed, or their nodes do not appear in /dev; a pool is
 * missing, sick or read-only; the system has no unnamed files in memory. Each is a finding.
 */
#include "tools/doctor_findings.h"

#include "base/clock.h"
#include "base/fd.h"
#include "disk/disk.h"
#include "pool/survey.h"
#include "tools/text.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

enum {
	TRY_BYTES = 1 << 20,
	/* Far above the numbers anybody counts to, below the kernel's 2^20. */
	TRY_MINOR = 1048000,
	TRY_MINORS = 500,
	TRY_ATTEMPTS = 16,
	NODE_WAIT_MS = 500,
	REMOVE_WAIT_MS = 2000, /* while udev looks at it */
};

/* ---- a loop device of our own ---- */

/* Made and opened; its number in *ret_minor also when opening failed (-ENOENT). */
static int make_device(int control, uint32_t *ret_minor)
{
	uint32_t minor = TRY_MINOR + (uint32_t)getpid() % TRY_MINORS;
	int r = -EEXIST;
	for (unsigned i = 0; r == -EEXIST && i < TRY_ATTEMPTS; i++, minor++)
		r = ioctl(control, LOOP_CTL_ADD, (unsigned long)minor) < 0 ? -errno : 0;
	if (r < 0)
		return r;
	*ret_minor = --minor;
	char path[32];
	snprintf(path, sizeof(path), "/dev/loop%u", minor);
	for (int ms = 0;; ms += 10) {
		int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
		if (fd >= 0 || errno != ENOENT || ms >= NODE_WAIT_MS)
			return fd >= 0 ? fd : -errno;
		clock_sleep_ms(10);
	}
}

static void remove_device(int control, uint32_t minor)
{
	for (int ms = 0; ms < REMOVE_WAIT_MS; ms += 10) {
		if (ioctl(control, LOOP_CTL_REMOVE, (unsigned long)minor) >= 0 || errno != EBUSY)
			return;
		clock_sleep_ms(10);
	}
}

static int configure(int device, int image, uint32_t block_size, bool *ret_direct_io)
{
	struct loop_config config = {.fd = (uint32_t)image,
		.block_size = block_size,
		.info.lo_flags = LO_FLAGS_DIRECT_IO};
	struct loop_info64 info = {0};
	if (ioctl(device, LOOP_CONFIGURE, &config) < 0)
		return -errno;
	int r = ioctl(device, LOOP_GET_STATUS64, &info) < 0 ? -errno : 0;
	*ret_direct_io = r == 0 && (info.lo_flags & LO_FLAGS_DIRECT_IO) != 0;
	ioctl(device, LOOP_CLR_FD, 0);
	return r;
}

/* Whether image can be a loop device, and with direct I/O. -ENODEV: there are none; -ENOENT: their
 * nodes do not appear; another -errno. */
static int try_loop(int image, uint32_t block_size, bool *ret_direct_io)
{
	_cleanup_fd_ int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	if (control < 0)
		return errno == ENOENT ? -ENODEV : -errno;
	uint32_t minor = 0;
	int device = make_device(control, &minor);
	int r = device < 0 ? device : configure(device, image, block_size, ret_direct_io);
	fd_close(&device);
	if (minor != 0)
		remove_device(control, minor);
	return r;
}

static void look_at_loop(struct doctor *d)
{
	bool direct_io;
	_cleanup_fd_ int image = memfd_create("ringvol-doctor", MFD_CLOEXEC);
	int r = image < 0 || ftruncate(image, TRY_BYTES) < 0 ? -errno
							     : try_loop(image, 512, &direct_io);
	d->loop_usable = r == 0;
	if (r == 0)
		doctor_add(d, DOCTOR_OK, "one was made, used and removed", "");
	else if (r == -ENODEV)
		doctor_add(d, DOCTOR_MISSING, "there is no /dev/loop-control",
			"modprobe loop; in a container, the host's /dev");
	else if (r == -ENOENT)
		doctor_add(d, DOCTOR_MISSING, "a new device does not appear in /dev",
			"give the container the host's /dev");
	else
		doctor_add(d, DOCTOR_MISSING,
			tool_text(&d->args, "making one: %s", strerrordesc_np(-r)),
			r == -EPERM || r == -EACCES
				? "run as root with CAP_SYS_ADMIN; in a container, privileged"
				: "see the kernel log");
}

/* ---- pools ---- */

static bool loop_direct_io(const struct survey *survey, uint32_t align)
{
	bool direct_io = false;
	_cleanup_fd_ int image =
		openat(survey->fds[SURVEY_ROOT], ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	return image >= 0 && ftruncate(image, TRY_BYTES) == 0 &&
	       try_loop(image, align, &direct_io) == 0 && direct_io;
}

static const char *room_text(struct doctor *d, const struct survey *survey)
{
	char free_bytes[TEXT_NUMBER_BYTES], capacity[TEXT_NUMBER_BYTES];
	text_size(survey->free_bytes, free_bytes);
	text_size(survey->capacity_bytes, capacity);
	return tool_text(&d->args, "%s of %s free", free_bytes, capacity);
}

static void add_features(struct doctor *d, const struct survey *survey, const struct fs_features *f)
{
	const char *fs = fs_type_name(f->fs_type);
	const char *room = room_text(d, survey);
	if (!f->tmpfile || !f->xattr) {
		doctor_add(d, DOCTOR_MISSING,
			tool_text(&d->args, "%s has no %s", fs != NULL ? fs : "its file system",
				f->tmpfile ? "trusted.* attributes" : "O_TMPFILE"),
			"put the pool on XFS, btrfs or ext4, and run as root");
		return;
	}
	uint32_t align = f->shared_dio_align > 512 ? f->shared_dio_align : 512;
	bool direct_io = f->direct_io && d->loop_usable && loop_direct_io(survey, align);
	d->pool_usable = true;
	const char *found = tool_text(&d->args, "%s, %s; %s%s; %s; %s; %s", fs != NULL ? fs : "?",
		room, f->no_journal ? "no journal: " FS_NO_JOURNAL "; " : "",
		f->reflink ? "reflink: snapshots and clones share their bytes"
			   : "no reflink: snapshots and clones copy their bytes",
		direct_io         ? "loop with direct I/O"
		: !d->loop_usable ? "loop not tried"
				  : "loop without direct I/O: data is cached twice",
		f->nocow_lies  ? "no thick volumes: it copies on write"
		: f->fallocate ? "thick volumes"
			       : "no thick volumes: it has no fallocate",
		f->nocow_lies ? "no eraseOnDelete: it copies on write"
		: f->discard  ? "eraseOnDelete: discard and zero"
			      : "eraseOnDelete: zero alone, its disk takes no discards");
	const char *remedy = f->no_journal ? FS_NO_JOURNAL_REMEDY "; XFS or btrfs for the pool"
			     : !f->reflink ? "XFS (mkfs.xfs -m reflink=1) or btrfs for the pool"
			     : !direct_io && d->loop_usable
				     ? "a file system and disk that take direct I/O of 4096 bytes"
				     : "";
	doctor_add(d, remedy[0] == '\0' ? DOCTOR_OK : DOCTOR_LIMITED, found, remedy);
}

/* Its records are looked at read-only, so nothing is tried on them; `pool init` has. */
static void add_raw(struct doctor *d, const struct survey *survey)
{
	unsigned disks = survey->disk->count;
	d->pool_usable = true;
	doctor_add(d, DOCTOR_OK,
		tool_text(&d->args,
			"raw, on %u disk%s, the first one %s; %s; thick volumes, whose clones are copied "
			"and whose bytes are always zeroed; thin ones with snapshots and clones that share",
			disks, disks == 1 ? "" : "s", survey->disk->members[0].path,
			room_text(d, survey)),
		"");
}

static void look_at_pool(struct doctor *d, const struct inventory_pool *pool)
{
	struct survey survey;
	struct fs_features features = {0};
	doctor_begin(d, tool_text(&d->args, "pool %s", pool->name), false);
	survey_open(&survey, pool->path, SURVEY_LOOK);
	if (survey.state != POOL_READY) {
		const char *why = tool_text(&d->args, "%s", survey.why);
		char *remedy = strstr(why, ": ");
		bool init = remedy != NULL && strstr(remedy, "pool init") != NULL;
		if (init)
			*remedy = '\0';
		doctor_add(d, DOCTOR_MISSING, why,
			init ? remedy + 2
			: disk_is_raw_pool(pool->path)
				? TOOL_RAW_REMEDY
				: "mount the pool's file system there, or name another with --pool");
		survey_close(&survey);
		return;
	}
	int r = survey.disk != NULL ? 0 : fs_features_probe(survey.fds[SURVEY_ROOT], &features);
	if (survey.disk != NULL)
		add_raw(d, &survey);
	else if (r < 0)
		doctor_add(d, DOCTOR_MISSING,
			tool_text(&d->args, "trying what %s can do: %s", pool->path,
				strerrordesc_np(-r)),
			r == -ENOSPC ? "make room" : "run as root; see the kernel log");
	else
		add_features(d, &survey, &features);
	survey_close(&survey);
}

/* One usable pool is enough; each by itself may be missing. */
static void look_at_pools(struct doctor *d)
{
	for (unsigned i = 0; i < d->args.pool_count; i++)
		look_at_pool(d, &d->args.pools[i]);
	doctor_begin(d, "pools", true);
	if (!d->pool_usable)
		doctor_add(d, DOCTOR_MISSING, "no pool can be used",
			"ringvol pool init PATH, then name it with --pool or RINGVOL_POOLS");
}

const struct doctor_check doctor_pools_checks[] = {
	{"loop devices", true, look_at_loop},
	{"pools", false, look_at_pools},
	{NULL},
};
