/* SPDX-License-Identifier: Apache-2.0 */
/* Volume capabilities: what is taken, what is refused and by which name. */
#include "csi/access.h"
#include "csi/messages.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define MODE(name) CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__##name

/* A capability and all it points to. */
struct cap {
	Csi__V1__VolumeCapability cap;
	Csi__V1__VolumeCapability__AccessMode mode;
	Csi__V1__VolumeCapability__BlockVolume block;
	Csi__V1__VolumeCapability__MountVolume mount;
	ProtobufCBinaryData flags[4];
};

static Csi__V1__VolumeCapability *base(struct cap *c, int mode)
{
	csi__v1__volume_capability__init(&c->cap);
	csi__v1__volume_capability__access_mode__init(&c->mode);
	csi__v1__volume_capability__block_volume__init(&c->block);
	csi__v1__volume_capability__mount_volume__init(&c->mount);
	c->mode.mode = (Csi__V1__VolumeCapability__AccessMode__Mode)mode;
	c->cap.access_mode = &c->mode;
	return &c->cap;
}

static Csi__V1__VolumeCapability *block(struct cap *c, int mode)
{
	base(c, mode);
	c->cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK;
	c->cap.block = &c->block;
	return &c->cap;
}

static Csi__V1__VolumeCapability *mount(struct cap *c, int mode, const char *fs)
{
	base(c, mode);
	c->cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT;
	c->cap.mount = &c->mount;
	c->mount.fs_type = csi_bytes(fs);
	c->mount.mount_flags = c->flags;
	return &c->cap;
}

static void flag(struct cap *c, const char *value)
{
	c->flags[c->mount.n_mount_flags++] = csi_bytes(value);
}

static void refused(const Csi__V1__VolumeCapability *cap, const char *names)
{
	struct csi_access access;
	struct err err = {0};
	cr_expect_lt(csi_access_parse(cap, FSIMG_EXT4, &access, &err), 0);
	cr_expect_eq(err.code, ERR_INVALID);
	cr_expect_not_null(strstr(err.message, names), "'%s' does not name %s", err.message, names);
}

Test(access, modes)
{
	struct cap c;
	struct csi_access access;
	struct err err = {0};
	cr_assert_eq(
		csi_access_parse(block(&c, MODE(SINGLE_NODE_WRITER)), FSIMG_EXT4, &access, &err),
		0);
	cr_expect(access.block && !access.read_only && !access.single_writer);
	cr_expect_eq(access.fs, FSIMG_NONE);
	cr_assert_eq(csi_access_parse(
			     block(&c, MODE(SINGLE_NODE_READER_ONLY)), FSIMG_EXT4, &access, &err),
		0);
	cr_expect(access.read_only);
	cr_assert_eq(csi_access_parse(
			     block(&c, MODE(SINGLE_NODE_SINGLE_WRITER)), FSIMG_EXT4, &access, &err),
		0);
	cr_expect(access.single_writer && !access.read_only);
	cr_assert_eq(csi_access_parse(
			     block(&c, MODE(SINGLE_NODE_MULTI_WRITER)), FSIMG_EXT4, &access, &err),
		0);
	cr_expect(!access.single_writer && !access.read_only);
}

Test(access, refused_modes)
{
	struct cap c;
	refused(block(&c, MODE(MULTI_NODE_READER_ONLY)), "MULTI_NODE_READER_ONLY");
	refused(block(&c, MODE(MULTI_NODE_SINGLE_WRITER)), "MULTI_NODE_SINGLE_WRITER");
	refused(block(&c, MODE(MULTI_NODE_MULTI_WRITER)), "MULTI_NODE_MULTI_WRITER");
	refused(block(&c, MODE(UNKNOWN)), "UNKNOWN");
	refused(block(&c, 99), "99");
	refused(block(&c, -1), "-1");
}

Test(access, missing_parts)
{
	struct cap c;
	refused(NULL, "volume_capability is missing");
	refused(base(&c, MODE(SINGLE_NODE_WRITER)), "access_type");
	block(&c, MODE(SINGLE_NODE_WRITER));
	c.cap.access_mode = NULL;
	refused(&c.cap, "access_mode is missing");
	mount(&c, MODE(SINGLE_NODE_WRITER), "");
	c.cap.mount = NULL;
	refused(&c.cap, "access_type");
	mount(&c, MODE(SINGLE_NODE_WRITER), "");
	c.cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE__NOT_SET;
	refused(&c.cap, "access_type");
}

