/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creates. Happy path of CreateVolume: nobody has the name -> a node is chosen and has it from now
 * on -> if the content (a golden image that the class names, too) is on another node, that grants a
 * copy and the chosen one is offered it ->
 * the request goes to the chosen node as it came. A name that somebody has goes there, with the
 * grant and the offer again if the volume is not finished: both answer the same again.
 *
 * How it can fail: a node that is away has the name, may have it, or has the content (UNAVAILABLE);
 * no node can make it (RESOURCE_EXHAUSTED); a node answers with an id that cannot be of the name,
 * or of its own (INTERNAL); the nodes' own errors. A name that this call gave to the node is free
 * again when the node has surely begun nothing, or has undone it; else its reports say what became
 * of it.
 */
#include "controller/create.h"

#include "controller/between.h"
#include "controller/forward.h"
#include "controller/home.h"
#include "controller/image.h"
#include "controller/learn.h"
#include "controller/place.h"
#include "controller/request.h"
#include "controller/scan.h"
#include "csi/request.h"
#include "csi/status.h"
#include "pool/golden.h"

#include <stdlib.h>
#include <string.h>

enum { SNAPSHOT_SOURCE_ID = 1, SNAPSHOT_NAME = 2 }; /* of CreateSnapshotRequest */

/* Downwards only; GRANTING and OFFERING are for content of another node. */
enum create_state { CREATE_STARTED, CREATE_GRANTING, CREATE_OFFERING, CREATE_FORWARDED };

struct create {
	struct forward f;
	enum create_state state;
	bool claimed; /* by this call, which was the first for the name */
	/* The node that makes it is the target; source_id, source_node: of what it is made; NULL:
	 * nothing. */
	struct between between;
};

#define create_of(forward) container_of(forward, struct create, f)

/* ---- ends ---- */

/* Whether the node makes nothing by that name. over: it has said so beside its answer, and so an
 * ABORTED of it is the refusal of another controller, not of an operation that runs. */
static bool is_free(enum grpc_status status, bool over)
{
	return home_name_is_free(status) || (over && status == GRPC_ABORTED);
}

/* It makes no other's claim free: the node may have reported the end before it answered. */
static void let_go(struct create *c, enum grpc_status status, bool begun)
{
	struct forward *f = &c->f;
	struct store *store = f->controller->store;
	const struct store_node *maker = store_name_maker(store, f->route->kind, f->key);
	bool over = store_name_is_over(store, f->route->kind, f->key);
	if ((c->claimed || over) && (!begun || is_free(status, over)) && !forward_others(f) &&
		maker != NULL && strcmp(maker->id, c->between.target_node) == 0)
		store_name_release(store, f->route->kind, f->key);
}

/* Before it was passed on and sent, the node had nothing to begin. */
static void on_gone(struct forward *f)
{
	struct create *c = create_of(f);
	let_go(c, GRPC_CANCELLED, c->state == CREATE_FORWARDED && f->sent);
}

static void create_refuse(struct create *c, const struct err *err)
{
	let_go(c, csi_status(err->code), false);
	forward_refuse(&c->f, err);
}

static void create_pass(struct create *c, enum grpc_status status, const char *message, bool begun)
{
	struct err err = {0};
	if (status == GRPC_OK && learn_check_made(&c->f, &err) < 0) {
		/* It may have made something by that name: it keeps it. */
		forward_refuse(&c->f, &err);
		return;
	}
	if (status == GRPC_OK)
		c->f.route->learn(&c->f);
	else
		let_go(c, status, begun);
	forward_pass(&c->f, status, message);
}

/* ---- the calls ---- */

static void go_on(struct create *c, enum create_state state);

static int ask_grant(struct create *c, struct err *err)
{
	return between_grant(&c->f, &c->between, err);
}

static int offer(struct create *c, struct err *err)
{
	return between_offer(&c->f, &c->between, err);
}

static int pass_on(struct create *c, struct err *err)
{
	size_t len;
	const uint8_t *data = grpc_call_bytes(c->f.client, &len);
	struct store_node *node = store_node(c->f.controller->store, c->between.target_node);
	if (node == NULL)
		return err_set(err, ERR_UNAVAILABLE, "node %s is not known any more",
			c->between.target_node);
	return forward_call(&c->f, node, c->f.route->path, data, len, err);
}

