/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dm-crypt device of an encrypted image: found, checked, let go. A child with the key makes it
 * (luks.h).
 *
 * Its name and uuid follow from the tag of the device below and from the image's inode. It is ours
 * if both are so *and* it is one `crypt` target, or a table that leads nowhere. Parameters of its
 * table, which have the key in them, are never read here. Synchronous, for work jobs.
 */
#ifndef RINGVOL_BACKENDS_CRYPT_DEV_H
#define RINGVOL_BACKENDS_CRYPT_DEV_H

#include "base/err.h"
#include "disk/tagged.h"

#include <stdbool.h>
#include <stdint.h>

#define CRYPT_UUID_PREFIX TAGGED_CRYPT_UUID_PREFIX

struct crypt_dev {
	char tag[64];
	uint64_t image_ino;
	uint32_t major, minor;             /* /dev/dm-<minor> */
	uint32_t below_major, below_minor; /* 0:0: it has no table, or is foreign or retired */
	uint64_t size_bytes;
	bool half;       /* no table is in use: whoever made it was killed */
	bool foreign;    /* its table is not one of ours: somebody else's device */
	bool retired;    /* its table leads nowhere: it was let go */
	bool suspended;  /* by somebody else: we never leave one so */
	bool read_only;  /* also by BLKROSET */
	bool going_away; /* the kernel removes it when nobody has it open any more */
	bool open;
};

/* Of a tag "ringvol:<pool uuid, 8>:<random, 8>". -EINVAL: it is none. */
int crypt_dev_names(const char *tag, uint64_t image_ino, char ret_name[DM_NAME_LEN],
	char ret_uuid[DM_UUID_LEN]);
/* 0; -ENXIO: there is none; -EEXIST: its name is another's. */
int crypt_dev_look(struct dm *dm, const char *tag, uint64_t image_ino, struct crypt_dev *ret);
/* The one of that tag over the device `below`, for whoever uses it or makes it: what was left half
 * is swept away, and one that somebody has suspended goes on. 0; -ENXIO: there is none; else *err
 * says what is in its place, and the remedy. */
int crypt_dev_find(struct dm *dm, const char *tag, uint64_t image_ino, uint32_t below_major,
	uint32_t below_minor, struct crypt_dev *ret, struct err *err);
/* What is left of one that was made half, or let go and is held by nobody; any other stays. */
int crypt_dev_sweep(struct dm *dm, const char *tag, uint64_t image_ino, struct err *err);
/* Takes it away, unless it is foreign. If somebody has it open it goes when he lets go. Where that
 * is a plain open, its requests fail from now on, and the device below is free. Where somebody has
 * it for himself (a file system that is mounted in another mount namespace), it goes on until he
 * lets go, and so does the device below. One that is gone is success. */
int crypt_dev_remove(struct dm *dm, const char *tag, uint64_t image_ino, struct err *err);
/* Every device with such a name and uuid. 0 or -errno. */
int crypt_dev_each(struct dm *dm, void (*each)(void *arg, const struct crypt_dev *dev), void *arg);

#endif
