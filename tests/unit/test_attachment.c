/* SPDX-License-Identifier: Apache-2.0 */
/* Attachments: copies that have one more or less, and a text that has one form for one value. */
#include "pool/attachment.h"
#include "pool/record_text.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define UUID "0f2e4d6c-8b0a-4192-a3b4-c5d6e7f80910"

static const struct attachment own = {
	.node = "node-1", .mode = ATTACHMENT_WRITER, .export = "", .key = ""};
static const struct attachment other = {.node = "node 2 100%",
	.mode = ATTACHMENT_MANY_WRITERS,
	.block = true,
	.read_only = true,
	.export = UUID,
	.key = "DHHC-1:00:c2VjcmV0:"};

static void same(const struct attachment *a, const struct attachment *b)
{
	cr_assert_str_eq(a->node, b->node);
	cr_assert_eq(a->mode, b->mode);
	cr_assert_eq(a->block, b->block);
	cr_assert_eq(a->read_only, b->read_only);
	cr_assert_str_eq(a->export, b->export);
	cr_assert_str_eq(a->key, b->key);
}

Test(attachment, copies)
{
	cr_assert_null(attachments_find(NULL, "node-1"));
	cr_assert_not(attachments_exported(NULL));
	struct attachments *one = attachments_with(NULL, &own), *two, *left;
	cr_assert_not(attachments_exported(one));
	two = attachments_with(one, &other);
	attachments_free(one);
	cr_assert_eq(two->count, 2);
	cr_assert(attachments_exported(two));
	same(attachments_find(two, "node-1"), &own);
	same(attachments_find(two, other.node), &other);

	struct attachment changed = own;
	changed.read_only = true;
	one = attachments_with(two, &changed);
	cr_assert_eq(one->count, 2);
	same(attachments_find(one, "node-1"), &changed);
	attachments_free(two);

	cr_assert_eq(attachments_without(one, "nobody", &left), 0);
	cr_assert_eq(left->count, 2);
	attachments_free(one);
	cr_assert_eq(attachments_without(left, "node-1", &one), 0);
	cr_assert_eq(one->count, 1);
	same(&one->at[0], &other);
	attachments_free(left);
	cr_assert_eq(attachments_without(one, other.node, &left), 0);
	cr_assert_null(left);
	attachments_free(one);
	attachments_free(NULL);
}

Test(attachment, text)
{
	char text[ATTACHMENTS_BYTES_MAX];
	struct attachments *one = attachments_with(NULL, &own), *back;
	struct attachments *two = attachments_with(one, &other);
	int len = attachments_print(two, text, sizeof(text));
	cr_assert_gt(len, 0);
	cr_assert_not_null(strstr(text, "node=node 2 100%25\nmode=5\nblock=true\n"));
	cr_assert_eq(attachments_parse(text, (size_t)len, &back), 0);
	cr_assert_eq(back->count, 2);
	same(&back->at[0], &own);
	same(&back->at[1], &other);
	attachments_free(back);
	cr_assert_eq(attachments_print(two, text, 100), -E2BIG);
	attachments_free(one);
	attachments_free(two);
}

/* As many as there may be, as long as they may be, have room. */
Test(attachment, the_most)
{
	char text[ATTACHMENTS_BYTES_MAX], node[ATTACHMENT_NODE_MAX + 1];
	char key[ATTACHMENT_KEY_MAX + 1];
	memset(node, 'n', sizeof(node));
	memset(key, 'k', sizeof(key));
	node[ATTACHMENT_NODE_MAX] = key[ATTACHMENT_KEY_MAX] = '\0';
	struct attachments *all = NULL, *back;
	for (unsigned i = 0; i < ATTACHMENTS_MAX; i++) {
		struct attachment one = other;
		char number[3];
		snprintf(number, sizeof(number), "%02u", i);
		memcpy(node, number, 2);
		one.node = node;
		one.key = key;
		struct attachments *more = attachments_with(all, &one);
		attachments_free(all);
		all = more;
	}
	int len = attachments_print(all, text, sizeof(text));
	cr_assert_gt(len, 0);
	cr_assert_eq(attachments_parse(text, (size_t)len, &back), 0);
	cr_assert_eq(back->count, ATTACHMENTS_MAX);
	attachments_free(back);
	/* One more is printed and not read; another of the same node takes its place. */
	struct attachments *more = attachments_with(all, &own), *same_node;
	cr_assert_eq(more->count, ATTACHMENTS_MAX + 1);
	len = attachments_print(more, text, sizeof(text));
	cr_assert_gt(len, 0);
	cr_assert_eq(attachments_parse(text, (size_t)len, &back), -EBADMSG);
	struct attachment again = own;
	again.node = node;
	same_node = attachments_with(all, &again);
	cr_assert_eq(same_node->count, ATTACHMENTS_MAX);
	same(&same_node->at[ATTACHMENTS_MAX - 1], &again);
	attachments_free(same_node);
	attachments_free(more);
	attachments_free(all);
}

