/* SPDX-License-Identifier: Apache-2.0 */
/*
 * StillVolume. Happy path: the grant's volume is here, nobody uses it and no call works on it ->
 * its lock is taken -> its image is locked on a thread, which says that nothing else has it open ->
 * `since`, and the record as it is now. A repeated call finds it still. How it can fail: it is in
 * use (not an error: the caller asks again); it has another size than the grant's image (the grant
 * is worth nothing then and goes).
 *
 * LeaveVolume. Happy path: the volume is still since that number -> departure (pool/departure.h),
 * the commit -> the lock and the grant go. What is still attached goes after that (parting.h).
 * Asked again, the departure answers. How it can fail: the volume is not still any more, so that it
 * may have changed; the pool it is in is not here, or has a note that cannot be read, so that
 * nobody can say; the note cannot be made durable.
 *
 * The still counts as a reader of its hold, which stays as long.
 */
#include "transfer/still.h"

#include "base/fd.h"
#include "blockio/image.h"
#include "cluster.pb-c.h"
#include "node/volume.h"
#include "pool/depart.h"
#include "pool/index.h"
#include "transfer/grant.h"
#include "transfer/parting.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct still {
	struct list link; /* the transfer's */
	struct transfer *transfer;
	struct pool_hold *hold;
	struct node_lock lock;
	uint64_t since, heard_ns;
	int fd;    /* the image, locked; -1: not yet, no longer, or it is lent */
	bool lent; /* to the node that takes it, which has suspended it */
	bool busy; /* an operation below works on it */
};

static uint64_t now_ns(const struct transfer *t)
{
	return ring_now_ns(t->reactor->ring);
}

struct still *still_of(const struct transfer *t, const struct pool_hold *hold)
{
	list_for_each (l, &t->stills) {
		struct still *s = container_of(l, struct still, link);
		if (s->hold == hold)
			return s;
	}
	return NULL;
}

static void still_free(struct still *s)
{
	list_remove(&s->link);
	node_lock_release(&s->transfer->node->locks, &s->lock);
	fd_close(&s->fd);
	grant_let_go(s->transfer, s->hold);
	free(s);
}

void still_close(struct still *s)
{
	if (s != NULL && !s->busy)
		still_free(s);
}

/* Somebody reads what has changed. */
static bool is_read(const struct still *s)
{
	return s->hold->readers > 1;
}

void stills_sweep(struct transfer *t)
{
	list_for_each_safe (l, &t->stills) {
		struct still *s = container_of(l, struct still, link);
		if (is_read(s))
			s->heard_ns = now_ns(t);
		bool silent = now_ns(t) - s->heard_ns >= TRANSFER_STILL_MS * UINT64_C(1000000);
		if (s->hold->dropped || silent)
			still_close(s);
	}
}

void stills_free(struct transfer *t)
{
	list_for_each_safe (l, &t->stills)
		still_free(container_of(l, struct still, link));
}

/* NULL: out of memory. */
static struct still *still_new(struct transfer *t, struct pool_hold *hold)
{
	struct still *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return NULL;
	s->transfer = t;
	s->hold = hold;
	s->fd = -1;
	s->heard_ns = now_ns(t);
	while (getrandom(&s->since, sizeof(s->since), 0) != sizeof(s->since))
		;
	node_lock_init(&s->lock, NODE_EXCLUSIVE, "volume", hold->rec->key);
	s->lock.what = "it is moving to another node";
	return s;
}

/* ---- StillVolume ---- */

enum { ATTACHED_BYTES = 1024 }; /* of one attachment */

struct still_call {
	struct op op;
	struct transfer *transfer;
	struct grpc_call *call;
	struct pool_hold *hold;
	struct still *still; /* being made */
	struct pool_object *volume;
	int dir_fd;
	bool suspended; /* by the node that takes it */
	char why[320];  /* who uses it; "" */
	bool stale;     /* it has another size by now */
};

#define still_call_of(op_ptr) container_of(op_ptr, struct still_call, op)

static void used_by(struct still_call *c, const char *how, const char *by)
{
	snprintf(c->why, sizeof(c->why), "volume %.64s is %.80s%.150s", c->hold->volume_name, how,
		by);
}

