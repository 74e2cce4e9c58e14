/* SPDX-License-Identifier: Apache-2.0 */
/* What a finished part says of the volume that moves: written, read again, and what is none. */
#include "csi/take_text.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#define GRANT "0123456789abcdef0123456789abcdef"
#define FROM  "aaaaaaaa"
#define REST  "aaaaaaaa.v.00000001\0v\0" GRANT "\0node-2\0host:1\0" FROM "\0"

static const struct take_text told = {
	.offer = {.source_id = "aaaaaaaa.v.00000001",
		.volume_name = "v",
		.grant = GRANT,
		.node_id = "node-2",
		.address = "host:1"},
	.from = FROM,
	.since = UINT64_MAX,
};

static void is_told(const struct take_text *got, const struct take_text *want)
{
	cr_expect_str_eq(got->offer.source_id, want->offer.source_id);
	cr_expect_str_eq(got->offer.volume_name, want->offer.volume_name);
	cr_expect_str_eq(got->offer.grant, want->offer.grant);
	cr_expect_str_eq(got->offer.node_id, want->offer.node_id);
	cr_expect_str_eq(got->offer.address, want->offer.address);
	cr_expect_str_eq(got->from, want->from);
	cr_expect_eq(got->since, want->since);
	cr_expect_eq(got->attached.mode, want->attached.mode);
	cr_expect_eq(got->attached.block, want->attached.block);
	cr_expect_eq(got->attached.read_only, want->attached.read_only);
}

/* Parts of an earlier run of the driver have these very bytes. */
Test(take_text, of_each_kind)
{
	static const struct {
		struct pull_attached attached;
		const char *text;
		size_t len;
	} table[] = {
#define AS(head, more) head "\0" REST more, sizeof(head "\0" REST more)
		{{0}, AS("ringvol-take 1", "18446744073709551615")},
		{{3, false, false}, AS("ringvol-take 2", "18446744073709551615\0"
							 "3 0 0")},
		{{1, true, false}, AS("ringvol-take 2", "18446744073709551615\0"
							"1 1 0")},
		{{7, false, true}, AS("ringvol-take 2", "18446744073709551615\0"
							"7 0 1")},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct take_text take = told, got;
		char text[POOL_PART_TEXT_MAX];
		take.attached = table[i].attached;
		cr_assert_eq(take_text_print(&take, text), (ssize_t)table[i].len, "line %zu", i);
		cr_assert_eq(memcmp(text, table[i].text, table[i].len), 0, "line %zu", i);
		memset(&got, 0xff, sizeof(got));
		cr_assert_eq(take_text_parse(text, table[i].len, &got), 0);
		is_told(&got, &take);
		/* Whatever it is cut short by, it is none. */
		for (size_t len = 0; len < table[i].len; len++)
			cr_expect_eq(take_text_parse(text, len, &got), -EBADMSG, "of %zu", len);
	}
}

/* Fields as long as there is room for, and one byte more. */
Test(take_text, long_fields)
{
	struct take_text most, got;
	memset(&most, 'x', sizeof(most));
	most.attached = (struct pull_attached){.mode = 1};
	char *const ends[] = {most.offer.source_id + sizeof(most.offer.source_id) - 1,
		most.offer.volume_name + sizeof(most.offer.volume_name) - 1,
		most.offer.grant + sizeof(most.offer.grant) - 1,
		most.offer.node_id + sizeof(most.offer.node_id) - 1,
		most.offer.address + sizeof(most.offer.address) - 1,
		most.from + sizeof(most.from) - 1};
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		*ends[i] = '\0';
	char text[POOL_PART_TEXT_MAX], longer[POOL_PART_TEXT_MAX + 1];
	ssize_t len = take_text_print(&most, text);
	cr_assert_gt(len, 0);
	cr_assert_eq(take_text_parse(text, (size_t)len, &got), 0);
	is_told(&got, &most);
	/* The first field is the head, the last but one the number. */
	size_t at = strlen(text) + 1;
	for (unsigned field = 1; field <= 6; field++) {
		memcpy(longer, text, at);
		longer[at] = 'y';
		memcpy(longer + at + 1, text + at, (size_t)len - at);
		cr_expect_eq(take_text_parse(longer, (size_t)len + 1, &got), -EBADMSG,
			"field %u is one byte longer", field);
		at += strlen(text + at) + 1;
	}
}

Test(take_text, what_is_none)
{
	static const struct {
		const char *text;
		size_t len;
		int res;
	} table[] = {
#define IS(text, res) {text, sizeof(text), res}
		IS("ringvol-take 1\0" REST "5", 0),
		IS("ringvol-take 1\0" REST "5\0"
		   "3 0 0",
			0), /* what follows is not looked at */
		IS("ringvol-take 2\0" REST "5", -EBADMSG),
		IS("ringvol-take 2\0" REST "5\0"
		   "3 0 0",
			0),
		IS("ringvol-take 2\0" REST "5\0"
		   "3 1 1",
			0),
		IS("ringvol-take 2\0" REST "5\0"
		   "0 0 0",
			-EBADMSG),
		IS("ringvol-take 2\0" REST "5\0"
		   "3 2 0",
			-EBADMSG),
		IS("ringvol-take 2\0" REST "5\0"
		   "3 0 2",
			-EBADMSG),
		IS("ringvol-take 2\0" REST "5\0"
		   "3 0",
			-EBADMSG),
		IS("ringvol-take 2\0" REST "5\0"
		   "3 0 0x",
			-EBADMSG),
		IS("ringvol-take 2\0" REST "5\0"
		   "",
			-EBADMSG),
		IS("ringvol-take 3\0" REST "5\0"
		   "3 0 0",
			-EPROTONOSUPPORT),
		IS("ringvol-take 3", -EPROTONOSUPPORT),
		IS("", -EPROTONOSUPPORT),
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct take_text got;
		cr_expect_eq(take_text_parse(table[i].text, table[i].len, &got), table[i].res,
			"line %zu", i);
		cr_expect(table[i].res != 0 || got.since == 5);
	}
}