Test(access, fs_type)
{
	struct cap c;
	struct csi_access access;
	struct err err = {0};
	cr_assert_eq(
		csi_access_parse(mount(&c, MODE(SINGLE_NODE_WRITER), ""), FSIMG_XFS, &access, &err),
		0);
	cr_expect(!access.fs_given && access.fs == FSIMG_XFS && !access.block);
	cr_assert_eq(csi_access_parse(
			     mount(&c, MODE(SINGLE_NODE_WRITER), ""), FSIMG_NONE, &access, &err),
		0);
	cr_expect(!access.fs_given && access.fs == FSIMG_EXT4);
	cr_assert_eq(csi_access_parse(mount(&c, MODE(SINGLE_NODE_WRITER), "btrfs"), FSIMG_XFS,
			     &access, &err),
		0);
	cr_expect(access.fs_given && access.fs == FSIMG_BTRFS);
	refused(mount(&c, MODE(SINGLE_NODE_WRITER), "zfs"), "zfs");
	mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
	c.mount.volume_mount_group = csi_bytes("1000");
	refused(&c.cap, "volume_mount_group");
}

Test(access, mount_flags)
{
	struct cap c;
	struct csi_access access;
	struct err err = {0};
	mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
	flag(&c, "noatime");
	flag(&c, "nodev,nosuid");
	cr_assert_eq(csi_access_parse(&c.cap, FSIMG_EXT4, &access, &err), 0, "%s", err.message);
	cr_expect_str_eq(access.options, "noatime,nodev,nosuid");

	static const char *const bad[] = {"bind", "remount", "loop", "noatime,bind", "", "noatime,",
		"journal_path=/dev/sda", "nonsense"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
		flag(&c, bad[i]);
		err_clear(&err);
		cr_expect_lt(csi_access_parse(&c.cap, FSIMG_EXT4, &access, &err), 0, "%s", bad[i]);
		cr_expect_eq(err.code, ERR_INVALID);
	}
}

Test(access, mount_flags_are_not_told)
{
	struct cap c;
	struct csi_access access;
	static const char *const secrets[] = {"password=hunter2", "hunter2", "commit=hunter2",
		"noatime,hunter2", "hunter2=commit,noatime"};
	for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++) {
		struct err err = {0};
		mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
		flag(&c, "noatime");
		flag(&c, secrets[i]);
		cr_expect_lt(csi_access_parse(&c.cap, FSIMG_EXT4, &access, &err), 0);
		cr_expect_str_eq(err.message, "mount_flags: flag 2 is not allowed for ext4");
	}
}

Test(access, mount_flag_ro)
{
	struct cap c;
	struct csi_access access;
	struct err err = {0};
	static const char *const read_only[] = {"ro", "noatime,ro", "ro,nodev", "ro,ro"};
	for (size_t i = 0; i < sizeof(read_only) / sizeof(read_only[0]); i++) {
		mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
		flag(&c, read_only[i]);
		cr_assert_eq(csi_access_parse(&c.cap, FSIMG_EXT4, &access, &err), 0);
		cr_expect(access.read_only, "%s", read_only[i]);
	}
	static const char *const writable[] = {"rw", "errors=remount-ro", "noatime"};
	for (size_t i = 0; i < sizeof(writable) / sizeof(writable[0]); i++) {
		mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
		flag(&c, writable[i]);
		cr_assert_eq(csi_access_parse(&c.cap, FSIMG_EXT4, &access, &err), 0);
		cr_expect(!access.read_only, "%s", writable[i]);
	}
	mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
	flag(&c, "ro");
	flag(&c, "noatime,rw");
	refused(&c.cap, "ro and rw");
}

Test(access, mount_flags_too_long)
{
	struct cap c;
	struct csi_access access;
	struct err err = {0};
	char many[4000];
	size_t at = 0;
	while (at + 9 < sizeof(many))
		at += (size_t)sprintf(many + at, "noatime,");
	mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
	flag(&c, many);
	cr_expect_lt(csi_access_parse(&c.cap, FSIMG_EXT4, &access, &err), 0);
	cr_expect_eq(err.code, ERR_INVALID);

	/* Each flag is short enough, all together are not. */
	many[1000] = '\0';
	mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
	flag(&c, many);
	flag(&c, many);
	err_clear(&err);
	cr_expect_lt(csi_access_parse(&c.cap, FSIMG_EXT4, &access, &err), 0);
	cr_expect_eq(err.code, ERR_INVALID);
}

