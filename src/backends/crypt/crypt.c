/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The filter. Owns the requests under way; devices are the kernel's.
 *
 * Happy path of attach: the device below -> look for a dm-crypt device over it -> none: a child
 * with the key makes one -> look again. Of detach: the dm-crypt device, then the one below. Of
 * resize: the one below, then a child that gives dm-crypt the new length, for which it needs no
 * key.
 *
 * A driver that is killed in between leaves a device below, or a dm-crypt device without a table:
 * the next attach or detach goes on from there. How it can fail: as the one below, the child and
 * the device mapper do, and with ERR_PRECONDITION where there is no key, or where what stands over
 * the device is not ours.
 *
 * The steps of a request outlive what the caller gave (an undo has no end), so they are a struct of
 * their own, given back when the next request begins.
 */
#include "backends/crypt/crypt.h"

#include "backends/crypt/crypt_dev.h"
#include "backends/crypt/crypt_scan.h"
#include "backends/crypt/crypt_stack.h"
#include "backends/crypt/luks_child.h"
#include "base/fd.h"
#include "base/list.h"
#include "blockio/blkdev.h"
#include "blockio/luks_room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct crypt {
	struct backend backend; /* what is in the table */
	const struct backend *below;
	crypt_open_dm *open_dm;
	struct list calls; /* those under way, and those that ended and wait to be given back */
};

/* One request. */
struct crypt_call {
	struct op op;
	struct list link; /* crypt.calls */
	struct crypt *crypt;
	struct backend_req *req;  /* the caller's */
	struct backend_req below; /* the same, of the one below */
	struct crypt_dev dev;
	enum { CALL_MAKE, CALL_GROW, CALL_NOTHING } child_does;
	struct luks_order order;
	int device_fd; /* the device below, for the child that opens it; -1: none, or the child's */
	struct luks_child child;
	struct err err; /* of a work job */
};

static struct crypt *crypt_of(const struct backend *backend)
{
	return container_of(backend, struct crypt, backend);
}

static struct crypt_call *call_of(struct op *op)
{
	return container_of(op, struct crypt_call, op);
}

/* ---- the device mapper ---- */

static int refuse_encrypted(struct err *err)
{
	return err_set(err, ERR_PRECONDITION,
		"encrypted volumes need the device mapper, which this node lacks (%s): load its modules (modprobe -a dm_mod dm_crypt)",
		DM_CONTROL_PATH);
}

static int open_dm(const struct crypt *crypt, struct dm *ret, struct err *err)
{
	int r = crypt->open_dm(ret, DM_CONTROL_PATH);
	if (r == 0)
		return 0;
	if (dm_is_absent(r))
		return refuse_encrypted(err);
	return err_sys(
		err, r, "encrypted volumes need the device mapper: opening %s", DM_CONTROL_PATH);
}

/* ---- steps ---- */

static int below_attach_run(struct op *op)
{
	struct crypt_call *c = call_of(op);
	return c->crypt->below->attach(c->crypt->below, op, &c->below);
}

static int below_end(struct op *op, int res)
{
	return backend_end(op, &call_of(op)->below, res);
}

static int below_attach_undo(struct op *op)
{
	struct crypt_call *c = call_of(op);
	if (c->below.dev.found)
		return 0;
	return c->crypt->below->detach(c->crypt->below, op, &c->below);
}

