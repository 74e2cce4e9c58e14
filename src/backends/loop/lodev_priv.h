/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of lodev share. */
#ifndef RINGVOL_BLOCKIO_LODEV_PRIV_H
#define RINGVOL_BLOCKIO_LODEV_PRIV_H

#include "backends/loop/lodev.h"

/* ---- lodev_status.c ---- */

/* Opens /dev/loop<minor> for looking at it: fd or -errno. */
int lodev_open(uint32_t minor);
/* What the kernel says of an open device. -ENXIO: not bound. */
int lodev_read(int fd, uint32_t minor, struct lodev *ret);
/* Without opening it: true while an image is on it, also while it is going away. */
bool lodev_is_bound(uint32_t minor);
bool lodev_has_tag(const struct lodev *dev);
/* Every bound device, anybody's, until each() answers false. */
int lodev_each(bool (*each)(void *arg, const struct lodev *dev), void *arg);

/* ---- lodev_minor.c ---- */

/* A number nothing is bound to, and its device, open for LOOP_CONFIGURE (whose -EBUSY means that
 * another process was quicker: take the next). -EAGAIN without an error: the same here. */
int lodev_minor_take(bool no_discard, uint32_t *ret_minor, int *ret_fd, struct err *err);
/* Remembers a number that is free, or will be. A device whose discard limit was set to 0 keeps that
 * (Linux 6.18 at least), and such numbers are given to volumes that forbid discards first: setting
 * the limit costs 16 ms, making the device anew to be rid of it 45 ms. */
void lodev_minor_put(uint32_t minor, bool lost_discard);
/* The same, and the device of that number is made anew when its turn comes, if nobody has it open.
 */
void lodev_minor_renew(uint32_t minor);

#endif
