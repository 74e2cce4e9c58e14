/* SPDX-License-Identifier: Apache-2.0 */
/* What a controller knows of its nodes, piece by piece. test_store_model.c has all of it at random.
 */
#include "controller/store.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UUID_A "aaaaaaaa000000000000000000000001"
#define UUID_B "bbbbbbbb000000000000000000000002"
#define VOL_A  "aaaaaaaa.pvc-1.00000001"
#define VOL_B  "bbbbbbbb.pvc-1.00000002"

static struct store *store;
static struct err err;

static void setup(void)
{
	cr_assert_eq(store_open(&store), 0);
	store_settle(store);
}

static void teardown(void)
{
	store_close(store);
}

TestSuite(store, .init = setup, .fini = teardown);

static struct store_node *join(const char *id, const char *instance)
{
	struct store_segment segments[] = {
		{"topology.ringvol.dev/node", id}, {"zone", id[0] == 'n' ? "z1" : "z2"}};
	struct store_node *node = NULL;
	err_clear(&err);
	int r = store_join(store, id, instance, "10.0.0.1:9", "1", segments, 2, &node, &err);
	cr_assert_eq(r == 0, node != NULL);
	return node;
}

static struct store_pool *pool_in(
	struct store_node *node, const char *uuid, enum store_pool_state state)
{
	struct store_pool *pool = NULL;
	err_clear(&err);
	int r = store_pool_set(store, node, uuid, "default", state, "", 100, &pool, &err);
	cr_assert_eq(r == 0, pool != NULL);
	return pool;
}

static struct store_pool *pool(struct store_node *node, const char *uuid)
{
	return pool_in(node, uuid, STORE_POOL_READY);
}

static int set(struct store_node *node, enum store_kind kind, const char *id, const char *text)
{
	char entry[1000];
	int len = snprintf(entry, sizeof(entry), "<%s|%s>", id, text);
	err_clear(&err);
	return store_object_set(store, node, kind, id, (const uint8_t *)entry, (size_t)len,
		(const uint8_t *)text, strlen(text), "", &err);
}

static const char *text_of(const struct store_object *object)
{
	static char text[10000];
	struct buf out = {0};
	cr_assert_eq(object_entry(object, &out), 0);
	cr_assert_eq(out.len, object_entry_len(object));
	if (out.len > 0)
		memcpy(text, out.data, out.len);
	text[out.len] = '\0';
	buf_free(&out);
	return text;
}

static bool whole(void)
{
	err_clear(&err);
	return store_whole(store, &err) == 0;
}

/* A node with a pool and a volume, synced. */
static struct store_node *node_with(const char *id, const char *uuid, const char *volume)
{
	struct store_node *node = join(id, "1");
	pool(node, uuid);
	cr_assert_eq(set(node, STORE_VOLUME, volume, "x"), 0);
	store_synced(store, node);
	return node;
}

/* ---- nodes ---- */

Test(store, nodes_are_in_order_and_found)
{
	const char *ids[] = {"n3", "n1", "n5", "n2", "n4"};
	for (unsigned i = 0; i < 5; i++)
		cr_assert_not_null(join(ids[i], "1"));
	struct store_node *node = NULL;
	for (char want = '1'; want <= '5'; want++) {
		node = store_node_next(store, node);
		cr_assert_eq(node->id[1], want);
		cr_assert_eq(store_node(store, node->id), node);
	}
	cr_assert_null(store_node_next(store, node));
	cr_assert_null(store_node(store, "n0"));
	cr_assert_null(store_node(store, "n6"));
}

Test(store, an_id_is_one_process_at_a_time)
{
	struct store_node *node = join("n1", "first");
	store_synced(store, node);
	cr_assert_null(join("n1", "second"));
	cr_assert_eq(err.code, ERR_EXISTS);
	cr_assert_not_null(strstr(err.message, "n1"));
	cr_assert_not_null(strstr(err.message, "--node-id"));
	cr_assert_eq(join("n1", "first"), node); /* its connection is new */
	cr_assert_eq(node->state, STORE_NODE_JOINING);
	store_leave(store, node);
	cr_assert_eq(node->state, STORE_NODE_ABSENT);
	cr_assert_eq(join("n1", "second"), node);
	cr_assert_str_eq(node->instance, "second");
}

Test(store, nodes_are_found_by_segment)
{
	size_t n;
	struct store_node *a = join("n1", "1"), *b = join("n2", "1");
	join("m1", "1");
	struct store_node *const *found =
		store_nodes_with(store, "topology.ringvol.dev/node", "n1", &n);
	cr_assert(n == 1 && found[0] == a);
	found = store_nodes_with(store, "zone", "z1", &n);
	cr_assert_eq(n, 2);
	cr_assert(found[0] == a || found[1] == a);
	cr_assert(found[0] == b || found[1] == b);
	store_nodes_with(store, "zone", "z3", &n);
	cr_assert_eq(n, 0);
	/* It joins again with another topology. */
	struct store_segment other = {"zone", "z3"};
	cr_assert_eq(store_join(store, "n1", "1", "a:1", "1", &other, 1, &a, &err), 0);
	store_nodes_with(store, "topology.ringvol.dev/node", "n1", &n);
	cr_assert_eq(n, 0);
	found = store_nodes_with(store, "zone", "z3", &n);
	cr_assert(n == 1 && found[0] == a);
	store_nodes_with(store, "zone", "z1", &n);
	cr_assert_eq(n, 1);
}

static unsigned dropped;

static void on_drop(void *arg, struct store_node *node)
{
	cr_assert_eq(arg, &dropped);
	cr_assert_str_eq(node->id, "n00007");
	dropped++;
}

