/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption: what earlier runs of the driver left on this node. Devices belong to the kernel, so
 * pods keep their volumes while the driver restarts; afterwards it has to know them again.
 *
 * Happy path: scan devices and the mounts of them (one work job) -> match the files they are bound
 * to with the volumes' images, whatever their tags say -> clear devices with a tag of a volume that
 * is gone from a pool that is here, unless somebody has them mounted, the volume is there and is
 * bound to another file, or one cannot be read, for it may be that one's -> bring their images
 * to the data process that serves the others -> let go on what a run cut short left suspended
 * (adopt_device.c) -> look for our marks: thaw what a run cut short left frozen by our own hand,
 * know the single writers again (adopt_marks.c).
 * A volume that a task has for itself, or had since the scan began, is left to another scan.
 * How it can fail: the scan fails, and nothing of its backend is known until the next one
 * (adopt.c); what cannot be cleared stays as it is. A device of a pool that is not here is left
 * alone.
 */
#include "node/adopt_scan.h"

#include "base/buf.h"
#include "base/log.h"
#include "mount/mnt.h"
#include "mount/mnt_scan.h"
#include "node/adopt_device.h"
#include "node/adopt_marks.h"
#include "node/limits.h"
#include "node/node.h"
#include "node/strange.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the scan, on a work thread ---- */

/* A mount of a device, as /proc/self/mountinfo has it. */
struct found_mount {
	uint32_t major, minor;
	bool read_only;
	bool is_fs; /* not the device's node */
	char *path;
};

static void scan_dev(void *arg, const struct backend_dev *dev)
{
	struct adopt *a = arg;
	int r = array_grow(&a->devs, &a->dev_cap, a->dev_count, sizeof(*a->devs));
	if (r < 0)
		a->res = r;
	else
		a->devs[a->dev_count++] = *dev;
}

static void scan_mount(void *arg, const struct mnt_entry *entry)
{
	struct adopt *a = arg;
	char *path = strdup(entry->path);
	if (path == NULL ||
		array_grow(&a->mounts, &a->mount_cap, a->mount_count, sizeof(*a->mounts)) < 0) {
		free(path);
		a->res = -ENOMEM;
		return;
	}
	a->mounts[a->mount_count++] = (struct found_mount){
		entry->dev_major, entry->dev_minor, entry->read_only, !entry->bound_node, path};
}

/* All or nothing: of what was not seen nobody knows whether it is in use. */
static int scan_job(struct op *op)
{
	struct adopt *a = container_of(op, struct adopt, op);
	int r = a->backend->scan(a->backend, scan_dev, a, &a->scan_err);
	if (r == 0 && a->dev_count != 0)
		r = mnt_scan(scan_mount, a);
	return r < 0 ? r : a->res;
}

static int scan_end(struct op *op, int res)
{
	const struct adopt *a = container_of(op, struct adopt, op);
	if (res < 0 && a->scan_err.code != ERR_OK)
		op->err = a->scan_err;
	else if (res < 0)
		return op_fail_sys(op, res, "looking through devices and /proc/self/mountinfo");
	return res;
}

/* ---- matching ---- */

static int compare_files(uint64_t dev, uint64_t ino, const struct pool_object *volume)
{
	if (ino != volume->image_ino)
		return ino < volume->image_ino ? -1 : 1;
	return dev == volume->image_dev ? 0 : dev < volume->image_dev ? -1 : 1;
}

static int compare_volumes(const void *a, const void *b)
{
	const struct pool_object *x = *(struct pool_object *const *)a;
	return compare_files(x->image_dev, x->image_ino, *(struct pool_object *const *)b);
}

static int compare_device(const void *key, const void *volume)
{
	const struct backend_dev *dev = key;
	return compare_files(dev->image_dev, dev->image_ino, *(struct pool_object *const *)volume);
}

