/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts of a device in the mount namespaces of all processes. */
#ifndef RINGVOL_MOUNT_MNT_ELSEWHERE_H
#define RINGVOL_MOUNT_MNT_ELSEWHERE_H

#include <stdint.h>

/* Whether a process has the device mounted, or its node bound, anywhere but below the directory
 * `except` (copies of our own mounts lie there). 1, 0, or -errno. A mount that no process's
 * namespace has is not seen: of a descriptor that nobody has mounted yet. Blocking: it reads a list
 * of mounts for each namespace, or for each process where namespaces cannot be told apart. */
int mnt_elsewhere(uint32_t major, uint32_t minor, const char *except);

#endif
