/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A content source on another node. Happy path: the pull tells what it is; the build's image is a
 * part (pool/part.h), and its fill reads the source into it, then looks what file system it holds
 * where that matters; at last the source is let go.
 *
 * How it can fail: as the pull does. If that is not this node's doing, the part is kept, and so is
 * the source's grant: a retry goes on. So it is when the build of a part with progress fails before
 * the pull begins.
 */
#include "csi/remote.h"

#include "transfer/grant.h"

#include <errno.h>
#include <sha256.h>
#include <stdio.h>
#include <string.h>

/* ---- what it is ---- */

int remote_open(struct op *op, struct remote *remote, struct csi_creation *creation,
	const struct offer *offer)
{
	int r = pull_init(&remote->pull, creation->task.csi->transfer, offer, true, &op->err);
	if (r < 0)
		return r;
	remote->used = true;
	creation->task.copy = (struct csi_task_copy){pull_stop, pull_progress, &remote->pull};
	pull_open_init(&remote->pull);
	return op_child(op, &remote->pull.op);
}

int remote_open_end(struct remote *remote, struct csi_creation *creation, int res)
{
	if (res == 0)
		creation->source.rec = remote->pull.rec;
	return res;
}

/* ---- its bytes ---- */

static struct remote *remote_of(struct op *op)
{
	return container_of(op, struct remote, op);
}

static int pull_run(struct op *op)
{
	struct remote *remote = remote_of(op);
	pull_read_init(&remote->pull, remote->build, remote->fd);
	return op_child(op, &remote->pull.op);
}

static bool look_done(struct op *op)
{
	return !remote_of(op)->look;
}

static int look_job(void *arg)
{
	struct remote *remote = arg;
	return fsimg_probe_fd(remote->fd, &remote->probe);
}

static int look_run(struct op *op)
{
	return op_work(op, look_job, remote_of(op));
}

static int look_end(struct op *op, int res)
{
	struct remote *remote = remote_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "looking for a file system in the copy of %s",
			remote->pull.offer.source_id);
	return remote->on_probe(op, remote->arg);
}

static const struct op_step fill_steps[] = {
	{"pull", .run = pull_run},
	{"look for file system", .run = look_run, .end = look_end, .done = look_done},
	{NULL},
};

static int fill(struct op *op, int dst_fd, void *arg)
{
	struct remote *remote = arg;
	remote->fd = dst_fd;
	op_init(&remote->op, op->reactor, "remote_fill", fill_steps, NULL);
	return op_child(op, &remote->op);
}

/* A snapshot's bytes are the same whoever holds them. A volume's are those of one moment: of one
 * grant, which is a secret. */
static void describe(struct remote *remote, enum record_kind kind)
{
	const struct offer *offer = &remote->pull.offer;
	char digest[SHA256_DIGEST_STRING_LENGTH] = "";
	if (kind == RECORD_VOLUME)
		SHA256Data((const uint8_t *)offer->grant, strlen(offer->grant), digest);
	snprintf(remote->part.of, sizeof(remote->part.of), "%s %.16s", offer->source_id, digest);
}

void remote_fill(struct remote *remote, struct csi_creation *creation, enum record_kind kind)
{
	struct pool_build *build = &creation->build;
	remote->build = build;
	describe(remote, kind);
	build->part = &remote->part;
	build->fill = fill;
	build->fill_arg = remote;
	build->fill_writes = true;
}

/* ---- the end ---- */

void remote_leftover(struct remote *remote, struct csi_creation *creation)
{
	struct transfer *transfer = creation->task.csi->transfer;
	struct offer offer;
	struct err ignored = {0};
	if (transfer != NULL && offer_find(transfer, creation->source_id, creation->name, &offer) &&
		pull_init(&remote->pull, transfer, &offer, false, &ignored) == 0)
		remote->used = true;
}

int remote_close(struct op *op, struct remote *remote)
{
	const struct offer *offer = &remote->pull.offer;
	if (remote->part.keep)
		return 0;
	offer_drop(remote->pull.transfer, offer->source_id, offer->volume_name);
	pull_close_init(&remote->pull, remote->pull.offer.grant);
	return op_child(op, &remote->pull.op);
}

void remote_free(struct remote *remote)
{
	if (remote->used)
		pull_free(&remote->pull);
	remote->used = false;
}