/* Those of one pool, onto the list. */
static void add_volumes(
	const struct pool *pool, struct pool_object **list, size_t *count, size_t total)
{
	char key[RECORD_KEY_MAX] = "";
	struct pool_object *object;
	while ((object = pool_next_object(pool, RECORD_VOLUME, key)) != NULL) {
		if (object->rec != NULL && *count < total)
			list[(*count)++] = object;
		memcpy(key, object->key, sizeof(key));
	}
}

/* All volumes, and what is attached still of those that have left, sorted by their images' inodes,
 * for looking up what devices are bound to. */
static struct pool_object **sorted_volumes(struct node *node, size_t *ret_count)
{
	size_t count = 0, total = 0;
	for (unsigned i = 0; pools_at(node->pools, i) != NULL; i++)
		total += pool_count(pools_at(node->pools, i), RECORD_VOLUME);
	struct pool_object **list = calloc(total + 1, sizeof(struct pool_object *));
	for (unsigned i = 0; list != NULL && pools_at(node->pools, i) != NULL; i++)
		add_volumes(pools_at(node->pools, i), list, &count, total);
	if (list != NULL)
		qsort(list, count, sizeof(struct pool_object *), compare_volumes);
	*ret_count = count;
	return list;
}

static void adopt_mounts(struct adopt *a, struct node_volume *nv)
{
	for (size_t i = 0; i < a->mount_count; i++) {
		const struct found_mount *m = &a->mounts[i];
		if (m->major != nv->dev.major || m->minor != nv->dev.minor)
			continue;
		nv->as_fs |= m->is_fs && nv->volume->rec->allow_mode_change;
		if (node_volume_mount_at(nv, m->path) != NULL)
			continue;
		bool first = m->is_fs && list_empty(&nv->mounts);
		if (node_volume_add_mount(nv, m->path, m->read_only, false) < 0)
			a->res = -ENOMEM;
		else /* the kernel lists them in the order they were made */
			node_volume_mount_at(nv, m->path)->first = first;
	}
}

/* ---- the step that does it all ---- */

static const char *why_keep(const struct adopt *a, const struct pool *pool,
	const struct backend_dev *found, const char *random)
{
	for (size_t i = 0; i < a->mount_count; i++)
		if (a->mounts[i].major == found->major && a->mounts[i].minor == found->minor)
			return "it is mounted or published";
	return strange_why_keep(a->node->pools, pool, random);
}

static bool keep(const struct adopt *a, const struct pool *pool, const struct backend_dev *found,
	const char *random)
{
	const char *why = why_keep(a, pool, found, random);
	if (why != NULL)
		log_event(LOG_LEVEL_WARN, "a device of no known volume is left alone",
			log_fields({"device", found->path}, {"tag", found->tag},
				{"pool", pool_name(pool)}, {"why", why},
				{"remedy",
					"mend what 'ringvol check' names and restart the driver, or "
					"unstage the volume, or end the device's users and detach "
					"it"}));
	return why != NULL;
}

/* Bound to no known volume's image: if it has a tag of a pool that is here, it may be cleared. */
static void strange_device(struct adopt *a, const struct backend_dev *found)
{
	char uuid8[9], random[9];
	if (found->going_away || node_is_formatting(a->node, found->tag) ||
		!node_split_tag(found->tag, uuid8, random))
		return;
	const struct pool *pool = pools_by_uuid8(a->node->pools, uuid8);
	if (pool == NULL || pool_state(pool) != POOL_READY)
		return;
	if (!keep(a, pool, found, random))
		adopt_clear_start(a, pool, found);
	else if (found->suspended)
		adopt_wake_start(a, pool, NULL, found);
}

/* Two devices may be bound to one image, one of them by somebody's hand: the tag says which is
 * ours. */
static bool is_second(const struct node_volume *nv, const struct backend_dev *found)
{
	char tag[64];
	if (!nv->dev.attached || (nv->dev.major == found->major && nv->dev.minor == found->minor))
		return false;
	node_volume_tag(nv->volume, tag);
	return strcmp(found->tag, tag) != 0 || strcmp(nv->dev.tag, tag) == 0;
}

