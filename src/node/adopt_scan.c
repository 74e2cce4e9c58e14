/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption: what earlier runs of the driver left on this node. Devices belong to the kernel, so
 * pods keep their volumes while the driver restarts; afterwards it has to know them again.
 *
 * Happy path: scan devices and the mounts of them (one work job) -> match the files they are bound
 * to with the volumes' images, whatever their tags say -> clear devices with a tag of a volume that
 * is gone from a pool that is here, unless somebody has them mounted, the volume is there and is
 * bound to another file, or one cannot be read, for it may be that one's -> bring their images
 * to the data process that serves the others -> look for our marks: thaw what a run cut short left
 * frozen by our own hand, know the single writers again.
 * A volume that a task has for itself, or had since the scan began, is left to another scan.
 * How it can fail: the scan fails, and nothing of its backend is known until the next one
 * (adopt.c); what cannot be cleared stays as it is. A device of a pool that is not here is left
 * alone.
 */
#include "node/adopt_scan.h"

#include "base/array.h"
#include "base/log.h"
#include "mount/mnt.h"
#include "node/node.h"
#include "node/volume.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct found_mount {
	uint32_t major, minor;
	bool read_only;
	bool is_fs; /* not the device's node */
	char *path;
};

struct adopt {
	struct op op;
	struct node *node;
	struct node_adoption *adoption;
	const struct backend *backend;
	struct err scan_err;
	struct backend_dev *devs;
	size_t dev_count, dev_cap;
	struct found_mount *mounts;
	size_t mount_count, mount_cap;
	int res;          /* what has gone wrong besides */
	unsigned pending; /* clears and looks at marks under way */
	uint64_t since;   /* node->locks.releases when the scan began */
	void (*on_end)(struct node_adoption *adoption, const struct node_scan *scan);
	struct node_scan scan;
};

/* ---- the scan, on a work thread ---- */

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
static int scan_job(void *arg)
{
	struct adopt *a = arg;
	int r = a->backend->scan(a->backend, scan_dev, a, &a->scan_err);
	if (r == 0 && a->dev_count != 0)
		r = mnt_scan(scan_mount, a);
	return r < 0 ? r : a->res;
}

