/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a raw pool's area that no image has, and that are not zeroed either: a file in the trash
 * owns them, as if it had been a volume. Blocking. */
#ifndef RINGVOL_POOL_TRASH_OWN_H
#define RINGVOL_POOL_TRASH_OWN_H

#include "blockio/image_map.h"

/* Makes that file. Durable with 0. -errno: it may be there. */
int trash_own(int trash_fd, const struct image_map *map);

#endif
