/* SPDX-License-Identifier: Apache-2.0 */
/* Reading messages by field numbers, whatever bytes they are. */
#include "controller/scan.h"

#include "csi.pb-c.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

static int string_of(const uint8_t *data, size_t len, uint32_t number, char ret[8])
{
	return scan_string(data, len, number, ret, 8);
}

Test(scan, finds_a_field_among_others)
{
	char s[8];
	/* 1: "ab", 2: varint 300, 3: 8 bytes, 4: 4 bytes, 1000: "xyz" */
	const uint8_t message[] = {0x0a, 2, 'a', 'b', 0x10, 0xac, 0x02, 0x19, 1, 2, 3, 4, 5, 6, 7,
		8, 0x25, 1, 2, 3, 4, 0xc2, 0x3e, 3, 'x', 'y', 'z'};
	cr_assert_eq(string_of(message, sizeof(message), 1, s), 0);
	cr_assert_str_eq(s, "ab");
	cr_assert_eq(string_of(message, sizeof(message), 1000, s), 0);
	cr_assert_str_eq(s, "xyz");
	cr_assert_eq(string_of(message, sizeof(message), 5, s), 0);
	cr_assert_str_eq(s, "");
	/* Of another type it is not that field. */
	cr_assert_eq(string_of(message, sizeof(message), 2, s), -EBADMSG);
	cr_assert_eq(string_of(message, 0, 1, s), 0);
	cr_assert_str_eq(s, "");
}

Test(scan, tells_where_each_field_is)
{
	const uint8_t message[] = {0x0a, 1, 'a', 0x10, 5, 0xc2, 0x3e, 2, 'x', 'y'};
	struct scan scan = {message, message + sizeof(message)};
	struct scan_field f;
	cr_assert_eq(scan_next(&scan, &f), 1);
	cr_assert(f.number == 1 && f.wire == SCAN_BYTES && f.len == 1 && f.data == message + 2);
	cr_assert_eq(f.whole, message);
	cr_assert_eq(scan_next(&scan, &f), 1);
	cr_assert(f.number == 2 && f.wire == SCAN_VARINT && f.len == 0);
	cr_assert_eq(f.whole, message + 3);
	cr_assert_eq(scan_next(&scan, &f), 1);
	cr_assert(f.number == 1000 && f.len == 2 && f.data == message + 8);
	cr_assert_eq(scan_next(&scan, &f), 0);
}

Test(scan, the_last_one_counts_as_for_protobuf)
{
	char s[8];
	cr_assert_eq(string_of(BYTES(0x0a, 1, 'a', 0x0a, 2, 'b', 'c'), 1, s), 0);
	cr_assert_str_eq(s, "bc");
	cr_assert_eq(string_of(BYTES(0x0a, 1, 'a', 0x0a, 0), 1, s), 0);
	cr_assert_str_eq(s, "");
}

/* A part of an id may be another's. */
Test(scan, what_cannot_be_held_is_not_there)
{
	char s[8];
	cr_assert_eq(string_of(BYTES(0x0a, 7, 'a', 'b', 'c', 'd', 'e', 'f', 'g'), 1, s), 0);
	cr_assert_str_eq(s, "abcdefg");
	cr_assert_eq(string_of(BYTES(0x0a, 8, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'), 1, s), 0);
	cr_assert_str_eq(s, "");
	cr_assert_eq(string_of(BYTES(0x0a, 3, 'a', 0, 'c'), 1, s), 0);
	cr_assert_str_eq(s, "");
}

Test(scan, what_is_no_message_is_refused)
{
	char s[8];
	const struct {
		const uint8_t *data;
		size_t len;
	} bad[] = {
		{BYTES(0x0a)},         /* no length */
		{BYTES(0x0a, 2, 'a')}, /* longer than there is */
		{BYTES(0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01)},
		{BYTES(0x80)},                            /* half a tag */
		{BYTES(0x02, 0)},                         /* field 0 */
		{BYTES(0x82, 0x80, 0x80, 0x80, 0x10, 0)}, /* field 2^29 */
		{BYTES(0x0b)},                            /* a group */
		{BYTES(0x0c)},                            /* its end */
		{BYTES(0x0e)},                            /* no type */
		{BYTES(0x10, 0x80)},                      /* half a number */
		{BYTES(0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00)},
		{BYTES(0x19, 1, 2, 3, 4, 5, 6, 7)}, /* 7 of 8 bytes */
		{BYTES(0x25, 1, 2, 3)},             /* 3 of 4 */
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_eq(string_of(bad[i].data, bad[i].len, 9, s), -EBADMSG, "%zu", i);
	/* The largest number there can be. */
	cr_assert_eq(string_of(BYTES(0xfa, 0xff, 0xff, 0xff, 0x0f, 1, 'z'), (1 << 29) - 1, s), 0);
	cr_assert_str_eq(s, "z");
}

Test(scan, appends_what_protobuf_reads)
{
	struct buf out = {0};
	char id[300];
	memset(id, 'x', sizeof(id));
	cr_assert_eq(scan_append(&out, 2, "volume", 6), 0);
	cr_assert_eq(scan_append(&out, 100, NULL, 0), 0);
	cr_assert_eq(scan_append(&out, 2, id, sizeof(id)), 0);
	Csi__V1__Volume *volume = csi__v1__volume__unpack(NULL, out.len, out.data);
	cr_assert_not_null(volume);
	cr_assert_eq(volume->volume_id.len, sizeof(id));
	cr_assert_eq(memcmp(volume->volume_id.data, id, sizeof(id)), 0);
	csi__v1__volume__free_unpacked(volume, NULL);
	buf_free(&out);
}

/* Any bytes: it ends, and never reads past them (asan runs this). */
Test(scan, random_bytes)
{
	unsigned seed = 16;
	for (unsigned round = 0; round < 20000; round++) {
		size_t len = (size_t)rand_r(&seed) % 40;
		uint8_t *data = malloc(len);
		for (size_t i = 0; i < len; i++)
			data[i] = (uint8_t)(rand_r(&seed) % (round % 2 == 0 ? 256 : 40));
		struct scan scan = {data, data + len};
		struct scan_field f;
		size_t fields = 0;
		int r;
		while ((r = scan_next(&scan, &f)) > 0) {
			fields++;
			cr_assert(f.wire != SCAN_BYTES ||
				  (f.data >= data && f.data + f.len <= data + len));
		}
		cr_assert(r == 0 ? scan.at == data + len : r == -EBADMSG);
		cr_assert_leq(fields, len);
		free(data);
	}
}
