/* SPDX-License-Identifier: Apache-2.0 */
/* What a directory's file system can do. Synchronous, for work jobs. */
#ifndef RINGVOL_BLOCKIO_FS_FEATURES_H
#define RINGVOL_BLOCKIO_FS_FEATURES_H

#include <stdbool.h>
#include <stdint.h>

/* Found by trying on an unnamed file, which leaves nothing. */
struct fs_features {
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
/* What a missing journal means to the operator, and what to do. */
#define FS_NO_JOURNAL                                                                              \
	"after a loss of power it needs e2fsck and may have lost more than was being written"
#define FS_NO_JOURNAL_REMEDY "tune2fs -O has_journal, while it is not mounted"
/* -ENOSPC, -EDQUOT: it is too full to try. */
int fs_features_probe(int dirfd, struct fs_features *ret);
/* What can be told of a full file system, by a file that is there: fs_type, no_journal, nocow_lies,
 * discard, direct_io. The rest is assumed to be there until there is room to try. */
int fs_features_probe_full(int dirfd, const char *name, struct fs_features *ret);
/* A name that a probe links and unlinks; one that was killed may leave it. */
#define FS_PROBE_NAME ".ringvol-probe"
/* "xfs" for XFS's fs_type and so on; NULL: it has no name here. */
const char *fs_type_name(uint64_t fs_type);

#endif
