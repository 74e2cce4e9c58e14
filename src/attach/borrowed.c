/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of borrowed volumes, and the sweep. Owns the entries and one lane.
 *
 * Happy path of a sweep: a helper looks for connections without a cover -> those that were there at
 * the look before as well are ended. How it can fail: the kernel does not say what there is; then
 * nothing is ended, and it is looked again.
 */
#include "attach/borrowed.h"

#include "attach/sweep.h"
#include "base/log.h"
#include "blockio/blkdev.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two looks, and one more for what ends slowly. */
enum { QUIET_SWEEPS = 2 };

/* ---- the list ---- */

struct borrowed *borrows_find(const struct borrows *b, const char *tag)
{
	list_for_each (link, &b->all) {
		struct borrowed *one = container_of(link, struct borrowed, link);
		if (strcmp(one->tag, tag) == 0)
			return one;
	}
	return NULL;
}

struct borrowed *borrows_at(const struct borrows *b, uint32_t dev_major, uint32_t dev_minor)
{
	list_for_each (link, &b->all) {
		struct borrowed *one = container_of(link, struct borrowed, link);
		if (one->major == dev_major && one->minor == dev_minor && dev_major != 0)
			return one;
	}
	return NULL;
}

/* The place of the first whose tag is behind this one; the list's head: of none is. */
static struct list *place_behind(struct borrows *b, const char *tag)
{
	struct list *at = b->all.next;
	if (b->last != NULL && strcmp(b->last->tag, tag) <= 0)
		at = &b->last->link;
	while (at != &b->all && strcmp(container_of(at, struct borrowed, link)->tag, tag) <= 0)
		at = at->next;
	return at;
}

struct borrowed *borrows_next(struct borrows *b, const char *tag)
{
	for (struct list *at = place_behind(b, tag); at != &b->all; at = at->next) {
		struct borrowed *one = container_of(at, struct borrowed, link);
		if (!one->local)
			return b->last = one;
	}
	return NULL;
}

static void untrack(struct borrows *b, struct borrowed *one)
{
	if (b->probes != NULL && one->major != 0)
		probes_untrack(b->probes, one->major, one->minor, &one->probed);
}

struct borrowed *borrows_put(struct borrows *b, const char *tag, const struct attach_info *info)
{
	struct borrowed *one = borrows_find(b, tag);
	if (one == NULL) {
		one = calloc(1, sizeof(*one));
		if (one == NULL)
			return NULL;
		one->probed.other = true;
		snprintf(one->tag, sizeof(one->tag), "%s", tag);
		list_push(place_behind(b, tag), &one->link);
	}
	if (one->major != info->major || one->minor != info->minor) {
		untrack(b, one);
		one->major = info->major;
		one->minor = info->minor;
		/* What cannot be counted is used all the same. */
		if (b->probes != NULL)
			(void)probes_track(
				b->probes, PROBE_BIOS, one->major, one->minor, &one->probed);
	}
	snprintf(one->path, sizeof(one->path), "%s", info->path);
	one->size_bytes = info->size_bytes;
	one->opened = info->opened;
	one->read_only = info->read_only;
	one->local = info->local;
	one->suspended |= info->suspended;
	if (info->ctrl.name[0] != '\0')
		snprintf(one->subsystem, sizeof(one->subsystem), "%s", info->ctrl.subsystem);
	return one;
}

void borrows_drop(struct borrows *b, struct borrowed *one)
{
	if (one == NULL)
		return;
	untrack(b, one);
	if (b->last == one)
		b->last = NULL;
	list_remove(&one->link);
	free(one->staging);
	free(one->writer);
	free(one);
}

int borrowed_set_path(char **which, const char *path)
{
	char *copy = path != NULL ? strdup(path) : NULL;
	if (path != NULL && copy == NULL)
		return -ENOMEM;
	free(*which);
	*which = copy;
	return 0;
}

static void on_cover(void *arg, const char *tag, const struct attach_info *info)
{
	struct borrows *b = arg;
	if (borrows_put(b, tag, info) != NULL)
		log_event(LOG_LEVEL_DEBUG, "a volume of another node is in use",
			log_fields({"tag", tag}, {"device", info->path},
				{"connection", info->ctrl.name}));
}

int borrows_adopt(struct borrows *b)
{
	int r = attach_each_cover(on_cover, b);
	b->blind = r < 0;
	return r;
}

/* ---- the sweep ---- */

static int sweep_run(struct op *op)
{
	struct borrows *b = container_of(op, struct borrows, op);
	memset(&b->swept, 0, sizeof(b->swept));
	return op_helper(op, ATTACH_SWEEP, NULL, &b->sweep, sizeof(b->sweep), &b->swept,
		sizeof(b->swept), ATTACH_GIVE_TIMEOUT_MS);
}

