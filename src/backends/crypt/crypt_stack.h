/* SPDX-License-Identifier: Apache-2.0 */
/* A dm-crypt device and the device below it, as the one device that a volume has. */
#ifndef RINGVOL_BACKENDS_CRYPT_STACK_H
#define RINGVOL_BACKENDS_CRYPT_STACK_H

#include "backends/backend.h"
#include "backends/crypt/crypt_dev.h"

/* Makes what is known of a device below what is known of the volume's, if this dm-crypt device
 * stands over it. Whether it does. */
bool crypt_add(const struct crypt_dev *crypt, struct backend_dev *dev);
/* The same, of one that is known to. */
void crypt_put_over(const struct crypt_dev *crypt, struct backend_dev *dev);
/* What the backend of that type knows of the volume's device: the one below, or the device itself
 * if there is none. */
struct backend_dev crypt_below(enum backend_type type, const struct backend_dev *dev);

#endif
