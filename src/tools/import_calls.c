/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/import_calls.h"

#include "base/clock.h"
#include "csi.pb-c.h"
#include "tools/grpc_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONTROLLER "/csi.v1.Controller/"
#define NODE       "/csi.v1.Node/"

void import_calls_close(struct import_calls *calls)
{
	grpc_client_close(calls->client);
	calls->client = NULL;
}

/* ---- one call ---- */

struct answer {
	const ProtobufCMessageDescriptor *type;
	ProtobufCMessage *message;
};

static int on_answer(void *arg, const uint8_t *data, size_t len)
{
	struct answer *answer = arg;
	if (answer->message != NULL)
		return -EPROTO;
	answer->message = protobuf_c_message_unpack(answer->type, NULL, len, data);
	return answer->message == NULL ? -EPROTO : 0;
}

static void answer_free(ProtobufCMessage *message)
{
	if (message != NULL)
		protobuf_c_message_free_unpacked(message, NULL);
}

static int try_call(struct import_calls *calls, const char *path, const ProtobufCMessage *request,
	struct answer *answer, struct err *err)
{
	int r = 0;
	if (calls->client == NULL)
		r = grpc_client_open(&calls->client, calls->endpoint, err);
	if (r == 0)
		r = grpc_client_call(calls->client, path, request, on_answer, answer, err);
	if (r == 0 && answer->message == NULL)
		r = err_set(
			err, ERR_INTERNAL, "%s: %s ended without an answer", calls->endpoint, path);
	if (r < 0) { /* what is left of the connection is not worth a guess */
		import_calls_close(calls);
		answer_free(answer->message);
		answer->message = NULL;
	}
	return r;
}

static bool is_later(const struct err *err)
{
	return err->code == ERR_PENDING || err->code == ERR_TIMEOUT;
}

bool import_unanswered(const struct err *err)
{
	return is_later(err) || err->code == ERR_UNAVAILABLE;
}

static uint64_t now_ms(void)
{
	return clock_monotonic_ns() / 1000000;
}

/* *ret: to be freed with answer_free(). */
static int call(struct import_calls *calls, const char *path, const ProtobufCMessage *request,
	const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret, struct err *err)
{
	const struct timespec pause = {.tv_nsec = 200000000};
	struct answer answer = {.type = type};
	uint64_t begun = now_ms(), heard = begun;
	for (;;) {
		struct err why = {0};
		int r = try_call(calls, path, request, &answer, &why);
		if (r == 0) {
			calls->answered = true;
			*ret = answer.message;
			return 0;
		}
		bool later = is_later(&why);
		if (later)
			heard = now_ms();
		bool away = why.code == ERR_UNAVAILABLE && calls->answered &&
			    now_ms() - heard < IMPORT_AWAY_MS;
		if ((!later && !away) || now_ms() - begun > IMPORT_LATER_MS) {
			*err = why;
			return r;
		}
		nanosleep(&pause, NULL);
	}
}

/* ---- requests ---- */

static ProtobufCBinaryData text(const char *s)
{
	return (ProtobufCBinaryData){.data = (uint8_t *)s, .len = strlen(s)};
}

/* What a volume is asked for with, for each of the calls. */
struct capability {
	Csi__V1__VolumeCapability cap;
	Csi__V1__VolumeCapability__AccessMode mode;
	Csi__V1__VolumeCapability__BlockVolume block;
	Csi__V1__VolumeCapability__MountVolume mount;
};

static void capability_init(struct capability *c, const char *fs)
{
	c->cap = (Csi__V1__VolumeCapability)CSI__V1__VOLUME_CAPABILITY__INIT;
	c->mode = (Csi__V1__VolumeCapability__AccessMode)
		CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__INIT;
	c->mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER;
	c->cap.access_mode = &c->mode;
	if (fs == NULL) {
		c->block = (Csi__V1__VolumeCapability__BlockVolume)
			CSI__V1__VOLUME_CAPABILITY__BLOCK_VOLUME__INIT;
		c->cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK;
		c->cap.block = &c->block;
		return;
	}
	c->mount = (Csi__V1__VolumeCapability__MountVolume)
		CSI__V1__VOLUME_CAPABILITY__MOUNT_VOLUME__INIT;
	c->mount.fs_type = text(fs);
	c->cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT;
	c->cap.mount = &c->mount;
}

static int keep_id(ProtobufCBinaryData id, char ret[RECORD_ID_MAX], struct err *err)
{
	if (id.len == 0 || id.len >= RECORD_ID_MAX)
		return err_set(
			err, ERR_INTERNAL, "the driver answers with an id of %zu bytes", id.len);
	memcpy(ret, id.data, id.len);
	ret[id.len] = '\0';
	return 0;
}

