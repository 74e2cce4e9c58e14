/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/import_source.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	MIB = 1 << 20,
	COPY_BYTES = 1 << 20,
	TREE_MORE_BYTES = 32 * MIB, /* beside a quarter: what the file system needs for itself */
	INODE_BYTES = 4096,         /* of a file in the tree, beside what it holds */
	TAR_MAGIC_AT = 257,
	HEAD_BYTES = 512,
};

/* ---- looking ---- */

static uint64_t tree_bytes; /* nftw() has no argument of the caller's */

static int add_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)path;
	(void)ftw;
	if (type == FTW_DNR || type == FTW_NS)
		return -EACCES;
	tree_bytes += (uint64_t)st->st_blocks * 512 + INODE_BYTES;
	return 0;
}

static uint64_t with_room(uint64_t bytes)
{
	return (bytes + bytes / 4 + TREE_MORE_BYTES + MIB - 1) / MIB * MIB;
}

/* Of what was opened, whatever has its name by now; and of no other file system. */
static int look_at_tree(struct import_source *s, struct err *err)
{
	enum { OPEN_DIRS = 32 };
	char path[64];
	s->kind = IMPORT_TREE;
	tree_bytes = 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d/.", s->fd);
	int r = nftw(path, add_file, OPEN_DIRS, FTW_PHYS | FTW_MOUNT);
	if (r != 0)
		return err_sys(err, r < -1 ? r : -errno, "reading all of %s", s->path);
	s->need_bytes = with_room(tree_bytes);
	return 0;
}

/* Of tar, or of something that tar(1) unpacks first. */
static bool is_archive(const uint8_t *head, size_t len, bool *ret_packed)
{
	static const struct {
		const char *bytes;
		size_t len;
	} packers[] = {{"\x1f\x8b", 2}, {"\x28\xb5\x2f\xfd", 4},
		{"\xfd"
		 "7zXZ",
			5},
		{"BZh", 3}};
	*ret_packed = false;
	for (unsigned i = 0; i < sizeof(packers) / sizeof(packers[0]); i++)
		if (len >= packers[i].len && memcmp(head, packers[i].bytes, packers[i].len) == 0)
			return *ret_packed = true;
	return len > TAR_MAGIC_AT + 5 && memcmp(head + TAR_MAGIC_AT, "ustar", 5) == 0;
}

static int look_at_image(struct import_source *s, uint64_t bytes, struct err *err)
{
	struct fsimg_probe probe;
	s->kind = IMPORT_RAW;
	s->need_bytes = bytes;
	/* Partition tables count in blocks, and a file system may have blocks as small as these. */
	int size = 512;
	s->block_size = ioctl(s->fd, BLKSSZGET, &size) == 0 && size > 512 ? 4096 : 512;
	if (bytes == 0)
		return err_set(err, ERR_INVALID, "%s is empty", s->path);
	int r = fsimg_probe_fd(s->fd, &probe);
	if (r < 0)
		return err_sys(err, r, "reading %s", s->path);
	if (probe.type == FSIMG_NONE)
		return 0;
	if (probe.fs_bytes > bytes)
		return err_set(err, ERR_INVALID,
			"%s is cut short: it has %" PRIu64 " bytes, and its file system %" PRIu64,
			s->path, bytes, probe.fs_bytes);
	const char *unfit = fsimg_why_unfit(&probe);
	if (unfit != NULL)
		return err_set(err, ERR_INVALID, "%s: its file system %s", s->path, unfit);
	s->fs = probe.type;
	return 0;
}

static int look_at_file(struct import_source *s, uint64_t bytes, struct err *err)
{
	uint8_t head[HEAD_BYTES];
	bool packed;
	ssize_t len = pread(s->fd, head, sizeof(head), 0);
	if (len < 0)
		return err_sys(err, -errno, "reading %s", s->path);
	if (!is_archive(head, (size_t)len, &packed))
		return look_at_image(s, bytes, err);
	s->kind = IMPORT_ARCHIVE;
	s->need_bytes = packed ? 0 : with_room(bytes);
	return 0;
}

