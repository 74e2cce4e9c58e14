/* SPDX-License-Identifier: Apache-2.0 */
/* The note of a departure, departed/<key>: text as that of a record (record_text.h). Blocking. */
#ifndef RINGVOL_POOL_DEPARTURE_FILE_H
#define RINGVOL_POOL_DEPARTURE_FILE_H

#include "pool/departure.h"
#include "pool/layout.h"

#include <stddef.h>

/*
 *   ringvol-departure 1
 *   id=<the volume's>
 *   moves=2
 *   to=<first 8 digits of a pool's uuid>
 *   node=<node id>
 *   grant=<32 hex digits>
 *   sum=...
 */
/* The length, or -E2BIG. */
int departure_print(const struct pool_departure *departure, char *text, size_t cap);
/* 0 with a new *ret; -EBADMSG: damaged or not ours; -EPROTONOSUPPORT: of a later version; -ENOMEM.
 * `key` is the file name it was found under and must match. */
int departure_parse(const char *text, size_t len, const char *key, struct pool_departure **ret);
/* Reads one. What is damaged, or cannot be read, has a `why`. 0; -ENOENT: there is none; -ENOMEM,
 * -EMFILE, -ENFILE: nobody can tell now. */
int departure_read(int departed_fd, const char *key, struct pool_departure **ret);
/* Writes it under its key, in the place of one that may be there; *ret_named once it has that name,
 * which stays so when making it durable fails. 0 or -errno. */
int departure_write(
	int departed_fd, const char *key, const char *text, size_t len, bool *ret_named);
/* Whether a file name is one that a note has while it is written. */
bool departure_is_new_name(const char *name);

#endif
