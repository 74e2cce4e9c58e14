/* SPDX-License-Identifier: Apache-2.0 */
/* Maps of images: pieces, their text, and the attribute. */
#include "blockio/image_map.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { MIB = IMAGE_MAP_ALIGN };

static struct image_map map_of(unsigned count, const uint64_t *mib)
{
	struct image_map map = {0};
	for (unsigned i = 0; i < count; i++)
		cr_assert_eq(image_map_add(&map, mib[2 * i] * MIB, mib[2 * i + 1] * MIB), 0);
	return map;
}

#define MAP(...)                                                                                   \
	map_of(sizeof((uint64_t[]){__VA_ARGS__}) / (2 * sizeof(uint64_t)),                         \
		(const uint64_t[]){__VA_ARGS__})

/* The lines under the head, and a right sum. */
static size_t text_of(const char *head, const char *lines, char *buf)
{
	char hex[SHA256_DIGEST_STRING_LENGTH];
	int len = sprintf(buf, "%s\n%s", head, lines);
	SHA256Data((const uint8_t *)buf, (size_t)len, hex);
	return (size_t)(len + sprintf(buf + len, "sum=%.16s\n", hex));
}

static int parse(const char *head, const char *lines, struct image_map *ret)
{
	char buf[IMAGE_MAP_TEXT_MAX * 2];
	return image_map_parse(buf, text_of(head, lines, buf), ret);
}

Test(image_map, pieces_that_touch_are_one)
{
	struct image_map map = MAP(10, 2, 12, 3, 20, 1, 16, 4);
	cr_expect_eq(map.count, 3);
	cr_expect_eq(map.pieces[0].address, 10ull * MIB);
	cr_expect_eq(map.pieces[0].bytes, 5ull * MIB);
	cr_expect_eq(image_map_bytes(&map), 10ull * MIB);
}

Test(image_map, what_is_no_piece_is_refused)
{
	struct image_map map = MAP(1, 1), was = map;
	static const uint64_t wrong[][2] = {
		{MIB * 4, 0},
		{MIB * 4 + 512, MIB},
		{MIB * 4, MIB / 2},
		{1ull << 63, MIB},
		{(1ull << 63) - MIB, MIB},
		{MIB * 4, 1ull << 63},
		{MIB * 4, UINT64_MAX - MIB + 1},
		{UINT64_MAX - MIB + 1, MIB},
		/* the sum of sizes */
		{MIB * 4, (1ull << 63) - 8ull * MIB},
	};
	for (unsigned i = 0; i < sizeof wrong / sizeof *wrong - 1; i++)
		cr_expect_eq(image_map_add(&map, wrong[i][0], wrong[i][1]), -EINVAL, "%u", i);
	cr_expect(image_map_equal(&map, &was));
	cr_expect_eq(image_map_add(&map, 4 * MIB, (1ull << 63) - 8ull * MIB), 0);
	cr_expect_eq(image_map_add(&map, 2 * MIB, 8 * MIB), -EINVAL, "the sum of the sizes");
}

Test(image_map, there_are_so_many_pieces_at_most)
{
	struct image_map map = {0};
	for (unsigned i = 0; i < IMAGE_MAP_PIECES_MAX; i++)
		cr_assert_eq(image_map_add(&map, (2ull * i + 1) * MIB, MIB), 0);
	cr_expect_eq(image_map_add(&map, 0, MIB), -E2BIG);
	cr_expect_eq(image_map_add(&map, 2ull * IMAGE_MAP_PIECES_MAX * MIB, MIB), 0,
		"it touches the last one");
	cr_expect_eq(map.count, IMAGE_MAP_PIECES_MAX);
}

Test(image_map, cut)
{
	struct image_map map = MAP(10, 4, 20, 4);
	image_map_cut(&map, 100ull * MIB);
	cr_expect_eq(image_map_bytes(&map), 8ull * MIB);
	image_map_cut(&map, 6ull * MIB);
	struct image_map six = MAP(10, 4, 20, 2), four = MAP(10, 4);
	cr_expect(image_map_equal(&map, &six));
	image_map_cut(&map, 4ull * MIB);
	cr_expect(image_map_equal(&map, &four));
	image_map_cut(&map, 0);
	cr_expect_eq(map.count, 0);
}

