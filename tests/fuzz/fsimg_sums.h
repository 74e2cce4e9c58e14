/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksums of ext4, XFS and btrfs, made right after bytes were changed: what reads a
 * superblock looks at its sum first, and a wrong one would be all it ever sees. Layouts:
 * fs/ext4/ext4.h, fs/xfs/libxfs/xfs_format.h, include/uapi/linux/btrfs_tree.h of Linux.
 */
#ifndef RINGVOL_TESTS_FUZZ_FSIMG_SUMS_H
#define RINGVOL_TESTS_FUZZ_FSIMG_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
	SUMS_EXT4_AT = 1024,
	SUMS_EXT4_BYTES = 1024,
	SUMS_XFS_BYTES = 512,
	SUMS_BTRFS_AT = 64 * 1024,
	SUMS_BTRFS_BYTES = 4096,
};

/* CRC-32C without the inversion at either end. */
static inline uint32_t sums_crc(uint32_t crc, const uint8_t *p, size_t len)
{
	while (len-- > 0) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0x82f63b78 & -(crc & 1));
	}
	return crc;
}

static inline void sums_put(uint8_t *p, uint32_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		p[i] = (uint8_t)(value >> 8 * i);
}

static inline uint32_t sums_get(const uint8_t *p, unsigned bytes)
{
	uint32_t value = 0;
	for (unsigned i = bytes; i-- > 0;)
		value = value << 8 | p[i];
	return value;
}

/* Each takes a whole superblock. */
static inline void sums_ext4(uint8_t sb[SUMS_EXT4_BYTES])
{
	sums_put(sb + 0x3fc, sums_crc(UINT32_MAX, sb, 0x3fc), 4);
}

static inline void sums_xfs(uint8_t sb[SUMS_XFS_BYTES])
{
	memset(sb + 224, 0, 4);
	sums_put(sb + 224, ~sums_crc(UINT32_MAX, sb, SUMS_XFS_BYTES), 4);
}

static inline void sums_btrfs(uint8_t sb[SUMS_BTRFS_BYTES])
{
	memset(sb, 0, 32);
	sums_put(sb, ~sums_crc(UINT32_MAX, sb + 32, SUMS_BTRFS_BYTES - 32), 4);
}

/* ---- the rest of a small ext4 image in memory: 4 KiB blocks, one group ---- */

enum { SUMS_BLOCK = 4096, SUMS_GROUP_AT = SUMS_BLOCK, SUMS_ROOT = 2 };

static inline uint32_t sums_ext4_seed(const uint8_t *sb)
{
	/* metadata_csum_seed */
	if (sums_get(sb + 0x60, 4) & 0x2000)
		return sums_get(sb + 0x270, 4);
	return sums_crc(UINT32_MAX, sb + 0x68, 16);
}

static inline void sums_ext4_group(uint8_t *image, uint32_t seed, uint32_t size)
{
	static const uint8_t number[4] = {0};
	uint8_t *group = image + SUMS_GROUP_AT;
	memset(group + 0x1e, 0, 2);
	uint32_t crc = sums_crc(seed, number, sizeof(number));
	sums_put(group + 0x1e, sums_crc(crc, group, size), 2);
}

/* What all sums of an inode's blocks begin with. */
static inline uint32_t sums_ext4_inode_seed(const uint8_t *inode, uint32_t seed, uint32_t number)
{
	uint8_t bytes[4];
	sums_put(bytes, number, 4);
	return sums_crc(sums_crc(seed, bytes, 4), inode + 0x64, 4);
}

static inline void sums_ext4_inode(uint8_t *inode, uint32_t size, uint32_t seed, uint32_t number)
{
	/* One without the further fields has half a sum, and one that was never used has none. */
	bool has_high = sums_get(inode + 0x80, 2) >= 4;
	if (inode[0] == 0 && memcmp(inode, inode + 1, size - 1) == 0)
		return;
	memset(inode + 0x7c, 0, 2);
	if (has_high)
		memset(inode + 0x82, 0, 2);
	uint32_t crc = sums_crc(sums_ext4_inode_seed(inode, seed, number), inode, size);
	sums_put(inode + 0x7c, crc, 2);
	if (has_high)
		sums_put(inode + 0x82, crc >> 16, 2);
}

/* The first block of a directory, whose end holds its sum. */
static inline void sums_ext4_directory(
	uint8_t *image, size_t len, const uint8_t *inode, uint32_t seed, uint32_t number)
{
	uint64_t at = (uint64_t)sums_get(inode + 0x28 + 12 + 8, 4) * SUMS_BLOCK;
	if (sums_get(inode + 0x28, 2) != 0xf30a || at == 0 || at + SUMS_BLOCK > len)
		return;
	uint8_t *block = image + at;
	uint32_t crc = sums_crc(sums_ext4_inode_seed(inode, seed, number), block, SUMS_BLOCK - 12);
	sums_put(block + SUMS_BLOCK - 4, crc, 4);
}

/* Where the inode is in the image; NULL if the group says nonsense. */
static inline uint8_t *sums_ext4_inode_at(uint8_t *image, size_t len, uint32_t number)
{
	uint32_t size = sums_get(image + SUMS_EXT4_AT + 0x58, 2);
	uint64_t table = (uint64_t)sums_get(image + SUMS_GROUP_AT + 8, 4) * SUMS_BLOCK;
	uint64_t at = table + (uint64_t)(number - 1) * size;
	return size != 256 || at + size > len ? NULL : image + at;
}

/* Superblock, group, the first `inodes` inodes and the root directory. */
static inline void sums_ext4_image(uint8_t *image, size_t len, uint32_t inodes)
{
	uint8_t *sb = image + SUMS_EXT4_AT;
	uint32_t seed = sums_ext4_seed(sb);
	uint32_t group_bytes = sums_get(sb + 0x60, 4) & 0x80 ? 64 : 32;
	for (uint32_t number = 1; number <= inodes; number++) {
		uint8_t *inode = sums_ext4_inode_at(image, len, number);
		if (inode == NULL)
			break;
		if (number == SUMS_ROOT)
			sums_ext4_directory(image, len, inode, seed, number);
		sums_ext4_inode(inode, 256, seed, number);
	}
	sums_ext4_group(image, seed, group_bytes);
	sums_ext4(sb);
}

#endif
