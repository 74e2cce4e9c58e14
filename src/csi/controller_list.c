/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading what exists: ListVolumes, ControllerListVolumeHealth, ListSnapshots, ControllerGetVolume,
 * GetSnapshot. All of it is
 * in memory, so each answers at once.
 *
 * A page ends after max_entries, or LIST_PAGE_MAX where the client leaves it open: that many fit
 * into the largest message. The token for the next page is the id of the last object looked at,
 * with a checksum: it means "what comes behind", so it survives that object's deletion, and a
 * client's invention is told from it.
 */
#include "csi/controller.h"

#include <inttypes.h>
#include <stdio.h>

enum {
	LIST_PAGE_MAX =
		4096, /* entries; each at most 1000 bytes, GRPC_MESSAGE_MAX_BYTES is 4 MiB */
	LIST_HEALTH_MAX = 1024, /* a health entry may have several sentences */
	LIST_SCAN_MAX = 10000,  /* objects looked at for one page: the loop serves others, too */
	TOKEN_BYTES = 2 + 8 + 1 + RECORD_ID_MAX,
};

/* ---- tokens: "v:<checksum, 8>:<id>", or "s:" for snapshots ---- */

static char token_letter(enum record_kind kind)
{
	return kind == RECORD_VOLUME ? 'v' : 's';
}

static void token_print(enum record_kind kind, const char *id, char ret_token[TOKEN_BYTES])
{
	uint32_t sum = 0x811c9dc5; /* FNV-1a */
	for (const char *p = id; *p != '\0'; p++)
		sum = (sum ^ (unsigned char)*p) * 0x01000193;
	snprintf(ret_token, TOKEN_BYTES, "%c:%08" PRIx32 ":%s", token_letter(kind), sum, id);
}

/* The id to go on behind; "" for an empty token. */
static int token_parse(
	enum record_kind kind, const char *token, char ret_id[RECORD_ID_MAX], struct err *err)
{
	char again[TOKEN_BYTES];
	size_t len = strlen(token);
	ret_id[0] = '\0';
	if (len == 0)
		return 0;
	if (len > 11 && len - 11 < RECORD_ID_MAX) {
		strcpy(ret_id, token + 11);
		token_print(kind, ret_id, again);
		if (strcmp(again, token) == 0)
			return 0;
	}
	return err_set(err, ERR_PENDING,
		"starting_token: is none of this driver's; list again from the start");
}

/* ---- a page ---- */

struct page {
	struct csi *csi;
	struct arena *arena;
	enum record_kind kind;
	size_t most; /* entries; 0: LIST_PAGE_MAX */
	bool only_abnormal;
	const char *source_id; /* only snapshots of this volume, NULL: all */
	struct pool_object **objects;
	size_t count;
	const char *next_token;
};

static bool page_wants(const struct page *page, const struct pool_object *object)
{
	if (page->only_abnormal)
		return node_volume_abnormal(page->arena, page->csi->node, object) != NULL;
	return page->source_id == NULL || strcmp(object->rec->source_id, page->source_id) == 0;
}

/* What exists is only known once every pool has been read. */
static int check_loaded(const struct csi *csi, struct err *err)
{
	struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++)
		if (pool_state(pool) == POOL_LOADING)
			return err_set(err, ERR_UNAVAILABLE,
				"pool %s is still being read; try again", pool_name(pool));
	return 0;
}

static size_t page_room(const struct page *page, int32_t max_entries)
{
	size_t total = 0, most = page->most != 0 ? page->most : LIST_PAGE_MAX;
	struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(page->csi->pools, i)) != NULL; i++)
		total += pool_count(pool, page->kind);
	if (total > most)
		total = most;
	return max_entries != 0 && (size_t)max_entries < total ? (size_t)max_entries : total;
}

/* There is more behind the object `last`. */
static int page_end(struct page *page, const char *last, struct err *err)
{
	char token[TOKEN_BYTES];
	token_print(page->kind, last, token);
	page->next_token = arena_strdup(page->arena, token);
	return page->next_token == NULL ? err_set(err, ERR_NO_ROOM, "out of memory") : 0;
}

