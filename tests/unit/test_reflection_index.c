/* SPDX-License-Identifier: Apache-2.0 */
/* What is found in a descriptor set that is made here by hand, field by field; and what is not
 * taken for one. tests/wire has the real one. */
#include "rpc/reflection_index.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	VARINT = 0,
	FIXED64 = 1,
	BYTES = 2,
	GROUP_BEGIN = 3,
	FIXED32 = 5,
	NESTING_MAX = 32,
};

struct text {
	size_t len;
	uint8_t data[8192];
};

static struct reflection_index got;

static void put_varint(struct text *t, uint64_t value)
{
	for (; value >= 0x80; value >>= 7)
		t->data[t->len++] = (uint8_t)(value | 0x80);
	t->data[t->len++] = (uint8_t)value;
}

static void put_key(struct text *t, unsigned id, unsigned type)
{
	put_varint(t, (uint64_t)id << 3 | type);
}

static void put_bytes(struct text *t, unsigned id, const void *data, size_t len)
{
	put_key(t, id, BYTES);
	put_varint(t, len);
	cr_assert_leq(t->len + len, sizeof(t->data));
	memcpy(t->data + t->len, data, len);
	t->len += len;
}

static void put_name(struct text *t, unsigned id, const char *name)
{
	put_bytes(t, id, name, strlen(name));
}

static void put_part(struct text *t, unsigned id, const struct text *part)
{
	put_bytes(t, id, part->data, part->len);
}

/* Something with a name alone: a field, a value, a method. */
static void put_named(struct text *t, unsigned id, const char *name)
{
	struct text part = {0};
	put_name(&part, 1, name);
	put_part(t, id, &part);
}

/* What nobody asked for, of each type that is known. */
static void put_unknown(struct text *t)
{
	put_key(t, 20, VARINT);
	put_varint(t, UINT64_MAX);
	put_key(t, 21, FIXED64);
	memcpy(t->data + t->len, "\x0a\xff\xff\xff\xff\xff\xff\xff", 8);
	t->len += 8;
	put_key(t, 2222, FIXED32);
	memcpy(t->data + t->len, "\x0a\xff\xff\xff", 4);
	t->len += 4;
	put_name(t, 23, "\x0a\x7f");
}

static void put_extension(
	struct text *t, unsigned id, const char *name, const char *extendee, uint64_t number)
{
	struct text part = {0};
	put_unknown(&part);
	put_name(&part, 1, name);
	put_name(&part, 2, extendee);
	put_key(&part, 3, VARINT);
	put_varint(&part, number);
	put_part(t, id, &part);
}

static int build(const struct text *set)
{
	/* Not a byte more than there is, so that reading behind it is noticed. */
	uint8_t *exact = malloc(set->len + (set->len == 0));
	memcpy(exact, set->data, set->len);
	int res = reflection_index_build(&got, exact, set->len);
	free(exact);
	return res;
}

static int symbol(const char *name)
{
	return reflection_index_symbol(&got, (struct bytes){(const uint8_t *)name, strlen(name)});
}

static int file(const char *name)
{
	return reflection_index_file(&got, (struct bytes){(const uint8_t *)name, strlen(name)});
}

static void put_message(struct text *t, unsigned id)
{
	struct text message = {0}, nested = {0}, values = {0};
	put_unknown(&message);
	put_name(&message, 1, "M");
	put_named(&message, 2, "field");
	put_named(&message, 8, "oneof");
	put_name(&nested, 1, "N");
	put_named(&nested, 2, "inner");
	put_part(&message, 3, &nested);
	put_name(&values, 1, "E");
	put_named(&values, 2, "V");
	put_part(&message, 4, &values);
	put_extension(&message, 6, "more", ".p.M", 7);
	put_part(t, id, &message);
}

static void put_file(struct text *set, const char *name, const char *package, const char *import)
{
	struct text body = {0}, service = {0}, values = {0};
	put_unknown(&body);
	put_name(&body, 1, name);
	if (package != NULL)
		put_name(&body, 2, package);
	if (import != NULL)
		put_name(&body, 3, import);
	put_message(&body, 4);
	put_name(&values, 1, "F");
	put_named(&values, 2, "G");
	put_named(&values, 2, "H");
	put_part(&body, 5, &values);
	put_name(&service, 1, "S");
	put_named(&service, 2, "method");
	put_part(&body, 6, &service);
	put_extension(&body, 7, "outer", "q.M", 1ULL << 32 | 9);
	put_part(set, 1, &body);
}

