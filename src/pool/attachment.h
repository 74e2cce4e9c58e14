/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume's attachments: the nodes that ControllerPublishVolume has given it to, kept in an
 * attribute of its image beside the record. A driver that knows nothing of them reads the volume
 * all the same.
 *
 *   ringvol-attachments 1
 *   node=worker-1
 *   mode=1
 *   block=true
 *   read_only=false
 *   export=<UUID>                      only of a node that is not the volume's own
 *   key=DHHC-1:00:...:                 likewise, and only with authentication
 *   node=...
 *   sum=<first 16 hex digits of SHA-256 of everything before this line>
 *
 * The key is a secret: only who may read trusted.* attributes (CAP_SYS_ADMIN) can read it, nothing
 * prints it, and what held it is overwritten.
 */
#ifndef RINGVOL_POOL_ATTACHMENT_H
#define RINGVOL_POOL_ATTACHMENT_H

#include <stdbool.h>
#include <stddef.h>

#define ATTACHMENTS_XATTR "trusted.ringvol.attachments"

enum {
	ATTACHMENTS_MAX = 32,          /* of one volume; then ERR_NO_ROOM */
	ATTACHMENTS_BYTES_MAX = 15360, /* what 32 of them take at most; ext4 has less */
	ATTACHMENT_NODE_MAX = 256,     /* bytes of a node's id; the specification's */
	ATTACHMENT_KEY_MAX = 127,      /* bytes of a key */
};

/* The access modes of CSI, by their numbers there. */
enum attachment_mode {
	ATTACHMENT_WRITER = 1,
	ATTACHMENT_READER_ONLY = 2,
	ATTACHMENT_MANY_READERS = 3,
	ATTACHMENT_MANY_ONE_WRITER = 4,
	ATTACHMENT_MANY_WRITERS = 5,
	ATTACHMENT_SINGLE_WRITER = 6,
	ATTACHMENT_MULTI_WRITER = 7,
};

struct attachment {
	const char *node; /* its id: printable ASCII, without blanks */
	unsigned mode;    /* enum attachment_mode */
	bool block;       /* else it is mounted there */
	bool read_only;
	const char *export; /* the UUID that its names are made of; "": nothing is exported */
	const char *key;    /* "": none */
};

/* One allocation, constant once made; NULL stands for none. */
struct attachments {
	size_t bytes;
	unsigned count;
	struct attachment at[];
};

/* Of the node; NULL: there is none. a may be NULL, here and below. */
const struct attachment *attachments_find(const struct attachments *a, const char *node);
/* Whether one of them is exported. */
bool attachments_exported(const struct attachments *a);
/* The first that is exported, of those from *at on; *at is its index. NULL: there is none. */
const struct attachment *attachments_next_exported(const struct attachments *a, unsigned *at);
/* A copy that has `one` in the place of the node's, or behind all others. NULL: out of memory. */
struct attachments *attachments_with(const struct attachments *a, const struct attachment *one);
/* A copy without the node's. 0, or -ENOMEM; *ret NULL: none is left. */
int attachments_without(const struct attachments *a, const char *node, struct attachments **ret);
/* Overwrites it first. NULL is legal. */
void attachments_free(struct attachments *a);

/* The length, or -E2BIG. */
int attachments_print(const struct attachments *a, char *buf, size_t cap);
/* Makes them the attribute of the image. Blocking, not durable. 0 or -errno. */
int attachments_write(int fd, const struct attachments *a);
/* 0; -EBADMSG: damaged; -EPROTONOSUPPORT: of a later version; -ENOMEM. */
int attachments_parse(const char *text, size_t len, struct attachments **ret);

#endif