/* From one to the next, those between that export nothing left out. */
Test(attachment, those_that_are_exported)
{
	static const bool exported[] = {false, true, false, false, true, false};
	struct attachments *all = NULL;
	unsigned at = 0, found = 0;
	for (unsigned i = 0; i < 6; i++) {
		char node[2] = {(char)('a' + i)};
		struct attachment one = exported[i] ? other : own;
		one.node = node;
		struct attachments *more = attachments_with(all, &one);
		attachments_free(all);
		all = more;
	}
	for (const struct attachment *one; (one = attachments_next_exported(all, &at)) != NULL;
		at++) {
		cr_assert_str_eq(one->node, found++ == 0 ? "b" : "e");
		cr_assert_str_eq(one->export, UUID);
	}
	cr_assert_eq(found, 2);
	cr_assert_eq(at, 6);
	attachments_free(all);
}

static int parse_summed(const char *lines)
{
	char text[4096];
	struct record_text o = {.buf = text, .cap = sizeof(text)};
	record_text_put(&o, "ringvol-attachments 1\n");
	record_text_put(&o, lines);
	int len = record_text_end(&o);
	cr_assert_gt(len, 0);
	struct attachments *back = NULL;
	int r = attachments_parse(text, (size_t)len, &back);
	attachments_free(back);
	return r;
}

#define NODE "node=a\nmode=1\nblock=false\nread_only=false\n"

Test(attachment, what_is_no_such_text)
{
	cr_expect_eq(parse_summed(NODE), 0);
	cr_expect_eq(parse_summed(NODE "export=" UUID "\nkey=k\n"), 0);
	cr_expect_eq(parse_summed(NODE "key=k\n"), 0);
	static const struct {
		const char *lines;
		int r;
	} bad[] = {
		{"", -EBADMSG},
		{"mode=1\n", -EBADMSG},
		{"node=a\nblock=true\nread_only=true\n", -EBADMSG},
		{"node=a\nmode=1\n", -EBADMSG},
		{"node=a\n" NODE, -EBADMSG},
		{NODE NODE, -EBADMSG},
		{NODE "export=\n", -EBADMSG},
		{NODE "export=0123\n", -EBADMSG},
		{NODE "key=k\nexport=" UUID "\n", -EBADMSG},
		{NODE "key=\n", -EBADMSG},
		{"node=\nmode=1\nblock=false\nread_only=false\n", -EBADMSG},
		{"node=a\nmode=0\nblock=false\nread_only=false\n", -EPROTONOSUPPORT},
		{"node=a\nmode=8\nblock=false\nread_only=false\n", -EPROTONOSUPPORT},
		{"node=a\nmode=1\nblock=maybe\nread_only=false\n", -EPROTONOSUPPORT},
		{"node=a\nmode=4294967296\nblock=false\nread_only=false\n", -EBADMSG},
		{NODE "read_only=false\n", -EBADMSG},
		{NODE "key=k\nkey=k\n", -EBADMSG},
		{NODE "key=%41\n", -EBADMSG},
		{NODE "export=0f2e4d6c-8b0a-4192-a3b4-c5d6e7f8091g\n", -EBADMSG},
		{NODE "node=b\nmode=1\nblock=false\n", -EBADMSG},
		{NODE "node=b\nmode=1\nblock=false\nread_only=false\n" NODE, -EBADMSG},
		{"node\nmode=1\nblock=false\nread_only=false\n", -EBADMSG},
		{NODE "colour=red\n", -EPROTONOSUPPORT},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_expect_eq(parse_summed(bad[i].lines), bad[i].r, "%s", bad[i].lines);
	/* So many nodes, with names and keys so long. */
	char lines[4096];
	for (unsigned more = 0; more < 2; more++) {
		int n = 0;
		for (unsigned i = 0; i < ATTACHMENTS_MAX + more; i++)
			n += snprintf(lines + n, sizeof(lines) - (size_t)n,
				"node=%u\nmode=7\nblock=false\nread_only=true\n", i);
		cr_expect_eq(parse_summed(lines), more ? -EBADMSG : 0);
		snprintf(lines, sizeof(lines), "node=%0*u\nmode=1\nblock=false\nread_only=true\n",
			ATTACHMENT_NODE_MAX + (int)more, 1);
		cr_expect_eq(parse_summed(lines), more ? -EBADMSG : 0);
		snprintf(
			lines, sizeof(lines), NODE "key=%0*u\n", ATTACHMENT_KEY_MAX + (int)more, 1);
		cr_expect_eq(parse_summed(lines), more ? -EBADMSG : 0);
	}
	struct attachments *none = NULL;
	cr_expect_lt(attachments_parse("ringvol-attachments 2\n", 22, &none), 0);
}
