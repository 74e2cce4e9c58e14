/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page is put together from packed entries, in the order of ids over all nodes, behind the
 * token's: what comes and goes meanwhile changes nothing of the rest. An object that has moved is
 * where its pool is; one that moves between two pages may be in both or in none of them, as if it
 * had come or gone. A page ends where the client wants, or where the largest message, or the time
 * that the loop gives one call, does.
 */
#include "controller/lists.h"

#include "controller/home.h"
#include "controller/request.h"
#include "controller/scan.h"
#include "csi.pb-c.h"
#include "csi/request.h"
#include "csi/status.h"
#include "csi/token.h"

#include <stdio.h>
#include <string.h>

/* Numbers of fields, the same in all three responses. */
enum { RESPONSE_ENTRIES = 1, RESPONSE_NEXT_TOKEN = 2 };

struct page;

/* Appends the object's entry. 0 or -ENOMEM. */
typedef int page_entry_fn(struct page *page, const struct store_object *object);
typedef bool page_wants_fn(const struct page *page, const struct store_object *object);

struct page {
	struct store *store;
	enum store_kind kind;
	page_entry_fn *entry;
	page_wants_fn *wants; /* NULL: all */
	int32_t max_entries;  /* 0: the client leaves it open */
	const char *token;
	/* Snapshots of one volume alone: they are in the pool of its id, or among those of volumes
	 * that have moved. "": all */
	const char *source_id;
	char source_pool[STORE_UUID8 + 1];
	struct buf out, scratch;
	struct err err;
};

static int out_of_memory(struct page *page)
{
	return err_set(
		&page->err, ERR_NO_ROOM, "out of memory; ask for fewer entries (max_entries)");
}

/* ---- entries ---- */

static int whole_entry(struct page *page, const struct store_object *object)
{
	page->scratch.len = 0;
	int r = object_entry(object, &page->scratch);
	return r < 0 ? r
		     : scan_append(
			       &page->out, RESPONSE_ENTRIES, page->scratch.data, page->scratch.len);
}

static int health_entry(struct page *page, const struct store_object *object)
{
	size_t len;
	const uint8_t *health = object_health(object, &len);
	return scan_append(&page->out, RESPONSE_ENTRIES, health, len);
}

static bool is_abnormal(const struct page *page, const struct store_object *object)
{
	(void)page;
	return object->health_len > 0;
}

static bool is_of_source(const struct page *page, const struct store_object *object)
{
	return strcmp(object_source(object), page->source_id) == 0;
}

/* ---- a page ---- */

static int page_end(struct page *page, const char *last)
{
	char token[CSI_TOKEN_BYTES];
	csi_token_print((enum record_kind)page->kind, last, token);
	return scan_append(&page->out, RESPONSE_NEXT_TOKEN, token, strlen(token)) < 0
		       ? out_of_memory(page)
		       : 0;
}

static int page_walk(struct page *page, const char *after)
{
	size_t most = page->max_entries > 0 ? (size_t)page->max_entries : LISTS_PAGE_MAX;
	size_t count = 0;
	const struct store_object *object;
	struct store_walk walk;
	char last[RECORD_ID_MAX];
	store_walk_begin(&walk, page->store, page->kind, after);
	if (page->source_pool[0] != '\0')
		walk.source = page->source_pool;
	for (size_t scanned = 0; (object = store_walk_next(&walk)) != NULL; scanned++) {
		bool wanted = page->wants == NULL || page->wants(page, object);
		if (scanned == LISTS_SCAN_MAX ||
			(wanted && (count == most || page->out.len >= LISTS_PAGE_BYTES)))
			return page_end(page, last);
		if (wanted && page->entry(page, object) < 0)
			return out_of_memory(page);
		count += wanted;
		store_place(object, last);
	}
	return 0;
}

static int page_fill(struct page *page)
{
	char after[RECORD_ID_MAX];
	if (page->max_entries < 0)
		return err_set(
			&page->err, ERR_INVALID, "max_entries: %d is negative", page->max_entries);
	int r = csi_token_parse((enum record_kind)page->kind, page->token, after, &page->err);
	if (r == 0)
		r = store_whole(page->store, &page->err);
	return r == 0 ? page_walk(page, after) : r;
}