Test(store, the_node_that_left_longest_ago_with_nothing_makes_room)
{
	char id[16];
	store_configure(store, &(struct store_config){.on_drop = on_drop, .arg = &dropped});
	for (unsigned i = 0; i < STORE_NODES_MAX; i++) {
		snprintf(id, sizeof(id), "n%05u", i);
		join(id, "1")->seen_unix = 1000;
	}
	cr_assert_null(join("new", "1"));
	cr_assert_eq(err.code, ERR_NO_ROOM);
	struct store_node *empty = store_node(store, "n00007"), *full = store_node(store, "n00008");
	pool(empty, UUID_B); /* empty */
	pool(full, UUID_A);
	cr_assert_eq(set(full, STORE_VOLUME, VOL_A, "x"), 0);
	full->seen_unix = 1;
	store_leave(store, full);
	cr_assert_null(join("new", "1")); /* what the absent has is not forgotten */
	empty->seen_unix = 2;
	store_leave(store, empty);
	store_leave(store, store_node(store, "n00009"));
	cr_assert_not_null(join("new", "1"));
	cr_assert_eq(dropped, 1);
	cr_assert_null(store_node(store, "n00007"));
	cr_assert_null(store_pool(store, "bbbbbbbb"));
	cr_assert_eq(store_node(store, "n00008"), full);
}

/* ---- pools ---- */

Test(store, a_pool_has_one_node)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A), *b = join("n2", "1");
	cr_assert_null(pool(b, UUID_A));
	cr_assert_eq(err.code, ERR_EXISTS);
	cr_assert_not_null(strstr(err.message, "n1"));
	cr_assert_eq(set(b, STORE_VOLUME, VOL_A, "mine"), -EINVAL);
	cr_assert_eq(err.code, ERR_INVALID);
	/* Its disk goes to the other node; what is on it goes along. */
	pool_in(a, UUID_A, STORE_POOL_MISSING);
	struct store_pool *moved = pool(b, UUID_A);
	cr_assert_eq(moved->node, b);
	cr_assert_eq(a->n_pools, 0);
	cr_assert_eq(b->n_pools, 1);
	cr_assert_eq(moved->count[STORE_VOLUME], 1);
	cr_assert_eq(store_object(store, VOL_A)->pool, moved);
	/* The old node goes on saying that it misses it. */
	cr_assert_null(pool_in(a, UUID_A, STORE_POOL_MISSING));
	cr_assert_eq(err.code, ERR_EXISTS);
	store_synced(store, b); /* it did not tell the volume */
	cr_assert_null(store_object(store, VOL_A));
}

Test(store, a_pool_of_an_absent_node_moves)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A), *b = join("n2", "1");
	cr_assert(store_pool_here(store_pool(store, "aaaaaaaa")));
	store_leave(store, a);
	cr_assert_not(store_pool_here(store_pool(store, "aaaaaaaa")));
	struct store_pool *p = pool(b, UUID_A);
	cr_assert(store_pool_here(p));
	cr_assert_eq(set(b, STORE_VOLUME, VOL_A, "x"), 0);
	store_synced(store, b);
	cr_assert_eq(join("n1", "1"), a);
	cr_assert_null(pool(a, UUID_A));
	store_synced(store, a);
	cr_assert_not_null(store_object(store, VOL_A));
}

Test(store, a_pool_that_a_node_has_no_longer_is_away)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	struct store_pool *p = store_pool(store, "aaaaaaaa");
	pool(a, UUID_B);
	store_pool_gone(store, store_pool(store, "bbbbbbbb"));
	cr_assert_null(store_pool(store, "bbbbbbbb")); /* it was empty */
	store_pool_gone(store, p);
	cr_assert_not(store_pool_here(p));
	cr_assert_not_null(store_object(store, VOL_A));
	cr_assert(store_pool_in_roster(p));
	/* The same by a join that does not tell it. */
	pool(a, UUID_A);
	cr_assert(store_pool_here(p));
	join("n1", "1");
	cr_assert_not(store_pool_here(p));
	store_synced(store, a);
	cr_assert_not(store_pool_here(p));
	cr_assert_not_null(store_object(store, VOL_A));
}

Test(store, pools_with_the_same_digits_are_refused)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	cr_assert_null(pool(a, "aaaaaaaa000000000000000000000009"));
	cr_assert_eq(err.code, ERR_INVALID);
	cr_assert_not_null(strstr(err.message, UUID_A));
}

Test(store, a_node_has_so_many_pools)
{
	struct store_node *a = join("n1", "1");
	char uuid[33];
	for (unsigned i = 0; i < STORE_NODE_POOLS_MAX; i++) {
		snprintf(uuid, sizeof(uuid), "%08x%024x", 1000 - i, 0);
		cr_assert_not_null(pool(a, uuid));
	}
	cr_assert_null(pool(a, UUID_A));
	cr_assert_eq(err.code, ERR_NO_ROOM);
	cr_assert_not_null(pool(a, uuid)); /* one it has */
	struct store_pool *p = NULL;
	for (unsigned i = 0; i < STORE_NODE_POOLS_MAX; i++) {
		p = store_pool_next(store, p);
		snprintf(uuid, sizeof(uuid), "%08x", 1000 - STORE_NODE_POOLS_MAX + 1 + i);
		cr_assert_str_eq(p->uuid8, uuid);
	}
	cr_assert_null(store_pool_next(store, p));
}

Test(store, a_forgotten_pool_is_known_until_a_node_brings_it)
{
	cr_assert_eq(store_forget(store, "aaaaaaa"), -EINVAL);
	cr_assert_eq(store_forget(store, "AAAAAAAA"), -EINVAL);
	cr_assert_eq(store_forget(store, "aaaaaaaa"), 0);
	struct store_pool *p = store_pool(store, "aaaaaaaa");
	cr_assert(p->forgotten);
	cr_assert_null(p->node);
	cr_assert_not(store_pool_here(p));
	cr_assert_not(store_pool_in_roster(p));
	node_with("n1", UUID_A, VOL_A);
	cr_assert_not(p->forgotten);
	cr_assert(store_pool_here(p));
}

