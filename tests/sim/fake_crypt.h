/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An encryption for tests that encrypts nothing: a filter over the loop backend. It keeps the key
 * in clear at the beginning of the image, and shows what is behind the header by a second loop
 * device over the first. So everything about it but the cipher is as with dm-crypt, on any kernel.
 */
#ifndef RINGVOL_TESTS_FAKE_CRYPT_H
#define RINGVOL_TESTS_FAKE_CRYPT_H

/* In the loop backend's place, until the process ends. */
void fake_crypt_use(void);
/* How many of its devices there are over images of that pool. */
unsigned fake_crypt_count(const char *pool_uuid8);

#endif