bool still_is_lent(const struct pool_object *volume, const char *node_id)
{
	const struct attachments *all = volume->attachments;
	const struct node_volume *nv = node_volume_find(volume);
	return all != NULL && all->count == 1 && all->at[0].export[0] != '\0' &&
	       strcmp(all->at[0].node, node_id) == 0 && nv != NULL && nv->dev.attached &&
	       list_empty(&nv->mounts);
}

/* To the node that takes it, which lets nothing through. */
static bool is_lent(const struct still_call *c)
{
	return c->suspended && still_is_lent(c->volume, c->hold->node_id);
}

/* Whether anybody of CSI uses it, or works on it. */
static bool is_used(struct still_call *c)
{
	const struct node *node = c->transfer->node;
	const struct node_volume *nv = node_volume_find(c->volume);
	if (is_lent(c))
		return false;
	const struct node_mount *mount = nv != NULL ? node_volume_best_mount(nv) : NULL;
	if (c->volume->attachments != NULL && c->volume->attachments->count > 0)
		used_by(c, "attached to node ", c->volume->attachments->at[0].node);
	else if (mount != NULL)
		used_by(c, "in use at ", mount->path);
	else if (nv != NULL)
		used_by(c, "in use: ", nv->dev.attached ? nv->dev.path : "its device is let go");
	else if (!node_knows_volume(node, c->volume))
		used_by(c, "maybe in use: devices of an earlier run are still looked for", "");
	return c->why[0] != '\0';
}

static int take_run(struct op *op)
{
	struct still_call *c = still_call_of(op);
	struct node *node = c->transfer->node;
	if (c->hold->dropped)
		return op_fail(op, ERR_UNAVAILABLE, "the grant was closed meanwhile");
	int r = pools_find_id(node->pools, RECORD_VOLUME, c->hold->source_id, &c->volume, &op->err);
	if (r == 0)
		r = pool_check_not_inline(c->volume, &op->err);
	if (r == 0)
		r = pool_check_ready(c->volume->pool, &op->err);
	if (r == 0)
		r = node_check_whole(c->volume, &op->err);
	struct still *found = still_of(c->transfer, c->hold);
	if (found != NULL && found->lent && !c->suspended) {
		still_close(found); /* the promise that it stands on is taken back */
		found = NULL;
	}
	if (r < 0 || found != NULL || is_used(c))
		return r;
	c->stale = record_image_bytes(c->volume->rec) != record_image_bytes(c->hold->rec);
	if (c->stale)
		return 0;
	stills_sweep(
		c->transfer); /* one of a grant that is worth nothing by now is not in the way */
	struct still *s = still_new(c->transfer, c->hold);
	if (s == NULL)
		return op_fail_sys(op, -ENOMEM, "holding volume %s still", c->hold->volume_name);
	const struct node_lock *other = node_lock_conflict(&node->locks, &s->lock);
	if (other != NULL) {
		const char *what = other->what != NULL ? other->what : "";
		used_by(c,
			*what != '\0' ? "worked on by another call: " : "worked on by another call",
			what);
		free(s);
		return 0;
	}
	node_lock_take(&node->locks, &s->lock);
	s->lent = is_lent(c);
	s->busy = true;
	grant_keep(c->transfer, c->hold);
	list_push(&c->transfer->stills, &s->link);
	c->still = s;
	return 0;
}

static int take_undo(struct op *op)
{
	struct still_call *c = still_call_of(op);
	if (c->still != NULL)
		still_free(c->still);
	c->still = NULL;
	return 0;
}

/* Not taken, or found as it is. */
static bool image_done(struct op *op)
{
	return still_call_of(op)->still == NULL;
}

