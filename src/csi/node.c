/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Node service: its method table, the RPCs that only read configuration, and what the node
 * operations (one file each) share. All node operations *converge*: they look at what is attached
 * and mounted, do what is missing, and can be repeated after any failure.
 */
#include "csi/node.h"

#include "base/fd.h"
#include "node/health.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void node_get_info(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	const struct csi *csi = grpc_call_context(call);
	Csi__V1__NodeGetInfoResponse response = CSI__V1__NODE_GET_INFO_RESPONSE__INIT;
	response.node_id = csi_bytes(csi->config.node_id);
	response.max_volumes_per_node = csi->config.max_volumes;
	response.accessible_topology = csi_topology_message(grpc_call_arena(call), csi);
	grpc_reply(call, &response.base);
}

static void node_get_capabilities(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	const struct csi *csi = grpc_call_context(call);
	const unsigned health = csi->config.health;
	const struct {
		int type;
		bool served;
	} all[] = {
#define CAP(name) CSI__V1__NODE_SERVICE_CAPABILITY__RPC__TYPE__##name
		{CAP(STAGE_UNSTAGE_VOLUME), true},
		{CAP(GET_VOLUME_STATS), true},
		{CAP(EXPAND_VOLUME), true},
		{CAP(VOLUME_CONDITION), health & CSI_HEALTH_1_12},
		{CAP(SINGLE_NODE_MULTI_WRITER), true},
		{CAP(GET_VOLUME_HEALTH), health & CSI_HEALTH_1_13},
		{CAP(GET_STORAGE_HEALTH), health & CSI_HEALTH_1_13},
#undef CAP
	};
	enum { COUNT = sizeof(all) / sizeof(all[0]) };
	Csi__V1__NodeServiceCapability caps[COUNT], *list[COUNT];
	Csi__V1__NodeServiceCapability__RPC rpcs[COUNT];
	Csi__V1__NodeGetCapabilitiesResponse response =
		CSI__V1__NODE_GET_CAPABILITIES_RESPONSE__INIT;
	for (unsigned i = 0; i < COUNT; i++) {
		size_t n = response.n_capabilities;
		if (!all[i].served)
			continue;
		csi__v1__node_service_capability__rpc__init(&rpcs[n]);
		rpcs[n].type = all[i].type;
		csi__v1__node_service_capability__init(&caps[n]);
		caps[n].type_case = CSI__V1__NODE_SERVICE_CAPABILITY__TYPE_RPC;
		caps[n].rpc = &rpcs[n];
		list[n] = &caps[n];
		response.n_capabilities++;
	}
	response.capabilities = list;
	grpc_reply(call, &response.base);
}

const struct grpc_method csi_node_methods[] = {
	{"NodeStageVolume", csi_node_stage},
	{"NodeUnstageVolume", csi_node_unstage},
	{"NodePublishVolume", csi_node_publish},
	{"NodeUnpublishVolume", csi_node_unpublish},
	{"NodeGetVolumeStats", csi_node_stats},
	{"NodeExpandVolume", csi_node_expand},
	{"NodeGetVolumeHealth", csi_node_volume_health},
	{"NodeGetStorageHealth", csi_node_storage_health},
	{"NodeGetCapabilities", node_get_capabilities},
	{"NodeGetInfo", node_get_info},
	{NULL, NULL},
};

/* ---- shared by the operations ---- */

int node_check_path(const char *field, const char *path, struct err *err)
{
	if (path[0] == '\0')
		return err_set(err, ERR_INVALID, "%s is missing", field);
	if (path[0] != '/')
		return err_set(err, ERR_INVALID, "%s is not an absolute path: %s", field, path);
	if (path[1] == '\0')
		return err_set(err, ERR_INVALID, "%s: '/' cannot be a volume's path", field);
	for (const char *p = path; (p = strstr(p, "/..")) != NULL; p += 3)
		if (p[3] == '/' || p[3] == '\0')
			return err_set(err, ERR_INVALID, "%s: '..' is not allowed", field);
	return 0;
}

int node_check_volume_path(const struct node_op *n, const char *path, struct err *err)
{
	struct err why = {0};
	if (node_check_path("volume_path", path, &why) == 0)
		return 0;
	return err_set(err, ERR_NOT_FOUND, "volume %s is not there: %.300s", n->volume->rec->name,
		why.message);
}

void node_op_lock(struct node_op *n)
{
	struct record_id id;
	char key[RECORD_KEY_MAX];
	if (record_id_parse(n->id, &id) == 0)
		memcpy(key, id.key, sizeof(key));
	else
		record_key(n->id, key);
	csi_task_lock(&n->task, NODE_EXCLUSIVE, "volume", key);
	if (n->volume != NULL)
		csi_task_claim(&n->task, n->volume->rec);
}

struct lane *node_lane(const struct node_op *n)
{
	return pools_lane_of_id(n->task.csi->pools, n->id);
}

