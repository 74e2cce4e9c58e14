/* SPDX-License-Identifier: Apache-2.0 */
/* Superblocks that are made here field by field: what is read from them, what makes one nobody's,
 * and why that is said to be so. test_fsimg.c has those that the tools make. */
#include "blockio/fsimg.h"

#include "../fuzz/fsimg_sums.h"
#include "blockio_env.h"

enum { MIB = 1 << 20, EXT4 = SUMS_EXT4_AT, HEAD = 4096 };

TestSuite(fsimg_superblock, .init = env_open, .fini = env_close);

static uint8_t head[HEAD];

static void put_be(uint8_t *at, uint64_t value, unsigned bytes)
{
	for (unsigned i = bytes; i-- > 0; value >>= 8)
		at[i] = (uint8_t)value;
}

/* 4 KiB of a sparse file of that many bytes. */
static struct fsimg_probe probe_head(enum fsimg_type expected, uint64_t bytes)
{
	struct fsimg_probe p;
	memset(&p, 0xff, sizeof(p));
	int fd = env_file("img", bytes);
	cr_assert_eq(pwrite(fd, head, sizeof(head), 0), HEAD);
	cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
	cr_assert_eq(fsimg_probe_expected(fd, expected, &p), 0);
	close(fd);
	cr_assert_eq(unlinkat(env.dirfd, "img", 0), 0);
	return p;
}

static void make_ext4(void)
{
	memset(head, 0, sizeof(head));
	sums_put(head + EXT4 + 0x4, 0x12345, 4); /* blocks */
	sums_put(head + EXT4 + 0x18, 2, 4);      /* of 4 KiB */
	sums_put(head + EXT4 + 0x38, 0xef53, 2);
	sums_put(head + EXT4 + 0x3a, 1, 2);
	sums_put(head + EXT4 + 0x60, 0x40, 4); /* extents, or it is an ext2 */
	for (uint8_t i = 0; i < 16; i++)
		head[EXT4 + 0x68 + i] = (uint8_t)(0xa0 + i);
}

static void check_uuid(const struct fsimg_probe *p, uint8_t first)
{
	for (unsigned i = 0; i < 16; i++)
		cr_assert_eq(p->uuid[i], first + i);
}

Test(fsimg_superblock, an_ext4_field_by_field)
{
	static const struct {
		unsigned at;
		uint32_t value;
		uint64_t fs_bytes;
		bool errors, dirty;
	} cases[] = {
		{0x18, 0, 0x12345ULL << 10, false, false},
		{0x18, 6, 0x12345ULL << 16, false, false},
		{0x3a, 3 << 0, 0x12345ULL << 12, true, false},
		{0x3a, 4, 0x12345ULL << 12, false, false}, /* orphans are being cleared */
		{0x60, 0x4, 0x12345ULL << 12, false, true},
		{0x60, 0x82, 0x700012345ULL << 12, false, false}, /* numbers of 64 bits */
		{0x60, 0x42, 0x12345ULL << 12, false, false},
		{0xe0, 8, 0x12345ULL << 12, false, false}, /* the journal's inode */
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		make_ext4();
		sums_put(head + EXT4 + 0x150, 7, 4);
		sums_put(head + EXT4 + cases[i].at, cases[i].value, cases[i].at == 0x3a ? 2 : 4);
		struct fsimg_probe p = probe_head(FSIMG_EXT4, HEAD);
		cr_assert_str_eq(p.found, "ext4");
		cr_assert(p.type == FSIMG_EXT4 && !p.ambivalent && !p.needs_more, "case %u", i);
		cr_assert_eq(p.fs_bytes, cases[i].fs_bytes, "case %u", i);
		cr_assert(p.errors == cases[i].errors && p.dirty == cases[i].dirty, "case %u", i);
		check_uuid(&p, 0xa0);
		cr_assert_null(fsimg_why_unfit(&p));
	}
	/* So many blocks that nobody can count their bytes. */
	make_ext4();
	sums_put(head + EXT4 + 0x60, 0x80, 4);
	sums_put(head + EXT4 + 0x150, UINT32_MAX, 4);
	cr_assert_eq(probe_head(FSIMG_EXT4, HEAD).fs_bytes, UINT64_MAX);
}

/* A journal on another device: by its number, or by no inode where there is one. */
Test(fsimg_superblock, an_ext4_that_is_nobodys)
{
	static const struct {
		unsigned at[2];
		uint32_t value[2];
		bool is_ext4;
	} cases[] = {
		{{0x5c, 0xe0}, {0x4, 0}, false},
		{{0x5c, 0xe0}, {0x4, 8}, true},
		{{0x5c, 0xe0}, {0x38, 0}, true}, /* none of the other features is a journal */
		{{0x5c, 0xe4}, {0, 0x801}, false},
		{{0x18, 0x18}, {7, 7}, false},
		{{0x38, 0x38}, {0xef52, 0xef52}, false},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		make_ext4();
		for (unsigned k = 0; k < 2; k++)
			sums_put(head + EXT4 + cases[i].at[k], cases[i].value[k], 4);
		struct fsimg_probe p = probe_head(FSIMG_EXT4, 16 * MIB);
		cr_assert_eq(p.type, cases[i].is_ext4 ? FSIMG_EXT4 : FSIMG_NONE, "case %u", i);
	}
	/* A byte before it, at either end. */
	for (unsigned at = 0; at < EXT4; at += EXT4 - 1) {
		make_ext4();
		head[at] = 1;
		struct fsimg_probe p = probe_head(FSIMG_EXT4, 16 * MIB);
		cr_assert_eq(p.type, FSIMG_EXT4, "the full look finds it");
		cr_assert_eq(p.fs_bytes, 0x12345ULL << 12);
	}
}

