/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CreateVolume: empty, from a snapshot, a clone of a volume, or as the golden image that the class
 * names. Idempotent by name.
 *
 * Happy path: look the name up (found and alike: the same answer, once its source is not left
 * frozen) -> (the source is on another node, which has been offered: ask that what it is) ->
 * plan: pool, size, file system -> (clone: measure, quiesce the source) -> (a block
 * volume becomes a mounted one: look what it holds) -> build (format, share, copy or pull; the link
 * is the commit) -> (release the source) -> answer.
 *
 * How it can fail: the request contradicts itself, the pool, the source or an existing volume of
 * that name; no room; the source cannot be quiesced. Until the commit nothing has a name, so
 * nothing is left; a source is released whatever happens.
 */
#include "base/fd.h"
#include "csi/creation.h"
#include "csi/image.h"
#include "csi/messages.h"
#include "csi/params.h"
#include "csi/remote.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/topology.h"
#include "node/export.h"
#include "node/volume.h"
#include "pool/golden.h"
#include "pool/index.h"

#include <errno.h>
#include <fcntl.h>

struct create {
	struct csi_creation base;
	const Csi__V1__CreateVolumeRequest *req;
	struct csi_access access;
	struct csi_params params;
	enum record_source source_kind;
	const char *image; /* the golden image that the class names; "": another source, or none */
	struct err no_image;      /* why there is none of that name to make it of */
	const char *source_field; /* of the request, for messages */
	/* the plan */
	struct pool *pool;
	struct record rec;
	bool changes_mode; /* the source is a block volume's, and is to be mounted */
	int source_dirfd;
	struct fsimg_probe probe;
	struct pool_format format;
	struct remote remote;
	struct err elsewhere; /* why this node cannot make it, if it is not here already */
};

#define create_of(op_ptr) container_of(creation_of(op_ptr), struct create, base)

/* ---- the request ---- */

/* The golden image that the class names. Of what is finished it is only compared: the image may be
 * gone by then. */
static void find_image(struct create *c)
{
	c->image = c->params.source;
	c->source_kind = RECORD_SOURCE_SNAPSHOT;
	c->source_field = "parameters: source";
	(void)csi_image_find(c->base.task.csi, c->base.task.arena, c->image, c->base.name,
		&c->base.source_id, &c->no_image);
}

/* The claim's own source goes before the class's. */
static int parse_source(struct create *c, struct err *err)
{
	const Csi__V1__VolumeContentSource *source = c->req->volume_content_source;
	c->base.source_id = c->image = "";
	c->source_field = "volume_content_source";
	if (source == NULL && c->params.source[0] != '\0')
		find_image(c);
	if (source == NULL)
		return 0;
	if (source->type_case == CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_SNAPSHOT) {
		c->source_kind = RECORD_SOURCE_SNAPSHOT;
		c->base.source_id = csi_str(source->snapshot->snapshot_id);
	} else if (source->type_case == CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_VOLUME) {
		c->source_kind = RECORD_SOURCE_VOLUME;
		c->base.source_id = csi_str(source->volume->volume_id);
	} else {
		return err_set(
			err, ERR_INVALID, "volume_content_source: neither a snapshot nor a volume");
	}
	if (c->base.source_id[0] == '\0')
		return err_set(err, ERR_INVALID, "volume_content_source: %s_id is missing",
			c->source_kind == RECORD_SOURCE_SNAPSHOT ? "snapshot" : "volume");
	return 0;
}

/* Who may be attached to other nodes has to be exported to them. */
static int check_attach(const struct create *c, struct err *err)
{
	const struct node_exports_config *exports = c->base.task.csi->node->export_config;
	bool remote = c->params.attach == RECORD_ATTACH_REMOTE;
	int r = csi_access_check_nodes(&c->access, remote, err);
	if (r < 0 || !remote)
		return r;
	if (exports == NULL || exports->address == NULL)
		return err_set(err, ERR_PRECONDITION,
			"parameters: attach: remote needs a driver with %s",
			exports == NULL ? "--attach and --export-address" : "--export-address");
	return 0;
}