static int page_fill(struct page *page, int32_t max_entries, const char *token, struct err *err)
{
	char id[RECORD_ID_MAX], last[RECORD_ID_MAX] = "";
	if (max_entries < 0)
		return err_set(err, ERR_INVALID, "max_entries: %d is negative", max_entries);
	int r = token_parse(page->kind, token, id, err);
	if (r == 0)
		r = check_loaded(page->csi, err);
	if (r < 0)
		return r;
	size_t room = page_room(page, max_entries);
	page->objects = arena_alloc(page->arena, room * sizeof(struct pool_object *));
	if (page->objects == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory; ask for fewer entries");
	struct pool_object *object;
	for (size_t scanned = 0; (object = pools_next(page->csi->pools, page->kind, id)) != NULL;
		scanned++) {
		pool_object_id(object, id);
		bool wanted = page_wants(page, object);
		if (scanned == LIST_SCAN_MAX || (wanted && page->count == room))
			return page_end(page, last, err);
		if (wanted)
			page->objects[page->count++] = object;
		memcpy(last, id, sizeof(last));
	}
	return 0;
}

static void refuse_memory(struct csi *csi, struct grpc_call *call)
{
	struct err err = {0};
	err_set(&err, ERR_NO_ROOM, "out of memory; ask for fewer entries (max_entries)");
	csi_refuse(csi, call, &err);
}

/* Makes the object's entry and puts it into the response; false: out of memory. */
typedef bool page_add_fn(
	const struct page *page, const struct pool_object *object, ProtobufCMessage *response);

/* The response's entries have room for page->count, or are NULL for want of memory. */
static void page_reply(const struct page *page, struct grpc_call *call, page_add_fn *add,
	ProtobufCMessage *response, ProtobufCBinaryData *next_token)
{
	for (size_t i = 0; i < page->count; i++)
		if (!add(page, page->objects[i], response)) {
			refuse_memory(page->csi, call);
			return;
		}
	if (page->next_token != NULL)
		*next_token = csi_bytes(page->next_token);
	grpc_reply(call, response);
}

/* ---- volumes ---- */

static Csi__V1__ListVolumesResponse__Entry *volume_entry(
	const struct page *page, const struct pool_object *volume)
{
	Csi__V1__ListVolumesResponse__Entry *entry =
		arena_new_of(page->arena, Csi__V1__ListVolumesResponse__Entry);
	Csi__V1__ListVolumesResponse__VolumeStatus *status =
		arena_new_of(page->arena, Csi__V1__ListVolumesResponse__VolumeStatus);
	struct csi_usage usage;
	if (entry == NULL || status == NULL ||
		csi_usage_fill(page->arena, page->csi, volume, &usage) < 0)
		return NULL;
	csi__v1__list_volumes_response__volume_status__init(status);
	status->n_published_node_ids = usage.n_nodes;
	status->published_node_ids = usage.nodes;
	status->volume_condition = usage.condition;
	csi__v1__list_volumes_response__entry__init(entry);
	entry->volume = csi_volume_message(page->arena, page->csi, volume);
	entry->status = status;
	return entry->volume == NULL ? NULL : entry;
}

static bool add_volume(
	const struct page *page, const struct pool_object *object, ProtobufCMessage *message)
{
	Csi__V1__ListVolumesResponse *response = (void *)message;
	Csi__V1__ListVolumesResponse__Entry *entry = volume_entry(page, object);
	if (response->entries == NULL || entry == NULL)
		return false;
	response->entries[response->n_entries++] = entry;
	return true;
}

void csi_list_volumes(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__ListVolumesRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct page page = {.csi = csi, .arena = grpc_call_arena(call), .kind = RECORD_VOLUME};
	struct err err = {0};
	Csi__V1__ListVolumesResponse response = CSI__V1__LIST_VOLUMES_RESPONSE__INIT;

	if (page_fill(&page, req->max_entries, csi_str(req->starting_token), &err) < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	response.entries = arena_alloc(page.arena, page.count * sizeof(*response.entries));
	page_reply(&page, call, add_volume, &response.base, &response.next_token);
}

static bool add_health(
	const struct page *page, const struct pool_object *object, ProtobufCMessage *message)
{
	Csi__V1__ControllerListVolumeHealthResponse *response = (void *)message;
	Csi__V1__VolumeHealth *entry = csi_health_message(page->arena, page->csi, object);
	if (response->entries == NULL || entry == NULL)
		return false;
	response->entries[response->n_entries++] = entry;
	return true;
}

void csi_list_health(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__ControllerListVolumeHealthRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct page page = {.csi = csi,
		.arena = grpc_call_arena(call),
		.kind = RECORD_VOLUME,
		.most = LIST_HEALTH_MAX,
		.only_abnormal = true};
	struct err err = {0};
	Csi__V1__ControllerListVolumeHealthResponse response =
		CSI__V1__CONTROLLER_LIST_VOLUME_HEALTH_RESPONSE__INIT;

	if (page_fill(&page, req->max_entries, csi_str(req->starting_token), &err) < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	response.entries = arena_alloc(page.arena, page.count * sizeof(*response.entries));
	page_reply(&page, call, add_health, &response.base, &response.next_token);
}

void csi_get_volume(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__ControllerGetVolumeRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct arena *arena = grpc_call_arena(call);
	const char *id = csi_str(req->volume_id);
	struct pool_object *volume;
	struct csi_usage usage;
	struct err err = {0};

	int r = id[0] == '\0' ? err_set(&err, ERR_INVALID, "volume_id is missing") : 0;
	if (r == 0)
		r = pools_find_id(csi->pools, RECORD_VOLUME, id, &volume, &err);
	if (r < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	Csi__V1__ControllerGetVolumeResponse response =
		CSI__V1__CONTROLLER_GET_VOLUME_RESPONSE__INIT;
	Csi__V1__ControllerGetVolumeResponse__VolumeStatus status =
		CSI__V1__CONTROLLER_GET_VOLUME_RESPONSE__VOLUME_STATUS__INIT;
	response.volume = csi_volume_message(arena, csi, volume);
	if (response.volume == NULL || csi_usage_fill(arena, csi, volume, &usage) < 0) {
		refuse_memory(csi, call);
		return;
	}
	status.n_published_node_ids = usage.n_nodes;
	status.published_node_ids = usage.nodes;
	status.volume_condition = usage.condition;
	response.status = &status;
	grpc_reply(call, &response.base);
}

/* ---- snapshots ---- */

/* The page for a request that names a snapshot: it alone, or nothing. */
static int page_fill_one(struct page *page, const char *snapshot_id, struct err *err)
{
	struct pool_object *snapshot;
	struct err found = {0};
	int r = pools_find_id(page->csi->pools, RECORD_SNAPSHOT, snapshot_id, &snapshot, &found);
	if (r < 0) {
		/* An empty answer means "gone for good": not while its pool is away. */
		if (found.code == ERR_NOT_FOUND)
			return 0;
		*err = found;
		return r;
	}
	page->objects = arena_new_of(page->arena, struct pool_object *);
	if (page->objects == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	page->objects[0] = snapshot;
	page->count = page_wants(page, snapshot) ? 1 : 0;
	return 0;
}

/* A volume may be gone and its snapshots be there. They are in its pool: while that is not here, an
 * empty list would say that there are none. */
static int check_source(const struct csi *csi, const char *volume_id, struct err *err)
{
	struct pool_object *volume;
	struct err found = {0};
	if (pools_find_id(csi->pools, RECORD_VOLUME, volume_id, &volume, &found) == 0 ||
		found.code != ERR_UNAVAILABLE)
		return 0;
	return err_set(err, ERR_UNAVAILABLE, "%s", found.message);
}

static Csi__V1__ListSnapshotsResponse__Entry *snapshot_entry(
	const struct page *page, const struct pool_object *snapshot)
{
	Csi__V1__ListSnapshotsResponse__Entry *entry =
		arena_new_of(page->arena, Csi__V1__ListSnapshotsResponse__Entry);
	if (entry == NULL)
		return NULL;
	csi__v1__list_snapshots_response__entry__init(entry);
	entry->snapshot = csi_snapshot_message(page->arena, page->csi, snapshot);
	return entry->snapshot == NULL ? NULL : entry;
}

static bool add_snapshot(
	const struct page *page, const struct pool_object *object, ProtobufCMessage *message)
{
	Csi__V1__ListSnapshotsResponse *response = (void *)message;
	Csi__V1__ListSnapshotsResponse__Entry *entry = snapshot_entry(page, object);
	if (response->entries == NULL || entry == NULL)
		return false;
	response->entries[response->n_entries++] = entry;
	return true;
}

void csi_list_snapshots(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__ListSnapshotsRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct page page = {.csi = csi, .arena = grpc_call_arena(call), .kind = RECORD_SNAPSHOT};
	const char *id = csi_str(req->snapshot_id);
	struct err err = {0};
	Csi__V1__ListSnapshotsResponse response = CSI__V1__LIST_SNAPSHOTS_RESPONSE__INIT;

	if (req->source_volume_id.len != 0)
		page.source_id = csi_str(req->source_volume_id);
	int r = page.source_id == NULL ? 0 : check_source(csi, page.source_id, &err);
	if (r == 0)
		r = id[0] != '\0' && req->max_entries >= 0
			    ? page_fill_one(&page, id, &err)
			    : page_fill(
				      &page, req->max_entries, csi_str(req->starting_token), &err);
	if (r < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	response.entries = arena_alloc(page.arena, page.count * sizeof(*response.entries));
	page_reply(&page, call, add_snapshot, &response.base, &response.next_token);
}

void csi_get_snapshot(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__GetSnapshotRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	const char *id = csi_str(req->snapshot_id);
	struct pool_object *snapshot;
	struct err err = {0};

	int r = id[0] == '\0' ? err_set(&err, ERR_INVALID, "snapshot_id is missing") : 0;
	if (r == 0)
		r = pools_find_id(csi->pools, RECORD_SNAPSHOT, id, &snapshot, &err);
	if (r < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	Csi__V1__GetSnapshotResponse response = CSI__V1__GET_SNAPSHOT_RESPONSE__INIT;
	response.snapshot = csi_snapshot_message(grpc_call_arena(call), csi, snapshot);
	if (response.snapshot == NULL) {
		refuse_memory(csi, call);
		return;
	}
	grpc_reply(call, &response.base);
}