/* ---- objects ---- */

Test(store, an_object_is_found_by_id_and_name)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	cr_assert_eq(set(a, STORE_SNAPSHOT, "aaaaaaaa.pvc-1.00000009", "snap"), 0);
	const struct store_object *volume = store_object(store, VOL_A);
	cr_assert_str_eq(text_of(volume), "<" VOL_A "|x>");
	cr_assert_eq(store_object_by_key(store, STORE_VOLUME, "pvc-1"), volume);
	const struct store_object *snapshot = store_object_by_key(store, STORE_SNAPSHOT, "pvc-1");
	cr_assert_str_eq(snapshot->id, "aaaaaaaa.pvc-1.00000009");
	cr_assert_null(store_object_by_key(store, STORE_VOLUME, "pvc-2"));
	cr_assert_null(store_object(store, "aaaaaaaa.pvc-1.0000000"));
	cr_assert_null(store_object(store, ""));
	cr_assert_eq(store_count(store, STORE_VOLUME), 1);
	size_t len;
	cr_assert_eq(memcmp(object_health(snapshot, &len), "snap", 4), 0);
	cr_assert_eq(len, 4);
}

Test(store, entries_with_and_without_the_id)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	const char *texts[] = {"", "no id", VOL_A, "front " VOL_A, VOL_A " behind",
		VOL_A VOL_A " twice, longer than before", "x"};
	for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		for (unsigned again = 0; again < 2; again++) {
			cr_assert_eq(store_object_set(store, a, STORE_VOLUME, VOL_A,
					     (const uint8_t *)texts[i], strlen(texts[i]), NULL, 0,
					     VOL_B, &err),
				0);
			const struct store_object *o = store_object(store, VOL_A);
			cr_assert_str_eq(text_of(o), texts[i]);
			cr_assert_str_eq(object_source(o), VOL_B);
			struct store_stats stats;
			store_stats(store, &stats);
			cr_assert_eq(stats.object_bytes, object_bytes(o));
		}
	}
	cr_assert_eq(store_count(store, STORE_VOLUME), 1);
}

Test(store, refuses_what_is_no_object)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	static const char *const ids[] = {"", "x", "aaaaaaaa..00000001", "aaaaaaaa.a/b.00000001",
		"aaaaaaaa.a.0000000g", "Aaaaaaaa.a.00000001", "aaaaaaaa.=abc.00000001",
		"aaaaaaaa.-a.00000001", "bbbbbbbb.a.00000001",
		"aaaaaaaa."
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
		".00000001"};
	for (unsigned i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		cr_assert_eq(set(a, STORE_VOLUME, ids[i], "x"), -EINVAL, "%s", ids[i]);
		cr_assert_null(store_object(store, ids[i]));
	}
	uint8_t *large = calloc(1, OBJECT_ENTRY_MAX + 1);
	cr_assert_eq(store_object_set(store, a, STORE_VOLUME, VOL_A, large, OBJECT_ENTRY_MAX + 1,
			     NULL, 0, "", &err),
		-EINVAL);
	cr_assert_eq(store_object_set(store, a, STORE_VOLUME, VOL_A, large, 1, large,
			     OBJECT_HEALTH_MAX + 1, "", &err),
		-EINVAL);
	cr_assert_eq(store_object_set(store, a, STORE_VOLUME, VOL_A, large, OBJECT_ENTRY_MAX, large,
			     OBJECT_HEALTH_MAX, "", &err),
		0);
	cr_assert_eq(store_object_set(
			     store, a, STORE_VOLUME, VOL_A, large, 1, NULL, 0, "nonsense", &err),
		-EINVAL);
	free(large);
	/* An id is of one kind. */
	cr_assert_eq(set(a, STORE_SNAPSHOT, VOL_A, "x"), -EINVAL);
	cr_assert_eq(store_count(store, STORE_VOLUME), 1);
	cr_assert_eq(store_count(store, STORE_SNAPSHOT), 0);
}

Test(store, a_file_name_is_one_object)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	cr_assert_eq(set(a, STORE_VOLUME, "aaaaaaaa.pvc-1.0000000f", "made anew"), 0);
	cr_assert_null(store_object(store, VOL_A));
	cr_assert_eq(store_count(store, STORE_VOLUME), 1);
	cr_assert_eq(store_duplicates(store), 0);
}

Test(store, what_a_new_join_does_not_tell_is_gone)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	cr_assert_eq(set(a, STORE_VOLUME, "aaaaaaaa.pvc-2.00000001", "x"), 0);
	store_leave(store, a);
	cr_assert_not_null(store_object(store, VOL_A));
	join("n1", "2");
	pool(a, UUID_A);
	cr_assert_eq(set(a, STORE_VOLUME, VOL_A, "x"), 0);
	cr_assert_eq(store_count(store, STORE_VOLUME), 2);
	store_synced(store, a);
	cr_assert_eq(store_count(store, STORE_VOLUME), 1);
	cr_assert_not_null(store_object(store, VOL_A));
}

