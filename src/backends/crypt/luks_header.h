/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LUKS2 as ringvol makes it: aes-xts-plain64 with a key of 512 bits, the data LUKS_HEADER_BYTES
 * behind the start, key slots for sixteen keys. Any cryptsetup opens it.
 *
 * A key of LUKS_RANDOM_BYTES or more counts as random: stretching adds nothing to it, and it gets
 * PBKDF2 with few iterations. A shorter one counts as a passphrase: Argon2id with 64 MiB, four
 * passes, one lane, on every machine alike.
 *
 * Blocking, for a process that does this alone: it takes memory and time as the key slots say.
 * path: of the device or image that holds the header, on which the caller has its lock; by a
 * descriptor ("/proc/self/fd/3") it stays that one. luks_load() came before.
 */
#ifndef RINGVOL_BACKENDS_LUKS_HEADER_H
#define RINGVOL_BACKENDS_LUKS_HEADER_H

#include "backends/crypt/luks_order.h"

enum {
	LUKS_RANDOM_BYTES = 32,
	LUKS_VOLUME_KEY_BYTES = 64,
	LUKS_SAYS_BYTES = 256,
	LUKS_USED_BYTES = 5 << 20, /* both copies of the header, and the key slots: at most */
};

struct luks_key {
	const void *bytes;
	size_t len;
};

/* Why it failed, for a person. */
struct luks_says {
	char text[LUKS_SAYS_BYTES];
};

/* What dm-crypt needs to know. Wipe it. */
struct luks_shape {
	uint8_t volume_key[LUKS_VOLUME_KEY_BYTES];
	uint32_t sector_bytes;
};

/* A header with one key. What was there is lost. */
enum luks_code luks_header_format(
	const char *path, uint32_t sector_bytes, const struct luks_key *key, struct luks_says *ret);
enum luks_code luks_header_unlock(const char *path, const struct luks_key *key,
	struct luks_shape *ret, struct luks_says *says);
/* One more key, for who has one. LUKS_FAILED: also if no CSI call can bring it. */
enum luks_code luks_header_add_key(const char *path, const struct luks_key *key,
	const struct luks_key *new_key, struct luks_says *says);
/* Every slot that this key opens. LUKS_LAST_KEY: no other key would be left. */
enum luks_code luks_header_remove_key(
	const char *path, const struct luks_key *key, struct luks_says *says);

/* Waits a while for others that write to the header: flock(LOCK_EX) on the file or node.
 * LUKS_BUSY: in vain. */
enum luks_code luks_header_lock(int fd, struct luks_says *says);

#endif
