/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inline volumes: attributes, what the operator allows of them, and the build.
 *
 * Happy path of a publish: the target lies in the directory of the pod that the request names ->
 * the volume is there, and is that pod's: nothing is made -> else its namespace, source, pool, size
 * and limits are allowed -> build, as CreateVolume does it: the link is the commit, durable -> the
 * steps of a publish without staging. How it can fail: as a refusal before anything is made; the
 * build leaves nothing when it fails. What fails after it leaves the volume, which the retry finds,
 * and an unpublish takes away.
 */
#include "csi/inline.h"

#include "base/log.h"
#include "base/options.h"
#include "csi/params.h"
#include "csi/request.h"
#include "node/devices.h"
#include "node/source.h"
#include "pool/build.h"
#include "pool/fill.h"
#include "pool/golden.h"
#include "pool/index.h"

#include <stdio.h>
#include <string.h>

#define EPHEMERAL     "csi.storage.k8s.io/ephemeral"
#define POD_NAME      "csi.storage.k8s.io/pod.name"
#define POD_NAMESPACE "csi.storage.k8s.io/pod.namespace"
#define POD_UID       "csi.storage.k8s.io/pod.uid"
#define PODS          "/pods/"

enum { FIXED_MAX = 3, LIMITS_MAX = 6 };

struct inline_make {
	struct pool *pool;
	struct record rec;
	const Csi__V1__VolumeCapability *cap;
	struct node_source source; /* the golden image; its object is NULL: it begins empty */
	const char *source_id;     /* "" */
	struct pool_format format;
	struct pool_build build;
	bool building;
};

static const char *context_of(const Csi__V1__NodePublishVolumeRequest *req, const char *key)
{
	for (size_t i = 0; i < req->n_volume_context; i++)
		if (strcmp(csi_str(req->volume_context[i]->key), key) == 0)
			return csi_str(req->volume_context[i]->value);
	return "";
}

bool csi_inline_asked(const Csi__V1__NodePublishVolumeRequest *req)
{
	return strcmp(context_of(req, EPHEMERAL), "true") == 0;
}

/* ---- whose ---- */

/* The pod's directory: the target's path as far as the pod's uid, below "pods". */
static int find_owner(struct arena *arena, const Csi__V1__NodePublishVolumeRequest *req,
	const char **ret, struct err *err)
{
	const char *uid = context_of(req, POD_UID), *target = csi_str(req->target_path);
	size_t len = strlen(uid);
	if (len == 0 || strchr(uid, '/') != NULL)
		return err_set(err, ERR_INVALID,
			"volume_context: " POD_UID
			" is missing: the CSIDriver object has to say podInfoOnMount: true");
	const char *at = target;
	do {
		at = strstr(at, PODS);
		at = at != NULL ? at + strlen(PODS) : NULL;
	} while (at != NULL && (strncmp(at, uid, len) != 0 || at[len] != '/'));
	if (at == NULL)
		return err_set(err, ERR_INVALID,
			"target_path: %s does not lie in the directory of pod %s", target, uid);
	size_t owner_len = (size_t)(at - target) + len;
	char *owner = owner_len <= RECORD_OWNER_MAX ? arena_strdup(arena, target) : NULL;
	if (owner == NULL)
		return err_set(err, ERR_INVALID,
			"target_path: the directory of the pod has more than %d bytes",
			RECORD_OWNER_MAX);
	owner[owner_len] = '\0';
	*ret = owner;
	return 0;
}

bool csi_inline_owns(const struct record *rec, const char *path)
{
	size_t len = strlen(rec->owner);
	return len != 0 && strncmp(path, rec->owner, len) == 0 && path[len] == '/';
}

bool csi_inline_left(struct op *op, const struct pool_object *volume)
{
	if (op->err.code != ERR_UNAVAILABLE && op->err.code != ERR_PRECONDITION)
		return false;
	log_event(LOG_LEVEL_WARN, "an unpublished inline volume is deleted later",
		log_fields({"volume", volume->rec->name}, {"pod", volume->rec->owner},
			{"error", op->err.message}));
	err_clear(&op->err);
	return true;
}

/* ---- what is allowed ---- */

static bool is_one_of(const char *const *list, unsigned count, const char *name)
{
	for (unsigned i = 0; i < count; i++)
		if (strcmp(list[i], name) == 0)
			return true;
	return false;
}