Test(store, an_older_report_does_not_bring_back_what_was_deleted)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	store_object_remove(store, VOL_A);
	store_object_remove(store, VOL_A);
	cr_assert_eq(set(a, STORE_VOLUME, VOL_A, "old"), 0);
	cr_assert_null(store_object(store, VOL_A));
	store_object_gone(store, a, VOL_A);
	struct store_stats stats;
	store_stats(store, &stats);
	cr_assert_eq(stats.tombs, 0);
	/* Confirmed by a later join as well. */
	store_object_remove(store, VOL_A);
	store_object_remove(store, "cccccccc.of-nobody.00000001");
	store_object_remove(store, "no id");
	join("n1", "1");
	pool(a, UUID_A);
	cr_assert_eq(set(a, STORE_VOLUME, VOL_A, "old"), 0);
	cr_assert_null(store_object(store, VOL_A));
	store_stats(store, &stats);
	cr_assert_eq(stats.tombs, 1);
	store_synced(store, a);
	store_stats(store, &stats);
	cr_assert_eq(stats.tombs, 0);
}

Test(store, deleted_ids_are_kept_up_to_a_limit)
{
	char id[64];
	struct store_stats stats;
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	for (unsigned i = 0; i <= STORE_TOMBS_MAX; i++) {
		snprintf(id, sizeof(id), "aaaaaaaa.v.%08x", i);
		store_object_remove(store, id);
	}
	store_stats(store, &stats);
	cr_assert_eq(stats.tombs, STORE_TOMBS_MAX);
	cr_assert_eq(set(a, STORE_VOLUME, "aaaaaaaa.v.00000000", "x"), 0); /* the oldest went */
	cr_assert_eq(set(a, STORE_VOLUME, "aaaaaaaa.v.00000001", "x"), 0);
	cr_assert_not_null(store_object(store, "aaaaaaaa.v.00000000"));
	cr_assert_null(store_object(store, "aaaaaaaa.v.00000001"));
}

Test(store, a_name_at_two_nodes_is_kept_twice)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A), *b = node_with("n2", UUID_B, VOL_B);
	cr_assert_eq(store_duplicates(store), 1);
	cr_assert_not_null(store_object(store, VOL_A));
	cr_assert_not_null(store_object(store, VOL_B));
	store_leave(store, a);
	cr_assert_str_eq(store_object_by_key(store, STORE_VOLUME, "pvc-1")->id, VOL_B);
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-1"), b);
	join("n1", "1");
	pool(a, UUID_A);
	store_leave(store, b);
	cr_assert_str_eq(store_object_by_key(store, STORE_VOLUME, "pvc-1")->id, VOL_A);
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-1"), a);
	store_object_gone(store, a, VOL_A);
	cr_assert_eq(store_duplicates(store), 0);
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-1"), b);
}

/* ---- names ---- */

static int claim(struct store_node *node, const char *key, struct store_node **other)
{
	*other = NULL;
	err_clear(&err);
	return store_name_claim(store, STORE_VOLUME, key, node, other, &err);
}

Test(store, a_name_is_given_once)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A),
			  *b = node_with("n2", UUID_B, "bbbbbbbb.q.00000001");
	struct store_node *other;
	cr_assert_eq(claim(a, "pvc-9", &other), 0);
	cr_assert_eq(claim(a, "pvc-9", &other), 0);
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-9"), a);
	cr_assert_null(store_name(store, STORE_SNAPSHOT, "pvc-9"));
	cr_assert_eq(claim(b, "pvc-9", &other), -EEXIST);
	cr_assert_eq(other, a);
	/* Its object is told: the claim is not needed any more, the name is taken. */
	cr_assert_eq(set(a, STORE_VOLUME, "aaaaaaaa.pvc-9.00000001", "x"), 0);
	cr_assert_null(store_name_maker(store, STORE_VOLUME, "pvc-9"));
	cr_assert_eq(claim(b, "pvc-9", &other), -EEXIST);
	cr_assert_eq(other, a);
	cr_assert_eq(claim(a, "pvc-9", &other), 0);
	cr_assert_null(store_name_maker(store, STORE_VOLUME, "pvc-9"));
	/* Whoever has it may be away. */
	store_leave(store, a);
	cr_assert_eq(claim(b, "pvc-9", &other), -EEXIST);
	cr_assert_eq(other, a);
	/* Released, it is free. */
	cr_assert_eq(claim(b, "free", &other), 0);
	store_name_release(store, STORE_VOLUME, "free");
	store_name_release(store, STORE_VOLUME, "free");
	cr_assert_null(store_name(store, STORE_VOLUME, "free"));
	cr_assert_eq(claim(b, "a/b", &other), -EINVAL);
}

Test(store, a_claim_outlives_a_connection_and_not_a_process)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A), *other;
	cr_assert_eq(claim(a, "pvc-9", &other), 0);
	store_leave(store, a);
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-9"), a);
	join("n1", "1");
	cr_assert_eq(claim(a, "pvc-9", &other), 0); /* told again */
	store_synced(store, a);
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-9"), a);
	store_leave(store, a);
	join("n1", "2");
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-9"), a); /* it may tell it yet */
	store_synced(store, a);
	cr_assert_null(store_name(store, STORE_VOLUME, "pvc-9"));
	/* A restart that did not get as far as to tell everything. */
	cr_assert_eq(claim(a, "pvc-10", &other), 0);
	store_leave(store, a);
	join("n1", "3");
	store_leave(store, a);
	join("n1", "3");
	store_synced(store, a);
	cr_assert_null(store_name(store, STORE_VOLUME, "pvc-10"));
}

static bool asks(void *arg, enum store_kind kind, const char *key)
{
	return kind == STORE_VOLUME && strcmp(key, arg) == 0;
}

/* Its release was lost with the connection. */
Test(store, a_claim_that_is_not_told_again_ends)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A), *other;
	char asked[] = "pvc-8";
	store_configure(store, &(struct store_config){.is_asked = asks, .arg = asked});
	cr_assert_eq(claim(a, "pvc-9", &other), 0);
	cr_assert_eq(claim(a, "pvc-8", &other), 0);
	store_leave(store, a);
	join("n1", "1");
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-9"), a);
	store_synced(store, a);
	cr_assert_null(store_name(store, STORE_VOLUME, "pvc-9"));
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-8"), a);
}

