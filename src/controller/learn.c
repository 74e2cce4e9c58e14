/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers as entries of lists. CreateVolumeResponse and ListVolumesResponse.Entry both have their
 * volume in field 1, and so have those of snapshots: the answer is the entry.
 */
#include "controller/learn.h"

#include "base/log.h"
#include "controller/entry.h"
#include "controller/forward.h"
#include "controller/scan.h"
#include "csi.pb-c.h"
#include "pool/record.h"

#include <errno.h>
#include <string.h>

enum {
	MADE = 1,            /* of the answers, and of the entries */
	VOLUME_ID = 2,       /* of Volume */
	SNAPSHOT_ID = 2,     /* of Snapshot */
	SNAPSHOT_SOURCE = 3, /* of Snapshot */
};

static void say(const struct forward *f, const char *id, const char *why)
{
	log_event(LOG_LEVEL_WARN, "a node's answer is not taken note of",
		log_fields({"op", f->route->path}, {"node", f->node_id}, {"id", id}, {"why", why}));
}

static int read_made(
	const struct forward *f, char ret_id[RECORD_ID_MAX], char ret_source[RECORD_ID_MAX])
{
	const uint8_t *made;
	size_t len;
	int r = scan_bytes(f->answer.data, f->answer.len, MADE, &made, &len);
	bool volume = f->route->kind == STORE_VOLUME;
	ret_source[0] = '\0';
	if (r == 0)
		r = scan_string(made, len, volume ? VOLUME_ID : SNAPSHOT_ID, ret_id, RECORD_ID_MAX);
	if (r == 0 && !volume)
		r = scan_string(made, len, SNAPSHOT_SOURCE, ret_source, RECORD_ID_MAX);
	return r;
}

int learn_check_made(const struct forward *f, struct err *err)
{
	char id[RECORD_ID_MAX], source[RECORD_ID_MAX];
	struct record_id parsed;
	if (read_made(f, id, source) < 0 || record_id_parse(id, &parsed) < 0)
		return err_set(
			err, ERR_INTERNAL, "node %s: it answers without an id of ours", f->node_id);
	if (strcmp(parsed.key, f->key) != 0)
		return err_set(err, ERR_INTERNAL, "node %s: it answers with %s, of another name",
			f->node_id, id);
	/* One that was there before may have moved. */
	const struct store_object *known = store_object(f->controller->store, id);
	const struct store_pool *pool =
		known != NULL ? known->pool : store_pool(f->controller->store, parsed.pool);
	if (pool == NULL || pool->node == NULL)
		return err_set(err, ERR_UNAVAILABLE,
			"node %s: it answers with %s, of a pool that it has not told of yet; try again",
			f->node_id, id);
	if (strcmp(pool->node->id, f->node_id) != 0)
		return err_set(err, ERR_INTERNAL,
			"node %s: it answers with %s, of a pool of node %s", f->node_id, id,
			pool->node->id);
	return 0;
}

void learn_made(struct forward *f)
{
	struct store *store = f->controller->store;
	struct store_node *node = store_node(store, f->node_id);
	char id[RECORD_ID_MAX], source[RECORD_ID_MAX];
	struct err err = {0};
	if (node == NULL)
		return;
	if (read_made(f, id, source) < 0)
		say(f, "", "it is no message");
	else if (entry_check(f->route->kind, id, f->answer.data, f->answer.len, &err) < 0 ||
		 store_object_set(store, node, f->route->kind, id, f->answer.data, f->answer.len,
			 NULL, 0, source, &err) < 0)
		say(f, id, err.message);
}

static int asked_id(const struct forward *f, char ret_id[RECORD_ID_MAX])
{
	size_t len;
	const uint8_t *request = grpc_call_bytes(f->client, &len);
	return scan_string(request, len, f->route->id, ret_id, RECORD_ID_MAX);
}

void learn_gone(struct forward *f)
{
	char id[RECORD_ID_MAX];
	if (asked_id(f, id) == 0)
		store_object_remove(f->controller->store, id);
}

/* The entry with another capacity. 0; -EBADMSG: it cannot be read; -ENOMEM. */
static int resize(const struct store_object *object, int64_t capacity_bytes, struct buf *out)
{
	struct buf old = {0};
	int r = object_entry(object, &old);
	ProtobufCMessage *message =
		r == 0 ? protobuf_c_message_unpack(
				 &csi__v1__list_volumes_response__entry__descriptor, NULL, old.len,
				 old.data)
		       : NULL;
	Csi__V1__ListVolumesResponse__Entry *entry = (void *)message;
	if (message == NULL || entry->volume == NULL) {
		r = r < 0 ? r : -EBADMSG;
	} else {
		entry->volume->capacity_bytes = capacity_bytes;
		size_t len = protobuf_c_message_get_packed_size(message);
		uint8_t *at = buf_reserve(out, len);
		if (at != NULL)
			out->len += protobuf_c_message_pack(message, at);
		r = at != NULL ? 0 : -ENOMEM;
	}
	if (message != NULL)
		protobuf_c_message_free_unpacked(message, NULL);
	buf_free(&old);
	return r;
}

static int set_grown(
	const struct forward *f, const char *id, int64_t capacity_bytes, struct err *err)
{
	struct store *store = f->controller->store;
	const struct store_object *object = store_object(store, id);
	struct store_node *node = store_node(store, f->node_id);
	struct buf entry = {0}, health = {0};
	if (object == NULL || node == NULL || object->kind != STORE_VOLUME)
		return 0;
	size_t health_len;
	const uint8_t *of = object_health(object, &health_len);
	int r = resize(object, capacity_bytes, &entry);
	/* What is set may take the place of what it is made of. */
	if (r == 0)
		r = buf_append(&health, of, health_len);
	if (r == 0)
		r = store_object_set(store, node, STORE_VOLUME, id, entry.data, entry.len,
			health.data, health.len, "", err);
	else
		err_sys(err, r, "its entry cannot be written anew");
	buf_free(&entry);
	buf_free(&health);
	return r;
}

void learn_grown(struct forward *f)
{
	struct err err = {0};
	char id[RECORD_ID_MAX];
	Csi__V1__ControllerExpandVolumeResponse *answer =
		csi__v1__controller_expand_volume_response__unpack(
			NULL, f->answer.len, f->answer.data);
	if (answer == NULL || asked_id(f, id) < 0)
		say(f, "", "it is no message");
	else if (set_grown(f, id, answer->capacity_bytes, &err) < 0)
		say(f, id, err.message);
	if (answer != NULL)
		csi__v1__controller_expand_volume_response__free_unpacked(answer, NULL);
}