/* While this is open the number is not bound to anything else. */
static int hold_below(struct crypt_call *c)
{
	int flags = (c->req->read_only ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC;
	c->device_fd = open(c->below.dev.path, flags);
	return c->device_fd < 0
		       ? err_sys(&c->err, -errno, "opening %s, which has an encrypted image",
				 c->below.dev.path)
		       : 0;
}

static int look_call(struct op *op)
{
	struct crypt_call *c = call_of(op);
	_cleanup_dm_ struct dm dm = {.fd = -1};
	const struct backend_dev *below = &c->below.dev;
	int r = crypt_dev_names(c->req->tag, below->image_ino, c->order.name, c->order.uuid);
	if (r < 0)
		return err_sys(&c->err, r, "an encrypted image with the tag %s", c->req->tag);
	if (below->below_major != 0)
		return err_set(&c->err, ERR_PRECONDITION,
			"the encrypted image %s is bound to a device that was published as it is: unpublish it first",
			c->req->image);
	r = open_dm(c->crypt, &dm, &c->err);
	if (r < 0)
		return r;
	r = crypt_dev_find(
		&dm, c->req->tag, below->image_ino, below->major, below->minor, &c->dev, &c->err);
	c->child_does = CALL_MAKE;
	if (r == -ENXIO)
		return c->req->secret != NULL ? hold_below(c) : 0;
	if (r < 0)
		return r;
	c->child_does = c->dev.size_bytes + LUKS_HEADER_BYTES < below->size_bytes ? CALL_GROW
										  : CALL_NOTHING;
	return 0;
}

static int job_end(struct op *op, int res)
{
	struct crypt_call *c = call_of(op);
	if (res < 0 && c->err.code != ERR_OK)
		op->err = c->err;
	return res;
}

/* On a work thread. */
static int let_go(void *arg)
{
	struct crypt_call *c = arg;
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = c->crypt->open_dm(&dm, DM_CONTROL_PATH);
	if (r < 0 && dm_is_absent(r))
		return 0;
	if (r < 0)
		return err_sys(&c->err, r, "letting go of an encrypted volume: opening %s",
			DM_CONTROL_PATH);
	return crypt_dev_remove(&dm, c->below.tag, c->below.dev.image_ino, &c->err);
}

/* What the child made, or half of it. */
static int look_undo(struct op *op)
{
	struct crypt_call *c = call_of(op);
	fd_close(&c->device_fd);
	return c->child_does == CALL_MAKE ? op_work(op, let_go, c) : 0;
}

static bool nothing_to_do(struct op *op)
{
	return call_of(op)->child_does == CALL_NOTHING;
}

static int child_run(struct op *op)
{
	struct crypt_call *c = call_of(op);
	const struct backend_dev *below = &c->below.dev;
	const struct secret *secret = c->req->secret;
	struct luks_order *o = &c->order;
	bool grows = c->child_does == CALL_GROW;
	if (!grows && secret == NULL)
		return op_fail(op, ERR_PRECONDITION,
			"the volume is encrypted and no key came with the call: name its secret in the StorageClass (csi.storage.k8s.io/node-stage-secret-name); if it was staged and its device has gone, unstage and stage it again (delete the pods that use it)");
	o->what = grows ? LUKS_GROW : LUKS_OPEN;
	o->driver = getpid();
	o->format = c->req->format;
	o->read_only = c->req->read_only;
	o->no_discard = c->req->no_discard;
	o->sector_bytes = c->req->block_size == 512 ? 512 : 4096;
	o->major = below->major;
	o->minor = below->minor;
	snprintf(o->path, sizeof(o->path), "%s", below->path);
	o->key = grows ? NULL : secret_bytes(secret);
	o->key_len = grows ? 0 : secret_len(secret);
	int device_fd = c->device_fd;
	c->device_fd = -1;
	return luks_child_run(op, &c->child, o, device_fd, c->req->lock_fd);
}

static int child_end(struct op *op, int res)
{
	struct crypt_call *c = call_of(op);
	const char *image = c->req->image != NULL ? c->req->image : c->below.tag;
	return luks_child_end(op, &c->child, image, res);
}

static int check_call(struct op *op)
{
	struct crypt_call *c = call_of(op);
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = open_dm(c->crypt, &dm, &c->err);
	if (r < 0)
		return r;
	r = crypt_dev_look(&dm, c->below.tag, c->below.dev.image_ino, &c->dev);
	if (r < 0 || c->dev.half || c->dev.retired || c->dev.foreign)
		return err_sys(&c->err, r < 0 ? r : -ENODEV,
			"looking at the dm-crypt device of %s, which was just made", c->below.tag);
	return 0;
}

static int check_end(struct op *op, int res)
{
	struct crypt_call *c = call_of(op);
	if (res < 0)
		return job_end(op, res);
	bool found = c->child_does != CALL_MAKE;
	c->req->dev = c->below.dev;
	crypt_put_over(&c->dev, &c->req->dev);
	c->req->dev.found = found;
	return 0;
}

static const struct op_step attach_steps[] = {
	{"attach below", .run = below_attach_run, .end = below_end, .undo = below_attach_undo},
	{"look", .call = look_call, .end = job_end, .undo = look_undo},
	{"open", .done = nothing_to_do, .run = child_run, .end = child_end},
	{"check", .call = check_call, .end = check_end},
	{NULL},
};

static int let_go_call(struct op *op)
{
	return let_go(call_of(op));
}

static int below_detach_run(struct op *op)
{
	struct crypt_call *c = call_of(op);
	return c->crypt->below->detach(c->crypt->below, op, &c->below);
}

static int told_run(struct op *op)
{
	struct crypt_call *c = call_of(op);
	c->req->dev.attached = c->below.dev.attached;
	c->req->dev.going_away = c->below.dev.going_away;
	return 0;
}

static const struct op_step detach_steps[] = {
	{"let go", .call = let_go_call, .end = job_end},
	{"detach below", .run = below_detach_run, .end = below_end},
	{"tell", .run = told_run},
	{NULL},
};

static int below_resize_run(struct op *op)
{
	struct crypt_call *c = call_of(op);
	return c->crypt->below->resize(c->crypt->below, op, &c->below);
}

static const struct op_step resize_steps[] = {
	{"resize below", .run = below_resize_run, .end = below_end},
	{"grow", .run = child_run, .end = child_end},
	{"check", .call = check_call, .end = check_end},
	{NULL},
};

static int below_limit_run(struct op *op)
{
	struct crypt_call *c = call_of(op);
	return c->crypt->below->limit(c->crypt->below, op, &c->below);
}

static int below_limit_end(struct op *op, int res)
{
	struct crypt_call *c = call_of(op);
	int r = below_end(op, res);
	if (r < 0)
		return r;
	c->req->dev.limits = c->below.dev.limits;
	c->req->dev.throttled = c->below.dev.throttled;
	return 0;
}

static const struct op_step limit_steps[] = {
	{"limit below", .run = below_limit_run, .end = below_limit_end},
	{NULL},
};

/* ---- requests ---- */

static void give_back(struct crypt *crypt)
{
	list_for_each_safe (l, &crypt->calls) {
		struct crypt_call *c = container_of(l, struct crypt_call, link);
		if (op_running(&c->op))
			continue;
		list_remove(&c->link);
		fd_close(&c->device_fd);
		free(c);
	}
}

/* A request with steps of its own, as the current step of op. */
static int start(struct crypt *crypt, struct op *op, struct backend_req *req, const char *name,
	const struct op_step *steps, struct crypt_call **ret)
{
	give_back(crypt);
	struct crypt_call *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return err_sys(&op->err, -ENOMEM, "serving an encrypted volume");
	c->crypt = crypt;
	c->req = req;
	c->device_fd = -1;
	c->below = *req;
	c->below.encrypted = c->below.format = c->below.raw = false;
	c->below.secret = NULL;
	c->below.dev = crypt_below(crypt->below->type, &req->dev);
	c->below.err = (struct err){0};
	list_push(&crypt->calls, &c->link);
	op_init(&c->op, op->reactor, name, steps, NULL);
	*ret = c;
	return op_child(op, &c->op);
}

static int crypt_attach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	struct crypt *crypt = crypt_of(backend);
	struct crypt_call *c;
	if (!req->encrypted)
		return crypt->below->attach(crypt->below, op, req);
	return start(crypt, op, req, "open encrypted", attach_steps, &c);
}

