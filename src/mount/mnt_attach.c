/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mounting, binding and unmounting with the mount API of file descriptors: the target is opened
 * once by the rules of mnt_path.c, looked at, and mounted on by that descriptor, so no path is
 * walked twice. Only unmounting still wants a name: it is given relative to the directory that was
 * opened.
 *
 * Targets lie where mnt_path.c allows them, and what is mounted on is empty: nothing is hidden.
 * What fails removes the target it made, and nothing else. An unmount acts only on mounts of the
 * device it was told.
 */
#include "mount/mnt_attach.h"

#include "base/fd.h"
#include "mount/mnt_fs.h"
#include "mount/mnt_look.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

enum {
	STACKED_MAX = 16, /* mounts of one device on top of each other, unmounted in one call */
	TARGET_DIR_MODE = 0750,
	TARGET_FILE_MODE = 0600,
};

/* ---- mount ---- */

/* Options that belong to the mount, not to the file system. */
static const struct {
	const char *name;
	uint64_t set, clear;
} attributes[] = {
	{"ro", MOUNT_ATTR_RDONLY, 0},
	{"rw", 0, 0},
	{"defaults", 0, 0},
	{"nosuid", MOUNT_ATTR_NOSUID, 0},
	{"suid", 0, MOUNT_ATTR_NOSUID},
	{"nodev", MOUNT_ATTR_NODEV, 0},
	{"dev", 0, MOUNT_ATTR_NODEV},
	{"noexec", MOUNT_ATTR_NOEXEC, 0},
	{"exec", 0, MOUNT_ATTR_NOEXEC},
	{"nodiratime", MOUNT_ATTR_NODIRATIME, 0},
	{"diratime", 0, MOUNT_ATTR_NODIRATIME},
	{"nosymfollow", MOUNT_ATTR_NOSYMFOLLOW, 0},
	{"relatime", MOUNT_ATTR_RELATIME, MOUNT_ATTR__ATIME},
	{"atime", MOUNT_ATTR_RELATIME, MOUNT_ATTR__ATIME},
	{"noatime", MOUNT_ATTR_NOATIME, MOUNT_ATTR__ATIME},
	{"strictatime", MOUNT_ATTR_STRICTATIME, MOUNT_ATTR__ATIME},
};

static bool apply_attribute(const char *option, uint64_t *attrs)
{
	for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
		if (strcmp(option, attributes[i].name) == 0) {
			*attrs = (*attrs & ~attributes[i].clear) | attributes[i].set;
			return true;
		}
	return false;
}

/* The first error the kernel wrote into the context's log ("e ext4: ..."), if it wrote any. */
static void read_log(int fs_fd, char *why)
{
	char line[MNT_WHY_BYTES];
	ssize_t n;
	while ((n = read(fs_fd, line, sizeof line - 1)) > 0) {
		line[n] = '\0';
		while (n > 0 && line[n - 1] == '\n')
			line[--n] = '\0';
		if (n > 2 && line[0] == 'e' && line[1] == ' ')
			mnt_why(why, 0, "%s", line + 2);
	}
}

static int set_option(int fs_fd, char *option)
{
	char *value = strchr(option, '=');
	if (value != NULL)
		*value++ = '\0';
	unsigned command = value != NULL ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
	return fsconfig(fs_fd, command, option, value, 0) < 0 ? -errno : 0;
}

/* It goes to the kernel as it is: only a list of options would need quotes around its commas. A
 * kernel without SELinux leaves it to the file system, which knows no such option. */
static int set_label(int fs_fd, const char *label, char *why)
{
	if (label[0] == '\0' || fsconfig(fs_fd, FSCONFIG_SET_STRING, "context", label, 0) == 0)
		return 0;
	int r = -errno;
	return mnt_why(why, r,
		"mount option context: this kernel does not take SELinux labels: "
		"SELinux is off on this node, or has no policy");
}