static int image_job(void *arg)
{
	struct still_call *c = arg;
	struct still *s = c->still;
	s->fd = openat(c->dir_fd, c->hold->rec->key, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	return s->fd < 0 ? -errno : image_lock(s->fd);
}

static int image_run(struct op *op)
{
	struct still_call *c = still_call_of(op);
	if (c->still->lent) { /* its device has it */
		c->still->busy = false;
		return 0;
	}
	c->dir_fd = pool_dirfd(c->volume->pool, RECORD_VOLUME);
	return op_work(op, image_job, c);
}

static int image_end(struct op *op, int res)
{
	struct still_call *c = still_call_of(op);
	if (res == 1 || res == -EWOULDBLOCK) {
		used_by(c, "in use by hand: fuser and losetup -j name who has its image open", "");
		return take_undo(op);
	}
	if (res < 0)
		return op_fail_sys(op, res, "locking the image of %s", c->hold->volume_name);
	c->still->busy = false;
	return 0;
}

static const struct op_step still_steps[] = {
	{"take", .run = take_run, .undo = take_undo},
	{"lock image", .run = image_run, .end = image_end, .done = image_done},
	{NULL},
};

/* What the node that takes it keeps of how it is attached: it is that one's own from then on. The
 * length, or -errno. */
static int print_attached(const struct pool_object *volume, char text[ATTACHED_BYTES])
{
	if (volume->attachments == NULL)
		return 0;
	struct attachment own = volume->attachments->at[0];
	own.export = own.key = "";
	struct attachments *one = attachments_with(NULL, &own);
	int len = one != NULL ? attachments_print(one, text, ATTACHED_BYTES) : -ENOMEM;
	attachments_free(one);
	return len;
}

/* One that was found may have been closed since. */
static void still_answer(struct still_call *c)
{
	Ringvol__V1__StillVolumeResponse response = RINGVOL__V1__STILL_VOLUME_RESPONSE__INIT;
	char text[RECORD_BYTES_MAX], attached[ATTACHED_BYTES];
	struct still *still = still_of(c->transfer, c->hold);
	if (still != NULL) {
		int len = record_print(c->volume->rec, text, sizeof(text));
		int attached_len = print_attached(c->volume, attached);
		if (len < 0 || attached_len < 0) {
			grpc_end(c->call, GRPC_INTERNAL, "the record of the volume cannot be told");
			return;
		}
		still->heard_ns = now_ns(c->transfer);
		response.still = true;
		response.since = still->since;
		response.record = (ProtobufCBinaryData){(size_t)len, (uint8_t *)text};
		const char *uuid8 = pool_uuid8(c->volume->pool);
		response.pool = (ProtobufCBinaryData){strlen(uuid8), (uint8_t *)(uintptr_t)uuid8};
		response.attachments =
			(ProtobufCBinaryData){(size_t)attached_len, (uint8_t *)attached};
	}
	if (still == NULL && c->why[0] == '\0')
		used_by(c, "let go by another call", "");
	response.why = (ProtobufCBinaryData){strlen(c->why), (uint8_t *)c->why};
	grpc_reply(c->call, &response.base);
}

static void still_ended(struct op *op)
{
	struct still_call *c = still_call_of(op);
	if (c->stale) {
		c->hold->dropped = true;
		grpc_end(c->call, GRPC_NOT_FOUND,
			"the volume has grown since it was granted: ask for another grant");
	} else if (op_failed(op)) {
		grpc_end(c->call, GRPC_UNAVAILABLE, op->err.message);
	} else {
		still_answer(c);
	}
	grant_let_go(c->transfer, c->hold);
	free(c);
}

void still_volume(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Ringvol__V1__StillVolumeRequest *req = (const void *)request;
	struct transfer *t = grpc_call_context(call);
	struct pool_hold *hold = grant_of_call(call, req->grant);
	if (hold == NULL)
		return;
	if (!hold->move) {
		grpc_end(call, GRPC_PERMISSION_DENIED,
			"the grant is of a copy: the volume is not to leave by it");
		return;
	}
	struct still *found = still_of(t, hold);
	if (found != NULL && found->busy) {
		grpc_end(call, GRPC_ABORTED, "an equal call is under way");
		return;
	}
	struct still_call *c = calloc(1, sizeof(*c));
	if (c == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	grant_keep(t, hold);
	c->transfer = t;
	c->call = call;
	c->hold = hold;
	c->suspended = req->suspended;
	op_init(&c->op, t->reactor, "still_volume", still_steps, still_ended);
	c->op.lane = pool_lane(hold->pool);
	op_start(&c->op);
}

/* ---- LeaveVolume ---- */

struct leave {
	struct op op;
	struct transfer *transfer;
	struct grpc_call *call;
	struct still *still; /* NULL: it has left, and only its note is made durable */
	struct pool *pool;   /* then */
	struct pool_departure note;
	struct pool_depart depart;
	bool departing;
};

#define leave_of(op_ptr) container_of(op_ptr, struct leave, op)

static int depart_run(struct op *op)
{
	struct leave *l = leave_of(op);
	struct pool_object *volume;
	if (l->still == NULL) {
		pool_depart_init(&l->depart, op->reactor, l->pool, NULL, &l->note);
		l->departing = true;
		return op_child(op, &l->depart.op);
	}
	int r = pools_find_id(
		l->transfer->pools, RECORD_VOLUME, l->still->hold->source_id, &volume, &op->err);
	if (r == 0)
		r = pool_check_ready(volume->pool, &op->err);
	if (r < 0)
		return r;
	l->note.moves = volume->rec->moves + 1;
	fd_close(&l->still->fd); /* the removal locks it for itself */
	pool_depart_init(&l->depart, op->reactor, volume->pool, volume, &l->note);
	l->depart.attached = l->still->lent;
	l->departing = true;
	return op_child(op, &l->depart.op);
}

static const struct op_step leave_steps[] = {
	{"depart", .run = depart_run},
	{NULL},
};

/* Committed, durably: no node needs an image to take the volume by any more, whichever it was asked
 * to go to before. */
static void answer_left(struct grpc_call *call, const struct pool *pool, const char *id)
{
	Ringvol__V1__LeaveVolumeResponse response = RINGVOL__V1__LEAVE_VOLUME_RESPONSE__INIT;
	struct pool_hold *hold = pool_hold_next(pool, NULL);
	while (hold != NULL) {
		struct pool_hold *next = pool_hold_next(pool, hold);
		if (hold->move && strcmp(hold->source_id, id) == 0)
			grant_drop(hold);
		hold = next;
	}
	grpc_reply(call, &response.base);
}

static void leave_ended(struct op *op)
{
	struct leave *l = leave_of(op);
	struct transfer *t = l->transfer;
	struct still *s = l->still;
	if (l->departing)
		pool_depart_free(&l->depart);
	if (op_failed(op)) {
		/* Whether the note is there says the next call. The image has no lock any more. */
		grpc_end(l->call, GRPC_UNAVAILABLE, op->err.message);
	} else {
		answer_left(l->call, s != NULL ? s->hold->pool : l->pool, l->note.id);
	}
	if (s != NULL) {
		s->busy = false;
		still_close(s);
	}
	free(l);
	parting_look(t);
}

/* Whoever asks: a node that has another name by now must not hear that nothing has left. */
static struct pool_departure *departure_by_grant(
	const struct transfer *t, const char grant[POOL_GRANT_BYTES])
{
	struct pool_departure *found = NULL;
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(t->pools, i)) != NULL; i++)
		for (struct pool_departure *d = NULL; (d = pool_departure_next(pool, d)) != NULL;)
			if (d->why == NULL && grant_is(d->grant, grant))
				found = d;
	return found;
}

