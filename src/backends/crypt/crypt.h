/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encryption: a filter over a backend. An image that holds LUKS2 is bound to a device by the one
 * below, and the volume is a dm-crypt device over that. What is not encrypted passes through.
 *
 * dm-crypt passes no ioctl on to the device below it (it has no prepare_ioctl: Linux 6.1 to 6.18),
 * so a raw volume needs no guard besides.
 */
#ifndef RINGVOL_BACKENDS_CRYPT_H
#define RINGVOL_BACKENDS_CRYPT_H

#include "backends/backend.h"
#include "disk/dm.h"

struct crypt;

/* Takes the place of `below` in the table, and looks where the kernel's device mapper is by
 * open_dm() (NULL: dm_open()). NULL: out of memory. */
struct crypt *crypt_open(
	const struct backend *below, int (*open_dm)(struct dm *ret, const char *control_path));
/* Gives the place back, before the one below is closed. NULL: nothing. */
void crypt_close(struct crypt *crypt);

#endif