static int parse(struct create *c, struct err *err)
{
	const Csi__V1__CreateVolumeRequest *req = c->req;
	uint64_t size, limit;
	int r = csi_access_parse_list(req->volume_capabilities, req->n_volume_capabilities,
		FSIMG_EXT4, c->base.task.csi->config.attach, &c->access, err);
	if (r == 0)
		r = csi_params_parse(req->parameters, req->n_parameters, &c->params, err);
	if (r == 0)
		r = csi_params_parse_mutable(
			req->mutable_parameters, req->n_mutable_parameters, &c->params, err);
	c->params.given |= CSI_LIMITS; /* those it does not name it wants none of */
	if (r == 0)
		r = check_attach(c, err);
	if (r == 0)
		r = csi_capacity(
			req->capacity_range, CSI_SIZE_DEFAULT, CSI_SIZE_MIN, &size, &limit, err);
	if (r == 0)
		r = parse_source(c, err);
	if (r < 0)
		return r;
	r = csi_check_topology(
		req->accessibility_requirements, &c->base.task.csi->config, &c->elsewhere);
	if (r == 0 || c->elsewhere.code == ERR_NO_ROOM)
		return 0;
	*err = c->elsewhere;
	return r;
}

static enum record_kind source_object_kind(const struct create *c)
{
	return c->source_kind == RECORD_SOURCE_SNAPSHOT ? RECORD_SNAPSHOT : RECORD_VOLUME;
}

/* ---- look up ---- */

static int compare_size(const struct create *c, const struct record *rec, struct err *err)
{
	const Csi__V1__CapacityRange *range = c->req->capacity_range;
	if (range == NULL)
		return 0;
	if (range->required_bytes > (int64_t)rec->size_bytes)
		return err_set(err, ERR_EXISTS,
			"volume %s exists with %llu bytes, required_bytes asks for %lld", rec->name,
			(unsigned long long)rec->size_bytes, (long long)range->required_bytes);
	if (range->limit_bytes != 0 && range->limit_bytes < (int64_t)rec->size_bytes)
		return err_set(err, ERR_EXISTS,
			"volume %s exists with %llu bytes, limit_bytes allows %lld", rec->name,
			(unsigned long long)rec->size_bytes, (long long)range->limit_bytes);
	return 0;
}

static bool same_source(const struct create *c, const struct record *rec)
{
	if (c->image[0] != '\0')
		return csi_image_made(rec, c->image);
	return rec->source == c->source_kind && strcmp(rec->source_id, c->base.source_id) == 0;
}

static int look_up_run(struct op *op)
{
	struct create *c = create_of(op);
	struct pool_object *volume;
	int r = creation_find(&c->base, &volume, &op->err);
	if (r < 0)
		return r;
	/* One that has moved here may have been asked for where it was. */
	if (c->elsewhere.code != ERR_OK && (volume == NULL || volume->rec->moves == 0))
		return op_fail(op, c->elsewhere.code, "%s", c->elsewhere.message);
	if (volume == NULL && c->image[0] != '\0' && c->base.source_id[0] == '\0')
		return op_fail(
			op, c->no_image.code, "%s: %s", c->source_field, c->no_image.message);
	if (volume == NULL)
		return 0;
	if (!same_source(c, volume->rec))
		r = op_fail(op, ERR_EXISTS, "volume %s exists with another content source",
			c->base.name);
	if (r == 0)
		r = csi_params_compare(&c->params, &c->access, volume, &op->err);
	if (r == 0)
		r = compare_size(c, volume->rec, &op->err);
	if (r == 0)
		r = node_check_whole(volume, &op->err);
	if (r == 0)
		c->base.object = volume;
	return r;
}

static bool leftover_done(struct op *op)
{
	return !creation_exists(op) || create_of(op)->source_kind != RECORD_SOURCE_VOLUME;
}

