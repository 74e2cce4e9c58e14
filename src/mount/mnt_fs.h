/* SPDX-License-Identifier: Apache-2.0 */
/* Mounted file systems by ioctl. */
#ifndef RINGVOL_MOUNT_MNT_FS_H
#define RINGVOL_MOUNT_MNT_FS_H

#include "reactor/helper.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether the kernel lets us grow a mounted ext4: it takes CAP_SYS_RESOURCE, which a restricted
 * container lacks. */
bool mnt_can_grow_ext4(void);

/* In a helper process: */

/* Gives a mounted ext4, fd being its directory, another UUID. 0, or -errno with why. */
int mnt_set_uuid(int fd, const uint8_t uuid[16], char *why);

helper_fn mnt_call_grow, mnt_call_sync, mnt_call_freeze, mnt_call_thaw, mnt_call_clean,
	mnt_call_trim, mnt_call_try_read;

#endif