static void adopt_device(struct adopt *a, struct pool_object **volumes, size_t count,
	const struct backend_dev *found)
{
	struct pool_object **hit =
		bsearch(found, volumes, count, sizeof(struct pool_object *), compare_device);
	if (hit == NULL) {
		strange_device(a, found);
		return;
	}
	if (found->going_away || pool_state((*hit)->pool) != POOL_READY)
		return;
	bool known = (*hit)->node != NULL;
	/* What the scan saw of it may be over: unstaged since, its device would be taken for its
	 * own again, or even be made again. */
	if (node_lock_alone_since(&a->node->locks, (*hit)->key, a->since)) {
		a->scan.left_out++;
		if (!known && backend_get((*hit)->rec->device) == a->backend)
			(*hit)->left_out = a->scan.number;
		return;
	}
	struct node_volume *nv = node_volume_get(*hit);
	if (nv == NULL) {
		a->res = -ENOMEM;
		return;
	}
	if (is_second(nv, found))
		return;
	if (!known || !nv->dev.attached || nv->dev.major != found->major ||
		nv->dev.minor != found->minor)
		node_volume_set_dev(a->node, nv, found);
	nv->whole |= record_is_inline((*hit)->rec);
	adopt_mounts(a, nv);
	if (a->backend->needs_image_again)
		adopt_resume_start(a, *hit, found);
	else if (node_limits_matter(nv))
		node_limits_follow(a->node, nv);
	a->scan.adopted += !known;
	/* Somebody may have staged what an earlier run left before we came to it. A suspended one
	 * nobody has suspended since: for that he needs it alone. What waits for its I/O is looked
	 * at afterwards. */
	if (found->suspended)
		adopt_wake_start(a, (*hit)->pool, *hit, found);
	else if (!nv->marks_read)
		adopt_marks_start(a, *hit);
}

static int match_run(struct op *op)
{
	struct adopt *a = container_of(op, struct adopt, op);
	struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(a->node->pools, i)) != NULL; i++)
		if (pool_state(pool) == POOL_READY)
			a->scan.pool_known[i] = pool_state_since_ns(pool) + 1;
	if (a->dev_count == 0)
		return 0;
	size_t count = 0;
	struct pool_object **volumes = sorted_volumes(a->node, &count);
	if (volumes == NULL)
		return -ENOMEM;
	a->pending = 1;
	for (size_t i = 0; i < a->dev_count; i++)
		adopt_device(a, volumes, count, &a->devs[i]);
	free(volumes);
	if (--a->pending == 0)
		return a->res;
	return op_wait(op);
}

static const struct op_step adopt_steps[] = {
	{"scan", .call = scan_job, .end = scan_end},
	{"match", .run = match_run},
	{NULL},
};

/* ---- one scan ---- */

static void adopt_finished(struct op *op)
{
	struct adopt *a = container_of(op, struct adopt, op);
	a->scan.err = op->err;
	for (size_t i = 0; i < a->mount_count; i++)
		free(a->mounts[i].path);
	free(a->mounts);
	free(a->devs);
	a->on_end(a->adoption, &a->scan);
	free(a);
}

int node_scan_start(struct node_adoption *adoption,
	void (*on_end)(struct node_adoption *adoption, const struct node_scan *scan))
{
	struct adopt *a = calloc(1, sizeof(*a));
	if (a == NULL)
		return -ENOMEM;
	a->node = adoption->node;
	a->adoption = adoption;
	a->backend = adoption->backend;
	a->since = a->node->locks.releases;
	a->on_end = on_end;
	a->scan.number = ++a->node->scans;
	op_init(&a->op, a->node->reactor, "adopt", adopt_steps, adopt_finished);
	op_start(&a->op);
	return 0;
}
