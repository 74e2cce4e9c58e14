/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of disks: their text, and which of the two on a disk counts. On files: no device needed.
 */
#include "disk/header.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

enum { SIZE_UNITS = 64 };

static struct disk_header sound(void)
{
	return (struct disk_header){
		.pool = "5f1e0000-0000-4000-8000-00000000001a",
		.disk = "d15c0000-0000-4000-8000-000000000001",
		.count = 2,
		.disks = {"d15c0000-0000-4000-8000-000000000001",
			"d15c0000-0000-4000-8000-000000000002"},
		.size_bytes = SIZE_UNITS * MIB,
		.offset = 11 * MIB,
		.bytes = 52 * MIB,
		.records_offset = MIB,
		.records_bytes = 10 * MIB,
		.generation = 7,
		.owner = "node-1",
		.owner_machine = "0123456789abcdef",
		.owner_since_ns = 1795460857498858330,
	};
}

static struct disk_header second(void)
{
	return (struct disk_header){
		.pool = "5f1e0000-0000-4000-8000-00000000001a",
		.disk = "d15c0000-0000-4000-8000-000000000002",
		.index = 1,
		.size_bytes = SIZE_UNITS * MIB,
		.start = UINT64_C(1) << 48,
		.offset = MIB,
		.bytes = 62 * MIB,
		.generation = 2,
	};
}

static int parse(const struct disk_header *h, struct disk_header *ret)
{
	char block[DISK_HEADER_BYTES];
	cr_assert_eq(disk_header_print(h, block), 0);
	return disk_header_parse(block, ret);
}

/* A text of that body, with a right sum. */
static int parse_text(const char *body)
{
	char block[DISK_HEADER_BYTES] = {0}, digest[SHA256_DIGEST_STRING_LENGTH];
	struct disk_header h;
	SHA256Data((const uint8_t *)body, strlen(body), digest);
	snprintf(block, sizeof(block), "%ssum=%.16s\n", body, digest);
	return disk_header_parse(block, &h);
}

/* ---- the text ---- */

Test(disk_header, what_is_printed_is_read)
{
	const struct disk_header headers[] = {sound(), second()};
	for (unsigned i = 0; i < 2; i++) {
		struct disk_header h = {0};
		cr_assert_eq(parse(&headers[i], &h), 0);
		cr_expect_arr_eq(&h, &headers[i], sizeof(h));
	}
}

Test(disk_header, the_largest_one_fits)
{
	struct disk_header h = sound(), got;
	char block[DISK_HEADER_BYTES];
	h.count = DISK_MEMBERS_MAX;
	for (unsigned i = 1; i < DISK_MEMBERS_MAX; i++)
		snprintf(h.disks[i], sizeof(h.disks[i]), "d15c0000-0000-4000-8000-%012u", i + 1);
	memset(h.owner, 'n', sizeof(h.owner) - 1);
	memset(h.owner_machine, 'm', sizeof(h.owner_machine) - 1);
	h.generation = h.owner_since_ns = UINT64_MAX;
	cr_assert_eq(parse(&h, &got), 0);
	cr_expect_arr_eq(&h, &got, sizeof(h));
	strcpy(h.owner, "two\nlines");
	cr_expect_eq(disk_header_print(&h, block), -E2BIG);
}

Test(disk_header, a_bit_that_was_flipped_is_found)
{
	struct disk_header h = sound(), got;
	char block[DISK_HEADER_BYTES];
	cr_assert_eq(disk_header_print(&h, block), 0);
	size_t len = strlen(block);
	for (size_t i = 0; i < sizeof(block); i++) {
		block[i] ^= 1;
		int r = disk_header_parse(block, &got);
		cr_expect_eq(r, i < strlen("ringvol-disk ") ? -ENODATA : -EBADMSG,
			"byte %zu of %zu: %d", i, len, r);
		block[i] ^= 1;
	}
}

Test(disk_header, what_is_not_ours_and_what_is_of_a_later_version)
{
	char block[DISK_HEADER_BYTES] = {0};
	struct disk_header h;
	cr_expect_eq(disk_header_parse(block, &h), -ENODATA);
	strcpy(block, "ringvol-disk 1\n");
	cr_expect_eq(disk_header_parse(block, &h), -EBADMSG);
	cr_expect_eq(parse_text("ringvol-disk 2\nnew=1\n"), -EPROTONOSUPPORT);
	cr_expect_eq(parse_text("ringvol-disk 1\n"), -EBADMSG);
	memset(block, 'x', sizeof(block));
	memcpy(block, "ringvol-disk 1\n", 15);
	cr_expect_eq(disk_header_parse(block, &h), -EBADMSG);
}

