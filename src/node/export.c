/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: the volume's device (take_device.h) -> the export, by calls on a work thread of the
 * pool's lane. How it can fail: as the backend, and as the target (export/nvmet.h). What a failed
 * attempt leaves has no attachment, and exports.c finds it.
 */
#include "node/export.h"

#include "node/node.h"
#include "node/volume.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct node_export *export_of(struct op *op)
{
	return container_of(op, struct node_export, op);
}

static const struct export_target *target_of(const struct node_export *e)
{
	return e->node->export_config->target;
}

/* ---- the device ---- */

static int take_run(struct op *op)
{
	struct node_export *e = export_of(op);
	node_take_device_init(&e->take, e->node, e->volume);
	return op_child(op, &e->take.op);
}

static int take_end(struct op *op, int res)
{
	struct node_export *e = export_of(op);
	if (res == 0)
		e->export.device = e->take.dev.dev.path;
	return res;
}

static int take_undo(struct op *op)
{
	struct node_export *e = export_of(op);
	if (!e->take.attached_here)
		return 0;
	node_let_go_init(&e->let_go, e->node, e->volume);
	return op_child(op, &e->let_go.op);
}

/* ---- the calls ---- */

static int call_end(struct op *op, int res)
{
	struct node_export *e = export_of(op);
	if (res < 0 && e->err.code != ERR_OK)
		op->err = e->err;
	return res < 0 && e->err.code == ERR_OK
		       ? op_fail_sys(op, res, "volume %s: its export", e->volume->rec->name)
		       : res;
}

static int make_call(struct op *op)
{
	struct node_export *e = export_of(op);
	return target_of(e)->make(&e->export, &e->err);
}

static int end_call(struct op *op)
{
	struct node_export *e = export_of(op);
	return target_of(e)->end(&e->export, &e->err);
}

static int resize_call(struct op *op)
{
	struct node_export *e = export_of(op);
	return target_of(e)->resize(&e->export, &e->err);
}

static int check_call(struct op *op)
{
	struct node_export *e = export_of(op);
	return target_of(e)->check(
		!e->node->export_config->without_auth, e->node->export_config->tls, &e->err);
}

static const struct op_step make_steps[] = {
	{"take device", .run = take_run, .end = take_end, .undo = take_undo},
	{"export", .call = make_call, .end = call_end},
	{NULL},
};

static const struct op_step end_steps[] = {
	{"end export", .call = end_call, .end = call_end},
	{NULL},
};

static const struct op_step resize_steps[] = {
	{"resize export", .call = resize_call, .end = call_end},
	{NULL},
};

static const struct op_step check_steps[] = {
	{"check nvmet", .call = check_call, .end = call_end},
	{NULL},
};

static void init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of, const struct op_step *steps)
{
	*e = (struct node_export){.node = node, .volume = volume};
	if (of != NULL) {
		snprintf(e->key, sizeof(e->key), "%s", of->key);
		snprintf(e->export.uuid, sizeof(e->export.uuid), "%s", of->export);
		export_names_of(pool_uuid8(volume->pool), of->export, &e->export.names);
	}
	e->export.key = e->key;
	e->export.device = "its device";
	e->export.address = node->export_config->address;
	e->export.tls = node->export_config->tls;
	op_init(&e->op, node->reactor, "export", steps, NULL);
	e->op.lane = pool_lane(volume->pool);
}

void node_export_make_init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of)
{
	init(e, node, volume, of, make_steps);
}

void node_export_keep_closed(struct node_export *e)
{
	e->export.address = NULL;
}

void node_export_end_init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of)
{
	init(e, node, volume, of, end_steps);
}

void node_export_check_init(struct node_export *e, struct node *node, struct pool_object *volume)
{
	init(e, node, volume, NULL, check_steps);
}

void node_export_resize_init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of)
{
	init(e, node, volume, of, resize_steps);
}

void node_export_free(struct node_export *e)
{
	explicit_bzero(e->key, sizeof(e->key));
}

/* ---- all of a volume ---- */

static struct node_export_all *all_of(struct op *op)
{
	return container_of(op, struct node_export_all, op);
}

static const struct attachment *next_of(struct node_export_all *all)
{
	const struct attachment *next;
	while ((next = attachments_next_exported(all->volume->attachments, &all->at)) != NULL &&
		all->only[0] != '\0' && strcmp(next->node, all->only) != 0)
		all->at++;
	return next;
}

bool node_export_all_done(struct node_export_all *all)
{
	return all->node->export_config == NULL || next_of(all) == NULL;
}

static bool all_done(struct op *op)
{
	return node_export_all_done(all_of(op));
}

static int one_run(struct op *op)
{
	struct node_export_all *all = all_of(op);
	all->init(&all->one, all->node, all->volume, next_of(all));
	if (all->keep_closed)
		node_export_keep_closed(&all->one);
	return op_child(op, &all->one.op);
}

static int one_end(struct op *op, int res)
{
	struct node_export_all *all = all_of(op);
	node_export_free(&all->one);
	if (res < 0)
		return res;
	all->at++;
	return all_done(op) ? 0 : one_run(op);
}

static const struct op_step all_steps[] = {
	{"exports", .done = all_done, .run = one_run, .end = one_end},
	{NULL},
};

void node_export_all_init(struct node_export_all *all, struct node *node,
	struct pool_object *volume, node_export_init_fn *init_one)
{
	*all = (struct node_export_all){
		.node = node, .volume = volume, .only = "", .init = init_one};
	op_init(&all->op, node->reactor, "exports of a volume", all_steps, NULL);
	all->op.lane = pool_lane(volume->pool);
}
