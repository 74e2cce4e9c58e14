/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our marks on the image of a volume just adopted: thaws what a run cut short left frozen by our
 * own hand, and who was to stay the only writer is known again. Happy path: look -> thaw -> unmark.
 * What fails is said in the log; a mark that stays is looked at by the next snapshot and the next
 * start.
 */
#include "base/fd.h"
#include "base/log.h"
#include "blockio/boot_mark.h"
#include "blockio/mnt.h"
#include "csi/adopt.h"
#include "csi/node_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct marks {
	struct op op;
	struct csi *csi;
	void (*on_end)(void *arg);
	void *arg;
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
	if (!m->written || pools_find_id(m->csi->pools, RECORD_VOLUME, m->id, &volume, &gone) < 0 ||
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
	m->on_end(m->arg);
	free(m);
}

int csi_marks_start(
	struct csi *csi, struct pool_object *volume, void (*on_end)(void *arg), void *arg)
{
	const struct node_volume *node = node_volume_find(volume);
	if (list_empty(&node->mounts))
		return 0;
	struct marks *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return -ENOMEM;
	m->csi = csi;
	m->on_end = on_end;
	m->arg = arg;
	m->mountable = volume->rec->fs != FSIMG_NONE;
	m->dirfd = pool_dirfd(volume->pool, RECORD_VOLUME);
	memcpy(m->image, volume->key, sizeof(m->image));
	pool_object_id(volume, m->id);
	snprintf(m->path.path, sizeof(m->path.path), "%s",
		container_of(node->mounts.next, struct node_mount, link)->path);
	op_init(&m->op, csi->reactor, "marks", marks_steps, marks_finished);
	m->op.lane = pool_lane(volume->pool);
	op_start(&m->op);
	return OP_PENDING;
}
