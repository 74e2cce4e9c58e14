/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MoveVolume. Happy path: the volume is known, and another node is named or chosen -> its node
 * grants that one a copy, and with it the right to take the volume -> the other one is offered it
 * -> it takes the volume (TakeVolume), and answers where it is -> so it is from now on.
 *
 * A call that names no node goes on to the one that an earlier call has chosen: the volume's node
 * knows which. The nodes do all of the work between themselves, and what a call has begun a
 * repeated one goes on with. A volume that has left its node and is not there yet is known to
 * nobody: then the notes of departures are followed from its id's pool, and the last node that it
 * left answers its grant once more.
 *
 * How it can fail: no such volume (NOT_FOUND); it is in use, or a node is away (UNAVAILABLE, as the
 * nodes say); it is being moved elsewhere (ABORTED); it cannot move (FAILED_PRECONDITION).
 */
#include "controller/move.h"

#include "base/log.h"
#include "cluster.pb-c.h"
#include "controller/between.h"
#include "controller/departed.h"
#include "controller/entry.h"
#include "controller/home.h"
#include "controller/place.h"
#include "controller/request.h"
#include "controller/scan.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/status.h"
#include "move.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Downwards only; LOOKING, again and again, where nobody knows the volume; GRANTING twice, where
 * the node of an earlier call is away. */
enum move_state { MOVE_STARTED, MOVE_LOOKING, MOVE_GRANTING, MOVE_OFFERING, MOVE_TAKING };

/* Texts are in the client's arena. */
struct move {
	struct forward f;
	enum move_state state;
	const char *id, *name;
	const char *source_id; /* the node that has it */
	const char *target_id; /* "" until it is chosen */
	const char *pool;      /* by name; "" likewise */
	bool chosen;           /* the target is this controller's choice */
	/* Whose notes were looked for, and what the last one says. */
	struct departed_trail trail;
	struct departed way;
};

#define move_of(forward) container_of(forward, struct move, f)

static struct store *store_of(const struct move *m)
{
	return m->f.controller->store;
}

static int keep(const struct move *m, const char *s, const char **ret, struct err *err)
{
	*ret = arena_strdup(m->f.arena, s);
	if (*ret != NULL)
		return 0;
	*ret = "";
	return err_set(err, ERR_NO_ROOM, "out of memory");
}

/* ---- the end ---- */

static void answer(struct move *m, const char *node_id, const char *pool, bool was_there)
{
	Ringvol__V1__MoveVolumeResponse response = RINGVOL__V1__MOVE_VOLUME_RESPONSE__INIT;
	response.volume_id = csi_bytes(m->id);
	response.node_id = csi_bytes(node_id);
	response.pool = csi_bytes(pool);
	response.was_there = was_there;
	m->f.answer.len = 0;
	uint8_t *at = buf_reserve(
		&m->f.answer, ringvol__v1__move_volume_response__get_packed_size(&response) + 1);
	if (at == NULL) {
		forward_end(&m->f, GRPC_UNAVAILABLE, "out of memory; try again");
		return;
	}
	m->f.answer.len = ringvol__v1__move_volume_response__pack(&response, at);
	forward_end(&m->f, GRPC_OK, NULL);
}

enum { TAKEN_ENTRY = 1, TAKEN_POOL = 2, TAKEN_POOL_NAME = 3, TAKEN_MOVES = 4 };

/* TakeVolumeResponse. */
static int tell(const struct move *m, const struct buf *taken, struct err *err)
{
	struct store_node *node = store_node(store_of(m), m->target_id);
	char pool[STORE_UUID8 + 1] = "";
	struct object_text text = {
		.kind = STORE_VOLUME, .id = m->id, .source_id = "", .pool = pool};
	struct scan scan = {taken->data, taken->data + taken->len};
	struct scan_field field;
	int r = scan_string(taken->data, taken->len, TAKEN_POOL, pool, sizeof(pool));
	if (r == 0)
		r = scan_bytes(taken->data, taken->len, TAKEN_ENTRY, &text.entry, &text.entry_len);
	while (r == 0 && scan_next(&scan, &field) > 0)
		if (field.number == TAKEN_MOVES && field.wire == SCAN_VARINT)
			text.moves = field.value;
	if (r < 0 || !store_uuid8_valid(pool) || node == NULL)
		return err_set(err, ERR_INVALID, "it names no pool");
	r = entry_check(STORE_VOLUME, m->id, text.entry, text.entry_len, err);
	return r == 0 ? store_object_tell(store_of(m), node, &text, err) : r;
}

