/* SPDX-License-Identifier: Apache-2.0 */
/* For suites whose tests have a peer each: TestSuite(..., .init = setup, .fini = teardown). */
#ifndef RINGVOL_TESTS_PEER_ENV_H
#define RINGVOL_TESTS_PEER_ENV_H

#include "peer.h"

static struct peer *p;

static inline void setup(void)
{
	p = peer_new();
}

static inline void teardown(void)
{
	peer_free(p);
}

#endif
