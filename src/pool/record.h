/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of a volume or snapshot: text, versioned, self-describing, checksummed, kept in the
 * extended attribute trusted.ringvol of its image, so that one journal transaction changes both.
 *
 *   ringvol-record 1
 *   kind=volume
 *   name=pvc-0a1b
 *   ...
 *   sum=<first 16 hex digits of SHA-256 of everything before this line>
 *
 * Values are percent-encoded where they hold '%', control characters or a newline. An unknown
 * version, key or value makes the record unreadable, and its object quarantined: never guessed at.
 */
#ifndef RINGVOL_POOL_RECORD_H
#define RINGVOL_POOL_RECORD_H

#include "base/io_limits.h"
#include "blockio/fsimg.h"
#include "blockio/luks_room.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_XATTR "trusted.ringvol"
/* The claim, apart: a driver that does not know it reads the record all the same. */
#define RECORD_CLAIM_XATTR "trusted.ringvol.claim"

enum {
	RECORD_BYTES_MAX = 3072, /* ext4 keeps attributes in one block */
	RECORD_NAME_MAX = 128,   /* bytes of UTF-8, CSI's limit */
	RECORD_KEY_MAX = 64,
	RECORD_ID_MAX = 128,
	RECORD_OPTIONS_MAX = 512,
	RECORD_CLAIM_MAX = 63 + 1 + 253, /* Kubernetes' limits of a namespace and a name */
	RECORD_OWNER_MAX = 512,          /* bytes of a path */
	RECORD_DEVICE_MAX = 2,           /* the last of enum backend_type */
	RECORD_POOL_DIGITS = 8,          /* of a pool's uuid, that ids begin with */
};

enum record_kind { RECORD_VOLUME, RECORD_SNAPSHOT };
enum record_erase { RECORD_ERASE_NONE, RECORD_ERASE_DISCARD, RECORD_ERASE_ZERO };
enum record_encryption { RECORD_PLAIN, RECORD_LUKS2 };
enum record_attach { RECORD_ATTACH_LOCAL, RECORD_ATTACH_REMOTE };
enum record_source { RECORD_SOURCE_NONE, RECORD_SOURCE_VOLUME, RECORD_SOURCE_SNAPSHOT };

/* Built by record_new(); one allocation, strings inside it. Treat as constant once committed; a
 * change is a new record. */
struct record {
	enum record_kind kind;
	const char *name; /* as the client gave it */
	const char *key;  /* derived from name; the file's name */
	char random[9];   /* 8 hex digits, drawn at creation */
	uint64_t size_bytes;
	uint64_t created_ns; /* CLOCK_REALTIME */
	/* volumes; snapshots keep their source's, so that a restore knows what the bytes are */
	enum fsimg_type fs;  /* FSIMG_NONE: raw block, the tenant's bytes */
	uint32_t block_size; /* logical block size of its device */
	bool thick;
	uint8_t device; /* enum backend_type */
	enum record_erase erase;
	bool snapshot_freeze;
	/* Made for block, it may be used as a file system as well (Velero's restores). Written only
	 * where it is true, so that a record without it is one that older drivers read. */
	bool allow_mode_change;
	/* What the image holds is encrypted: a header, then ciphertext. Written only where it is
	 * so; an older driver, which could do nothing with it, quarantines it. */
	enum record_encryption encryption;
	/* Encrypted, and without header and file system yet: the key comes with the first
	 * NodeStage. Its image is a hole of the right size. Written only where it is true. */
	bool unformatted;
	/* It may be attached to other nodes than its own. Written only where it is so; an older
	 * driver, which would use it beside them, quarantines it. */
	enum record_attach attach;
	/* Of a volume; a snapshot has none. Each is written only where it is set; an older driver,
	 * which would not enforce them, quarantines the volume. */
	struct io_limits limits;
	const char *mkfs_options; /* "" if none */
	enum record_source source;
	const char *source_id; /* "" if none; a snapshot's source volume */
	bool shares_extents;   /* made by reflink from its source */
	/* The id of the oldest ancestor it shares extents with, where that is not its source; ""
	 * otherwise. It tells who still shares when what lay between is deleted. pool_build sets
	 * it. */
	const char *family;
	/* The id of the group that a snapshot is a member of (group.h); "" if of none. Written only
	 * where it is so; an older driver, to which the member of a group that was never committed
	 * would look like a snapshot, quarantines it. */
	const char *group;
	/* "namespace/name" of the PersistentVolumeClaim that a volume was made for, or of the
	 * VolumeSnapshot of a snapshot; "" if nobody said. For people alone, and not in the text:
	 * RECORD_CLAIM_XATTR has it. */
	const char *claim;
	/* First 8 hex digits of the uuid of the pool that a volume was made in, and that its id
	 * begins with, where it has moved to another one since; "": it is there. And how often it
	 * has moved. Written only where it has; an older driver, which would take it for another
	 * volume, quarantines it. */
	const char *born;
	uint64_t moves;
	/* The directory of the pod that an inline volume is made for, and ends with; "" for all
	 * others. Written only where it is so; an older driver, which would keep the volume for
	 * ever, quarantines it. */
	const char *owner;
};

