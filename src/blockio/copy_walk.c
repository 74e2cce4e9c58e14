/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over an image's data: SEEK_DATA and SEEK_HOLE in a work job, a batch of extents at a
 * time, while the batch before is being copied. It fails with what lseek() says, or with -EAGAIN
 * when there is no room for a job; `res` then says so and no more extents come.
 */
#include "blockio/copy_walk.h"

#include <errno.h>
#include <unistd.h>

/* False: the batch is full. What touches the last one becomes part of it. */
static bool batch_add(struct copy_batch *b, const struct copy_extent *e)
{
	struct copy_extent *last = b->count > 0 ? &b->extents[b->count - 1] : NULL;
	if (last != NULL && last->end == e->start)
		last->end = e->end;
	else if (b->count < COPY_WALK_BATCH)
		b->extents[b->count++] = *e;
	else
		return false;
	return true;
}

/* Widened to COPY_ALIGN, as file system blocks may be smaller; nothing is told twice. False: the
 * batch is full. */
static bool batch_add_wide(struct copy_walk *w, struct copy_batch *b, uint64_t start, uint64_t end)
{
	struct copy_extent e = {copy_round_down(start), copy_round_up(end)};
	if (e.start < w->from)
		e.start = w->from;
	if (e.end > w->size)
		e.end = w->size;
	if (e.start < e.end && !batch_add(b, &e))
		return false;
	if (w->from < e.end)
		w->from = e.end;
	return true;
}

/* One look: a batch may come out empty, with more behind it. */
static int walk_differ(struct copy_walk *w, struct copy_batch *b)
{
	struct extent_ranges ranges;
	uint64_t to;
	if (w->from >= w->size)
		return 0;
	int r = differ_look(w->differ, w->from, w->size, &ranges, &to);
	for (unsigned i = 0; r == 0 && i < ranges.count; i++)
		if (!batch_add_wide(w, b, ranges.at[i].start, ranges.at[i].end))
			return 0;
	if (r == 0 && w->from < to)
		w->from = to;
	return r;
}

/* Fills the batch that is not being taken from. Extents that touch become one. */
static int walk_run(struct work_job *job)
{
	struct copy_walk *w = container_of(job, struct copy_walk, job);
	struct copy_batch *b = &w->batches[w->batch ^ 1];
	b->count = b->at = 0;
	if (w->differ != NULL)
		return walk_differ(w, b);
	if (w->all) {
		b->extents[b->count++] = (struct copy_extent){w->from, w->size};
		w->from = w->size;
	}
	while (w->from < w->size) {
		off_t data = lseek(w->fd, (off_t)w->from, SEEK_DATA);
		if (data < 0 && errno != ENXIO)
			return -errno;
		if (data < 0 || (uint64_t)data >= w->size) {
			w->from = w->size;
			break;
		}
		off_t hole = lseek(w->fd, data, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		if (!batch_add_wide(w, b, (uint64_t)data, (uint64_t)hole))
			break;
	}
	return 0;
}

static void walk_on_end(struct work_job *job, int res)
{
	struct copy_walk *w = container_of(job, struct copy_walk, job);
	w->running = false;
	if (res < 0)
		w->res = res;
	else
		w->batches[w->batch ^ 1].ready = true;
	w->on_extents(w);
}

static int look_up(struct copy_walk *w)
{
	w->job = (struct work_job){.run = walk_run, .on_end = walk_on_end, .lane = w->lane};
	w->res = work_submit(w->work, &w->job);
	w->running = w->res == 0;
	return w->res;
}

int copy_walk_start(struct copy_walk *walk, struct work *work, struct lane *lane, int fd,
	uint64_t from, uint64_t size, void (*on_extents)(struct copy_walk *walk))
{
	*walk = (struct copy_walk){.fd = fd,
		.from = from,
		.size = size,
		.on_extents = on_extents,
		.work = work,
		.lane = lane};
	return look_up(walk);
}

int copy_walk_start_differ(struct copy_walk *walk, struct work *work, struct lane *lane,
	struct differ *differ, uint64_t from, uint64_t size,
	void (*on_extents)(struct copy_walk *walk))
{
	*walk = (struct copy_walk){.fd = -1,
		.differ = differ,
		.from = from,
		.size = size,
		.on_extents = on_extents,
		.work = work,
		.lane = lane};
	return look_up(walk);
}

int copy_walk_start_all(struct copy_walk *walk, struct work *work, struct lane *lane, uint64_t size,
	void (*on_extents)(struct copy_walk *walk))
{
	*walk = (struct copy_walk){.fd = -1,
		.all = true,
		.size = size,
		.on_extents = on_extents,
		.work = work,
		.lane = lane};
	return look_up(walk);
}

struct copy_extent *copy_walk_extent(struct copy_walk *walk)
{
	struct copy_batch *b = &walk->batches[walk->batch];
	if (b->at == b->count && !walk->running && walk->batches[walk->batch ^ 1].ready) {
		b->ready = false;
		walk->batch ^= 1;
		b = &walk->batches[walk->batch];
		walk->done = walk->from >= walk->size;
		if (!walk->done)
			(void)look_up(walk);
	}
	return b->at < b->count ? &b->extents[b->at] : NULL;
}

void copy_walk_next(struct copy_walk *walk)
{
	walk->batches[walk->batch].at++;
}

bool copy_walk_at_end(const struct copy_walk *walk)
{
	const struct copy_batch *b = &walk->batches[walk->batch];
	return walk->done && b->at == b->count;
}