Test(store, so_many_names_are_claimed)
{
	struct store_node *a = join("n1", "1"), *other;
	char key[32];
	for (unsigned i = 0; i < STORE_NODE_CLAIMS_MAX; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		cr_assert_eq(claim(a, key, &other), 0);
	}
	cr_assert_lt(claim(a, "more", &other), 0);
	cr_assert_eq(err.code, ERR_NO_ROOM);
	cr_assert_eq(claim(a, "k0", &other), 0);
	struct store_node *b = join("n2", "1");
	cr_assert_eq(claim(b, "more", &other), 0);
}

/* ---- limits of a node ---- */

static int set_nth(struct store_node *node, const char *uuid8, unsigned n, size_t len)
{
	static const uint8_t entry[OBJECT_ENTRY_MAX];
	char id[64];
	snprintf(id, sizeof(id), "%s.vol-%u.00000001", uuid8, n);
	err_clear(&err);
	return store_object_set(store, node, STORE_VOLUME, id, entry, len, NULL, 0, "", &err);
}

Test(store, a_node_has_so_many_objects)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A), *b = join("n2", "1");
	pool(b, UUID_B);
	for (unsigned i = 1; i < STORE_NODE_OBJECTS_MAX; i++)
		cr_assert_eq(set_nth(a, "aaaaaaaa", i, 1), 0, "%s", err.message);
	cr_assert(whole());
	cr_assert_lt(set_nth(a, "aaaaaaaa", 0, 1), 0);
	cr_assert_eq(err.code, ERR_NO_ROOM);
	cr_assert_not_null(strstr(err.message, "n1"));
	cr_assert(store_node_partial(a));
	cr_assert_not(whole());
	cr_assert_not_null(strstr(err.message, "n1"));
	/* It is told again, and another node is told. */
	cr_assert_eq(set_nth(a, "aaaaaaaa", 1, 1), 0);
	cr_assert_eq(set_nth(b, "bbbbbbbb", 0, 1), 0);
	cr_assert_not(store_node_partial(b));
	/* Until it has joined again with less. */
	join("n1", "1");
	cr_assert_not(whole());
	pool(a, UUID_A);
	store_synced(store, a);
	store_synced(store, b);
	cr_assert(whole(), "%s", err.message);
	cr_assert_eq(set_nth(a, "aaaaaaaa", 0, 1), 0);
}

Test(store, a_nodes_objects_take_so_many_bytes)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A), *b = node_with("n2", UUID_B, VOL_B);
	unsigned n = 0;
	while (set_nth(a, "aaaaaaaa", n, OBJECT_ENTRY_MAX) == 0)
		n++;
	cr_assert_eq(err.code, ERR_NO_ROOM);
	cr_assert(n > 8000 && n < 8192, "%u", n);
	cr_assert(store_node_partial(a));
	/* Nor does one that is there grow; it is told nevertheless, and may shrink. */
	cr_assert_lt(store_object_set(store, a, STORE_VOLUME, VOL_A, (const uint8_t[4096]){0}, 4096,
			     NULL, 0, "", &err),
		0);
	cr_assert_not_null(store_object(store, VOL_A));
	cr_assert_eq(set_nth(a, "aaaaaaaa", 0, 1), 0);
	cr_assert_eq(set_nth(b, "bbbbbbbb", 0, OBJECT_ENTRY_MAX), 0);
}

/* ---- walks ---- */

Test(store, a_walk_is_in_order_and_goes_on_behind_an_id)
{
	struct store_node *a = join("n1", "1"), *b = join("n2", "1");
	pool(b, UUID_A);
	pool(a, UUID_B);
	for (unsigned i = 0; i < 100; i++) {
		char id[64];
		unsigned n = i * 37 % 100;
		snprintf(id, sizeof(id), "%s.k%02u.00000001", n % 2 ? "aaaaaaaa" : "bbbbbbbb", n);
		cr_assert_eq(set(n % 2 ? b : a, STORE_VOLUME, id, "x"), 0);
	}
	struct store_walk walk;
	char last[64] = "";
	unsigned count = 0;
	const struct store_object *o;
	store_walk_begin(&walk, store, STORE_VOLUME, "");
	while ((o = store_walk_next(&walk)) != NULL) {
		cr_assert_lt(strcmp(last, o->id), 0);
		strcpy(last, o->id);
		/* A walk that begins here goes on with the same. */
		struct store_walk other;
		store_walk_begin(&other, store, STORE_VOLUME, last);
		const struct store_object *next = store_walk_next(&other);
		struct store_walk copy = walk;
		cr_assert_eq(next, store_walk_next(&copy));
		count++;
	}
	cr_assert_eq(count, 100);
	store_walk_begin(&walk, store, STORE_SNAPSHOT, "");
	cr_assert_null(store_walk_next(&walk));
	store_walk_begin(&walk, store, STORE_VOLUME, "aaaaaaab");
	cr_assert_str_eq(store_walk_next(&walk)->id, "bbbbbbbb.k00.00000001");
	store_walk_begin(&walk, store, STORE_VOLUME, "ffffffff.z.00000001");
	cr_assert_null(store_walk_next(&walk));
}

/* ---- capacity ---- */

