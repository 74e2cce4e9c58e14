/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ControllerPublishVolume and ControllerUnpublishVolume (--attach): which nodes a volume is
 * attached to. Served by the driver of the volume's own node, which keeps it durably beside the
 * record (pool/attachment.h).
 *
 * Happy path of a publish: nobody else has the volume -> (another node's, of an encrypted volume
 * that was never used: its header and file system, as its first stage would make them) -> the note,
 * durable -> (another node's: the volume's device is exported to it, node/export.h) -> the answer.
 * For the volume's own node its context is empty: NodeStageVolume does what it does without any of
 * this. For another node it says how that one reaches the device (attach/context.h). Of an
 * unpublish: the export ends, which waits for I/O in flight -> a device that nobody uses any more
 * goes -> the note goes, of one node or of all -> the answer. From the answer on that node cannot
 * write.
 *
 * How it can fail: the volume is another node's now, or in use where no note is; it is on the node
 * in another way; the kernel cannot export; the pool cannot write. All of it can be repeated: what
 * is there already is answered again, and what is not there is gone. A volume that does not exist
 * is on no node. The note comes before the export and goes after it, so that no crash leaves an
 * export that nothing tells of.
 */
#include "attach/context.h"
#include "csi/attach.h"
#include "csi/key.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/volume_op.h"
#include "node/export.h"
#include "node/exports.h"
#include "node/node.h"
#include "pool/attach.h"
#include "pool/index.h"

#include <errno.h>
#include <string.h>

struct attach {
	struct volume_op n;
	const char *node_id; /* "": of an unpublish, all */
	bool own;            /* it is the volume's node */
	struct attachment want;
	char uuid[UUID_BYTES], key[ATTACH_KEY_BYTES];
	struct pool_attach *note; /* under way */
	struct node_export export;
	struct node_export_all ends; /* of an unpublish */
	struct node_let_go let_go;
};

#define attach_of(op_ptr) container_of(volume_op_of(op_ptr), struct attach, n)

static const char *const modes[] = {
	[ATTACHMENT_WRITER] = "SINGLE_NODE_WRITER",
	[ATTACHMENT_READER_ONLY] = "SINGLE_NODE_READER_ONLY",
	[ATTACHMENT_MANY_READERS] = "MULTI_NODE_READER_ONLY",
	[ATTACHMENT_MANY_ONE_WRITER] = "MULTI_NODE_SINGLE_WRITER",
	[ATTACHMENT_MANY_WRITERS] = "MULTI_NODE_MULTI_WRITER",
	[ATTACHMENT_SINGLE_WRITER] = "SINGLE_NODE_SINGLE_WRITER",
	[ATTACHMENT_MULTI_WRITER] = "SINGLE_NODE_MULTI_WRITER",
};

/* ---- the note ---- */

static int note_run(struct op *op, struct attachments *to)
{
	struct attach *a = attach_of(op);
	a->note = pool_attach_new(op->reactor, a->n.volume, to);
	return a->note != NULL ? op_child(op, &a->note->op)
			       : op_fail(op, ERR_NO_ROOM, "out of memory");
}

static int note_end(struct op *op, int res)
{
	struct attach *a = attach_of(op);
	pool_attach_free(a->note);
	a->note = NULL;
	return res;
}

static void cleanup(struct csi_task *task)
{
	struct attach *a = container_of(task, struct attach, n.task);
	pool_attach_free(a->note);
	node_export_free(&a->export);
	explicit_bzero(a->key, sizeof(a->key));
	volume_op_cleanup(task);
}

/* ---- publish ---- */

static struct node *node_of(const struct attach *a)
{
	return a->n.task.csi->node;
}

static const struct attachment *noted(const struct attach *a)
{
	return attachments_find(a->n.volume->attachments, a->node_id);
}

static bool published_done(struct op *op)
{
	return noted(attach_of(op)) != NULL;
}

static bool is_own(struct op *op)
{
	return attach_of(op)->own;
}

static bool checked_done(struct op *op)
{
	return is_own(op) || published_done(op);
}

static int check_run(struct op *op)
{
	struct attach *a = attach_of(op);
	node_export_check_init(&a->export, node_of(a), a->n.volume);
	return op_child(op, &a->export.op);
}

static int publish_run(struct op *op)
{
	struct attach *a = attach_of(op);
	if (!a->own) {
		uuid_draw(a->uuid);
		a->want.export = a->uuid;
		if (!node_of(a)->export_config->without_auth)
			export_key_draw(a->key);
		a->want.key = a->key;
	}
	struct attachments *to = attachments_with(a->n.volume->attachments, &a->want);
	return to != NULL ? note_run(op, to) : op_fail(op, ERR_NO_ROOM, "out of memory");
}

