/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SipHash-1-3 (Aumasson, Bernstein): a hash with a secret key, for tables whose keys come from
 * others. Who does not know the key cannot choose many that fall together. Pure functions.
 */
#ifndef RINGVOL_BASE_SIPHASH_H
#define RINGVOL_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct siphash_key {
	uint64_t k0, k1;
};

/* A key from the kernel's random numbers; never fails, as they are there once a machine is up. */
void siphash_key_new(struct siphash_key *ret);
uint64_t siphash(const struct siphash_key *key, const void *data, size_t len);

#endif
