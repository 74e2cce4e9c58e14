/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our marks on the image of a volume just adopted: who was to stay the only writer is known again,
 * and so is whose log is not clean after a growth; what a run cut short left frozen by our own hand
 * is thawed. Happy path: look for all -> thaw the leftover (thaw.c). The volume is locked
 * meanwhile: nobody unmounts or deletes it. What fails is said in the log; a mark that stays is
 * looked at by the next snapshot and the next start.
 */
#include "base/fd.h"
#include "base/log.h"
#include "blockio/boot_mark.h"
#include "node/adopt_scan.h"
#include "node/node.h"
#include "node/quiesce.h"
#include "node/volume.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

struct marks {
	struct op op;
	struct node *node;
	struct pool_object *volume;
	struct node_lock lock;
	void (*on_end)(void *arg);
	void *arg;
	int dirfd;
	bool mountable; /* no raw block volume */
	bool frozen, written, grown;
	struct boot_mark writer;
	/* Made where there is one: a thousand volumes are looked at together, and this is 9 KiB. */
	struct node_quiesce *leftover;
};

#define marks_of(op_ptr) container_of(op_ptr, struct marks, op)

static int look_job(void *arg)
{
	struct marks *m = arg;
	_cleanup_fd_ int fd = openat(m->dirfd, m->volume->key, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	m->frozen = m->mountable && boot_mark_get(fd, BOOT_MARK_FROZEN, NULL);
	m->grown = m->mountable && boot_mark_get(fd, BOOT_MARK_GROWN, NULL);
	m->written = boot_mark_get(fd, BOOT_MARK_WRITER, &m->writer);
	return 0;
}

static int look_run(struct op *op)
{
	return op_work(op, look_job, marks_of(op));
}

static bool thaw_done(struct op *op)
{
	return !marks_of(op)->frozen;
}

static int thaw_run(struct op *op)
{
	struct marks *m = marks_of(op);
	m->leftover = malloc(sizeof(*m->leftover));
	if (m->leftover == NULL)
		return -ENOMEM;
	node_thaw_leftover_init(m->leftover, m->node, m->volume, true);
	return op_child(op, &m->leftover->op);
}

static const struct op_step marks_steps[] = {
	{"look for our marks", .run = look_run},
	{"thaw leftover", .done = thaw_done, .run = thaw_run},
	{NULL},
};

static void restore_grown(const struct marks *m)
{
	struct node_volume *nv = node_volume_find(m->volume);
	if (nv != NULL)
		nv->grown |= m->grown;
}

/* A mark may be older than the mounts that are there, so it counts for the path it says. */
static void restore_writer(const struct marks *m)
{
	const struct node_volume *nv = node_volume_find(m->volume);
	if (!m->written || nv == NULL)
		return;
	list_for_each (link, &nv->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (boot_mark_says(&m->writer, mount->path))
			mount->single_writer = true;
	}
}

static void marks_finished(struct op *op)
{
	struct marks *m = marks_of(op);
	char id[RECORD_ID_MAX];
	pool_object_id(m->volume, id);
	if (m->frozen || op_failed(op))
		log_event(LOG_LEVEL_WARN,
			m->frozen ? "a snapshot cut short had left a volume frozen"
				  : "whether a volume is frozen cannot be seen",
			log_fields(
				{"volume", id}, {"error", op_failed(op) ? op->err.message : NULL}));
	restore_writer(m);
	restore_grown(m);
	node_lock_release(&m->node->locks, &m->lock);
	m->on_end(m->arg);
	free(m->leftover);
	free(m);
}

int node_marks_start(
	struct node *node, struct pool_object *volume, void (*on_end)(void *arg), void *arg)
{
	if (list_empty(&node_volume_find(volume)->mounts))
		return 0;
	struct marks *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return -ENOMEM;
	m->node = node;
	m->volume = volume;
	m->on_end = on_end;
	m->arg = arg;
	m->mountable = node_volume_has_fs(volume);
	m->dirfd = pool_dirfd(volume->pool, RECORD_VOLUME);
	bool held = node_lock_share_volume(&node->locks, &m->lock, volume->key,
		"what an earlier run left of it is being looked at");
	assert(held); /* adopt_scan.c has just looked */
	(void)held;
	op_init(&m->op, node->reactor, "marks", marks_steps, marks_finished);
	m->op.lane = pool_lane(volume->pool);
	op_start(&m->op);
	return OP_PENDING;
}
