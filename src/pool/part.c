/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts. Happy path: open or make the file, lock it, read what the attribute says of it; the fill
 * notes how far it is; the build takes the attribute away and renames the file.
 *
 * A part is worth nothing but time. What its attribute does not say clearly is not true, and it is
 * begun anew. Nothing of it counts as durable but what was noted after a sync.
 *
 * But one that is finished, which another attribute says, may be all there is of a volume that has
 * left where it was. Nothing here removes it or cuts it, and where that attribute cannot be read it
 * counts as there.
 */
#include "pool/part.h"

#include "base/fd.h"
#include "blockio/copy_walk.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/xattr.h>
#include <time.h>

#define PART_XATTR          "trusted.ringvol.part"
#define PART_FINISHED_XATTR "trusted.ringvol.finished"
#define PART_HEAD           "ringvol-part 1"
enum { PART_TEXT_MAX = POOL_PART_OF_MAX + 128, OPEN_TRIES = 8 };

void pool_part_name(const char *key, char ret_name[POOL_PART_NAME_BYTES])
{
	snprintf(ret_name, POOL_PART_NAME_BYTES, POOL_PART_PREFIX "%s", key);
}

bool pool_part_name_valid(const char *name)
{
	size_t len = strlen(POOL_PART_PREFIX);
	return strncmp(name, POOL_PART_PREFIX, len) == 0 && record_key_valid(name + len);
}

/* All but the offset, which comes last. */
static int print_head(char *text, size_t cap, const struct pool_part *part, uint64_t size_bytes)
{
	int n = snprintf(
		text, cap, PART_HEAD "\nof=%s\nsize=%" PRIu64 "\nfrom=", part->of, size_bytes);
	return n > 0 && (size_t)n < cap ? n : -E2BIG;
}

int pool_part_note(int fd, const struct pool_part *part, uint64_t size_bytes, uint64_t from_bytes)
{
	char text[PART_TEXT_MAX];
	int head = print_head(text, sizeof(text), part, size_bytes);
	if (head < 0)
		return head;
	size_t room = sizeof(text) - (size_t)head;
	int n = snprintf(text + head, room, "%" PRIu64 "\n", from_bytes);
	if (n < 0 || (size_t)n >= room)
		return -E2BIG;
	return fsetxattr(fd, PART_XATTR, text, (size_t)head + (size_t)n, 0) < 0 ? -errno : 0;
}

/* False: it is another's, or does not say. */
static bool read_from(int fd, const struct pool_part *part, uint64_t size_bytes, uint64_t *ret_from)
{
	char text[PART_TEXT_MAX], want[PART_TEXT_MAX], end;
	ssize_t len = fgetxattr(fd, PART_XATTR, text, sizeof(text) - 1);
	int head = print_head(want, sizeof(want), part, size_bytes);
	if (len < 0 || head < 0 || len <= head || memcmp(text, want, (size_t)head) != 0)
		return false;
	text[len] = '\0';
	uint64_t from;
	int used = 0;
	if (sscanf(text + head, "%" SCNu64 "%c%n", &from, &end, &used) != 2 || end != '\n' ||
		head + used != len || from > size_bytes || from != copy_round_down(from))
		return false;
	*ret_from = from;
	return true;
}