/* Its node's own report says the same; what cannot be read is left to that. */
void learn_moved(struct forward *f)
{
	struct move *m = move_of(f);
	struct err err = {0};
	char pool[256] = "";
	if (tell(m, &f->answer, &err) < 0)
		log_event(LOG_LEVEL_WARN, "a node's answer is not taken note of",
			log_fields({"op", f->route->path}, {"node", f->node_id}, {"id", m->id},
				{"why", err.message}));
	else
		scan_string(f->answer.data, f->answer.len, TAKEN_POOL_NAME, pool, sizeof(pool));
	answer(m, m->target_id, pool[0] != '\0' ? pool : m->pool, false);
}

/* ---- the calls ---- */

static struct between between_of(const struct move *m)
{
	return (struct between){.source_id = m->id,
		.source_node = m->source_id,
		.target_node = m->target_id,
		.volume_name = m->name,
		.move = true,
		.any_node = m->chosen};
}

static int ask_grant(struct move *m, struct err *err)
{
	const struct between between = between_of(m);
	return between_grant(&m->f, &between, err);
}

static int offer(struct move *m, struct err *err)
{
	const struct between between = between_of(m);
	return between_offer(&m->f, &between, err);
}

static int take(struct move *m, struct err *err)
{
	Ringvol__V1__TakeVolumeRequest request = RINGVOL__V1__TAKE_VOLUME_REQUEST__INIT;
	request.volume_id = csi_bytes(m->id);
	request.volume_name = csi_bytes(m->name);
	request.pool = csi_bytes(m->pool);
	return forward_message(
		&m->f, m->target_id, "/ringvol.v1.Member/TakeVolume", &request.base, err);
}

static void go_on(struct move *m, enum move_state state)
{
	static int (*const calls[])(struct move * m, struct err * err) = {
		[MOVE_GRANTING] = ask_grant,
		[MOVE_OFFERING] = offer,
		[MOVE_TAKING] = take,
	};
	struct err err = {0};
	m->state = state;
	if (calls[state](m, &err) < 0)
		forward_refuse(&m->f, &err);
}

/* ---- where to ---- */

/* Another call moves it to another node. */
static int check_others(const struct move *m, struct err *err)
{
	list_for_each (link, &m->f.controller->forwards) {
		const struct forward *f = container_of(link, struct forward, link);
		if (f->route != m->f.route || f == &m->f)
			continue;
		const struct move *other = container_of(f, struct move, f);
		if (strcmp(other->id, m->id) == 0 && strcmp(other->target_id, m->target_id) != 0)
			return err_set(err, ERR_PENDING, "volume %s is being moved to node %.64s%s",
				m->id, other->target_id,
				other->target_id[0] == '\0' ? ", which is not chosen yet" : "");
	}
	return 0;
}

/* The named node is here, and has the pool. */
static int check_target(const struct move *m, const struct store_node *node, struct err *err)
{
	const struct store_pool *found = NULL;
	if (node == NULL)
		return err_set(
			err, ERR_NOT_FOUND, "node_id: no node %.64s has ever joined", m->target_id);
	int r = home_check(node, "the move's other end", NULL, err);
	if (r < 0)
		return r;
	list_for_each (link, &node->pools) {
		const struct store_pool *pool = container_of(link, struct store_pool, link);
		if (pool->name != NULL && strcmp(pool->name, m->pool) == 0)
			found = pool;
	}
	if (found == NULL && node->state == STORE_NODE_PRESENT)
		return err_set(err, ERR_PRECONDITION, "pool: node %.64s has no pool %.64s",
			node->id, m->pool);
	if (found != NULL && store_pool_here(found) && found->state == STORE_POOL_READY)
		return 0;
	bool why = found != NULL && found->why != NULL && found->why[0] != '\0';
	return err_set(err, ERR_UNAVAILABLE, "pool %.64s of node %.64s is not ready%s%s", m->pool,
		node->id, why ? ": " : "", why ? found->why : "");
}

