/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Controller service: its method table, its capabilities, and ValidateVolumeCapabilities.
 * Listings are in controller_list.c, each long operation in a file of its own. An RPC without a
 * line in the table answers UNIMPLEMENTED, and no capability of it is advertised. Volumes tell the
 * node that has them, but LIST_VOLUMES_PUBLISHED_NODES is only for who has
 * PUBLISH_UNPUBLISH_VOLUME as well.
 */
#include "csi/controller.h"

static void get_capabilities(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	const struct csi *csi = grpc_call_context(call);
	const struct {
		int type;
		bool served;
	} all[] = {
#define CAP(name) CSI__V1__CONTROLLER_SERVICE_CAPABILITY__RPC__TYPE__##name
		{CAP(CREATE_DELETE_VOLUME), true},
		{CAP(LIST_VOLUMES), true},
		{CAP(GET_CAPACITY), true},
		{CAP(CREATE_DELETE_SNAPSHOT), true},
		{CAP(LIST_SNAPSHOTS), true},
		{CAP(CLONE_VOLUME), true},
		{CAP(EXPAND_VOLUME), csi->config.controller_expand},
		{CAP(VOLUME_CONDITION), csi->config.health & CSI_HEALTH_1_12},
		{CAP(GET_VOLUME), true},
		{CAP(SINGLE_NODE_MULTI_WRITER), true},
		{CAP(GET_SNAPSHOT), true},
		{CAP(GET_VOLUME_HEALTH), csi->config.health & CSI_HEALTH_1_13},
		{CAP(LIST_VOLUME_HEALTH), csi->config.health & CSI_HEALTH_1_13},
#undef CAP
	};
	enum { COUNT = sizeof(all) / sizeof(all[0]) };
	Csi__V1__ControllerServiceCapability caps[COUNT], *list[COUNT];
	Csi__V1__ControllerServiceCapability__RPC rpcs[COUNT];
	Csi__V1__ControllerGetCapabilitiesResponse response =
		CSI__V1__CONTROLLER_GET_CAPABILITIES_RESPONSE__INIT;
	for (size_t i = 0; i < COUNT; i++) {
		size_t n = response.n_capabilities;
		if (!all[i].served)
			continue;
		csi__v1__controller_service_capability__rpc__init(&rpcs[n]);
		rpcs[n].type = all[i].type;
		csi__v1__controller_service_capability__init(&caps[n]);
		caps[n].type_case = CSI__V1__CONTROLLER_SERVICE_CAPABILITY__TYPE_RPC;
		caps[n].rpc = &rpcs[n];
		list[n] = &caps[n];
		response.n_capabilities++;
	}
	response.capabilities = list;
	grpc_reply(call, &response.base);
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
		rec->fs == FSIMG_NONE ? FSIMG_EXT4 : rec->fs, &access, err);
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
	if (req->n_mutable_parameters != 0)
		return err_set(err, ERR_INVALID,
			"mutable_parameters: this driver has none that could be changed later");
	if (req->n_parameters == 0)
		return 0;
	r = csi_params_parse(req->parameters, req->n_parameters, &params, err);
	return r < 0 ? r : csi_params_compare(&params, &access, volume, err);
}

static void validate_capabilities(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__ValidateVolumeCapabilitiesRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct pool_object *volume;
	struct err err = {0}, why = {0};
	const char *id = csi_str(req->volume_id);

	int r = id[0] == '\0' ? err_set(&err, ERR_INVALID, "volume_id is missing") : 0;
	if (r == 0 && req->n_volume_capabilities == 0)
		r = err_set(&err, ERR_INVALID, "volume_capabilities is missing");
	if (r == 0)
		r = pools_find_id(csi->pools, RECORD_VOLUME, id, &volume, &err);
	if (r < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	Csi__V1__ValidateVolumeCapabilitiesResponse response =
		CSI__V1__VALIDATE_VOLUME_CAPABILITIES_RESPONSE__INIT;
	Csi__V1__ValidateVolumeCapabilitiesResponse__Confirmed confirmed =
		CSI__V1__VALIDATE_VOLUME_CAPABILITIES_RESPONSE__CONFIRMED__INIT;
	if (check_capabilities(req, volume, &why) == 0) {
		confirmed.n_volume_context = req->n_volume_context;
		confirmed.volume_context = req->volume_context;
		confirmed.n_volume_capabilities = req->n_volume_capabilities;
		confirmed.volume_capabilities = req->volume_capabilities;
		confirmed.n_parameters = req->n_parameters;
		confirmed.parameters = req->parameters;
		response.confirmed = &confirmed;
	} else {
		response.message = csi_bytes(why.message);
	}
	grpc_reply(call, &response.base);
}

const struct grpc_method csi_controller_methods[] = {
	{"CreateVolume", csi_create_volume},
	{"DeleteVolume", csi_delete_volume},
	{"ValidateVolumeCapabilities", validate_capabilities},
	{"ListVolumes", csi_list_volumes},
	{"GetCapacity", csi_get_capacity},
	{"ControllerGetCapabilities", get_capabilities},
	{"CreateSnapshot", csi_create_snapshot},
	{"DeleteSnapshot", csi_delete_snapshot},
	{"ListSnapshots", csi_list_snapshots},
	{"GetSnapshot", csi_get_snapshot},
	{"ControllerExpandVolume", csi_controller_expand_volume},
	{"ControllerGetVolume", csi_get_volume},
	{"ControllerGetVolumeHealth", csi_get_volume_health},
	{"ControllerListVolumeHealth", csi_list_health},
	{NULL},
};
