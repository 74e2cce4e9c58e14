/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operations on borrowed volumes share: telling which calls are about one, the calls of
 * attach, and how such a volume is.
 *
 * How it can fail: as a refusal of what the publish_context says, before anything was touched; the
 * owner does not answer, which ends a call with UNAVAILABLE; a call that overstays is written off
 * as any other helper's.
 */
#include "csi/borrow.h"

#include "base/secret.h"
#include "csi/attach.h"
#include "csi/cover.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "pool/arrival.h"
#include "pool/index.h"
#include "transfer/transfer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
	CONTEXT_MAX = 64,      /* entries that are looked at */
	IO_ERRORS_MS = 600000, /* an error counts for so long */
};

_Static_assert((int)BORROWED_ID_BYTES >= (int)RECORD_ID_MAX, "whole ids");

/* ---- whose call it is ---- */

static size_t context_of(const ProtobufCMessage *request, struct attach_pair pairs[CONTEXT_MAX])
{
	const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
		request->descriptor, "publish_context");
	if (field == NULL)
		return 0;
	size_t n = *(const size_t *)((const char *)request + field->quantifier_offset);
	Csi__V1__StringPair **entries =
		*(Csi__V1__StringPair * *const *)((const char *)request + field->offset);
	size_t count = 0;
	for (size_t i = 0; i < n && count < CONTEXT_MAX; i++) {
		const char *key = csi_str(entries[i]->key);
		/* Others', of whatever number. */
		if (strncmp(key, ATTACH_CONTEXT_PREFIX, strlen(ATTACH_CONTEXT_PREFIX)) == 0)
			pairs[count++] = (struct attach_pair){key, csi_str(entries[i]->value)};
	}
	return count;
}

bool csi_is_borrowed(
	const struct csi *csi, const struct csi_rpc *rpc, const ProtobufCMessage *request)
{
	struct attach_pair pairs[CONTEXT_MAX];
	const char *id = csi_field(request, rpc->id);
	const struct borrowed *one = csi_cover_of(csi, id);
	bool given = attach_terms_given(pairs, context_of(request, pairs));
	struct pool_object *own;
	struct err ignored = {0};
	if (one == NULL && !given && !csi->borrows->blind)
		return false;
	if (pools_find_id(csi->pools, RECORD_VOLUME, id, &own, &ignored) < 0)
		return one != NULL || given || pools_id_elsewhere(csi->pools, id);
	/* What this driver has itself is asked for, also where another driver uses it from here,
	 * and whatever publish_context says: it may be from before the volume has moved here. But
	 * for one that was in use here when it did. */
	return one != NULL && (one->local || (one->suspended && csi_attach_own(csi, own) != NULL));
}

/* ---- finding ---- */

struct borrowed *borrow_entry(const struct borrow_op *b)
{
	return borrows_find(b->borrows, b->tag);
}

static void put_dev(struct borrow_op *b, const struct borrowed *one)
{
	struct backend_dev *dev = &b->n.dev.dev;
	*dev = (struct backend_dev){
		.attached = true,
		.major = one->major,
		.minor = one->minor,
		.size_bytes = one->size_bytes,
	};
	snprintf(dev->path, sizeof(dev->path), "%s", one->path);
}

int borrow_find(struct borrow_op *b, struct err *err)
{
	struct csi_task *task = &b->n.task;
	b->borrows = task->csi->borrows;
	task->lane = b->borrows->lane;
	if (!csi_cover_tag(task->id, b->tag))
		return err_set(err, ERR_NOT_FOUND, "volume %.200s does not exist", task->id);
	struct borrowed *one = borrow_entry(b);
	if (one != NULL)
		snprintf(one->id, sizeof(one->id), "%s", task->id);
	if (one != NULL && one->suspended)
		return err_set(err, ERR_UNAVAILABLE,
			"volume %s is moving to this node, and its I/O waits for that; try again",
			task->id);
	if (one != NULL)
		put_dev(b, one);
	else if (b->borrows->blind)
		return err_set(err, ERR_UNAVAILABLE,
			"volume %s: the device mapper did not say which volumes of other nodes are in use here: mend that (see the log of the driver's start), and start the driver anew",
			task->id);
	return 0;
}

