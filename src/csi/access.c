/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volume capabilities: how a volume is to be used. One is taken apart into a struct csi_access;
 * a list must agree with itself and is merged into one.
 *
 * What a volume of one node cannot give (several nodes at once) and what is not ours (file systems)
 * is refused by name; mount flags outside their allow list by their place, as they may be secrets.
 */
#include "csi/access.h"

#include "csi/request.h"
#include "mount/mnt.h"
#include "mount/mnt_scan.h"

#include <errno.h>
#include <string.h>

#define MODE(name) CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__##name

static const char *several_name(unsigned mode)
{
	switch (mode) {
	case MODE(MULTI_NODE_READER_ONLY):
		return "MULTI_NODE_READER_ONLY (ReadOnlyMany)";
	case MODE(MULTI_NODE_SINGLE_WRITER):
		return "MULTI_NODE_SINGLE_WRITER";
	default:
		return "MULTI_NODE_MULTI_WRITER (ReadWriteMany)";
	}
}

static int parse_mode(const Csi__V1__VolumeCapability__AccessMode *mode, bool many,
	struct csi_access *ret, struct err *err)
{
	if (mode == NULL)
		return err_set(err, ERR_INVALID, "volume_capability: access_mode is missing");
	ret->mode = (unsigned)mode->mode;
	/* The number may be any that the wire can carry. */
	switch ((int)mode->mode) {
	case MODE(SINGLE_NODE_WRITER):
	case MODE(SINGLE_NODE_MULTI_WRITER):
		return 0;
	case MODE(SINGLE_NODE_READER_ONLY):
		ret->read_only = true;
		return 0;
	case MODE(SINGLE_NODE_SINGLE_WRITER):
		ret->single_writer = true;
		return 0;
	case MODE(MULTI_NODE_READER_ONLY):
		ret->read_only = true;
		break;
	case MODE(MULTI_NODE_SINGLE_WRITER):
	case MODE(MULTI_NODE_MULTI_WRITER):
		break;
	case MODE(UNKNOWN):
		return err_set(err, ERR_INVALID, "volume_capability: access_mode is UNKNOWN");
	default:
		return err_set(err, ERR_INVALID,
			"volume_capability: access_mode %d is not known to this driver",
			(int)mode->mode);
	}
	ret->several = true;
	return csi_access_check_nodes(ret, many, err);
}

int csi_access_check_nodes(const struct csi_access *access, bool remote, struct err *err)
{
	if (!access->several || remote)
		return 0;
	return err_set(err, ERR_INVALID,
		"volume_capability: access_mode %s cannot be served, a volume lives on one node; ask for a SINGLE_NODE mode (ReadWriteOnce), or, with --attach, for a class with attach: remote",
		several_name(access->mode));
}

/* One node alone can write to a file system. */
static int check_writers(const struct csi_access *access, struct err *err)
{
	if (!access->several || access->block || access->read_only)
		return 0;
	return err_set(err, ERR_INVALID,
		"volume_capability: access_mode %s cannot be served for a file system, which one node alone can write to; ask for a block volume (volumeMode: Block), or for a SINGLE_NODE mode (ReadWriteOnce)",
		several_name(access->mode));
}

/* "context=..." as kubelet writes it: in double quotes, because of its commas. */
static int add_label(struct csi_access *ret, char *label, size_t nth, struct err *err)
{
	size_t len = strlen(label);
	if (len >= 2 && label[0] == '"' && label[len - 1] == '"') {
		label[len - 1] = '\0';
		label++;
	}
	if (!fsimg_label_ok(label))
		return err_set(err, ERR_INVALID,
			"mount_flags: flag %zu is no SELinux label (user:role:type:level)", nth);
	if (ret->label[0] != '\0' && strcmp(ret->label, label) != 0)
		return err_set(err, ERR_INVALID, "mount_flags: flag %zu is a second context", nth);
	strcpy(ret->label, label);
	return 0;
}

/* One option, which the client may have given in a list with commas: each is looked at. */
static int add_option(struct csi_access *ret, char *option, size_t nth, struct err *err)
{
	if (strncmp(option, "context=", strlen("context=")) == 0)
		return add_label(ret, option + strlen("context="), nth, err);
	if (!fsimg_mount_flag_ok(ret->fs, option))
		return err_set(err, ERR_INVALID, "mount_flags: flag %zu is not allowed for %s", nth,
			fsimg_name(ret->fs));
	size_t used = strlen(ret->options), len = strlen(option);
	if (used + 1 + len >= sizeof(ret->options))
		return err_set(err, ERR_INVALID, "mount_flags: longer than %zu bytes in all",
			sizeof(ret->options) - 1);
	if (used != 0)
		ret->options[used++] = ',';
	memcpy(ret->options + used, option, len + 1);
	return 0;
}

