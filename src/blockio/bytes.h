/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of image files: synchronous calls for work jobs, and the copy, which runs on the ring.
 * Offsets and sizes in bytes. All return 0 or -errno.
 */
#ifndef RINGVOL_BLOCKIO_BYTES_H
#define RINGVOL_BLOCKIO_BYTES_H

#include "reactor/op.h"

#include <stdbool.h>
#include <stdint.h>

/* Sets the size; with thick, allocates [0, size) for good (zeroed on read). -EOPNOTSUPP where the
 * file system has no fallocate. Never shrinks: -EINVAL if the file is larger. */
int bytes_resize(int fd, uint64_t size, bool thick);
/* Makes dst (an empty file) share all extents of src: FICLONE. -EOPNOTSUPP or -EXDEV where the
 * file system cannot. */
int bytes_reflink(int src_fd, int dst_fd);
/* Asks the file system to keep extents of this many bytes together (XFS extent size hint), so that
 * later reflinks stay cheap. Where there is no such thing, nothing happens: 0. */
int bytes_hint_extent_size(int fd, uint32_t extent_bytes);
/* Allocated bytes (st_blocks * 512) and size. */
int bytes_usage(int fd, uint64_t *ret_allocated, uint64_t *ret_size);

/* Takes the image's lock, flock(LOCK_EX), and looks for users who do not know of it (a loop device
 * or a copy made by hand). fd is open read-write. 0: locked and open nowhere else; 1: locked, but
 * somebody has it open; -EWOULDBLOCK: somebody has the lock. The lock lives as long as fd. SIGIO
 * must be ignored: an open at the wrong moment sends one. */
int bytes_lock(int fd);

/* Alignment direct I/O on this file needs, in bytes; 0 when it has none or nobody can tell. */
uint32_t bytes_dio_align(int fd);

/* What a directory's file system can do, found by trying on an unnamed file (blocking, leaves
 * nothing). */
struct bytes_features {
	bool reflink;    /* FICLONE works */
	bool direct_io;  /* O_DIRECT opens */
	bool tmpfile;    /* O_TMPFILE and linking it works; pools need it */
	bool xattr;      /* trusted.* attributes work; pools need them */
	bool fallocate;  /* thick volumes need it */
	bool discard;    /* the disk below takes discards: eraseOnDelete: discard needs it */
	bool nocow_lies; /* copy-on-write by nature (btrfs): thick and eraseOnDelete are refused */
	uint32_t dio_align; /* bytes: alignment of direct I/O, 512 or 4096; 0 without direct_io */
	/* The same for a file that shares extents: XFS asks for whole blocks there (as of Linux
	 * 6.18), and loop drops direct I/O without a word for smaller sectors. */
	uint32_t shared_dio_align;
	uint64_t fs_type; /* statfs f_type */
	/* ext2, and ext4 made without a journal, which have ext4's fs_type. Also true of an ext4 of
	 * which sysfs does not tell. */
	bool no_journal;
};
/* What that means to who runs it, and what to do. */
#define BYTES_NO_JOURNAL                                                                           \
	"after a loss of power it needs e2fsck and may have lost more than was being written"
#define BYTES_NO_JOURNAL_REMEDY "tune2fs -O has_journal, while it is not mounted"
/* -ENOSPC, -EDQUOT: it is too full to try. */
int bytes_probe(int dirfd, struct bytes_features *ret);
/* What can be told of a full one, by a file that is there: fs_type, no_journal, nocow_lies,
 * discard, direct_io. The rest is assumed to be there, until there is room to try. */
int bytes_probe_full(int dirfd, const char *name, struct bytes_features *ret);
/* A name that is linked and unlinked meanwhile; a probe that was killed may leave it. */
#define BYTES_PROBE_NAME ".ringvol-probe"
/* "xfs" for XFS's fs_type and so on; NULL for one without a name here. */
const char *bytes_fs_name(uint64_t fs_type);

enum {
	COPY_BUFFER_BYTES = 1 << 20,
	COPY_IN_FLIGHT = 16, /* buffers of one copy: some are being read while others are written */
};

/*
 * Copies the data of src to dst through the ring, COPY_IN_FLIGHT buffers at once; holes of src stay
 * holes of dst (dst: fresh, or preallocated when the volume is thick). Direct I/O when both fds
 * were opened with O_DIRECT. Ends after the last write; making it durable is the caller's.
 * With COPY_ZEROS it overwrites the data of dst in place instead, and src_fd is not looked at; what
 * was never written holds nothing, and stays so.
 * Run as a child operation. Cancel by setting `stop`; the copy then ends with -ECANCELED.
 */
enum copy_kind { COPY_DATA, COPY_ZEROS };

struct copy {
	struct op op;
	/* set before copy_init(); stop too: true ends it before it begins */
	enum copy_kind kind;
	int src_fd, dst_fd;
	uint64_t size; /* bytes of src to look at */
	/* progress, readable at any time from the loop */
	uint64_t done_bytes;   /* data copied */
	uint64_t looked_bytes; /* offset up to which src is done */
	bool stop;
	/* private */
	struct copy_state *state;
};
void copy_init(struct copy *copy, struct reactor *reactor);

#endif