static inline bool record_is_inline(const struct record *rec)
{
	return rec->owner[0] != '\0';
}

/* The size of its image: what the volume has, and room for a header where it is encrypted. Whatever
 * is about the file goes by this, and not by size_bytes. */
static inline uint64_t record_image_bytes(const struct record *rec)
{
	return rec->encryption == RECORD_PLAIN ? rec->size_bytes
					       : luks_image_bytes(rec->size_bytes);
}

/* Whether its image has all its blocks. Of one that is thick and unformatted they are only promised
 * (room.h): its first NodeStage makes the image that has them. */
static inline bool record_allocates(const struct record *rec)
{
	return rec->thick && !rec->unformatted;
}

/* Copies everything, computes key. NULL when out of memory. */
struct record *record_new(const struct record *from);
void record_free(struct record *rec);
/* Into buf (RECORD_BYTES_MAX); returns the length or -E2BIG. */
int record_print(const struct record *rec, char *buf, size_t cap);
/* 0; -EBADMSG: damaged or not ours; -EPROTONOSUPPORT: a version or key from the future. `key` is
 * the file name it was found under and must match. */
int record_parse(const char *text, size_t len, const char *key, struct record **ret);
/* How an image in the trash is to be erased, as the text of its record says. There it has lost its
 * key, so that record_parse() cannot read it. RECORD_ERASE_NONE: the text does not say. */
enum record_erase record_text_erase(const char *text);

/* ---- names, keys, ids ---- */

/* The file name for an object's name: the name itself when it is short ([A-Za-z0-9] first, then
 * [A-Za-z0-9._-], 63 bytes at most), else "=" and 40 hex digits of its SHA-256. */
void record_key(const char *name, char ret_key[RECORD_KEY_MAX]);
/* A key as record_key() makes them: safe to use as a file name. */
bool record_key_valid(const char *key);

struct record_id {
	char pool[9]; /* first 8 hex digits of the pool's uuid */
	char key[RECORD_KEY_MAX];
	char random[9];
};
/* 0 or -EINVAL for anything that record_id_print() cannot have made. */
int record_id_parse(const char *id, struct record_id *ret);
/* "<pool uuid, 8>.<key>.<random, 8>", at most RECORD_ID_MAX - 1 bytes. pool_uuid8: of the pool that
 * it is in; one that has moved has the id that it was born with. */
void record_id_print(const char *pool_uuid8, const struct record *rec, char ret_id[RECORD_ID_MAX]);
/* The digits that its id begins with. */
static inline const char *record_id_pool(const struct record *rec, const char *pool_uuid8)
{
	return rec->born != NULL && rec->born[0] != '\0' ? rec->born : pool_uuid8;
}

#endif