static int publish_undo(struct op *op)
{
	struct attach *a = attach_of(op);
	struct attachments *left = NULL;
	int r = attachments_without(a->n.volume->attachments, a->node_id, &left);
	return r < 0 ? r : note_run(op, left);
}

static int export_run(struct op *op)
{
	struct attach *a = attach_of(op);
	node_export_make_init(&a->export, node_of(a), a->n.volume, noted(a));
	return op_child(op, &a->export.op);
}

static unsigned count_exports(const struct attachments *all)
{
	unsigned count = 0;
	for (unsigned at = 0; attachments_next_exported(all, &at) != NULL; at++)
		count++;
	return count;
}

/* Others that an earlier run has made are still to be looked at. */
static int export_end(struct op *op, int res)
{
	struct attach *a = attach_of(op);
	struct node_volume *nv = node_volume_find(a->n.volume);
	if (res == 0 && nv != NULL && count_exports(a->n.volume->attachments) == 1)
		nv->exported = true;
	return res;
}

/* ---- the answer ---- */

static int put(struct csi_task *task, const char *key, const char *value)
{
	Csi__V1__ControllerPublishVolumeResponse *response = (void *)task->response;
	Csi__V1__StringPair *pair = csi_message_new(task->arena, &csi__v1__string_pair__descriptor);
	const char *copy = arena_strdup(task->arena, value);
	if (pair == NULL || copy == NULL)
		return -1;
	pair->key = csi_bytes(key);
	pair->value = csi_bytes(copy);
	response->publish_context[response->n_publish_context++] = pair;
	return 0;
}

static int answer_run(struct op *op)
{
	struct attach *a = attach_of(op);
	struct csi_task *task = &a->n.task;
	const struct record *rec = a->n.volume->rec;
	const struct attachment *its = noted(a);
	struct export_names names;
	export_names_of(pool_uuid8(a->n.volume->pool), its->export, &names);
	const struct {
		const char *key, *value;
	} all[] = {
		{ATTACH_TRANSPORT, node_of(a)->export_config->tls ? ATTACH_TRANSPORT_TLS
								  : ATTACH_TRANSPORT_TCP},
		{ATTACH_ADDRESS, node_of(a)->export_config->address},
		{ATTACH_SUBSYSTEM, names.subsystem},
		{ATTACH_HOST, names.host},
		{ATTACH_HOST_ID, names.host_id},
		{ATTACH_KEY, its->key},
		{ATTACH_NAMESPACE, its->export},
		{ATTACH_VOLUME_MODE,
			its->block ? ATTACH_VOLUME_MODE_BLOCK : ATTACH_VOLUME_MODE_MOUNT},
		{ATTACH_FS_TYPE, its->block ? "" : fsimg_name(rec->fs)},
		{ATTACH_NODE, task->csi->config.node_id},
		{ATTACH_READ_ONLY, its->read_only ? "true" : ""},
		{ATTACH_ENCRYPTION, rec->encryption != RECORD_PLAIN ? ATTACH_ENCRYPTION_LUKS2 : ""},
	};
	enum { ALL = sizeof(all) / sizeof(all[0]) };
	Csi__V1__ControllerPublishVolumeResponse *response = (void *)task->response;
	response->publish_context =
		arena_alloc(task->arena, ALL * sizeof(*response->publish_context));
	if (response->publish_context == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	for (unsigned i = 0; i < ALL; i++)
		if (all[i].value[0] != '\0' && put(task, all[i].key, all[i].value) < 0)
			return op_fail(op, ERR_NO_ROOM, "out of memory");
	return 0;
}

static bool first_done(struct op *op)
{
	return is_own(op) || volume_op_first_done(op);
}

static bool durable_done(struct op *op)
{
	return is_own(op) || volume_op_durable_done(op);
}

static const struct op_step publish_steps[] = {
	{"key", .run = volume_op_take_key},
	{"check", .done = checked_done, .run = check_run},
	{"make durable", .done = durable_done, .run = volume_op_durable_run},
	{"format", .done = first_done, .run = volume_op_first_run, .end = volume_op_first_end},
	{"note", .done = published_done, .run = publish_run, .end = note_end, .undo = publish_undo},
	{"export", .done = is_own, .run = export_run, .end = export_end, .flags = OP_COMMIT},
	{"answer", .done = is_own, .run = answer_run},
	{NULL},
};

/* ---- may it be there? ---- */

/* It is on the node in just this way, or not at all. */
static int check_same(const struct attach *a, struct err *err)
{
	const struct attachment *has = noted(a);
	if (has == NULL || (has->mode == a->want.mode && has->block == a->want.block &&
				   has->read_only == a->want.read_only))
		return 0;
	return err_set(err, ERR_EXISTS,
		"volume %s is attached to node %.64s already, as a %s volume, %s, %s; ControllerUnpublishVolume first",
		a->n.volume->rec->name, a->node_id, has->block ? "block" : "mount",
		modes[has->mode], has->read_only ? "read-only" : "writable");
}

/* Both are for several nodes, and of those that write there is one, or all may. */
static bool can_share(const struct attachment *one, const struct attachment *other)
{
	bool several =
		one->mode >= ATTACHMENT_MANY_READERS && one->mode <= ATTACHMENT_MANY_WRITERS &&
		other->mode >= ATTACHMENT_MANY_READERS && other->mode <= ATTACHMENT_MANY_WRITERS;
	bool all_write =
		one->mode == ATTACHMENT_MANY_WRITERS && other->mode == ATTACHMENT_MANY_WRITERS;
	return several && (one->read_only || other->read_only || all_write);
}

/* There is one device, which is read-only for all or for nobody, and nvmet takes none that is. */
static int check_device(const struct attach *a, const struct attachment *other, struct err *err)
{
	const char *own_node = a->n.task.csi->config.node_id;
	bool others_own = strcmp(other->node, own_node) == 0;
	const struct attachment *own = a->own ? &a->want : others_own ? other : NULL;
	if (own == NULL || !own->block || !own->read_only)
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"volume %s: its own node, %.64s, cannot have a block volume read-only beside node %.64s",
		a->n.volume->rec->name, own_node, a->own ? other->node : a->node_id);
}

