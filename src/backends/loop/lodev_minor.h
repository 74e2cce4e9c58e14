/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for new loop devices, for lodev.c. Thread-safe. */
#ifndef RINGVOL_BACKENDS_LODEV_MINOR_H
#define RINGVOL_BACKENDS_LODEV_MINOR_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { LODEV_MINORS = 1 << 20 }; /* the kernel's minor numbers have 20 bits */

/* A number that nothing is bound to, and its device, open for LOOP_CONFIGURE. -EBUSY of that means
 * that another process was quicker: take the next. So does -EAGAIN here, which sets no error. */
int lodev_minor_take(bool no_discard, uint32_t *ret_minor, int *ret_fd, struct err *err);
/* Remembers a number that is free, or will be. A device whose discard limit was set to 0 keeps that
 * (Linux 6.18 at least). Volumes that forbid discards get such numbers first: setting the limit
 * costs 16 ms, making the device anew to be rid of it 45 ms. */
void lodev_minor_put(uint32_t minor, bool lost_discard);
/* The same; the device of that number is made anew when its turn comes, unless somebody has it
 * open. */
void lodev_minor_renew(uint32_t minor);
/* Without opening the device: true while an image is on it, also while it is going away. */
bool lodev_minor_is_bound(uint32_t minor);

#endif
