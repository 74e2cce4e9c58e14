/* SPDX-License-Identifier: Apache-2.0 */
/* Parks the image of a build in the trash. It fails as the file system of the pool does. */
#include "pool/build_park.h"

#include "base/fd.h"
#include "pool/build_part.h"
#include "pool/private.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void build_name_parked(struct pool_build *b)
{
	trash_name_parked(b->parked_name);
	b->parked_fd = b->pool->fds[POOL_FD_TRASH];
}

int build_park_job(void *arg)
{
	struct pool_build *b = arg;
	int r = fd_link(b->fd, b->parked_fd, b->parked_name);
	if (r < 0)
		return r;
	/* One log has the map, the size and the name in this order. */
	if (fsync(b->parked_fd) == 0)
		return 0;
	r = -errno;
	(void)unlinkat(b->parked_fd, b->parked_name, 0);
	return r;
}

int build_park_end(struct op *op, int res)
{
	const struct pool_build *b = pool_build_of(op);
	return res < 0 ? pool_fail_sys(b->pool, &op->err, res,
				 "making the map of %s durable in pool %s", b->rec->name,
				 b->pool->name)
		       : 0;
}

int build_unpark(struct pool_build *b, bool used)
{
	const char *deleted = b->parked_name + strlen(TRASH_PARKED);
	if (!used)
		return unlinkat(b->parked_fd, b->parked_name, 0) < 0 ? -errno : 0;
	b->dropped = renameat2(b->parked_fd, b->parked_name, b->parked_fd, deleted,
			     RENAME_NOREPLACE) == 0;
	return b->dropped ? 0 : -errno;
}
