/* SPDX-License-Identifier: Apache-2.0 */
/* What a source says of itself when a copy of it is opened. */
#ifndef RINGVOL_TRANSFER_OPENED_H
#define RINGVOL_TRANSFER_OPENED_H

#include "pool/record.h"

enum { OPENED_MOVES_MAX = 1 << 30 }; /* of a record: more are a lie, and it would count on */

/* Checks a packed OpenCopyResponse, which is a stranger's: the record has to be that of source_id,
 * and its size one that an image can have. 0: *ret_rec is the caller's to free, and its size that
 * of the copy. Else -errno with *ret_rec NULL. */
int opened_parse(const uint8_t *data, size_t len, const char *source_id, struct record **ret_rec,
	uint64_t *ret_allocated_bytes);

#endif
