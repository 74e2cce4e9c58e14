/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LUKS2 headers, by libcryptsetup. Owns its context for the time of a call.
 *
 * Happy path of each: context -> load -> check that it is of our shape -> the key -> what is asked.
 * How it can fail: as enum luks_code has it. What the library says on the way is kept, for the
 * message of a failure that has no code of its own; it never says a key.
 *
 * The library's own locks are off: for a file it would take the very lock that the driver holds on
 * an image, and for a device it needs a directory in /run. Callers have a lock of their own.
 */
#include "backends/crypt/luks_header.h"

#include "backends/crypt/luks_lib.h"
#include "base/clock.h"
#include "base/secret.h"
#include "base/utf8.h"
#include "blockio/luks_room.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

enum {
	HEADER_BYTES = 16 << 10, /* of each of the two copies */
	SLOT_BYTES = 252 << 10,  /* 4,000 stripes of the volume key, rounded to 4 KiB */
	SLOTS = 16,
	CALL_KEY_BYTES_MAX = 4093,
	LOCK_WAIT_MS = 10000,
	LOCK_TICK_MS = 50,
};

#define CIPHER "aes"
#define MODE   "xts-plain64"

static const struct crypt_pbkdf_type for_random = {
	.type = CRYPT_KDF_PBKDF2,
	.hash = "sha256",
	.iterations = 1000,
	.flags = CRYPT_PBKDF_NO_BENCHMARK,
};
static const struct crypt_pbkdf_type for_passphrase = {
	.type = CRYPT_KDF_ARGON2ID,
	.hash = "sha256",
	.iterations = 4,
	.max_memory_kb = 64 << 10,
	.parallel_threads = 1,
	.flags = CRYPT_PBKDF_NO_BENCHMARK,
};

static const struct crypt_pbkdf_type *pbkdf_of(const struct luks_key *key)
{
	return key->len >= LUKS_RANDOM_BYTES ? &for_random : &for_passphrase;
}

static void say(struct luks_says *says, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct luks_says *says, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(says->text, sizeof(says->text), fmt, ap);
	va_end(ap);
}

/* ---- the context ---- */

static void on_log(int level, const char *text, void *arg)
{
	struct luks_says *says = arg;
	if (level == CRYPT_LOG_ERROR)
		say(says, "%.*s", (int)strcspn(text, "\n"), text);
}

static void context_free(struct crypt_device **cd)
{
	if (*cd != NULL)
		luks.crypt_free(*cd);
}

#define _cleanup_context_ __attribute__((cleanup(context_free)))

/* A failure without a code of its own. */
static enum luks_code fail(struct luks_says *says, int res, const char *what)
{
	char why[LUKS_SAYS_BYTES];
	if (res == -ENOMEM) {
		say(says,
			"%s: out of memory; a key slot made elsewhere may want more than ringvol's own",
			what);
		return LUKS_NO_MEMORY;
	}
	memcpy(why, says->text, sizeof(why));
	say(says, "%s: %s%s%.150s", what, strerrordesc_np(-res), why[0] != '\0' ? ": " : "", why);
	return LUKS_FAILED;
}

static enum luks_code context_open(
	const char *path, struct crypt_device **ret, struct luks_says *says)
{
	says->text[0] = '\0';
	luks.crypt_set_log_callback(NULL, on_log, says);
	(void)luks.crypt_metadata_locking(NULL, 0);
	int r = luks.crypt_init(ret, path);
	if (r < 0)
		return fail(says, r, "opening the device");
	luks.crypt_set_log_callback(*ret, on_log, says);
	luks.crypt_set_rng_type(*ret, CRYPT_RNG_URANDOM);
	return LUKS_OK;
}

static bool is_of_our_shape(struct crypt_device *cd)
{
	const char *cipher = luks.crypt_get_cipher(cd), *mode = luks.crypt_get_cipher_mode(cd);
	int sector = luks.crypt_get_sector_size(cd);
	return cipher != NULL && strcmp(cipher, CIPHER) == 0 && mode != NULL &&
	       strcmp(mode, MODE) == 0 &&
	       luks.crypt_get_volume_key_size(cd) == LUKS_VOLUME_KEY_BYTES &&
	       luks.crypt_get_data_offset(cd) == LUKS_HEADER_BYTES / DM_SECTOR_BYTES &&
	       luks.crypt_get_iv_offset(cd) == 0 && (sector == 512 || sector == 4096);
}