static int check_use(struct borrow_op *b, struct err *err)
{
	const struct attach_terms *terms = &b->take.terms;
	const struct csi_access *access = &b->n.access;
	const char *id = b->n.task.id;
	if (access->block != terms->block)
		return err_set(err, ERR_PRECONDITION,
			"volume %s was made as a %s volume and cannot be used as a %s volume on another node than its own",
			id, terms->block ? "block" : "mount", access->block ? "block" : "mount");
	if (!access->block && access->fs != terms->fs)
		return err_set(err, ERR_PRECONDITION, "volume %s holds %s, fs_type asks for %s", id,
			fsimg_name(terms->fs), fsimg_name(access->fs));
	b->n.fs = terms->fs;
	b->n.access.read_only |= terms->read_only;
	return 0;
}

/* It is in a pool of this node by now: what its owner said of it then says its record. */
static int own_terms(struct borrow_op *b, struct err *err)
{
	const struct csi *csi = b->n.task.csi;
	struct attach_terms *terms = &b->take.terms;
	struct pool_object *own;
	int r = pools_find_id(csi->pools, RECORD_VOLUME, b->n.task.id, &own, err);
	if (r < 0)
		return r;
	const struct attachment *its = csi_attach_own(csi, own);
	terms->fs = own->rec->fs;
	terms->block = own->rec->fs == FSIMG_NONE;
	terms->encrypted = own->rec->encryption != RECORD_PLAIN;
	terms->read_only = its != NULL && its->read_only;
	snprintf(terms->node, sizeof(terms->node), "%s", csi->config.node_id);
	return 0;
}

/* A volume that may have left its node is used over this one's pool, or not at all: what was
 * written over a new connection would be lost. While a pool is not ready nobody knows; but what a
 * driver before this one held still is that no more after a while. */
static bool is_arriving(const struct csi *csi, const char *id)
{
	const struct pool *pool;
	struct record_id parsed;
	uint64_t ns = ring_now_ns(csi->reactor->ring) - csi->start_ns;
	bool fresh = ns < TRANSFER_STILL_MS * UINT64_C(1000000);
	if (csi->transfer == NULL || record_id_parse(id, &parsed) < 0)
		return false;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++) {
		if (pool_state(pool) != POOL_READY && fresh)
			return true;
		for (const struct pool_arrival *a = NULL; (a = pool_arrival_next(pool, a)) != NULL;)
			if (strcmp(a->key, parsed.key) == 0)
				return true;
	}
	return false;
}

int borrow_find_terms(struct borrow_op *b, const Csi__V1__VolumeCapability *cap, struct err *err)
{
	struct csi_task *task = &b->n.task;
	struct attach_pair pairs[CONTEXT_MAX];
	size_t n = context_of(task->request, pairs);
	int r = borrow_find(b, err);
	const struct borrowed *one = r == 0 ? borrow_entry(b) : NULL;
	if (r == 0 && one != NULL && one->local)
		r = own_terms(b, err);
	else if (r == 0 && one == NULL && is_arriving(task->csi, task->id))
		r = err_set(err, ERR_UNAVAILABLE,
			"volume %s is moving to this node, or may be; try again", task->id);
	else if (r == 0 && attach_terms_given(pairs, n))
		r = attach_terms_parse(pairs, n, &b->take.terms, err);
	else if (r == 0)
		r = err_set(err, ERR_INVALID,
			"publish_context: %s is missing, and volume %s is on another node",
			ATTACH_TRANSPORT, task->id);
	if (r == 0)
		r = csi_access_parse_many(cap, b->take.terms.fs, true, &b->n.access, err);
	if (r == 0)
		r = check_use(b, err);
	b->take.waits = b->borrows->waits;
	b->take.read_only = b->n.access.read_only;
	return r;
}

void borrow_cleanup(struct csi_task *task)
{
	struct borrow_op *b = container_of(task, struct borrow_op, n.task);
	secret_wipe(b->take.terms.key, sizeof(b->take.terms.key));
	volume_op_cleanup(task);
	if (b->counted)
		b->borrows->busy--;
}

/* ---- calls ---- */

