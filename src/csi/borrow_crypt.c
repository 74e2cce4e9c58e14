/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An encrypted borrowed volume: its owner gives out the ciphertext, and `ringvol luks` opens it
 * here, over the cover, as it opens one of this node's own (backends/crypt).
 *
 * Happy path: the key moves out of the request -> the cover is opened, so that its number stays
 * what it is -> the child makes the dm-crypt device, or gives one that is there the cover's size,
 * for which it needs no key -> a helper looks at it. How it can fail: as the child does. What it
 * has made goes with the cover: ATTACH_GIVE takes both away, and so does the next take with what a
 * killed child has left half.
 */
#include "csi/borrow.h"

#include "attach/cover.h"
#include "backends/crypt/crypt_dev.h"
#include "backends/crypt/luks_child.h"
#include "base/fd.h"
#include "base/secret.h"
#include "blockio/luks_room.h"
#include "csi/key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* borrow_op.crypt; it comes with the first step that wants it. */
struct borrow_crypt {
	struct luks_order order;
	struct luks_child child;
	int device_fd; /* the cover, until the child has it; -1: it is not open */
};

int borrow_check_key(struct borrow_op *b, Csi__V1__StringPair **secrets, size_t n, const char *what,
	struct err *err)
{
	return b->take.terms.encrypted ? csi_key_check(b->n.task.id, secrets, n, what, err) : 0;
}

bool borrow_is_closed(const struct borrow_op *b)
{
	const struct borrowed *one = borrow_entry(b);
	return b->take.terms.encrypted && (one == NULL || !one->opened);
}

int borrow_key_run(struct op *op)
{
	return volume_op_take_key_if(op, borrow_of(op)->take.terms.encrypted);
}

/* ---- what is to be done ---- */

static bool is_small(const struct attach_info *info)
{
	return info->opened && info->size_bytes + LUKS_HEADER_BYTES < info->cover.size_bytes;
}

bool borrow_open_done(struct op *op)
{
	const struct borrow_op *b = borrow_of(op);
	return b->info.opened ? !is_small(&b->info) : !b->take.terms.encrypted;
}

/* ---- the child ---- */

static int hold(struct borrow_op *b, struct borrow_crypt *crypt)
{
	int flags = (b->take.read_only ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC;
	crypt->device_fd = open(b->info.cover.path, flags);
	return crypt->device_fd < 0 ? -errno : 0;
}

/* What grows is opened by the child, and needs no key. */
int borrow_hold_call(struct op *op)
{
	struct borrow_op *b = borrow_of(op);
	struct borrow_crypt *crypt = arena_new_of(b->n.task.arena, struct borrow_crypt);
	if (crypt == NULL)
		return -ENOMEM;
	crypt->device_fd = -1;
	b->crypt = crypt;
	return b->info.opened ? 0 : hold(b, crypt);
}

int borrow_hold_end(struct op *op, int res)
{
	struct borrow_op *b = borrow_of(op);
	return res == 0 ? 0
			: op_fail_sys(op, res, "volume %s: opening %s, which has its ciphertext",
				  b->n.task.id, b->info.cover.path);
}

static void let_go(struct borrow_op *b)
{
	if (b->crypt != NULL)
		fd_close(&b->crypt->device_fd);
}

void borrow_open_cleanup(struct csi_task *task)
{
	let_go(container_of(task, struct borrow_op, n.task));
	borrow_cleanup(task);
}

/* Before its cover goes. */
int borrow_hold_undo(struct op *op)
{
	let_go(borrow_of(op));
	return 0;
}

static int put_order(struct borrow_op *b, struct luks_order *o)
{
	const struct attach_cover *cover = &b->info.cover;
	bool grows = b->info.opened;
	o->what = grows ? LUKS_GROW : LUKS_OPEN;
	o->driver = getpid();
	o->read_only = b->take.read_only;
	o->sector_bytes = 4096; /* of a header that is made, which this is not */
	o->major = cover->major;
	o->minor = cover->minor;
	snprintf(o->path, sizeof(o->path), "%s", cover->path);
	o->key = grows ? NULL : secret_bytes(b->n.key);
	o->key_len = grows ? 0 : secret_len(b->n.key);
	return crypt_dev_names(b->tag, COVER_CRYPT_INO, o->name, o->uuid);
}

int borrow_open_run(struct op *op)
{
	struct borrow_op *b = borrow_of(op);
	struct borrow_crypt *crypt = b->crypt;
	int r = put_order(b, &crypt->order);
	if (r < 0)
		return op_fail_sys(op, r, "volume %s: naming its device", b->n.task.id);
	int device_fd = crypt->device_fd;
	crypt->device_fd = -1;
	return luks_child_run(op, &crypt->child, &crypt->order, device_fd, -1);
}

int borrow_open_end(struct op *op, int res)
{
	struct borrow_op *b = borrow_of(op);
	return luks_child_end(op, &b->crypt->child, b->n.task.id, res);
}

/* ---- what it has made ---- */

int borrow_opened_run(struct op *op)
{
	struct borrow_op *b = borrow_of(op);
	b->found = b->info.found;
	return borrow_call(op, ATTACH_OPENED, ATTACH_TAKE_TIMEOUT_MS);
}

int borrow_opened_end(struct op *op, int res)
{
	struct borrow_op *b = borrow_of(op);
	int r = borrow_call_end(op, res, "reading it");
	b->info.found = b->found;
	return r < 0 ? r : borrow_put(op);
}