#define BODY(lines)                                                                                \
	"ringvol-disk 1\npool=5f1e0000-0000-4000-8000-00000000001a\n"                              \
	"disk=d15c0000-0000-4000-8000-000000000002\nindex=1\nsize=67108864\n" lines

Test(disk_header, lines_that_nobody_printed)
{
	cr_expect_eq(parse_text(BODY("offset=1048576\nbytes=65011712\ngeneration=2\n")), 0);
	static const char *const wrong[] = {
		BODY("offset=1048576\nbytes=65011712\n"),
		BODY("offset=1048576\nbytes=65011712\ngeneration=0\n"),
		BODY("offset=1048576\nbytes=65011712\ngeneration=02\n"),
		BODY("offset=1048576\nbytes=65011712\ngeneration=-2\n"),
		BODY("offset=1048576\nbytes=65011712\ngeneration=99999999999999999999\n"),
		BODY("bytes=65011712\noffset=1048576\ngeneration=2\n"),
		BODY("offset=1048576\nbytes=65011712\ngeneration=2\nmore=1\n"),
		BODY("offset=1048576\nbytes=65011712\ngeneration=2\nstate=sound\n"),
		BODY("offset=1048576\nbytes=65011712\ngeneration=2\nowner=\n"),
		BODY("offset=1048576\nbytes=65011712\ngeneration=2"),
		"ringvol-disk 1\npool=5F1E0000-0000-4000-8000-00000000001a\n",
	};
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		cr_expect_eq(parse_text(wrong[i]), -EBADMSG, "%u", i);
}

Test(disk_header, numbers_that_contradict_each_other)
{
	struct disk_header got;
	for (unsigned i = 0; i < 17; i++) {
		struct disk_header h = i < 12 ? sound() : second();
		switch (i) {
		case 0:
			h.size_bytes = 60 * MIB;
			break; /* the area ends behind it */
		case 1:
			h.size_bytes += 512;
			break; /* no units */
		case 2:
			h.offset = 10 * MIB;
			break; /* in the records */
		case 3:
			h.bytes = 53 * MIB;
			break; /* over the copy */
		case 4:
			h.bytes = 0;
			break;
		case 5:
			h.records_offset = 0;
			break; /* over the header */
		case 6:
			h.records_bytes = UINT64_MAX - MIB + 1;
			break;
		case 7:
			h.count = 0;
			break;
		case 8:
			strcpy(h.disks[0], h.disks[1]);
			break; /* it is not the first */
		case 9:
			strcpy(h.disks[1], h.disks[0]);
			break; /* one twice */
		case 10:
			h.start = MIB / 2;
			break;
		case 11:
			h.start = INT64_MAX / MIB * MIB;
			break;
		case 12:
			h.index = DISK_MEMBERS_MAX;
			break;
		case 13:
			strcpy(h.owner, "node-1");
			break; /* the first has it */
		case 14:
			h.records_bytes = MIB;
			break;
		case 15:
			h.state = DISK_GROWING;
			break;
		case 16:
			h.count = 1;
			break;
		}
		cr_expect_eq(parse(&h, &got), -EBADMSG, "%u", i);
	}
}

/* ---- on a disk ---- */

static int new_disk(void)
{
	int fd = memfd_create("disk", MFD_CLOEXEC);
	cr_assert(fd >= 0 && ftruncate(fd, SIZE_UNITS * MIB) == 0);
	return fd;
}

static void put(int fd, const char *block, uint64_t at)
{
	cr_assert_eq(pwrite(fd, block, DISK_HEADER_BYTES, (off_t)at), DISK_HEADER_BYTES);
}

static void put_header(int fd, const struct disk_header *h, uint64_t at)
{
	char block[DISK_HEADER_BYTES];
	cr_assert_eq(disk_header_print(h, block), 0);
	put(fd, block, at);
}

