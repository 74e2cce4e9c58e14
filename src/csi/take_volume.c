/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TakeVolume: a volume of another node moves into a pool of this one, for good, with its id. Happy
 * path: it is not here yet, and there is an offer of it -> what it is (pull.h) -> a build that
 * keeps its identity; its part is filled, and the volume leaves the other node with that
 * (take_fill.c) -> it is recorded and named -> if it is in use on this node, its cover goes on over
 * it (cover.h). docs/moving.md has the whole story.
 *
 * How it can fail: the volume is in use, its node is away, or gives another answer (UNAVAILABLE:
 * the part is kept, and a repeated call goes on); the pool cannot have it. A finished part says
 * what it is of, so that a later call, of this run or the next, asks the other node once more
 * whether the volume has left.
 */
#include "csi/take.h"

#include "base/fd.h"
#include "cluster.pb-c.h"
#include "csi/attach.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#define take_of(op_ptr) csi_task_of(op_ptr, struct take)

/* ---- is it here? ---- */

static int look_up_run(struct op *op)
{
	struct take *k = take_of(op);
	const struct pools *pools = k->task.csi->pools;
	struct err why = {0};
	if (pools_find_id(pools, RECORD_VOLUME, k->task.id, &k->object, &why) == 0) {
		int r = take_lock(op, k);
		return r == 0 ? pool_check_not_inline(k->object, &op->err) : r;
	}
	k->object = NULL;
	if (why.code == ERR_DATA_LOSS)
		return op_fail(op, why.code, "%s", why.message);
	if (pools_find_name(pools, RECORD_VOLUME, k->name) != NULL)
		return op_fail(op, ERR_EXISTS,
			"this node has another volume of the name %s: delete the one that nobody uses",
			k->name);
	const Ringvol__V1__TakeVolumeRequest *req = (const void *)k->task.request;
	k->pool = pools_by_name(pools, csi_str(req->pool));
	if (k->pool == NULL)
		return op_fail(op, ERR_NOT_FOUND, "pool: this node has none of the name %s",
			csi_str(req->pool));
	return pool_check_ready(k->pool, &op->err);
}

static bool here_done(struct op *op)
{
	return take_of(op)->object != NULL;
}

static bool durable_done(struct op *op)
{
	const struct take *k = take_of(op);
	return k->object == NULL || !k->object->unsynced;
}

static int durable_run(struct op *op)
{
	struct take *k = take_of(op);
	pool_resync_init(&k->settle, op->reactor, k->object->pool, RECORD_VOLUME, k->object);
	return op_child(op, &k->settle.op);
}

/* ---- a part that an earlier call has finished ---- */

/* Its record is in its place already. 1: there is one. */
static int look_at(struct take *k, int copies_fd)
{
	char name[sizeof("part-") + RECORD_KEY_MAX], text[RECORD_BYTES_MAX];
	snprintf(name, sizeof(name), "part-%s", k->key);
	_cleanup_fd_ int fd =
		openat(copies_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	k->text_len = pool_part_text(fd, k->text);
	if (k->text_len < 0)
		return k->text_len == -ENODATA ? 0 : (int)k->text_len;
	ssize_t len = fgetxattr(fd, RECORD_XATTR, text, sizeof(text));
	int r = len < 0 ? -errno : record_parse(text, (size_t)len, k->key, &k->rec);
	return r < 0 ? r : 1;
}

static int finished_job(void *arg)
{
	struct take *k = arg;
	for (unsigned i = 0; i < k->n_pools; i++) {
		int r = look_at(k, k->copies_fds[i]);
		k->found_in = i;
		if (r != 0)
			return r;
	}
	return 0;
}

static int finished_run(struct op *op)
{
	struct take *k = take_of(op);
	struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(k->task.csi->pools, i)) != NULL; i++) {
		int r = pool_check_ready(pool, &op->err);
		if (r < 0)
			return r;
		k->pools[k->n_pools] = pool;
		k->copies_fds[k->n_pools++] = pool_holds_fd(pool);
	}
	return op_work(op, finished_job, k);
}

/* What a finished part says goes before any offer: it may be all that there is of the volume. */
static int finished_end(struct op *op, int res)
{
	struct take *k = take_of(op);
	const struct csi *csi = k->task.csi;
	int r = res;
	k->finished = res == 1;
	struct take_text told = {0};
	/* What was to arrive is like any other part, or gone. */
	for (unsigned i = 0; res == 0 && i < k->n_pools; i++)
		pool_arrival_forget(k->pools[i], k->key);
	if (k->finished) {
		k->pool = k->pools[k->found_in];
		r = take_text_parse(k->text, (size_t)k->text_len, &told);
		k->offer = told.offer;
		k->attached = told.attached;
	} else if (res == 0 && !offer_find(csi->transfer, k->task.id, k->name, &k->offer)) {
		return op_fail(op, ERR_UNAVAILABLE,
			"volume %s is on another node, and no controller has offered it; try again",
			k->task.id);
	}
	if (r == 0 && strcmp(k->offer.source_id, k->task.id) != 0)
		r = -EBADMSG;
	if (r < 0)
		return op_fail_sys(op, r, "looking for what an earlier call has of %s", k->name);
	r = pull_init(&k->pull, csi->transfer, &k->offer, true, &op->err);
	k->pulling = r == 0;
	k->pull.since = told.since;
	memcpy(k->pull.from, told.from, sizeof(told.from));
	k->pull.stopped = k->stopped;
	return r;
}

/* ---- what is it? ---- */

static bool open_done(struct op *op)
{
	return here_done(op) || take_of(op)->finished;
}

static int open_run(struct op *op)
{
	struct take *k = take_of(op);
	pull_open_init(&k->pull);
	return op_child(op, &k->pull.op);
}

