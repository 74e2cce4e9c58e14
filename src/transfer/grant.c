/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants. Happy path: GrantCopy makes a hold; its reader opens it and reads it; CloseCopy, or time,
 * drops it. A hold that is being read is not dropped: it is marked, and goes with its last reader.
 *
 * How making one can fail: the source is not here, damaged, or cannot be held still; no room; too
 * many. Whatever happens the volume is let go.
 */
#include "transfer/grant.h"

#include "node/volume.h"
#include "pool/departure.h"
#include "pool/index.h"

#include <string.h>

#define make_of(op_ptr) container_of(op_ptr, struct grant_make, op)

enum record_kind grant_kind_of(const struct pools *pools, const char *id)
{
	struct pool_object *object;
	struct err ignored = {0};
	return pools_find_id(pools, RECORD_SNAPSHOT, id, &object, &ignored) == 0 ? RECORD_SNAPSHOT
										 : RECORD_VOLUME;
}

/* ---- making ---- */

static bool is_same(const struct grant_make *m, const struct pool_hold *hold)
{
	return !hold->dropped && hold->move == m->move &&
	       strcmp(hold->source_id, m->source_id) == 0 &&
	       (m->any_node || strcmp(hold->node_id, m->node_id) == 0) &&
	       strcmp(hold->volume_name, m->volume_name) == 0;
}

/* A snapshot never changes. What was made of a volume may have been deleted since; of one that is
 * to leave, what changes later is told against the image that was sent. */
static bool is_meant(const struct grant_make *m, const struct pool_hold *hold)
{
	if (m->renews != NULL && (hold == m->renews || hold->opened))
		return false;
	return is_same(m, hold) &&
	       (hold->rec->kind == RECORD_SNAPSHOT || !hold->sent || hold->move);
}

/* The hold may be closed in any turn of the loop: its grant is copied. */
static void take_grant(struct grant_make *m, struct pool_hold *hold)
{
	hold->used_ns = ring_now_ns(m->transfer->reactor->ring);
	memcpy(m->grant, hold->grant, sizeof(m->grant));
	memcpy(m->granted_to, hold->node_id, sizeof(m->granted_to));
	m->found = true;
}

/* It has left before: by this node's grant, or to another one. */
static int look_up_departure(struct grant_make *m, struct err *err)
{
	const struct pool_departure *left = pools_departed(m->transfer->pools, m->source_id);
	if (left == NULL)
		return 0;
	if (!m->move || (!m->any_node && strcmp(left->node_id, m->node_id) != 0))
		return pool_departure_refuse(left, err);
	memcpy(m->grant, left->grant, sizeof(m->grant));
	memcpy(m->granted_to, left->node_id, sizeof(m->granted_to));
	m->found = m->left = true;
	return 0;
}

/* Of several, which any_node may have: the one that was used last. The others' nodes were given up.
 */
static struct pool_hold *find_meant(const struct transfer *t, const struct grant_make *m)
{
	struct pool_hold *found = NULL;
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(t->pools, i)) != NULL; i++)
		for (struct pool_hold *h = NULL; (h = pool_hold_next(pool, h)) != NULL;)
			if (is_meant(m, h) && (found == NULL || h->used_ns >= found->used_ns))
				found = h;
	return found;
}

static int look_up_run(struct op *op)
{
	struct grant_make *m = make_of(op);
	int r = look_up_departure(m, &op->err);
	struct pool_hold *hold = r == 0 && !m->found ? find_meant(m->transfer, m) : NULL;
	if (hold != NULL)
		take_grant(m, hold);
	return r;
}

static bool found_done(struct op *op)
{
	return make_of(op)->found;
}

static bool leftover_done(struct op *op)
{
	const struct grant_make *m = make_of(op);
	return !m->found || m->left;
}

/* False: somebody has the volume, and may just have frozen it for itself. */
static bool lock_for_thaw(struct grant_make *m)
{
	struct node_locks *locks = &m->transfer->node->locks;
	struct record_id id;
	if (!m->unlocked)
		return true;
	if (record_id_parse(m->source_id, &id) < 0)
		return false;
	node_lock_init(&m->lock, NODE_EXCLUSIVE, "volume", id.key);
	m->lock.what = "it is thawed";
	m->locked = node_lock_conflict(locks, &m->lock) == NULL;
	if (m->locked)
		node_lock_take(locks, &m->lock);
	return m->locked;
}

static int leftover_end(struct op *op, int res)
{
	struct grant_make *m = make_of(op);
	if (m->locked)
		node_lock_release(&m->transfer->node->locks, &m->lock);
	m->locked = false;
	return res;
}

