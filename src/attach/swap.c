/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume that moves to the node that uses it: its cover is suspended, and goes on as before or
 * over another device. How it can fail: it is not there (any more), its I/O is waited for, or the
 * other device cannot be had. Then it stays as it is, and each call can be repeated.
 */
#include "attach/swap.h"

#include "attach/cover.h"

#include <stdio.h>
#include <string.h>

static int check_there(struct attach_info *info)
{
	return info->there ? 0
			   : err_set(&info->err, ERR_PRECONDITION,
				     "the volume is not in use on this node (any more)");
}

int attach_suspend(const struct attach_volume_req *req, struct attach_info *info)
{
	_cleanup_cover_ struct cover c;
	int r = cover_open(&c, req->tag, req->subsystem, info);
	if (r == 0)
		r = check_there(info);
	if (r == 0 && (!info->alive || info->local))
		r = err_set(&info->err, ERR_UNAVAILABLE,
			info->local
				? "the volume is on this node already"
				: "the device of the volume is gone: its node does not answer, or does not give it out any more");
	if (r == 0)
		r = guard_suspend(&c.dm, c.tag, &info->err);
	info->suspended |= r == 0;
	return r;
}

int attach_resume(const struct attach_volume_req *req, struct attach_info *info)
{
	_cleanup_cover_ struct cover c;
	int r = cover_open(&c, req->tag, req->subsystem, info);
	if (r < 0 || !info->there)
		return r;
	r = guard_resume(&c.dm, c.tag, &info->err);
	info->suspended &= r < 0;
	return r;
}

/* Its I/O goes on first. A connection that does not end now is left to the sweep. */
int attach_swap(const struct attach_swap_req *req, struct attach_info *info)
{
	_cleanup_cover_ struct cover c;
	struct err ignored = {0};
	int r = cover_open(&c, req->volume.tag, req->volume.subsystem, info);
	if (r == 0)
		r = check_there(info);
	if (r < 0)
		return r;
	const struct guard_spec spec = {
		.tag = c.tag,
		.major = req->major,
		.minor = req->minor,
		.size_bytes = req->size_bytes,
	};
	const char *subsystem = info->alive ? c.disk.subsystem : req->volume.subsystem;
	r = guard_swap(&c.dm, &spec, &c.guard, &info->err);
	if (r < 0)
		return r;
	cover_put(&c, info);
	info->alive = info->local = true;
	info->suspended = false;
	info->ctrl = (struct fabrics_ctrl){0};
	if (subsystem[0] != '\0')
		(void)cover_disconnect_all(subsystem, &ignored);
	return 0;
}
