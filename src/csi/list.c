/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading what exists: ListVolumes, ControllerListVolumeHealth, ListSnapshots, ControllerGetVolume,
 * GetSnapshot. All of it is in memory, so each answers at once.
 *
 * A page ends after max_entries, or LIST_PAGE_MAX where the client leaves it open: that many fit
 * into the largest message. The token for the next page is made of the place of the last object
 * looked at (token.h): it means "what comes behind", so it survives that object's deletion.
 */
#include "csi/health.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/token.h"
#include "node/health.h"
#include "pool/index.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	LIST_PAGE_MAX =
		4096, /* entries; each at most 1000 bytes, GRPC_MESSAGE_MAX_BYTES is 4 MiB */
	LIST_HEALTH_MAX = 1024, /* a health entry may have several sentences */
	LIST_SCAN_MAX = 10000,  /* objects looked at for one page: the loop serves others, too */
};

/* ---- a page ---- */

struct page;

/* The object's entry in the response; NULL: out of memory. */
typedef void *page_entry_fn(const struct page *page, const struct pool_object *object);

struct page {
	struct csi *csi;
	struct arena *arena;
	enum record_kind kind;
	page_entry_fn *entry;
	size_t most; /* entries; 0: LIST_PAGE_MAX */
	bool only_abnormal;
	const char *source_id; /* only snapshots of this volume, NULL: all */
	void **entries;
	size_t count;
	ProtobufCBinaryData next_token;
};

static bool page_wants(const struct page *page, const struct pool_object *object)
{
	if (record_is_inline(object->rec)) /* its pod's, and nobody else's to look after */
		return false;
	if (page->only_abnormal)
		return node_volume_abnormal(page->arena, page->csi->node, object) != NULL;
	return page->source_id == NULL || strcmp(object->rec->source_id, page->source_id) == 0;
}

/* What exists is only known once every pool has been read. A disk that is dead from the start on
 * does not keep the others' volumes from being listed for ever. */
static int check_loaded(const struct csi *csi, struct err *err)
{
	struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++)
		if (pool_is_being_read(pool))
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

static int out_of_memory(struct err *err)
{
	return err_set(err, ERR_NO_ROOM, "out of memory; ask for fewer entries (max_entries)");
}

static int page_start(struct page *page, size_t room, struct err *err)
{
	page->entries = arena_alloc(page->arena, room * sizeof(*page->entries));
	return page->entries != NULL ? 0 : out_of_memory(err);
}

static int page_add(struct page *page, const struct pool_object *object, struct err *err)
{
	void *entry = page->entry(page, object);
	if (entry == NULL)
		return out_of_memory(err);
	page->entries[page->count++] = entry;
	return 0;
}

/* A place has the form of an id, and differs from the object's where that has moved. */
static void place_print(const struct pool_object *object, char ret_place[RECORD_ID_MAX])
{
	snprintf(ret_place, RECORD_ID_MAX, "%s.%s.%s", pool_uuid8(object->pool), object->key,
		object->rec->random);
}

static int place_parse(
	enum record_kind kind, const char *token, struct pool_walk *ret, struct err *err)
{
	char place[RECORD_ID_MAX];
	struct record_id parsed;
	*ret = (struct pool_walk){0};
	int r = csi_token_parse(kind, token, place, err);
	if (r < 0 || record_id_parse(place, &parsed) < 0)
		return r;
	memcpy(ret->pool, parsed.pool, sizeof(ret->pool));
	memcpy(ret->key, parsed.key, sizeof(ret->key));
	return 0;
}

/* There is more behind the object `last`. */
static int page_end(struct page *page, const struct pool_object *last, struct err *err)
{
	char token[CSI_TOKEN_BYTES], place[RECORD_ID_MAX];
	place_print(last, place);
	csi_token_print(page->kind, place, token);
	const char *kept = arena_strdup(page->arena, token);
	if (kept == NULL)
		return out_of_memory(err);
	page->next_token = csi_bytes(kept);
	return 0;
}

static int page_fill(
	struct page *page, int32_t max_entries, ProtobufCBinaryData token, struct err *err)
{
	struct pool_walk walk;
	const struct pool_object *last = NULL;
	if (max_entries < 0)
		return err_set(err, ERR_INVALID, "max_entries: %d is negative", max_entries);
	int r = place_parse(page->kind, csi_str(token), &walk, err);
	if (r == 0)
		r = check_loaded(page->csi, err);
	size_t room = page_room(page, max_entries);
	if (r == 0)
		r = page_start(page, room, err);
	struct pool_object *object;
	for (size_t scanned = 0;
		r == 0 && (object = pools_next(page->csi->pools, page->kind, &walk)) != NULL;
		scanned++) {
		bool wanted = page_wants(page, object);
		bool full = scanned == LIST_SCAN_MAX || (wanted && page->count == room);
		if (full && last != NULL) /* room is for one at least */
			return page_end(page, last, err);
		if (wanted)
			r = page_add(page, object, err);
		last = object;
	}
	return r;
}

