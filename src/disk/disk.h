/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disks of a raw pool. A raw pool is a directory pool on a small file system of its own, its
 * *records*, which lies on the first of its disks; the bytes of its volumes lie beside it.
 *
 *   first disk:  header | records (XFS) | area ... | copy of the header
 *   more disks:  header | area ... | copy of the header
 *
 * The header (header.h) has the pool's uuid, and is found on whatever device the disk is today. The
 * *area* of a pool is one space of addresses through all its disks. An address never changes, and
 * an extent never crosses from one disk to another.
 *
 * The pool's directory, PATH, holds one small file, ringvol.disk, that names the pool's uuid and
 * where its first disk was last. The records are mounted nowhere: disk_records() opens them as
 * a detached mount, which nobody else sees and which goes with its last descriptor.
 *
 * Everything here blocks: for work threads and commands.
 */
#ifndef RINGVOL_DISK_DISK_H
#define RINGVOL_DISK_DISK_H

#include "base/err.h"
#include "base/uuid.h"

#include <stdbool.h>
#include <stdint.h>

#define DISK_FILE "ringvol.disk"

enum {
	DISK_MEMBERS_MAX = 16,
	DISK_UNIT_BYTES = 1 << 20, /* all offsets and sizes on a disk are multiples */
	DISK_UUID_BYTES = UUID_BYTES,
	DISK_PATH_BYTES = 256,
};

struct disk_member {
	char uuid[DISK_UUID_BYTES];
	char path[DISK_PATH_BYTES]; /* as it was opened: /dev/sdb */
	uint32_t major, minor;
	int fd;          /* O_DIRECT; read-only for DISK_LOOK */
	uint64_t start;  /* its first address; a unit or more behind the last of any other */
	uint64_t offset; /* where that is on the disk, bytes */
	uint64_t bytes;  /* how much of the area it has */
	bool damaged;    /* its header or the copy was, when it was opened */
	bool larger;     /* than its header says: `pool grow` takes in the rest */
};

/* The open disks of one pool. Counted: what works with them on a thread holds a reference. Constant
 * once opened. */
struct disk {
	char uuid[DISK_UUID_BYTES]; /* the pool's */
	unsigned count;
	struct disk_member members[DISK_MEMBERS_MAX];
	uint64_t records_offset, records_bytes; /* on the first member */
	uint32_t block_size;  /* logical block size, bytes: the largest of the members' */
	uint64_t records_dev; /* st_dev of the records when they were opened last; else 0 */
	/* private */
	_Atomic unsigned refs;
};

enum disk_use {
	DISK_LOOK,  /* for tools: read-only, beside a driver or without one; claims nothing */
	DISK_SERVE, /* for the driver: written to, and claimed for this node (owner.h) */
	/* For commands: written to, and claimed for nobody. Another machine's is refused. */
	DISK_CHANGE,
	DISK_TAKE_OVER, /* for the command that says that the other machine is off */
};

/* Whether the directory is a raw pool's: it holds ringvol.disk. */
bool disk_is_raw_pool(const char *path);

/*
 * Finds and opens all disks of the raw pool of that directory. node: who asks, as the owner of
 * DISK_SERVE. Errors in *err, each naming the disk and the remedy:
 * ERR_UNAVAILABLE: a disk is not there (pulled, not yet up); answers with errors; is smaller than
 * its header says; has an owner that is another node, since when. ERR_DATA_LOSS: header and copy
 * are both damaged. ERR_PRECONDITION: two disks say that they are the same one; a `pool init` or
 * `pool grow` did not end. node: NULL but for DISK_SERVE.
 */
int disk_open(
	const char *path, enum disk_use use, const char *node, struct disk **ret, struct err *err);
struct disk *disk_ref(struct disk *disk);
void disk_unref(struct disk *disk);

/* The records: a descriptor of their root directory, made by a detached mount of a device of ours
 * over records_offset (records.c). The mount lasts as long as any descriptor of its files, and the
 * device as long as the mount. read_only: nothing is written to the disk, the log is not replayed
 * either; a mount that is there is shared. Errors in *err: ERR_PRECONDITION: no device mapper or no
 * XFS here, or the device's name is another's; ERR_UNAVAILABLE: others read the records just now;
 * ERR_DATA_LOSS: they are damaged. */
int disk_records(struct disk *disk, bool read_only, int *ret_root_fd, struct err *err);

/* Where an address is. The bytes from there to the end of the member's area, and the member; NULL:
 * no disk has it. */
const struct disk_member *disk_at(
	const struct disk *disk, uint64_t address, uint64_t *ret_offset, uint64_t *ret_bytes);

/* ---- what is open in this process, for backends and probes: by the first 8 digits of uuid ---- */

/* A driver publishes the disks of a pool that it has loaded, and replaces those of an earlier load.
 * NULL takes them back. Any thread. */
void disk_publish(const char *uuid8, struct disk *disk);
/* A reference, or NULL: no such pool is loaded. Any thread. */
struct disk *disk_published(const char *uuid8);

#endif