/* ---- plan ---- */

/* The code is the one by which external-provisioner has the pod scheduled anew. A retry may choose
 * this node again: what steers the scheduler is said to whoever reads the event. */
static int refuse_elsewhere(const struct create *c, struct err *err)
{
	struct record_id id;
	(void)record_id_parse(c->base.source_id, &id); /* it has just been parsed */
	bool snapshot = c->source_kind == RECORD_SOURCE_SNAPSHOT;
	return err_set(err, ERR_NO_ROOM,
		"volume_content_source: the data of %s %s is not on node %s, none of its pools has the "
		"uuid %s...; a copy is made where its source is. Schedule the pod there: %s",
		snapshot ? "snapshot" : "volume", c->base.source_id,
		c->base.task.csi->config.node_id, id.pool,
		snapshot ? "snapshot topology does it, or a nodeSelector for the node that took it"
			 : "the source's PersistentVolume names the node in its nodeAffinity");
}

static bool is_here(const struct create *c)
{
	return c->source_kind == RECORD_SOURCE_NONE ||
	       !pools_id_elsewhere(c->base.task.csi->pools, c->base.source_id);
}

static bool ask_done(struct op *op)
{
	return creation_exists(op) || is_here(create_of(op));
}

static int ask_run(struct op *op)
{
	struct create *c = create_of(op);
	struct transfer *transfer = c->base.task.csi->transfer;
	struct offer offer;
	if (transfer == NULL || !offer_find(transfer, c->base.source_id, c->base.name, &offer))
		return refuse_elsewhere(c, &op->err);
	return remote_open(op, &c->remote, &c->base, &offer);
}

static int ask_end(struct op *op, int res)
{
	struct create *c = create_of(op);
	return remote_open_end(&c->remote, &c->base, res);
}

static bool leftover_offer_done(struct op *op)
{
	return !creation_exists(op) || is_here(create_of(op));
}

static int leftover_offer_run(struct op *op)
{
	struct create *c = create_of(op);
	remote_leftover(&c->remote, &c->base);
	return 0;
}

static int let_go_run(struct op *op)
{
	return remote_close(op, &create_of(op)->remote);
}

static bool let_go_done(struct op *op)
{
	return !create_of(op)->remote.used;
}

/* What is told expires, and what is not told, too. */
static int let_go_end(struct op *op, int res)
{
	(void)op;
	(void)res;
	return 0;
}

/* One of this node is found, locked by its id; another node's is known by now. */
static int find_source(struct create *c, struct err *err)
{
	struct node_source *source = &c->base.source;
	if (c->remote.used)
		return 0;
	int r = node_source_find(source, c->base.task.csi->node, source_object_kind(c),
		c->base.source_id, c->params.thick, err);
	if (r < 0)
		return r;
	c->pool = source->object->pool;
	if (c->params.pool_given && strcmp(c->params.pool, pool_name(c->pool)) != 0)
		return err_set(err, ERR_INVALID,
			"parameters: pool is %s, but the content source lies in pool %s; a copy stays in its pool",
			c->params.pool, pool_name(c->pool));
	return 0;
}

