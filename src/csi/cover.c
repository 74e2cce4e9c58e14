/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path of a swap: the volume's device here is attached -> the cover's table is swapped, and
 * its I/O goes on -> the connection ends. How it can fail: the device cannot be had, or a call
 * hangs; then the cover stays suspended, and it is tried again.
 */
#include "csi/cover.h"

#include "csi/attach.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool csi_cover_tag(const char *id, char ret_tag[ATTACH_TAG_BYTES])
{
	struct record_id parsed;
	if (record_id_parse(id, &parsed) < 0)
		return false;
	node_tag(parsed.pool, parsed.random, ret_tag);
	return true;
}

struct borrowed *csi_cover_of(const struct csi *csi, const char *id)
{
	char tag[ATTACH_TAG_BYTES];
	return csi_cover_tag(id, tag) ? borrows_find(csi->borrows, tag) : NULL;
}

const struct pool_object *csi_cover_own(const struct csi *csi, const struct borrowed *one)
{
	const struct pool_object *o;
	struct pool_walk walk = {0};
	char tag[ATTACH_TAG_BYTES];
	while (one->suspended && (o = pools_next(csi->pools, RECORD_VOLUME, &walk)) != NULL) {
		node_volume_tag(o, tag);
		if (strcmp(tag, one->tag) == 0 && csi_attach_own(csi, o) != NULL)
			return o;
	}
	return NULL;
}

/* ---- calls ---- */

static struct borrowed *entry(const struct csi_cover *c)
{
	return borrows_find(c->csi->borrows, c->tag);
}

static void begin(struct csi_cover *c, struct csi *csi, const char *tag)
{
	c->csi = csi;
	memcpy(c->tag, tag, sizeof(c->tag));
	const struct borrowed *one = entry(c);
	c->ask = (struct attach_volume_req){0};
	memcpy(c->ask.tag, c->tag, sizeof(c->ask.tag));
	if (one != NULL)
		memcpy(c->ask.subsystem, one->subsystem, sizeof(c->ask.subsystem));
}

static int ask(struct op *op, struct csi_cover *c, enum attach_call call, uint64_t timeout_ms)
{
	return op_helper(
		op, call, c->tag, &c->ask, sizeof(c->ask), &c->info, sizeof(c->info), timeout_ms);
}

static int call_end(struct op *op, struct csi_cover *c, int res, const char *what)
{
	if (res == 0 && c->info.there && entry(c) != NULL)
		(void)borrows_put(c->csi->borrows, c->tag, &c->info);
	c->info.err.message[sizeof(c->info.err.message) - 1] = '\0';
	if (res == 0)
		return 0;
	if (res != -ETIMEDOUT && c->info.err.code != ERR_OK)
		return op_fail(op, c->info.err.code, "%s", c->info.err.message);
	if (res == -ETIMEDOUT)
		return op_fail(op, ERR_UNAVAILABLE,
			"%s the device of the volume hangs: its I/O is waited for; see the kernel log",
			what);
	return op_fail_sys(op, res, "%s the device of the volume", what);
}

int cover_suspend(
	struct op *op, struct csi_cover *c, struct csi *csi, struct borrowed *one, const char *key)
{
	begin(c, csi, one->tag);
	one->suspended = one->ours = true;
	snprintf(one->key, sizeof(one->key), "%s", key);
	return ask(op, c, ATTACH_SUSPEND, ATTACH_SUSPEND_TIMEOUT_MS);
}

/* Where it failed it may be suspended all the same. */
int cover_suspend_end(struct op *op, struct csi_cover *c, int res)
{
	return call_end(op, c, res, "suspending");
}

/* ---- going on as before ---- */

static struct csi_cover *cover_of(struct op *op)
{
	return container_of(op, struct csi_cover, op);
}

static int resume_run(struct op *op)
{
	return ask(op, cover_of(op), ATTACH_RESUME, ATTACH_SUSPEND_TIMEOUT_MS);
}

static int resume_end(struct op *op, int res)
{
	struct csi_cover *c = cover_of(op);
	struct borrowed *one = entry(c);
	int r = call_end(op, c, res, "resuming");
	if (r == 0 && one != NULL && !c->info.suspended)
		one->suspended = one->ours = false;
	return r;
}

static const struct op_step resume_steps[] = {
	{"resume", .run = resume_run, .end = resume_end},
	{NULL},
};

void cover_resume_init(struct csi_cover *c, struct csi *csi, const struct borrowed *one)
{
	begin(c, csi, one->tag);
	op_init(&c->op, csi->reactor, "cover_resume", resume_steps, NULL);
}

/* ---- the swap ---- */

static int take_run(struct op *op)
{
	struct csi_cover *c = cover_of(op);
	node_take_device_init(&c->take, c->csi->node, c->take.volume);
	return op_child(op, &c->take.op);
}

static int swap_run(struct op *op)
{
	struct csi_cover *c = cover_of(op);
	const struct backend_dev *dev = &c->take.dev.dev;
	c->swap = (struct attach_swap_req){
		.volume = c->ask,
		.major = dev->major,
		.minor = dev->minor,
		.size_bytes = dev->size_bytes,
	};
	return op_helper(op, ATTACH_SWAP, c->tag, &c->swap, sizeof(c->swap), &c->info,
		sizeof(c->info), ATTACH_GIVE_TIMEOUT_MS);
}

static int swap_end(struct op *op, int res)
{
	struct csi_cover *c = cover_of(op);
	struct borrowed *one = entry(c);
	int r = call_end(op, c, res, "going on with");
	if (r == 0 && one != NULL) {
		one->suspended = one->ours = false;
		one->subsystem[0] = '\0';
		snprintf(one->node, sizeof(one->node), "%s", c->csi->config.node_id);
	}
	return r;
}

static const struct op_step swap_steps[] = {
	{"take device", .run = take_run},
	{"swap", .run = swap_run, .end = swap_end},
	{NULL},
};

void cover_swap_init(struct csi_cover *c, struct csi *csi, struct pool_object *volume)
{
	char tag[ATTACH_TAG_BYTES];
	node_volume_tag(volume, tag);
	begin(c, csi, tag);
	c->take = (struct node_take_device){.volume = volume};
	op_init(&c->op, csi->reactor, "cover_swap", swap_steps, NULL);
	c->op.lane = pool_lane(volume->pool);
}
