/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is on an image: libblkid finds any signature there is (never format what holds data), own
 * code reads the few superblock fields ringvol acts on. Fails with what reading fails with; strange
 * contents are no failure but a finding.
 */
#include "blockio/fsimg.h"

#include "base/fd.h"

#include <blkid/blkid.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum {
	EXT4_SB_OFFSET = 1024,
	EXT4_SB_BYTES = 1024,
	EXT4_MAGIC = 0xef53,
	EXT4_STATE_ERRORS = 2,
	EXT4_COMPAT_HAS_JOURNAL = 0x4,
	EXT4_INCOMPAT_RECOVER = 0x4,
	EXT4_INCOMPAT_64BIT = 0x80,
	XFS_SB_BYTES = 512,
	BTRFS_SB_OFFSET = 64 * 1024,
	BTRFS_SB_BYTES = 4096,
	HEAD_BYTES = 4096,
};

/* ---- superblocks: false when it is not one after all ---- */

static uint16_t le16_at(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return le16toh(v);
}

static uint32_t le32_at(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return le32toh(v);
}

static uint64_t le64_at(const uint8_t *p)
{
	return le32_at(p) | (uint64_t)le32_at(p + 4) << 32;
}

static uint32_t be32_at(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return be32toh(v);
}

static uint64_t be64_at(const uint8_t *p)
{
	return (uint64_t)be32_at(p) << 32 | be32_at(p + 4);
}

/* blocks * block_bytes, or UINT64_MAX: larger than any device, so that nobody trusts it. */
static uint64_t fs_bytes(uint64_t blocks, uint64_t block_bytes)
{
	uint64_t bytes;
	return __builtin_mul_overflow(blocks, block_bytes, &bytes) ? UINT64_MAX : bytes;
}

static bool read_ext4(const uint8_t *sb, struct fsimg_probe *ret)
{
	uint32_t log_block = le32_at(sb + 0x18);
	if (le16_at(sb + 0x38) != EXT4_MAGIC || log_block > 6)
		return false;
	uint32_t incompat = le32_at(sb + 0x60);
	uint64_t blocks = le32_at(sb + 0x4);
	if (incompat & EXT4_INCOMPAT_64BIT)
		blocks |= (uint64_t)le32_at(sb + 0x150) << 32;
	ret->fs_bytes = fs_bytes(blocks, 1024ULL << log_block);
	memcpy(ret->uuid, sb + 0x68, 16);
	ret->errors = le16_at(sb + 0x3a) & EXT4_STATE_ERRORS;
	ret->dirty = incompat & EXT4_INCOMPAT_RECOVER;
	/* The journal is on another device, by number: whoever wrote this chose one of the node's.
	 * Without an inode it is nowhere else. */
	ret->needs_more =
		le32_at(sb + 0xe4) != 0 ||
		((le32_at(sb + 0x5c) & EXT4_COMPAT_HAS_JOURNAL) && le32_at(sb + 0xe0) == 0);
	return !ret->needs_more;
}

static bool read_xfs(const uint8_t *sb, struct fsimg_probe *ret)
{
	if (memcmp(sb, "XFSB", 4) != 0)
		return false;
	ret->fs_bytes = fs_bytes(be64_at(sb + 8), be32_at(sb + 4));
	memcpy(ret->uuid, sb + 32, 16);
	/* Blocks of a realtime device; the log does not begin here. */
	ret->needs_more = be64_at(sb + 16) != 0 || be64_at(sb + 48) == 0;
	return !ret->needs_more;
}

static bool read_btrfs(const uint8_t *sb, struct fsimg_probe *ret)
{
	if (memcmp(sb + 0x40, "_BHRfS_M", 8) != 0)
		return false;
	ret->fs_bytes = le64_at(sb + 0x70);
	memcpy(ret->uuid, sb + 0x20, 16);
	/* A log tree: fsyncs since the last commit, replayed by the next mount. */
	ret->dirty = le64_at(sb + 0x60) != 0;
	/* The others of a file system on several devices would be whatever the kernel has scanned.
	 */
	ret->needs_more = le64_at(sb + 0x88) != 1;
	return !ret->needs_more;
}

static const struct {
	bool (*read)(const uint8_t *sb, struct fsimg_probe *ret);
	uint32_t offset, bytes;
} superblocks[FSIMG_TYPES] = {
	[FSIMG_EXT4] = {read_ext4, EXT4_SB_OFFSET, EXT4_SB_BYTES},
	[FSIMG_XFS] = {read_xfs, 0, XFS_SB_BYTES},
	[FSIMG_BTRFS] = {read_btrfs, BTRFS_SB_OFFSET, BTRFS_SB_BYTES},
};

