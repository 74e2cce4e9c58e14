/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeleteVolume. Happy path: the node that has the volume deletes it, and that is all. If the volume
 * had moved, the nodes that it left are told that the notes of its departures are needed no longer:
 * of one move the node of its id's pool, of several every node that is here, since nobody knows
 * which. What is away keeps its note, which does no harm but that the name is taken there.
 *
 * An id that no object is known of goes to its pool's node. Where that says UNAVAILABLE the volume
 * may have moved: the note is followed, and the node that it names deletes the volume. If that has
 * neither the volume, nor a note of it, nor a part that is to become it, it was deleted. Only a
 * node that has told everything is asked.
 *
 * How it can fail: a node is away, or has not told all (UNAVAILABLE); the nodes' own errors. Once
 * the volume is deleted the answer is OK, whatever becomes of the notes.
 */
#include "controller/delete.h"

#include "controller/departed.h"
#include "controller/home.h"
#include "controller/learn.h"
#include "controller/scan.h"
#include "csi/status.h"
#include "pool/record.h"

#include <stdlib.h>
#include <string.h>

enum delete_state {
	DELETE_STARTED,
	DELETE_DELETING, /* the volume, at a node */
	DELETE_LOOKING,  /* whether it has left that node */
	DELETE_DROPPING, /* notes */
};

struct delete
{
	struct forward f;
	enum delete_state state;
	const char *id;      /* in the client's arena; "" */
	const char *home_id; /* of the node of the id's pool, whose note goes last; "" */
	struct departed_trail trail;
	bool everywhere; /* there may be more notes than at home */
	bool moved;
	char dropped[STORE_NODE_ID_MAX]; /* the last node that was told; "" */
	bool at_home;                    /* that is the last call */
	const char *why;                 /* the refusal of the node that is asked for its note */
};

#define delete_of(forward) container_of(forward, struct delete, f)

static void delete_at(struct delete *d, struct store_node *node)
{
	struct forward *f = &d->f;
	struct err err = {0};
	size_t len;
	const uint8_t *data = grpc_call_bytes(f->client, &len);
	d->state = DELETE_DELETING;
	if (departed_trail_add(&d->trail, f->arena, node, &err) == 0)
		forward_call(f, node, f->route->path, data, len, &err);
	if (err.code != ERR_OK)
		forward_refuse(f, &err);
}

/* ---- notes ---- */

static void end_deleted(struct delete *d)
{
	d->f.answer.len = 0; /* an empty message */
	forward_end(&d->f, GRPC_OK, NULL);
}

/* The next that is here, in the order of ids, but not home. */
static struct store_node *next_node(struct delete *d)
{
	const struct store *store = d->f.controller->store;
	struct store_node *node = NULL;
	while (d->everywhere && (node = store_node_next(store, node)) != NULL)
		if (strcmp(node->id, d->dropped) > 0 && store_node_here(node) &&
			strcmp(node->id, d->home_id) != 0 && strlen(node->id) < STORE_NODE_ID_MAX)
			return node;
	return NULL;
}

static void drop_next(struct delete *d)
{
	struct err err = {0};
	struct store_node *node;
	d->state = DELETE_DROPPING;
	while ((node = next_node(d)) != NULL) {
		strcpy(d->dropped, node->id);
		if (departed_drop(&d->f, node, d->id, &err) == 0)
			return;
	}
	node = d->home_id[0] != '\0' ? store_node(d->f.controller->store, d->home_id) : NULL;
	d->everywhere = false;
	if (!d->at_home && node != NULL && store_node_here(node)) {
		d->at_home = true;
		if (departed_drop(&d->f, node, d->id, &err) == 0)
			return;
	}
	end_deleted(d);
}

/* ---- where it has gone ---- */

/* The node that the volume has gone to, if it can say what became of it. */
static int find_gone(
	const struct delete *d, const struct departed *to, struct store_node **ret, struct err *err)
{
	const struct store *store = d->f.controller->store;
	const struct store_object *object = store_object(store, d->id);
	const struct store_pool *pool = object != NULL ? object->pool : store_pool(store, to->pool);
	bool told = pool != NULL && store_pool_here(pool) &&
		    pool->node->state == STORE_NODE_PRESENT && pool->state == STORE_POOL_READY;
	if (!told)
		return err_set(err, ERR_UNAVAILABLE,
			"%s has moved to pool %s of node %.64s, which has not told this controller "
			"all that it has; try again when it is back",
			d->id, to->pool, to->node_id);
	if (departed_trail_has(&d->trail, pool->node))
		return err_set(err, ERR_UNAVAILABLE, "%s is on its way to node %.64s; try again",
			d->id, to->node_id);
	*ret = pool->node;
	return 0;
}

