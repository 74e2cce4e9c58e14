/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the services can do, and what a volume can: GetPluginCapabilities,
 * ControllerGetCapabilities, GroupControllerGetCapabilities, NodeGetCapabilities,
 * ValidateVolumeCapabilities. An RPC without a line
 * in services.c answers UNIMPLEMENTED, and no capability of it is advertised. Volumes tell the node
 * that uses them, too, where nothing is attached (--attach), but LIST_VOLUMES_PUBLISHED_NODES is
 * only for a driver that has PUBLISH_UNPUBLISH_VOLUME as well.
 */
#include "csi/messages.h"
#include "csi/params.h"
#include "csi/request.h"
#include "csi/services.h"
#include "pool/index.h"

#include <errno.h>

/* ---- what is advertised ---- */

enum when {
	ALWAYS,
	WITH_CONTROLLER,
	WITH_GROUP,
	WITH_SNAPSHOT_METADATA,
	IF_CONTROLLER_EXPANDS,
	IF_STAGED,
	IF_ATTACHED,
	IF_1_12,
	IF_1_13
};

struct capability {
	void *message;
	enum when when;
};

static bool is_advertised(const struct csi_config *config, enum when when)
{
	switch (when) {
	case ALWAYS:
		break;
	case WITH_CONTROLLER:
		return config->services & CSI_CONTROLLER;
	case WITH_GROUP:
		return config->services & CSI_GROUP;
	case WITH_SNAPSHOT_METADATA:
		return config->services & CSI_SNAPSHOT_METADATA;
	case IF_CONTROLLER_EXPANDS:
		return config->controller_expand;
	case IF_STAGED:
		return config->staging;
	case IF_ATTACHED:
		return config->attach;
	case IF_1_12:
		return config->health & CSI_HEALTH_1_12;
	case IF_1_13:
		return config->health & CSI_HEALTH_1_13;
	}
	return true;
}

/* The table ends with NULL. *ret: an array of messages of the table's type. */
static int advertise(
	struct csi_query *q, const struct capability *table, size_t *ret_count, void *ret)
{
	size_t count = 0;
	while (table[count].message != NULL)
		count++;
	void **list = arena_alloc(q->arena, count * sizeof(*list));
	if (list == NULL)
		return -ENOMEM;
	*ret_count = 0;
	for (const struct capability *c = table; c->message != NULL; c++)
		if (is_advertised(&q->csi->config, c->when))
			list[(*ret_count)++] = c->message;
	memcpy(ret, &list, sizeof(list));
	return 0;
}

/* The first initialiser of a static message. */
#define BASE(type) .base = PROTOBUF_C_MESSAGE_INIT(&csi__v1__##type##__descriptor)

#define PLUGIN_SERVICE(name)                                                                       \
	&(Csi__V1__PluginCapability)                                                               \
	{                                                                                          \
		BASE(plugin_capability),                                                           \
			.type_case = CSI__V1__PLUGIN_CAPABILITY__TYPE_SERVICE,                     \
			.service = &(Csi__V1__PluginCapability__Service){                          \
				BASE(plugin_capability__service),                                  \
				.type = CSI__V1__PLUGIN_CAPABILITY__SERVICE__TYPE__##name,         \
			},                                                                         \
	}

static const struct capability plugin_table[] = {
	{PLUGIN_SERVICE(VOLUME_ACCESSIBILITY_CONSTRAINTS), ALWAYS},
	{&(Csi__V1__PluginCapability){
		 BASE(plugin_capability),
		 .type_case = CSI__V1__PLUGIN_CAPABILITY__TYPE_VOLUME_EXPANSION,
		 .volume_expansion =
			 &(Csi__V1__PluginCapability__VolumeExpansion){
				 BASE(plugin_capability__volume_expansion),
				 .type = CSI__V1__PLUGIN_CAPABILITY__VOLUME_EXPANSION__TYPE__ONLINE,
			 },
	 },
		ALWAYS},
	{PLUGIN_SERVICE(CONTROLLER_SERVICE), WITH_CONTROLLER},
	{PLUGIN_SERVICE(GROUP_CONTROLLER_SERVICE), WITH_GROUP},
	{PLUGIN_SERVICE(SNAPSHOT_METADATA_SERVICE), WITH_SNAPSHOT_METADATA},
	{PLUGIN_SERVICE(SNAPSHOT_ACCESSIBILITY_CONSTRAINTS), IF_1_13},
	{NULL, ALWAYS},
};