static int open_end(struct op *op, int res)
{
	struct take *k = take_of(op);
	if (res < 0)
		return res;
	k->rec = take_record(k, k->pull.rec);
	return k->rec == NULL ? op_fail(op, ERR_NO_ROOM, "out of memory") : 0;
}

static int check_run(struct op *op)
{
	const struct take *k = take_of(op);
	const struct record *rec = k->rec;
	if (strcmp(rec->name, k->name) != 0 || rec->kind != RECORD_VOLUME)
		return op_fail(op, ERR_INVALID, "volume_name: %s is no volume of the name %s",
			k->task.id, k->name);
	if (pool_is_raw(k->pool))
		return op_fail(op, ERR_PRECONDITION,
			"pool %s is on raw disks, and takes no volumes of other nodes yet: name a pool in a directory",
			pool_name(k->pool));
	if (backend_get(rec->device) == NULL)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s has a device of a kind that this node does not serve: see the log of its start",
			k->name);
	return 0;
}

/* ---- the build ---- */

static int build_run(struct op *op)
{
	struct take *k = take_of(op);
	int r = pool_build_init_moved(&k->build, op->reactor, k->pool, k->rec);
	if (r < 0)
		return op_fail_sys(op, r, "volume %s", k->name);
	k->building = true;
	take_describe(k);
	/* As if this call had suspended it. */
	const struct borrowed *one = csi_cover_of(k->task.csi, k->task.id);
	k->part.stays = one != NULL && one->suspended && !one->local;
	k->build.part = &k->part;
	k->build.fill = take_fill;
	k->build.fill_arg = k;
	k->build.fill_writes = true;
	return op_child(op, &k->build.op);
}

static int build_end(struct op *op, int res)
{
	struct take *k = take_of(op);
	if (res == 0) {
		k->object = k->build.ret_object;
		offer_drop(k->task.csi->transfer, k->task.id, k->name);
	}
	return res;
}

/* ---- who uses it here ---- */

static bool swap_done(struct op *op)
{
	const struct take *k = take_of(op);
	const struct borrowed *one = csi_cover_of(k->task.csi, k->task.id);
	return one == NULL || !one->suspended || csi_attach_own(k->task.csi, k->object) == NULL;
}

static int swap_run(struct op *op)
{
	struct take *k = take_of(op);
	cover_swap_init(&k->cover, k->task.csi, k->object);
	return op_child(op, &k->cover.op);
}

/* The volume is here; its I/O waits, and it is tried again whoever asks (cover_watch.h). */
static int swap_end(struct op *op, int res)
{
	if (res < 0)
		op->err.code = ERR_UNAVAILABLE;
	return res;
}

/* ---- the answer ---- */

static int answer_run(struct op *op)
{
	struct take *k = take_of(op);
	Ringvol__V1__TakeVolumeResponse *response = (void *)k->task.response;
	take_unlock(k); /* who hears of it may ask for it at once */
	const ProtobufCMessage *entry = csi_list_entry(k->task.arena, k->task.csi, k->object);
	uint8_t *packed = entry != NULL ? arena_alloc(k->task.arena,
						  protobuf_c_message_get_packed_size(entry))
					: NULL;
	if (packed == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	response->entry.len = protobuf_c_message_pack(entry, packed);
	response->entry.data = packed;
	response->pool = csi_bytes(pool_uuid8(k->object->pool));
	response->pool_name = csi_bytes(pool_name(k->object->pool));
	response->moves = k->object->rec->moves;
	return 0;
}

static const struct op_step steps[] = {
	{"look up", .run = look_up_run},
	{"make durable", .run = durable_run, .done = durable_done},
	{"look for part", .run = finished_run, .end = finished_end, .done = here_done},
	{"ask its node", .run = open_run, .end = open_end, .done = open_done},
	{"check", .run = check_run, .done = here_done},
	{"build", .run = build_run, .end = build_end, .done = here_done, .flags = OP_COMMIT},
	{"swap cover", .run = swap_run, .end = swap_end, .done = swap_done},
	{"answer", .run = answer_run},
	{NULL},
};

static void stop(void *arg)
{
	struct take *k = arg;
	k->stopped = true;
	if (k->pulling)
		pull_stop(&k->pull);
}

static bool progress(const void *arg, uint64_t *ret_done, uint64_t *ret_total)
{
	const struct take *k = arg;
	return k->pulling && pull_progress(&k->pull, ret_done, ret_total);
}

static int prepare(struct csi_task *task, struct err *err)
{
	struct take *k = container_of(task, struct take, task);
	const Ringvol__V1__TakeVolumeRequest *req = (const void *)task->request;
	struct record_id id;
	if (task->csi->transfer == NULL)
		return err_set(err, ERR_UNIMPLEMENTED, "this node copies nothing from others");
	k->name = csi_str(req->volume_name);
	record_key(k->name, k->key);
	if (record_id_parse(task->id, &id) < 0 || strcmp(id.key, k->key) != 0)
		return err_set(err, ERR_INVALID,
			"volume_id: %s is no id of a volume of the name %s", task->id, k->name);
	task->copy = (struct csi_task_copy){stop, progress, k};
	/* The volume itself is used while most of it is copied. */
	csi_task_lock_key(task, "move", k->key);
	return 0;
}

static void cleanup(struct csi_task *task)
{
	struct take *k = container_of(task, struct take, task);
	take_unlock(k);
	if (k->building)
		pool_build_free(&k->build);
	if (k->pulling)
		pull_free(&k->pull);
	record_free(k->rec);
}

const struct csi_operation csi_take_volume = {sizeof(struct take), prepare, steps, cleanup};
