/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part: the image of a volume that is filled slowly, from another node. It has a name of its own,
 * copies/part-<key>, so that a fill cut short goes on where it was: in this run of the driver or
 * the next. An attribute says of what it is made and how much of it is durable. pool_build renames
 * it to the volume's key: the commit.
 */
#ifndef RINGVOL_POOL_PART_H
#define RINGVOL_POOL_PART_H

#include "pool/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	POOL_PART_OF_MAX = 256, /* bytes of what it is made of */
	/* A part that was not touched for so long is given up, by this machine's clock. */
	POOL_PART_KEEP_S = 24 * 3600,
};

/* The owner's part in a build. */
struct pool_part {
	/* Set before the build: what bytes these are. A part that says anything else, or has
	 * another size, is begun anew. No newline. */
	char of[POOL_PART_OF_MAX];
	/* The owner's, at any time: what it tells is needed, so it is kept whatever fails. */
	bool stays;
	/* Out, when the fill begins: all before it is durable. A multiple of 4096. */
	uint64_t from_bytes;
	/* Out: all of it is there, and nothing else has it (pool_part_finish()): from_bytes is its
	 * size. */
	bool finished;
	/* If the build fails now, what the part has is worth keeping: true from when a part with
	 * progress is opened; from when the fill begins it is the fill's. */
	bool keep;
};

/* Takes note that all before from_bytes is durable, which it is: fd was synced. Blocking. */
int pool_part_note(int fd, const struct pool_part *part, uint64_t size_bytes, uint64_t from_bytes);

/*
 * The part of a volume that moves in, before it has left where it was: all of it is there, and
 * durable with its name. From then on it is not swept, cut, or taken by another build of that name,
 * which fails with ERR_UNAVAILABLE, until the volume is built of it (pool_build_init_moved(), with
 * the same `of`) or pool_part_unfinish(). rec: the volume's to be, put there so that there is room
 * for it. text: what whoever goes on with it has to know, at most
 * POOL_PART_TEXT_MAX bytes. Blocking; copies_fd: pool_holds_fd()'s. 0 or -errno, and then it is to
 * be taken for finished or not: only a repeat tells.
 */
enum { POOL_PART_TEXT_MAX = 1024 };
int pool_part_finish(int copies_fd, int fd, const struct record *rec, const char *text, size_t len);
/* It is like any other part again: durable. Blocking. */
int pool_part_unfinish(int fd);
/* The text of one that is finished, and its length; -ENODATA: it is not. Blocking. */
ssize_t pool_part_text(int fd, char text[POOL_PART_TEXT_MAX]);

/* Looks for a part of a volume, by what its id begins and ends with. 1: there is one, of that key,
 * finished or not; 0: there is none, and nothing is changed; -errno.  Blocking. */
int pool_part_find(int copies_fd, const char *pool_uuid8, const char *random,
	char ret_key[RECORD_KEY_MAX], bool *ret_finished);

/* ---- for the files of src/pool: blocking ---- */

#define POOL_PART_PREFIX "part-"
enum { POOL_PART_NAME_BYTES = sizeof(POOL_PART_PREFIX) - 1 + RECORD_KEY_MAX };

void pool_part_name(const char *key, char ret_name[POOL_PART_NAME_BYTES]);
bool pool_part_name_valid(const char *name);
/* Opens the part, locked against the sweep, and cuts it to part->from_bytes, which it reads; or
 * makes one. -EBUSY: it is finished, and not of these bytes; of these it is not cut. open_flags:
 * O_DIRECT or 0. *ret_allocated: bytes that it has. */
int pool_part_open(int copies_fd, const char *name, struct pool_part *part, uint64_t size_bytes,
	int open_flags, int *ret_fd, uint64_t *ret_allocated);
/* It is a part no longer: it becomes a volume. */
int pool_part_forget(int fd);
/* Whether the part of that key is there and finished; also if that cannot be told. */
bool pool_part_is_finished(int copies_fd, const char *key);
/* Likewise of one that is open. */
bool pool_part_fd_is_finished(int fd);
/* Removes parts that are not finished, that nobody fills and nobody has touched for
 * POOL_PART_KEEP_S. */
int pool_parts_sweep(int copies_fd);

#endif