/* Such as a re-encryption that was not finished: then one key does not open all of the data. */
static bool wants_more(struct crypt_device *cd)
{
	uint32_t flags = 0;
	return luks.crypt_persistent_flags_get(cd, CRYPT_FLAGS_REQUIREMENTS, &flags) < 0 ||
	       flags != 0;
}

static enum luks_code context_load(
	const char *path, struct crypt_device **ret, struct luks_says *says)
{
	enum luks_code code = context_open(path, ret, says);
	if (code != LUKS_OK)
		return code;
	int r = luks.crypt_load(*ret, CRYPT_LUKS2, NULL);
	if (r == -EINVAL || r == -ENOENT) {
		say(says, "there is no LUKS2 header");
		return LUKS_NO_HEADER;
	}
	if (r < 0)
		return fail(says, r, "reading the LUKS2 header");
	if (wants_more(*ret)) {
		say(says, "the LUKS2 header has requirements that ringvol does not know, such as a "
			  "re-encryption that was not finished: finish it with 'cryptsetup "
			  "reencrypt --resume-only'");
		return LUKS_OTHER_SHAPE;
	}
	if (!is_of_our_shape(*ret)) {
		say(says, "the LUKS2 header is not as ringvol makes it (" CIPHER "-" MODE
			  ", 512 bits, data at 16 MiB)");
		return LUKS_OTHER_SHAPE;
	}
	return LUKS_OK;
}

static bool is_active(struct crypt_device *cd, int slot)
{
	crypt_keyslot_info info = luks.crypt_keyslot_status(cd, slot);
	return info == CRYPT_SLOT_ACTIVE || info == CRYPT_SLOT_ACTIVE_LAST;
}

/* Whether the key opens that slot. The slot, or -errno. */
static int slot_of(struct crypt_device *cd, int slot, const struct luks_key *key)
{
	return luks.crypt_activate_by_passphrase(cd, NULL, slot, key->bytes, key->len, 0);
}

/* The library stops at a slot that costs more than there is; the key's own may come behind it.
 * -EPERM: it opens none; another error: none, and one could not be tried. */
static int volume_key_of(
	struct crypt_device *cd, const struct luks_key *key, uint8_t ret[LUKS_VOLUME_KEY_BYTES])
{
	int max = luks.crypt_keyslot_max(CRYPT_LUKS2), res = -EPERM;
	for (int slot = 0; slot < max; slot++) {
		size_t len = LUKS_VOLUME_KEY_BYTES;
		if (!is_active(cd, slot))
			continue;
		int r = luks.crypt_volume_key_get(
			cd, slot, (char *)ret, &len, key->bytes, key->len);
		if (r >= 0)
			return 0;
		res = r != -EPERM && r != -ENOENT ? r : res;
	}
	return res;
}

static enum luks_code refuse_key(struct luks_says *says, int res, const char *what)
{
	if (res != -EPERM && res != -ENOENT)
		return fail(says, res, what);
	say(says, "the key opens none of the header's key slots");
	return LUKS_WRONG_KEY;
}

/* ---- calls ---- */

enum luks_code luks_header_format(
	const char *path, uint32_t sector_bytes, const struct luks_key *key, struct luks_says *says)
{
	_cleanup_context_ struct crypt_device *cd = NULL;
	enum luks_code code = context_open(path, &cd, says);
	if (code != LUKS_OK)
		return code;
	struct crypt_params_luks2 params = {.pbkdf = pbkdf_of(key), .sector_size = sector_bytes};
	int r = luks.crypt_set_metadata_size(cd, HEADER_BYTES, SLOTS * SLOT_BYTES);
	if (r == 0)
		r = luks.crypt_set_data_offset(cd, LUKS_HEADER_BYTES / DM_SECTOR_BYTES);
	if (r == 0)
		r = luks.crypt_format(
			cd, CRYPT_LUKS2, CIPHER, MODE, NULL, NULL, LUKS_VOLUME_KEY_BYTES, &params);
	if (r == 0)
		r = luks.crypt_keyslot_add_by_volume_key(cd, 0, NULL, 0, key->bytes, key->len);
	return r < 0 ? fail(says, r, "writing the LUKS2 header") : LUKS_OK;
}

