/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mark is one sync on the ring, then one note on a work thread: the note is never true before the
 * sync is. A failure of either leaves noted_bytes as it was.
 */
#include "transfer/pull_part.h"

#include "blockio/image.h"
#include "pool/build_part.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static struct lane *lane_of(const struct pull_part *part)
{
	return pool_lane(part->build->pool);
}

static int note_run(struct work_job *job)
{
	struct pull_part *part = container_of(job, struct pull_part, note);
	struct stat st;
	if (fstat(part->fd, &st) < 0)
		return -errno;
	part->allocated_bytes = (uint64_t)st.st_blocks * 512;
	return pool_part_note(part->fd, part->build->part, record_image_bytes(part->build->rec),
		part->upto_bytes);
}

static void mark_end(struct pull_part *part, int res)
{
	part->marking = false;
	if (res >= 0) {
		part->noted_bytes = part->upto_bytes;
		pool_build_measured(part->build, part->allocated_bytes);
	}
	part->on_marked(part, res);
}

static void note_end(struct work_job *job, int res)
{
	mark_end(container_of(job, struct pull_part, note), res);
}

static void on_synced(struct ring_req *req, int res, uint32_t flags)
{
	struct pull_part *part = container_of(req, struct pull_part, sync);
	(void)flags;
	part->note = (struct work_job){.run = note_run, .on_end = note_end, .lane = lane_of(part)};
	if (res >= 0)
		res = work_submit(part->reactor->work, &part->note);
	if (res < 0)
		mark_end(part, res);
}

void pull_part_mark(struct pull_part *part, uint64_t upto_bytes)
{
	part->marking = true;
	part->upto_bytes = upto_bytes;
	io_uring_prep_fsync(&part->sync.sqe, part->fd, IORING_FSYNC_DATASYNC);
	part->sync.fn = on_synced;
	part->sync.lane = lane_of(part);
	ring_submit(part->reactor->ring, &part->sync);
}

static int cut_run(struct work_job *job)
{
	struct pull_part *part = container_of(job, struct pull_part, cut);
	const struct record *rec = part->build->rec;
	if (ftruncate(part->fd, (off_t)part->noted_bytes) < 0)
		return -errno;
	return image_resize(part->fd, record_image_bytes(rec), record_allocates(rec));
}

static void cut_end(struct work_job *job, int res)
{
	struct pull_part *part = container_of(job, struct pull_part, cut);
	part->cutting = false;
	part->on_cut(part, res);
}

void pull_part_cut(struct pull_part *part)
{
	part->cutting = true;
	part->cut = (struct work_job){.run = cut_run, .on_end = cut_end, .lane = lane_of(part)};
	int r = work_submit(part->reactor->work, &part->cut);
	if (r < 0)
		cut_end(&part->cut, r);
}