static int configure(int fs_fd, const struct mnt_mount_req *req, uint64_t *attrs, char *why)
{
	char options[MNT_OPTIONS_BYTES], *save = NULL;
	memcpy(options, req->options, sizeof options);
	bool read_only = req->read_only;
	if (fsconfig(fs_fd, FSCONFIG_SET_STRING, "source", req->device, 0) < 0)
		return -errno;
	/* mkfs's own default. A superblock that a tenant wrote may say "panic", and the node would;
	 * options that follow may say "remount-ro", but not that. */
	if (req->type == FSIMG_EXT4 &&
		fsconfig(fs_fd, FSCONFIG_SET_STRING, "errors", "continue", 0) < 0)
		return -errno;
	for (char *o = strtok_r(options, ",", &save); o != NULL; o = strtok_r(NULL, ",", &save)) {
		if (strcmp(o, "ro") == 0)
			read_only = true;
		/* Added below; btrfs and ext4 do not know it, XFS does not mind it twice. */
		if (apply_attribute(o, attrs) || strcmp(o, "nouuid") == 0)
			continue;
		int r = set_option(fs_fd, o);
		if (r < 0) {
			read_log(fs_fd, why);
			return mnt_why(why, r, "mount option %s", o);
		}
	}
	int labelled = set_label(fs_fd, req->label, why);
	if (labelled < 0)
		return labelled;
	if (read_only) {
		*attrs |= MOUNT_ATTR_RDONLY;
		if (fsconfig(fs_fd, FSCONFIG_SET_FLAG, "ro", NULL, 0) < 0)
			return -errno;
	}
	/* Clones and restored snapshots carry the UUID of what they were made from. */
	if (req->type == FSIMG_XFS && fsconfig(fs_fd, FSCONFIG_SET_FLAG, "nouuid", NULL, 0) < 0)
		return -errno;
	if (fsconfig(fs_fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return -errno;
	return 0;
}

/* 0, or -ENOTEMPTY. */
static int check_empty(const struct mnt_place *place, char *why)
{
	_cleanup_dir_ DIR *dir = NULL;
	_cleanup_fd_ int fd = mnt_place_open(place, O_RDONLY | O_DIRECTORY);
	int r = fd < 0 ? fd : fd_open_dir(fd, &dir);
	if (r < 0)
		return mnt_why(why, r, "cannot look into the target directory");
	if (fd_next_entry(dir, &r) != NULL)
		return mnt_why(why, -ENOTEMPTY, "the target directory is not empty");
	return r < 0 ? mnt_why(why, r, "cannot look into the target directory") : 0;
}

/* Uses what is there if it is of the right type, empty and no mount, else makes it. */
static int make_target(const struct mnt_place *place, bool block, bool *ret_made, char *why)
{
	struct mnt_look look;
	int r = mnt_place_look(place, &look, why);
	if (r < 0)
		return r;
	*ret_made = false;
	if (look.exists && S_ISLNK(look.mode))
		return mnt_why(why, -ELOOP, "the target is a symbolic link");
	if (look.exists && look.is_mount)
		return mnt_why(why, -EEXIST, "something is mounted on the target");
	if (look.exists && !block && !S_ISDIR(look.mode))
		return mnt_why(why, -ENOTDIR, "the target is not a directory");
	if (look.exists && block && S_ISDIR(look.mode))
		return mnt_why(why, -EISDIR, "the target is a directory");
	if (look.exists && block && !S_ISREG(look.mode))
		return mnt_why(why, -EEXIST, "the target is no regular file");
	r = mnt_target_check(place, why);
	if (r < 0)
		return r;
	if (look.exists && block && look.size_bytes > 0)
		return mnt_why(why, -ENOTEMPTY, "the target is a file with content");
	if (look.exists)
		return block ? 0 : check_empty(place, why);
	if (!block && mkdirat(place->parent_fd, place->name, TARGET_DIR_MODE) < 0)
		return mnt_why(why, -errno, "cannot make the target directory");
	if (block) {
		int fd = openat(place->parent_fd, place->name,
			O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, TARGET_FILE_MODE);
		if (fd < 0)
			return mnt_why(why, -errno, "cannot make the target file");
		close(fd);
	}
	*ret_made = true;
	return 0;
}

/* An empty directory that is no mount, opened. fd or -errno. */
static int open_mount_target(const struct mnt_place *place, char *why)
{
	struct mnt_look look;
	int r = mnt_place_look(place, &look, why);
	if (r < 0)
		return r;
	if (!look.exists)
		return mnt_why(why, -ENOENT, "the target directory is missing");
	if (S_ISLNK(look.mode))
		return mnt_why(why, -ELOOP, "the target is a symbolic link");
	if (!S_ISDIR(look.mode))
		return mnt_why(why, -ENOTDIR, "the target is not a directory");
	if (look.is_mount)
		return mnt_why(why, -EEXIST, "something is mounted on the target");
	r = mnt_target_check(place, why);
	if (r == 0)
		r = check_empty(place, why);
	return r < 0 ? r : mnt_place_open(place, O_PATH | O_DIRECTORY);
}

/* mount_fd is a mount that is at no place yet. */
static int give_uuid(const struct mnt_mount_req *req, int mount_fd, char *why)
{
	_cleanup_fd_ int root = openat(mount_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = root < 0 ? -errno : mnt_set_uuid(root, req->uuid, why);
	if (r != -EOPNOTSUPP && r != -ENOTTY)
		return r;
	why[0] = '\0';
	return 0;
}

static int mount_place(const struct mnt_mount_req *req, const struct mnt_place *place, char *why)
{
	uint64_t attrs = 0;
	_cleanup_fd_ int target = open_mount_target(place, why);
	if (target < 0)
		return target;
	_cleanup_fd_ int fs_fd = fsopen(fsimg_name(req->type), FSOPEN_CLOEXEC);
	if (fs_fd < 0)
		return mnt_why(why, -errno, "this kernel has no %s", fsimg_name(req->type));
	int r = configure(fs_fd, req, &attrs, why);
	_cleanup_fd_ int mount_fd = -1;
	if (r == 0) {
		mount_fd = fsmount(fs_fd, FSMOUNT_CLOEXEC, (unsigned)attrs);
		r = mount_fd < 0 ? -errno : 0;
	}
	if (r == 0 && req->set_uuid)
		r = give_uuid(req, mount_fd, why);
	if (r == 0 && req->view_read_only) {
		struct mount_attr view = {.attr_set = MOUNT_ATTR_RDONLY};
		r = mount_setattr(mount_fd, "", AT_EMPTY_PATH, &view, sizeof view) < 0 ? -errno : 0;
	}
	if (r == 0 && move_mount(mount_fd, "", target, "",
			      MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
		r = -errno;
	if (r < 0) {
		read_log(fs_fd, why);
		return mnt_why(
			why, r, "mounting %s as %s failed", req->device, fsimg_name(req->type));
	}
	return 0;
}

/* "/dev/" and one more name. */
static bool is_device_path(const char *path, size_t size)
{
	static const char dev[] = "/dev/";
	size_t len = strnlen(path, size);
	return len < size && len > sizeof dev - 1 && strncmp(path, dev, sizeof dev - 1) == 0 &&
	       strchr(path + sizeof dev - 1, '/') == NULL && path[sizeof dev - 1] != '.';
}

int mnt_call_mount(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_mount_req *mount_req = req;
	struct mnt_result *result = mnt_begin(req_len, sizeof *mount_req, resp, resp_len);
	if (result == NULL)
		return -EINVAL;
	if (mount_req->type <= FSIMG_NONE || mount_req->type >= FSIMG_TYPES ||
		!is_device_path(mount_req->device, sizeof mount_req->device) ||
		strnlen(mount_req->options, MNT_OPTIONS_BYTES) == MNT_OPTIONS_BYTES ||
		strnlen(mount_req->label, FSIMG_LABEL_BYTES) == FSIMG_LABEL_BYTES)
		return mnt_why(result->why, -EINVAL, "not a device, type or options to mount");
	_cleanup_place_ struct mnt_place place = MNT_PLACE_NONE;
	int r = mnt_place_find(mount_req->target, sizeof mount_req->target, &place, result->why);
	bool made = false;
	if (r == 0 && mount_req->make_target)
		r = make_target(&place, false, &made, result->why);
	if (r == 0)
		r = mount_place(mount_req, &place, result->why);
	if (r < 0 && made)
		unlinkat(place.parent_fd, place.name, AT_REMOVEDIR);
	return r;
}

/* ---- bind ---- */

static int open_bind_source(const struct mnt_bind_req *req, char *why)
{
	_cleanup_place_ struct mnt_place place = MNT_PLACE_NONE;
	struct mnt_look look;
	int r = mnt_find_and_look(req->source, sizeof req->source, &place, &look, why);
	if (r < 0)
		return r;
	if (!look.exists)
		return mnt_why(why, -ENOENT, "the source is missing");
	if (req->block && !S_ISBLK(look.mode))
		return mnt_why(why, -ENOTBLK, "the source is not a block device");
	if (!req->block && (!S_ISDIR(look.mode) || !look.is_mount))
		return mnt_why(why, -EINVAL, "nothing is mounted on the source");
	return mnt_place_open(&place, O_PATH);
}

static int bind_to(
	const struct mnt_bind_req *req, int source, const struct mnt_place *place, char *why)
{
	_cleanup_fd_ int target = mnt_place_open(place, O_PATH);
	if (target < 0)
		return target;
	_cleanup_fd_ int tree =
		open_tree(source, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
	if (tree < 0)
		return mnt_why(why, -errno, "cloning the source's mount failed");
	struct mount_attr attr = {
		.attr_set = req->read_only ? MOUNT_ATTR_RDONLY : 0,
		.attr_clr = req->writable && !req->read_only ? MOUNT_ATTR_RDONLY : 0,
	};
	if ((attr.attr_set | attr.attr_clr) != 0 &&
		mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
		return mnt_why(why, -errno, "making the bind mount %s failed",
			req->read_only ? "read-only" : "writable");
	if (move_mount(tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
		return mnt_why(why, -errno, "putting the bind mount on the target failed");
	return 0;
}

int mnt_call_bind(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_bind_req *bind_req = req;
	struct mnt_result *result = mnt_begin(req_len, sizeof *bind_req, resp, resp_len);
	if (result == NULL)
		return -EINVAL;
	_cleanup_place_ struct mnt_place place = MNT_PLACE_NONE;
	int r = mnt_place_find(bind_req->target, sizeof bind_req->target, &place, result->why);
	if (r < 0)
		return r;
	_cleanup_fd_ int source = open_bind_source(bind_req, result->why);
	if (source < 0)
		return source;
	bool made;
	r = make_target(&place, bind_req->block, &made, result->why);
	if (r < 0)
		return r;
	r = bind_to(bind_req, source, &place, result->why);
	if (r < 0 && made)
		unlinkat(place.parent_fd, place.name, bind_req->block ? 0 : AT_REMOVEDIR);
	return r;
}

/* ---- unmount ---- */

/* umount2() takes names only. The helper's working directory is nobody else's. */
static int unmount_name(const struct mnt_place *place)
{
	if (fchdir(place->parent_fd) < 0)
		return -errno;
	int r = umount2(place->name, UMOUNT_NOFOLLOW) < 0 ? -errno : 0;
	if (chdir("/") < 0 && r == 0)
		r = -errno;
	return r;
}

static int unmount_all(const struct mnt_unmount_req *req, const struct mnt_place *place,
	struct mnt_look *look, char *why)
{
	for (int i = 0; look->exists && look->is_mount; i++) {
		if (req->dev_major == 0 || look->dev_major != req->dev_major ||
			look->dev_minor != req->dev_minor)
			return mnt_why(why, -EXDEV, "device %u:%u is mounted there, not %u:%u",
				look->dev_major, look->dev_minor, req->dev_major, req->dev_minor);
		if (i == STACKED_MAX)
			return mnt_why(
				why, -EBUSY, "more than %d mounts are stacked there", STACKED_MAX);
		int r = unmount_name(place);
		if (r < 0)
			return mnt_why(
				why, r, r == -EBUSY ? "the mount is in use" : "unmounting failed");
		r = mnt_place_look(place, look, why);
		if (r < 0)
			return r;
	}
	return 0;
}

/* What a target may be once nothing is mounted on it; whether a directory is empty its removal
 * tells. */
static bool is_bare(const struct mnt_look *look)
{
	return look->exists &&
	       (S_ISDIR(look->mode) || (S_ISREG(look->mode) && look->size_bytes == 0));
}

/* An empty directory or an empty file, as a bind makes them; anything else is somebody's and stays.
 */
static int remove_target(const struct mnt_place *place, const struct mnt_look *look, char *why)
{
	if (!is_bare(look))
		return 0;
	if (unlinkat(place->parent_fd, place->name, S_ISDIR(look->mode) ? AT_REMOVEDIR : 0) == 0 ||
		errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST)
		return 0;
	return mnt_why(why, -errno, "removing the target failed");
}

int mnt_call_unmount(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_unmount_req *unmount = req;
	struct mnt_result *result = mnt_begin(req_len, sizeof *unmount, resp, resp_len);
	if (result == NULL)
		return -EINVAL;
	_cleanup_place_ struct mnt_place place = MNT_PLACE_NONE;
	struct mnt_look look;
	int r = mnt_place_find(unmount->target, sizeof unmount->target, &place, result->why);
	if (r == -ENOENT) {
		result->why[0] = '\0';
		return 0;
	}
	if (r == 0)
		r = mnt_place_look(&place, &look, result->why);
	bool was_mount = r == 0 && look.exists && look.is_mount;
	if (r == 0)
		r = unmount_all(unmount, &place, &look, result->why);
	if (r < 0 || !unmount->remove)
		return r;
	if (mnt_target_may_go(&place, was_mount, unmount->trusted))
		return remove_target(&place, &look, result->why);
	result->stays = is_bare(&look);
	return 0;
}
