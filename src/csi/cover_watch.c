/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One suspended cover at a time, in turns. Happy path: its volume is in no pool of this node, and
 * all of these are ready -> the parts are looked through for one of it, which says its key -> by
 * that the volume is locked -> once more, there is no finished part -> it is resumed.
 *
 * How it can fail: a part cannot be read, or somebody has the volume; then it is looked again. A
 * cover that no part and no call of this run tells of is not ours to resume: it stays, and the log
 * says so once.
 */
#include "csi/cover_watch.h"

#include "base/log.h"
#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/arrival.h"
#include "pool/hold.h"
#include "pool/index.h"
#include "pool/part.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct csi_cover_watch *watch_of(struct op *op)
{
	return container_of(op, struct csi_cover_watch, op);
}

static void arm(struct csi_cover_watch *w)
{
	ring_timer_arm(w->csi->reactor->ring, &w->timer, CSI_COVERS_MS);
}

/* ---- looking for a part ---- */

static int look_job(void *arg)
{
	struct csi_cover_watch *w = arg;
	int found = 0;
	for (unsigned i = 0; i < w->n_pools && found >= 0 && !w->finished; i++) {
		int r = pool_part_find(
			w->copies_fds[i], w->pool_uuid8, w->random, w->key, &w->finished);
		found = r != 0 ? r : found;
	}
	return found;
}

static int look_run(struct op *op)
{
	struct csi_cover_watch *w = watch_of(op);
	const struct pool *pool;
	w->n_pools = 0;
	w->finished = false;
	for (unsigned i = 0; (pool = pools_at(w->csi->pools, i)) != NULL; i++) {
		int r = pool_check_ready(pool, &op->err);
		if (r < 0)
			return r;
		w->copies_fds[w->n_pools++] = pool_holds_fd(pool);
	}
	return op_work(op, look_job, w);
}

static struct borrowed *entry(const struct csi_cover_watch *w)
{
	return borrows_find(w->csi->borrows, w->cover.tag);
}

static int look_end(struct op *op, int res)
{
	struct csi_cover_watch *w = watch_of(op);
	struct borrowed *one = entry(w);
	if (res < 0)
		return op_fail_sys(op, res, "looking for the part of a volume that moves here");
	if (one == NULL || !one->suspended || w->finished)
		return op_fail(op, ERR_PENDING, "it is gone on with");
	if (res == 0 && !one->ours)
		return op_fail(op, ERR_NOT_FOUND,
			"this driver knows of no move of it: if nobody else does, resume it with 'dmsetup resume'");
	return 0;
}

/* ---- nobody else works on it ---- */

static bool unknown(struct op *op)
{
	return watch_of(op)->key[0] == '\0';
}

static int lock_run(struct op *op)
{
	struct csi_cover_watch *w = watch_of(op);
	struct node_locks *locks = &w->csi->node->locks;
	node_lock_init(&w->lock, NODE_EXCLUSIVE, "volume", w->key);
	w->lock.what = "its device goes on after a move that was cut";
	if (node_lock_conflict(locks, &w->lock) != NULL)
		return op_fail(op, ERR_PENDING, "it is worked on");
	node_lock_take(locks, &w->lock);
	w->locked = true;
	return 0;
}

/* ---- it goes on ---- */

static int resume_run(struct op *op)
{
	struct csi_cover_watch *w = watch_of(op);
	cover_resume_init(&w->cover, w->csi, w->cover.tag);
	return op_child(op, &w->cover.op);
}

static int resume_end(struct op *op, int res)
{
	struct csi_cover_watch *w = watch_of(op);
	const struct pool *pool;
	for (unsigned i = 0; res == 0 && (pool = pools_at(w->csi->pools, i)) != NULL; i++)
		pool_arrival_forget((struct pool *)pool, w->key);
	return res;
}

static const struct op_step steps[] = {
	{"look for part", .run = look_run, .end = look_end},
	{"have alone", .run = lock_run, .done = unknown},
	{"look again", .run = look_run, .end = look_end, .done = unknown},
	{"resume", .run = resume_run, .end = resume_end},
	{NULL},
};

static void log_end(const struct csi_cover_watch *w, const struct op *op)
{
	struct borrowed *one = entry(w);
	if (!op_failed(op)) {
		log_event(LOG_LEVEL_INFO,
			"a volume of another node goes on after a move that was cut",
			log_fields({"tag", w->cover.tag}));
	} else if (op->err.code != ERR_PENDING && (one == NULL || !one->told)) {
		log_event(LOG_LEVEL_WARN, "the device of a volume of another node is suspended",
			log_fields({"tag", w->cover.tag}, {"error", op->err.message}));
		if (one != NULL)
			one->told = true;
	}
}

