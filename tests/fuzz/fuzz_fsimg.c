/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tenant may write on an image is read by root: fsimg_probe_fd() and, with each type
 * expected, fsimg_probe_expected(), on bytes placed where the superblocks are. The first byte
 * chooses a place (and so a file system), the size of the image, and whether there is a second
 * piece: then its place and the length of the first follow.
 */
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

static void put(int fd, const uint8_t *data, size_t len, unsigned place)
{
	static const off_t places[] = {1024, 0, 64 * 1024, 0x1b0};
	if (len > 0)
		must(pwrite(fd, data, len, places[place]) == (ssize_t)len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static const off_t sizes[] = {0, 1 << 20, 16 << 20, 1LL << 40};
	if (len == 0)
		return 0;
	struct fuzz f = {data, len};
	uint8_t how = fuzz_byte(&f);
	int fd = memfd_create("image", MFD_CLOEXEC);
	must(fd >= 0);
	must(ftruncate(fd, sizes[how >> 2 & 3]) == 0);
	if ((how & 0x10) != 0) {
		unsigned place = fuzz_below(&f, 4);
		size_t want = (size_t)fuzz_byte(&f) << 8;
		struct fuzz first = fuzz_take(&f, want | fuzz_byte(&f));
		put(fd, first.data, first.len, how & 3);
		put(fd, f.data, f.len, place);
	} else {
		put(fd, f.data, f.len, how & 3);
	}
	struct fsimg_probe full = {0};
	if (fsimg_probe_fd(fd, &full) == 0) {
		check(&full);
		for (enum fsimg_type type = FSIMG_NONE; type < FSIMG_TYPES; type++)
			check_expected(fd, type, &full);
	}
	close(fd);
	return 0;
}