static void check_symbols(const char *package, int where)
{
	static const char *const names[] = {"M", "M.field", "M.oneof", "M.N", "M.N.inner", "M.E",
		"M.V", "M.more", "F", "G", "H", "S", "S.method", "outer"};
	char full[64];
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(full, sizeof(full), "%s%s", package, names[i]);
		cr_expect_eq(symbol(full), where, "%s", full);
	}
}

Test(reflection_index, what_there_is_has_its_full_name)
{
	struct text set = {0};
	put_unknown(&set);
	put_file(&set, "a.proto", "p", "b.proto");
	put_file(&set, "b.proto", NULL, NULL);
	put_file(&set, "c.proto", "q.r", "a.proto");
	uint8_t *data = malloc(set.len);
	memcpy(data, set.data, set.len);
	cr_assert_eq(reflection_index_build(&got, data, set.len), 0);
	cr_assert_eq(got.file_count, 3);
	cr_assert_eq(got.symbol_count, 3 * 14);
	check_symbols("p.", 0);
	check_symbols("", 1);
	check_symbols("q.r.", 2);
	static const char *const none[] = {"", "p", "p.", "p.M.", "p.MM", "p.M.E.V", "p.M.fiel",
		"p.M.N.", "q", "q.r", "q.M", ".M", "zzz", "A"};
	for (unsigned i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		cr_expect_eq(symbol(none[i]), -1, "%s", none[i]);
	cr_assert(file("a.proto") == 0 && file("b.proto") == 1 && file("c.proto") == 2);
	cr_assert(file("a.prot") == -1 && file("a.protos") == -1 && file("") == -1);
	cr_assert_eq(got.files[0].package.len, 1);
	cr_assert_eq(got.files[1].package.len, 0);
	cr_assert_eq(memcmp(got.files[2].package.data, "q.r", 3), 0);
	/* Imports. */
	cr_assert_eq(got.import_count, 2);
	cr_assert(got.files[0].import_count == 1 && got.imports[got.files[0].import_at] == 1);
	cr_assert_eq(got.files[1].import_count, 0);
	cr_assert(got.files[2].import_count == 1 && got.imports[got.files[2].import_at] == 0);
	/* Extensions; a type is named without the dot in front. */
	cr_assert_eq(got.extension_count, 6);
	for (unsigned i = 0; i < 6; i++) {
		const struct reflection_extension *e = &got.extensions[i];
		cr_assert_eq(e->file, i / 2);
		cr_assert_eq(e->number, i % 2 == 0 ? 7 : 9);
		cr_assert_eq(e->extendee.len, 3);
		cr_assert_eq(memcmp(e->extendee.data, i % 2 == 0 ? "p.M" : "q.M", 3), 0);
	}
	reflection_index_free(&got);
	cr_assert(got.file_count == 0 && got.symbols == NULL && got.extensions == NULL);
	free(data);
}

/* Arrays grow by doubling, from eight on. */
Test(reflection_index, there_may_be_any_number)
{
	for (unsigned count = 0; count < 70; count++) {
		struct text set = {0}, body = {0};
		char name[16];
		for (unsigned i = 0; i < count; i++) {
			snprintf(name, sizeof(name), "m%02u", i);
			put_named(&body, 4, name);
			put_extension(&body, 7, name, "M", i);
		}
		put_part(&set, 1, &body);
		uint8_t *data = malloc(set.len);
		memcpy(data, set.data, set.len);
		cr_assert_eq(reflection_index_build(&got, data, set.len), 0);
		cr_assert_eq(got.symbol_count, 2 * count);
		cr_assert_eq(got.extension_count, count);
		for (unsigned i = 0; i < count; i++) {
			snprintf(name, sizeof(name), "m%02u", i);
			cr_assert_eq(symbol(name), 0);
			cr_assert_eq(got.extensions[i].number, (int32_t)i);
		}
		reflection_index_free(&got);
		free(data);
	}
}

Test(reflection_index, many_files_and_imports)
{
	struct text set = {0};
	char name[16];
	for (unsigned i = 0; i < 40; i++) {
		struct text body = {0};
		snprintf(name, sizeof(name), "f%u", i);
		put_name(&body, 1, name);
		for (unsigned k = 0; k < i % 3; k++)
			put_name(&body, 3, k == 0 ? "f39" : "f0");
		put_part(&set, 1, &body);
	}
	uint8_t *data = malloc(set.len);
	memcpy(data, set.data, set.len);
	cr_assert_eq(reflection_index_build(&got, data, set.len), 0);
	cr_assert_eq(got.file_count, 40);
	for (unsigned i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		cr_assert_eq(file(name), (int)i);
		cr_assert_eq(got.files[i].import_count, i % 3);
		for (unsigned k = 0; k < i % 3; k++)
			cr_assert_eq(got.imports[got.files[i].import_at + k], k == 0 ? 39 : 0);
	}
	reflection_index_free(&got);
	free(data);
}

/* ---- what is none ---- */

static void check_refused(const struct text *set, const char *what)
{
	cr_assert_eq(build(set), -EBADMSG, "%s", what);
	cr_assert(got.files == NULL && got.symbols == NULL && got.file_count == 0, "%s", what);
}

/* In a file's body, behind what is sound. */
static void refuse_tail(const char *tail, size_t len, const char *what)
{
	struct text set = {0}, body = {0};
	put_name(&body, 1, "a.proto");
	put_message(&body, 4);
	memcpy(body.data + body.len, tail, len);
	body.len += len;
	put_part(&set, 1, &body);
	check_refused(&set, what);
}

Test(reflection_index, what_points_past_its_end_is_refused)
{
	static const struct {
		const char *tail;
		size_t len;
		const char *what;
	} tails[] = {
		{"\x80", 1, "a key without an end"},
		{"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 11, "a key that is too long"},
		{"\xa0\x01", 2, "a number that is not there"},
		{"\xa0\x01\xff", 3, "a number without an end"},
		{"\xa9\x01"
		 "1234567",
			9, "seven bytes for eight"},
		{"\xad\x01"
		 "123",
			5, "three bytes for four"},
		{"\xaa\x01", 2, "a length that is not there"},
		{"\xaa\x01\x03"
		 "ab",
			5, "a length past the end"},
		{"\xaa\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12, "a length past all ends"},
		{"\xab\x01", 2, "a group"},
		{"\xac\x01", 2, "the end of a group"},
		{"\xae\x01", 2, "type 6"},
		{"\xaf\x01", 2, "type 7"},
		{"\x1a\x07"
		 "b.proto",
			9, "an import that is not there"},
		{"\x22\x02\x1a\x05", 4, "a message in a message past its end"},
		{"\x2a\x02\x12\x05", 4, "a value past the enum's end"},
		{"\x32\x02\x12\x05", 4, "a method past the service's end"},
		{"\x3a\x02\x1a\x05", 4, "an extension's number that is none"},
	};
	for (unsigned i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
		refuse_tail(tails[i].tail, tails[i].len, tails[i].what);
	struct text set = {0};
	put_file(&set, "a.proto", "p", NULL);
	set.data[set.len++] = 0x0a; /* a file without a length */
	check_refused(&set, "the set's end");
}

Test(reflection_index, what_ends_with_its_end_is_taken)
{
	static const struct {
		const char *tail;
		size_t len;
	} tails[] = {
		{"", 0},
		{"\xa0\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12}, /* ten bytes of number */
		{"\xa9\x01"
		 "12345678",
			10},
		{"\xad\x01"
		 "1234",
			6},
		{"\xaa\x01\x02"
		 "ab",
			5},
		{"\xaa\x01\x00", 3},
	};
	for (unsigned i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
		struct text set = {0}, body = {0};
		put_name(&body, 1, "a.proto");
		memcpy(body.data + body.len, tails[i].tail, tails[i].len);
		body.len += tails[i].len;
		put_part(&set, 1, &body);
		cr_assert_eq(build(&set), 0, "%u", i);
		cr_assert_eq(got.file_count, 1);
		cr_assert_eq(got.symbol_count, 0);
		reflection_index_free(&got);
	}
	struct text none = {0};
	cr_assert_eq(build(&none), 0);
	cr_assert_eq(got.file_count, 0);
	cr_assert_eq(symbol("a"), -1);
	reflection_index_free(&got);
}

Test(reflection_index, messages_are_nested_so_deep_at_most)
{
	for (unsigned depth = NESTING_MAX; depth <= NESTING_MAX + 1; depth++) {
		struct text set = {0}, body = {0}, *message = calloc(2, sizeof(*message));
		for (unsigned i = 0; i < depth; i++) {
			message[1] = message[0];
			message[0].len = 0;
			put_name(&message[0], 1, "m");
			if (i > 0)
				put_part(&message[0], 3, &message[1]);
		}
		put_part(&body, 4, &message[0]);
		put_part(&set, 1, &body);
		free(message);
		cr_assert_eq(build(&set), depth == NESTING_MAX ? 0 : -EBADMSG);
		cr_assert_eq(got.symbol_count, depth == NESTING_MAX ? depth : 0);
		reflection_index_free(&got);
	}
}
