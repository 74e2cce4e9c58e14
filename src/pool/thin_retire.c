/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking away what nobody uses: first the templates, which go to the trash, then the thin pool, its
 * devices and both images, once no file has had an id for THIN_IDLE_MS. How it can fail: somebody
 * has a device open, or dm-thin knows an id that no file has. Then all stays, and a later look
 * tries again.
 */
#include "pool/thin_retire.h"

#include "pool/private.h"
#include "pool/raw.h"
#include "pool/trash.h"

#include <errno.h>

enum { THIN_IDLE_MS = 60000 };

/* Nobody has used it for a while, but for templates. */
static bool is_idle(struct thin_keep *k)
{
	uint64_t now = ring_now_ns(k->op.reactor->ring);
	const struct pool_thin *thin = thin_of(k);
	if (thin->files > thin->templates.count || !list_empty(&k->waiting)) {
		k->idle_since_ns = 0;
		return false;
	}
	if (k->idle_since_ns == 0)
		k->idle_since_ns = now;
	return now - k->idle_since_ns >= THIN_IDLE_MS * UINT64_C(1000000);
}

/* Templates go before the thin pool does, and where somebody needs their room. */
bool thin_templates_done(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	struct thin_templates *templates = &thin_of(k)->templates;
	if (thin_of(k)->short_of_room || is_idle(k))
		thin_templates_age(templates);
	return list_empty(&templates->old);
}

static int templates_job(void *arg)
{
	struct thin_keep *k = arg;
	return thin_templates_drop(k->templates_fd, k->trash_fd, &k->templates);
}

int thin_templates_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	thin_templates_dropped(&thin_of(k)->templates, &k->templates, res);
	if (res == 0)
		pool_trash_kick(k->pool);
	return res < 0 ? op_fail_sys(op, res, "deleting a template in the thin pool of pool %s",
				 k->pool->name)
		       : 0;
}

int thin_templates_run(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	thin_templates_take_old(&thin_of(k)->templates, &k->templates);
	int r = op_work(op, templates_job, k);
	return r < 0 ? thin_templates_end(op, r) : r;
}

bool thin_retire_done(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	return !is_idle(k) || thin_of(k)->files > 0;
}

static int retire_job(void *arg)
{
	struct thin_keep *k = arg;
	return thin_files_retire(k->disk, k->dirfd, k->trash_fd, &k->metadata);
}

int thin_retire_run(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	thin_of(k)->life = THIN_DOWN;
	return op_work(op, retire_job, k);
}

int thin_retire_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	struct pool_thin *thin = thin_of(k);
	if (res == -EBUSY) /* somebody has a device of it open */
		return 0;
	if (res == -ENOTEMPTY || res == -EAGAIN) { /* what no file has is not destroyed */
		thin->life = THIN_UP;
		k->idle_since_ns = ring_now_ns(op->reactor->ring);
		return 0;
	}
	if (res < 0)
		return op_fail_sys(op, res, "taking away the thin pool of pool %s", k->pool->name);
	k->pool->raw->dirty_bytes +=
		image_map_bytes(&thin->data) + image_map_bytes(&thin->metadata);
	thin->life = THIN_NONE;
	thin->looked = false;
	thin->metadata = thin->data = (struct image_map){0};
	k->idle_since_ns = 0;
	pool_trash_kick(k->pool);
	pool_room_stale(k->pool);
	return 0;
}