/* By the volume's id, as its mounts: one after the other. */
int borrow_call(struct op *op, enum attach_call call, uint64_t timeout_ms)
{
	struct borrow_op *b = borrow_of(op);
	const struct borrowed *one = borrow_entry(b);
	memcpy(b->ask.tag, b->tag, sizeof(b->ask.tag));
	memcpy(b->take.tag, b->tag, sizeof(b->take.tag));
	if (one != NULL)
		memcpy(b->ask.subsystem, one->subsystem, sizeof(b->ask.subsystem));
	bool take = call == ATTACH_TAKE || call == ATTACH_OPENED;
	return volume_op_helper_by(op, b->n.task.id, (enum mnt_call)call,
		take ? (const void *)&b->take : &b->ask, take ? sizeof(b->take) : sizeof(b->ask),
		&b->info, sizeof(b->info), timeout_ms);
}

int borrow_call_end(struct op *op, int res, const char *what)
{
	struct borrow_op *b = borrow_of(op);
	struct borrowed *one = borrow_entry(b);
	if (one != NULL && res != -ETIMEDOUT)
		one->hanging_ns = 0;
	if (res == 0)
		return 0;
	if (one != NULL && one->hanging_ns == 0 && res == -ETIMEDOUT)
		one->hanging_ns = ring_now_ns(op->reactor->ring);
	b->info.err.message[sizeof(b->info.err.message) - 1] = '\0';
	if (res != -ETIMEDOUT && b->info.err.code != ERR_OK)
		return op_fail(
			op, b->info.err.code, "volume %s: %s", b->n.task.id, b->info.err.message);
	if (res == -ETIMEDOUT)
		return op_fail(op, ERR_TIMEOUT,
			"volume %s: %s hangs: the node that has it does not answer, or its I/O is waited for; see the kernel log",
			b->n.task.id, what);
	return op_fail_sys(op, res, "volume %s: %s", b->n.task.id, what);
}

/* While one connects or disconnects nothing is a leftover. */
static void count_busy(struct borrow_op *b, bool busy)
{
	if (busy != b->counted)
		b->borrows->busy += busy ? 1 : -1U;
	b->counted = busy;
}

int borrow_take_run(struct op *op)
{
	struct borrow_op *b = borrow_of(op);
	count_busy(b, true);
	return borrow_call(op, ATTACH_TAKE, ATTACH_TAKE_TIMEOUT_MS);
}

int borrow_put(struct op *op)
{
	struct borrow_op *b = borrow_of(op);
	struct borrowed *one = borrows_put(b->borrows, b->tag, &b->info);
	if (one == NULL) {
		borrows_doubt(b->borrows);
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	}
	put_dev(b, one);
	return 0;
}

int borrow_take_end(struct op *op, int res)
{
	struct borrow_op *b = borrow_of(op);
	secret_wipe(b->take.terms.key, sizeof(b->take.terms.key));
	count_busy(b, false);
	if (res < 0)
		borrows_doubt(b->borrows);
	int r = borrow_call_end(op, res, "connecting");
	if (r < 0)
		return r;
	r = borrow_put(op);
	struct borrowed *one = borrow_entry(b);
	if (r < 0 || one == NULL)
		return r;
	snprintf(one->id, sizeof(one->id), "%s", b->n.task.id);
	one->block = b->n.access.block;
	snprintf(one->node, sizeof(one->node), "%s", b->take.terms.node);
	return 0;
}

/* What an earlier attempt has taken is not given back because this one failed. */
int borrow_take_undo(struct op *op)
{
	return borrow_of(op)->info.found ? 0 : borrow_give_run(op);
}

int borrow_give_run(struct op *op)
{
	struct borrow_op *b = borrow_of(op);
	count_busy(b, true);
	if (op->phase == OP_UNDOING) /* whose end nobody hears of */
		borrows_drop(b->borrows, borrow_entry(b));
	return borrow_call(op, ATTACH_GIVE, ATTACH_GIVE_TIMEOUT_MS);
}

int borrow_give_end(struct op *op, int res)
{
	struct borrow_op *b = borrow_of(op);
	count_busy(b, false);
	if (res < 0)
		borrows_doubt(b->borrows);
	int r = borrow_call_end(op, res, "disconnecting");
	if (r == 0)
		borrows_drop(b->borrows, borrow_entry(b));
	return r;
}