static int plan_source(struct create *c, struct err *err)
{
	if (c->source_kind == RECORD_SOURCE_NONE)
		return 0;
	int r = find_source(c, err);
	if (r < 0)
		return r;
	const struct record *from = c->base.source.rec;
	if (from->kind != source_object_kind(c))
		return err_set(err, ERR_NOT_FOUND, "%s: %s is no %s", c->source_field,
			c->base.source_id,
			c->source_kind == RECORD_SOURCE_SNAPSHOT ? "snapshot" : "volume");
	if (c->image[0] != '\0' && !golden_is(from->key, from->source_id))
		return err_set(err, ERR_PRECONDITION,
			"%s: %s is no golden image: ringvol import makes those", c->source_field,
			c->base.source_id);
	if (c->params.encryption != from->encryption)
		return err_set(err, ERR_INVALID,
			"%s: %s is %s, and so is what is made of it: use a class with encryption: %s",
			c->source_field, from->name,
			from->encryption == RECORD_PLAIN ? "not encrypted" : "encrypted",
			from->encryption == RECORD_PLAIN ? "none" : "luks2");
	c->changes_mode = !c->access.block && from->fs == FSIMG_NONE;
	/* Whether there is a file system in it cannot be seen without its key. */
	if (c->changes_mode && from->encryption != RECORD_PLAIN)
		return err_set(err, ERR_INVALID,
			"%s: %s is an encrypted block volume's, which becomes no mount volume: ask for a block volume",
			c->source_field, from->name);
	if (c->changes_mode && !c->params.allow_mode_change)
		return err_set(err, ERR_INVALID,
			"%s: %s is a block volume's; it becomes a mount volume only if the class says allowVolumeModeChange: \"true\", as the kernel will mount what the block volume's user wrote",
			c->source_field, from->name);
	if (c->params.block_size != 0 && c->params.block_size != from->block_size)
		return err_set(err, ERR_INVALID,
			"parameters: blockSize is %u, but the content source was made for %u",
			c->params.block_size, from->block_size);
	return 0;
}

static int check_raw_source(const struct create *c, struct err *err)
{
	if (!pool_is_raw(c->pool))
		return 0;
	if (c->remote.used)
		return err_set(err, ERR_PRECONDITION,
			"%s: it is on another node, and pool %s is on raw disks, which take no copies from other nodes yet: use a pool in a directory",
			c->source_field, pool_name(c->pool));
	if (c->changes_mode)
		return err_set(err, ERR_PRECONDITION,
			"%s: %s is a block volume of pool %s, which is on raw disks; there a copy of it becomes no mount volume: ask for a block volume",
			c->source_field, c->base.source.rec->name, pool_name(c->pool));
	return 0;
}

static int plan_pool(struct create *c, struct err *err)
{
	bool raw = csi_is_raw_here(c->base.task.csi, c->access.block);
	struct csi_params *params = &c->params;
	if (c->pool == NULL)
		c->pool = pools_by_name(c->base.task.csi->pools, params->pool);
	if (c->pool == NULL)
		return err_set(err, ERR_INVALID, "parameters: this node has no pool %s%s",
			strlen(params->pool) <= 64 ? params->pool : "of that name",
			params->pool_given ? "" : "; say which with the parameter pool");
	/* While it was never read, it is not known whether it is on raw disks. */
	int r = pool_check_ready(c->pool, err);
	if (r == 0)
		r = csi_params_settle(params, c->pool, err);
	if (r == 0)
		r = csi_params_check_pool(params, c->pool, raw, err);
	if (r == 0 && params->encryption != RECORD_PLAIN && csi_is_node(c->base.task.csi))
		r = backend_check_encrypted(params->device, err);
	if (r == 0)
		r = check_raw_source(c, err);
	if (r < 0)
		return r;
	if (params->erase != RECORD_ERASE_NONE && c->base.source.share)
		return err_set(err, ERR_PRECONDITION,
			"parameters: eraseOnDelete would erase nothing of what is shared with the content source; ask for provisioning thick, which copies");
	return 0;
}

/* dm-crypt has one initialisation vector a sector: larger ones are encrypted faster. */
static uint32_t default_block_size(const struct create *c)
{
	return c->params.encryption != RECORD_PLAIN ? 4096 : pool_block_size(c->pool);
}

