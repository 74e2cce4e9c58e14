/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption: what earlier runs of the driver left on this node. Devices belong to the kernel, so
 * pods keep their volumes while the driver restarts; afterwards it has to know them again.
 *
 * Happy path: scan devices with a ringvol tag and the mounts of them (one work job) -> match tags
 * with volumes -> clear devices whose volume is gone from a pool that is here, unless somebody has
 * them mounted or a volume there cannot be read, for it may be that one's -> bring their images
 * to the data process that serves the others -> look for our marks: thaw what a run cut short left
 * frozen by our own hand, know the single writers again.
 * How it can fail: the scan fails, and nothing is adopted until the next one; what cannot be
 * cleared stays as it is. A device of a pool that is not here is left alone.
 */
#include "base/array.h"
#include "base/fd.h"
#include "base/log.h"
#include "blockio/boot_mark.h"
#include "blockio/mnt.h"
#include "csi/node.h"
#include "csi/quiesce.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct found_dev {
	const struct backend *backend;
	struct backend_dev dev;
};

struct found_mount {
	uint32_t major, minor;
	bool read_only;
	char *path;
};

struct adopt {
	struct op op;
	struct csi *csi;
	void (*on_done)(void *arg);
	void *arg;
	const struct backend *scanning;
	struct found_dev *devs;
	size_t dev_count, dev_cap;
	struct found_mount *mounts;
	size_t mount_count, mount_cap;
	unsigned pending; /* clears and looks at marks under way */
	unsigned adopted, cleared;
};

/* ---- the scan, on a work thread ---- */

static void scan_dev(void *arg, const struct backend_dev *dev)
{
	struct adopt *a = arg;
	if (array_grow(&a->devs, &a->dev_cap, a->dev_count, sizeof(*a->devs)) < 0)
		return; /* not adopted now; the next scan finds it */
	a->devs[a->dev_count++] = (struct found_dev){a->scanning, *dev};
}

static void scan_mount(void *arg, const struct mnt_entry *entry)
{
	struct adopt *a = arg;
	char *path = strdup(entry->path);
	if (path == NULL ||
		array_grow(&a->mounts, &a->mount_cap, a->mount_count, sizeof(*a->mounts)) < 0) {
		free(path);
		return;
	}
	a->mounts[a->mount_count++] =
		(struct found_mount){entry->dev_major, entry->dev_minor, entry->read_only, path};
}

static int scan_job(void *arg)
{
	struct adopt *a = arg;
	for (unsigned type = 0; type < BACKEND_TYPES; type++) {
		a->scanning = backend_get(type);
		if (a->scanning == NULL)
			continue;
		int r = a->scanning->scan(a->scanning, scan_dev, a);
		if (r < 0)
			return r;
	}
	return a->dev_count == 0 ? 0 : mnt_scan(scan_mount, a);
}

static int scan_run(struct op *op)
{
	return op_work(op, scan_job, container_of(op, struct adopt, op));
}

/* ---- matching ---- */

static int compare_random(const void *a, const void *b)
{
	const struct pool_object *x = *(struct pool_object *const *)a;
	const struct pool_object *y = *(struct pool_object *const *)b;
	return strcmp(x->rec->random, y->rec->random);
}

static int compare_tag(const void *random, const void *object)
{
	return strcmp(random, (*(struct pool_object *const *)object)->rec->random);
}

/* All volumes, sorted by their random part, for looking up tags. */
static struct pool_object **sorted_volumes(struct csi *csi, size_t *ret_count)
{
	size_t count = 0, total = 0;
	for (unsigned i = 0; pools_at(csi->pools, i) != NULL; i++)
		total += pool_count(pools_at(csi->pools, i), RECORD_VOLUME);
	struct pool_object **list = calloc(total + 1, sizeof(struct pool_object *));
	char id[RECORD_ID_MAX] = "";
	struct pool_object *object;
	while (list != NULL && count < total &&
		(object = pools_next(csi->pools, RECORD_VOLUME, id)) != NULL) {
		list[count++] = object;
		pool_object_id(object, id);
	}
	if (list != NULL)
		qsort(list, count, sizeof(struct pool_object *), compare_random);
	*ret_count = count;
	return list;
}

static bool split_tag(const char *tag, char ret_pool[9], char ret_random[9])
{
	return strlen(tag) == strlen("ringvol:") + 8 + 1 + 8 &&
	       sscanf(tag, "ringvol:%8[0-9a-f]:%8[0-9a-f]", ret_pool, ret_random) == 2;
}

static void adopt_mounts(struct adopt *a, struct node_volume *node)
{
	for (size_t i = 0; i < a->mount_count; i++) {
		const struct found_mount *m = &a->mounts[i];
		if (m->major == node->dev.major && m->minor == node->dev.minor &&
			node_volume_mount_at(node, m->path) == NULL)
			node_volume_add_mount(node, m->path, m->read_only, false);
	}
}

/* ---- clearing devices whose volume is gone ---- */