static int check_namespace(
	const struct csi_inline_policy *policy, const char *namespace, struct err *err)
{
	if (policy->n_pools == 0)
		return err_set(err, ERR_PRECONDITION,
			"inline volumes are not allowed on this node (--inline); use a PersistentVolumeClaim, or an ephemeral volume with a volumeClaimTemplate");
	if (policy->n_namespaces == 0 ||
		is_one_of(policy->namespaces, policy->n_namespaces, namespace))
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"pods of namespace %s may not have inline volumes on this node (--inline namespaces)",
		namespace);
}

/* What is not limited, or not by itself, gets the operator's limit. */
static int bound(const char *what, uint64_t most, uint64_t *limit, struct err *err)
{
	if (most == 0 || (*limit != 0 && *limit <= most))
		return 0;
	if (*limit > most)
		return err_set(err, ERR_INVALID,
			"volume_context: %s is %llu, and inline volumes have %llu at most on this node (--inline)",
			what, (unsigned long long)*limit, (unsigned long long)most);
	*limit = most;
	return 0;
}

static int bound_limits(
	const struct csi_inline_policy *policy, struct io_limits *limits, struct err *err)
{
	const struct io_limits *most = &policy->most;
	int r = bound("readIops", most->read_iops, &limits->read_iops, err);
	if (r == 0)
		r = bound("writeIops", most->write_iops, &limits->write_iops, err);
	if (r == 0)
		r = bound("readBandwidth", most->read_bandwidth, &limits->read_bandwidth, err);
	if (r == 0)
		r = bound("writeBandwidth", most->write_bandwidth, &limits->write_bandwidth, err);
	return r;
}

static int choose_size(const struct csi_inline_policy *policy, const char *value,
	enum fsimg_type fs, const struct record *image, uint64_t *ret, struct err *err)
{
	uint64_t size = policy->max_bytes < CSI_SIZE_DEFAULT ? policy->max_bytes : CSI_SIZE_DEFAULT;
	uint64_t min = fsimg_min_bytes(fs) > CSI_SIZE_MIN ? fsimg_min_bytes(fs) : CSI_SIZE_MIN;
	if (image != NULL)
		size = min = image->size_bytes;
	if (value[0] != '\0' && (!options_quantity(value, &size) || size == 0))
		return err_set(
			err, ERR_INVALID, "volume_context: size takes bytes, as 1073741824 or 1Gi");
	if (size < min)
		size = min;
	if (size > policy->max_bytes)
		return err_set(err, ERR_INVALID,
			"volume_context: the volume would have %llu bytes, and inline volumes have %llu at most on this node (--inline max-size)",
			(unsigned long long)size, (unsigned long long)policy->max_bytes);
	*ret = (size + POOL_SIZE_ALIGN - 1) / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN;
	return 0;
}

/* ---- the attributes ---- */

/* The same keys as of classes, said of another field. */
static int in_context(int r, struct err *err)
{
	static const char *const fields[] = {"parameters: ", "mutable_parameters: "};
	struct err said = *err;
	for (unsigned i = 0; r < 0 && i < sizeof(fields) / sizeof(fields[0]); i++) {
		size_t len = strlen(fields[i]);
		if (strncmp(said.message, fields[i], len) != 0)
			continue;
		err_clear(err);
		return err_set(err, said.code, "volume_context: %s", said.message + len);
	}
	return r;
}

static int unknown_attribute(const char *key, struct err *err)
{
	return err_set(err, ERR_INVALID,
		"volume_context: %.64s is no attribute of inline volumes; size, fstype, pool, source, iops, readIops, writeIops, bandwidth, readBandwidth and writeBandwidth are",
		key);
}