bool borrow_clean_done(struct op *op)
{
	return !borrow_of(op)->n.result.grown;
}

int borrow_clean_run(struct op *op)
{
	struct borrow_op *b = borrow_of(op);
	node_on(&b->on, b->path, &b->n.dev.dev);
	return volume_op_helper(op, MNT_CLEAN, &b->on, sizeof(b->on), CSI_GROW_TIMEOUT_MS);
}

/* Somebody else's freeze writes the log as well. */
int borrow_clean_end(struct op *op, int res)
{
	return res == 0 || res == -EBUSY || res == -EOPNOTSUPP
		       ? 0
		       : volume_op_fail(op, res, "freeze", borrow_of(op)->path);
}

/* ---- how it is ---- */

static void add(struct node_condition *ret, unsigned *count, enum node_condition_kind kind,
	const char *reason)
{
	ret[(*count)++] = (struct node_condition){
		.kind = kind,
		.reason = reason != NULL ? reason : node_condition_names[kind],
	};
}

/* "node b (traddr=...)" as far as it is known. */
static const char *owner_shown(
	struct arena *arena, const struct borrow_op *b, const struct borrowed *one)
{
	const char *name = one != NULL && one->node[0] != '\0' ? one->node : NULL;
	const char *address = b->info.ctrl.address;
	const char *shown = arena_printf(arena, "%s%s%s%s%s", name != NULL ? "node " : "its node",
		name != NULL ? name : "", address[0] != '\0' ? " (" : "", address,
		address[0] != '\0' ? ")" : "");
	return shown != NULL ? shown : "its node";
}

static bool has_errors(const struct borrow_op *b, const struct borrowed *one)
{
	struct probe_counters now;
	if (one == NULL || b->borrows->probes == NULL ||
		probes_read(b->borrows->probes, one->major, one->minor, &now) < 0 || !now.exact)
		return false;
	uint64_t now_ns = ring_now_ns(b->borrows->reactor->ring), last_ns = 0;
	for (unsigned i = 0; i < PROBE_OPS; i++)
		if (now.op[i].last_error_ns > last_ns)
			last_ns = now.op[i].last_error_ns;
	return last_ns != 0 && now_ns < last_ns + IO_ERRORS_MS * UINT64_C(1000000);
}

unsigned borrow_conditions(struct arena *arena, const struct borrow_op *b,
	const struct mnt_info *info, struct node_condition ret[NODE_CONDITION_KINDS])
{
	const struct borrowed *one = borrow_entry(b);
	const char *owner = owner_shown(arena, b, one);
	unsigned count = 0;
	bool connected = b->info.ctrl.name[0] != '\0' && strcmp(b->info.ctrl.state, "live") == 0;
	if (!b->info.alive)
		add(ret, &count, NODE_DEVICE_GONE,
			arena_printf(arena,
				"the volume's device is gone: %s does not give it to this node any more, or did not answer for too long; stop the pods that use it, so that it is unstaged and attached anew",
				owner));
	else if (!connected && !b->info.local)
		add(ret, &count, NODE_DEVICE_UNSERVED,
			arena_printf(arena,
				"%s, which has the volume, does not answer: its I/O waits, for %" PRIu32
				" s at most; look after that node and the network between",
				owner, b->borrows->waits.loss_s));
	if (one != NULL && one->hanging_ns != 0)
		add(ret, &count, NODE_HANGING,
			"calls on the volume hang: look for errors in the kernel log, and after the node that has it");
	if (info != NULL && info->shut_down)
		add(ret, &count, NODE_FS_SHUT_DOWN,
			"the file system has shut down after an error: stop the pods that use it, so that it is unstaged and mounted anew");
	else if (info != NULL && info->fs_read_only && !info->is_block && one != NULL &&
		 !one->read_only)
		add(ret, &count, NODE_FS_READ_ONLY,
			"the file system has turned read-only: stop the pods that use it, so that it is unstaged, checked and mounted anew");
	if (has_errors(b, one))
		add(ret, &count, NODE_IO_ERRORS,
			"I/O errors in the last ten minutes: look for errors in the kernel log of this node and of the one that has the volume");
	return count;
}