static void on_answer(struct forward *f, enum grpc_status status, const char *message)
{
	struct create *c = create_of(f);
	if (c->state == CREATE_FORWARDED) {
		create_pass(c, status, message, f->sent);
	} else if (status == GRPC_OK) {
		go_on(c, c->state + 1);
	} else if (status == GRPC_UNIMPLEMENTED) {
		struct err err = {0};
		err_set(&err, ERR_NO_ROOM,
			"node %s cannot copy between nodes; upgrade it, or make the volume on node %s",
			f->node_id, c->between.source_node);
		create_refuse(c, &err);
	} else {
		create_pass(c, status, message, false);
	}
}

/* A node that has started anew meanwhile has lost what it was to make. */
static int keep_name(struct create *c, struct err *err)
{
	struct store *store = c->f.controller->store;
	enum store_kind kind = c->f.route->kind;
	struct store_node *other, *node = store_node(store, c->between.target_node);
	/* That there is no such node any more is the call's to find. */
	if (node == NULL || store_name(store, kind, c->f.key) == node)
		return 0;
	struct err why = {0};
	int r = store_name_claim(store, kind, c->f.key, node, &other, &why);
	if (r < 0 && why.code == ERR_EXISTS)
		return err_set(err, ERR_PENDING,
			"node %s has the name %s by now; try again: the call is sent there",
			other->id, c->f.subject);
	if (r < 0)
		*err = why;
	else
		c->claimed = true;
	return r;
}

static void go_on(struct create *c, enum create_state state)
{
	static int (*const calls[])(struct create * c, struct err * err) = {
		[CREATE_GRANTING] = ask_grant,
		[CREATE_OFFERING] = offer,
		[CREATE_FORWARDED] = pass_on,
	};
	struct err err = {0};
	c->state = state;
	if (keep_name(c, &err) < 0 || calls[state](c, &err) < 0)
		create_refuse(c, &err);
}

/* ---- what is asked for ---- */

static struct create *create_new(
	struct controller *controller, struct grpc_call *call, const struct route *route)
{
	struct create *c = calloc(1, sizeof(*c));
	if (c == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return NULL;
	}
	c->f.on_answer = on_answer;
	c->f.on_gone = on_gone;
	forward_open(&c->f, controller, call, route);
	return c;
}