int node_op_find(struct node_op *n, const Csi__V1__VolumeCapability *cap, struct err *err)
{
	int r = pools_find_id(n->task.csi->pools, RECORD_VOLUME, n->id, &n->volume, err);
	if (r < 0)
		return r;
	const struct record *rec = n->volume->rec;
	n->backend = backend_get(rec->device);
	if (n->backend == NULL)
		return err_set(err, ERR_PRECONDITION,
			"volume %s: its device type is not available on this node", rec->name);
	if (cap == NULL)
		return 0;
	r = csi_access_parse(cap, rec->fs == FSIMG_NONE ? FSIMG_EXT4 : rec->fs, &n->access, err);
	if (r < 0)
		return r;
	n->fs = rec->fs;
	n->changes_mode = rec->fs == FSIMG_NONE && !n->access.block;
	if (n->changes_mode && rec->allow_mode_change)
		n->fs = n->access.fs_given ? n->access.fs : FSIMG_NONE;
	else if (n->access.block != (rec->fs == FSIMG_NONE))
		return err_set(err, ERR_PRECONDITION,
			"volume %s was made as a %s volume and cannot be used as a %s volume%s",
			rec->name, rec->fs == FSIMG_NONE ? "block" : "mount",
			n->access.block ? "block" : "mount",
			n->changes_mode
				? ", as its class did not say allowVolumeModeChange: \"true\" when it was made"
				: "");
	else if (!n->access.block && n->access.fs != rec->fs)
		return err_set(err, ERR_PRECONDITION, "volume %s holds %s, fs_type asks for %s",
			rec->name, fsimg_name(rec->fs), fsimg_name(n->access.fs));
	return pool_check_ready(n->volume->pool, err);
}

int node_helper(struct op *op, enum mnt_call call, const void *req, size_t req_len, void *resp,
	size_t resp_cap, uint64_t timeout_ms)
{
	return node_helper_by(
		op, node_op_of(op)->id, call, req, req_len, resp, resp_cap, timeout_ms);
}

int node_helper_by(struct op *op, const char *key, enum mnt_call call, const void *req,
	size_t req_len, void *resp, size_t resp_cap, uint64_t timeout_ms)
{
	struct node_op *n = node_op_of(op);
	memset(resp, 0, resp_cap);
	int r = op_helper(op, call, key, req, req_len, resp, resp_cap, timeout_ms);
	if (r == -EAGAIN)
		return op_fail(op, ERR_NO_ROOM, "too many calls wait for a helper process");
	if (r < 0)
		return op_fail_sys(op, r, "volume %s: helper process", n->id);
	return r;
}

int node_fail(struct op *op, int res, const char *what, const char *path)
{
	struct node_op *n = node_op_of(op);
	struct node_volume *node = n->volume == NULL ? NULL : node_volume_find(n->volume);
	n->result.why[sizeof(n->result.why) - 1] = '\0';
	if (res == -ETIMEDOUT) {
		node_note_hanging(n->task.csi->node, node, true);
		return op_fail(op, ERR_TIMEOUT,
			"volume %s: %s of %s hangs; see the kernel log for its device", n->id, what,
			path);
	}
	if (res == -ENOTEMPTY)
		return op_fail(op, ERR_PRECONDITION,
			"%s of %s: it is not empty, and what it holds would be hidden; move that away",
			what, path);
	if (n->result.why[0] != '\0' && (res == -EINVAL || res == -ENOTDIR || res == -ELOOP))
		return op_fail(op, ERR_INVALID, "%s of %s: %s", what, path, n->result.why);
	if (n->result.why[0] != '\0')
		return op_fail_sys(op, res, "%s of %s: %s", what, path, n->result.why);
	return op_fail_sys(op, res, "%s of %s", what, path);
}

int node_inspect(struct op *op, const char *path)
{
	struct node_op *n = node_op_of(op);
	snprintf(n->path.path, sizeof(n->path.path), "%s", path);
	return node_helper(op, MNT_INSPECT, &n->path, sizeof(n->path), &n->info, sizeof(n->info),
		NODE_STAT_TIMEOUT_MS);
}

int node_inspect_end(struct op *op, int res)
{
	struct node_op *n = node_op_of(op);
	if (res == 0)
		return 0;
	memcpy(n->result.why, n->info.why, sizeof(n->result.why));
	if (res == -ELOOP)
		return op_fail(op, ERR_INVALID,
			"%s: a component is a symbolic link, which is refused", n->path.path);
	return node_fail(op, res, "looking", n->path.path);
}

const struct pool_object *node_nested_in(const struct node_op *n)
{
	if (n->info.on_major == 0)
		return NULL;
	list_for_each (link, &n->task.csi->node->attached) {
		const struct node_volume *node = container_of(link, struct node_volume, attached);
		if (node->dev.major == n->info.on_major && node->dev.minor == n->info.on_minor)
			return node->volume;
	}
	return NULL;
}

int node_check_not_nested(struct op *op, const char *field)
{
	const struct node_op *n = node_op_of(op);
	const struct pool_object *volume = node_nested_in(n);
	if (volume == NULL)
		return 0;
	return op_fail(op, ERR_INVALID,
		"%s: %s lies inside the mount of volume %s; give a path outside of volumes", field,
		n->path.path, volume->rec->name);
}

void node_prepare_backend(struct node_op *n)
{
	node_volume_request(n->volume, &n->dev);
	n->dev.raw &= !n->changes_mode;
}
