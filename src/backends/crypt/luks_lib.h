/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcryptsetup, loaded when it is needed: by a child that lives for one call, and by tools. So the
 * driver neither needs it nor has it in its memory.
 */
#ifndef RINGVOL_BACKENDS_LUKS_LIB_H
#define RINGVOL_BACKENDS_LUKS_LIB_H

#include <libcryptsetup.h>

#include "base/err.h"

#define LUKS_CALLS(CALL)                                                                           \
	CALL(crypt_activate_by_passphrase)                                                         \
	CALL(crypt_format)                                                                         \
	CALL(crypt_free)                                                                           \
	CALL(crypt_get_cipher)                                                                     \
	CALL(crypt_get_cipher_mode)                                                                \
	CALL(crypt_get_data_offset)                                                                \
	CALL(crypt_get_iv_offset)                                                                  \
	CALL(crypt_get_sector_size)                                                                \
	CALL(crypt_get_volume_key_size)                                                            \
	CALL(crypt_init)                                                                           \
	CALL(crypt_keyslot_add_by_volume_key)                                                      \
	CALL(crypt_keyslot_destroy)                                                                \
	CALL(crypt_keyslot_max)                                                                    \
	CALL(crypt_keyslot_status)                                                                 \
	CALL(crypt_load)                                                                           \
	CALL(crypt_metadata_locking)                                                               \
	CALL(crypt_persistent_flags_get)                                                           \
	CALL(crypt_set_data_offset)                                                                \
	CALL(crypt_set_log_callback)                                                               \
	CALL(crypt_set_metadata_size)                                                              \
	CALL(crypt_set_pbkdf_type)                                                                 \
	CALL(crypt_set_rng_type)                                                                   \
	CALL(crypt_volume_key_get)

struct luks_table {
#define CALL(name) __typeof__(name) *name;
	LUKS_CALLS(CALL)
#undef CALL
};
extern struct luks_table luks;

/* Once is enough. 0; ERR_PRECONDITION: it is not installed, or too old; the message names the
 * package. */
int luks_load(struct err *err);

#endif