Test(store, classes_and_answers)
{
	struct store_node *a = join("n1", "1");
	uint32_t first, class;
	bool is_new;
	size_t len;
	const uint8_t *request;
	cr_assert_eq(store_class(store, (const uint8_t *)"one", 3, &first, &is_new), 0);
	cr_assert(is_new);
	cr_assert_eq(store_class(store, (const uint8_t *)"one", 3, &class, &is_new), 0);
	cr_assert(!is_new && class == first);
	cr_assert_null(store_capacity(store, a, first, &len));
	cr_assert_eq(store_capacity_set(store, a, first, (const uint8_t *)"10", 2), 0);
	cr_assert_eq(memcmp(store_capacity(store, a, first, &len), "10", 2), 0);
	cr_assert_eq(len, 2);
	cr_assert_eq(store_capacity_set(store, a, first, (const uint8_t *)"200", 3), 0);
	cr_assert_eq(memcmp(store_capacity(store, a, first, &len), "200", 3), 0);
	cr_assert_eq(store_capacity_set(store, a, first, NULL, 0), 0);
	cr_assert_not_null(store_capacity(store, a, first, &len));
	cr_assert_eq(len, 0);
	cr_assert(store_class_at(store, first % STORE_CLASSES_MAX, &class, &request, &len));
	cr_assert(class == first && len == 3 && memcmp(request, "one", 3) == 0);
	/* Nobody's class, and what is too large. */
	cr_assert_eq(store_capacity_set(store, a, first + 1, (const uint8_t *)"x", 1), 0);
	cr_assert_null(store_capacity(store, a, first + 1, &len));
	static uint8_t large[CLASS_REQUEST_MAX + 1];
	cr_assert_eq(store_capacity_set(store, a, first, large, CLASS_ANSWER_MAX + 1), -EMSGSIZE);
	cr_assert_eq(store_class(store, large, sizeof(large), &class, &is_new), -EMSGSIZE);
	/* What a node said is forgotten when it leaves. */
	store_leave(store, a);
	cr_assert_null(store_capacity(store, a, first, &len));
}

Test(store, the_class_asked_for_longest_ago_goes)
{
	struct store_node *a = join("n1", "1");
	uint32_t class, classes[STORE_CLASSES_MAX];
	bool is_new;
	size_t len;
	for (uint8_t i = 0; i < STORE_CLASSES_MAX; i++)
		cr_assert_eq(store_class(store, &i, 1, &classes[i], &is_new), 0);
	store_class(store, &(uint8_t){0}, 1, &class, &is_new); /* asked for again */
	cr_assert_eq(store_capacity_set(store, a, classes[1], (const uint8_t *)"old", 3), 0);
	uint8_t more = 200;
	cr_assert_eq(store_class(store, &more, 1, &class, &is_new), 0);
	cr_assert(is_new);
	cr_assert_eq(class % STORE_CLASSES_MAX, classes[1] % STORE_CLASSES_MAX);
	cr_assert_neq(class, classes[1]);
	cr_assert_null(store_capacity(store, a, class, &len));
	cr_assert_eq(store_capacity_set(store, a, classes[1], (const uint8_t *)"late", 4), 0);
	cr_assert_null(store_capacity(store, a, class, &len));
	cr_assert_eq(store_class(store, &(uint8_t){0}, 1, &class, &is_new), 0);
	cr_assert_not(is_new);
}

/* ---- who is missing ---- */

Test(store, is_whole_when_everybody_known_has_told_all)
{
	cr_assert_not(whole());
	cr_assert_eq(err.code, ERR_UNAVAILABLE);
	cr_assert_not_null(strstr(err.message, "--controller"));
	struct store_node *a = join("n1", "1");
	cr_assert_not(whole());
	store_synced(store, a);
	cr_assert(whole());
	/* One that is away has told. */
	store_leave(store, a);
	cr_assert(whole());
	join("n1", "1");
	cr_assert(whole());
	/* One that left before it had told all has not, if others say that it has something. */
	struct store_node *b = join("n2", "1");
	cr_assert(whole());
	cr_assert_eq(store_roster(store, "n2", (const char *[]){"bbbbbbbb"}, 1), 0);
	cr_assert_not(whole());
	store_leave(store, b);
	cr_assert_not(whole());
	cr_assert_not_null(strstr(err.message, "n2"));
	/* Nobody knows of this one: it holds up nobody. */
	store_leave(store, join("n3", "1"));
	pool(join("n2", "1"), UUID_B);
	store_synced(store, b);
	cr_assert(whole());
}

Test(store, a_roster_tells_who_is_missing)
{
	const char *pools[] = {"bbbbbbbb", "cccccccc"};
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	uint64_t version = store_roster_version(store);
	cr_assert_eq(store_roster(store, "n2", pools, 2), 0);
	cr_assert_eq(store_roster(store, "n3", pools, 1), 0); /* the pool is n2's */
	cr_assert_eq(store_roster(store, "n4", NULL, 0), 0);
	cr_assert_neq(store_roster_version(store), version);
	cr_assert_null(store_node(store, "n3"));
	cr_assert_null(store_node(store, "n4"));
	cr_assert_not(whole());
	cr_assert_not_null(strstr(err.message, "n2"));
	cr_assert_not_null(strstr(err.message, "bbbbbbbb"));
	cr_assert_not_null(strstr(err.message, "--forget-pool"));
	struct store_pool *b = store_pool(store, "bbbbbbbb");
	cr_assert(store_pool_in_roster(b));
	cr_assert_not(store_pool_here(b));
	cr_assert_eq(
		store_object_set(store, b->node, STORE_VOLUME, VOL_B, NULL, 0, NULL, 0, "", &err),
		-EINVAL);                        /* it has not told */
	cr_assert_eq(err.code, ERR_UNAVAILABLE); /* the first error stays */
	/* One pool turns up elsewhere, the other at the node itself. */
	pool(a, UUID_B);
	cr_assert_not(whole());
	cr_assert_not_null(strstr(err.message, "cccccccc"));
	struct store_node *n2 = join("n2", "1");
	store_synced(store, n2);
	cr_assert_not(whole());
	cr_assert_not_null(strstr(err.message, "n2"));
	cr_assert_not_null(strstr(err.message, "cccccccc"));
	cr_assert_not_null(strstr(err.message, "--forget-pool"));
	cr_assert(store_pool_in_roster(store_pool(store, "cccccccc")));
	pool(n2, "cccccccc"
		 "111111111111111111111111");
	cr_assert(whole());
	/* Others know of one more, whether the node is here or not. */
	cr_assert_eq(store_roster(store, "n2", (const char *[]){"dddddddd"}, 1), 0);
	cr_assert_not(whole());
	cr_assert_not_null(strstr(err.message, "dddddddd"));
	store_leave(store, n2);
	cr_assert_not(whole());
	join("n2", "1");
	struct store_pool *d = pool(n2, "dddddddd"
					"111111111111111111111111");
	store_synced(store, n2);
	cr_assert(whole());
	/* It went away empty: the roster is an older one. */
	store_pool_gone(store, d);
	cr_assert_eq(store_roster(store, "n2", (const char *[]){"dddddddd"}, 1), 0);
	cr_assert_null(store_pool(store, "dddddddd"));
	cr_assert(whole());
}

