/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hold: what another node is copying, as it was when the copy was granted. It is an image of its
 * own in copies/, so that the source may be changed and deleted meanwhile, and a file beside it
 * that says for whom. Both survive a restart. A snapshot's image is a second name of the same file:
 * a snapshot never changes. A volume's shares its extents, or is a copy where nothing can be
 * shared.
 *
 *   copies/send-<random>         the image
 *   copies/send-<random>.grant   who may read it; linked last: without it there is no hold
 */
#ifndef RINGVOL_POOL_HOLD_H
#define RINGVOL_POOL_HOLD_H

#include "pool/pool.h"

enum {
	POOL_HOLDS_MAX = 64,   /* of one pool; then ERR_NO_ROOM */
	POOL_GRANT_BYTES = 33, /* 32 hex digits and a NUL: a secret, 128 random bits */
	POOL_HOLD_NODE_MAX = 256,
};

struct pool_hold {
	struct list link; /* the pool's */
	struct pool *pool;
	char name[sizeof("send-") + 16];
	char grant[POOL_GRANT_BYTES];
	char node_id[POOL_HOLD_NODE_MAX];
	char volume_name[RECORD_NAME_MAX + 1]; /* of what is made of it, elsewhere */
	char source_id[RECORD_ID_MAX];
	struct record *rec; /* the source's, as it was */
	uint64_t allocated_bytes;
	bool shares; /* blocks with its source, or maybe: it counts in the family (index.h) */
	bool sent;   /* a volume's: whole, to somebody; survives a restart */
	bool move;   /* the volume is to leave for good, by this grant alone */
	/* The user's. Zero when it was made or found. */
	uint64_t used_ns;
	unsigned readers;
	bool opened, dropped;
};

/* The first behind `after` (NULL: the first of all) of one pool. */
struct pool_hold *pool_hold_next(const struct pool *pool, const struct pool_hold *after);
/* Read-only, with direct I/O where the pool has it. Blocking, on the pool's descriptor of copies/
 * that pool_holds_fd() gave on the loop. A descriptor or -errno. */
int pool_holds_fd(const struct pool *pool);
int pool_hold_open(int holds_fd, const char *name, bool direct_io);
/* Says durably that a volume's image was sent whole. Blocking, with a descriptor of it. */
int pool_hold_note_sent(int fd);
/* Its files go, by a job in the background; it is freed. No reader has it. */
void pool_hold_drop(struct pool_hold *hold);

/* ---- for the files of src/pool ---- */

/* The holds that earlier runs left, onto the list; also, as dropped, what makes none. Nothing is
 * removed, and what may be one and cannot be read is left alone. Blocking. 0 or -ENOMEM: what can
 * be read counts. */
int pool_holds_read(int copies_fd, struct list *ret_holds);
/* Takes over what was read and is not known yet; what makes no hold goes. pool_family_update_all()
 * comes after it. */
void pool_holds_adopt(struct pool *pool, struct list *holds);
void pool_hold_free(struct pool_hold *hold);
/* Onto the pool's list. */
void pool_hold_enter(struct pool *pool, struct pool_hold *hold);

#endif
