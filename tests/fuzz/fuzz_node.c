/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes say to a controller: messages of Cluster.Join from two nodes that take turns, join,
 * leave and join again, into the store. What must hold: a refused message ends its call alone;
 * lists are in the order of ids and have as many as are counted; each object is in a pool whose
 * node has told it, and its entry is one that a client can read; limits hold; nothing is lost or
 * leaks.
 */
#include "fuzz.h"

#include "base/arena.h"
#include "base/log.h"
#include "controller/entry.h"
#include "controller/hear.h"
#include "controller/roster.h"

#include <string.h>

enum { NODES = 2, OBJECTS_LOOKED_AT = 200 };

static const struct grpc_peer any_node = {.role = GRPC_PEER_NODE, .node_id = "*"};

struct world {
	struct store *store;
	struct hear calls[NODES];
};

static void *alloc_in(void *arena, size_t size)
{
	return arena_alloc(arena, size);
}

static void free_in(void *arena, void *p)
{
	(void)arena;
	(void)p;
}

static void end_call(struct world *w, struct hear *h)
{
	if (h->node != NULL)
		store_leave(w->store, h->node);
	hear_free(h);
	*h = (struct hear){.store = w->store};
}

static void hear_message(struct world *w, struct hear *h, const Ringvol__V1__NodeReport *report)
{
	struct err err = {0};
	struct buf out = {0};
	bool synced = false;
	int r = 0;
	if (h->node == NULL && report->hello != NULL)
		r = hear_hello(h, report->hello, "csi.ringvol.dev", &any_node, &err);
	for (unsigned i = 0; i < NODES; i++) /* join.c would end the older call */
		if (&w->calls[i] != h && h->node != NULL && w->calls[i].node == h->node) {
			w->calls[i].node = NULL;
			end_call(w, &w->calls[i]);
		}
	if (r == 0 && h->node != NULL)
		r = hear_report(h, report, &out, &synced, &err);
	must((r < 0) == (err.code != ERR_OK));
	must(r == 0 || err.message[0] != '\0');
	if (out.len > 0) {
		Ringvol__V1__ControllerReport *said =
			ringvol__v1__controller_report__unpack(NULL, out.len, out.data);
		must(said != NULL && said->n_verdicts > 0);
		ringvol__v1__controller_report__free_unpacked(said, NULL);
	}
	buf_free(&out);
	if (r < 0)
		end_call(w, h);
}

static void take_message(struct world *w, struct hear *h, struct fuzz bytes)
{
	struct arena *arena = arena_new(4 << 20);
	ProtobufCAllocator allocator = {alloc_in, free_in, arena};
	must(arena != NULL);
	Ringvol__V1__NodeReport *report =
		ringvol__v1__node_report__unpack(&allocator, bytes.len, bytes.data);
	if (report != NULL)
		hear_message(w, h, report);
	arena_unref(arena);
}

static void check_object(const struct store_object *object)
{
	struct buf entry = {0};
	struct err err = {0};
	size_t len;
	const uint8_t *health = object_health(object, &len);
	must(object_entry(object, &entry) == 0);
	must(entry.len == object_entry_len(object));
	must(entry_check((enum store_kind)object->kind, object->id, entry.data, entry.len, &err) ==
		0);
	must(len == 0 || entry_check_health(object->id, health, len, &err) == 0);
	must(strncmp(object->id, object->pool->uuid8, STORE_UUID8) == 0);
	must(object->pool->node != NULL && object->pool->uuid[0] != '\0');
	buf_free(&entry);
}

static void check_store(struct world *w)
{
	struct store_stats stats;
	struct buf roster = {0};
	store_stats(w->store, &stats);
	must(stats.nodes[STORE_NODE_JOINING] + stats.nodes[STORE_NODE_PRESENT] <= NODES);
	for (enum store_kind kind = 0; kind < STORE_KINDS; kind++) {
		struct store_walk walk;
		const struct store_object *object;
		char last[RECORD_ID_MAX] = "";
		size_t n = 0;
		store_walk_begin(&walk, w->store, kind, "");
		while ((object = store_walk_next(&walk)) != NULL) {
			must(object->kind == kind && strcmp(last, object->id) < 0);
			must(store_object(w->store, object->id) == object);
			strcpy(last, object->id);
			if (n++ < OBJECTS_LOOKED_AT)
				check_object(object);
		}
		must(n == stats.objects[kind] && n == store_count(w->store, kind));
	}
	struct err err = {0};
	must((store_whole(w->store, &err) < 0) == (err.code != ERR_OK));
	must(roster_pack(w->store, &roster) == 0);
	Ringvol__V1__ControllerReport *said =
		ringvol__v1__controller_report__unpack(NULL, roster.len, roster.data);
	must(said != NULL && said->roster != NULL);
	ringvol__v1__controller_report__free_unpacked(said, NULL);
	buf_free(&roster);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz f = {data, len};
	struct world w = {0};
	uint32_t class;
	bool is_new;
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	must(store_open(&w.store) == 0);
	must(store_forget(w.store, "bbbbbbbb") == 0);
	must(store_class(w.store, (const uint8_t *)"x", 1, &class, &is_new) == 0);
	for (unsigned i = 0; i < NODES; i++)
		w.calls[i].store = w.store;
	while (f.len > 0) {
		uint8_t how = fuzz_byte(&f);
		struct hear *h = &w.calls[how & 1];
		if ((how & 2) != 0)
			end_call(&w, h);
		size_t want = (size_t)fuzz_byte(&f) << 8;
		want |= fuzz_byte(&f);
		take_message(&w, h, fuzz_take(&f, want));
		(void)hear_freed_pool(h);
		if ((how & 4) != 0)
			check_store(&w);
	}
	check_store(&w);
	for (unsigned i = 0; i < NODES; i++)
		end_call(&w, &w.calls[i]);
	store_close(w.store);
	return 0;
}