static int tell_roster(unsigned node, unsigned pool_number)
{
	char id[16], uuid8[16];
	snprintf(id, sizeof(id), "r%05u", node);
	snprintf(uuid8, sizeof(uuid8), "%08x", pool_number);
	return store_roster(store, id, (const char *[]){uuid8}, 1);
}

Test(store, a_roster_has_so_many)
{
	for (unsigned i = 0; i < STORE_ROSTER_NODES_MAX; i++)
		cr_assert_eq(tell_roster(i, i), 0, "%u", i);
	cr_expect_eq(tell_roster(STORE_ROSTER_NODES_MAX, STORE_ROSTER_NODES_MAX), -ENOSPC);
	cr_expect_null(store_node(store, "r05000"));
	/* Of the nodes that are known, some have more pools. */
	unsigned number = STORE_ROSTER_NODES_MAX;
	for (unsigned i = 1; i < STORE_NODE_POOLS_MAX; i++)
		cr_assert_eq(tell_roster(7, number++), 0);
	cr_expect_eq(store_node(store, "r00007")->n_pools, STORE_NODE_POOLS_MAX);
	cr_expect_eq(tell_roster(7, number), -ENOSPC, "a node has so many");
	for (unsigned i = 10; number < STORE_ROSTER_POOLS_MAX; i++)
		cr_assert_eq(tell_roster(i, number++), 0);
	cr_expect_eq(tell_roster(8, number), -ENOSPC, "all of them have so many");
	cr_expect_eq(tell_roster(8, 8), 0, "nothing is new");
	/* None of this is in the way of a node that joins. */
	struct store_node *here = join("n1", "1");
	cr_expect_eq(here->state, STORE_NODE_JOINING);
	pool(join("r00007", "1"), "00000007"
				  "111111111111111111111111");
	cr_expect_eq(tell_roster(8, number), 0, "one of them has come");
}

Test(store, a_forgotten_pool_is_not_missed)
{
	const char *pools[] = {"bbbbbbbb"};
	node_with("n1", UUID_A, VOL_A);
	cr_assert_eq(store_forget(store, "bbbbbbbb"), 0);
	cr_assert_eq(store_roster(store, "n2", pools, 1), 0);
	cr_assert(whole());
	cr_assert_null(store_node(store, "n2"));
	/* A node that has no other is not waited for while it tells. */
	join("n2", "1");
	cr_assert_eq(store_roster(store, "n2", pools, 1), 0);
	cr_assert(whole(), "%s", err.message);
}

Test(store, is_not_whole_before_it_has_settled)
{
	store_close(store);
	cr_assert_eq(store_open(&store), 0);
	struct store_node *a = join("n1", "1");
	store_synced(store, a);
	cr_assert_not(whole());
	cr_assert_not_null(strstr(err.message, "just started"));
	store_settle(store);
	cr_assert(whole());
	store_close(store);
	cr_assert_eq(store_open(&store), 0);
	store_synced(store, join("n1", "1"));
	/* A roster may be an old one: it ends no waiting. */
	cr_assert_eq(store_roster(store, "n1", NULL, 0), 0);
	cr_assert_not(whole());
	cr_assert_not_null(strstr(err.message, "just started"));
}

Test(store, a_node_that_makes_a_name_is_in_the_roster)
{
	struct store_node *a = join("n1", "1"), *other;
	struct store_pool *empty = pool(a, UUID_A);
	uint64_t version = store_roster_version(store);
	cr_assert_not(store_pool_in_roster(empty));
	cr_assert_eq(claim(a, "pvc-9", &other), 0);
	cr_assert(store_pool_in_roster(empty));
	cr_assert_neq(store_roster_version(store), version);
	version = store_roster_version(store);
	cr_assert_eq(claim(a, "pvc-8", &other), 0);
	store_name_release(store, STORE_VOLUME, "pvc-8");
	cr_assert_eq(store_roster_version(store), version);
	store_name_release(store, STORE_VOLUME, "pvc-9");
	cr_assert_not(store_pool_in_roster(empty));
	cr_assert_neq(store_roster_version(store), version);
}

/* ---- what moves ---- */

static int tell(struct store_node *node, const char *id, const char *uuid8, uint64_t moves,
	const char *text)
{
	const struct object_text told = {.kind = STORE_VOLUME,
		.id = id,
		.source_id = "",
		.entry = (const uint8_t *)text,
		.entry_len = strlen(text),
		.pool = uuid8,
		.moves = moves};
	err_clear(&err);
	return store_object_tell(store, node, &told, &err);
}

static const char *node_of(const char *id)
{
	const struct store_object *object = store_object(store, id);
	return object != NULL ? object->pool->node->id : "";
}