/* The node that uses it, if it can have it: there it may move in use. NULL: nobody does. */
static const struct store_node *user_of(
	struct move *m, const struct store_object *object, const struct store_node *source)
{
	struct buf entry = {0};
	char user[STORE_NODE_ID_MAX];
	struct err ignored = {0};
	user[0] = '\0';
	if (object != NULL && object_entry(object, &entry) == 0)
		entry_user(entry.data, entry.len, user);
	buf_free(&entry);
	const struct store_node *node = user[0] != '\0' ? store_node(store_of(m), user) : NULL;
	return node != NULL && node != source && check_target(m, node, &ignored) == 0 ? node : NULL;
}

/* From a node that has it, or has a note of where it went. object: NULL: it is known to nobody. */
static int begin(struct move *m, const struct store_object *object, const struct store_node *source,
	struct err *err)
{
	struct store *store = store_of(m);
	const struct store_node *target = NULL;
	int r = keep(m, source->id, &m->source_id, err);
	if (r == 0 && m->target_id[0] == '\0') {
		target = user_of(m, object, source);
		if (target == NULL)
			r = place_elsewhere(store, m->pool, source, &target, err);
		if (r == 0)
			r = keep(m, target->id, &m->target_id, err);
		m->chosen = true;
	}
	if (r == 0)
		r = check_target(m, store_node(store, m->target_id), err);
	if (r == 0)
		r = home_check(source, "the volume", NULL, err);
	return r == 0 ? check_others(m, err) : r;
}

/* Of a volume that the controller knows. *ret_there: there is nothing to do. */
static int begin_known(
	struct move *m, const struct store_object *object, bool *ret_there, struct err *err)
{
	const struct store_pool *pool = object->pool;
	if (pool->node == NULL)
		return err_set(
			err, ERR_UNAVAILABLE, "%s: nobody has its pool %s", m->id, pool->uuid8);
	const char *name = pool->name != NULL ? pool->name : "";
	*ret_there = strcmp(pool->node->id, m->target_id) == 0;
	if (*ret_there && m->pool[0] != '\0' && strcmp(m->pool, name) != 0)
		return err_set(err, ERR_PRECONDITION,
			"volume %s is on node %.64s already, in pool %.64s: between pools of one "
			"node nothing moves",
			m->id, pool->node->id, name);
	int r = m->pool[0] == '\0' ? keep(m, name, &m->pool, err) : 0;
	if (r < 0 || *ret_there)
		return r;
	struct store_node *home;
	r = home_of_id(store_of(m), m->id, &home, err);
	return r == 0 ? begin(m, object, pool->node, err) : r;
}

/* The node that an earlier call has chosen is as good, and may have most of the bytes; unless it is
 * away, or its pool is: then the one of this call it is. */
static enum move_state settle_target(struct move *m, struct err *err)
{
	char node_id[STORE_NODE_ID_MAX];
	const char *chosen = m->target_id;
	struct err why = {0};
	between_granted_to(&m->f, node_id);
	if (!m->chosen || node_id[0] == '\0' || strcmp(node_id, chosen) == 0)
		return MOVE_OFFERING;
	m->chosen = false;
	if (keep(m, node_id, &m->target_id, err) < 0)
		return MOVE_GRANTING;
	if (check_target(m, store_node(store_of(m), node_id), &why) == 0) {
		(void)check_others(m, err);
		return MOVE_OFFERING;
	}
	m->target_id = chosen;
	return MOVE_GRANTING;
}

/* ---- a volume between two nodes ---- */

static void look_at(struct move *m, struct store_node *node)
{
	struct err err = {0};
	m->state = MOVE_LOOKING;
	if (departed_trail_add(&m->trail, m->f.arena, node, &err) < 0 ||
		departed_ask(&m->f, node, m->id, &err) < 0)
		forward_refuse(&m->f, &err);
}

