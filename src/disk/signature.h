/* SPDX-License-Identifier: Apache-2.0 */
/* What else is on a disk. */
#ifndef RINGVOL_DISK_SIGNATURE_H
#define RINGVOL_DISK_SIGNATURE_H

#include <stdbool.h>
#include <stddef.h>

/* Whatever libblkid knows, also with a checksum that is wrong: 1 and the name of the first that it
 * finds; 0: nothing; -errno. */
int disk_signature(int fd, char *ret_name, size_t cap);
/* Whether that is what a leg of an array or a path of a multipath device has. Not those that lie so
 * far from the end that a volume could hold them. */
bool disk_signature_is_leg(const char *name);

#endif