static int parse_attributes(const Csi__V1__NodePublishVolumeRequest *req, struct csi_params *params,
	const char **ret_size, struct err *err)
{
	static const char *const limits[] = {
		"iops", "readIops", "writeIops", "bandwidth", "readBandwidth", "writeBandwidth"};
	Csi__V1__StringPair *fixed[FIXED_MAX + 1], *mutable[LIMITS_MAX + 1],
		fstype = CSI__V1__STRING_PAIR__INIT;
	size_t n_fixed = 0, n_mutable = 0;
	*ret_size = "";
	for (size_t i = 0; i < req->n_volume_context; i++) {
		Csi__V1__StringPair *pair = req->volume_context[i];
		const char *key = csi_str(pair->key);
		if (strncmp(key, "csi.storage.k8s.io/", strlen("csi.storage.k8s.io/")) == 0)
			continue;
		if (strcmp(key, "size") == 0) {
			*ret_size = csi_str(pair->value);
		} else if (n_fixed == FIXED_MAX + 1 || n_mutable == LIMITS_MAX + 1) {
			return err_set(err, ERR_INVALID, "volume_context: a key is given twice");
		} else if (strcmp(key, "pool") == 0 || strcmp(key, "source") == 0) {
			fixed[n_fixed++] = pair;
		} else if (strcmp(key, "fstype") == 0) {
			fstype.key.data = (uint8_t *)CSI_PARAM_FSTYPE;
			fstype.key.len = strlen(CSI_PARAM_FSTYPE);
			fstype.value = pair->value;
			fixed[n_fixed++] = &fstype;
		} else if (is_one_of(limits, sizeof(limits) / sizeof(limits[0]), key)) {
			mutable[n_mutable++] = pair; /* a map has each key once */
		} else {
			return unknown_attribute(key, err);
		}
	}
	int r = csi_params_parse(fixed, n_fixed, params, err);
	if (r == 0)
		r = csi_params_parse_mutable(mutable, n_mutable, params, err);
	return in_context(r, err);
}

/* ---- the plan ---- */

static int check_image(const struct record *image, struct err *err)
{
	if (image->encryption == RECORD_PLAIN && image->fs != FSIMG_NONE)
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"golden image %s %s, and inline volumes are mounted without a key", image->name,
		image->fs == FSIMG_NONE ? "has no file system" : "is encrypted");
}

