/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies in a pool's directory.
 *
 * Making a directory a pool: its directories first, the file ringvol.pool last, linked when it is
 * written and durable. An attempt cut short leaves only empty directories of ours, and the next one
 * goes on from there.
 *
 * Reading one file of volumes/ or snapshots/ as it lies there: its record, its size, its blocks.
 * Where the record cannot be read, a sentence says why, and nothing is changed.
 *
 * Blocking: from the command line, or a work job.
 */
#include "pool/layout.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/uuid.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/xattr.h>

enum { LOCK_WAIT_MS = 512 }; /* the longest of the waits, each twice the one before */

#define POOL_HEAD "ringvol-pool 1\nuuid="

const char *const pool_dir_names[POOL_FDS] = {
	[POOL_FD_VOLUMES] = "volumes",
	[POOL_FD_SNAPSHOTS] = "snapshots",
	[POOL_FD_TEMPLATES] = "templates",
	[POOL_FD_TRASH] = "trash",
	[POOL_FD_COPIES] = "copies",
	[POOL_FD_GROUPS] = "groups",
	[POOL_FD_DEPARTED] = "departed",
};

int pool_file_read(int fd, char ret_uuid[POOL_UUID_BYTES])
{
	char text[128];
	size_t head = strlen(POOL_HEAD), uuid = POOL_UUID_BYTES - 1;
	ssize_t len = pread(fd, text, sizeof(text), 0);
	if (len < 0)
		return -errno;
	if ((size_t)len != head + uuid + 1 || memcmp(text, POOL_HEAD, head) != 0 ||
		text[head + uuid] != '\n')
		return -EBADMSG;
	text[head + uuid] = '\0';
	if (!uuid_valid(text + head))
		return -EBADMSG;
	memcpy(ret_uuid, text + head, uuid + 1);
	return 0;
}

int pool_lock_take(int fd)
{
	int r = flock(fd, LOCK_EX | LOCK_NB);
	for (unsigned ms = 1; r < 0 && errno == EWOULDBLOCK && ms <= LOCK_WAIT_MS; ms *= 2) {
		clock_sleep_ms(ms);
		r = flock(fd, LOCK_EX | LOCK_NB);
	}
	return r < 0 ? -errno : 0;
}

void pool_random_hex(char *buf, unsigned digits)
{
	unsigned char bytes[32];
	size_t len = digits / 2;
	assert(digits % 2 == 0 && len <= sizeof(bytes));
	/* So few bytes never come short once the kernel's generator is seeded. */
	while (getrandom(bytes, len, 0) != (ssize_t)len)
		;
	for (unsigned i = 0; i < len; i++)
		snprintf(buf + 2 * i, 3, "%02x", bytes[i]);
}

static bool is_our_dir(const char *name)
{
	for (unsigned i = 0; i < POOL_FDS; i++)
		if (pool_dir_names[i] != NULL && strcmp(pool_dir_names[i], name) == 0)
			return true;
	return false;
}

struct emptiness {
	int dirfd;
	bool top;
	char name[256]; /* of what is in the way */
};