/* 128 of eight bytes each, with the commas between, are 1023: as much as there may be, in one flag
 * or in all. */
Test(access, mount_flags_that_just_fit)
{
	static const struct {
		const char *last;                 /* behind 127 of "noatime" */
		const char *one_flag, *two_flags; /* NULL: taken */
	} all[] = {
		{"noatime", NULL, NULL},
		{"nodev", NULL, NULL},
		{"relatime", "mount_flags: flag 1 is longer than 1023 bytes",
			"mount_flags: longer than 1023 bytes in all"},
	};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		for (unsigned flags = 1; flags <= 2; flags++) {
			struct cap c;
			struct csi_access access;
			struct err err = {0};
			char many[1100], want[1100];
			size_t at = 0;
			for (unsigned k = 0; k < 127; k++)
				at += (size_t)sprintf(many + at, "noatime,");
			snprintf(want, sizeof(want), "%s%s", many, all[i].last);
			mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
			many[at - 1] = '\0';
			flag(&c, flags == 1 ? want : many);
			if (flags == 2)
				flag(&c, all[i].last);
			const char *why = flags == 1 ? all[i].one_flag : all[i].two_flags;
			int r = csi_access_parse(&c.cap, FSIMG_EXT4, &access, &err);
			cr_expect_eq(r < 0, why != NULL, "%zu: %s", i, err.message);
			cr_expect_str_eq(err.message, why != NULL ? why : "");
			if (r == 0)
				cr_expect_str_eq(access.options, want);
		}
	}
}

Test(access, lists)
{
	struct cap a, b;
	struct csi_access access;
	struct err err = {0};
	cr_expect_lt(csi_access_parse_list(NULL, 0, FSIMG_EXT4, false, &access, &err), 0);
	cr_expect_eq(err.code, ERR_INVALID);

	Csi__V1__VolumeCapability *list[2];
	list[0] = mount(&a, MODE(SINGLE_NODE_READER_ONLY), "");
	list[1] = mount(&b, MODE(SINGLE_NODE_WRITER), "xfs");
	err_clear(&err);
	cr_assert_eq(csi_access_parse_list(list, 2, FSIMG_EXT4, false, &access, &err), 0);
	cr_expect(!access.read_only, "one of them writes");
	cr_expect(access.fs_given && access.fs == FSIMG_XFS);
	/* Whichever comes first. */
	list[0] = mount(&a, MODE(SINGLE_NODE_SINGLE_WRITER), "xfs");
	list[1] = mount(&b, MODE(SINGLE_NODE_READER_ONLY), "");
	cr_assert_eq(csi_access_parse_list(list, 2, FSIMG_EXT4, false, &access, &err), 0);
	cr_expect(access.single_writer && !access.read_only);
	cr_expect(access.fs_given && access.fs == FSIMG_XFS);
	list[0] = mount(&a, MODE(SINGLE_NODE_READER_ONLY), "");
	list[1] = mount(&b, MODE(SINGLE_NODE_SINGLE_WRITER), "");
	cr_assert_eq(csi_access_parse_list(list, 2, FSIMG_EXT4, false, &access, &err), 0);
	cr_expect(access.single_writer && !access.read_only && !access.fs_given);
	list[1] = mount(&b, MODE(SINGLE_NODE_READER_ONLY), "");
	cr_assert_eq(csi_access_parse_list(list, 2, FSIMG_EXT4, false, &access, &err), 0);
	cr_expect(!access.single_writer && access.read_only && !access.several);
	list[1] = mount(&b, MODE(SINGLE_NODE_WRITER), "xfs");

	list[0] = mount(&a, MODE(SINGLE_NODE_WRITER), "ext4");
	cr_expect_lt(csi_access_parse_list(list, 2, FSIMG_EXT4, false, &access, &err), 0);
	cr_expect_str_eq(
		err.message, "volume_capabilities: fs_type ext4 and xfs cannot both be had");

	list[0] = block(&a, MODE(SINGLE_NODE_WRITER));
	err_clear(&err);
	cr_expect_lt(csi_access_parse_list(list, 2, FSIMG_EXT4, false, &access, &err), 0);
	cr_expect_not_null(strstr(err.message, "block"));
}

