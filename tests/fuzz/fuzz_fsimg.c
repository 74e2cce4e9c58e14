/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tenant may write on an image is read by root: fsimg_probe_fd() and, with each type
 * expected, fsimg_probe_expected(), on bytes placed where the superblocks are. The first byte
 * chooses a place (and so a file system), the size of the image, and whether there is a second
 * piece: then its place and the length of the first follow.
 *
 * libblkid looks at a superblock's checksum first. So the mutator makes the sums right in seven of
 * eight inputs (fsimg_sums.h), on the image as it will be: a piece may be shorter than what is
 * summed.
 */
#include "fsimg_sums.h"
#include "fuzz.h"

#include "blockio/fsimg.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(const struct fsimg_probe *p)
{
	must(strnlen(p->found, sizeof(p->found)) < sizeof(p->found));
	must(p->type < FSIMG_TYPES);
	must(p->type == FSIMG_NONE ||
		(!p->ambivalent && strcmp(p->found, fsimg_name(p->type)) == 0));
	must(!p->dirty || p->type != FSIMG_XFS); /* its mount tells */
}

static bool is_zero(int fd, off_t at, size_t len)
{
	uint8_t bytes[1024] = {1};
	must(len <= sizeof(bytes) && pread(fd, bytes, len, at) == (ssize_t)len);
	return bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0;
}

/* What is found is what the full probe finds, or the type expected where libblkid thinks less of
 * it: it looks at sums and features, too (ext2 and a journal are types of its own), and finds what
 * else is on the image. Never is one of ours taken for another whose superblock is there. */
static void check_expected(int fd, enum fsimg_type type, const struct fsimg_probe *full)
{
	struct fsimg_probe p = {0};
	if (fsimg_probe_expected(fd, type, &p) != 0)
		return;
	check(&p);
	if (p.type == full->type) {
		must(strcmp(p.found, full->found) == 0 && p.ambivalent == full->ambivalent);
		must(p.fs_bytes == full->fs_bytes && memcmp(p.uuid, full->uuid, 16) == 0);
		must(p.errors == full->errors && p.dirty == full->dirty);
		return;
	}
	must(p.type == type && (type == FSIMG_EXT4 || type == FSIMG_XFS));
	must(full->type == FSIMG_NONE || full->type == FSIMG_BTRFS);
	must(type != FSIMG_EXT4 || is_zero(fd, 0, 1024));
}

/* Places of pieces, and what is summed at each: the bytes of a superblock, 0 for a partition table.
 */
static const struct {
	uint32_t at, bytes, sum_at, sum_bytes;
	void (*sum)(uint8_t *sb);
} places[] = {
	{SUMS_EXT4_AT, SUMS_EXT4_BYTES, 0x3fc, 4, sums_ext4},
	{0, SUMS_XFS_BYTES, 224, 4, sums_xfs},
	{SUMS_BTRFS_AT, SUMS_BTRFS_BYTES, 0, 32, sums_btrfs},
	{0x1b0, 0, 0, 0, NULL},
};

/* An input taken apart: one piece or two. */
struct pieces {
	uint8_t how;
	struct {
		unsigned place;
		const uint8_t *data;
		size_t len;
	} piece[2];
};

static struct pieces pieces_of(const uint8_t *data, size_t len)
{
	struct fuzz f = {data, len};
	struct pieces p = {.how = fuzz_byte(&f)};
	unsigned first = p.how & 3;
	if ((p.how & 0x10) != 0) {
		p.piece[1].place = fuzz_below(&f, 4);
		size_t want = (size_t)fuzz_byte(&f) << 8;
		struct fuzz part = fuzz_take(&f, want | fuzz_byte(&f));
		p.piece[0].data = part.data, p.piece[0].len = part.len;
		p.piece[1].data = f.data, p.piece[1].len = f.len;
	} else {
		p.piece[0].data = f.data, p.piece[0].len = f.len;
	}
	p.piece[0].place = first;
	return p;
}

static void put(int fd, const uint8_t *data, size_t len, unsigned place)
{
	if (len > 0)
		must(pwrite(fd, data, len, places[place].at) == (ssize_t)len);
}

/* The superblock's sum is right on an image that has nothing but this piece: what follows it is
 * zero. A sum that lies behind the piece's end is left alone. */
static void repair(uint8_t *data, size_t len, unsigned place)
{
	uint8_t sb[SUMS_BTRFS_BYTES] = {0};
	size_t bytes = places[place].bytes;
	if (bytes == 0 || len < places[place].sum_at + places[place].sum_bytes)
		return;
	memcpy(sb, data, len < bytes ? len : bytes);
	places[place].sum(sb);
	memcpy(data + places[place].sum_at, sb + places[place].sum_at, places[place].sum_bytes);
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t len, size_t cap);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t len, size_t cap, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t len, size_t cap, unsigned seed)
{
	len = LLVMFuzzerMutate(data, len, cap);
	struct pieces p = pieces_of(data, len);
	for (unsigned i = 0; i < 2 && seed % 8 != 0; i++)
		if (p.piece[i].len > 0)
			repair(data + (p.piece[i].data - data), p.piece[i].len, p.piece[i].place);
	return len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static const off_t sizes[] = {0, 1 << 20, 16 << 20, 1LL << 40};
	if (len == 0)
		return 0;
	struct pieces p = pieces_of(data, len);
	int fd = memfd_create("image", MFD_CLOEXEC);
	must(fd >= 0);
	must(ftruncate(fd, sizes[p.how >> 2 & 3]) == 0);
	for (unsigned i = 0; i < 2; i++)
		put(fd, p.piece[i].data, p.piece[i].len, p.piece[i].place);
	struct fsimg_probe full = {0};
	if (fsimg_probe_fd(fd, &full) == 0) {
		check(&full);
		for (enum fsimg_type type = FSIMG_NONE; type < FSIMG_TYPES; type++)
			check_expected(fd, type, &full);
	}
	close(fd);
	return 0;
}