/* The node has the name, or gets it. */
static int take_name(struct create *c, struct store_node *node, bool taken, struct err *err)
{
	struct store_node *other = NULL;
	c->between.target_node = arena_strdup(c->f.arena, node->id);
	if (c->between.target_node == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	if (taken)
		return 0;
	int r = store_name_claim(
		c->f.controller->store, c->f.route->kind, c->f.key, node, &other, err);
	c->claimed = r == 0;
	return r;
}

/* What the volume is made of: *ret_id "" if it is empty, of what it is empty. */
static const char *content_id(const Csi__V1__VolumeContentSource *content)
{
	if (content == NULL)
		return "";
	switch (content->type_case) {
	case CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_SNAPSHOT:
		return csi_str(content->snapshot->snapshot_id);
	case CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_VOLUME:
		return csi_str(content->volume->volume_id);
	default:
		return "";
	}
}

static const char *parameter_of(
	const Csi__V1__CreateVolumeRequest *request, const char *key, const char *fallback)
{
	for (size_t i = 0; i < request->n_parameters; i++)
		if (strcmp(csi_str(request->parameters[i]->key), key) == 0)
			return csi_str(request->parameters[i]->value);
	return fallback;
}

/* The golden image that it begins as. NULL: none, or a name that the node will refuse. */
static const char *image_name(const Csi__V1__CreateVolumeRequest *request)
{
	const char *name = parameter_of(request, "source", "");
	return request->volume_content_source == NULL && golden_name_valid(name) ? name : NULL;
}

static int choose(const struct create *c, const Csi__V1__CreateVolumeRequest *request,
	const struct store_node *source, struct store_node **ret, struct err *err)
{
	const struct place place = {
		.topology = request->accessibility_requirements,
		.pool = parameter_of(request, "pool", "default"),
		.image = image_name(request),
		.size_bytes = request->capacity_range != NULL &&
					      request->capacity_range->required_bytes > 0
				      ? (uint64_t)request->capacity_range->required_bytes
				      : 0,
		.source = source,
	};
	return place_choose(c->f.controller->store, &place, ret, err);
}

/* The content's node; NULL: there is no content, or its id is one that no node knows. */
static int find_source(struct create *c, const char *id, struct store_node **ret, struct err *err)
{
	*ret = NULL;
	int r = *id != '\0' ? home_of_id(c->f.controller->store, id, ret, err) : 0;
	if (r < 0 || *ret == NULL)
		return r;
	c->between.source_id = id;
	c->between.source_node = arena_strdup(c->f.arena, (*ret)->id);
	if (c->between.source_node == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	return 0;
}

/* The image of the node that makes the volume goes before all others. */
static int find_image(struct create *c, const char *name, const struct store_node *home,
	struct store_node **ret, struct err *err)
{
	struct store *store = c->f.controller->store;
	const struct store_object *image;
	if (name == NULL || image_is_on(store, name, home))
		return 0;
	int r = image_elsewhere(store, name, home, &image, err);
	const char *id = r == 0 ? arena_strdup(c->f.arena, image->id) : NULL;
	if (id == NULL)
		return r < 0 ? r : err_set(err, ERR_NO_ROOM, "out of memory");
	return find_source(c, id, ret, err);
}

/* Everything up to the first call: *ret_state is which. */
static int prepare_volume(struct create *c, const Csi__V1__CreateVolumeRequest *request,
	enum create_state *ret_state, struct err *err)
{
	struct store *store = c->f.controller->store;
	struct store_node *home, *source = NULL;
	int r = csi_check_given(&request->base, "name", err);
	if (r < 0)
		return r;
	c->f.subject = c->between.volume_name = csi_str(request->name);
	record_key(c->between.volume_name, c->f.key);
	r = home_of_name(store, STORE_VOLUME, c->f.key, c->between.volume_name, &home, err);
	bool taken = home != NULL;
	/* What is finished needs its source no longer. */
	bool finished = store_object_by_key(store, STORE_VOLUME, c->f.key) != NULL;
	if (r == 0 && !finished)
		r = find_source(c, content_id(request->volume_content_source), &source, err);
	if (r == 0 && !taken)
		r = choose(c, request, source, &home, err);
	if (r == 0 && !finished)
		r = find_image(c, image_name(request), home, &source, err);
	if (r == 0)
		r = take_name(c, home, taken, err);
	*ret_state = source != NULL && source != home ? CREATE_GRANTING : CREATE_FORWARDED;
	return r;
}

void create_volume(struct controller *controller, struct grpc_call *call, const struct route *route)
{
	struct create *c = create_new(controller, call, route);
	struct err err = {0};
	if (c == NULL)
		return;
	const Csi__V1__CreateVolumeRequest *request = (const void *)request_unpack(
		call, &csi__v1__create_volume_request__descriptor, &err);
	enum create_state state = CREATE_STARTED;
	if (request == NULL || prepare_volume(c, request, &state, &err) < 0)
		create_refuse(c, &err);
	else
		go_on(c, state);
}

/* ---- snapshots: they are where their volume is ---- */

static int prepare_snapshot(struct create *c, struct err *err)
{
	struct store *store = c->f.controller->store;
	struct store_node *home = NULL;
	char name[RECORD_NAME_MAX + 1], id[RECORD_ID_MAX];
	size_t len;
	const uint8_t *data = grpc_call_bytes(c->f.client, &len);
	if (scan_string(data, len, SNAPSHOT_NAME, name, sizeof(name)) < 0 ||
		scan_string(data, len, SNAPSHOT_SOURCE_ID, id, sizeof(id)) < 0)
		return err_set(err, ERR_INVALID, "the request is malformed");
	if (name[0] == '\0')
		return err_set(err, ERR_INVALID, "name is missing, or no name");
	c->f.subject = arena_strdup(c->f.arena, name);
	if (c->f.subject == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	record_key(name, c->f.key);
	/* A retry has the same volume and so the same node, whoever else is away: only a name that
	 * is known matters here. */
	bool taken = store_name(store, STORE_SNAPSHOT, c->f.key) != NULL;
	int r = taken ? home_of_name(store, STORE_SNAPSHOT, c->f.key, name, &home, err)
		      : home_of_id(store, id, &home, err);
	if (r < 0)
		return r;
	if (home == NULL)
		return err_set(err, id[0] == '\0' ? ERR_INVALID : ERR_NOT_FOUND,
			id[0] == '\0' ? "source_volume_id is missing%s"
				      : "volume %s does not exist",
			id);
	return take_name(c, home, taken, err);
}

void create_snapshot(
	struct controller *controller, struct grpc_call *call, const struct route *route)
{
	struct create *c = create_new(controller, call, route);
	struct err err = {0};
	if (c == NULL)
		return;
	if (prepare_snapshot(c, &err) < 0)
		create_refuse(c, &err);
	else
		go_on(c, CREATE_FORWARDED);
}