/* Its note is being written. The hold may be dropped meanwhile, and is found no more. */
static bool is_leaving(const struct transfer *t, const char grant[POOL_GRANT_BYTES])
{
	list_for_each (link, &t->stills) {
		const struct still *s = container_of(link, struct still, link);
		if (s->busy && grant_is(s->hold->grant, grant))
			return true;
	}
	return false;
}

static bool take_uuid8(ProtobufCBinaryData field, char ret[RECORD_POOL_DIGITS + 1])
{
	if (field.len != RECORD_POOL_DIGITS)
		return false;
	memcpy(ret, field.data, RECORD_POOL_DIGITS);
	ret[RECORD_POOL_DIGITS] = '\0';
	return strspn(ret, "0123456789abcdef") == RECORD_POOL_DIGITS;
}

/* The still of the request, or NULL with the call ended. */
static struct still *find_still(
	struct grpc_call *call, const Ringvol__V1__LeaveVolumeRequest *req, struct transfer *t)
{
	stills_sweep(t); /* whose time is over has lost it: its node may have begun anew since */
	struct pool_hold *hold = grant_of_call(call, req->grant);
	struct still *s = hold != NULL ? still_of(t, hold) : NULL;
	if (hold == NULL)
		return NULL;
	if (s == NULL || s->since != req->since) {
		grpc_end(call, GRPC_FAILED_PRECONDITION,
			"the volume has not been still since then: it may have changed");
		return NULL;
	}
	return s;
}

