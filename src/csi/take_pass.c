/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catching up with a volume that is in use on this node. A pass: the other node makes an image of
 * the volume as it is by now -> the part gets what that has else, and is durable -> the part is of
 * that grant -> the earlier grant goes. Passes follow each other while they become shorter.
 *
 * How it can fail: there is no later image to be had: then what the passes before left is pulled
 * when the volume is still. As the pull: the part is begun anew.
 */
#include "csi/take.h"

#include <sha256.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	PASSES_MAX = 8,
	PASS_SMALL_BYTES = 4 << 20, /* one of no more is the last */
};

static struct take *take_of_pass(struct op *op)
{
	return container_of(op, struct take, pass);
}

/* ---- what the part is of ---- */

/* The bytes of one grant's image, which is a secret. */
void take_describe(struct take *k)
{
	char digest[SHA256_DIGEST_STRING_LENGTH];
	SHA256Data((const uint8_t *)k->offer.grant, strlen(k->offer.grant), digest);
	snprintf(k->part.of, sizeof(k->part.of), "%s %.16s", k->task.id, digest);
}

static int spoil_job(void *arg)
{
	struct take *k = arg;
	int r = pool_part_note(k->fd, &k->part, record_image_bytes(k->rec), 0);
	return r < 0 ? r : fsync(k->fd) < 0 ? -errno : 0;
}

int take_spoil(struct op *op, struct take *k)
{
	return op_work(op, spoil_job, k);
}

int take_spoil_end(struct op *op, const struct take *k, int res)
{
	return res == 0 ? 0
			: op_fail_sys(op, res, "noting in pool %s how much of %s is copied",
				  pool_name(k->pool), k->name);
}

/* ---- one pass ---- */

static int renew_run(struct op *op)
{
	struct take *k = take_of_pass(op);
	pull_renew_init(&k->pull);
	return op_child(op, &k->pull.op);
}

static bool none_later(struct op *op)
{
	return take_of_pass(op)->pull.base[0] == '\0';
}

static int spoil_run(struct op *op)
{
	return take_spoil(op, take_of_pass(op));
}

static int spoil_end(struct op *op, int res)
{
	return take_spoil_end(op, take_of_pass(op), res);
}

static int pull_run(struct op *op)
{
	struct take *k = take_of_pass(op);
	pull_changed_init(&k->pull, &k->build, k->fd);
	return op_child(op, &k->pull.op);
}

static int pull_end_pass(struct op *op, int res)
{
	struct take *k = take_of_pass(op);
	k->part.keep = res == 0;
	k->pass_bytes = k->pull.received_bytes;
	return res;
}

static int note_job(void *arg)
{
	struct take *k = arg;
	uint64_t size_bytes = record_image_bytes(k->rec);
	if (fsync(k->fd) < 0)
		return -errno;
	return pool_part_note(k->fd, &k->part, size_bytes, size_bytes);
}

static int note_run(struct op *op)
{
	struct take *k = take_of_pass(op);
	memcpy(k->offer.grant, k->pull.offer.grant, sizeof(k->offer.grant));
	take_describe(k);
	return op_work(op, note_job, k);
}

static int close_run(struct op *op)
{
	struct take *k = take_of_pass(op);
	pull_close_init(&k->pull, k->pull.base);
	return op_child(op, &k->pull.op);
}

static int close_end(struct op *op, int res)
{
	take_of_pass(op)->pull.base[0] = '\0';
	return res;
}

static const struct op_step pass_steps[] = {
	{"renew", .run = renew_run},
	{"note that it changes", .run = spoil_run, .end = spoil_end, .done = none_later},
	{"pull what changed", .run = pull_run, .end = pull_end_pass, .done = none_later},
	{"note what it is", .run = note_run, .end = spoil_end, .done = none_later},
	{"close earlier grant", .run = close_run, .end = close_end, .done = none_later},
	{NULL},
};

/* ---- as many as it takes ---- */

int take_catch_up_run(struct op *op, struct take *k)
{
	op_init(&k->pass, op->reactor, "take_pass", pass_steps, NULL);
	k->pass.lane = pool_lane(k->pool);
	k->part.keep = true; /* until it is spoiled: all of the grant's image is there */
	k->passes++;
	k->pass_bytes = 0;
	return op_child(op, &k->pass);
}

int take_catch_up_end(struct op *op, struct take *k, int res)
{
	uint64_t before_bytes = k->before_bytes;
	k->before_bytes = k->pass_bytes;
	bool shrinks = k->passes == 1 || k->pass_bytes < before_bytes / 4 * 3;
	if (res < 0 || k->pass_bytes <= PASS_SMALL_BYTES || !shrinks || k->passes == PASSES_MAX)
		return res;
	return take_catch_up_run(op, k);
}
