/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What earlier runs of the driver have left: covers that are in use, which the next run knows
 * again, and leftovers, which end. In doubt nothing ends: without knowing all covers no connection
 * is anybody's leftover.
 */
#include "attach/sweep.h"

#include "attach/cover.h"
#include "base/fd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { COVERS_MAX = 1024 }; /* looked at in one sweep; the next one sees the others */

struct sweep {
	struct dm *dm;
	const struct attach_sweep_req *req;
	struct attach_sweep_info *info;
	char (*used)[ATTACH_NQN_BYTES]; /* subsystems that have a cover */
	unsigned used_count;
};

static int sweep_cover(void *arg, struct cover *c)
{
	struct sweep *s = arg;
	const struct guard *guard = &c->guard;
	struct fabrics_disk disk;
	if (guard->below_major == 0)
		return 0; /* it is being made, or going */
	int r = fabrics_disk_at(guard->below_major, guard->below_minor, &disk);
	if (r == 0 && s->used_count == COVERS_MAX)
		return -E2BIG;
	if (r == 0)
		memcpy(s->used[s->used_count++], disk.subsystem, sizeof(disk.subsystem));
	if (r != -ENOENT || cover_is_used(c))
		return r == -ENOENT ? 0 : r;
	s->info->ended_covers += cover_remove(c, &s->info->err) == 0;
	return 0;
}

static bool is_same(const struct fabrics_ctrl *a, const struct fabrics_ctrl *b)
{
	return strcmp(a->name, b->name) == 0 && strcmp(a->subsystem, b->subsystem) == 0 &&
	       strcmp(a->host_nqn, b->host_nqn) == 0;
}

static int sweep_ctrl(void *arg, const struct fabrics_ctrl *ctrl)
{
	struct sweep *s = arg;
	bool left = false;
	for (unsigned i = 0; i < s->used_count; i++)
		if (strcmp(s->used[i], ctrl->subsystem) == 0)
			return 0;
	for (unsigned i = 0; i < s->req->count && i < ATTACH_LEFT_MAX; i++)
		left |= is_same(ctrl, &s->req->left[i]);
	if (left)
		s->info->ended += cover_disconnect(ctrl, &s->info->err) == 0;
	else if (s->info->count < ATTACH_LEFT_MAX)
		s->info->left[s->info->count++] = *ctrl;
	return 0;
}

int attach_sweep(const struct attach_sweep_req *req, struct attach_sweep_info *info)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct sweep s = {.dm = &dm, .req = req, .info = info};
	_cleanup_free_ char(*used)[ATTACH_NQN_BYTES] = malloc(COVERS_MAX * sizeof(*used));
	if (used == NULL)
		return err_set(&info->err, ERR_NO_ROOM, "out of memory");
	s.used = used;
	bool loaded = dm_is_loaded();
	int r = loaded ? covers_open_dm(&dm, &info->err) : 0;
	if (r == 0 && loaded)
		r = covers_each(&dm, sweep_cover, &s);
	if (r == 0)
		r = fabrics_each(sweep_ctrl, &s);
	return r < 0 ? err_sys(&info->err, r, "looking for what is left of volumes of other nodes")
		     : 0;
}

struct found {
	void (*each)(void *arg, const char *tag, const struct attach_info *info);
	void *arg;
};

static int found_cover(void *arg, struct cover *c)
{
	const struct found *found = arg;
	const struct guard *guard = &c->guard;
	struct attach_info info = {0};
	struct fabrics_disk disk;
	if (guard->retired || guard->going_away)
		return 0;
	cover_put(c, &info);
	info.alive = guard->below_major != 0 && cover_disk(guard, &disk, &info.local) == 0;
	if (info.alive && !info.local && fabrics_find(disk.subsystem, NULL, &info.ctrl) < 0)
		info.ctrl.name[0] = '\0';
	found->each(found->arg, c->volume, &info);
	return 0;
}

int attach_each_cover(
	void (*each)(void *arg, const char *tag, const struct attach_info *info), void *arg)
{
	struct found found = {each, arg};
	_cleanup_dm_ struct dm dm = {.fd = -1};
	if (!dm_is_loaded())
		return 0;
	int r = covers_try_dm(&dm);
	return r < 0 ? r : covers_each(&dm, found_cover, &found);
}