/* Kubelet writes context="..." as a flag of its own, an administrator may write it in a list. */
Test(access, selinux_label)
{
	static const struct {
		const char *flags[3], *label, *options;
	} taken[] = {
		{{"context=\"system_u:object_r:container_file_t:s0:c10,c25\""},
			"system_u:object_r:container_file_t:s0:c10,c25", ""},
		{{"noatime,context=\"system_u:object_r:container_file_t:s0:c10,c25\",nodev"},
			"system_u:object_r:container_file_t:s0:c10,c25", "noatime,nodev"},
		{{"noatime", "context=\"a:b:c:s0-s0:c0.c1023\"", "ro"}, "a:b:c:s0-s0:c0.c1023",
			"noatime,ro"},
		{{"context=u_u:r-r:t.t"}, "u_u:r-r:t.t", ""},
		{{"context=\"a:b:c:s0\"", "context=a:b:c:s0"}, "a:b:c:s0", ""},
	};
	static const char *const wrong[] = {
		"context=",
		"context=\"\"",
		"context",
		"context=a:b",
		"context=a::c:s0",
		"context=a:b:c:",
		"context=a:b:c:s0,c2",
		"context=\"a:b:c:s0",
		"context=a:b:c:s0\"",
		"context=\"a:b:c:s0\"x",
		"context=\"a:b:c:s0 ro\"",
		"context=\"a:b:c/d:s0\"",
		"context=\"a:b:c:s0\"\"x:y:z\"",
		"fscontext=\"a:b:c:s0\"",
		"rootcontext=a:b:c",
		"defcontext=a:b:c",
		"noatime\"",
		"\"noatime\"",
		"seclabel",
		"context=\"a:b:c:s0\",context=\"a:b:c:s1\"",
		"context=a:b:c\n:s0",
	};
	struct csi_access access;
	struct err err = {0};
	struct cap c = {0};
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
		mount(&c, MODE(SINGLE_NODE_WRITER), "xfs");
		for (unsigned k = 0; k < 3 && taken[i].flags[k] != NULL; k++)
			flag(&c, taken[i].flags[k]);
		cr_assert_eq(csi_access_parse(&c.cap, FSIMG_EXT4, &access, &err), 0, "%zu: %s", i,
			err.message);
		cr_expect_str_eq(access.label, taken[i].label);
		cr_expect_str_eq(access.options, taken[i].options);
	}
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		mount(&c, MODE(SINGLE_NODE_WRITER), "ext4");
		flag(&c, wrong[i]);
		refused(&c.cap, "mount_flags: flag 1 ");
	}
	char label[FSIMG_LABEL_BYTES + 1] = "a:b:";
	memset(label + 4, 'c', sizeof(label) - 5);
	label[FSIMG_LABEL_BYTES] = '\0';
	cr_expect_not(fsimg_label_ok(label));
	label[FSIMG_LABEL_BYTES - 1] = '\0';
	cr_expect(fsimg_label_ok(label));
}

/* ---- where volumes can be attached to several nodes ---- */

static int parse_many(const Csi__V1__VolumeCapability *cap, struct csi_access *ret, struct err *err)
{
	return csi_access_parse_many(cap, FSIMG_EXT4, true, ret, err);
}

Test(access, several_nodes)
{
	struct cap c = {0};
	struct csi_access access;
	struct err err = {0};
	cr_assert_eq(parse_many(mount(&c, MODE(MULTI_NODE_READER_ONLY), ""), &access, &err), 0);
	cr_assert(access.several && access.read_only);
	cr_assert_eq(access.mode, MODE(MULTI_NODE_READER_ONLY));
	cr_assert_eq(parse_many(block(&c, MODE(MULTI_NODE_MULTI_WRITER)), &access, &err), 0);
	cr_assert(access.several && access.block && !access.read_only);
	cr_assert_eq(parse_many(block(&c, MODE(MULTI_NODE_SINGLE_WRITER)), &access, &err), 0);
	cr_assert(access.several);
	cr_assert_eq(parse_many(block(&c, MODE(SINGLE_NODE_WRITER)), &access, &err), 0);
	cr_assert_not(access.several);
	cr_assert_eq(csi_access_check_nodes(&access, false, &err), 0);

	static const int writers[] = {
		MODE(MULTI_NODE_SINGLE_WRITER), MODE(MULTI_NODE_MULTI_WRITER)};
	for (size_t i = 0; i < 2; i++) {
		struct err why = {0};
		cr_expect_lt(parse_many(mount(&c, writers[i], "xfs"), &access, &why), 0);
		cr_expect_not_null(strstr(why.message, "MULTI_NODE"), "%s", why.message);
		cr_expect_not_null(strstr(why.message, "block volume"), "%s", why.message);
	}
}