/* Cuts the first option off a list. Commas in double quotes are its own. */
static char *take_option(char **rest)
{
	char *option = *rest, *p = option;
	for (bool quoted = false; *p != '\0' && (quoted || *p != ','); p++)
		quoted ^= *p == '"';
	*rest = *p == ',' ? p + 1 : NULL;
	*p = '\0';
	return option;
}

/* nth: of the capability's flags, from 1 */
static int add_flag(struct csi_access *ret, const char *flag, size_t nth, struct err *err)
{
	char copy[sizeof(ret->options)];
	if (strlen(flag) >= sizeof(copy))
		return err_set(err, ERR_INVALID, "mount_flags: flag %zu is longer than %zu bytes",
			nth, sizeof(copy) - 1);
	strcpy(copy, flag);
	int r = 0;
	for (char *rest = copy; r == 0 && rest != NULL;)
		r = add_option(ret, take_option(&rest), nth, err);
	return r;
}

static int parse_mount(const Csi__V1__VolumeCapability__MountVolume *mount,
	enum fsimg_type default_fs, struct csi_access *ret, struct err *err)
{
	const char *type = csi_str(mount->fs_type);
	ret->fs = default_fs == FSIMG_NONE ? FSIMG_EXT4 : default_fs;
	ret->fs_given = type[0] != '\0';
	if (ret->fs_given && fsimg_parse_name(type, &ret->fs) < 0)
		return err_set(err, ERR_INVALID,
			"volume_capability: fs_type '%s' is not served; ext4, xfs and btrfs are",
			type);
	if (mount->volume_mount_group.len != 0)
		return err_set(err, ERR_INVALID,
			"volume_capability: volume_mount_group is not served (VOLUME_MOUNT_GROUP is not advertised)");
	for (size_t i = 0; i < mount->n_mount_flags; i++) {
		int r = add_flag(ret, csi_str(mount->mount_flags[i]), i + 1, err);
		if (r < 0)
			return r;
	}
	if (!mnt_has_option(ret->options, "ro"))
		return 0;
	if (mnt_has_option(ret->options, "rw"))
		return err_set(err, ERR_INVALID, "mount_flags: ro and rw cannot both be had");
	ret->read_only = true;
	return 0;
}

int csi_access_parse(const Csi__V1__VolumeCapability *cap, enum fsimg_type default_fs,
	struct csi_access *ret, struct err *err)
{
	return csi_access_parse_many(cap, default_fs, false, ret, err);
}

int csi_access_parse_many(const Csi__V1__VolumeCapability *cap, enum fsimg_type default_fs,
	bool many, struct csi_access *ret, struct err *err)
{
	struct csi_access access = {.fs = FSIMG_NONE};
	if (cap == NULL)
		return err_set(err, ERR_INVALID, "volume_capability is missing");
	int r = parse_mode(cap->access_mode, many, &access, err);
	if (r < 0)
		return r;
	if (cap->access_type_case == CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK) {
		access.block = true;
	} else if (cap->access_type_case == CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT &&
		   cap->mount != NULL) {
		r = parse_mount(cap->mount, default_fs, &access, err);
		if (r < 0)
			return r;
	} else {
		return err_set(err, ERR_INVALID,
			"volume_capability: access_type is missing; it is block or mount");
	}
	r = check_writers(&access, err);
	if (r == 0)
		*ret = access;
	return r;
}

/* What serves both `all` and one more. */
static int merge(struct csi_access *all, const struct csi_access *one, struct err *err)
{
	if (all->block != one->block)
		return err_set(err, ERR_INVALID,
			"volume_capabilities: a volume is either block or mount, not both");
	if (all->fs_given && one->fs_given && all->fs != one->fs)
		return err_set(err, ERR_INVALID,
			"volume_capabilities: fs_type %s and %s cannot both be had",
			fsimg_name(all->fs), fsimg_name(one->fs));
	if (one->fs_given) {
		all->fs_given = true;
		all->fs = one->fs;
	}
	all->read_only = all->read_only && one->read_only;
	all->single_writer = all->single_writer || one->single_writer;
	if (one->several && !all->several) {
		all->several = true;
		all->mode = one->mode;
	}
	return 0;
}

int csi_access_parse_list(Csi__V1__VolumeCapability **caps, size_t n, enum fsimg_type default_fs,
	bool many, struct csi_access *ret, struct err *err)
{
	struct csi_access all;
	if (n == 0)
		return err_set(err, ERR_INVALID, "volume_capabilities is missing");
	for (size_t i = 0; i < n; i++) {
		struct csi_access one;
		int r = csi_access_parse_many(caps[i], default_fs, many, &one, err);
		if (r == 0 && i == 0)
			all = one;
		else if (r == 0)
			r = merge(&all, &one, err);
		if (r < 0)
			return r;
	}
	*ret = all;
	return 0;
}