static void leave_start(struct grpc_call *call, const Ringvol__V1__LeaveVolumeRequest *req,
	const char to[RECORD_POOL_DIGITS + 1])
{
	struct transfer *t = grpc_call_context(call);
	struct still *s = find_still(call, req, t);
	struct leave *l = s != NULL ? calloc(1, sizeof(*l)) : NULL;
	if (s == NULL)
		return;
	if (l == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	*l = (struct leave){.transfer = t, .call = call, .still = s};
	s->busy = true;
	strcpy(l->note.id, s->hold->source_id);
	strcpy(l->note.to, to);
	strcpy(l->note.node_id, s->hold->node_id);
	memcpy(l->note.grant, s->hold->grant, sizeof(l->note.grant));
	op_init(&l->op, t->reactor, "leave_volume", leave_steps, leave_ended);
	l->op.lane = pool_lane(s->hold->pool);
	op_start(&l->op);
}

/* Committed, once the note is known to be durable. */
static void leave_again(struct grpc_call *call, struct pool_departure *left)
{
	struct transfer *t = grpc_call_context(call);
	struct leave *l = left->unsynced ? calloc(1, sizeof(*l)) : NULL;
	if (!left->unsynced) {
		answer_left(call, left->pool, left->id);
		return;
	}
	if (l == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	*l = (struct leave){.transfer = t, .call = call, .pool = left->pool, .note = *left};
	op_init(&l->op, t->reactor, "leave_volume", leave_steps, leave_ended);
	l->op.lane = pool_lane(left->pool);
	op_start(&l->op);
}

void leave_volume(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Ringvol__V1__LeaveVolumeRequest *req = (const void *)request;
	const struct transfer *t = grpc_call_context(call);
	char to[RECORD_POOL_DIGITS + 1], from[RECORD_POOL_DIGITS + 1];
	char grant[POOL_GRANT_BYTES] = {0};
	if (req->grant.len == sizeof(grant) - 1)
		memcpy(grant, req->grant.data, req->grant.len);
	if (!take_uuid8(req->pool, to) || !take_uuid8(req->from, from)) {
		grpc_end(call, GRPC_INVALID_ARGUMENT, "pool, from: 8 hex digits are asked for");
		return;
	}
	struct pool_departure *left = grant[0] != '\0' ? departure_by_grant(t, grant) : NULL;
	if (left != NULL && !grant_peer_is(grpc_call_peer(call), left->node_id)) {
		grpc_end(call, GRPC_PERMISSION_DENIED,
			"the volume has left by this grant, which is another node's: give this node that one's name and certificate again");
		return;
	}
	if (left != NULL) {
		leave_again(call, left);
		return;
	}
	if (grant[0] != '\0' && is_leaving(t, grant)) {
		grpc_end(call, GRPC_ABORTED, "the volume is leaving: an equal call is under way");
		return;
	}
	/* Only the pool itself knows what has left it. That one has not lets go of what was copied:
	 * nobody says so of a pool with a note that cannot be read. */
	const struct pool *pool = pools_by_uuid8(t->pools, from);
	if (pool != NULL && pool_departures_unread(pool)) {
		grpc_end(call, GRPC_UNAVAILABLE,
			"the pool that the volume was in has a note in departed/ that cannot be read: see ringvol check there");
		return;
	}
	if (pool == NULL || pool_state(pool) != POOL_READY) {
		grpc_end(call, GRPC_UNAVAILABLE,
			"the pool that the volume was in is not here, or not ready: try again");
		return;
	}
	leave_start(call, req, to);
}