static void follow(struct delete *d, enum grpc_status status)
{
	struct departed to = {0};
	struct store_node *node = NULL;
	struct err err = {0};
	if (status == GRPC_OK)
		departed_read(&d->f, &to);
	/* The last that the notes lead to has it not, has told all, and waits for nothing of it. */
	if (status == GRPC_OK && to.pool[0] == '\0' && !to.arriving && d->trail.count > 1) {
		drop_next(d);
		return;
	}
	if (to.pool[0] == '\0') {
		forward_pass(&d->f, GRPC_UNAVAILABLE, d->why);
		return;
	}
	d->moved = d->everywhere = true;
	if (find_gone(d, &to, &node, &err) < 0)
		forward_refuse(&d->f, &err);
	else if (node != NULL)
		delete_at(d, node);
}

static void look(struct delete *d, const char *message)
{
	struct forward *f = &d->f;
	struct store_node *node = store_node(f->controller->store, f->node_id);
	struct err err = {0};
	d->state = DELETE_LOOKING;
	d->why = arena_strdup(f->arena, message);
	if (d->why == NULL)
		d->why = "out of memory";
	if (node == NULL || departed_ask(f, node, d->id, &err) < 0)
		forward_pass(f, GRPC_UNAVAILABLE, d->why);
}

static void on_answer(struct forward *f, enum grpc_status status, const char *message)
{
	struct delete *d = delete_of(f);
	switch (d->state) {
	case DELETE_STARTED:
		break;
	case DELETE_DELETING:
		if (status == GRPC_OK) {
			learn_gone(f);
			if (!d->moved) {
				forward_pass(f, status, message);
				break;
			}
			forward_log(f, status, message);
			drop_next(d);
		} else if (status == GRPC_UNAVAILABLE && f->sent && d->id[0] != '\0') {
			look(d, message);
		} else {
			forward_pass(f, status, message);
		}
		break;
	case DELETE_LOOKING:
		follow(d, status);
		break;
	case DELETE_DROPPING:
		drop_next(d);
		break;
	}
}

/* ---- what is asked for ---- */

/* Everything up to the first call. *ret: the node that is asked. */
static int prepare(struct delete *d, struct store_node **ret, struct err *err)
{
	struct forward *f = &d->f;
	struct store *store = f->controller->store;
	struct record_id parsed;
	char id[RECORD_ID_MAX];
	size_t len;
	const uint8_t *data = grpc_call_bytes(f->client, &len);
	if (scan_string(data, len, f->route->id, id, sizeof(id)) < 0)
		return err_set(err, ERR_INVALID, "the request is malformed");
	d->id = arena_strdup(f->arena, id);
	if (d->id == NULL) {
		d->id = "";
		return err_set(err, ERR_NO_ROOM, "out of memory");
	}
	f->subject = d->id;
	int r = home_of_id(store, id, ret, err);
	if (r < 0)
		return r;
	if (*ret == NULL)
		*ret = home_anywhere(store);
	if (*ret == NULL)
		return err_set(
			err, ERR_UNAVAILABLE, "no node has joined this controller yet; try again");
	if (record_id_parse(id, &parsed) < 0)
		return 0;
	const struct store_object *object = store_object(store, id);
	uint64_t moves = object != NULL ? object_moves(object) : 0;
	d->moved = moves > 0;
	d->everywhere = moves > 1;
	const struct store_pool *home = store_pool(store, parsed.pool);
	if (home != NULL && home->node != NULL)
		d->home_id = arena_strdup(f->arena, home->node->id);
	return d->home_id != NULL ? 0 : err_set(err, ERR_NO_ROOM, "out of memory");
}

void delete_volume(struct controller *controller, struct grpc_call *call, const struct route *route)
{
	struct delete *d = calloc(1, sizeof(*d));
	struct store_node *node = NULL;
	struct err err = {0};
	if (d == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	d->id = d->home_id = d->why = "";
	d->f.on_answer = on_answer;
	forward_open(&d->f, controller, call, route);
	if (prepare(d, &node, &err) == 0 && node != NULL)
		delete_at(d, node);
	else if (err.code == ERR_NOT_FOUND)
		end_deleted(d);
	else
		forward_refuse(&d->f, &err);
}
