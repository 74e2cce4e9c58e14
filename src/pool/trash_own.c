/* SPDX-License-Identifier: Apache-2.0 */
/* An unnamed file gets size and map, then a name like that of a deleted image. */
#include "pool/trash_own.h"

#include "base/fd.h"
#include "pool/layout.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>

int trash_own(int trash_fd, const struct image_map *map)
{
	char name[TRASH_NAME_BYTES];
	pool_random_hex(name, TRASH_NAME_BYTES - 1);
	_cleanup_fd_ int fd = openat(trash_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)image_map_bytes(map)) < 0)
		return -errno;
	int r = image_map_write(fd, map);
	if (r == 0)
		r = fd_link(fd, trash_fd, name);
	return r < 0 ? r : fsync(trash_fd) < 0 ? -errno : 0;
}
