/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep of inline volumes, one volume at a time. Happy path: the next inline volume -> its
 * pod's directory is there: that is all. Or it is not, and not after a pause either -> lock the
 * volume -> look for its device, and for mounts of it -> detach -> remove: its bytes go with the
 * trash. How it can fail: in doubt nothing is done, and a later round looks again: somebody works
 * on the volume, its pool is away, devices of earlier runs are not known, it is mounted, or any
 * call fails.
 */
#include "node/sweep.h"

#include "base/fd.h"
#include "base/log.h"
#include "node/adopt.h"
#include "node/node.h"
#include "node/owner.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/remove.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LOOKS_MAX = 256 }; /* at volumes in one turn of the loop */

struct node_sweep {
	struct op op;
	struct node *node;
	struct ring_timer timer;
	bool busy, locked, removed;
	bool gone; /* as of the last look */
	struct pool_walk at;
	char id[RECORD_ID_MAX], name[RECORD_NAME_MAX + 1];
	char owner_path[RECORD_OWNER_MAX + 1];
	struct node_lock lock;
	struct node_owner owner;
	struct node_others others;
	struct backend_req req;
	struct pool_remove remove;
};

static struct node_sweep *sweep_of(struct op *op)
{
	return container_of(op, struct node_sweep, op);
}

static struct pool_object *volume_of(const struct node_sweep *s)
{
	struct pool_object *volume = NULL;
	struct err gone = {0};
	return pools_find_id(s->node->pools, RECORD_VOLUME, s->id, &volume, &gone) == 0 ? volume
											: NULL;
}

/* ---- is its pod there? ---- */

static bool has_entries(const char *path)
{
	_cleanup_dir_ DIR *dir = NULL;
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = fd < 0 ? fd : fd_open_dir(fd, &dir);
	return r >= 0 && fd_next_entry(dir, &r) != NULL;
}

/* The pods' directory last: what was not there is not because that has just gone. */
static int look_job(struct op *op)
{
	struct node_sweep *s = sweep_of(op);
	char pods[RECORD_OWNER_MAX + 1];
	struct stat st;
	snprintf(pods, sizeof(pods), "%s", s->owner_path);
	char *slash = strrchr(pods, '/');
	if (slash == NULL || slash == pods)
		return 0;
	*slash = '\0';
	s->gone = lstat(s->owner_path, &st) < 0 && errno == ENOENT && has_entries(pods);
	return 0;
}

static bool is_there(struct op *op)
{
	return !sweep_of(op)->gone;
}

static int rest_run(struct op *op)
{
	return op_sleep(op, NODE_SWEEP_AGAIN_MS);
}

/* ---- nobody has it ---- */

static int lock_run(struct op *op)
{
	struct node_sweep *s = sweep_of(op);
	const struct pool_object *volume = volume_of(s);
	s->gone = volume != NULL && record_is_inline(volume->rec) && !s->node->draining &&
		  pool_state(volume->pool) == POOL_READY && node_knows_volume(s->node, volume);
	if (!s->gone)
		return 0;
	node_lock_init(&s->lock, NODE_EXCLUSIVE, "volume", volume->key);
	s->lock.owner = NULL;
	s->lock.what = "its pod is gone, and it is being deleted";
	s->gone = node_lock_conflict(&s->node->locks, &s->lock) == NULL;
	if (s->gone)
		node_lock_take(&s->node->locks, &s->lock);
	s->locked = s->gone;
	return 0;
}

/* Its pool went and came back without it. */
static int fail_lost(struct op *op)
{
	return op_fail(op, ERR_UNAVAILABLE, "it is not in its pool any more");
}

static int device_run(struct op *op)
{
	struct node_sweep *s = sweep_of(op);
	const struct pool_object *volume = volume_of(s);
	if (volume == NULL)
		return fail_lost(op);
	node_owner_of_volume(&s->owner, op->reactor, volume, NULL);
	return op_child(op, &s->owner.op);
}

static int device_end(struct op *op, int res)
{
	struct node_sweep *s = sweep_of(op);
	s->gone = res == 0 && !s->owner.unclear;
	return res;
}

static bool no_device(struct op *op)
{
	return is_there(op) || !sweep_of(op)->owner.found;
}

static int others_run(struct op *op)
{
	struct node_sweep *s = sweep_of(op);
	node_others_init(&s->others, op->reactor, &s->owner.dev, NULL, NULL);
	return op_child(op, &s->others.op);
}

static int others_end(struct op *op, int res)
{
	struct node_sweep *s = sweep_of(op);
	s->gone = res == 0 && s->others.count == 0;
	return res;
}

/* ---- it goes ---- */

static int detach_run(struct op *op)
{
	struct node_sweep *s = sweep_of(op);
	const struct backend *backend = s->owner.dev_backend;
	const struct pool_object *volume = volume_of(s);
	if (volume == NULL)
		return fail_lost(op);
	s->req = (struct backend_req){.dirfd = -1, .dev = s->owner.dev};
	memcpy(s->req.tag, s->owner.dev.tag, sizeof(s->req.tag));
	struct node_volume *nv = node_volume_find(volume);
	if (nv != NULL)
		nv->detaching = true;
	int r = backend->detach(backend, op, &s->req);
	if (r < 0 && nv != NULL)
		nv->detaching = false;
	return r;
}