/* What the volume will be: c->rec, and c->pool. */
static int plan_record(struct create *c, struct err *err)
{
	const struct record *from = c->base.source.rec;
	enum fsimg_type fs;
	int r = csi_params_choose_fs(
		&c->params, &c->access, from != NULL ? from->fs : FSIMG_NONE, &fs, err);
	if (r < 0)
		return r;
	if (from != NULL && fs != from->fs && !c->access.block && !c->changes_mode)
		return err_set(err, ERR_INVALID, "%s: %s holds %s, the request asks for %s",
			c->source_field, from->name, fsimg_name(from->fs), fsimg_name(fs));
	uint64_t min = fs == FSIMG_NONE ? 0 : fsimg_min_bytes(fs), size = 0, limit;
	if (min < CSI_SIZE_MIN)
		min = CSI_SIZE_MIN;
	if (from != NULL && min < from->size_bytes)
		min = from->size_bytes;
	r = csi_capacity(c->req->capacity_range, from != NULL ? min : CSI_SIZE_DEFAULT, min, &size,
		&limit, err);
	c->rec = (struct record){
		.kind = RECORD_VOLUME,
		.name = c->base.name,
		.size_bytes = size,
		.fs = fs,
		.block_size = from != NULL                ? from->block_size
			      : c->params.block_size != 0 ? c->params.block_size
							  : default_block_size(c),
		.thick = c->params.thick,
		.device = c->params.device,
		.erase = c->params.erase,
		.snapshot_freeze = c->params.snapshot_freeze,
		.allow_mode_change = c->params.allow_mode_change,
		.encryption = c->params.encryption,
		.attach = c->params.attach,
		.limits = c->params.limits,
		.unformatted =
			c->params.encryption != RECORD_PLAIN && (from == NULL || from->unformatted),
		.mkfs_options = fs == FSIMG_NONE ? "" : c->params.mkfs_options,
		.source = c->source_kind,
		.source_id = c->base.source_id,
		.shares_extents = c->base.source.share,
		.family = "",
		.claim = c->base.task.claim,
	};
	return r;
}

static int plan_run(struct op *op)
{
	struct create *c = create_of(op);
	int r = plan_source(c, &op->err);
	if (r == 0)
		r = plan_pool(c, &op->err);
	return r == 0 ? plan_record(c, &op->err) : r;
}

/* ---- from block to mount ---- */

static bool probe_done(struct op *op)
{
	const struct create *c = create_of(op);
	return creation_exists(op) || !c->changes_mode || c->remote.used;
}