static void ended(struct op *op)
{
	struct csi_cover_watch *w = watch_of(op);
	log_end(w, op);
	if (w->locked)
		node_lock_release(&w->csi->node->locks, &w->lock);
	w->locked = false;
	if (!w->csi->node->draining)
		arm(w);
}

/* ---- its volume is here ---- */

static void on_taken(struct grpc_local *local, enum grpc_status status, const char *message)
{
	struct csi_cover_watch *w = container_of(local, struct csi_cover_watch, local);
	(void)status; /* the task has logged it */
	(void)message;
	w->calling = false;
	arm(w);
}

static bool take(struct csi_cover_watch *w, const struct pool_object *volume)
{
	static const struct grpc_peer controller = {.role = GRPC_PEER_CONTROLLER};
	uint8_t packed[RECORD_ID_MAX + RECORD_NAME_MAX + 512];
	Ringvol__V1__TakeVolumeRequest request = RINGVOL__V1__TAKE_VOLUME_REQUEST__INIT;
	char id[RECORD_ID_MAX];
	pool_object_id(volume, id);
	request.volume_id = csi_bytes(id);
	request.volume_name = csi_bytes(volume->rec->name);
	request.pool = csi_bytes(pool_name(volume->pool));
	if (protobuf_c_message_get_packed_size(&request.base) > sizeof(packed))
		return false;
	size_t len = protobuf_c_message_pack(&request.base, packed);
	w->calling = true;
	w->local = (struct grpc_local){.on_end = on_taken, .peer = &controller};
	grpc_dispatch_local(w->registry, "/ringvol.v1.Member/TakeVolume", packed, len, &w->local);
	return true;
}

/* The volume of that tag that is attached to this node as its own. */
static const struct pool_object *own_of(const struct csi *csi, const char *tag)
{
	const struct pool_object *o;
	struct pool_walk walk = {0};
	char its[64];
	while ((o = pools_next(csi->pools, RECORD_VOLUME, &walk)) != NULL) {
		const struct attachment *own =
			attachments_find(o->attachments, csi->config.node_id);
		node_volume_tag(o, its);
		if (own != NULL && own->export[0] == '\0' && strcmp(its, tag) == 0)
			return o;
	}
	return NULL;
}

/* ---- in turns ---- */

static struct borrowed *find(const struct borrows *b, unsigned number, unsigned *ret_count)
{
	*ret_count = 0;
	list_for_each (link, &b->all) {
		struct borrowed *one = container_of(link, struct borrowed, link);
		if (one->suspended && (*ret_count)++ == number)
			return one;
	}
	return NULL;
}

static struct borrowed *next_of(struct csi_cover_watch *w)
{
	unsigned count;
	struct borrowed *one = find(w->csi->borrows, w->next, &count);
	if (one == NULL) {
		w->next = 0;
		one = find(w->csi->borrows, 0, &count);
	}
	w->next++;
	return one;
}

static void start(struct csi_cover_watch *w, const struct borrowed *one)
{
	struct reactor *reactor = w->csi->reactor;
	memcpy(w->cover.tag, one->tag, sizeof(w->cover.tag));
	w->cover.csi = w->csi;
	w->key[0] = '\0';
	if (one->ours)
		snprintf(w->key, sizeof(w->key), "%s", one->key);
	op_init(&w->op, reactor, "cover_watch", steps, ended);
	op_start(&w->op);
}

static void on_timer(struct ring_timer *timer)
{
	struct csi_cover_watch *w = container_of(timer, struct csi_cover_watch, timer);
	const struct borrowed *one = next_of(w);
	if (one == NULL || !node_split_tag(one->tag, w->pool_uuid8, w->random)) {
		arm(w);
		return;
	}
	const struct pool_object *own = own_of(w->csi, one->tag);
	if (own == NULL)
		start(w, one);
	else if (!take(w, own))
		arm(w);
}

void csi_cover_watch_open(
	struct csi_cover_watch *w, struct csi *csi, struct grpc_registry *registry)
{
	*w = (struct csi_cover_watch){.csi = csi, .registry = registry};
	w->timer.fn = on_timer;
	arm(w);
}

void csi_cover_watch_close(struct csi_cover_watch *w)
{
	if (w->csi == NULL)
		return;
	ring_timer_cancel(w->csi->reactor->ring, &w->timer);
	if (w->calling)
		grpc_local_leave(&w->local);
	w->calling = false;
}

bool csi_cover_watch_idle(const struct csi_cover_watch *w)
{
	return w->csi == NULL || !op_running(&w->op);
}
