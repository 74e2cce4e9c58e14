/* SPDX-License-Identifier: Apache-2.0 */
/* Devices with a tag of ours that are bound to no known volume's image. */
#ifndef RINGVOL_NODE_STRANGE_H
#define RINGVOL_NODE_STRANGE_H

#include "pool/pool.h"

/* Why such a device cannot be known to be a deleted volume's; NULL: it can. tagged, random: the
 * pool and the random part of its tag. Static. */
const char *strange_why_keep(
	const struct pools *pools, const struct pool *tagged, const char *random);

#endif