static int check_others(const struct attach *a, struct err *err)
{
	const struct attachments *all = a->n.volume->attachments;
	const char *name = a->n.volume->rec->name;
	for (unsigned i = 0; all != NULL && i < all->count; i++)
		if (strcmp(all->at[i].node, a->node_id) != 0 && can_share(&a->want, &all->at[i]) &&
			check_device(a, &all->at[i], err) < 0)
			return -EBUSY;
	for (unsigned i = 0; all != NULL && i < all->count; i++)
		if (strcmp(all->at[i].node, a->node_id) != 0 && !can_share(&a->want, &all->at[i]))
			return err_set(err, ERR_PRECONDITION,
				"volume %s is attached to node %.64s as %s; ControllerUnpublishVolume first",
				name, all->at[i].node, modes[all->at[i].mode]);
	if (all != NULL && all->count == ATTACHMENTS_MAX && noted(a) == NULL)
		return err_set(err, ERR_NO_ROOM,
			"volume %s is attached to %d nodes, and to no more", name, ATTACHMENTS_MAX);
	return 0;
}

/* The volumes of this driver that are attached to the node. */
static unsigned count_on(const struct csi *csi, const char *node_id)
{
	struct pool_walk walk = {0};
	unsigned count = 0;
	for (struct pool_object *o; (o = pools_next(csi->pools, RECORD_VOLUME, &walk)) != NULL;)
		count += attachments_find(o->attachments, node_id) != NULL;
	return count;
}

static int check_own(const struct attach *a, struct err *err)
{
	const struct csi_config *config = &a->n.task.csi->config;
	if (noted(a) != NULL || config->max_volumes == 0 ||
		count_on(a->n.task.csi, a->node_id) < config->max_volumes)
		return 0;
	return err_set(err, ERR_NO_ROOM,
		"node %.64s has %lld volumes attached already, and --max-volumes-per-node is as many",
		a->node_id, (long long)config->max_volumes);
}

/* Mounted where no attachment says so: from before there were any. */
static int check_unused(const struct attach *a, struct err *err)
{
	const struct csi *csi = a->n.task.csi;
	const struct node_volume *nv = node_volume_find(a->n.volume);
	const char *name = a->n.volume->rec->name;
	if (!node_knows_volume(csi->node, a->n.volume))
		return err_set(err, ERR_UNAVAILABLE,
			"volume %s: devices of an earlier run are still being looked for; try again",
			name);
	if (nv == NULL || list_empty(&nv->mounts) ||
		attachments_find(a->n.volume->attachments, csi->config.node_id) != NULL)
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"volume %s is in use on its own node, %.64s: mounted at %s; unpublish and unstage it there first",
		name, csi->config.node_id,
		container_of(nv->mounts.next, struct node_mount, link)->path);
}