/* It is on its way there from the node that was asked last; only there it can go. */
static int finish_way(struct move *m, const char *from, const struct departed *to, struct err *err)
{
	struct store *store = store_of(m);
	const struct store_pool *pool = store_pool(store, to->pool);
	const struct store_node *source = store_node(store, from);
	if (source == NULL)
		return err_set(err, ERR_UNAVAILABLE, "node %s is not known any more", from);
	if (m->target_id[0] != '\0' && strcmp(m->target_id, to->node_id) != 0)
		return err_set(err, ERR_PRECONDITION,
			"volume %s has left node %.64s and is on its way to node %.64s: move it "
			"there first",
			m->id, from, to->node_id);
	int r = keep(m, to->node_id, &m->target_id, err);
	/* Where it is there was settled when it left. */
	if (r == 0)
		r = keep(m, pool != NULL && pool->name != NULL ? pool->name : "default", &m->pool,
			err);
	return r == 0 ? begin(m, NULL, source, err) : r;
}

/* What a first node says that has no note: it is not there, or not told yet. */
static int refuse_unknown(const struct move *m, struct err *err)
{
	const struct store_node *node = store_node(store_of(m), m->trail.asked[0]);
	if (node == NULL || node->state != STORE_NODE_PRESENT)
		return err_set(err, ERR_UNAVAILABLE,
			"%s: node %.64s has not told all that it has; try again", m->id,
			m->trail.asked[0]);
	return err_set(err, ERR_NOT_FOUND, "volume %s does not exist", m->id);
}

/* The node that was asked has answered. *ret: the next one to ask; NULL: the way is known. */
static int follow(struct move *m, enum grpc_status status, struct store_node **ret, struct err *err)
{
	struct store *store = store_of(m);
	struct departed to = {0};
	if (status == GRPC_OK)
		departed_read(&m->f, &to);
	*ret = NULL;
	/* Nobody has said that it is nowhere. */
	if (m->trail.count == 1 && (status != GRPC_OK || to.arriving))
		return err_set(err, ERR_UNAVAILABLE,
			"%s: node %.64s does not say where it is just now; try again", m->id,
			m->trail.asked[0]);
	if (to.pool[0] == '\0' && m->trail.count == 1)
		return refuse_unknown(m, err);
	if (to.pool[0] == '\0')
		return finish_way(m, m->trail.asked[m->trail.count - 2], &m->way, err);
	const struct store_pool *pool = store_pool(store, to.pool);
	struct store_node *next =
		pool != NULL && pool->node != NULL ? pool->node : store_node(store, to.node_id);
	m->way = to;
	if (next == NULL || !store_node_here(next) || departed_trail_has(&m->trail, next))
		return finish_way(m, m->trail.asked[m->trail.count - 1], &to, err);
	*ret = next;
	return 0;
}

static void on_looked(struct move *m, enum grpc_status status)
{
	const struct store_object *object = store_object(store_of(m), m->id);
	struct store_node *next = NULL;
	struct err err = {0};
	bool there = false;
	int r = object != NULL ? begin_known(m, object, &there, &err)
			       : follow(m, status, &next, &err);
	if (r < 0)
		forward_refuse(&m->f, &err);
	else if (there)
		answer(m, m->target_id, m->pool, true);
	else if (next != NULL)
		look_at(m, next);
	else
		go_on(m, MOVE_GRANTING);
}

static void on_answer(struct forward *f, enum grpc_status status, const char *message)
{
	struct move *m = move_of(f);
	if (m->state == MOVE_LOOKING) {
		on_looked(m, status);
	} else if (status == GRPC_UNIMPLEMENTED) {
		struct err err = {0};
		err_set(&err, ERR_PRECONDITION,
			"node %s cannot move volumes between nodes: upgrade it", f->node_id);
		forward_refuse(f, &err);
	} else if (status != GRPC_OK) {
		forward_pass(f, status, message);
	} else if (m->state == MOVE_TAKING) {
		forward_log(f, status, message);
		f->route->learn(f);
	} else if (m->state == MOVE_GRANTING) {
		struct err err = {0};
		enum move_state next = settle_target(m, &err);
		if (err.code != ERR_OK)
			forward_refuse(f, &err);
		else
			go_on(m, next);
	} else {
		go_on(m, m->state + 1);
	}
}

/* ---- what is asked for ---- */