int import_source_open(struct import_source *s, const char *path, struct err *err)
{
	struct stat st;
	*s = (struct import_source){.path = path, .fd = -1};
	if (strcmp(path, "-") == 0) {
		s->path = "standard input";
		s->kind = IMPORT_STREAM;
		return 0;
	}
	s->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (s->fd < 0 || fstat(s->fd, &st) < 0)
		return err_sys(err, -errno, "opening %s", path);
	if (S_ISDIR(st.st_mode))
		return look_at_tree(s, err);
	if (S_ISREG(st.st_mode))
		return look_at_file(s, (uint64_t)st.st_size, err);
	if (!S_ISBLK(st.st_mode))
		return err_set(err, ERR_INVALID, "%s is no file, directory or block device", path);
	off_t end = lseek(s->fd, 0, SEEK_END);
	return end < 0 ? err_sys(err, -errno, "the size of %s", path)
		       : look_at_image(s, (uint64_t)end, err);
}

void import_source_close(struct import_source *s)
{
	if (s->path != NULL)
		fd_close(&s->fd);
}

/* ---- raw images ---- */

static int fail_shorter(const struct import_source *s, struct err *err)
{
	return err_set(err, ERR_INVALID, "%s has become shorter meanwhile", s->path);
}

static int copy_range(const struct import_source *s, int to, uint64_t at, uint64_t end,
	uint8_t *buf, const volatile sig_atomic_t *interrupted, struct err *err)
{
	while (at < end) {
		size_t want = end - at < COPY_BYTES ? (size_t)(end - at) : COPY_BYTES;
		if (*interrupted)
			return err_sys(err, -EINTR, "reading %s", s->path);
		ssize_t n = pread(s->fd, buf, want, (off_t)at);
		if (n == 0)
			return fail_shorter(s, err);
		if (n < 0 && errno != EINTR)
			return err_sys(err, -errno, "reading %s", s->path);
		for (ssize_t done = 0, w; done < n; done += w) {
			w = pwrite(to, buf + done, (size_t)(n - done), (off_t)at + done);
			if (w < 0 && errno == EINTR)
				w = 0;
			if (w < 0)
				return err_sys(err, -errno, "writing the volume");
		}
		at += n > 0 ? (uint64_t)n : 0;
	}
	return 0;
}

/* No more data: a hole up to the end, or the end came nearer. */
static int check_hole(const struct import_source *s, struct err *err)
{
	struct stat st;
	if (fstat(s->fd, &st) < 0)
		return err_sys(err, -errno, "reading %s", s->path);
	return (uint64_t)st.st_size < s->need_bytes ? fail_shorter(s, err) : 0;
}

/* A new volume reads as zeros, so holes are left out. */
static int copy_image(const struct import_source *s, int to, uint8_t *buf,
	const volatile sig_atomic_t *interrupted, struct err *err)
{
	uint64_t end = s->need_bytes;
	for (uint64_t at = 0; at < end;) {
		off_t data = lseek(s->fd, (off_t)at, SEEK_DATA);
		if (data < 0 && errno == ENXIO)
			return check_hole(s, err);
		/* A block device has no holes to tell of. */
		uint64_t from = data < 0 ? at : (uint64_t)data;
		off_t hole = data < 0 ? (off_t)end : lseek(s->fd, data, SEEK_HOLE);
		uint64_t upto = hole < 0 || (uint64_t)hole > end ? end : (uint64_t)hole;
		int r = copy_range(s, to, from, upto, buf, interrupted, err);
		if (r < 0)
			return r;
		at = upto;
	}
	return 0;
}

static int write_image(const struct import_source *s, const char *target,
	const volatile sig_atomic_t *interrupted, struct err *err)
{
	int r = 0, to = open(target, O_WRONLY | O_CLOEXEC);
	uint8_t *buf = malloc(COPY_BYTES);
	if (to < 0)
		r = err_sys(err, -errno, "opening %s", target);
	else if (buf == NULL)
		r = err_set(err, ERR_NO_ROOM, "out of memory");
	if (r == 0)
		r = copy_image(s, to, buf, interrupted, err);
	if (r == 0 && fsync(to) < 0)
		r = err_sys(err, -errno, "writing the volume");
	free(buf);
	fd_close(&to);
	return r;
}

/* ---- trees ---- */