static int detach_end(struct op *op, int res)
{
	struct node_sweep *s = sweep_of(op);
	int r = backend_end(op, &s->req, res);
	const struct pool_object *volume = volume_of(s);
	struct node_volume *nv = volume != NULL ? node_volume_find(volume) : NULL;
	if (nv != NULL)
		nv->detaching = false;
	return r;
}

static int remove_run(struct op *op)
{
	struct node_sweep *s = sweep_of(op);
	struct pool_object *volume = volume_of(s);
	if (volume == NULL)
		return fail_lost(op);
	struct node_volume *nv = node_volume_find(volume);
	if (nv != NULL) {
		node_volume_clear_dev(s->node, nv);
		node_volume_free(nv);
		volume->node = NULL;
	}
	pool_remove_init(&s->remove, op->reactor, volume);
	return op_child(op, &s->remove.op);
}

static int remove_end(struct op *op, int res)
{
	sweep_of(op)->removed = res == 0;
	return res;
}

static const struct op_step steps[] = {
	{"look", .call = look_job},
	{"rest", .done = is_there, .run = rest_run},
	{"look again", .done = is_there, .call = look_job},
	{"lock", .done = is_there, .run = lock_run},
	{"look for device", .done = is_there, .run = device_run, .end = device_end},
	{"others", .done = no_device, .run = others_run, .end = others_end},
	{"detach", .done = no_device, .run = detach_run, .end = detach_end},
	{"remove", .done = is_there, .run = remove_run, .end = remove_end},
	{NULL},
};

/* ---- one after the other ---- */

static void arm(struct node_sweep *s, uint64_t ms)
{
	if (!s->node->draining)
		ring_timer_arm(s->node->reactor->ring, &s->timer, ms);
}

static void sweep_ended(struct op *op)
{
	struct node_sweep *s = sweep_of(op);
	if (s->locked)
		node_lock_release(&s->node->locks, &s->lock);
	if (s->removed || op_failed(op))
		log_event(s->removed ? LOG_LEVEL_INFO : LOG_LEVEL_WARN,
			s->removed ? "inline volume of a pod that is gone deleted"
				   : "inline volume of a pod that is gone is kept",
			log_fields({"volume", s->name}, {"pod", s->owner_path},
				{"error", op_failed(op) ? op->err.message : NULL}));
	s->busy = false;
	arm(s, NODE_SWEEP_NEXT_MS);
	node_tell_quiet(s->node);
}

static void start(struct node_sweep *s, const struct pool_object *volume)
{
	pool_object_id(volume, s->id);
	snprintf(s->name, sizeof(s->name), "%s", volume->rec->name);
	snprintf(s->owner_path, sizeof(s->owner_path), "%s", volume->rec->owner);
	s->locked = s->removed = s->gone = false;
	s->busy = true;
	op_init(&s->op, s->node->reactor, "sweep", steps, sweep_ended);
	s->op.lane = pool_lane(volume->pool);
	op_start(&s->op);
}

/* Soon while a pool is still being read, or devices of earlier runs are being looked for. */
static uint64_t next_round_ms(const struct node *node)
{
	const struct pool *pool;
	struct err why = {0};
	for (unsigned i = 0; (pool = pools_at(node->pools, i)) != NULL; i++)
		if (pool_state(pool) == POOL_LOADING)
			return NODE_SWEEP_AGAIN_MS;
	return node_adopted(node, &why) ? NODE_SWEEP_MS : NODE_SWEEP_AGAIN_MS;
}

static void on_tick(struct ring_timer *timer)
{
	struct node_sweep *s = container_of(timer, struct node_sweep, timer);
	const struct pool_object *volume;
	if (s->node->draining || s->busy)
		return; /* the end of a sweep arms it again */
	for (unsigned i = 0; i < LOOKS_MAX; i++) {
		volume = pools_next(s->node->pools, RECORD_VOLUME, &s->at);
		if (volume == NULL) {
			s->at = (struct pool_walk){0};
			arm(s, next_round_ms(s->node));
			return;
		}
		if (record_is_inline(volume->rec)) {
			start(s, volume);
			return;
		}
	}
	arm(s, NODE_SWEEP_NEXT_MS);
}

bool node_sweep_idle(const struct node_sweep *sweep)
{
	return sweep == NULL || !sweep->busy;
}

int node_sweep_open(struct node *node)
{
	struct node_sweep *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return -ENOMEM;
	s->node = node;
	s->timer.fn = on_tick;
	node->sweep = s;
	arm(s, NODE_SWEEP_NEXT_MS);
	return 0;
}

void node_sweep_close(struct node *node)
{
	if (node->sweep == NULL)
		return;
	ring_timer_cancel(node->reactor->ring, &node->sweep->timer);
	free(node->sweep);
	node->sweep = NULL;
}