/* The attempt that made it may have left the source frozen. */
static int leftover_run(struct op *op)
{
	struct grant_make *m = make_of(op);
	if (!lock_for_thaw(m))
		return 0;
	int r = node_source_leftover(op, &m->source, m->transfer->node, m->source_id);
	return r == OP_PENDING ? r : leftover_end(op, r);
}

static int find_run(struct op *op)
{
	struct grant_make *m = make_of(op);
	/* The one that was there has ended meanwhile. */
	if (m->unlocked)
		return op_fail(op, ERR_UNAVAILABLE,
			"the grant of %s has just expired, or was closed; try again", m->source_id);
	int r = node_source_find(&m->source, m->transfer->node,
		grant_kind_of(m->transfer->pools, m->source_id), m->source_id, false, &op->err);
	if (r < 0)
		return r;
	/* Nothing of it is shared: it would be torn, and who moves it can wait. */
	if (m->move && !m->source.share && node_volume_find(m->source.object) != NULL)
		return op_fail(op, ERR_UNAVAILABLE,
			"volume %s is in use, and the file system of pool %s shares no extents: it can be copied when nobody uses it",
			m->source.rec->name, pool_name(m->source.object->pool));
	if (!pool_is_raw(m->source.object->pool))
		return 0;
	return op_fail(op, ERR_PRECONDITION,
		"%s lies in pool %s, which is on raw disks; no other node can copy it yet: make the copy on this node, or keep what is to be copied in a pool in a directory",
		m->source.rec->name, pool_name(m->source.object->pool));
}

static bool measured_done(struct op *op)
{
	return found_done(op) || make_of(op)->source.object->kind != RECORD_VOLUME;
}

static int measure_run(struct op *op)
{
	enum { MEASURE_MS = 1000 };
	struct grant_make *m = make_of(op);
	pool_measure_init(&m->measure, op->reactor, m->source.object->pool, MEASURE_MS);
	return op_child(op, &m->measure.op);
}

static int quiesce_run(struct op *op)
{
	return node_source_quiesce(op, &make_of(op)->source);
}

static int release_run(struct op *op)
{
	return node_source_thaw(op, &make_of(op)->source);
}

static bool released_done(struct op *op)
{
	return !make_of(op)->making || make_of(op)->source.quiesce.freeze != NODE_FROZEN;
}

static int hold_run(struct op *op)
{
	struct grant_make *m = make_of(op);
	struct pool_object *source = m->source.object;
	bool volume = source->kind == RECORD_VOLUME;
	pool_hold_make_init(&m->make, op->reactor, source, m->source.share);
	m->making = true;
	m->make.held_briefly = volume && m->source.share && m->source.quiesce.dev.attached;
	m->make.need_bytes = !volume           ? 0
			     : m->source.share ? node_source_shared_room(&m->source)
					       : source->allocated_bytes;
	m->make.move = m->move;
	m->make.node_id = m->node_id;
	m->make.volume_name = m->volume_name;
	m->make.source_id = m->source_id;
	m->make.stopped = m->stopped;
	return op_child(op, &m->make.op);
}

/* Those in whose place another one was made: of one move there are two at most. */
static void drop_sent(const struct grant_make *m)
{
	struct pool *pool = m->source.object->pool;
	struct pool_hold *hold = pool_hold_next(pool, NULL);
	while (hold != NULL) {
		struct pool_hold *next = pool_hold_next(pool, hold);
		if (hold != m->make.ret_hold && hold != m->renews && is_same(m, hold))
			grant_drop(hold);
		hold = next;
	}
}

static int hold_end(struct op *op, int res)
{
	struct grant_make *m = make_of(op);
	if (res < 0)
		return res;
	drop_sent(m);
	take_grant(m, m->make.ret_hold); /* nobody knows it yet */
	return 0;
}

static const struct op_step make_steps[] = {
	{"look up", .run = look_up_run},
	{"thaw leftover", .run = leftover_run, .end = leftover_end, .done = leftover_done},
	{"find", .run = find_run, .done = found_done},
	{"measure", .run = measure_run, .done = measured_done},
	{"quiesce source", .run = quiesce_run, .undo = release_run, .done = found_done},
	{"hold", .run = hold_run, .end = hold_end, .done = found_done, .flags = OP_COMMIT},
	{"release source", .run = release_run, .done = released_done},
	{NULL},
};

void grant_make_init(struct grant_make *m, struct transfer *t, const char *source_id,
	const char *node_id, const char *volume_name)
{
	*m = (struct grant_make){.transfer = t,
		.source_id = source_id,
		.node_id = node_id,
		.volume_name = volume_name};
	op_init(&m->op, t->reactor, "grant", make_steps, NULL);
}