/* The volume by name; several of one name need an id. */
static int find_by_name(
	struct move *m, const char *name, const struct store_object **ret, struct err *err)
{
	struct store *store = store_of(m);
	const struct store_object *found = NULL, *object;
	char key[RECORD_KEY_MAX];
	if (strlen(name) > RECORD_NAME_MAX)
		return err_set(err, ERR_INVALID, "volume: is neither an id nor a name");
	record_key(name, key);
	for (size_t at = 0; (object = store_object_same(store, STORE_VOLUME, key, &at)) != NULL;) {
		if (found != NULL)
			return err_set(err, ERR_PRECONDITION,
				"volume: %s is on node %.64s and on node %.64s; say its id (%s, %s)",
				name, found->pool->node != NULL ? found->pool->node->id : "",
				object->pool->node != NULL ? object->pool->node->id : "", found->id,
				object->id);
		found = object;
	}
	if (found == NULL && store_whole(store, err) < 0)
		return -1;
	if (found == NULL)
		return err_set(err, ERR_NOT_FOUND,
			"volume: no volume %s is known; one whose move was cut off is on its way and "
			"has no name yet: say its id",
			name);
	*ret = found;
	return keep(m, found->id, &m->id, err);
}

/* Its name is in its id, unless that is not a name that a file can have. */
static int find_name(struct move *m, const char *asked, struct err *err)
{
	struct record_id parsed;
	char key[RECORD_KEY_MAX];
	if (record_id_parse(m->id, &parsed) < 0)
		return err_set(err, ERR_INVALID, "volume: %s is no id", m->id);
	if (strlen(asked) <= RECORD_NAME_MAX) {
		record_key(asked, key);
		if (strcmp(key, parsed.key) == 0)
			return keep(m, asked, &m->name, err);
	}
	record_key(parsed.key, key);
	if (strcmp(key, parsed.key) != 0)
		return err_set(err, ERR_INVALID,
			"volume: the id %s does not have the volume's name in it; say the name",
			m->id);
	return keep(m, parsed.key, &m->name, err);
}

/* Everything up to the first call: GRANTING; LOOKING at *ret; STARTED: it is there already. */
static int prepare(struct move *m, const Ringvol__V1__MoveVolumeRequest *request,
	enum move_state *ret_state, struct store_node **ret, struct err *err)
{
	struct store *store = store_of(m);
	const char *asked = csi_str(request->volume);
	const struct store_object *object = store_object(store, asked);
	struct record_id parsed;
	bool there = false;
	m->target_id = csi_str(request->node_id);
	m->pool = csi_str(request->pool);
	int r = csi_check_given(&request->base, "volume", err);
	if (r < 0)
		return r;
	bool is_id = object != NULL || record_id_parse(asked, &parsed) == 0;
	if (object != NULL && object->kind != STORE_VOLUME)
		return err_set(err, ERR_INVALID,
			"volume: %s is a snapshot: snapshots stay where they were taken", asked);
	r = is_id ? keep(m, asked, &m->id, err) : find_by_name(m, asked, &object, err);
	m->f.subject = m->id;
	if (r == 0)
		r = find_name(m, asked, err);
	if (r == 0 && object == NULL) {
		*ret_state = MOVE_LOOKING;
		return home_of_id(store, m->id, ret, err);
	}
	if (r == 0)
		r = begin_known(m, object, &there, err);
	*ret_state = there ? MOVE_STARTED : MOVE_GRANTING;
	return r;
}

void move_volume(struct controller *controller, struct grpc_call *call, const struct route *route)
{
	struct move *m = calloc(1, sizeof(*m));
	enum move_state state = MOVE_STARTED;
	struct store_node *node = NULL;
	struct err err = {0};
	if (m == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	m->id = m->name = m->source_id = m->target_id = m->pool = "";
	m->f.on_answer = on_answer;
	forward_open(&m->f, controller, call, route);
	const Ringvol__V1__MoveVolumeRequest *request = (const void *)request_unpack(
		call, &ringvol__v1__move_volume_request__descriptor, &err);
	if (request == NULL || prepare(m, request, &state, &node, &err) < 0)
		forward_refuse(&m->f, &err);
	else if (state == MOVE_STARTED)
		answer(m, m->target_id, m->pool, true);
	else if (state == MOVE_LOOKING)
		look_at(m, node);
	else
		go_on(m, state);
}