Test(image_map, equal_and_overlapping)
{
	struct image_map a = MAP(10, 4, 20, 4), same = MAP(10, 4, 20, 4), shorter = MAP(10, 4),
			 longer = MAP(10, 4, 20, 5), beside = MAP(14, 6, 24, 8, 1, 9),
			 across = MAP(14, 7), none = {0};
	cr_expect(image_map_equal(&a, &same));
	cr_expect_not(image_map_equal(&a, &shorter));
	cr_expect_not(image_map_equal(&a, &longer));
	cr_expect(image_map_overlaps(&a, &longer));
	cr_expect_not(image_map_overlaps(&a, &beside));
	cr_expect(image_map_overlaps(&a, &across));
	cr_expect(image_map_overlaps(&across, &a));
	cr_expect_not(image_map_overlaps(&a, &none));
}

Test(image_map, its_text)
{
	char buf[IMAGE_MAP_TEXT_MAX], wanted[256];
	struct image_map map = MAP(0xabc, 16, 1, 2), back;
	size_t len = text_of("ringvol-map 1", "abc00000 1000000\n100000 200000\n", wanted);
	cr_assert_eq(image_map_print(&map, buf, sizeof buf), (int)len);
	cr_expect_str_eq(buf, wanted);
	cr_assert_eq(image_map_parse(buf, len, &back), 0);
	cr_expect(image_map_equal(&map, &back));
	for (size_t cap = 1; cap <= len; cap++)
		cr_expect_eq(image_map_print(&map, buf, cap), -E2BIG, "%zu", cap);
	cr_expect_eq(image_map_print(&map, buf, len + 1), (int)len);
}

Test(image_map, the_longest_text_has_room)
{
	char buf[IMAGE_MAP_TEXT_MAX];
	struct image_map map = {0}, back;
	for (uint64_t i = 0; i < IMAGE_MAP_PIECES_MAX; i++)
		cr_assert_eq(image_map_add(&map, (1ull << 62) + i * (1ull << 54),
				     (1ull << 53) + (i == 0 ? MIB : 0)),
			0);
	int len = image_map_print(&map, buf, sizeof buf);
	cr_assert_gt(len, 0);
	cr_assert_eq(image_map_parse(buf, (size_t)len, &back), 0);
	cr_expect(image_map_equal(&map, &back));
}

Test(image_map, a_damaged_text_is_refused)
{
	char buf[256], bad[256];
	struct image_map map = MAP(7, 2, 30, 5), back = MAP(1, 1), was = back;
	int len = image_map_print(&map, buf, sizeof buf);
	for (int i = 0; i < len; i++) {
		memcpy(bad, buf, (size_t)len);
		bad[i] ^= 1;
		cr_expect_eq(image_map_parse(bad, (size_t)len, &back), -EBADMSG, "byte %d", i);
		cr_expect_eq(image_map_parse(buf, (size_t)i, &back), -EBADMSG, "length %d", i);
	}
	cr_expect(image_map_equal(&back, &was));
}

Test(image_map, a_sound_text_that_contradicts_itself_is_refused)
{
	static const char *const wrong[] = {
		"100000\n",
		"100000 \n",
		" 100000\n",
		"100000 100000 \n",
		"100000 100000",
		"0100000 100000\n",
		"00 100000\n",
		"A00000 100000\n",
		"a00001 100000\n",
		"a00000 0\n",
		"100000  100000\n",
		"10000000000000000 100000\n",
		"ffffffffffffffff 100000\n",
		"fffffffffff00000 100000\n",
		"100000 100000\n200000 100000\n", /* one text for one map */
		"100000 300000\n200000 100000\n",
		"100000 300000\n800000 100000\n300000 100000\n",
		"100000 100000\n\n",
	};
	struct image_map back;
	for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++)
		cr_expect_eq(parse("ringvol-map 1", wrong[i], &back), -EBADMSG, "%s", wrong[i]);
	cr_expect_eq(parse("ringvol-record 1", "", &back), -EBADMSG);
	cr_expect_eq(parse("ringvol-map 3", "", &back), -EPROTONOSUPPORT);
	cr_expect_eq(parse("ringvol-map 3", "thin 77\n", &back), -EPROTONOSUPPORT);
	cr_expect_eq(parse("ringvol-map 1", "0 100000\n", &back), 0);
	cr_expect_eq(parse("ringvol-map 1", "", &back), 0);
	cr_expect_eq(back.count, 0);
}