int import_create(struct import_calls *calls, struct import_volume *v, struct err *err)
{
	Csi__V1__CreateVolumeRequest request = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeContentSource source = CSI__V1__VOLUME_CONTENT_SOURCE__INIT;
	Csi__V1__VolumeContentSource__VolumeSource volume =
		CSI__V1__VOLUME_CONTENT_SOURCE__VOLUME_SOURCE__INIT;
	Csi__V1__StringPair pairs[4] = {CSI__V1__STRING_PAIR__INIT, CSI__V1__STRING_PAIR__INIT,
		CSI__V1__STRING_PAIR__INIT, CSI__V1__STRING_PAIR__INIT};
	Csi__V1__StringPair *parameters[4] = {&pairs[0], &pairs[1], &pairs[2], &pairs[3]};
	struct capability cap;
	capability_init(&cap, v->fs);
	Csi__V1__VolumeCapability *caps[] = {&cap.cap};
	request.name = text(v->name);
	range.required_bytes = (int64_t)v->bytes;
	request.capacity_range = &range;
	request.volume_capabilities = caps;
	request.n_volume_capabilities = 1;
	request.parameters = parameters;
	if (v->pool != NULL) {
		pairs[request.n_parameters].key = text("pool");
		pairs[request.n_parameters++].value = text(v->pool);
	}
	if (v->block_size != 0) {
		pairs[request.n_parameters].key = text("blockSize");
		pairs[request.n_parameters++].value = text(v->block_size == 512 ? "512" : "4096");
	}
	if (v->provisioning != NULL) {
		pairs[request.n_parameters].key = text("provisioning");
		pairs[request.n_parameters++].value = text(v->provisioning);
	}
	if (v->clone != NULL) {
		volume.volume_id = text(v->clone);
		source.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_VOLUME;
		source.volume = &volume;
		request.volume_content_source = &source;
	}
	/* Older drivers quarantine a volume that was made so: only where it is needed. */
	if (v->changes_mode) {
		pairs[request.n_parameters].key = text("allowVolumeModeChange");
		pairs[request.n_parameters++].value = text("true");
	}
	ProtobufCMessage *message = NULL;
	int r = call(calls, CONTROLLER "CreateVolume", &request.base,
		&csi__v1__create_volume_response__descriptor, &message, err);
	if (r < 0)
		return r;
	const Csi__V1__Volume *made = ((Csi__V1__CreateVolumeResponse *)message)->volume;
	if (made != NULL) {
		r = keep_id(made->volume_id, v->id, err);
		v->bytes = (uint64_t)made->capacity_bytes;
	} else {
		r = err_set(err, ERR_INTERNAL, "the driver answers without a volume");
	}
	answer_free(message);
	return r;
}

int import_delete(struct import_calls *calls, const char *id, struct err *err)
{
	Csi__V1__DeleteVolumeRequest request = CSI__V1__DELETE_VOLUME_REQUEST__INIT;
	request.volume_id = text(id);
	ProtobufCMessage *message = NULL;
	int r = call(calls, CONTROLLER "DeleteVolume", &request.base,
		&csi__v1__delete_volume_response__descriptor, &message, err);
	answer_free(message);
	return r;
}

int import_up(struct import_calls *calls, const struct import_volume *v, const char *staging,
	const char *target, struct err *err)
{
	Csi__V1__NodeStageVolumeRequest stage = CSI__V1__NODE_STAGE_VOLUME_REQUEST__INIT;
	Csi__V1__NodePublishVolumeRequest publish = CSI__V1__NODE_PUBLISH_VOLUME_REQUEST__INIT;
	struct capability cap;
	capability_init(&cap, v->fs);
	stage.volume_id = publish.volume_id = text(v->id);
	stage.staging_target_path = publish.staging_target_path = text(staging);
	stage.volume_capability = publish.volume_capability = &cap.cap;
	publish.target_path = text(target);
	ProtobufCMessage *message = NULL;
	int r = call(calls, NODE "NodeStageVolume", &stage.base,
		&csi__v1__node_stage_volume_response__descriptor, &message, err);
	answer_free(message);
	message = NULL;
	if (r == 0)
		r = call(calls, NODE "NodePublishVolume", &publish.base,
			&csi__v1__node_publish_volume_response__descriptor, &message, err);
	answer_free(message);
	return r;
}

int import_down(struct import_calls *calls, const char *id, const char *staging, const char *target,
	struct err *err)
{
	Csi__V1__NodeUnpublishVolumeRequest unpublish =
		CSI__V1__NODE_UNPUBLISH_VOLUME_REQUEST__INIT;
	Csi__V1__NodeUnstageVolumeRequest unstage = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	unpublish.volume_id = unstage.volume_id = text(id);
	unpublish.target_path = text(target);
	unstage.staging_target_path = text(staging);
	ProtobufCMessage *message = NULL;
	int r = call(calls, NODE "NodeUnpublishVolume", &unpublish.base,
		&csi__v1__node_unpublish_volume_response__descriptor, &message, err);
	answer_free(message);
	message = NULL;
	if (r == 0)
		r = call(calls, NODE "NodeUnstageVolume", &unstage.base,
			&csi__v1__node_unstage_volume_response__descriptor, &message, err);
	answer_free(message);
	return r;
}