static void make_xfs(void)
{
	memset(head, 0, sizeof(head));
	memcpy(head, "XFSB", 4);
	put_be(head + 4, 4096, 4);
	put_be(head + 8, 0x123456789, 8);
	put_be(head + 48, 0x20, 8); /* where the log begins */
	for (uint8_t i = 0; i < 16; i++)
		head[32 + i] = (uint8_t)(0x50 + i);
}

Test(fsimg_superblock, an_xfs_field_by_field)
{
	make_xfs();
	struct fsimg_probe p = probe_head(FSIMG_XFS, HEAD);
	cr_assert_str_eq(p.found, "xfs");
	cr_assert(p.type == FSIMG_XFS && !p.needs_more && !p.errors && !p.dirty && !p.ambivalent);
	cr_assert_eq(p.fs_bytes, 0x123456789ULL << 12);
	check_uuid(&p, 0x50);
	put_be(head + 8, 1ULL << 52, 8);
	cr_assert_eq(probe_head(FSIMG_XFS, HEAD).fs_bytes, UINT64_MAX);
	put_be(head + 8, (1ULL << 52) - 1, 8);
	cr_assert_eq(probe_head(FSIMG_XFS, HEAD).fs_bytes, UINT64_MAX - 4095);

	static const struct {
		unsigned at;
		uint64_t value;
	} cases[] = {{16, 1}, {16, 1ULL << 63}, {48, 0}};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		make_xfs();
		put_be(head + cases[i].at, cases[i].value, 8);
		cr_assert_eq(probe_head(FSIMG_XFS, HEAD).type, FSIMG_NONE, "case %u", i);
	}
	make_xfs();
	sums_put(head + EXT4 + 0x38, 0xef53, 2);
	cr_assert_eq(probe_head(FSIMG_XFS, HEAD).type, FSIMG_NONE, "an ext4 is there, too");
	make_xfs();
	cr_assert_eq(probe_head(FSIMG_EXT4, HEAD).type, FSIMG_NONE, "too little for the full look");
}

/* A btrfs is looked at in full: nothing is read off its first 64 KiB. */
Test(fsimg_superblock, a_btrfs_with_a_log)
{
	uint8_t sb[SUMS_BTRFS_BYTES], other[16];
	struct fsimg_probe p;
	env_image("img", 256LL * MIB);
	env_mkfs("img", FSIMG_BTRFS, 256LL * MIB, "");
	int fd = openat(env.dirfd, "img", O_RDWR | O_CLOEXEC);
	cr_assert_eq(pread(fd, sb, sizeof(sb), SUMS_BTRFS_AT), (ssize_t)sizeof(sb));
	for (unsigned byte = 0; byte < 8; byte += 7) {
		memset(sb + 0x60, 0, 8);
		sb[0x60 + byte] = 1;
		sums_btrfs(sb);
		cr_assert_eq(pwrite(fd, sb, sizeof(sb), SUMS_BTRFS_AT), (ssize_t)sizeof(sb));
		for (enum fsimg_type type = FSIMG_NONE; type < FSIMG_TYPES; type++) {
			cr_assert_eq(fsimg_probe_expected(fd, type, &p), 0);
			cr_assert(p.type == FSIMG_BTRFS && p.dirty && !p.needs_more);
			cr_assert_eq(p.fs_bytes, 256ULL * MIB);
		}
		cr_assert_str_eq(fsimg_why_unfit(&p), "is a btrfs that was not unmounted; mount "
						      "and unmount it where it was made");
	}
	env_uuid("img", other);
	cr_assert_eq(memcmp(p.uuid, other, 16), 0);
	close(fd);
}

Test(fsimg_superblock, what_cannot_be_looked_at)
{
	struct fsimg_probe p = {.fs_bytes = 77};
	cr_assert_eq(fsimg_probe_fd(-1, &p), -ENOENT);
	cr_assert_eq(fsimg_probe_expected(-1, FSIMG_EXT4, &p), -ENOENT);
	cr_assert_lt(fsimg_probe_fd(env.dirfd, &p), 0);
	cr_assert_eq(p.fs_bytes, 77, "nothing is told");
	p = (struct fsimg_probe){.type = FSIMG_EXT4, .needs_more = true};
	cr_assert_str_eq(fsimg_why_unfit(&p), "needs another device besides");
	p = (struct fsimg_probe){.type = FSIMG_XFS, .dirty = true};
	cr_assert_null(fsimg_why_unfit(&p));
	p = (struct fsimg_probe){.type = FSIMG_BTRFS};
	cr_assert_null(fsimg_why_unfit(&p));
}

Test(fsimg_superblock, how_small_each_may_be)
{
	cr_assert_eq(fsimg_min_bytes(FSIMG_NONE), MIB);
	cr_assert_eq(fsimg_min_bytes(FSIMG_EXT4), 16 * MIB);
	cr_assert_eq(fsimg_min_bytes(FSIMG_XFS), 300LL * MIB);
	cr_assert_eq(fsimg_min_bytes(FSIMG_BTRFS), 256LL * MIB);
}

/* One identity for one id, also in the next release: derived as it was when volumes were made. */
Test(fsimg_superblock, an_id_keeps_its_uuid)
{
	static const uint8_t want[16] = {0x66, 0x03, 0x20, 0xe8, 0x81, 0xda, 0x8c, 0xf8, 0x87, 0x9e,
		0x57, 0x9e, 0x25, 0x96, 0xa2, 0xea};
	uint8_t uuid[16];
	fsimg_uuid_of("0011.pvc-1.aabb", uuid);
	cr_assert_eq(memcmp(uuid, want, 16), 0);
}