/* 0 or -errno; *ret_ok false if the place holds something else. */
static int read_superblock(int fd, struct fsimg_probe *p, bool *ret_ok)
{
	uint8_t sb[BTRFS_SB_BYTES];
	size_t want = superblocks[p->type].bytes, len = 0;
	while (len < want) {
		ssize_t n =
			pread(fd, sb + len, want - len, (off_t)(superblocks[p->type].offset + len));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		len += (size_t)n;
	}
	*ret_ok = len == want && superblocks[p->type].read(sb, p);
	return 0;
}

/* ---- what is expected ---- */

static bool is_zero(const uint8_t *p, size_t len)
{
	while (len > 0 && *p == 0) {
		p++;
		len--;
	}
	return len == 0;
}

/* Whatever else has been made here since (a partition table, LUKS, swap, another file system) has
 * written before the ext4's superblock, or over the XFS's. */
static bool is_expected(const uint8_t head[HEAD_BYTES], struct fsimg_probe *p)
{
	switch (p->type) {
	case FSIMG_EXT4:
		return is_zero(head, EXT4_SB_OFFSET) && read_ext4(head + EXT4_SB_OFFSET, p);
	case FSIMG_XFS:
		return read_xfs(head, p) && le16_at(head + EXT4_SB_OFFSET + 0x38) != EXT4_MAGIC;
	case FSIMG_NONE:
	case FSIMG_BTRFS: /* its first 64 KiB are free for anybody's signature */
	case FSIMG_TYPES:
		break;
	}
	return false;
}

int fsimg_probe_expected(int fd, enum fsimg_type type, struct fsimg_probe *ret)
{
	uint8_t head[HEAD_BYTES];
	struct fsimg_probe p = {.type = type};
	/* Or the kernel reads on, from a disk and into a cache that nobody asks again. */
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	if (pread(fd, head, sizeof head, 0) != sizeof head || !is_expected(head, &p))
		return fsimg_probe_fd(fd, ret);
	snprintf(p.found, sizeof p.found, "%s", fsimg_name(type));
	*ret = p;
	return 0;
}

/* ---- signatures ---- */

static int probe_setup(blkid_probe pr, int fd)
{
	if (blkid_probe_set_device(pr, fd, 0, 0) != 0 ||
		blkid_probe_enable_superblocks(pr, 1) != 0 ||
		blkid_probe_set_superblocks_flags(pr, BLKID_SUBLKS_TYPE) != 0 ||
		blkid_probe_enable_partitions(pr, 1) != 0)
		return errno > 0 ? -errno : -EIO;
	return 0;
}

static void signature_name(blkid_probe pr, char *name, size_t size)
{
	const char *value = NULL;
	if (blkid_probe_lookup_value(pr, "TYPE", &value, NULL) == 0)
		snprintf(name, size, "%s", value);
	else if (blkid_probe_lookup_value(pr, "PTTYPE", &value, NULL) == 0)
		snprintf(name, size, "PTTYPE=%s", value);
	else
		snprintf(name, size, "unknown");
}

static int probe_signatures(blkid_probe pr, int fd, struct fsimg_probe *p)
{
	errno = 0;
	int r = probe_setup(pr, fd);
	if (r < 0)
		return r;
	errno = 0;
	switch (blkid_do_safeprobe(pr)) {
	case 0:
		signature_name(pr, p->found, sizeof p->found);
		return 0;
	case 1:
		return 0;
	case -2:
		/* A safe probe names none of them; an ordinary one stops at the first. */
		p->ambivalent = true;
		blkid_reset_probe(pr);
		if (blkid_do_probe(pr) == 0)
			signature_name(pr, p->found, sizeof p->found);
		else
			snprintf(p->found, sizeof p->found, "unknown");
		return 0;
	default:
		return errno > 0 ? -errno : -EIO;
	}
}

int fsimg_probe_fd(int fd, struct fsimg_probe *ret)
{
	/* An open file of its own: libblkid moves the position and reads unaligned. */
	char path[40];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	_cleanup_fd_ int own_fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (own_fd < 0)
		return -errno;

	blkid_probe pr = blkid_new_probe();
	if (pr == NULL)
		return -ENOMEM;
	struct fsimg_probe p = {0};
	int r = probe_signatures(pr, own_fd, &p);
	blkid_free_probe(pr);
	if (r < 0)
		return r;

	/* What contradicts itself is nobody's file system. */
	bool ok = true;
	if (!p.ambivalent && fsimg_parse_name(p.found, &p.type) == 0)
		r = read_superblock(own_fd, &p, &ok);
	if (r < 0)
		return r;
	if (!ok)
		p.type = FSIMG_NONE;
	*ret = p;
	return 0;
}

const char *fsimg_why_unfit(const struct fsimg_probe *probe)
{
	if (probe->needs_more)
		return "needs another device besides";
	/* Until its log is replayed it cannot be given a UUID of its own. */
	if (probe->type == FSIMG_BTRFS && probe->dirty)
		return "is a btrfs that was not unmounted; mount and unmount it where it was made";
	return NULL;
}
