/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A secret is one mapping of its own: its length, then its bytes. Nothing else lies in its pages,
 * so that they can be locked, left out of core dumps and emptied in children without touching
 * others.
 *
 * Locking may be refused (RLIMIT_MEMLOCK without CAP_IPC_LOCK), which is nobody's fault: a node
 * that does not swap loses nothing by it. It fails for want of memory alone.
 */
#include "base/secret.h"

#include <string.h>
#include <sys/mman.h>

struct secret {
	size_t len;
	uint8_t bytes[];
};

enum { MAPPING_BYTES = 2 * SECRET_BYTES_MAX };

_Static_assert(sizeof(struct secret) <= MAPPING_BYTES - SECRET_BYTES_MAX, "the longest one fits");

struct secret *secret_new(const void *bytes, size_t len)
{
	if (len > SECRET_BYTES_MAX)
		return NULL;
	struct secret *secret = mmap(
		NULL, MAPPING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (secret == MAP_FAILED)
		return NULL;
	(void)mlock(secret, MAPPING_BYTES);
	(void)madvise(secret, MAPPING_BYTES, MADV_DONTDUMP);
	(void)madvise(secret, MAPPING_BYTES, MADV_WIPEONFORK);
	secret->len = len;
	if (len != 0)
		memcpy(secret->bytes, bytes, len);
	return secret;
}

const uint8_t *secret_bytes(const struct secret *secret)
{
	return secret->bytes;
}

size_t secret_len(const struct secret *secret)
{
	return secret->len;
}

void secret_free(struct secret *secret)
{
	if (secret == NULL)
		return;
	secret_wipe(secret, sizeof(*secret) + secret->len);
	munmap(secret, MAPPING_BYTES);
}

void secret_wipe(void *mem, size_t len)
{
	explicit_bzero(mem, len);
}
