/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who was to stay the only writer is known again, and so is that the log is not clean after a
 * growth; what a run cut short left frozen by our own hand is thawed (quiesce.c). The volume is
 * locked meanwhile: nobody unmounts or deletes it. What fails is said in the log; a mark that stays
 * is looked at by the next snapshot and the next start.
 */
#include "node/adopt_marks.h"

#include "base/fd.h"
#include "base/log.h"
#include "blockio/boot_mark.h"
#include "node/node.h"
#include "node/quiesce.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>
#include <stdlib.h>

struct marks {
	struct op op;
	struct adopt *adopt;
	struct pool_object *volume;
	int dirfd; /* of its image */
	struct node_lock lock;
	bool looked;
	bool mountable; /* no raw block volume */
	bool frozen, written, grown, whole;
	struct boot_mark writer;
	/* Made where there is one: a thousand volumes are looked at together, and this is 9 KiB. */
	struct node_quiesce *leftover;
};

#define marks_of(op_ptr) container_of(op_ptr, struct marks, op)

static int look_job(struct op *op)
{
	struct marks *m = marks_of(op);
	_cleanup_fd_ int fd = node_open_image(m->dirfd, m->volume);
	if (fd < 0)
		return fd;
	m->frozen = m->mountable && boot_mark_get(fd, BOOT_MARK_FROZEN, NULL);
	m->grown = m->mountable && boot_mark_get(fd, BOOT_MARK_GROWN, NULL);
	m->whole = m->mountable && boot_mark_get(fd, BOOT_MARK_WHOLE, NULL);
	m->written = boot_mark_get(fd, BOOT_MARK_WRITER, &m->writer);
	m->looked = true;
	return 0;
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
	node_quiesce_init(m->leftover, m->adopt->node, m->volume, NODE_QUIESCE_ADOPTED);
	return op_child(op, &m->leftover->op);
}

static const struct op_step marks_steps[] = {
	{"look for our marks", .call = look_job},
	{"thaw leftover", .done = thaw_done, .run = thaw_run},
	{NULL},
};

/* A mark may be older than the mounts that are there, so it counts for the path it says. */
static void restore(const struct marks *m)
{
	struct node_volume *nv = node_volume_find(m->volume);
	if (nv == NULL)
		return;
	nv->marks_read = m->looked; /* else the next scan looks */
	nv->grown |= m->grown;
	nv->whole |= m->whole;
	if (!m->written)
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
	restore(m);
	node_lock_release(&m->adopt->node->locks, &m->lock);
	adopt_part_over(m->adopt);
	free(m->leftover);
	free(m);
}

void adopt_marks_start(struct adopt *a, struct pool_object *volume)
{
	struct node_volume *nv = node_volume_find(volume);
	nv->marks_read = true;
	if (list_empty(&nv->mounts))
		return;
	struct marks *m = adopt_part_new(a, sizeof(*m));
	nv->marks_read = m != NULL;
	if (m == NULL)
		return;
	m->adopt = a;
	m->volume = volume;
	m->dirfd = pool_dirfd(volume->pool, RECORD_VOLUME);
	m->mountable = node_volume_has_fs(volume);
	adopt_part_share(
		a, &m->lock, volume->key, "what an earlier run left of it is being looked at");
	adopt_part_start(a, &m->op, volume->pool, "marks", marks_steps, marks_finished);
}