static void page_answer(struct page *page, struct grpc_call *call, int r)
{
	if (r < 0)
		csi_refuse(call, &page->err);
	else
		grpc_reply_bytes(call, page->out.data, page->out.len);
	buf_free(&page->out);
	buf_free(&page->scratch);
}

/* ---- volumes ---- */

void list_volumes(struct controller *c, struct grpc_call *call, const struct route *route)
{
	struct page page = {.store = c->store, .kind = route->kind, .entry = whole_entry};
	const Csi__V1__ListVolumesRequest *request = (const void *)request_unpack(
		call, &csi__v1__list_volumes_request__descriptor, &page.err);
	int r = -1;
	if (request != NULL) {
		page.max_entries = request->max_entries;
		page.token = csi_str(request->starting_token);
		r = page_fill(&page);
	}
	page_answer(&page, call, r);
}

void list_health(struct controller *c, struct grpc_call *call, const struct route *route)
{
	struct page page = {.store = c->store,
		.kind = route->kind,
		.entry = health_entry,
		.wants = is_abnormal};
	const Csi__V1__ControllerListVolumeHealthRequest *request = (const void *)request_unpack(
		call, &csi__v1__controller_list_volume_health_request__descriptor, &page.err);
	int r = -1;
	if (request != NULL) {
		page.max_entries = request->max_entries;
		page.token = csi_str(request->starting_token);
		r = page_fill(&page);
	}
	page_answer(&page, call, r);
}

/* ---- snapshots ---- */

/* The page for a request that names a snapshot: it alone, or nothing. An empty answer means "gone
 * for good": not while its pool is away, or its node still tells. */
static int page_one(struct page *page, const char *id)
{
	const struct store_object *object = store_object(page->store, id);
	struct store_node *node = NULL;
	if (object != NULL && object->kind == page->kind) {
		bool wanted = page->wants == NULL || page->wants(page, object);
		return wanted && page->entry(page, object) < 0 ? out_of_memory(page) : 0;
	}
	struct err why = {0};
	if (home_of_id(page->store, id, &node, &why) < 0) {
		if (why.code == ERR_NOT_FOUND)
			return 0;
		return err_set(&page->err, why.code, "%s", why.message);
	}
	struct record_id parsed;
	if (node == NULL || record_id_parse(id, &parsed) < 0)
		return 0; /* it is no id of ours */
	const struct store_pool *pool = store_pool(page->store, parsed.pool);
	if (node->state == STORE_NODE_PRESENT && store_pool_here(pool) &&
		(pool->state == STORE_POOL_READY || pool->state == STORE_POOL_SICK))
		return 0;
	return err_set(&page->err, ERR_UNAVAILABLE,
		"%s: node %s has not told all that pool %s has; try again", id, node->id,
		parsed.pool);
}

/* A volume may be gone and its snapshots be there. They are in the pool of its id, if it has not
 * moved: while nobody has told of that, an empty list would say that there are none. */
static int page_source(struct page *page, const char *volume_id)
{
	struct record_id parsed;
	struct store_node *node;
	struct err why = {0};
	page->source_id = volume_id;
	page->wants = is_of_source;
	if (record_id_parse(volume_id, &parsed) < 0)
		return 0;
	memcpy(page->source_pool, parsed.pool, sizeof(page->source_pool));
	const struct store_pool *pool = store_pool(page->store, parsed.pool);
	if ((pool != NULL && pool->uuid[0] != '\0') ||
		home_of_id(page->store, volume_id, &node, &why) == 0 || why.code == ERR_NOT_FOUND)
		return 0;
	return err_set(&page->err, why.code, "%s", why.message);
}

void list_snapshots(struct controller *c, struct grpc_call *call, const struct route *route)
{
	struct page page = {.store = c->store, .kind = route->kind, .entry = whole_entry};
	const Csi__V1__ListSnapshotsRequest *request = (const void *)request_unpack(
		call, &csi__v1__list_snapshots_request__descriptor, &page.err);
	int r = request != NULL ? 0 : -1;
	if (r == 0 && request->source_volume_id.len != 0)
		r = page_source(&page, csi_str(request->source_volume_id));
	if (r == 0) {
		page.max_entries = request->max_entries;
		page.token = csi_str(request->starting_token);
		r = request->snapshot_id.len != 0 && request->max_entries >= 0
			    ? page_one(&page, csi_str(request->snapshot_id))
			    : page_fill(&page);
	}
	page_answer(&page, call, r);
}