/* The class may still say that the volume is one node's. */
Test(access, several_nodes_in_a_list)
{
	struct cap c[2] = {0};
	struct csi_access access;
	struct err err = {0};
	Csi__V1__VolumeCapability *list[] = {mount(&c[0], MODE(SINGLE_NODE_WRITER), ""),
		mount(&c[1], MODE(MULTI_NODE_READER_ONLY), "")};
	cr_expect_lt(csi_access_parse_list(list, 2, FSIMG_EXT4, false, &access, &err), 0);
	err_clear(&err);
	cr_assert_eq(csi_access_parse_list(list, 2, FSIMG_EXT4, true, &access, &err), 0);
	cr_assert(access.several && !access.read_only);
	cr_expect_eq(access.mode, MODE(MULTI_NODE_READER_ONLY));
	cr_expect_lt(csi_access_check_nodes(&access, false, &err), 0);
	cr_expect_not_null(strstr(err.message, "attach: remote"), "%s", err.message);
	err_clear(&err);
	cr_expect_eq(csi_access_check_nodes(&access, true, &err), 0);
}

/* The list's mode is the first one's, and one for several nodes goes before others. */
Test(access, mode_of_a_list)
{
	static const int all[][3] = {
		{MODE(SINGLE_NODE_WRITER), MODE(SINGLE_NODE_MULTI_WRITER),
			MODE(SINGLE_NODE_WRITER)},
		{MODE(SINGLE_NODE_MULTI_WRITER), MODE(MULTI_NODE_MULTI_WRITER),
			MODE(MULTI_NODE_MULTI_WRITER)},
		{MODE(MULTI_NODE_READER_ONLY), MODE(SINGLE_NODE_WRITER),
			MODE(MULTI_NODE_READER_ONLY)},
		{MODE(MULTI_NODE_SINGLE_WRITER), MODE(MULTI_NODE_MULTI_WRITER),
			MODE(MULTI_NODE_SINGLE_WRITER)},
	};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct cap c[2] = {0};
		struct csi_access access;
		struct err err = {0};
		Csi__V1__VolumeCapability *list[] = {
			block(&c[0], all[i][0]), block(&c[1], all[i][1])};
		cr_assert_eq(csi_access_parse_list(list, 2, FSIMG_EXT4, true, &access, &err), 0);
		cr_expect_eq(access.mode, (unsigned)all[i][2], "%zu: %u", i, access.mode);
	}
}

/* A list of one is as that one, whatever was asked before. */
Test(access, a_list_of_one)
{
	static const struct {
		int mode;
		const char *fs; /* NULL: block */
	} all[] = {{MODE(SINGLE_NODE_WRITER), NULL}, {MODE(SINGLE_NODE_READER_ONLY), "xfs"},
		{MODE(SINGLE_NODE_SINGLE_WRITER), NULL}, {MODE(SINGLE_NODE_WRITER), "btrfs"},
		{MODE(SINGLE_NODE_WRITER), ""}};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct cap c;
		struct csi_access access, alone;
		struct err err = {0};
		Csi__V1__VolumeCapability *list[] = {all[i].fs == NULL
							     ? block(&c, all[i].mode)
							     : mount(&c, all[i].mode, all[i].fs)};
		cr_assert_eq(csi_access_parse(list[0], FSIMG_EXT4, &alone, &err), 0);
		cr_assert_eq(csi_access_parse_list(list, 1, FSIMG_EXT4, false, &access, &err), 0,
			"%zu: %s", i, err.message);
		cr_expect_eq(access.block, alone.block);
		cr_expect_eq(access.fs, alone.fs);
		cr_expect_eq(access.fs_given, alone.fs_given);
		cr_expect_eq(access.read_only, alone.read_only);
		cr_expect_eq(access.single_writer, alone.single_writer);
		cr_expect_eq(access.mode, alone.mode);
	}
}
