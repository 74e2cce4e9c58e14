/* SPDX-License-Identifier: Apache-2.0 */
/* Mounting, binding, unmounting, in a helper process. */
#ifndef RINGVOL_MOUNT_MNT_ATTACH_H
#define RINGVOL_MOUNT_MNT_ATTACH_H

#include "reactor/helper.h"

helper_fn mnt_call_mount, mnt_call_bind, mnt_call_unmount;

#endif