struct clear {
	struct op op;
	struct adopt *adopt;
	const struct backend *backend;
	struct backend_req req;
};

static void settle(struct adopt *a)
{
	if (--a->pending == 0)
		op_complete(&a->op, 0);
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
static const char *why_keep(
	const struct adopt *a, const struct pool *pool, const struct found_dev *found)
{
	for (size_t i = 0; i < a->mount_count; i++)
		if (a->mounts[i].major == found->dev.major &&
			a->mounts[i].minor == found->dev.minor)
			return "it is mounted or published";
	char key[RECORD_KEY_MAX] = "";
	const struct pool_object *object;
	while ((object = pool_next_object(pool, RECORD_VOLUME, key)) != NULL) {
		if (object->rec == NULL)
			return "it may be of one of the pool's volumes whose records cannot be read";
		memcpy(key, object->key, sizeof(key));
	}
	return NULL;
}

static bool keep(const struct adopt *a, const struct pool *pool, const struct found_dev *found)
{
	const char *why = why_keep(a, pool, found);
	if (why != NULL)
		log_event(LOG_LEVEL_WARN, "a device of no known volume is left alone",
			log_fields({"device", found->dev.path}, {"tag", found->dev.tag},
				{"pool", pool_name(pool)}, {"why", why},
				{"remedy",
					"mend the records that 'ringvol check' names and restart the "
					"driver, or end the device's users and detach it"}));
	return why != NULL;
}

static void start_clear(struct adopt *a, const struct found_dev *found)
{
	struct clear *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return;
	c->adopt = a;
	c->backend = found->backend;
	c->req.dirfd = -1;
	c->req.dev = found->dev;
	snprintf(c->req.tag, sizeof(c->req.tag), "%.63s", found->dev.tag);
	a->pending++;
	a->cleared++;
	op_init(&c->op, a->csi->reactor, "clear device", clear_steps, clear_finished);
	op_start(&c->op);
}

/* ---- bringing the image to who serves the device ---- */

struct resume {
	struct op op;
	struct adopt *adopt;
	const struct backend *backend;
	struct backend_req req;
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
	else if (pools_find_id(r->adopt->csi->pools, RECORD_VOLUME, r->id, &volume, &gone) == 0 &&
		 node_volume_find(volume) != NULL)
		node_volume_set_dev(r->adopt->csi, node_volume_find(volume), &r->req.dev);
	settle(r->adopt);
	free(r);
}

static void start_resume(
	struct adopt *a, const struct pool_object *volume, const struct found_dev *found)
{
	struct resume *r = calloc(1, sizeof(*r));
	if (r == NULL)
		return;
	r->adopt = a;
	r->backend = found->backend;
	node_volume_request(volume, &r->req);
	memcpy(r->image, volume->key, sizeof(r->image)); /* the volume may go meanwhile */
	r->req.image = r->image;
	r->req.read_only = found->dev.read_only;
	pool_object_id(volume, r->id);
	a->pending++;
	op_init(&r->op, a->csi->reactor, "resume device", resume_steps, resume_finished);
	op_start(&r->op);
}

/* ---- our marks: thawing what we froze, and who is to stay the only writer ---- */

struct marks {
	struct op op;
	struct adopt *adopt;
	int dirfd;
	char image[RECORD_KEY_MAX], id[RECORD_ID_MAX];
	bool mountable; /* no raw block volume */
	bool frozen, written;
	struct boot_mark writer;
	struct mnt_path_req path;
	struct mnt_result result;
};

static int look_job(void *arg)
{
	struct marks *m = arg;
	_cleanup_fd_ int fd = openat(m->dirfd, m->image, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	m->frozen = m->mountable && boot_mark_get(fd, BOOT_MARK_FROZEN, NULL);
	m->written = boot_mark_get(fd, BOOT_MARK_WRITER, &m->writer);
	return 0;
}

static int unmark_job(void *arg)
{
	struct marks *m = arg;
	_cleanup_fd_ int fd = openat(m->dirfd, m->image, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : boot_mark_remove(fd, BOOT_MARK_FROZEN);
}

static bool thaw_done(struct op *op)
{
	return !container_of(op, struct marks, op)->frozen;
}

static int look_run(struct op *op)
{
	return op_work(op, look_job, container_of(op, struct marks, op));
}

static int thaw_run(struct op *op)
{
	struct marks *m = container_of(op, struct marks, op);
	/* Without a key: a call that hangs on the frozen file system must not keep the thaw away.
	 */
	return op_helper(op, MNT_THAW, NULL, &m->path, sizeof(m->path), &m->result,
		sizeof(m->result), CSI_FREEZE_TIMEOUT_MS);
}

static int unmark_run(struct op *op)
{
	return op_work(op, unmark_job, container_of(op, struct marks, op));
}

static const struct op_step marks_steps[] = {
	{"look for our marks", .run = look_run},
	{"thaw", .done = thaw_done, .run = thaw_run},
	{"unmark", .done = thaw_done, .run = unmark_run},
	{NULL},
};

/* A mark may be older than the mounts that are there, so it counts for the path it says. */
static void restore_writer(struct marks *m)
{
	struct pool_object *volume;
	struct err gone = {0};
	if (!m->written ||
		pools_find_id(m->adopt->csi->pools, RECORD_VOLUME, m->id, &volume, &gone) < 0 ||
		node_volume_find(volume) == NULL)
		return;
	list_for_each (link, &node_volume_find(volume)->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (boot_mark_says(&m->writer, mount->path))
			mount->single_writer = true;
	}
}

static void marks_finished(struct op *op)
{
	struct marks *m = container_of(op, struct marks, op);
	if (m->frozen || op_failed(op))
		log_event(LOG_LEVEL_WARN,
			m->frozen ? "a snapshot cut short had left a volume frozen"
				  : "whether a volume is frozen cannot be seen",
			log_fields({"volume", m->id},
				{"error", op_failed(op) ? op->err.message : NULL}));
	restore_writer(m);
	settle(m->adopt);
	free(m);
}

static void start_marks(struct adopt *a, struct pool_object *volume, struct node_volume *node)
{
	if (list_empty(&node->mounts))
		return;
	struct marks *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return;
	m->adopt = a;
	m->mountable = volume->rec->fs != FSIMG_NONE;
	m->dirfd = pool_dirfd(volume->pool, RECORD_VOLUME);
	memcpy(m->image, volume->key, sizeof(m->image));
	pool_object_id(volume, m->id);
	snprintf(m->path.path, sizeof(m->path.path), "%s",
		container_of(node->mounts.next, struct node_mount, link)->path);
	a->pending++;
	op_init(&m->op, a->csi->reactor, "marks", marks_steps, marks_finished);
	op_start(&m->op);
}

/* ---- the step that does it all ---- */

static void adopt_device(
	struct adopt *a, struct pool_object **volumes, size_t count, const struct found_dev *found)
{
	char uuid8[9], random[9];
	if (!split_tag(found->dev.tag, uuid8, random))
		return;
	struct pool *pool = pools_by_uuid8(a->csi->pools, uuid8);
	if (pool == NULL || pool_state(pool) != POOL_READY)
		return;
	struct pool_object **hit = volumes == NULL
					   ? NULL
					   : bsearch(random, volumes, count,
						     sizeof(struct pool_object *), compare_tag);
	if (volumes == NULL)
		return;
	if (hit == NULL) {
		if (!found->dev.going_away && !keep(a, pool, found))
			start_clear(a, found);
		return;
	}
	if (found->dev.going_away || (*hit)->pool != pool)
		return;
	bool known = (*hit)->node != NULL;
	struct node_volume *node = node_volume_get(*hit);
	if (node == NULL)
		return;
	if (!known || !node->dev.attached)
		node_volume_set_dev(a->csi, node, &found->dev);
	adopt_mounts(a, node);
	if (found->backend->needs_image_again)
		start_resume(a, *hit, found);
	if (!known) {
		a->adopted++;
		start_marks(a, *hit, node);
	}
}

static int match_run(struct op *op)
{
	struct adopt *a = container_of(op, struct adopt, op);
	size_t count = 0;
	struct pool_object **volumes = a->dev_count == 0 ? NULL : sorted_volumes(a->csi, &count);
	a->pending = 1;
	for (size_t i = 0; i < a->dev_count; i++)
		adopt_device(a, volumes, count, &a->devs[i]);
	free(volumes);
	if (--a->pending == 0)
		return 0;
	return op_wait(op);
}

static const struct op_step adopt_steps[] = {
	{"scan", .run = scan_run},
	{"match", .run = match_run},
	{NULL},
};

static void adopt_finished(struct op *op)
{
	struct adopt *a = container_of(op, struct adopt, op);
	char adopted[16], cleared[16];
	snprintf(adopted, sizeof(adopted), "%u", a->adopted);
	snprintf(cleared, sizeof(cleared), "%u", a->cleared);
	if (op_failed(op) || a->adopted != 0 || a->cleared != 0)
		log_event(op_failed(op) ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
			"devices of earlier runs",
			log_fields({"adopted", adopted}, {"cleared", cleared},
				{"error", op_failed(op) ? op->err.message : NULL}));
	a->csi->adopted = true;
	if (a->on_done != NULL)
		a->on_done(a->arg);
	for (size_t i = 0; i < a->mount_count; i++)
		free(a->mounts[i].path);
	free(a->mounts);
	free(a->devs);
	free(a);
}

void csi_adopt(struct csi *csi, void (*on_done)(void *arg), void *arg)
{
	struct adopt *a = calloc(1, sizeof(*a));
	if (a == NULL) {
		if (on_done != NULL)
			on_done(arg);
		return;
	}
	a->csi = csi;
	a->on_done = on_done;
	a->arg = arg;
	op_init(&a->op, csi->reactor, "adopt", adopt_steps, adopt_finished);
	op_start(&a->op);
}