Test(store, what_has_moved_is_where_it_is)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A), *b = join("n2", "1");
	pool(b, UUID_B);
	cr_assert_eq(tell(b, VOL_A, "bbbbbbbb", 1, "here"), 0);
	cr_assert_str_eq(node_of(VOL_A), "n2");
	cr_assert_eq(store_count(store, STORE_VOLUME), 1);
	cr_assert_eq(store_duplicates(store), 0);
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-1"), b);
	/* What was told before it left, and that it is gone there. */
	cr_assert_eq(set(a, STORE_VOLUME, VOL_A, "old"), 0);
	cr_assert_str_eq(text_of(store_object(store, VOL_A)), "here");
	store_object_gone(store, a, VOL_A);
	store_synced(store, a);
	cr_assert_str_eq(node_of(VOL_A), "n2");
	/* Answers do not say where it is. */
	cr_assert_eq(set(b, STORE_VOLUME, VOL_A, "grown"), 0);
	cr_assert_eq(object_moves(store_object(store, VOL_A)), 1);
	/* It is here whoever else is away, and away with its node alone. */
	store_leave(store, a);
	cr_assert(store_pool_here(store_object(store, VOL_A)->pool));
	store_leave(store, b);
	a = join("n1", "2");
	pool(a, UUID_A);
	store_synced(store, a);
	cr_assert_str_eq(node_of(VOL_A), "n2");
	cr_assert_not(store_pool_here(store_object(store, VOL_A)->pool));
	/* And back. */
	cr_assert_eq(tell(a, VOL_A, "", 2, "home"), 0);
	cr_assert_str_eq(node_of(VOL_A), "n1");
	b = join("n2", "2");
	pool(b, UUID_B);
	cr_assert_eq(tell(b, VOL_A, "bbbbbbbb", 1, "old"), 0);
	store_synced(store, b);
	cr_assert_str_eq(node_of(VOL_A), "n1");
	cr_assert_str_eq(text_of(store_object(store, VOL_A)), "home");
}

Test(store, what_was_deleted_where_it_had_gone_does_not_come_back)
{
	struct store_node *a = node_with("n1", UUID_A, VOL_A), *b = join("n2", "1");
	pool(b, UUID_B);
	cr_assert_eq(tell(b, VOL_A, "bbbbbbbb", 1, "here"), 0);
	store_object_remove(store, VOL_A);
	cr_assert_null(store_object(store, VOL_A));
	/* The node that it left does not confirm it. */
	store_object_gone(store, a, VOL_A);
	store_synced(store, a);
	cr_assert_eq(tell(b, VOL_A, "bbbbbbbb", 1, "old"), 0);
	cr_assert_null(store_object(store, VOL_A));
	store_object_gone(store, b, VOL_A);
	struct store_stats stats;
	store_stats(store, &stats);
	cr_assert_eq(stats.tombs, 0);
}

Test(store, a_pool_that_was_left_can_be_forgotten)
{
	struct store_node *b = join("n2", "1");
	pool(b, UUID_B);
	cr_assert_eq(store_forget(store, "aaaaaaaa"), 0);
	cr_assert_eq(tell(b, VOL_A, "bbbbbbbb", 1, "here"), 0);
	cr_assert_str_eq(node_of(VOL_A), "n2");
	cr_assert(store_pool(store, "aaaaaaaa")->forgotten);
	/* Of a pool that is not the node's it is refused. */
	cr_assert_lt(tell(b, VOL_A, "aaaaaaaa", 3, "here"), 0);
	cr_assert_eq(err.code, ERR_INVALID);
	cr_assert_lt(tell(b, VOL_A, "cccccccc", 3, "here"), 0);
	cr_assert_eq(err.code, ERR_INVALID);
}

Test(store, the_roster_changes_with_what_is_in_it)
{
	struct store_node *a = join("n1", "1");
	pool(a, UUID_A);
	uint64_t version = store_roster_version(store);
	cr_assert_eq(set(a, STORE_VOLUME, VOL_A, "x"), 0);
	cr_assert_neq(store_roster_version(store), version);
	version = store_roster_version(store);
	cr_assert_eq(set(a, STORE_VOLUME, "aaaaaaaa.pvc-2.00000001", "x"), 0);
	cr_assert_eq(set(a, STORE_VOLUME, VOL_A, "changed"), 0);
	store_object_gone(store, a, "aaaaaaaa.pvc-2.00000001");
	cr_assert_eq(store_roster_version(store), version);
	store_object_gone(store, a, VOL_A);
	cr_assert_neq(store_roster_version(store), version);
	cr_assert_not(store_pool_in_roster(store_pool(store, "aaaaaaaa")));
}

Test(store, counts_for_metrics)
{
	struct store_stats stats;
	struct store_node *a = node_with("n1", UUID_A, VOL_A);
	node_with("n2", UUID_B, VOL_B);
	store_roster(store, "n3", (const char *[]){"cccccccc"}, 1);
	store_forget(store, "dddddddd");
	join("n4", "1");
	store_leave(store, a);
	store_stats(store, &stats);
	cr_assert_eq(stats.nodes[STORE_NODE_ABSENT], 1);
	cr_assert_eq(stats.nodes[STORE_NODE_PRESENT], 1);
	cr_assert_eq(stats.nodes[STORE_NODE_ROSTER], 1);
	cr_assert_eq(stats.nodes[STORE_NODE_JOINING], 1);
	cr_assert_eq(stats.pools, 4);
	cr_assert_eq(stats.pools_away, 2);
	cr_assert_eq(stats.pools_forgotten, 1);
	cr_assert_eq(stats.objects[STORE_VOLUME], 2);
	cr_assert_eq(stats.duplicates, 1);
	cr_assert_gt(stats.object_bytes, 0);
}
