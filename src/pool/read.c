/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file of volumes/ or snapshots/ as it lies there: its record, its size, its blocks. A file
 * whose record cannot be read is told so in a sentence, and nothing is changed.
 */
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

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
	if (r == -ENOMEM || r == -EMFILE || r == -ENFILE)
		return r;
	if (r < 0)
		found.why = why_of(r);
	found.image_bytes = (uint64_t)st.st_size;
	found.allocated_bytes = (uint64_t)st.st_blocks * 512;
	found.image_dev = st.st_dev;
	found.image_ino = st.st_ino;
	found.truncated = found.rec != NULL && found.image_bytes < found.rec->size_bytes;
	*ret = found;
	return 0;
}
