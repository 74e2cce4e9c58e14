/* SPDX-License-Identifier: Apache-2.0 */
/* Keys in memory: pages that are locked where the node swaps, in no core dump and no child, and
 * wiped when they are freed. */
#ifndef RINGVOL_BASE_SECRET_H
#define RINGVOL_BASE_SECRET_H

#include <stddef.h>
#include <stdint.h>

enum { SECRET_BYTES_MAX = 4096 }; /* a page */

struct secret;
/* A copy; the caller wipes its own. NULL: out of memory, or longer than SECRET_BYTES_MAX. */
struct secret *secret_new(const void *bytes, size_t len);
const uint8_t *secret_bytes(const struct secret *secret);
size_t secret_len(const struct secret *secret);
void secret_free(struct secret *secret); /* NULL: nothing */
/* Overwrites memory in a way that no compiler leaves out. */
void secret_wipe(void *mem, size_t len);

#endif