static int check_another(const struct attach *a, struct err *err)
{
	const struct csi_config *config = &a->n.task.csi->config;
	const struct record *rec = a->n.volume->rec;
	const struct node_exports_config *exports = node_of(a)->export_config;
	if (rec->attach == RECORD_ATTACH_LOCAL && !config->clustered)
		return err_set(err, ERR_NOT_FOUND,
			"volume %s: this driver knows one node, its own, which is %.64s and not %.64s",
			rec->name, config->node_id, a->node_id);
	if (rec->attach == RECORD_ATTACH_LOCAL)
		return err_set(err, ERR_PRECONDITION,
			"volume %s is on node %.64s and can be used there alone, not on node %.64s: its class did not say attach: remote when it was made",
			rec->name, config->node_id, a->node_id);
	if (exports == NULL || exports->address == NULL)
		return err_set(err, ERR_PRECONDITION,
			"volume %s is on node %.64s, whose driver exports nothing: give it --export-address",
			rec->name, config->node_id);
	if (a->n.changes_mode)
		return err_set(err, ERR_PRECONDITION,
			"volume %s was made as a block volume, and can be mounted on its own node alone, %.64s",
			rec->name, config->node_id);
	if (node_exports_closed(node_of(a), a->n.volume))
		return err_set(err, ERR_UNAVAILABLE,
			"volume %s: what node %.64s gave to others before it started is not all there yet (its log says what is missing); try again",
			rec->name, config->node_id);
	return check_unused(a, err);
}

static int prepare_publish(struct csi_task *task, struct err *err)
{
	const Csi__V1__ControllerPublishVolumeRequest *req = (const void *)task->request;
	struct attach *a = container_of(task, struct attach, n.task);
	a->node_id = csi_str(req->node_id);
	a->own = strcmp(a->node_id, task->csi->config.node_id) == 0;
	int r = volume_op_find(&a->n, req->volume_capability, err);
	if (r < 0)
		return r;
	a->want = (struct attachment){
		.node = a->node_id,
		.mode = a->n.access.mode,
		.block = a->n.access.block,
		.read_only = req->readonly || a->n.access.read_only,
		.export = "",
		.key = "",
	};
	r = a->own ? check_own(a, err) : check_another(a, err);
	if (r == 0)
		r = check_same(a, err);
	if (r == 0)
		r = check_others(a, err);
	/* Afterwards its own node needs no key. */
	if (r == 0 && !a->own && a->n.volume->rec->unformatted)
		r = csi_key_check(a->n.volume->rec->name, req->secrets, req->n_secrets,
			"controller-publish", err);
	return r;
}

const struct csi_operation csi_controller_publish = {
	sizeof(struct attach), prepare_publish, publish_steps, cleanup};

/* ---- unpublish ---- */

static bool is_meant(const struct attach *a, const struct attachment *one)
{
	return a->node_id[0] == '\0' || strcmp(one->node, a->node_id) == 0;
}

static int end_run(struct op *op)
{
	struct attach *a = attach_of(op);
	node_export_all_init(&a->ends, node_of(a), a->n.volume, node_export_end_init);
	a->ends.only = a->node_id;
	return op_child(op, &a->ends.op);
}

static bool leaves_some(struct op *op)
{
	const struct attach *a = attach_of(op);
	const struct attachments *all = a->n.volume->attachments;
	for (unsigned i = 0; i < all->count; i++)
		if (!is_meant(a, &all->at[i]))
			return true;
	return false;
}

static int let_go_run(struct op *op)
{
	struct attach *a = attach_of(op);
	node_let_go_init(&a->let_go, node_of(a), a->n.volume);
	return op_child(op, &a->let_go.op);
}

static int unpublish_run(struct op *op)
{
	struct attach *a = attach_of(op);
	struct attachments *left = NULL;
	if (a->node_id[0] != '\0' &&
		attachments_without(a->n.volume->attachments, a->node_id, &left) < 0)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	return note_run(op, left);
}

static const struct op_step unpublish_steps[] = {
	{"end export", .run = end_run},
	{"let go", .done = leaves_some, .run = let_go_run},
	{"note", .run = unpublish_run, .end = note_end, .flags = OP_COMMIT},
	{NULL},
};

static int prepare_unpublish(struct csi_task *task, struct err *err)
{
	const Csi__V1__ControllerUnpublishVolumeRequest *req = (const void *)task->request;
	struct attach *a = container_of(task, struct attach, n.task);
	a->node_id = csi_str(req->node_id);
	struct err why = {0};
	int r = pools_find_id(task->csi->pools, RECORD_VOLUME, task->id, &a->n.volume, &why);
	if (r < 0 && why.code == ERR_NOT_FOUND)
		return CSI_ANSWERED;
	if (r < 0) {
		*err = why;
		return r;
	}
	csi_task_names(task, a->n.volume->rec);
	bool there = a->node_id[0] != '\0' ? noted(a) != NULL : a->n.volume->attachments != NULL;
	return there ? pool_check_ready(a->n.volume->pool, err) : CSI_ANSWERED;
}

const struct csi_operation csi_controller_unpublish = {
	sizeof(struct attach), prepare_unpublish, unpublish_steps, cleanup};
