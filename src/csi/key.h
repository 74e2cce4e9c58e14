/* SPDX-License-Identifier: Apache-2.0 */
/* The key of an encrypted volume, as a request brings it. */
#ifndef RINGVOL_CSI_KEY_H
#define RINGVOL_CSI_KEY_H

#include "base/err.h"
#include "csi.pb-c.h"

struct secret;

/* The field of the secret that has it. */
#define CSI_KEY_FIELD "key"

/* 0, or ERR_INVALID: the secrets have no key. Of an encrypted volume; others need none. volume: as
 * the message names it; what: as the class names its secret, "node-stage". */
int csi_key_check(const char *volume, Csi__V1__StringPair **secrets, size_t n, const char *what,
	struct err *err);
/* Moves it out of the request: the values of all secrets there are wiped, whatever it returns. 0
 * with NULL: there is none. -ENOMEM. ret: NULL where none is wanted. */
int csi_key_take(Csi__V1__StringPair **secrets, size_t n, struct secret **ret);

#endif