static void log_swept(const struct borrows *b)
{
	char ended[16], covers[16];
	snprintf(ended, sizeof(ended), "%" PRIu32, b->swept.ended);
	snprintf(covers, sizeof(covers), "%" PRIu32, b->swept.ended_covers);
	log_event(LOG_LEVEL_INFO, "what was left of volumes of other nodes has ended",
		log_fields({"connections", ended}, {"devices", covers}));
}

static void forget_ended(struct borrows *b)
{
	struct blkdev ignored;
	list_for_each_safe (link, &b->all) {
		struct borrowed *one = container_of(link, struct borrowed, link);
		if (blkdev_look(one->major, one->minor, &ignored) == -ENOENT)
			borrows_drop(b, one);
	}
}

static int sweep_end(struct op *op, int res)
{
	struct borrows *b = container_of(op, struct borrows, op);
	bool failed = res < 0 || b->swept.err.code != ERR_OK;
	if (b->swept.ended != 0 || b->swept.ended_covers != 0)
		log_swept(b);
	if (b->swept.ended_covers != 0)
		forget_ended(b);
	b->quiet = failed || b->swept.count != 0 || b->swept.ended != 0 ? 0 : b->quiet + 1;
	b->unsure &= b->quiet < QUIET_SWEEPS;
	b->sweep.count = failed ? 0 : b->swept.count;
	memcpy(b->sweep.left, b->swept.left, sizeof(b->sweep.left));
	return 0;
}

static const struct op_step sweep_steps[] = {
	{"sweep", .run = sweep_run, .end = sweep_end},
	{NULL},
};

static void arm(struct borrows *b, uint64_t ms)
{
	if (!b->draining && !ring_timer_armed(&b->timer))
		ring_timer_arm(b->reactor->ring, &b->timer, ms);
}

static void sweep_finished(struct op *op)
{
	struct borrows *b = container_of(op, struct borrows, op);
	if (b->draining && b->on_quiet != NULL)
		b->on_quiet(b->on_quiet_arg);
	else if (b->unsure || !list_empty(&b->all))
		arm(b, b->unsure && b->quiet == 0 ? 2 * (uint64_t)BORROWED_FIRST_SWEEP_MS
						  : BORROWED_SWEEP_MS);
}

static void on_timer(struct ring_timer *timer)
{
	struct borrows *b = container_of(timer, struct borrows, timer);
	if (b->draining || op_running(&b->op))
		return;
	if (b->busy != 0) {
		arm(b, BORROWED_FIRST_SWEEP_MS);
		return;
	}
	op_init(&b->op, b->reactor, "sweep of borrowed volumes", sweep_steps, sweep_finished);
	b->op.lane = b->lane;
	op_start(&b->op);
}

void borrows_doubt(struct borrows *b)
{
	b->unsure = true;
	b->quiet = 0;
	arm(b, BORROWED_SWEEP_MS);
}

void borrows_sweep(struct borrows *b)
{
	struct err ignored = {0};
	/* Where nothing connects nothing is left. */
	if (fabrics_check(&ignored) < 0)
		return;
	b->unsure = true;
	arm(b, BORROWED_FIRST_SWEEP_MS);
}

void borrows_drain(struct borrows *b, void (*on_quiet)(void *arg), void *arg)
{
	b->draining = true;
	b->on_quiet = on_quiet;
	b->on_quiet_arg = arg;
	ring_timer_cancel(b->reactor->ring, &b->timer);
}

bool borrows_quiet(const struct borrows *b)
{
	return b == NULL || !op_running(&b->op);
}

/* ---- life ---- */

int borrows_open(struct borrows **ret, struct reactor *reactor)
{
	struct borrows *b = calloc(1, sizeof(*b));
	if (b == NULL)
		return -ENOMEM;
	int r = ring_lane_open(&b->lane, reactor->ring);
	if (r < 0) {
		free(b);
		return r;
	}
	list_init(&b->all);
	b->reactor = reactor;
	b->waits = (struct fabrics_waits){.loss_s = BORROWED_LOSS_S, .fail_s = BORROWED_FAIL_S};
	b->timer.fn = on_timer;
	*ret = b;
	return 0;
}

void borrows_close(struct borrows *b)
{
	if (b == NULL)
		return;
	ring_timer_cancel(b->reactor->ring, &b->timer);
	list_for_each_safe (link, &b->all)
		borrows_drop(b, container_of(link, struct borrowed, link));
	free(b);
}