/* A file that is empty, and says that it is. */
static int make(int copies_fd, const char *name, const struct pool_part *part, uint64_t size_bytes,
	int flags, int *ret_fd)
{
	int fd = openat(copies_fd, name, (flags & ~O_NONBLOCK) | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return -errno;
	int r = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : pool_part_note(fd, part, size_bytes, 0);
	if (r < 0) {
		unlinkat(copies_fd, name, 0);
		close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

/* The sweep locks and unlinks in two steps: what was opened before may have no name any more, or
 * another file may have it. */
static bool has_name(int fd, int copies_fd, const char *name)
{
	struct stat st, named;
	return fstat(fd, &st) == 0 && fstatat(copies_fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_dev == named.st_dev && st.st_ino == named.st_ino;
}

/* Bytes behind what is durable would stay where what comes has a hole. */
static int take_up(int fd, const struct pool_part *part, int open_flags, uint64_t *ret_allocated)
{
	struct stat st;
	if (fcntl(fd, F_SETFL, open_flags) < 0 || ftruncate(fd, (off_t)part->from_bytes) < 0 ||
		fstat(fd, &st) < 0)
		return -errno;
	*ret_allocated = (uint64_t)st.st_blocks * 512;
	return 0;
}

int pool_part_open(int copies_fd, const char *name, struct pool_part *part, uint64_t size_bytes,
	int open_flags, int *ret_fd, uint64_t *ret_allocated)
{
	int flags = open_flags | O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	struct stat st;
	part->from_bytes = 0;
	part->finished = false;
	*ret_allocated = 0;
	int fd, r;
	for (unsigned tries = 0;; tries++) {
		fd = openat(copies_fd, name, flags);
		if (fd < 0 && errno == ENOENT)
			return make(copies_fd, name, part, size_bytes, flags, ret_fd);
		if (fd < 0)
			return -errno;
		r = flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &st) < 0 ? -errno : 0;
		if (r < 0 || has_name(fd, copies_fd, name))
			break;
		close(fd);
		if (tries == OPEN_TRIES)
			return -EAGAIN;
	}
	part->finished = r == 0 && pool_part_fd_is_finished(fd);
	if (r == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size <= size_bytes &&
		read_from(fd, part, size_bytes, &part->from_bytes)) {
		if (part->finished)
			part->from_bytes = (uint64_t)st.st_size;
		if (take_up(fd, part, open_flags, ret_allocated) == 0) {
			*ret_fd = fd;
			return 0;
		}
	}
	part->from_bytes = 0;
	if (part->finished)
		r = -EBUSY;
	if (r == 0 && unlinkat(copies_fd, name, 0) < 0)
		r = -errno;
	close(fd);
	return r < 0 ? r : make(copies_fd, name, part, size_bytes, flags, ret_fd);
}

/* ---- finished ---- */

int pool_part_finish(int copies_fd, int fd, const struct record *rec, const char *text, size_t len)
{
	char record[RECORD_BYTES_MAX];
	struct record alone = *rec;
	alone.shares_extents = false;
	alone.family = "";
	int n = len > POOL_PART_TEXT_MAX ? -E2BIG : record_print(&alone, record, sizeof(record));
	if (n < 0)
		return n;
	/* What it says of the bytes must not be durable before they are. */
	if (fsetxattr(fd, RECORD_XATTR, record, (size_t)n, 0) < 0 || fsync(fd) < 0 ||
		fsetxattr(fd, PART_FINISHED_XATTR, text, len, 0) < 0)
		return -errno;
	return fsync(fd) < 0 || fsync(copies_fd) < 0 ? -errno : 0;
}

int pool_part_unfinish(int fd)
{
	if (fremovexattr(fd, PART_FINISHED_XATTR) < 0 && errno != ENODATA)
		return -errno;
	return fsync(fd) < 0 ? -errno : 0;
}

ssize_t pool_part_text(int fd, char text[POOL_PART_TEXT_MAX])
{
	ssize_t len = fgetxattr(fd, PART_FINISHED_XATTR, text, POOL_PART_TEXT_MAX);
	return len < 0 ? -errno : len;
}

bool pool_part_fd_is_finished(int fd)
{
	return fgetxattr(fd, PART_FINISHED_XATTR, NULL, 0) >= 0 || errno != ENODATA;
}

bool pool_part_is_finished(int copies_fd, const char *key)
{
	char name[POOL_PART_NAME_BYTES];
	pool_part_name(key, name);
	_cleanup_fd_ int fd =
		openat(copies_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	return fd < 0 ? errno != ENOENT && errno != ELOOP && errno != ENXIO
		      : pool_part_fd_is_finished(fd);
}

struct part_find {
	int copies_fd;
	const char *pool_uuid8, *random;
	char *key;
	bool *finished;
	bool found;
};

/* What it is made of begins with the volume's id, whose middle is the part's key. */
static int find_one(void *arg, const char *name)
{
	struct part_find *f = arg;
	char text[PART_TEXT_MAX], of[sizeof(PART_HEAD) + 8 + RECORD_ID_MAX];
	if (f->found || !pool_part_name_valid(name))
		return 0;
	_cleanup_fd_ int fd =
		openat(f->copies_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	ssize_t len = fgetxattr(fd, PART_XATTR, text, sizeof(text) - 1);
	if (len < 0)
		return errno == ENODATA ? 0 : -errno;
	text[len] = '\0';
	const char *key = name + strlen(POOL_PART_PREFIX);
	int n = snprintf(of, sizeof(of), PART_HEAD "\nof=%s.%s.%s ", f->pool_uuid8, key, f->random);
	if (n < 0 || (size_t)n >= sizeof(of) || strncmp(text, of, (size_t)n) != 0)
		return 0;
	f->found = true;
	snprintf(f->key, RECORD_KEY_MAX, "%s", key);
	*f->finished = pool_part_fd_is_finished(fd);
	return 0;
}

int pool_part_find(int copies_fd, const char *pool_uuid8, const char *random,
	char ret_key[RECORD_KEY_MAX], bool *ret_finished)
{
	struct part_find f = {copies_fd, pool_uuid8, random, ret_key, ret_finished, false};
	int r = fd_each_name(copies_fd, find_one, &f);
	return r < 0 ? r : f.found;
}

/* The second first: without it, it is like any other part. */
int pool_part_forget(int fd)
{
	if (fremovexattr(fd, PART_FINISHED_XATTR) < 0 && errno != ENODATA)
		return -errno;
	return fremovexattr(fd, PART_XATTR) < 0 && errno != ENODATA ? -errno : 0;
}

static int sweep_one(void *arg, const char *name)
{
	int copies_fd = *(const int *)arg;
	struct stat st;
	if (!pool_part_name_valid(name))
		return 0;
	_cleanup_fd_ int fd =
		openat(copies_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	/* Whoever fills it has the lock. */
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
		time(NULL) - st.st_mtime < POOL_PART_KEEP_S || flock(fd, LOCK_EX | LOCK_NB) < 0 ||
		!has_name(fd, copies_fd, name) || pool_part_fd_is_finished(fd))
		return 0;
	(void)unlinkat(copies_fd, name, 0);
	return 0;
}

int pool_parts_sweep(int copies_fd)
{
	return fd_each_name(copies_fd, sweep_one, &copies_fd);
}