#define RPC_OF(Service, service, SVC, name)                                                        \
	&(Csi__V1__##Service##ServiceCapability)                                                   \
	{                                                                                          \
		BASE(service##_service_capability),                                                \
			.type_case = CSI__V1__##SVC##_SERVICE_CAPABILITY__TYPE_RPC,                \
			.rpc = &(Csi__V1__##Service##ServiceCapability__RPC)                       \
		{                                                                                  \
			BASE(service##_service_capability__rpc),                                   \
				.type = CSI__V1__##SVC##_SERVICE_CAPABILITY__RPC__TYPE__##name,    \
		}                                                                                  \
	}
#define CONTROLLER(name) RPC_OF(Controller, controller, CONTROLLER, name)
#define GROUP(name)      RPC_OF(GroupController, group_controller, GROUP_CONTROLLER, name)
#define NODE(name)       RPC_OF(Node, node, NODE, name)

static const struct capability controller_table[] = {
	{CONTROLLER(CREATE_DELETE_VOLUME), ALWAYS},
	{CONTROLLER(PUBLISH_UNPUBLISH_VOLUME), IF_ATTACHED},
	{CONTROLLER(LIST_VOLUMES), ALWAYS},
	{CONTROLLER(GET_CAPACITY), ALWAYS},
	{CONTROLLER(CREATE_DELETE_SNAPSHOT), ALWAYS},
	{CONTROLLER(LIST_SNAPSHOTS), ALWAYS},
	{CONTROLLER(CLONE_VOLUME), ALWAYS},
	{CONTROLLER(PUBLISH_READONLY), IF_ATTACHED},
	{CONTROLLER(EXPAND_VOLUME), IF_CONTROLLER_EXPANDS},
	{CONTROLLER(LIST_VOLUMES_PUBLISHED_NODES), IF_ATTACHED},
	{CONTROLLER(VOLUME_CONDITION), IF_1_12},
	{CONTROLLER(GET_VOLUME), ALWAYS},
	{CONTROLLER(SINGLE_NODE_MULTI_WRITER), ALWAYS},
	{CONTROLLER(MODIFY_VOLUME), ALWAYS},
	{CONTROLLER(GET_SNAPSHOT), ALWAYS},
	{CONTROLLER(GET_VOLUME_HEALTH), IF_1_13},
	{CONTROLLER(LIST_VOLUME_HEALTH), IF_1_13},
	{NULL, ALWAYS},
};

static const struct capability group_table[] = {
	{GROUP(CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT), ALWAYS},
	{NULL, ALWAYS},
};

static const struct capability node_table[] = {
	{NODE(STAGE_UNSTAGE_VOLUME), IF_STAGED},
	{NODE(GET_VOLUME_STATS), ALWAYS},
	{NODE(EXPAND_VOLUME), ALWAYS},
	{NODE(VOLUME_CONDITION), IF_1_12},
	{NODE(SINGLE_NODE_MULTI_WRITER), ALWAYS},
	{NODE(GET_VOLUME_HEALTH), IF_1_13},
	{NODE(GET_STORAGE_HEALTH), IF_1_13},
	{NULL, ALWAYS},
};

int csi_plugin_capabilities(struct csi_query *q)
{
	Csi__V1__GetPluginCapabilitiesResponse *response = q->response;
	return advertise(q, plugin_table, &response->n_capabilities, &response->capabilities);
}

int csi_controller_capabilities(struct csi_query *q)
{
	Csi__V1__ControllerGetCapabilitiesResponse *response = q->response;
	return advertise(q, controller_table, &response->n_capabilities, &response->capabilities);
}

int csi_group_capabilities(struct csi_query *q)
{
	Csi__V1__GroupControllerGetCapabilitiesResponse *response = q->response;
	return advertise(q, group_table, &response->n_capabilities, &response->capabilities);
}

int csi_node_capabilities(struct csi_query *q)
{
	Csi__V1__NodeGetCapabilitiesResponse *response = q->response;
	return advertise(q, node_table, &response->n_capabilities, &response->capabilities);
}
/* ---- ValidateVolumeCapabilities ---- */

/* Volumes are handed out with an empty context; Kubernetes adds keys of its own, with a prefix. */
static int check_context(const Csi__V1__ValidateVolumeCapabilitiesRequest *req, struct err *err)
{
	for (size_t i = 0; i < req->n_volume_context; i++)
		if (strchr(csi_str(req->volume_context[i]->key), '/') == NULL)
			return err_set(err, ERR_INVALID,
				"volume_context: holds a key that this driver never gave out");
	return 0;
}

/* 0, or why the volume would not serve all of what is asked. */
static int check_capabilities(const Csi__V1__ValidateVolumeCapabilitiesRequest *req,
	const struct pool_object *volume, struct err *err)
{
	const struct record *rec = volume->rec;
	struct csi_access access;
	struct csi_params params;
	int r = csi_access_parse_list(req->volume_capabilities, req->n_volume_capabilities,
		rec->fs == FSIMG_NONE ? FSIMG_EXT4 : rec->fs, rec->attach == RECORD_ATTACH_REMOTE,
		&access, err);
	if (r < 0)
		return r;
	/* What may change its mode is looked at when it is staged: it holds what its user writes.
	 */
	bool changes_mode = !access.block && rec->fs == FSIMG_NONE && rec->allow_mode_change;
	if (changes_mode)
		access = (struct csi_access){.block = true, .fs = FSIMG_NONE};
	if (access.block != (rec->fs == FSIMG_NONE))
		return err_set(err, ERR_INVALID, "volume_capabilities: volume %s is a %s volume",
			rec->name, rec->fs == FSIMG_NONE ? "block" : "mount");
	if (access.fs != rec->fs)
		return err_set(err, ERR_INVALID, "volume_capabilities: volume %s holds %s",
			rec->name, fsimg_name(rec->fs));
	r = check_context(req, err);
	if (r < 0)
		return r;
	r = csi_params_parse(req->parameters, req->n_parameters, &params, err);
	if (r == 0)
		r = csi_params_parse_mutable(
			req->mutable_parameters, req->n_mutable_parameters, &params, err);
	if (r < 0 || req->n_parameters != 0)
		return r < 0 ? r : csi_params_compare(&params, &access, volume, err);
	return csi_params_compare_mutable(&params, volume, err);
}

int csi_validate_capabilities(struct csi_query *q)
{
	const Csi__V1__ValidateVolumeCapabilitiesRequest *req = q->request;
	Csi__V1__ValidateVolumeCapabilitiesResponse *response = q->response;
	Csi__V1__ValidateVolumeCapabilitiesResponse__Confirmed *confirmed = csi_message_new(
		q->arena, &csi__v1__validate_volume_capabilities_response__confirmed__descriptor);
	struct pool_object *volume;
	struct err why = {0};
	int r = pools_find_id(
		q->csi->pools, RECORD_VOLUME, csi_str(req->volume_id), &volume, &q->err);
	if (r == 0)
		r = pool_check_not_inline(volume, &q->err);
	if (r < 0)
		return r;
	if (confirmed == NULL)
		return -ENOMEM;
	if (check_capabilities(req, volume, &why) == 0) {
		confirmed->n_volume_context = req->n_volume_context;
		confirmed->volume_context = req->volume_context;
		confirmed->n_volume_capabilities = req->n_volume_capabilities;
		confirmed->volume_capabilities = req->volume_capabilities;
		confirmed->n_parameters = req->n_parameters;
		confirmed->parameters = req->parameters;
		confirmed->n_mutable_parameters = req->n_mutable_parameters;
		confirmed->mutable_parameters = req->mutable_parameters;
		response->confirmed = confirmed;
		return 0;
	}
	const char *message = arena_strdup(q->arena, why.message);
	if (message == NULL)
		return -ENOMEM;
	response->message = csi_bytes(message);
	return 0;
}
