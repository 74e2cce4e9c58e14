/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group is at home where its volumes are. Happy path: each source of the request has a pool that
 * a node has, and it is one node -> the request goes there as it came -> the members in its answer
 * are snapshots like others: their entries go into the store. How it can fail: the volumes are on
 * several nodes; a node is away. A group has no name in the cluster: a repeated request has the
 * same volumes, and so goes to the same node.
 */
#include "controller/groups.h"

#include "base/log.h"
#include "controller/entry.h"
#include "controller/forward.h"
#include "controller/home.h"
#include "controller/scan.h"
#include "csi/status.h"
#include "pool/record.h"

#include <stdlib.h>
#include <string.h>

enum {
	REQUEST_NAME = 1,    /* of CreateVolumeGroupSnapshotRequest */
	REQUEST_SOURCES = 2, /* likewise */
	DELETE_GROUP = 1,    /* of DeleteVolumeGroupSnapshotRequest */
	DELETE_MEMBERS = 2,  /* likewise */
	ANSWER_GROUP = 1,    /* of CreateVolumeGroupSnapshotResponse */
	GROUP_MEMBERS = 2,   /* of VolumeGroupSnapshot */
	ENTRY_SNAPSHOT = 1,  /* of ListSnapshotsResponse.Entry */
	SNAPSHOT_ID = 2,     /* of Snapshot */
	SNAPSHOT_SOURCE = 3,
	SNAPSHOT_GROUP = 6,
};

/* ---- where ---- */

/* A field as an id; "": it can be none. */
static void take_id(const struct scan_field *field, char ret_id[RECORD_ID_MAX])
{
	size_t len = field->wire == SCAN_BYTES && field->len < RECORD_ID_MAX ? field->len : 0;
	if (len != 0)
		memcpy(ret_id, field->data, len);
	ret_id[len] = '\0';
}

/* The node of all sources; NULL: none of them is an id of ours. */
static int find_home(const struct forward *f, struct store_node **ret, struct err *err)
{
	size_t len;
	const uint8_t *data = grpc_call_bytes(f->client, &len);
	struct scan scan = {data, data + len};
	struct scan_field field;
	char id[RECORD_ID_MAX], first[RECORD_ID_MAX] = "";
	int r;
	*ret = NULL;
	while ((r = scan_next(&scan, &field)) > 0) {
		struct store_node *node;
		if (field.number != REQUEST_SOURCES)
			continue;
		take_id(&field, id);
		r = home_of_id(f->controller->store, id, &node, err);
		if (r < 0)
			return r;
		if (node == NULL)
			continue;
		if (*ret != NULL && *ret != node)
			return err_set(err, ERR_PRECONDITION,
				"source_volume_ids: volume %s is on node %.64s and volume %s on node %.64s; a group snapshot is of the volumes of one pool",
				first, (*ret)->id, id, node->id);
		if (*ret == NULL)
			memcpy(first, id, sizeof(first));
		*ret = node;
	}
	return r < 0 ? err_set(err, ERR_INVALID, "the request is malformed") : 0;
}

static int pass_on(struct forward *f, struct err *err)
{
	struct store_node *node;
	char name[RECORD_NAME_MAX + 1];
	size_t len;
	const uint8_t *data = grpc_call_bytes(f->client, &len);
	int r = find_home(f, &node, err);
	if (r == 0 && node == NULL)
		node = home_anywhere(f->controller->store);
	if (r == 0 && node == NULL)
		r = err_set(
			err, ERR_UNAVAILABLE, "no node has joined this controller yet; try again");
	if (r == 0 && scan_string(data, len, REQUEST_NAME, name, sizeof(name)) == 0)
		f->subject = arena_strdup(f->arena, name);
	if (r == 0 && f->subject == NULL)
		r = err_set(err, ERR_NO_ROOM, "out of memory");
	return r == 0 ? forward_call(f, node, f->route->path, data, len, err) : r;
}

