/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in a pool's directory: made, and read file by file. Blocking. */
#ifndef RINGVOL_POOL_LAYOUT_H
#define RINGVOL_POOL_LAYOUT_H

#include "base/err.h"
#include "base/uuid.h"
#include "blockio/fs_features.h"
#include "pool/attachment.h"
#include "pool/record.h"

/* Makes an empty (or missing) directory on a mounted file system a pool. 0 with *ret_existed: it is
 * a pool already. ERR_PRECONDITION: not empty, or the file system cannot have one. */
int pool_init_dir(
	const char *path, struct fs_features *ret_features, bool *ret_existed, struct err *err);
/* The same of an open root directory. path: what messages call it; uuid: which one the pool gets,
 * NULL: a random one. */
int pool_init_root(int root, const char *path, const char *uuid, struct fs_features *ret_features,
	bool *ret_existed, struct err *err);

/* What one file of volumes/ or snapshots/ is. */
struct pool_found {
	char key[RECORD_KEY_MAX];
	struct record *rec;              /* NULL: quarantined, see why */
	struct attachments *attachments; /* of a volume; NULL: none */
	const char *why;                 /* static */
	enum record_kind kind;
	uint64_t image_bytes, allocated_bytes, image_dev, image_ino;
	uint32_t thin_id; /* of a raw pool's thin image; 0: any other */
	bool truncated;   /* the image is shorter than its record says */
	bool left;        /* it is another pool's now (departure.h), */
	bool stays;       /* and could not go to the trash */
};
/* Blocking. -ENOENT: nothing there. -ENOMEM, -EMFILE, -ENFILE: nobody can tell now. */
int pool_read_object(int dirfd, const char *key, enum record_kind kind, struct pool_found *ret);

/* ---- for the files of src/pool ---- */

#define POOL_FILE "ringvol.pool"
enum { POOL_UUID_BYTES = UUID_BYTES };

/* The descriptors of a pool. Their numbers never change once a pool was loaded: a pool that went
 * away gets /dev/null put in their place, and its directories again when it is back (dup3). So an
 * operation under way never meets a number that has become something else. */
enum pool_fd {
	POOL_FD_ROOT,
	POOL_FD_LOCK, /* ringvol.pool, flock'ed */
	POOL_FD_VOLUMES,
	POOL_FD_SNAPSHOTS,
	POOL_FD_TEMPLATES,
	POOL_FD_TRASH,
	POOL_FD_COPIES,
	POOL_DIRS_END,
	POOL_FD_THIN = POOL_DIRS_END, /* thin/ of a raw pool (disk/thin_names.h) */
	POOL_FD_EVENTS,               /* inotify on volumes/ and snapshots/ */
	POOL_FD_GROUPS,               /* /dev/null's where there is none (group_load.h) */
	POOL_FD_DEPARTED,             /* likewise (departure_load.h) */
	POOL_FDS,
};
extern const char *const pool_dir_names[POOL_FDS]; /* NULL: not a directory below the root */

/* "ringvol-pool 1\nuuid=...\n", read from ringvol.pool. 0, -EBADMSG, another -errno. */
int pool_file_read(int fd, char ret_uuid[POOL_UUID_BYTES]);

/* Locks ringvol.pool. A driver that was killed keeps it for a moment: until the kernel is through
 * with its requests, and its children that have the file too have ended. Waits 1023 ms in all.
 * 0, -EWOULDBLOCK, another -errno. */
int pool_lock_take(int fd);
/* For the messages where somebody else still has it after that. */
#define POOL_LOCK_LEFT                                                                             \
	"if none runs, a 'ringvol luks' that one has left is still at work in the kernel (ps -C "  \
	"ringvol): look for errors of the disk in the kernel log"

/* Random hex digits, count of them (even), and a NUL. */
void pool_random_hex(char *buf, unsigned digits);

#endif