void grant_make_stop(void *make)
{
	struct grant_make *m = make;
	m->stopped = true;
	if (m->making)
		pool_hold_make_stop(&m->make);
}

void grant_make_free(struct grant_make *m)
{
	if (m->making)
		pool_hold_make_free(&m->make);
	m->making = false;
}

/* ---- using ---- */

bool grant_is(const char a[POOL_GRANT_BYTES], const char b[POOL_GRANT_BYTES])
{
	unsigned char differ = 0;
	for (unsigned i = 0; i < POOL_GRANT_BYTES; i++)
		differ |= (unsigned char)(a[i] ^ b[i]);
	return differ == 0;
}

bool grant_peer_is(const struct grpc_peer *peer, const char *node_id)
{
	switch (peer->role) {
	case GRPC_PEER_LOCAL:
		return true;
	case GRPC_PEER_NODE:
		return strcmp(peer->node_id, "*") == 0 || strcmp(peer->node_id, node_id) == 0;
	case GRPC_PEER_CONTROLLER:
		break;
	}
	return false;
}

struct pool_hold *grant_find(
	const struct transfer *t, const char *grant, const struct grpc_peer *peer)
{
	char asked[POOL_GRANT_BYTES] = {0};
	struct pool_hold *found = NULL;
	const struct pool *pool;
	if (strlen(grant) != sizeof(asked) - 1)
		return NULL;
	memcpy(asked, grant, sizeof(asked));
	for (unsigned i = 0; (pool = pools_at(t->pools, i)) != NULL; i++)
		for (struct pool_hold *h = NULL; (h = pool_hold_next(pool, h)) != NULL;)
			if (grant_is(h->grant, asked))
				found = h;
	return found != NULL && !found->dropped && grant_peer_is(peer, found->node_id) ? found
										       : NULL;
}

bool grant_moves(const struct transfer *t, const char *source_id, const char *node_id,
	const char *volume_name)
{
	const struct grant_make m = {.source_id = source_id,
		.node_id = node_id,
		.volume_name = volume_name,
		.move = true,
		.any_node = node_id == NULL};
	const struct pool_departure *left = pools_departed(t->pools, source_id);
	return left != NULL ? node_id == NULL || strcmp(left->node_id, node_id) == 0
			    : find_meant(t, &m) != NULL;
}

struct pool_hold *grant_of_call(struct grpc_call *call, ProtobufCBinaryData grant)
{
	const struct transfer *t = grpc_call_context(call);
	char text[POOL_GRANT_BYTES] = {0};
	if (t->draining) {
		grpc_end(call, GRPC_UNAVAILABLE, "the driver is shutting down");
		return NULL;
	}
	if (grant.len == sizeof(text) - 1)
		memcpy(text, grant.data, grant.len);
	struct pool_hold *hold = grant_find(t, text, grpc_call_peer(call));
	if (hold == NULL)
		grpc_end(call, GRPC_NOT_FOUND,
			"there is no such grant for this node: it has expired, or was closed");
	return hold;
}

void grant_keep(const struct transfer *t, struct pool_hold *hold)
{
	hold->readers++;
	hold->used_ns = ring_now_ns(t->reactor->ring);
}

void grant_let_go(const struct transfer *t, struct pool_hold *hold)
{
	hold->readers--;
	hold->used_ns = ring_now_ns(t->reactor->ring);
	if (hold->dropped && !t->draining)
		grant_drop(hold);
}

void grant_drop(struct pool_hold *hold)
{
	hold->dropped = true;
	if (hold->readers == 0)
		pool_hold_drop(hold);
}

static uint64_t kept_ms(const struct pool_hold *hold)
{
	if (hold->opened)
		return TRANSFER_IDLE_MS;
	return hold->shares || hold->rec->kind == RECORD_SNAPSHOT ? TRANSFER_GRANT_MS
								  : TRANSFER_GRANT_COPIED_MS;
}

void grants_sweep(struct transfer *t)
{
	uint64_t now_ns = ring_now_ns(t->reactor->ring);
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(t->pools, i)) != NULL; i++) {
		struct pool_hold *hold = pool_hold_next(pool, NULL);
		while (hold != NULL) {
			struct pool_hold *next = pool_hold_next(pool, hold);
			if (hold->used_ns == 0)
				hold->used_ns = now_ns; /* of an earlier run */
			if (hold->readers == 0 &&
				(hold->dropped ||
					now_ns - hold->used_ns >= kept_ms(hold) * 1000000))
				grant_drop(hold);
			hold = next;
		}
	}
}