int import_snapshot(struct import_calls *calls, const char *volume, const char *name,
	char ret_id[RECORD_ID_MAX], struct err *err)
{
	Csi__V1__CreateSnapshotRequest request = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	request.source_volume_id = text(volume);
	request.name = text(name);
	ProtobufCMessage *message = NULL;
	int r = call(calls, CONTROLLER "CreateSnapshot", &request.base,
		&csi__v1__create_snapshot_response__descriptor, &message, err);
	if (r < 0)
		return r;
	const Csi__V1__CreateSnapshotResponse *answer = (const void *)message;
	const Csi__V1__Snapshot *made = answer != NULL ? answer->snapshot : NULL;
	r = made == NULL ? err_set(err, ERR_INTERNAL, "the driver answers without a snapshot")
			 : keep_id(made->snapshot_id, ret_id, err);
	answer_free(message);
	return r;
}

/* ---- lists ---- */

static bool has_key(ProtobufCBinaryData id, const char *key)
{
	char whole[RECORD_ID_MAX];
	struct record_id parts;
	struct err ignored = {0};
	return keep_id(id, whole, &ignored) == 0 && record_id_parse(whole, &parts) == 0 &&
	       strcmp(parts.key, key) == 0;
}

struct page {
	size_t count;
	ProtobufCBinaryData next;
};

/* Of the entries of one page, whichever list it is of. */
static ProtobufCBinaryData entry_id(const ProtobufCMessage *message, bool snapshot, size_t i)
{
	const ProtobufCBinaryData none = {0};
	if (snapshot) {
		const Csi__V1__ListSnapshotsResponse *list = (const void *)message;
		const Csi__V1__ListSnapshotsResponse__Entry *entry = list->entries[i];
		return entry != NULL && entry->snapshot != NULL ? entry->snapshot->snapshot_id
								: none;
	}
	const Csi__V1__ListVolumesResponse *list = (const void *)message;
	const Csi__V1__ListVolumesResponse__Entry *entry = list->entries[i];
	return entry != NULL && entry->volume != NULL ? entry->volume->volume_id : none;
}

static struct page page_of(const ProtobufCMessage *message, bool snapshot)
{
	if (snapshot) {
		const Csi__V1__ListSnapshotsResponse *list = (const void *)message;
		return (struct page){list->n_entries, list->next_token};
	}
	const Csi__V1__ListVolumesResponse *list = (const void *)message;
	return (struct page){list->n_entries, list->next_token};
}

static int ask_page(struct import_calls *calls, bool snapshot, const char *token,
	ProtobufCMessage **ret, struct err *err)
{
	Csi__V1__ListVolumesRequest volumes = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
	Csi__V1__ListSnapshotsRequest snapshots = CSI__V1__LIST_SNAPSHOTS_REQUEST__INIT;
	volumes.max_entries = snapshots.max_entries = 1000;
	volumes.starting_token = snapshots.starting_token = text(token);
	return snapshot ? call(calls, CONTROLLER "ListSnapshots", &snapshots.base,
				  &csi__v1__list_snapshots_response__descriptor, ret, err)
			: call(calls, CONTROLLER "ListVolumes", &volumes.base,
				  &csi__v1__list_volumes_response__descriptor, ret, err);
}

int import_find(struct import_calls *calls, bool snapshot, const char *key,
	char ret_id[RECORD_ID_MAX], struct err *err)
{
	char *token = strdup("");
	int r = token == NULL ? -ENOMEM : 0;
	ret_id[0] = '\0';
	while (r == 0 && token != NULL && ret_id[0] == '\0') {
		ProtobufCMessage *message = NULL;
		r = ask_page(calls, snapshot, token, &message, err);
		free(token);
		token = NULL;
		if (r < 0 || message == NULL)
			break;
		struct page page = page_of(message, snapshot);
		for (size_t i = 0; i < page.count && ret_id[0] == '\0' && r == 0; i++)
			if (has_key(entry_id(message, snapshot, i), key))
				r = keep_id(entry_id(message, snapshot, i), ret_id, err);
		if (page.next.len != 0 &&
			(token = strndup((const char *)page.next.data, page.next.len)) == NULL)
			r = -ENOMEM;
		answer_free(message);
	}
	free(token);
	return r == -ENOMEM ? err_set(err, ERR_NO_ROOM, "out of memory") : r;
}