/* A controller is not asked: the publish comes from kubelet. */
static int find_image(
	struct volume_op *n, struct inline_make *make, const char *name, struct err *err)
{
	struct csi *csi = n->task.csi;
	const struct csi_inline_policy *policy = &csi->config.inlines;
	struct pool_object *image = NULL;
	char id[RECORD_ID_MAX];
	if (!policy->any_source && !is_one_of(policy->sources, policy->n_sources, name))
		return err_set(err, ERR_PRECONDITION,
			"golden image %s is not for inline volumes on this node (--inline sources)",
			name);
	int r = pools_find_golden(csi->pools, name, &image, err);
	if (r < 0)
		return r;
	if (image == NULL)
		return err_set(err, ERR_PRECONDITION,
			"golden image %s is not on node %s: import it there, too (ringvol import), or use an ephemeral volume with a volumeClaimTemplate: a class that names the image has it copied from another node",
			name, csi->config.node_id);
	pool_object_id(image, id);
	make->source_id = arena_strdup(n->task.arena, id);
	if (make->source_id == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	csi_task_lock_id(&n->task, NODE_SHARED, RECORD_SNAPSHOT, id);
	n->task.copy =
		(struct csi_task_copy){node_source_stop, node_source_progress, &make->source};
	r = node_source_find(&make->source, csi->node, RECORD_SNAPSHOT, id, false, err);
	return r == 0 ? check_image(make->source.rec, err) : r;
}

static int plan_source(
	struct volume_op *n, struct inline_make *make, struct csi_params *params, struct err *err)
{
	struct err why = {0};
	make->source_id = "";
	if (params->source[0] == '\0')
		return 0;
	if (find_image(n, make, params->source, &why) < 0)
		return err_set(err, why.code, "volume_context: source: %s", why.message);
	/* In a raw pool an image is thin, and so is what is made of it. */
	params->thick = false;
	params->thick_given = true;
	return 0;
}

static int choose_fs(const struct csi_params *params, const struct csi_access *access,
	const struct record *image, enum fsimg_type *ret, struct err *err)
{
	int r = csi_params_choose_fs(
		params, access, image != NULL ? image->fs : FSIMG_NONE, ret, err);
	if (r == 0 && image != NULL && *ret != image->fs)
		r = err_set(err, ERR_INVALID,
			"volume_context: golden image %s holds %s, and %s is asked for",
			image->name, fsimg_name(image->fs), fsimg_name(*ret));
	return r;
}

static int plan_pool(
	struct csi *csi, struct inline_make *make, struct csi_params *params, struct err *err)
{
	const struct csi_inline_policy *policy = &csi->config.inlines;
	const char *its = make->source.object != NULL ? pool_name(make->source.object->pool)
						      : policy->pools[0];
	if (!params->pool_given)
		params->pool = its;
	if (make->source.object != NULL && strcmp(params->pool, its) != 0)
		return err_set(err, ERR_INVALID,
			"volume_context: pool is %.64s, but golden image %s lies in pool %s; a copy stays in its pool",
			params->pool, params->source, its);
	if (!is_one_of(policy->pools, policy->n_pools, params->pool))
		return err_set(err, ERR_PRECONDITION,
			"volume_context: pool %.64s is not for inline volumes on this node (--inline pools)",
			params->pool);
	make->pool = pools_by_name(csi->pools, params->pool);
	if (make->pool == NULL)
		return err_set(err, ERR_PRECONDITION, "this node has no pool %.64s", params->pool);
	int r = pool_check_ready(make->pool, err);
	if (r == 0)
		r = csi_params_settle(params, make->pool, err);
	if (r == 0)
		r = csi_params_check_pool(params, make->pool, false, err);
	return r;
}

static int check_room(const struct csi *csi, struct err *err)
{
	uint64_t used = node_devices_in_use(csi->node);
	if (csi->config.max_volumes == 0 || used < (uint64_t)csi->config.max_volumes)
		return 0;
	return err_set(err, ERR_NO_ROOM,
		"%llu volumes are in use on this node, the most there may be",
		(unsigned long long)used);
}

static const char *pod_of(struct arena *arena, const Csi__V1__NodePublishVolumeRequest *req)
{
	char name[RECORD_CLAIM_MAX + 1];
	int len = snprintf(name, sizeof(name), "%s/%s", context_of(req, POD_NAMESPACE),
		context_of(req, POD_NAME));
	const char *kept = len < (int)sizeof(name) && len > 1 ? arena_strdup(arena, name) : NULL;
	return kept != NULL ? kept : "";
}

static int plan(struct volume_op *n, const Csi__V1__NodePublishVolumeRequest *req,
	const char *owner, struct inline_make *make, struct err *err)
{
	struct csi *csi = n->task.csi;
	struct csi_params params;
	struct csi_access access;
	const char *size_given;
	enum fsimg_type fs = FSIMG_NONE;
	uint64_t size = 0;
	int r = check_namespace(&csi->config.inlines, context_of(req, POD_NAMESPACE), err);
	if (r == 0)
		r = parse_attributes(req, &params, &size_given, err);
	if (r == 0)
		r = csi_access_parse(req->volume_capability, params.fs, &access, err);
	if (r == 0 && access.block)
		r = err_set(err, ERR_INVALID,
			"volume_capability: an inline volume is mounted, never a block device");
	if (r == 0)
		r = plan_source(n, make, &params, err);
	if (r == 0)
		r = in_context(choose_fs(&params, &access, make->source.rec, &fs, err), err);
	if (r == 0)
		r = choose_size(&csi->config.inlines, size_given, fs, make->source.rec, &size, err);
	if (r == 0)
		r = bound_limits(&csi->config.inlines, &params.limits, err);
	if (r == 0)
		r = in_context(plan_pool(csi, make, &params, err), err);
	if (r == 0)
		r = check_room(csi, err);
	if (r < 0)
		return r;
	const struct record *image = make->source.rec;
	make->cap = req->volume_capability;
	make->rec = (struct record){
		.kind = RECORD_VOLUME,
		.name = n->task.id,
		.size_bytes = size,
		.fs = fs,
		.block_size = image != NULL ? image->block_size : pool_block_size(make->pool),
		.thick = params.thick,
		.device = params.device,
		.limits = params.limits,
		.mkfs_options = "",
		.source = image != NULL ? RECORD_SOURCE_SNAPSHOT : RECORD_SOURCE_NONE,
		.source_id = make->source_id,
		.shares_extents = make->source.share,
		.family = "",
		.claim = pod_of(n->task.arena, req),
		.owner = owner,
	};
	n->task.lane = pool_lane(make->pool);
	n->task.subject = n->task.id;
	n->task.claim = make->rec.claim;
	return 0;
}

/* Where a pod's volume is, if it was made before: what its spec says does not change, and what the
 * operator says may have. */
static bool may_be_in(const struct csi *csi, const char *pool, const char *asked)
{
	const struct csi_inline_policy *policy = &csi->config.inlines;
	if (asked[0] != '\0')
		return strcmp(pool, asked) == 0;
	return policy->n_pools == 0 || is_one_of(policy->pools, policy->n_pools, pool);
}

/* Of a pool that was never read nobody knows whether it has the volume. */
static int check_read(const struct csi *csi, const char *asked, struct err *err)
{
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++)
		if (may_be_in(csi, pool_name(pool), asked) &&
			(pool_uuid8(pool)[0] == '\0' || pool_state(pool) == POOL_LOADING))
			return err_set(err, ERR_UNAVAILABLE,
				"pool %s may have this pod's inline volume, and was not read yet: %s",
				pool_name(pool), pool_why(pool));
	return 0;
}