/* The three responses are alike, and types of their own. */
#define PAGE_ANSWER(response, page)                                                                \
	((response)->entries = (void *)(page)->entries, (response)->n_entries = (page)->count,     \
		(response)->next_token = (page)->next_token)

static void *list_entry(const struct page *page, const struct pool_object *object)
{
	return csi_list_entry(page->arena, page->csi, object);
}

/* ---- volumes ---- */

int csi_list_volumes(struct csi_query *q)
{
	const Csi__V1__ListVolumesRequest *req = q->request;
	Csi__V1__ListVolumesResponse *response = q->response;
	struct page page = {
		.csi = q->csi, .arena = q->arena, .kind = RECORD_VOLUME, .entry = list_entry};
	int r = page_fill(&page, req->max_entries, req->starting_token, &q->err);
	PAGE_ANSWER(response, &page);
	return r;
}

static void *health_entry(const struct page *page, const struct pool_object *volume)
{
	return csi_health_message(page->arena, page->csi, volume);
}

int csi_list_health(struct csi_query *q)
{
	const Csi__V1__ControllerListVolumeHealthRequest *req = q->request;
	Csi__V1__ControllerListVolumeHealthResponse *response = q->response;
	struct page page = {
		.csi = q->csi, .arena = q->arena, .kind = RECORD_VOLUME, .entry = health_entry};
	page.most = LIST_HEALTH_MAX;
	page.only_abnormal = true;
	int r = page_fill(&page, req->max_entries, req->starting_token, &q->err);
	PAGE_ANSWER(response, &page);
	return r;
}

int csi_get_volume(struct csi_query *q)
{
	const Csi__V1__ControllerGetVolumeRequest *req = q->request;
	Csi__V1__ControllerGetVolumeResponse *response = q->response;
	Csi__V1__ControllerGetVolumeResponse__VolumeStatus *status = csi_message_new(
		q->arena, &csi__v1__controller_get_volume_response__volume_status__descriptor);
	struct pool_object *volume;
	struct csi_usage usage;
	int r = pools_find_id(
		q->csi->pools, RECORD_VOLUME, csi_str(req->volume_id), &volume, &q->err);
	if (r == 0)
		r = pool_check_not_inline(volume, &q->err);
	if (r < 0)
		return r;
	response->volume = csi_volume_message(q->arena, q->csi, volume);
	response->status = status;
	if (response->volume == NULL || status == NULL ||
		csi_usage_fill(q->arena, q->csi, volume, &usage) < 0)
		return -ENOMEM;
	status->n_published_node_ids = usage.n_nodes;
	status->published_node_ids = usage.nodes;
	status->volume_condition = usage.condition;
	return 0;
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
	if (!page_wants(page, snapshot))
		return 0;
	r = page_start(page, 1, err);
	return r == 0 ? page_add(page, snapshot, err) : r;
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

int csi_list_snapshots(struct csi_query *q)
{
	const Csi__V1__ListSnapshotsRequest *req = q->request;
	Csi__V1__ListSnapshotsResponse *response = q->response;
	struct page page = {
		.csi = q->csi, .arena = q->arena, .kind = RECORD_SNAPSHOT, .entry = list_entry};
	int r = 0;
	if (req->source_volume_id.len != 0) {
		page.source_id = csi_str(req->source_volume_id);
		r = check_source(q->csi, page.source_id, &q->err);
	}
	if (r == 0 && req->snapshot_id.len != 0 && req->max_entries >= 0)
		r = page_fill_one(&page, csi_str(req->snapshot_id), &q->err);
	else if (r == 0)
		r = page_fill(&page, req->max_entries, req->starting_token, &q->err);
	PAGE_ANSWER(response, &page);
	return r;
}

int csi_get_snapshot(struct csi_query *q)
{
	const Csi__V1__GetSnapshotRequest *req = q->request;
	Csi__V1__GetSnapshotResponse *response = q->response;
	struct pool_object *snapshot;
	int r = pools_find_id(
		q->csi->pools, RECORD_SNAPSHOT, csi_str(req->snapshot_id), &snapshot, &q->err);
	if (r < 0)
		return r;
	response->snapshot = csi_snapshot_message(q->arena, q->csi, snapshot);
	return response->snapshot == NULL ? -ENOMEM : 0;
}