enum luks_code luks_header_unlock(const char *path, const struct luks_key *key,
	struct luks_shape *ret, struct luks_says *says)
{
	_cleanup_context_ struct crypt_device *cd = NULL;
	enum luks_code code = context_load(path, &cd, says);
	if (code != LUKS_OK)
		return code;
	int r = volume_key_of(cd, key, ret->volume_key);
	if (r < 0)
		return refuse_key(says, r, "opening a key slot");
	ret->sector_bytes = (uint32_t)luks.crypt_get_sector_size(cd);
	return LUKS_OK;
}

/* In the secrets of a CSI call, which are text and at most 4 KiB with the name of the field. */
static bool can_come(const struct luks_key *key)
{
	return key->len <= CALL_KEY_BYTES_MAX && memchr(key->bytes, 0, key->len) == NULL &&
	       utf8_valid(key->bytes, key->len);
}

enum luks_code luks_header_add_key(const char *path, const struct luks_key *key,
	const struct luks_key *new_key, struct luks_says *says)
{
	if (!can_come(new_key)) {
		say(says,
			"the new key is one that no Secret can bring: take UTF-8 text without NUL, %d bytes at most",
			CALL_KEY_BYTES_MAX);
		return LUKS_FAILED;
	}
	_cleanup_context_ struct crypt_device *cd = NULL;
	uint8_t volume_key[LUKS_VOLUME_KEY_BYTES];
	enum luks_code code = context_load(path, &cd, says);
	if (code != LUKS_OK)
		return code;
	int r = volume_key_of(cd, key, volume_key);
	if (r < 0)
		return refuse_key(says, r, "opening a key slot");
	r = luks.crypt_set_pbkdf_type(cd, pbkdf_of(new_key));
	if (r == 0)
		r = luks.crypt_keyslot_add_by_volume_key(cd, CRYPT_ANY_SLOT,
			(const char *)volume_key, sizeof(volume_key), new_key->bytes, new_key->len);
	secret_wipe(volume_key, sizeof(volume_key));
	return r < 0 ? fail(says, r, "adding a key slot") : LUKS_OK;
}

enum luks_code luks_header_remove_key(
	const char *path, const struct luks_key *key, struct luks_says *says)
{
	_cleanup_context_ struct crypt_device *cd = NULL;
	uint64_t opened = 0;
	unsigned left = 0;
	enum luks_code code = context_load(path, &cd, says);
	if (code != LUKS_OK)
		return code;
	int max = luks.crypt_keyslot_max(CRYPT_LUKS2);
	for (int slot = 0; slot < max && slot < 64; slot++) {
		if (!is_active(cd, slot))
			continue;
		int r = slot_of(cd, slot, key);
		/* One that costs more memory than there is: none that this key opens. */
		if (r < 0 && r != -EPERM && r != -ENOMEM)
			return fail(says, r, "opening a key slot");
		opened |= r >= 0 ? UINT64_C(1) << slot : 0;
		left += r < 0;
	}
	if (opened == 0)
		return refuse_key(says, -EPERM, "opening a key slot");
	if (left == 0) {
		say(says, "it is the last key of the volume, whose data would be lost with it");
		return LUKS_LAST_KEY;
	}
	for (int slot = 0; slot < 64; slot++) {
		int r = opened >> slot & 1 ? luks.crypt_keyslot_destroy(cd, slot) : 0;
		if (r < 0)
			return fail(says, r, "destroying a key slot");
	}
	return LUKS_OK;
}

enum luks_code luks_header_lock(int fd, struct luks_says *says)
{
	for (unsigned ms = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; ms += LOCK_TICK_MS) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return fail(says, -errno, "locking the LUKS2 header");
		if (ms >= LOCK_WAIT_MS) {
			say(says, "somebody else is using the LUKS2 header: try again");
			return LUKS_BUSY;
		}
		clock_sleep_ms(LOCK_TICK_MS);
	}
	return LUKS_OK;
}