static int probe_job(void *arg)
{
	struct create *c = arg;
	_cleanup_fd_ int fd = openat(
		c->source_dirfd, c->base.source.object->key, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fsimg_probe_fd(fd, &c->probe);
}

static int probe_run(struct op *op)
{
	struct create *c = create_of(op);
	c->source_dirfd = pool_dirfd(c->pool, c->base.source.object->kind);
	return op_work(op, probe_job, c);
}

/* The type asked for, or whatever it holds. */
static int check_probe(struct op *op, struct create *c, const struct fsimg_probe *probe)
{
	const char *name = c->base.source.rec->name;
	bool given = c->access.fs_given || c->params.fs_given;
	const char *unfit = fsimg_why_unfit(probe);
	if (unfit != NULL)
		return op_fail(op, ERR_INVALID, "%s: %s is not to be mounted: its file system %s",
			c->source_field, name, unfit);
	if (probe->ambivalent || probe->type == FSIMG_NONE || (given && probe->type != c->rec.fs))
		return op_fail(op, ERR_INVALID, "%s: %s is to be mounted as %s and holds %s%s",
			c->source_field, name, given ? fsimg_name(c->rec.fs) : "ext4, xfs or btrfs",
			probe->ambivalent ? "contradicting signatures, one of them " : "",
			probe->found[0] != '\0' ? probe->found : "no file system");
	c->rec.fs = probe->type;
	return 0;
}

static int probe_end(struct op *op, int res)
{
	struct create *c = create_of(op);
	if (res < 0)
		return op_fail_sys(
			op, res, "%s: looking for a file system on it", c->base.source.rec->name);
	return check_probe(op, c, &c->probe);
}

/* The same of what was pulled: the build has its record by then. */
static int check_pulled(struct op *op, void *arg)
{
	struct create *c = arg;
	struct pool_build *build = &c->base.build;
	int r = check_probe(op, c, &c->remote.probe);
	struct record with = *build->rec;
	with.fs = c->rec.fs;
	struct record *made = r == 0 ? record_new(&with) : NULL;
	if (made == NULL)
		return r < 0 ? r : -ENOMEM;
	record_free(build->rec);
	build->rec = made;
	return 0;
}

/* ---- build ---- */

static void fill_format(struct create *c)
{
	char id[RECORD_ID_MAX];
	uint8_t uuid[16];
	const struct fsimg_spec spec = {
		.type = c->rec.fs,
		.size_bytes = c->rec.size_bytes,
		.block_size = c->rec.block_size,
		.mkfs_options = c->rec.mkfs_options,
	};
	/* The build has drawn the random part of the id. */
	record_id_print(pool_uuid8(c->pool), c->base.build.rec, id);
	fsimg_uuid_of(id, uuid);
	pool_format_init(&c->format, c->pool, &spec, uuid);
	pool_build_format(&c->base.build, &c->format);
}

static int build_run(struct op *op)
{
	struct create *c = create_of(op);
	int r = creation_init_build(&c->base, c->pool, &c->rec, &op->err);
	if (r < 0)
		return r;
	if (c->remote.used) {
		c->remote.look = c->changes_mode;
		c->remote.on_probe = check_pulled;
		c->remote.arg = c;
		remote_fill(&c->remote, &c->base, source_object_kind(c));
	} else if (c->base.source.object != NULL)
		c->base.build.need_bytes =
			record_image_bytes(&c->rec) + node_source_shared_room(&c->base.source);
	else if (c->rec.fs != FSIMG_NONE && !c->rec.unformatted)
		fill_format(c);
	return op_child(op, &c->base.build.op);
}

static int answer_run(struct op *op)
{
	struct create *c = create_of(op);
	Csi__V1__CreateVolumeResponse *response = (void *)c->base.task.response;
	response->volume = csi_volume_message(c->base.task.arena, c->base.task.csi, c->base.object);
	return response->volume != NULL ? 0 : op_fail(op, ERR_NO_ROOM, "out of memory");
}

static const struct op_step steps[] = {
	{"look up", .run = look_up_run},
	{"make durable", .done = creation_durable, .run = creation_make_durable},
	{"thaw leftover", .done = leftover_done, .run = creation_thaw_leftover},
	{"take up offer", .done = leftover_offer_done, .run = leftover_offer_run},
	{"ask source's node", .done = ask_done, .run = ask_run, .end = ask_end, .undo = let_go_run},
	{"plan", .done = creation_exists, .run = plan_run},
	{"measure", .done = creation_measured, .run = creation_measure},
	{"quiesce source", .done = creation_sourceless, .run = creation_quiesce,
		.undo = creation_release},
	{"look for file system", .done = probe_done, .run = probe_run, .end = probe_end},
	{"build", .done = creation_exists, .run = build_run, .end = creation_build_end,
		.flags = OP_COMMIT},
	{"release source", .done = creation_released, .run = creation_release},
	{"let source's node go", .done = let_go_done, .run = let_go_run, .end = let_go_end},
	{"answer", .run = answer_run},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	struct create *c = container_of(task, struct create, base.task);
	c->req = (const void *)task->request;
	c->base.name = csi_str(c->req->name);
	int r = parse(c, err);
	if (r < 0)
		return r;
	if (c->base.source_id[0] != '\0')
		creation_lock_source(&c->base, source_object_kind(c));
	task->claim =
		csi_params_claim(task->arena, c->req->parameters, c->req->n_parameters, "pvc");
	return 0;
}

static void cleanup(struct csi_task *task)
{
	remote_free(&container_of(task, struct create, base.task)->remote);
	creation_cleanup(task);
}

/* Its pool is only known when it is planned: its child operations know their lane. */
const struct csi_operation csi_create_volume = {sizeof(struct create), prepare, steps, cleanup};