static int scan_run(struct op *op)
{
	return op_work(op, scan_job, container_of(op, struct adopt, op));
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

/* All volumes, sorted by their images' inodes, for looking up what devices are bound to. */
static struct pool_object **sorted_volumes(struct node *node, size_t *ret_count)
{
	size_t count = 0, total = 0;
	for (unsigned i = 0; pools_at(node->pools, i) != NULL; i++)
		total += pool_count(pools_at(node->pools, i), RECORD_VOLUME);
	struct pool_object **list = calloc(total + 1, sizeof(struct pool_object *));
	char id[RECORD_ID_MAX] = "";
	struct pool_object *object;
	while (list != NULL && count < total &&
		(object = pools_next(node->pools, RECORD_VOLUME, id)) != NULL) {
		list[count++] = object;
		pool_object_id(object, id);
	}
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

/* ---- clearing devices whose volume is gone ---- */

struct clear {
	struct op op;
	struct adopt *adopt;
	const struct backend *backend;
	struct backend_req req;
};

static void settle(void *arg)
{
	struct adopt *a = arg;
	if (--a->pending == 0)
		op_complete(&a->op, a->res);
}

static int clear_run(struct op *op)
{
	struct clear *c = container_of(op, struct clear, op);
	return c->backend->detach(c->backend, op, &c->req);
}

static int clear_end(struct op *op, int res)
{
	return backend_end(op, &container_of(op, struct clear, op)->req, res);
}

static const struct op_step clear_steps[] = {
	{"detach", .run = clear_run, .end = clear_end},
	{NULL},
};

static void clear_finished(struct op *op)
{
	struct clear *c = container_of(op, struct clear, op);
	log_event(LOG_LEVEL_INFO, "device of a deleted volume cleared",
		log_fields({"device", c->req.dev.path}, {"tag", c->req.tag},
			{"error", op_failed(op) ? op->err.message : NULL}));
	settle(c->adopt);
	free(c);
}

/* Why the device cannot be known to be a deleted volume's; NULL: it can. A tag without a volume may
 * also be the tag of one whose record cannot be read now, or whose image somebody has moved away,
 * and a pod may have either in use. */
static const char *why_keep(const struct adopt *a, const struct pool *pool,
	const struct backend_dev *found, const char *random)
{
	for (size_t i = 0; i < a->mount_count; i++)
		if (a->mounts[i].major == found->major && a->mounts[i].minor == found->minor)
			return "it is mounted or published";
	char key[RECORD_KEY_MAX] = "";
	const struct pool_object *object;
	while ((object = pool_next_object(pool, RECORD_VOLUME, key)) != NULL) {
		if (object->rec == NULL)
			return "it may be of one of the pool's volumes whose records cannot be read";
		if (strcmp(object->rec->random, random) == 0)
			return "it has the tag of a volume, and is not bound to its image";
		memcpy(key, object->key, sizeof(key));
	}
	return NULL;
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

static void start_clear(struct adopt *a, const struct pool *pool, const struct backend_dev *found)
{
	struct clear *c = calloc(1, sizeof(*c));
	if (c == NULL) {
		a->res = -ENOMEM;
		return;
	}
	c->adopt = a;
	c->backend = a->backend;
	c->req.dirfd = -1;
	c->req.dev = *found;
	snprintf(c->req.tag, sizeof(c->req.tag), "%.63s", found->tag);
	a->pending++;
	a->scan.cleared++;
	op_init(&c->op, a->node->reactor, "clear device", clear_steps, clear_finished);
	c->op.lane = pool_lane(pool);
	op_start(&c->op);
}

/* ---- bringing the image to who serves the device ---- */

struct resume {
	struct op op;
	struct adopt *adopt;
	const struct backend *backend;
	struct backend_req req;
	struct node_lock lock; /* or a detach meanwhile would be undone by it */
	char image[RECORD_KEY_MAX], id[RECORD_ID_MAX];
};

static int resume_run(struct op *op)
{
	struct resume *r = container_of(op, struct resume, op);
	return r->backend->attach(r->backend, op, &r->req);
}

static int resume_end(struct op *op, int res)
{
	return backend_end(op, &container_of(op, struct resume, op)->req, res);
}

static const struct op_step resume_steps[] = {
	{"attach", .run = resume_run, .end = resume_end},
	{NULL},
};

static void resume_finished(struct op *op)
{
	struct resume *r = container_of(op, struct resume, op);
	struct pool_object *volume;
	struct err gone = {0};
	if (op_failed(op))
		log_event(LOG_LEVEL_WARN, "a device in use waits for its image",
			log_fields({"volume", r->id}, {"error", op->err.message}));
	else if (pools_find_id(r->adopt->node->pools, RECORD_VOLUME, r->id, &volume, &gone) == 0 &&
		 node_volume_find(volume) != NULL)
		node_volume_set_dev(r->adopt->node, node_volume_find(volume), &r->req.dev);
	node_lock_release(&r->adopt->node->locks, &r->lock);
	settle(r->adopt);
	free(r);
}

static void start_resume(
	struct adopt *a, const struct pool_object *volume, const struct backend_dev *found)
{
	struct resume *r = calloc(1, sizeof(*r));
	if (r == NULL) {
		a->res = -ENOMEM;
		return;
	}
	r->adopt = a;
	r->backend = a->backend;
	node_volume_request(volume, &r->req);
	memcpy(r->image, volume->key, sizeof(r->image)); /* the volume may go meanwhile */
	r->req.image = r->image;
	r->req.read_only = found->read_only;
	pool_object_id(volume, r->id);
	bool held = node_lock_share_volume(
		&a->node->locks, &r->lock, volume->key, "its device is being taken over");
	assert(held); /* adopt_device() has just looked */
	(void)held;
	a->pending++;
	op_init(&r->op, a->node->reactor, "resume device", resume_steps, resume_finished);
	r->op.lane = pool_lane(volume->pool);
	op_start(&r->op);
}

/* ---- the step that does it all ---- */

static void start_marks(struct adopt *a, struct pool_object *volume)
{
	a->pending++;
	int r = node_marks_start(a->node, volume, settle, a);
	node_volume_find(volume)->marks_read = r >= 0;
	if (r < 0)
		a->res = r;
	if (r != OP_PENDING)
		a->pending--;
}

/* Bound to no known volume's image: if it has a tag of a pool that is here, it may be cleared. */
static void strange_device(struct adopt *a, const struct backend_dev *found)
{
	char uuid8[9], random[9];
	if (found->going_away || !node_split_tag(found->tag, uuid8, random))
		return;
	const struct pool *pool = pools_by_uuid8(a->node->pools, uuid8);
	if (pool != NULL && pool_state(pool) == POOL_READY && !keep(a, pool, found, random))
		start_clear(a, pool, found);
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
	adopt_mounts(a, nv);
	if (a->backend->needs_image_again)
		start_resume(a, *hit, found);
	a->scan.adopted += !known;
	/* Somebody may have staged what an earlier run left before we came to it. */
	if (!nv->marks_read)
		start_marks(a, *hit);
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
	{"scan", .run = scan_run, .end = scan_end},
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
