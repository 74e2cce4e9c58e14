/* SPDX-License-Identifier: Apache-2.0 */
/* What users may pass to mkfs and mount: each limit from both sides, and what a refusal says.
 * test_fsimg.c gives what is allowed to the tools. */
#include "blockio/fsimg.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *refusal(enum fsimg_type type, const char *options)
{
	static struct err err;
	err = (struct err){0};
	int r = fsimg_check_mkfs_options(type, options, &err);
	cr_assert_eq(r == 0, err.code == ERR_OK);
	cr_assert(r == 0 || err.code == ERR_INVALID);
	return r == 0 ? "" : err.message;
}

/* What a tenant wrote is repeated, but only as far as it is plain text. */
Test(fsimg_options, a_refusal_names_the_option)
{
	static const struct {
		enum fsimg_type type;
		const char *options, *said;
	} cases[] = {
		{FSIMG_EXT4, "-m 1 -F", "mkfsOptions: \"-F\" is not allowed for ext4"},
		{FSIMG_EXT4, "-F -m 1", "mkfsOptions: \"-F\" is not allowed for ext4"},
		{FSIMG_EXT4, "  -m  x -N 1", "mkfsOptions: \"-m  x\" is not allowed for ext4"},
		{FSIMG_EXT4, "-E test_fs", "mkfsOptions: \"-E test_fs\" is not allowed for ext4"},
		{FSIMG_EXT4, "-E", "mkfsOptions: \"-E\" is not allowed for ext4"},
		{FSIMG_XFS, "-L /dev/x", "mkfsOptions: \"-L\" is not allowed for xfs"},
		{FSIMG_XFS, "-d name=/x", "mkfsOptions: \"-d name=/x\" is not allowed for xfs"},
		{FSIMG_BTRFS, "--csum=md5", "mkfsOptions: \"--csum=md5\" is not allowed for btrfs"},
		{FSIMG_BTRFS, "-m \"", "mkfsOptions: \"\" is not allowed for btrfs"},
		{FSIMG_BTRFS, "-m \x1b[2J", "mkfsOptions: \"\" is not allowed for btrfs"},
		{FSIMG_NONE, "-m 0", "mkfsOptions: \"-m\" is not allowed for a raw block volume"},
		{FSIMG_NONE, "  ", ""},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect_str_eq(refusal(cases[i].type, cases[i].options), cases[i].said, "%s",
			cases[i].options);
	char text[128] = "-F", said[256];
	for (unsigned len = 99; len <= 100; len++) {
		memset(text + 2, 'x', len - 2);
		text[len] = '\0';
		snprintf(said, sizeof(said), "mkfsOptions: \"%s\" is not allowed for ext4",
			len < 100 ? text : "");
		cr_expect_str_eq(refusal(FSIMG_EXT4, text), said);
	}
}

Test(fsimg_options, so_long_and_so_many_at_most)
{
	char text[600];
	memset(text, ' ', sizeof(text));
	memcpy(text, "-m 1", 4);
	text[512] = '\0';
	cr_expect_str_eq(refusal(FSIMG_EXT4, text), "");
	text[512] = ' ';
	text[513] = '\0';
	cr_expect_str_eq(refusal(FSIMG_EXT4, text), "mkfsOptions is longer than 512 bytes");
	for (unsigned count = 16; count <= 17; count++) {
		text[0] = '\0';
		for (unsigned i = 0; i < count; i++)
			strcat(text, i % 2 == 0 ? " -m 1" : " -m1");
		cr_expect_str_eq(refusal(FSIMG_EXT4, text),
			count == 16 ? "" : "mkfsOptions has more than 16 options");
	}
}

/* A value in the same word or in the next one; none where there is none to have. */
Test(fsimg_options, where_a_value_stands)
{
	static const struct {
		enum fsimg_type type;
		const char *options;
		bool allowed;
	} cases[] = {
		{FSIMG_EXT4, "-b1024", true},
		{FSIMG_EXT4, "-b 4096", true},
		{FSIMG_EXT4, "-b=4096", false},
		{FSIMG_EXT4, "-b 409", false},
		{FSIMG_EXT4, "-b 40960", false},
		{FSIMG_EXT4, "-b 1024|2048", false},
		{FSIMG_EXT4, "-b |", false},
		{FSIMG_EXT4, "-E root_owner", true},
		{FSIMG_EXT4, "-E root_owner=", false},
		{FSIMG_EXT4, "-E root_owner=1:2", true},
		{FSIMG_EXT4, "-E stride", false},
		{FSIMG_EXT4, "-E stride=", false},
		{FSIMG_EXT4, "-E stride=1,", false},
		{FSIMG_EXT4, "-E stride=1,,nodiscard", false},
		{FSIMG_EXT4, "-E assume_storage_prezeroed=1", true},
		{FSIMG_EXT4, "-E assume_storage_prezeroed=0", false},
		{FSIMG_EXT4, "-m .5", false},
		{FSIMG_EXT4, "-m 0.5", true},
		{FSIMG_EXT4, "-m b", false},
		{FSIMG_EXT4, "-i 1k", true},
		{FSIMG_BTRFS, "--csum xxhash", true},
		{FSIMG_BTRFS, "--csum=xxhash", true},
		{FSIMG_BTRFS, "--csum=", false},
		{FSIMG_BTRFS, "--csum=xxhas", false},
		{FSIMG_BTRFS, "--csumxxhash", false},
		{FSIMG_BTRFS, "--mixed", true},
		{FSIMG_BTRFS, "-M", true},
		{FSIMG_BTRFS, "-M1", false},
		{FSIMG_BTRFS, "-M -n 16384", true},
		{FSIMG_BTRFS, "-ddup", true},
		{FSIMG_BTRFS, "-d", false},
		{FSIMG_BTRFS, "-O no-holes,^free-space-tree", true},
		{FSIMG_BTRFS, "-Ono-holes", true},
		{FSIMG_XFS, "-dagcount=2", true},
		{FSIMG_XFS, "-d agcount=2=3", false},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect_eq(refusal(cases[i].type, cases[i].options)[0] == '\0', cases[i].allowed,
			"%s", cases[i].options);
}

Test(fsimg_options, mount_flags_and_their_values)
{
	static const struct {
		enum fsimg_type type;
		const char *flag;
		bool allowed;
	} cases[] = {
		{FSIMG_BTRFS, "discard", true},
		{FSIMG_BTRFS, "discard=async", true},
		{FSIMG_BTRFS, "discard=sync", true},
		{FSIMG_BTRFS, "discard=asyn", false},
		{FSIMG_BTRFS, "discard=", false},
		{FSIMG_BTRFS, "space_cache=v2", true},
		{FSIMG_BTRFS, "space_cache=v3", false},
		{FSIMG_BTRFS, "compress=zstd:15", true},
		{FSIMG_BTRFS, "compress=/", false},
		{FSIMG_EXT4, "errors=remount-ro", true},
		{FSIMG_EXT4, "errors", false},
		{FSIMG_EXT4, "barrier", true},
		{FSIMG_EXT4, "barrier=0", true},
		{FSIMG_EXT4, "data=writeback", true},
		{FSIMG_EXT4, "data=none", false},
		{FSIMG_EXT4, "noacl=1", false},
		{FSIMG_EXT4, "=", false},
		{FSIMG_EXT4, "inode64", false},
		{FSIMG_XFS, "inode64", true},
		{FSIMG_XFS, "logbsize=256k", true},
		{FSIMG_XFS, "logbsize=k256", false},
		{FSIMG_XFS, "ro", true},
		{FSIMG_NONE, "noatime", false},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect_eq(fsimg_mount_flag_ok(cases[i].type, cases[i].flag), cases[i].allowed,
			"%s", cases[i].flag);
}

Test(fsimg_options, labels)
{
	static const struct {
		const char *label;
		bool is_one;
	} cases[] = {
		{"user_u:role_r:type_t", true},
		{"user_u:role_r:type_t:s0", true},
		{"user_u:role_r:type_t:s0-s0:c0.c1023,c7", true},
		{"user_u:role_r:type_t:", false},
		{"user_u:role_r:", false},
		{"user_u:role_r", false},
		{"user_u", false},
		{"", false},
		{":role_r:type_t", false},
		{"user_u::type_t", false},
		{"user,u:role_r:type_t", false},
		{"user_u:role_r:type t", false},
		{"user_u:role_r:type_t:s0 ", false},
		{"user_u:role_r:type_t:s0\"", false},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect_eq(fsimg_label_ok(cases[i].label), cases[i].is_one, "%s", cases[i].label);
}