Test(image_map, a_thin_image)
{
	static const char *const wrong[] = {
		"",
		"thin=\n",
		"thin=0\n",
		"thin=07\n",
		"thin=1000000\n", /* past dm-thin's numbers */
		"thin=7",
		"thin=G\n",
		"thin=7\nthin=8\n",
		"thin=7\n100000 100000\n",
		"100000 100000\n",
		"thi\n",
	};
	char buf[IMAGE_MAP_TEXT_MAX], wanted[256];
	struct image_map map = {.thin_id = 0xabc}, other = {.thin_id = 7}, back = MAP(1, 1),
			 pieces = back, none = {0};
	size_t len = text_of("ringvol-map 2", "thin=abc\n", wanted);
	cr_assert_eq(image_map_print(&map, buf, sizeof buf), (int)len);
	cr_expect_str_eq(buf, wanted);
	for (size_t cap = 1; cap <= len; cap++)
		cr_expect_eq(image_map_print(&map, buf, cap), -E2BIG, "%zu", cap);
	cr_assert_eq(image_map_parse(wanted, len, &back), 0);
	cr_expect(image_map_equal(&map, &back));
	cr_expect_not(image_map_equal(&map, &other));
	cr_expect_not(image_map_equal(&map, &none));
	cr_expect(image_map_overlaps(&map, &back));
	cr_expect_not(image_map_overlaps(&map, &other));
	cr_expect_not(image_map_overlaps(&map, &pieces));
	cr_expect_not(image_map_overlaps(&none, &none));
	cr_expect_eq(image_map_bytes(&map), 0);
	for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++)
		cr_expect_eq(parse("ringvol-map 2", wrong[i], &back), -EBADMSG, "%s", wrong[i]);
	cr_expect_eq(parse("ringvol-map 1", "thin=7\n", &back), -EBADMSG);
	cr_expect_eq(parse("ringvol-map 2", "thin=ffffff\n", &back), 0);
	cr_expect_eq(back.thin_id, IMAGE_MAP_THIN_MAX);
}

Test(image_map, more_pieces_than_there_may_be_are_refused)
{
	char lines[IMAGE_MAP_TEXT_MAX] = "";
	struct image_map back;
	int len = 0;
	for (unsigned i = 0; i <= IMAGE_MAP_PIECES_MAX; i++)
		len += sprintf(lines + len, "%x00000 100000\n", 2 * i + 1);
	cr_expect_eq(parse("ringvol-map 1", lines, &back), -EBADMSG);
}

Test(image_map, the_attribute)
{
	int fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	struct image_map map = MAP(7, 2, 30, 5), back;
	cr_assert_geq(fd, 0);
	int r = image_map_write(fd, &map);
	if (r == -EPERM || r == -EOPNOTSUPP) {
		close(fd);
		cr_skip_test("no trusted attributes in /var/tmp");
	}
	cr_assert_eq(r, 0);
	cr_assert_eq(image_map_read(fd, &back), 0);
	cr_expect(image_map_equal(&map, &back));
	image_map_cut(&map, MIB);
	cr_assert_eq(image_map_write(fd, &map), 0);
	cr_assert_eq(image_map_read(fd, &back), 0);
	cr_expect(image_map_equal(&map, &back));

	static char long_text[IMAGE_MAP_TEXT_MAX + 1];
	memset(long_text, 'x', sizeof long_text);
	if (fsetxattr(fd, IMAGE_MAP_XATTR, long_text, sizeof long_text, 0) == 0)
		cr_expect_eq(image_map_read(fd, &back), -EBADMSG);
	cr_assert_eq(fsetxattr(fd, IMAGE_MAP_XATTR, "", 0, 0), 0);
	cr_expect_eq(image_map_read(fd, &back), -EBADMSG);
	cr_assert_eq(fremovexattr(fd, IMAGE_MAP_XATTR), 0);
	cr_expect_eq(image_map_read(fd, &back), -ENODATA);
	close(fd);
	cr_expect_eq(image_map_read(fd, &back), -EBADF);
	cr_expect_eq(image_map_write(fd, &map), -EBADF);
}
