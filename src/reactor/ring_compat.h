/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is newer than the liburing we build with (2.3). Whether the running kernel has it is in
 * ring_features(): never use it without asking.
 */
#ifndef RINGVOL_REACTOR_RING_COMPAT_H
#define RINGVOL_REACTOR_RING_COMPAT_H

#include <liburing.h>

/* A name of our own, for a newer liburing has the kernel's as a macro. */
enum {
	RING_FEAT_MIN_TIMEOUT = 1 << 15, /* IORING_FEAT_MIN_TIMEOUT, Linux 6.12 */
};

#endif