static int crypt_detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	struct crypt *crypt = crypt_of(backend);
	struct crypt_call *c;
	if (!req->encrypted && !req->dev.crypt)
		return crypt->below->detach(crypt->below, op, req);
	int r = start(crypt, op, req, "close encrypted", detach_steps, &c);
	if (r == OP_PENDING)
		memcpy(c->below.tag, req->dev.tag, sizeof(c->below.tag));
	return r;
}

static int crypt_resize(const struct backend *backend, struct op *op, struct backend_req *req)
{
	struct crypt *crypt = crypt_of(backend);
	struct crypt_call *c;
	if (!req->dev.crypt)
		return crypt->below->resize(crypt->below, op, req);
	int r = start(crypt, op, req, "grow encrypted", resize_steps, &c);
	if (r != OP_PENDING)
		return r;
	memcpy(c->below.tag, req->dev.tag, sizeof(c->below.tag));
	c->child_does = CALL_GROW;
	(void)crypt_dev_names(c->below.tag, req->dev.image_ino, c->order.name, c->order.uuid);
	return r;
}

static int crypt_limit(const struct backend *backend, struct op *op, struct backend_req *req)
{
	struct crypt *crypt = crypt_of(backend);
	struct crypt_call *c;
	if (!req->dev.crypt)
		return crypt->below->limit(crypt->below, op, req);
	int r = start(crypt, op, req, "limit encrypted", limit_steps, &c);
	if (r == OP_PENDING)
		memcpy(c->below.tag, req->dev.tag, sizeof(c->below.tag));
	return r;
}

