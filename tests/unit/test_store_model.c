/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store against a model of it that is too simple to be wrong: arrays that are looked through
 * from end to end. Thousands of random operations on few nodes, pools and names, and after each
 * round everything that can be asked. RINGVOL_SEED repeats a run; the seed is in each message.
 *
 * And what the store costs: memory for an object, and that no order of reports is slow.
 */
#include "base/clock.h"
#include "controller/store.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 5, POOLS = 7, KEYS = 6, RANDOMS = 3, ROUNDS = 20000, OBJECTS_MAX = 2000 };

static unsigned seed, rounds_done;
#define must(condition)                                                                            \
	cr_assert((condition), "seed %u, round %u: %s", seed, rounds_done, #condition)

static uint64_t state;

static unsigned below(unsigned limit)
{
	state = state * 6364136223846793005 + 1442695040888963407;
	return (unsigned)(state >> 33) % limit;
}

/* ---- the model ---- */

static struct model_node {
	enum store_node_state state;
	bool known, told_all, vouched;
	unsigned join, instance, instance_join;
	struct store_node *real;
} nodes[NODES];

static struct model_pool {
	bool known, forgotten, rostered;
	int node; /* -1: none */
	unsigned told;
	enum store_pool_state state;
} pools[POOLS];
static bool was_told[POOLS]; /* ever */

/* By the pool that the id begins with. */
static struct model_object {
	bool there, buried;
	unsigned where, moves;         /* in that pool, since so many moves */
	unsigned source;               /* of a snapshot: its volume's id begins with this pool */
	unsigned buried_at, buried_in; /* joins, then; where it was */
	unsigned told, text;
} objects[STORE_KINDS][POOLS][KEYS][RANDOMS];

#define each_object(o, kind, b, k, r)                                                              \
	for (unsigned kind = 0; kind < STORE_KINDS; kind++)                                        \
		for (unsigned b = 0; b < POOLS; b++)                                               \
			for (unsigned k = 0; k < KEYS; k++)                                        \
				for (unsigned r = 0; r < RANDOMS; r++)                             \
					for (struct model_object *o = &objects[kind][b][k][r];     \
						o != NULL; o = NULL)

static struct model_claim {
	int node; /* -1: nobody */
	unsigned join;
} claims[STORE_KINDS][KEYS];

static unsigned joins;
static struct store *store;

static bool node_here(int n)
{
	return n >= 0 && nodes[n].known &&
	       (nodes[n].state == STORE_NODE_JOINING || nodes[n].state == STORE_NODE_PRESENT);
}

static bool pool_here(unsigned p)
{
	return pools[p].known && node_here(pools[p].node) &&
	       pools[p].told == nodes[pools[p].node].join;
}

static unsigned pool_count(unsigned p)
{
	unsigned count = 0;
	each_object(o, kind, b, k, r) count += o->there && o->where == p;
	return count;
}

/* Of kind and key in a pool, which: the pool of its id and the random part; -1: none. */
static int model_find(unsigned kind, unsigned p, unsigned k)
{
	for (unsigned i = 0; i < POOLS * RANDOMS; i++) {
		const struct model_object *o = &objects[kind][i / RANDOMS][k][i % RANDOMS];
		if (o->there && o->where == p)
			return (int)i;
	}
	return -1;
}

/* A pool is forgotten with the ids of what was deleted in it. */
static void unbury(unsigned p)
{
	each_object(o, kind, b, k, r) if (o->buried_in == p) o->buried = false;
}

static void id_of(unsigned kind, unsigned p, unsigned k, unsigned r, char ret[64])
{
	snprintf(ret, 64, "%08x.key-%u.%07x%u", 0xabcdef00 - p, k, r, kind);
}

static void uuid_of(unsigned p, char ret[33])
{
	snprintf(ret, 33, "%08x%024x", 0xabcdef00 - p, p);
}

static int drawn_at(void)
{
	return (int)below(NODES);
}

/* ---- operations, on both ---- */

static void node_id(int n, char ret[16])
{
	snprintf(ret, 16, "node-%d", n * 7 % NODES);
}

static void do_join(void)
{
	int n = drawn_at();
	struct model_node *m = &nodes[n];
	unsigned instance = below(4) == 0 ? m->instance + 1 : m->instance;
	char id[16], text[16];
	struct err err = {0};
	struct store_node *real = NULL;
	struct store_segment segment = {"node", id};
	node_id(n, id);
	snprintf(text, sizeof(text), "%u", instance);
	int res = store_join(store, id, text, "a:1", "1", &segment, 1, &real, &err);
	if (node_here(n) && instance != m->instance) {
		must(res < 0 && err.code == ERR_EXISTS);
		return;
	}
	must(res == 0);
	m->real = real;
	m->join = ++joins;
	if (m->state == STORE_NODE_ROSTER || instance != m->instance)
		m->instance_join = m->join;
	m->instance = instance;
	m->known = true;
	m->state = STORE_NODE_JOINING;
}

static void do_synced(void)
{
	int n = drawn_at();
	if (!node_here(n))
		return;
	store_synced(store, nodes[n].real);
	nodes[n].state = STORE_NODE_PRESENT;
	nodes[n].told_all = true;
	for (unsigned p = 0; p < POOLS; p++) {
		if (pools[p].node != n || !pools[p].known)
			continue;
		if (pools[p].told != nodes[n].join) {
			if (!pools[p].rostered && pool_count(p) == 0)
				pools[p] = (struct model_pool){.node = -1};
			else if (!pools[p].rostered) {
				pools[p].told = 0;
				pools[p].state = STORE_POOL_MISSING;
			}
			if (!pools[p].known)
				unbury(p);
			continue;
		}
		if (pools[p].state != STORE_POOL_READY)
			continue;
		each_object(o, kind, b, k, r)
		{
			if (o->where == p && o->told != nodes[n].join)
				o->there = false;
			if (o->buried_in == p && o->buried_at < nodes[n].join)
				o->buried = false;
		}
	}
	for (unsigned i = 0; i < STORE_KINDS * KEYS; i++) {
		struct model_claim *c = &claims[i % 2][i / 2];
		if (c->node == n && c->join < nodes[n].join)
			c->node = -1;
	}
}

static void do_leave(void)
{
	int n = drawn_at();
	if (!node_here(n))
		return;
	store_leave(store, nodes[n].real);
	nodes[n].state = STORE_NODE_ABSENT;
}

static void do_pool(void)
{
	int n = drawn_at();
	unsigned p = below(POOLS);
	enum store_pool_state to = below(3) == 0 ? STORE_POOL_MISSING : STORE_POOL_READY;
	char uuid[33];
	struct err err = {0};
	struct store_pool *real;
	if (!node_here(n))
		return;
	uuid_of(p, uuid);
	int res = store_pool_set(store, nodes[n].real, uuid, "name", to, "", p, &real, &err);
	bool moves =
		pools[p].known && pools[p].node != n && pools[p].node >= 0 && !pools[p].rostered;
	if (moves && (to == STORE_POOL_MISSING ||
			     (pool_here(p) && pools[p].state != STORE_POOL_MISSING))) {
		must(res < 0 && err.code == ERR_EXISTS);
		return;
	}
	must(res == 0);
	was_told[p] = true;
	pools[p] =
		(struct model_pool){.known = true, .node = n, .told = nodes[n].join, .state = to};
}

static void do_pool_gone(void)
{
	unsigned p = below(POOLS);
	char uuid[33];
	uuid_of(p, uuid);
	uuid[8] = '\0';
	struct store_pool *real = store_pool(store, uuid);
	must((real != NULL) == pools[p].known);
	if (real == NULL || !pool_here(p))
		return;
	store_pool_gone(store, real);
	if (pool_count(p) > 0) {
		pools[p].told = 0;
		pools[p].state = STORE_POOL_MISSING;
		return;
	}
	pools[p] = (struct model_pool){.node = -1};
	unbury(p);
}

static bool is_right(int n, unsigned p)
{
	return pools[p].known && pools[p].node == n && !pools[p].rostered;
}

/* A node tells that it has the object in a pool, or an answer does, which does not say where. */
static void do_tell(void)
{
	int n = drawn_at();
	unsigned kind = below(2), b = below(POOLS), k = below(KEYS), r = below(RANDOMS);
	unsigned text = below(4), source = below(4) == 0 ? below(POOLS) : b;
	bool moved = below(3) == 0, answered = !moved && below(3) == 0;
	unsigned p = moved ? below(POOLS) : b, moves = moved ? below(4) : 0;
	struct model_object *o = &objects[kind][b][k][r];
	char id[64], of[64], entry[256], uuid[33];
	struct err err = {0};
	if (!nodes[n].known || nodes[n].state == STORE_NODE_ROSTER)
		return;
	if (pools[p].known && below(4) != 0 && pools[p].node >= 0) /* most are right */
		n = pools[p].node;
	if (nodes[n].real == NULL)
		return;
	id_of(kind, b, k, r, id);
	id_of(STORE_VOLUME, source, 0, 0, of);
	uuid_of(p, uuid);
	uuid[8] = '\0';
	int len = snprintf(entry, sizeof(entry), "%.*s%s%u", (int)text * 20,
		"..............................................................", id, text);
	const char *source_id = kind == STORE_SNAPSHOT ? of : "";
	const struct object_text told = {kind, id, source_id, (uint8_t *)entry, (uint8_t *)entry,
		(size_t)len, text, p == b && below(2) == 0 ? "" : uuid, moves};
	int res = answered ? store_object_set(store, nodes[n].real, kind, id, told.entry,
				     told.entry_len, told.health, text, source_id, &err)
			   : store_object_tell(store, nodes[n].real, &told, &err);
	if (answered && o->there && pools[o->where].node == n) {
		p = o->where;
		moves = o->moves;
	}
	must(is_right(n, p) ? res == 0 : res < 0 && err.code == ERR_INVALID);
	if (res < 0 || o->buried)
		return;
	if (o->there && o->where != p &&
		(moves < o->moves || (moves == o->moves && p < o->where))) /* uuids descend */
		return;
	int before = model_find(kind, p, k);
	if (before >= 0)
		objects[kind][before / RANDOMS][k][before % RANDOMS].there = false;
	o->there = true;
	o->where = p;
	o->moves = moves;
	o->source = source;
	o->told = nodes[n].join;
	o->text = text;
	if (claims[kind][k].node == n)
		claims[kind][k].node = -1;
}

static void do_gone(void)
{
	unsigned kind = below(2), b = below(POOLS), k = below(KEYS), r = below(RANDOMS);
	struct model_object *o = &objects[kind][b][k][r];
	unsigned p = o->there ? o->where : b;
	int n = below(3) != 0 && pools[p].node >= 0 ? pools[p].node : drawn_at();
	char id[64];
	id_of(kind, b, k, r, id);
	if (below(2) == 0) {
		if (nodes[n].real == NULL)
			return;
		store_object_gone(store, nodes[n].real, id);
		o->buried &= pools[o->buried_in].node != n;
		o->there &= pools[o->where].node != n;
		return;
	}
	store_object_remove(store, id);
	if (pools[p].known && !o->buried) {
		o->buried = true;
		o->buried_in = p;
		o->buried_at = joins;
	}
	o->there = false;
}

/* The node that has the name, as store_name() has it; -1: nobody. */
static int model_name(unsigned kind, unsigned k)
{
	int away = -1;
	for (unsigned p = 0; p < POOLS; p++)
		if (model_find(kind, p, k) >= 0) {
			if (pool_here(p))
				return -2; /* one of those that are here */
			away = pools[p].node;
		}
	int maker = claims[kind][k].node;
	return maker >= 0 && (away < 0 || node_here(maker)) ? maker : away < 0 ? -1 : -3;
}

static void do_claim(void)
{
	int n = drawn_at();
	unsigned kind = below(2), k = below(KEYS);
	char key[16];
	struct err err = {0};
	struct store_node *other = NULL;
	snprintf(key, sizeof(key), "key-%u", k);
	if (!node_here(n))
		return;
	if (below(3) == 0) {
		store_name_release(store, kind, key);
		claims[kind][k].node = -1;
		return;
	}
	bool mine = false, others = claims[kind][k].node >= 0 && claims[kind][k].node != n;
	for (unsigned p = 0; p < POOLS; p++)
		if (model_find(kind, p, k) >= 0) {
			mine |= pools[p].node == n;
			others |= pools[p].node != n;
		}
	int res = store_name_claim(store, kind, key, nodes[n].real, &other, &err);
	if (others && res == 0)
		must(mine); /* a name that is there twice is the node's as well */
	else
		must((res == 0) == !others);
	if (res < 0)
		must(err.code == ERR_EXISTS && other != NULL && other != nodes[n].real);
	if (res == 0 && ((!mine && !others) || claims[kind][k].node == n))
		claims[kind][k] = (struct model_claim){n, nodes[n].join};
	if (res == 0 && mine && store_name_maker(store, kind, key) == NULL)
		claims[kind][k].node = -1;
}

static void do_roster(void)
{
	int n = drawn_at();
	char id[16], first[33], second[33];
	unsigned told[] = {below(POOLS), below(POOLS)};
	node_id(n, id);
	uuid_of(told[0], first);
	uuid_of(told[1], second);
	first[8] = second[8] = '\0';
	must(store_roster(store, id, (const char *[]){first, second}, 2) == 0);
	nodes[n].vouched |= store_node(store, id) != NULL &&
			    !(pools[told[0]].forgotten && pools[told[1]].forgotten);
	bool joined = nodes[n].known && nodes[n].state != STORE_NODE_ROSTER;
	for (unsigned i = 0; i < 2; i++)
		if (!pools[told[i]].known && !(joined && was_told[told[i]])) {
			pools[told[i]] = (struct model_pool){.known = true,
				.rostered = true,
				.node = n,
				.state = STORE_POOL_MISSING};
			nodes[n].known = true;
			nodes[n].real = store_node(store, id);
		}
}

static void do_forget(void)
{
	unsigned p = below(POOLS);
	char uuid[33];
	if (pools[p].known || below(10) != 0)
		return;
	uuid_of(p, uuid);
	uuid[8] = '\0';
	must(store_forget(store, uuid) == 0);
	pools[p] = (struct model_pool){
		.known = true, .forgotten = true, .node = -1, .state = STORE_POOL_MISSING};
}

/* ---- everything that can be asked ---- */

/* Snapshots of volumes whose ids begin with another pool. */
static unsigned strangers(unsigned p)
{
	unsigned count = 0;
	for (unsigned k = 0; k < KEYS; k++) {
		int i = model_find(STORE_SNAPSHOT, p, k);
		count += i >= 0 && objects[STORE_SNAPSHOT][i / RANDOMS][k][i % RANDOMS].source != p;
	}
	return count;
}

static void check_pools(void)
{
	char uuid[33];
	struct store_pool *walk = NULL;
	for (unsigned i = 0; i < POOLS; i++) {
		unsigned p = POOLS - 1 - i; /* ascending uuids */
		uuid_of(p, uuid);
		uuid[8] = '\0';
		struct store_pool *real = store_pool(store, uuid);
		must((real != NULL) == pools[p].known);
		if (real == NULL)
			continue;
		walk = store_pool_next(store, walk);
		must(walk == real);
		must(real->forgotten == pools[p].forgotten);
		must(real->node == (pools[p].node >= 0 ? nodes[pools[p].node].real : NULL));
		must(store_pool_here(real) == pool_here(p));
		must(real->state == pools[p].state);
		must(real->count[0] + real->count[1] == pool_count(p));
		must(real->strangers == strangers(p));
		bool makes = false;
		for (unsigned c = 0; c < STORE_KINDS * KEYS; c++)
			makes |= pools[p].node >= 0 && claims[c % 2][c / 2].node == pools[p].node;
		must(store_pool_in_roster(real) ==
			(!pools[p].forgotten && (pools[p].rostered || pool_count(p) > 0 || makes)));
	}
	must(store_pool_next(store, walk) == NULL || walk == NULL);
}

static void check_lists(void)
{
	for (unsigned kind = 0; kind < STORE_KINDS; kind++) {
		struct store_walk walk;
		unsigned count = 0;
		store_walk_begin(&walk, store, kind, "");
		for (int p = POOLS - 1; p >= 0; p--)
			for (unsigned k = 0; k < KEYS; k++) {
				int i = model_find(kind, (unsigned)p, k);
				char id[64], place[RECORD_ID_MAX];
				if (i < 0)
					continue;
				unsigned b = (unsigned)i / RANDOMS, r = (unsigned)i % RANDOMS;
				id_of(kind, b, k, r, id);
				const struct store_object *o = store_walk_next(&walk);
				must(o != NULL && strcmp(o->id, id) == 0);
				must(store_object(store, id) == o);
				must(object_moves(o) == objects[kind][b][k][r].moves);
				store_place(o, place);
				must(strcmp(place + 8, id + 8) == 0);
				must(memcmp(place, o->pool->uuid8, 8) == 0);
				struct store_walk from;
				store_walk_begin(&from, store, kind, place);
				struct store_walk copy = walk;
				must(store_walk_next(&from) == store_walk_next(&copy));
				size_t health;
				object_health(o, &health);
				must(health == objects[kind][b][k][r].text);
				count++;
			}
		must(store_walk_next(&walk) == NULL);
		must(store_count(store, kind) == count);
	}
}

/* A walk for the snapshots of one pool's volumes meets all of them. */
static void check_sources(void)
{
	for (unsigned p = 0; p < POOLS; p++) {
		char uuid[33];
		uuid_of(p, uuid);
		uuid[8] = '\0';
		struct store_walk walk;
		const struct store_object *o;
		unsigned met = 0, passed = 0;
		store_walk_begin(&walk, store, STORE_SNAPSHOT, "");
		walk.source = uuid;
		while ((o = store_walk_next(&walk)) != NULL) {
			met += strncmp(object_source(o), uuid, 8) == 0;
			passed += strcmp(o->pool->uuid8, uuid) != 0 && o->pool->strangers == 0;
		}
		unsigned all = 0;
		each_object(m, kind, b, k, r) all +=
			kind == STORE_SNAPSHOT && m->there && m->source == p;
		must(met == all && passed == 0);
	}
}

static void check_names(void)
{
	size_t duplicates = 0;
	for (unsigned kind = 0; kind < STORE_KINDS; kind++)
		for (unsigned k = 0; k < KEYS; k++) {
			unsigned there = 0, here = 0;
			char key[16];
			snprintf(key, sizeof(key), "key-%u", k);
			for (unsigned p = 0; p < POOLS; p++) {
				there += model_find(kind, p, k) >= 0;
				here += model_find(kind, p, k) >= 0 && pool_here(p);
			}
			duplicates += there > 1 ? there - 1 : 0;
			const struct store_object *o = store_object_by_key(store, kind, key);
			must((o != NULL) == (there > 0));
			must(o == NULL || here == 0 || store_pool_here(o->pool));
			struct store_node *node = store_name(store, kind, key);
			int want = model_name(kind, k);
			if (want >= 0)
				must(node == nodes[want].real);
			else if (want == -1)
				must(node == NULL);
			else
				must(node == o->pool->node);
			must(store_name_maker(store, kind, key) ==
				(claims[kind][k].node >= 0 ? nodes[claims[kind][k].node].real
							   : NULL));
		}
	must(store_duplicates(store) == duplicates);
}

static void check_whole(void)
{
	bool any = false, missing = false;
	struct err err = {0};
	for (int n = 0; n < NODES; n++) {
		if (!nodes[n].known)
			continue;
		any |= nodes[n].told_all;
		missing |= nodes[n].state != STORE_NODE_ROSTER && !nodes[n].told_all &&
			   nodes[n].vouched;
		for (unsigned p = 0; p < POOLS; p++)
			missing |= pools[p].known && pools[p].rostered && pools[p].node == n;
	}
	must((store_whole(store, &err) == 0) == (any && !missing));
}

static void run(unsigned with)
{
	static void (*const operations[])(void) = {do_join, do_synced, do_leave, do_pool, do_pool,
		do_pool_gone, do_tell, do_tell, do_tell, do_tell, do_tell, do_tell, do_gone,
		do_gone, do_claim, do_claim, do_roster, do_forget};
	seed = with;
	state = with;
	joins = 1;
	memset(nodes, 0, sizeof(nodes));
	memset(pools, 0, sizeof(pools));
	memset(was_told, 0, sizeof(was_told));
	memset(objects, 0, sizeof(objects));
	for (unsigned p = 0; p < POOLS; p++)
		pools[p].node = -1;
	for (unsigned i = 0; i < STORE_KINDS * KEYS; i++)
		claims[i % 2][i / 2].node = -1;
	cr_assert_eq(store_open(&store), 0);
	store_settle(store);
	for (rounds_done = 0; rounds_done < ROUNDS; rounds_done++) {
		operations[below(sizeof(operations) / sizeof(operations[0]))]();
		check_pools();
		check_lists();
		check_sources();
		check_names();
		check_whole();
	}
	store_close(store);
}

Test(store_model, does_what_the_model_does)
{
	const char *given = getenv("RINGVOL_SEED");
	if (given != NULL) {
		run((unsigned)strtoul(given, NULL, 10));
		return;
	}
	static const unsigned found[] = {
		260283094}; /* a claim told again, with its pool moved there */
	for (unsigned i = 0; i < sizeof(found) / sizeof(found[0]); i++)
		run(found[i]);
	unsigned first = (unsigned)clock_now_ns();
	for (unsigned i = 0; i < 3; i++)
		run(first + i);
}

/* ---- what it costs ---- */

static size_t in_use(void)
{
	struct mallinfo2 info = mallinfo2();
	return info.uordblks + info.hblkhd;
}

/* Nodes with so many volumes each, told in an order that is none. */
static void fill(unsigned n_nodes, unsigned n_volumes)
{
	struct err err = {0};
	uint8_t entry[160];
	memset(entry, 'e', sizeof(entry));
	for (unsigned n = 0; n < n_nodes; n++) {
		char id[64], uuid[33];
		struct store_node *node;
		struct store_pool *pool;
		snprintf(id, sizeof(id), "worker-%u.example.com", n);
		struct store_segment segment = {"topology.ringvol.dev/node", id};
		cr_assert_eq(
			store_join(store, id, "1", "10.0.0.1:9444", "1", &segment, 1, &node, &err),
			0);
		snprintf(uuid, sizeof(uuid), "%08x%024x", n * 2654435761U, n);
		cr_assert_eq(store_pool_set(store, node, uuid, "default", STORE_POOL_READY, "", 1,
				     &pool, &err),
			0);
		for (unsigned v = 0; v < n_volumes; v++) {
			unsigned mixed = v * 40503 % 65537;
			int len = snprintf(id, sizeof(id),
				"%.8s.pvc-%08x-1234-1234-1234-%012x.%08x", uuid, mixed, n, v);
			memcpy(entry + 8, id, (size_t)len);
			cr_assert_eq(store_object_set(store, node, STORE_VOLUME, id, entry,
					     sizeof(entry), NULL, 0, "", &err),
				0);
		}
		store_synced(store, node);
	}
}

/* An entry of 160 bytes with an id of 62: 98, the id and 2 NULs, a header of 28. What comes on top
 * is malloc's, the table and the shelf. */
Test(store_model, an_object_takes_little_memory, .timeout = 120)
{
	enum { OBJECTS = 100000 };
	cr_assert_eq(store_open(&store), 0);
	size_t before = in_use();
	fill(1000, OBJECTS / 1000);
	double each = (double)(in_use() - before) / OBJECTS;
	struct store_stats stats;
	store_stats(store, &stats);
	cr_assert_eq(stats.objects[STORE_VOLUME], OBJECTS);
	cr_log_info("%.0f bytes for an object, %zu of them its own", each,
		stats.object_bytes / OBJECTS);
#ifndef __SANITIZE_ADDRESS__ /* whose malloc counts nothing */
	cr_assert_gt(each, 160);
#endif
	cr_assert_lt(each, 270);
	store_close(store);
}

/* 10,000 in one pool, in any order, are told, walked, told again and dropped: if any of it were
 * quadratic, the test would not end in time. */
Test(store_model, a_full_report_is_not_quadratic, .timeout = 20)
{
	cr_assert_eq(store_open(&store), 0);
	fill(20, 10000);
	struct store_walk walk;
	store_walk_begin(&walk, store, STORE_VOLUME, "");
	unsigned count = 0;
	while (store_walk_next(&walk) != NULL)
		count++;
	cr_assert_eq(count, 200000);
	fill(20, 10000);
	cr_assert_eq(store_count(store, STORE_VOLUME), 200000);
	fill(20, 10);
	cr_assert_eq(store_count(store, STORE_VOLUME), 200);
	store_close(store);
}