/* Answers -ENOTEMPTY unless that name may be in the directory of a pool to come. */
static int check_name(void *arg, const char *name)
{
	struct emptiness *e = arg;
	if (e->top && strcmp(name, "lost+found") == 0)
		return 0;
	int r = -ENOTEMPTY;
	if (e->top && is_our_dir(name)) {
		_cleanup_fd_ int fd =
			openat(e->dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		struct emptiness below = {.dirfd = fd};
		r = fd < 0 ? -ENOTEMPTY : fd_each_name(fd, check_name, &below);
	}
	if (r == -ENOTEMPTY)
		snprintf(e->name, sizeof(e->name), "%s", name);
	return r;
}

static int make_dirs(int root)
{
	for (unsigned i = 0; i < POOL_FDS; i++) {
		if (pool_dir_names[i] == NULL)
			continue;
		if (mkdirat(root, pool_dir_names[i], 0700) < 0 && errno != EEXIST)
			return -errno;
		_cleanup_fd_ int dir = openat(
			root, pool_dir_names[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (dir < 0 || fsync(dir) < 0)
			return -errno;
	}
	return fsync(root) < 0 ? -errno : 0;
}

static int make_file(int root, const char *uuid)
{
	char drawn[POOL_UUID_BYTES], text[128];
	if (uuid == NULL) {
		uuid_draw(drawn);
		uuid = drawn;
	}
	int len = snprintf(text, sizeof(text), "%s%s\n", POOL_HEAD, uuid);
	_cleanup_fd_ int fd = openat(root, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	ssize_t written = write(fd, text, (size_t)len);
	if (written < 0)
		return -errno;
	if (written != len)
		return -ENOSPC;
	if (fsync(fd) < 0)
		return -errno;
	int r = fd_link(fd, root, POOL_FILE);
	if (r < 0)
		return r;
	/* Again: the log of btrfs takes no note of a file without a name, and with the directory
	 * only of the name. */
	return fsync(fd) < 0 || fsync(root) < 0 ? -errno : 0;
}

int pool_init_root(int root, const char *path, const char *uuid, struct fs_features *ret_features,
	bool *ret_existed, struct err *err)
{
	struct fs_features features;
	int r = fs_features_probe(root, &features);
	if (r < 0)
		return err_sys(err, r, "trying what the file system of %s can do", path);
	_cleanup_fd_ int file = openat(root, POOL_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (file >= 0) {
		char its_uuid[POOL_UUID_BYTES];
		r = pool_file_read(file, its_uuid);
		if (r < 0)
			return err_set(err, ERR_PRECONDITION,
				"%s has a " POOL_FILE " file that is damaged or of a later version",
				path);
		*ret_features = features;
		*ret_existed = true;
		return 0;
	}
	if (errno != ENOENT)
		return err_sys(err, -errno, "opening %s/" POOL_FILE, path);
	if (!features.tmpfile || !features.xattr)
		return err_set(err, ERR_PRECONDITION,
			"the file system of %s has no %s, a pool needs it: use XFS, ext4 or btrfs",
			path, features.tmpfile ? "trusted.* attributes" : "O_TMPFILE");
	struct emptiness empty = {.dirfd = root, .top = true};
	r = fd_each_name(root, check_name, &empty);
	if (r == -ENOTEMPTY)
		return err_set(err, ERR_PRECONDITION,
			"%s is not empty (there is %s): a pool is made in an empty directory", path,
			empty.name);
	if (r == 0)
		r = make_dirs(root);
	if (r == 0)
		r = make_file(root, uuid);
	if (r < 0 && r != -EEXIST) /* somebody else was as quick: it is a pool */
		return err_sys(err, r, "making %s a pool", path);
	*ret_features = features;
	*ret_existed = r == -EEXIST;
	return 0;
}

int pool_init_dir(
	const char *path, struct fs_features *ret_features, bool *ret_existed, struct err *err)
{
	int r = fd_make_dir(path, 0700);
	if (r < 0)
		return err_sys(err, r, "making the directory %s", path);
	_cleanup_fd_ int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_sys(err, -errno, "opening %s", path);
	return pool_init_root(root, path, NULL, ret_features, ret_existed, err);
}

/* ---- one object ---- */

static const char *why_of(int res)
{
	switch (res) {
	case -EBADMSG:
		return "its record is damaged";
	case -EPROTONOSUPPORT:
		return "its record is of a later version of ringvol";
	case -ENODATA:
		return "it has no record";
	case -E2BIG:
	case -ERANGE:
		return "its record is too large to be one of ours";
	case -EMEDIUMTYPE:
		return "it is not a regular file";
	case -EDOM:
		return "its record is of another kind than its directory";
	case -EUCLEAN:
		return "the note of the nodes that it is attached to is damaged, or of a later version of ringvol";
	}
	return "its record cannot be read";
}

/* Adds the claim to a record, if there is one and memory for it. */
static void read_claim(int fd, struct record **rec)
{
	char claim[RECORD_CLAIM_MAX + 1];
	ssize_t len = fgetxattr(fd, RECORD_CLAIM_XATTR, claim, RECORD_CLAIM_MAX);
	if (len <= 0)
		return;
	claim[len] = '\0';
	struct record with = **rec;
	with.claim = claim;
	struct record *made = record_new(&with);
	if (made == NULL)
		return;
	record_free(*rec);
	*rec = made;
}

/* Of a volume. Without all of them it might be given to a second node: what cannot be read is no
 * volume to be used. */
static int read_attachments(int fd, struct attachments **ret)
{
	ssize_t len = fgetxattr(fd, ATTACHMENTS_XATTR, NULL, 0);
	if (len < 0)
		return errno == ENODATA ? 0 : -errno;
	if (len > ATTACHMENTS_BYTES_MAX)
		return -EUCLEAN;
	char *text = malloc(ATTACHMENTS_BYTES_MAX);
	if (text == NULL)
		return -ENOMEM;
	len = fgetxattr(fd, ATTACHMENTS_XATTR, text, ATTACHMENTS_BYTES_MAX);
	int r = len < 0 ? -errno : attachments_parse(text, (size_t)len, ret);
	explicit_bzero(text, ATTACHMENTS_BYTES_MAX);
	free(text);
	return r == -EBADMSG || r == -EPROTONOSUPPORT ? -EUCLEAN : r;
}

static int read_record(int fd, const char *key, enum record_kind kind, struct record **ret)
{
	char text[RECORD_BYTES_MAX + 1];
	ssize_t len = fgetxattr(fd, RECORD_XATTR, text, sizeof(text));
	if (len < 0)
		return -errno;
	struct record *rec;
	int r = record_parse(text, (size_t)len, key, &rec);
	if (r < 0)
		return r;
	if (rec->kind != kind) {
		record_free(rec);
		return -EDOM;
	}
	read_claim(fd, &rec);
	*ret = rec;
	return 0;
}

int pool_read_object(int dirfd, const char *key, enum record_kind kind, struct pool_found *ret)
{
	struct stat st = {0};
	struct pool_found found = {.kind = kind};
	strcpy(found.key, key);
	/* O_NONBLOCK: a FIFO must not hold us up. */
	int open_errno = 0, r = 0;
	_cleanup_fd_ int fd =
		openat(dirfd, key, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		open_errno = errno;
	if (open_errno == ENOENT)
		return -ENOENT;
	if (open_errno == ELOOP || open_errno == ENXIO)
		r = -EMEDIUMTYPE;
	else if (open_errno != 0)
		r = -open_errno;
	else if (fstat(fd, &st) < 0)
		r = -errno;
	else if (!S_ISREG(st.st_mode))
		r = -EMEDIUMTYPE;
	else
		r = read_record(fd, key, kind, &found.rec);
	if (r == 0 && kind == RECORD_VOLUME)
		r = read_attachments(fd, &found.attachments);
	if (r < 0) {
		record_free(found.rec);
		found.rec = NULL;
	}
	if (r == -ENOMEM || r == -EMFILE || r == -ENFILE)
		return r;
	if (r < 0)
		found.why = why_of(r);
	found.image_bytes = (uint64_t)st.st_size;
	found.allocated_bytes = (uint64_t)st.st_blocks * 512;
	found.image_dev = st.st_dev;
	found.image_ino = st.st_ino;
	found.truncated = found.rec != NULL && found.image_bytes < record_image_bytes(found.rec);
	*ret = found;
	return 0;
}