static void on_answer(struct forward *f, enum grpc_status status, const char *message)
{
	if (status == GRPC_OK)
		f->route->learn(f);
	forward_pass(f, status, message);
}

void create_group(struct controller *controller, struct grpc_call *call, const struct route *route)
{
	struct forward *f = calloc(1, sizeof(*f));
	struct err err = {0};
	if (f == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	f->on_answer = on_answer;
	forward_open(f, controller, call, route);
	if (pass_on(f, &err) < 0)
		forward_refuse(f, &err);
}

/* ---- what is learned ---- */

static int learn_member(const struct forward *f, const uint8_t *snapshot, size_t len)
{
	struct store *store = f->controller->store;
	struct store_node *node = store_node(store, f->node_id);
	char id[RECORD_ID_MAX], source[RECORD_ID_MAX];
	struct buf entry = {0};
	struct err err = {0};
	int r = scan_string(snapshot, len, SNAPSHOT_ID, id, sizeof(id));
	if (r == 0)
		r = scan_string(snapshot, len, SNAPSHOT_SOURCE, source, sizeof(source));
	if (r == 0)
		r = scan_append(&entry, ENTRY_SNAPSHOT, snapshot, len);
	if (r == 0)
		r = entry_check(STORE_SNAPSHOT, id, entry.data, entry.len, &err);
	if (r == 0 && node != NULL)
		r = store_object_set(store, node, STORE_SNAPSHOT, id, entry.data, entry.len, NULL,
			0, source, &err);
	buf_free(&entry);
	return r;
}

/* What cannot be read is told by the node's own reports. */
void learn_group(struct forward *f)
{
	const uint8_t *group;
	size_t len;
	struct scan_field field;
	int r = scan_bytes(f->answer.data, f->answer.len, ANSWER_GROUP, &group, &len);
	struct scan scan = {group, r < 0 || group == NULL ? group : group + len};
	while (r == 0 && scan.at != NULL && scan_next(&scan, &field) > 0)
		if (field.number == GROUP_MEMBERS && field.wire == SCAN_BYTES)
			r = learn_member(f, field.data, field.len);
	if (r < 0)
		log_event(LOG_LEVEL_WARN, "a node's answer is not taken note of",
			log_fields({"op", f->route->path}, {"node", f->node_id},
				{"why", "it lists a snapshot that cannot be read"}));
}

static bool is_of_group(const struct store *store, const char *id, const char *group_id)
{
	const struct store_object *object = store_object(store, id);
	char its[RECORD_ID_MAX] = "";
	const uint8_t *snapshot;
	size_t len;
	struct buf entry = {0};
	if (object == NULL || object->kind != STORE_SNAPSHOT)
		return false;
	int r = object_entry(object, &entry);
	if (r == 0)
		r = scan_bytes(entry.data, entry.len, ENTRY_SNAPSHOT, &snapshot, &len);
	if (r == 0 && snapshot != NULL)
		r = scan_string(snapshot, len, SNAPSHOT_GROUP, its, sizeof(its));
	buf_free(&entry);
	return r == 0 && its[0] != '\0' && strcmp(its, group_id) == 0;
}

/* Of what the client named, as far as it is of that group: a group that is not there is answered
 * with success whatever is named beside it. */
void learn_group_gone(struct forward *f)
{
	struct store *store = f->controller->store;
	char group_id[RECORD_ID_MAX], id[RECORD_ID_MAX];
	size_t len;
	const uint8_t *data = grpc_call_bytes(f->client, &len);
	struct scan scan = {data, data + len};
	struct scan_field field;
	if (scan_string(data, len, DELETE_GROUP, group_id, sizeof(group_id)) < 0)
		return;
	while (scan_next(&scan, &field) > 0) {
		if (field.number != DELETE_MEMBERS)
			continue;
		take_id(&field, id);
		if (is_of_group(store, id, group_id))
			store_object_remove(store, id);
	}
}