/* tar, with in_fd and out_fd as its standard input and output (-1: ours). */
static int start_tar(char *const *argv, int in_fd, int out_fd, pid_t *ret, struct err *err)
{
	posix_spawn_file_actions_t actions;
	int r = posix_spawn_file_actions_init(&actions);
	if (r == 0 && in_fd >= 0)
		r = posix_spawn_file_actions_adddup2(&actions, in_fd, STDIN_FILENO);
	if (r == 0 && out_fd >= 0)
		r = posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
	if (r == 0)
		r = posix_spawnp(ret, "tar", &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return r == 0 ? 0 : err_sys(err, -r, "starting tar, which has to be installed");
}

/* Waits for it; with *interrupted it is ended. */
static int end_tar(pid_t pid, const volatile sig_atomic_t *interrupted, struct err *err)
{
	int status;
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			return err_sys(err, -errno, "waiting for tar");
		if (*interrupted)
			kill(pid, SIGKILL);
	}
	if (*interrupted)
		return err_sys(err, -EINTR, "unpacking");
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		return err_set(err, ERR_INTERNAL,
			"tar has failed (%s %d), and says why above; if the volume is too small, say --size",
			WIFEXITED(status) ? "status" : "signal",
			WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	return 0;
}

/* What is already open: tar takes a name with ':' for another host's, and a name may come to be
 * another file's. */
#define OPENED "/proc/self/fd/0"

/* archive: OPENED, which may be packed, or "-" for a stream. */
static int unpack(const char *archive, int in_fd, const char *target, pid_t *ret, struct err *err)
{
	char *const argv[] = {"tar", "--extract", "--file", (char *)archive, "--directory",
		(char *)target, "--preserve-permissions", "--same-owner", "--numeric-owner",
		"--xattrs", "--xattrs-include=*", "--acls", "--selinux", NULL};
	return start_tar(argv, in_fd, -1, ret, err);
}

static int pack(int dir_fd, int out_fd, pid_t *ret, struct err *err)
{
	char *const argv[] = {"tar", "--create", "--file", "-", "--directory", OPENED,
		"--numeric-owner", "--xattrs", "--acls", "--selinux", "--sparse",
		"--one-file-system", ".", NULL};
	return start_tar(argv, dir_fd, out_fd, ret, err);
}

static int copy_tree(const struct import_source *s, const char *target,
	const volatile sig_atomic_t *interrupted, struct err *err)
{
	int pipe_fds[2];
	pid_t packer = -1, unpacker = -1;
	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return err_sys(err, -errno, "pipe");
	int r = pack(s->fd, pipe_fds[1], &packer, err);
	if (r == 0)
		r = unpack("-", pipe_fds[0], target, &unpacker, err);
	fd_close(&pipe_fds[0]);
	fd_close(&pipe_fds[1]);
	if (packer > 0) {
		int ended = end_tar(packer, interrupted, err);
		r = r < 0 ? r : ended;
	}
	if (unpacker > 0) {
		int ended = end_tar(unpacker, interrupted, err);
		r = r < 0 ? r : ended;
	}
	return r;
}

int import_source_check_target(const struct import_source *s, const char *target, struct err *err)
{
	struct stat st, parent;
	int fd = open(target, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	bool right = fd >= 0 && fstat(fd, &st) == 0;
	if (right && s->kind == IMPORT_RAW)
		right = S_ISBLK(st.st_mode);
	else if (right)
		right = S_ISDIR(st.st_mode) && fstatat(fd, "..", &parent, 0) == 0 &&
			st.st_dev != parent.st_dev;
	fd_close(&fd);
	return right ? 0
		     : err_set(err, ERR_PRECONDITION,
			       "what the driver has published at %s is not seen from here: run the import in the mount namespace of the driver, as in its container",
			       target);
}

static int sync_tree(const char *target, struct err *err)
{
	int fd = open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = fd < 0 || syncfs(fd) < 0 ? err_sys(err, -errno, "syncing %s", target) : 0;
	fd_close(&fd);
	return r;
}

int import_source_write(const struct import_source *s, const char *target,
	const volatile sig_atomic_t *interrupted, struct err *err)
{
	pid_t pid;
	int r;
	if (s->kind == IMPORT_RAW)
		return write_image(s, target, interrupted, err);
	if (s->kind == IMPORT_TREE) {
		r = copy_tree(s, target, interrupted, err);
	} else {
		r = unpack(s->kind == IMPORT_STREAM ? "-" : OPENED, s->fd, target, &pid, err);
		if (r == 0)
			r = end_tar(pid, interrupted, err);
	}
	return r < 0 ? r : sync_tree(target, err);
}