/* ---- what passes through ---- */

static int crypt_check(const struct backend *backend, bool raw, struct err *err)
{
	const struct backend *below = crypt_of(backend)->below;
	return below->check(below, raw, err);
}

/* dm-crypt itself and libcryptsetup are known when they are loaded, at the first stage. */
static int crypt_check_encrypted(struct err *err)
{
	bool there = access(DM_CONTROL_PATH, F_OK) == 0 && dm_is_loaded();
	return there ? 0 : refuse_encrypted(err);
}

static uint64_t crypt_away_since_ns(const struct backend *backend)
{
	const struct backend *below = crypt_of(backend)->below;
	return below->away_since_ns(below);
}

/* ---- what is there ---- */

static int crypt_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	const struct crypt *crypt = crypt_of(backend);
	return crypt_scan_devices(crypt->below, crypt->open_dm, each, arg, err);
}

static int crypt_look(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	const struct crypt *crypt = crypt_of(backend);
	struct crypt_dev now;
	struct backend_dev found;
	bool stacked = dev->crypt && dev->below_major != 0;
	const struct backend_dev below = crypt_below(crypt->below->type, dev);
	int r = stacked ? crypt_scan_one(crypt->open_dm, dev, &now) : 0;
	if (r == 0)
		r = crypt->below->look(crypt->below, &below, &found);
	if (r < 0)
		return r;
	if (stacked)
		crypt_put_over(&now, &found);
	*ret = found;
	return 0;
}

static int crypt_set_read_only(
	const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	const struct crypt *crypt = crypt_of(backend);
	struct crypt_dev now;
	if (!dev->crypt)
		return crypt->below->set_read_only(crypt->below, dev, read_only);
	int r = crypt_scan_one(crypt->open_dm, dev, &now);
	if (r < 0 || now.read_only == read_only)
		return r;
	return blkdev_set_read_only(dev->path, read_only);
}

/* ---- life ---- */

struct crypt *crypt_open(
	const struct backend *below, int (*open)(struct dm *ret, const char *control_path))
{
	struct crypt *crypt = calloc(1, sizeof(*crypt));
	if (crypt == NULL)
		return NULL;
	crypt->below = below;
	crypt->open_dm = open != NULL ? open : dm_open;
	list_init(&crypt->calls);
	crypt->backend = (struct backend){
		.type = below->type,
		.name = below->name,
		.devices_max = below->devices_max,
		.needs_image_again = below->needs_image_again,
		.away_since_ns = below->away_since_ns != NULL ? crypt_away_since_ns : NULL,
		.check = below->check != NULL ? crypt_check : NULL,
		.check_encrypted = crypt_check_encrypted,
		.attach_call = below->attach_call,
		.attach = crypt_attach,
		.detach = crypt_detach,
		.resize = crypt_resize,
		.limit = below->limit != NULL ? crypt_limit : NULL,
		.scan = crypt_scan,
		.wake = below->wake,
		.look = below->look != NULL ? crypt_look : NULL,
		.set_read_only = crypt_set_read_only,
	};
	backend_add(&crypt->backend);
	return crypt;
}

void crypt_close(struct crypt *crypt)
{
	if (crypt == NULL)
		return;
	give_back(crypt);
	backend_add(crypt->below);
	free(crypt);
}