static int find(struct volume_op *n, const struct pool_object *object, const char *owner,
	const Csi__V1__VolumeCapability *cap, struct err *err)
{
	const struct record *rec = object->rec;
	if (rec == NULL)
		return err_set(err, ERR_DATA_LOSS,
			"inline volume %s is quarantined in pool %s: %s; see ringvol check",
			object->key, pool_name(object->pool), object->why);
	if (!record_is_inline(rec))
		return err_set(
			err, ERR_EXISTS, "volume %s exists and is no inline volume", rec->name);
	if (strcmp(rec->owner, owner) != 0)
		return err_set(err, ERR_EXISTS,
			"inline volume %s exists, and is that of the pod of %s", rec->name,
			rec->owner);
	int r = volume_op_find(n, cap, err);
	n->task.lane = r == 0 ? pool_lane(n->volume->pool) : n->task.lane;
	return r;
}

int csi_inline_prepare(struct volume_op *n, const Csi__V1__NodePublishVolumeRequest *req,
	struct inline_make **ret, struct err *err)
{
	const char *owner = "";
	struct record_id parsed;
	n->takes_inline = true;
	int r = find_owner(n->task.arena, req, &owner, err);
	if (r == 0 &&
		(strlen(n->task.id) > RECORD_NAME_MAX || record_id_parse(n->task.id, &parsed) == 0))
		r = err_set(err, ERR_INVALID, "volume_id: %.64s cannot be an inline volume's",
			n->task.id);
	if (r == 0)
		r = check_read(n->task.csi, context_of(req, "pool"), err);
	if (r < 0)
		return r;
	const struct pool_object *object =
		pools_find_name(n->task.csi->pools, RECORD_VOLUME, n->task.id);
	if (object != NULL)
		return find(n, object, owner, req->volume_capability, err);
	struct inline_make *make = arena_alloc(n->task.arena, sizeof(*make));
	if (make == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	r = plan(n, req, owner, make, err);
	if (r == 0)
		*ret = make;
	return r;
}

int csi_inline_confine(struct csi_access *access, struct err *err)
{
	static const char confined[] = "nosuid,nodev";
	size_t used = strlen(access->options);
	if (used + 1 + sizeof(confined) > sizeof(access->options))
		return err_set(err, ERR_INVALID, "mount_flags: longer than %zu bytes in all",
			sizeof(access->options) - 1 - sizeof(confined));
	/* The last one counts. */
	snprintf(access->options + used, sizeof(access->options) - used, "%s%s",
		used != 0 ? "," : "", confined);
	return 0;
}

/* ---- the build ---- */

static void fill_format(struct inline_make *make)
{
	char id[RECORD_ID_MAX];
	uint8_t uuid[16];
	const struct fsimg_spec spec = {
		.type = make->rec.fs,
		.size_bytes = make->rec.size_bytes,
		.block_size = make->rec.block_size,
		.mkfs_options = make->rec.mkfs_options,
	};
	record_id_print(pool_uuid8(make->pool), make->build.rec, id);
	fsimg_uuid_of(id, uuid);
	pool_format_init(&make->format, make->pool, &spec, uuid);
	pool_build_format(&make->build, &make->format);
}

int csi_inline_make_run(struct op *op, struct inline_make *make)
{
	int r = pool_build_init(&make->build, op->reactor, make->pool, &make->rec);
	if (r < 0)
		return op_fail_sys(op, r, "inline volume %s", make->rec.name);
	make->building = true;
	if (make->source.object != NULL)
		node_source_fill(&make->source, &make->build);
	else
		fill_format(make);
	return op_child(op, &make->build.op);
}

int csi_inline_make_end(struct op *op, struct inline_make *make, int res)
{
	struct volume_op *n = volume_op_of(op);
	int r = make->source.object != NULL ? node_source_end(op, &make->source, res) : res;
	return r < 0 ? r : volume_op_find(n, make->cap, &op->err);
}

void csi_inline_make_free(struct inline_make *make)
{
	if (make != NULL && make->building)
		pool_build_free(&make->build);
}