static void expect(int fd, uint64_t size, uint64_t generation, bool damaged)
{
	struct disk_header h = {0};
	bool is_damaged = !damaged;
	cr_assert_eq(disk_header_read(fd, size, &h, &is_damaged), 0);
	cr_expect_eq(h.generation, generation);
	cr_expect_eq(is_damaged, damaged);
}

static void expect_error(int fd, int res)
{
	struct disk_header h = {0};
	bool damaged;
	cr_expect_eq(disk_header_read(fd, SIZE_UNITS * MIB, &h, &damaged), res);
}

Test(disk_header, both_are_written_and_read)
{
	struct disk_header h = sound();
	int fd = new_disk();
	cr_assert_eq(disk_header_write(fd, &h), 0);
	expect(fd, SIZE_UNITS * MIB, 7, false);
	expect(fd, SIZE_UNITS * MIB + 4096, 7, false); /* not only units */
	expect(fd, 0, 7, false);
	close(fd);
	cr_expect_eq(disk_header_write(fd, &h), -EBADF);
}

Test(disk_header, of_a_write_cut_short_the_later_one_counts)
{
	struct disk_header h = sound();
	int fd = new_disk();
	cr_assert_eq(disk_header_write(fd, &h), 0);
	h.generation++;
	put_header(fd, &h, (SIZE_UNITS - 1) * MIB);
	expect(fd, SIZE_UNITS * MIB, 8, false);
	h.generation += 2;
	put_header(fd, &h, 0);
	expect(fd, SIZE_UNITS * MIB, 10, false);
	close(fd);
}

Test(disk_header, one_that_is_damaged_has_its_copy)
{
	struct disk_header h = sound();
	char block[DISK_HEADER_BYTES] = "ringvol-disk 1\ntorn";
	int fd = new_disk();
	cr_assert_eq(disk_header_write(fd, &h), 0);
	put(fd, block, 0);
	expect(fd, SIZE_UNITS * MIB, 7, true);
	memset(block, 'x', sizeof(block));
	put(fd, block, 0);
	expect(fd, SIZE_UNITS * MIB, 7, true);
	put(fd, block, (SIZE_UNITS - 1) * MIB);
	expect_error(fd, -ENODATA);
	put_header(fd, &h, 0);
	expect(fd, SIZE_UNITS * MIB, 7, true);
	memcpy(block, "ringvol-disk 1\n", 15);
	put(fd, block, 0);
	expect_error(fd, -EBADMSG);
	close(fd);
}

Test(disk_header, a_disk_that_was_wiped_has_none)
{
	struct disk_header h = sound();
	static const char zeros[DISK_HEADER_BYTES];
	int fd = new_disk();
	expect_error(fd, -ENODATA);
	cr_assert_eq(disk_header_write(fd, &h), 0);
	put(fd, zeros, 0);
	expect_error(fd, -ENODATA);
	close(fd);
	fd = memfd_create("small", MFD_CLOEXEC);
	expect_error(fd, -ENODATA);
	close(fd);
}

Test(disk_header, a_copy_of_another_life_or_place_does_not_count)
{
	struct disk_header h = sound(), before = sound();
	int fd = new_disk();
	before.generation = 9;
	strcpy(before.disk, "d15c0000-0000-4000-8000-000000000009");
	strcpy(before.disks[0], before.disk);
	put_header(fd, &before, (SIZE_UNITS - 1) * MIB);
	put_header(fd, &h, 0);
	expect(fd, SIZE_UNITS * MIB, 7, true);
	/* A header of a larger disk, whose first part was copied here. */
	h.size_bytes *= 2;
	h.generation = 9;
	put_header(fd, &h, (SIZE_UNITS - 1) * MIB);
	h = sound();
	put_header(fd, &h, 0);
	expect(fd, SIZE_UNITS * MIB, 7, true);
	close(fd);
}

Test(disk_header, a_disk_that_has_grown_has_its_copy_where_it_was)
{
	struct disk_header h = sound();
	int fd = new_disk();
	cr_assert_eq(disk_header_write(fd, &h), 0);
	cr_assert_eq(ftruncate(fd, 2 * SIZE_UNITS * MIB), 0);
	expect(fd, 2 * SIZE_UNITS * MIB, 7, false);
	/* And one that is smaller still says how large it was. */
	cr_assert_eq(ftruncate(fd, SIZE_UNITS / 2 * MIB), 0);
	expect(fd, SIZE_UNITS / 2 * MIB, 7, true);
	close(fd);
}
