/* SPDX-License-Identifier: Apache-2.0 */
/* The index alone, without files: order, sums, families, and what is found by name, id or image. */
#include "pool_memory.h"

#include "pool/departure.h"
#include "pool/golden.h"
#include "pool/hold.h"
#include "pool/prefixed.h"

#include <stdio.h>

enum { POOLS = 3 };

static struct pool all[POOLS];
static struct pools pools;
static char lanes[POOLS + 1];

static struct lane *lane(unsigned i)
{
	return (struct lane *)(void *)&lanes[i];
}

static void setup(void)
{
	static char names[POOLS][2] = {"a", "b", "c"};
	static const char *const uuids[POOLS] = {"22222222", "11111111", "33333333"};
	pools = (struct pools){.count = POOLS, .strays = lane(POOLS)};
	for (unsigned i = 0; i < POOLS; i++) {
		all[i] = (struct pool){
			.pools = &pools, .name = names[i], .life = POOL_SERVED, .lane = lane(i)};
		strcpy(all[i].uuid8, uuids[i]);
		list_init(&all[i].holds);
		list_init(&all[i].departures);
		list_init(&all[i].departures_dead);
		pools.at[i] = &all[i];
	}
}

static void teardown(void)
{
	for (unsigned i = 0; i < POOLS; i++)
		drop_all(&all[i]);
}

TestSuite(index, .init = setup, .fini = teardown);

static struct pool_object *put_name(struct pool *pool, const char *name)
{
	struct record rec = volume(name);
	return put(pool, &rec, 0);
}

/* ---- order ---- */

static unsigned removed;

static void on_removed(void *arg, const struct pool_object *o)
{
	cr_assert_eq(arg, &removed);
	cr_assert_eq(pool_index_find(o->pool, o->kind, o->key), o, "it is whole still");
	removed++;
}

Test(index, keeps_its_order)
{
	static const char *const keys[] = {"m", "c", "x", "a", "e", "z", "d", "y", "b"};
	enum { COUNT = sizeof(keys) / sizeof(keys[0]) };
	struct pool *p = &all[0];
	cr_assert_null(pool_next_object(p, RECORD_VOLUME, ""));
	for (unsigned i = 0; i < COUNT; i++) {
		put_name(p, keys[i]);
		cr_assert_eq(pool_count(p, RECORD_VOLUME), i + 1);
		for (unsigned k = 0; k < COUNT; k++) {
			struct pool_object *o = pool_index_find(p, RECORD_VOLUME, keys[k]);
			cr_assert_eq(o != NULL, k <= i, "%s of %u", keys[k], i + 1);
			cr_assert(o == NULL || strcmp(o->key, keys[k]) == 0);
			cr_assert_null(pool_index_find(p, RECORD_SNAPSHOT, keys[k]));
		}
	}
	cr_assert_eq(pool_count(p, RECORD_SNAPSHOT), 0);
	static const char *const after[][2] = {{"", "a"}, {"a", "b"}, {"c", "d"}, {"cc", "d"},
		{"e", "m"}, {"f", "m"}, {"y", "z"}, {"yy", "z"}};
	for (unsigned i = 0; i < sizeof(after) / sizeof(after[0]); i++)
		cr_expect_str_eq(pool_next_object(p, RECORD_VOLUME, after[i][0])->key, after[i][1]);
	cr_expect_null(pool_next_object(p, RECORD_VOLUME, "z"));
	cr_expect_null(pool_next_object(p, RECORD_VOLUME, "zz"));

	pools_on_removed(&pools, on_removed, &removed);
	removed = 0;
	struct pool_object *m = pool_index_find(p, RECORD_VOLUME, "m");
	pool_index_remove(m);
	cr_assert_eq(removed, 1);
	cr_assert_null(pool_index_find(p, RECORD_VOLUME, "m"));
	cr_assert_eq(pool_count(p, RECORD_VOLUME), COUNT - 1);
	cr_assert_str_eq(pool_next_object(p, RECORD_VOLUME, "e")->key, "x");
	/* What is not in it any more, and what another has the place of, changes nothing. */
	pool_index_remove(m);
	struct pool_object *other = put_name(p, "m");
	pool_index_remove(m);
	cr_assert_eq(removed, 1);
	cr_assert_eq(pool_index_find(p, RECORD_VOLUME, "m"), other);
	cr_assert_eq(p->sum_size, (uint64_t)COUNT * 8 * MIB);
	pool_object_free(m);
	pools_on_removed(&pools, NULL, NULL);
	drop(pool_index_find(p, RECORD_VOLUME, "a"));
	drop(pool_index_find(p, RECORD_VOLUME, "z"));
	cr_assert_eq(removed, 1);
	cr_assert_str_eq(pool_next_object(p, RECORD_VOLUME, "")->key, "b");
	cr_assert_null(pool_next_object(p, RECORD_VOLUME, "y"));
	pool_object_free(NULL);
}

/* ---- the sums ---- */

static void check_sums(const struct pool *p, unsigned size, unsigned allocated, unsigned own,
	unsigned owed, const char *what)
{
	cr_expect_eq(
		p->sum_size / MIB, size, "%s: %llu", what, (unsigned long long)(p->sum_size / MIB));
	cr_expect_eq(p->sum_allocated / MIB, allocated, "%s", what);
	cr_expect_eq(
		p->sum_own / MIB, own, "%s: %llu", what, (unsigned long long)(p->sum_own / MIB));
	cr_expect_eq(
		p->sum_owed / MIB, owed, "%s: %llu", what, (unsigned long long)(p->sum_owed / MIB));
	cr_expect(p->sum_thin_size == 0 && p->sum_thin_own == 0, "%s", what);
}

/* Each for itself, in MiB; an encrypted image has 16 MiB more than its volume. */
Test(index, sums_what_is_promised_and_what_is_there)
{
	static const struct {
		const char *what;
		enum record_kind kind;
		bool thick, encrypted, unformatted, shared;
		unsigned allocated, size, own, owed;
	} table[] = {
		{"thin", RECORD_VOLUME, .allocated = 3, .size = 8, .own = 3},
		{"full", RECORD_VOLUME, .allocated = 8, .size = 8, .own = 8},
		{"more than full", RECORD_VOLUME, .allocated = 9, .size = 8, .own = 8},
		{"thick", RECORD_VOLUME, .thick = true, .allocated = 8, .size = 8, .own = 8},
		{"encrypted", RECORD_VOLUME, .encrypted = true, .allocated = 3, .size = 24,
			.own = 3},
		{"thin and unformatted", RECORD_VOLUME, .encrypted = true, .unformatted = true,
			.allocated = 1, .size = 24, .own = 1},
		{"thick and unformatted", RECORD_VOLUME, .thick = true, .encrypted = true,
			.unformatted = true, .allocated = 1, .size = 24, .own = 1, .owed = 23},
		{"shared", RECORD_VOLUME, .shared = true, .allocated = 3, .size = 8},
		{"snapshot", RECORD_SNAPSHOT, .allocated = 3},
	};
	struct pool *p = &all[0];
	for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct record rec = volume("v");
		rec.kind = table[i].kind;
		rec.thick = table[i].thick;
		rec.encryption = table[i].encrypted ? RECORD_LUKS2 : RECORD_PLAIN;
		rec.unformatted = table[i].unformatted;
		struct pool_object *o = put(p, &rec, (uint64_t)table[i].allocated * MIB);
		if (table[i].shared) {
			pool_sums_sub(o);
			o->shared = true;
			pool_sums_add(o);
		}
		check_sums(p, table[i].size, table[i].allocated, table[i].own, table[i].owed,
			table[i].what);
		struct pool_object *twice = put_name(p, "other");
		check_sums(p, table[i].size + 8, table[i].allocated, table[i].own, table[i].owed,
			table[i].what);
		drop(twice);
		drop(o);
		check_sums(p, 0, 0, 0, 0, table[i].what);
	}
	/* Nobody knows what it promised: as much as there is of it. */
	struct pool_object *o = put_quarantined(p, RECORD_VOLUME, "q", 5 * MIB);
	check_sums(p, 5, 1, 1, 0, "quarantined");
	drop(o);
	o = put_quarantined(p, RECORD_SNAPSHOT, "q", 5 * MIB);
	check_sums(p, 0, 1, 0, 0, "a quarantined snapshot");
	drop(o);
	check_sums(p, 0, 0, 0, 0, "none");
}

/* With all that was read of it. */
Test(index, counts_the_images_that_are_not_whole)
{
	struct record rec = volume("cut");
	struct attachment one = {.node = "n", .mode = ATTACHMENT_WRITER, .export = "", .key = ""};
	struct attachments *attachments = attachments_with(NULL, &one);
	struct pool_found found = {.rec = record_new(&rec),
		.attachments = attachments,
		.truncated = true,
		.left = true,
		.thin_id = 7,
		.image_dev = 8,
		.image_ino = 9};
	strcpy(found.key, "cut");
	struct pool_object *cut = pool_index_insert(&all[0], &found);
	cr_assert(found.rec == NULL && found.attachments == NULL, "they are the object's");
	cr_assert_eq(cut->attachments, attachments);
	cr_assert(pool_entry(cut)->left && pool_entry(cut)->thin_id == 7);
	cr_assert(cut->image_dev == 8 && cut->image_ino == 9);
	struct pool_object *whole = put_name(&all[0], "whole");
	cr_assert_eq(cut->image, POOL_IMAGE_TRUNCATED);
	cr_assert_eq(whole->image, POOL_IMAGE_WHOLE);
	cr_assert(pool_entry(whole)->remeasure);
	cr_assert_eq(all[0].images_wrong, 1);
	drop(whole);
	cr_assert_eq(all[0].images_wrong, 1);
	drop(cut);
	cr_assert_eq(all[0].images_wrong, 0);
}

/* ---- families ---- */

static struct pool_object *put_of(
	const char *name, enum record_kind kind, const char *source_id, const char *family)
{
	struct record rec = volume(name);
	rec.kind = kind;
	rec.source_id = source_id;
	rec.family = family;
	rec.shares_extents = source_id[0] != '\0';
	return put(&all[0], &rec, 2 * MIB);
}

static unsigned shared_bits(struct pool_object *const *o, unsigned count)
{
	unsigned bits = 0;
	for (unsigned i = 0; i < count; i++)
		bits |= (unsigned)o[i]->shared << i;
	return bits;
}

#define V "22222222.v.00000001"
#define W "22222222.w.00000001"

Test(index, families_are_told_apart)
{
	struct pool *p = &all[0];
	struct record copy = volume("copy");
	copy.source_id = V; /* its extents are its own */
	struct pool_object *o[] = {put_of("v", RECORD_VOLUME, "", ""),
		put_of("s", RECORD_SNAPSHOT, V, ""), put_of("c", RECORD_VOLUME, "x", V),
		put_of("w", RECORD_VOLUME, "", ""), put_of("t", RECORD_SNAPSHOT, W, ""),
		put_of("alone", RECORD_VOLUME, "22222222.gone.00000001", ""),
		put(p, &copy, 2 * MIB), put_quarantined(p, RECORD_VOLUME, "q", MIB)};
	enum { COUNT = sizeof(o) / sizeof(o[0]) };
	cr_assert_str_eq(pool_family(o[0]->rec), "");
	cr_assert_str_eq(pool_family(o[1]->rec), V);
	cr_assert_str_eq(pool_family(o[2]->rec), V);
	cr_assert_str_eq(pool_family(o[6]->rec), "");
	o[5]->shared = o[6]->shared = true; /* as of before */
	p->sum_own -= 4 * MIB;
	pool_family_update_all(p);
	cr_assert_eq(shared_bits(o, COUNT), 0x1f);
	uint64_t own = p->sum_own;
	cr_assert_eq(own, 5 * MIB, "what shares has nothing of its own");
	/* One after another goes: the last one shares nothing any more. */
	drop(o[0]);
	pool_family_update(p, V);
	cr_assert_eq(shared_bits(o + 1, COUNT - 1), 0x1f >> 1);
	drop(o[1]);
	pool_family_update(p, "");
	cr_assert(o[2]->shared);
	pool_family_update(p, V);
	cr_assert_not(o[2]->shared);
	cr_assert(o[3]->shared && o[4]->shared, "the other family");
	cr_assert_eq(p->sum_own, own + 2 * MIB);
	drop(o[4]);
	pool_family_update(p, W);
	cr_assert_not(o[3]->shared);
	/* The founder is known by its whole id, and not where it is quarantined. */
	put_of("t", RECORD_SNAPSHOT, "22222222.w.00000002", "");
	put_of("u", RECORD_SNAPSHOT, "22222222.q.00000001", "");
	pool_family_update(p, "22222222.w.00000002");
	pool_family_update_all(p);
	cr_assert_not(o[3]->shared);
	cr_assert_not(o[7]->shared);
	cr_assert_not(pool_index_find(p, RECORD_SNAPSHOT, "t")->shared);
	cr_assert_not(pool_index_find(p, RECORD_SNAPSHOT, "u")->shared);
	put_of("t2", RECORD_SNAPSHOT, W, "");
	pool_family_update(p, W);
	cr_assert(o[3]->shared);
	cr_assert(pool_index_find(p, RECORD_SNAPSHOT, "t2")->shared);
}

/* What another node copies keeps its source's blocks as a snapshot does. */
Test(index, what_is_held_is_of_the_family)
{
	struct pool *p = &all[0];
	struct record rec = volume("v"), clone = volume("c");
	clone.shares_extents = true;
	clone.source_id = "22222222.gone.00000001";
	struct pool_object *v = put(p, &rec, MIB), *c = put(p, &clone, MIB);
	struct pool_hold of_v = {.rec = v->rec, .source_id = V, .shares = true};
	struct pool_hold of_c = {.rec = c->rec, .source_id = "22222222.c.00000001", .shares = true};
	cr_assert_str_eq(pool_hold_family(&of_v), V);
	cr_assert_str_eq(pool_hold_family(&of_c), "22222222.gone.00000001");
	list_push(&p->holds, &of_v.link);
	list_push(&p->holds, &of_c.link);
	pool_family_update_all(p);
	cr_assert(v->shared && c->shared);
	of_v.shares = false;
	cr_assert_str_eq(pool_hold_family(&of_v), "");
	pool_family_update_all(p);
	cr_assert(!v->shared && c->shared);
	pool_family_update(p, V); /* of which nothing is held */
	cr_assert(!v->shared && c->shared);
	list_remove(&of_c.link);
	pool_family_update_all(p);
	cr_assert(!v->shared && !c->shared);
}

/* ---- by name ---- */

Test(index, is_asked_by_name)
{
	cr_assert_null(pools_find_name(&pools, RECORD_VOLUME, "v"));
	struct pool_object *third = put_name(&all[2], "v");
	cr_assert_eq(pools_find_name(&pools, RECORD_VOLUME, "v"), third);
	struct pool_object *second = put_name(&all[1], "v");
	cr_assert_eq(pools_find_name(&pools, RECORD_VOLUME, "v"), second, "the first pool's");
	cr_assert_null(pools_find_name(&pools, RECORD_SNAPSHOT, "v"));
	pool_entry(second)->left = true;
	cr_assert_eq(pools_find_name(&pools, RECORD_VOLUME, "v"), third);
	struct pool_object *q = put_quarantined(&all[0], RECORD_VOLUME, "v", 0);
	cr_assert_eq(pools_find_name(&pools, RECORD_VOLUME, "v"), q, "by its key");
	/* Whose name is another with the same key is not it. */
	struct pool_object *odd = put_name(&all[0], "a/b");
	cr_assert_eq(pools_find_name(&pools, RECORD_VOLUME, "a/b"), odd);
	cr_assert_null(pools_find_name(&pools, RECORD_VOLUME, odd->key));
}

/* ---- by id ---- */

static void find_fails(const char *id, enum err_code code, const char *message)
{
	struct pool_object *o = (struct pool_object *)&lanes;
	struct err err = {0};
	cr_expect_lt(pools_find_id(&pools, RECORD_VOLUME, id, &o, &err), 0, "%s", id);
	cr_expect_eq(err.code, code, "%s: %s", id, err.message);
	cr_expect_str_eq(err.message, message);
	cr_expect_eq(o, (struct pool_object *)&lanes, "it is set with 0 alone");
}

Test(index, says_why_an_id_is_not_found)
{
	char text[RECORD_ID_MAX + 2], want[2 * RECORD_ID_MAX];
	put_name(&all[0], "v");
	put_quarantined(&all[0], RECORD_VOLUME, "q", 0);
	strcpy(all[1].why, "pool b hangs");
	all[1].life = POOL_MUTE;
	find_fails(
		"22222222.w.00000001", ERR_NOT_FOUND, "volume 22222222.w.00000001 does not exist");
	find_fails(
		"22222222.v.00000002", ERR_NOT_FOUND, "volume 22222222.v.00000002 does not exist");
	pool_entry(put_name(&all[0], "left"))->left = true;
	find_fails("22222222.left.00000001", ERR_NOT_FOUND,
		"volume 22222222.left.00000001 does not exist");
	find_fails("nonsense", ERR_NOT_FOUND, "volume nonsense does not exist");
	find_fails("22222222.q.00000002", ERR_DATA_LOSS,
		"volume q in pool a is quarantined: its record is damaged; see ringvol check");
	all[1].life = POOL_UNREAD;
	find_fails(
		"11111111.v.00000001", ERR_UNAVAILABLE, "volume 11111111.v.00000001: pool b hangs");
	find_fails("44444444.v.00000001", ERR_UNAVAILABLE,
		"volume 44444444.v.00000001: no pool on this node has the uuid 44444444...; ask the "
		"node that has it, or give its pool to this driver with --pool");
	all[1].uuid8[0] = '\0';
	find_fails("44444444.v.00000001", ERR_UNAVAILABLE,
		"volume 44444444.v.00000001 may be in a pool that is not here: pool b hangs");
	find_fails(
		"22222222.w.00000001", ERR_NOT_FOUND, "volume 22222222.w.00000001 does not exist");
	/* As long as an id may be, and one more. */
	memset(text, 'a', sizeof(text));
	text[RECORD_ID_MAX] = '\0';
	snprintf(want, sizeof(want), "volume %s does not exist", text);
	find_fails(text, ERR_NOT_FOUND, want);
	text[RECORD_ID_MAX] = 'a';
	text[RECORD_ID_MAX + 1] = '\0';
	find_fails(text, ERR_INVALID, "the volume id is longer than 128 bytes");
	struct pool_object *o;
	struct err err = {0};
	cr_assert_lt(pools_find_id(&pools, RECORD_SNAPSHOT, V, &o, &err), 0);
	cr_assert_str_eq(err.message, "snapshot " V " does not exist");
}

Test(index, lanes_of_ids)
{
	put_quarantined(&all[2], RECORD_VOLUME, "q", 0);
	struct record rec = volume("moved");
	rec.born = "22222222";
	rec.moves = 1;
	put(&all[2], &rec, 0);
	all[2].life = POOL_AWAY;
	cr_assert_eq(pools_lane_of_id(&pools, "22222222.v.00000001"), lane(0));
	cr_assert_eq(pools_lane_of_id(&pools, "22222222.moved.00000001"), lane(2));
	cr_assert_eq(pools_lane_of_id(&pools, "22222222.moved.00000002"), lane(0));
	cr_assert_eq(pools_lane_of_id(&pools, "33333333.q.00000001"), lane(2));
	cr_assert_eq(pools_lane_of_id(&pools, "44444444.v.00000001"), lane(POOLS));
	cr_assert_eq(pools_lane_of_id(&pools, "nonsense"), lane(POOLS));
	cr_assert_eq(pool_lane(&all[1]), lane(1));
	cr_assert_null(pool_lane(NULL));
}

/* An id that nobody here has or had. */
Test(index, ids_of_elsewhere)
{
	cr_assert(pools_id_elsewhere(&pools, "44444444.v.00000001"));
	cr_assert_not(pools_id_elsewhere(&pools, "nonsense"));
	cr_assert_not(pools_id_elsewhere(&pools, "22222222.v.00000001"));
	struct pool_object *q = put_quarantined(&all[1], RECORD_VOLUME, "v", 0);
	cr_assert_not(pools_id_elsewhere(&pools, "44444444.v.00000001"), "it may be that");
	pool_entry(q)->left = true;
	cr_assert(pools_id_elsewhere(&pools, "44444444.v.00000001"));
	drop(q);
	struct record rec = volume("v");
	rec.born = "44444444";
	rec.moves = 1;
	struct pool_object *o = put(&all[1], &rec, 0);
	cr_assert_not(pools_id_elsewhere(&pools, "44444444.v.00000001"));
	cr_assert(pools_id_elsewhere(&pools, "44444444.v.00000002"));
	drop(o);
	struct pool_departure left = {
		.pool = &all[0], .id = V, .key = "v", .moves = 1, .to = "44444444"};
	pool_departure_enter(&all[0], &left);
	cr_assert(pools_id_elsewhere(&pools, V));
	strcpy(left.to, "33333333");
	cr_assert_not(pools_id_elsewhere(&pools, V), "it went to another pool of ours");
	list_remove(&left.link);
	all[2].uuid8[0] = '\0';
	cr_assert_not(pools_id_elsewhere(&pools, "44444444.v.00000001"), "it may be that pool's");
}

/* ---- inline volumes ---- */

Test(index, an_inline_volume_is_known_by_its_name)
{
	struct pool_object *found;
	struct err err = {0};
	struct record rec = volume("csi-1"), plain = volume("csi-2");
	rec.owner = "/pods/1";
	struct pool_object *o = put(&all[1], &rec, 0), *other = put(&all[1], &plain, 0);
	cr_assert_eq(pools_find_id(&pools, RECORD_VOLUME, "csi-1", &found, &err), 0);
	cr_assert_eq(found, o);
	cr_assert_lt(pools_find_id(&pools, RECORD_VOLUME, "csi-2", &found, &err), 0);
	cr_assert_lt(pools_find_id(&pools, RECORD_SNAPSHOT, "csi-1", &found, &err), 0);
	cr_assert_eq(
		pools_find_id(&pools, RECORD_VOLUME, "11111111.csi-1.00000001", &found, &err), 0);
	cr_assert(pool_object_has_id(o, "csi-1"));
	cr_assert(pool_object_has_id(o, "11111111.csi-1.00000001"));
	cr_assert_not(pool_object_has_id(o, "csi-2"));
	cr_assert_not(pool_object_has_id(other, "csi-2"));
	cr_assert_not(pool_object_has_id(other, "11111111.csi-2.00000002"));
	cr_assert_not(pool_object_has_id(other, "22222222.csi-2.00000001"));
	err_clear(&err);
	cr_assert_eq(pool_check_not_inline(other, &err), 0);
	cr_assert_lt(pool_check_not_inline(o, &err), 0);
	cr_assert_eq(err.code, ERR_PRECONDITION);
	cr_assert_not_null(strstr(err.message, "volume csi-1 is an inline volume of /pods/1: "));
	rec.claim = "shop/pod";
	rec.name = "csi-3";
	o = put(&all[1], &rec, 0);
	err_clear(&err);
	cr_assert_lt(pool_check_not_inline(o, &err), 0);
	cr_assert_not_null(strstr(err.message, "volume csi-3 is an inline volume of shop/pod: "));
	o = put_quarantined(&all[1], RECORD_VOLUME, "q", 0);
	cr_assert_eq(pool_check_not_inline(o, &err), 0);
	cr_assert(pool_object_has_id(o, "11111111.q.12345678"), "any random part will do");
	cr_assert_not(pool_object_has_id(o, "22222222.q.12345678"));
	cr_assert_not(pool_object_has_id(o, "11111111.r.12345678"));
}

/* ---- walks, images ---- */

/* In the order of the pools' uuids and not of the pools; what is quarantined or has left is not
 * shown. */
Test(index, is_walked)
{
	static const char *const want[] = {"1", "2", "3", "5"};
	put_name(&all[2], "5");
	put_name(&all[0], "3");
	put_name(&all[1], "2");
	put_name(&all[1], "1");
	put_quarantined(&all[1], RECORD_VOLUME, "0", 0);
	pool_entry(put_name(&all[0], "4"))->left = true;
	struct pool_walk walk = {0};
	for (unsigned i = 0; i < 4; i++)
		cr_assert_str_eq(pools_next(&pools, RECORD_VOLUME, &walk)->key, want[i]);
	cr_assert_null(pools_next(&pools, RECORD_VOLUME, &walk));
	cr_assert_str_eq(walk.key, "5");
	cr_assert_null(pools_next(&pools, RECORD_SNAPSHOT, &(struct pool_walk){0}));
}

/* By device and inode: either alone is another's too. */
Test(index, is_asked_by_image)
{
	struct pool_object *o[4];
	for (unsigned i = 0; i < 4; i++) {
		o[i] = put_name(&all[i / 2], (const char *[]){"a", "b"}[i % 2]);
		o[i]->image_dev = 10 + i / 2;
		o[i]->image_ino = 20 + i % 2;
	}
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(pools_find_image(&pools, 10 + i / 2, 20 + i % 2), o[i]);
	cr_assert_null(pools_find_image(&pools, 10, 22));
	cr_assert_null(pools_find_image(&pools, 12, 20));
}

/* ---- by names alone ---- */

static struct pool_object *put_snapshot(struct pool *pool, const char *source_id)
{
	struct record rec = volume("root");
	rec.kind = RECORD_SNAPSHOT;
	rec.source = RECORD_SOURCE_VOLUME;
	rec.source_id = source_id;
	return put(pool, &rec, 0);
}

static enum err_code find_golden(struct pool_object **ret, const char *part)
{
	struct err err = {0};
	pools_find_golden(&pools, "root", ret, &err);
	cr_assert_not_null(strstr(err.message, part), "%s", err.message);
	return err.code;
}

/* The one that is golden, then the one that may be, then the pool that may have it. */
Test(index, finds_the_golden_image)
{
	static const char import[] = "22222222.import.root.0123abcd.01234567";
	struct pool_object *found = NULL, *golden;
	cr_assert_eq(find_golden(&found, ""), ERR_OK);
	cr_assert_null(found);
	all[1].life = POOL_NEW;
	strcpy(all[1].why, "pool b is being loaded");
	cr_assert_eq(find_golden(&found, "pool b may have the golden image root, and was not read"
					 " yet: pool b is being loaded"),
		ERR_UNAVAILABLE);
	struct pool_object *damaged = put_quarantined(&all[0], RECORD_SNAPSHOT, "root", 0);
	cr_assert_eq(find_golden(&found, "quarantined in pool a: its record is"), ERR_DATA_LOSS);
	put_snapshot(&all[2], "22222222.v.01234567");
	cr_assert_eq(find_golden(&found, "quarantined in pool a: its record is"), ERR_DATA_LOSS);
	drop(damaged);
	cr_assert_eq(find_golden(&found, "root in pool c is no golden image"), ERR_PRECONDITION);
	golden = put_snapshot(&all[0], import);
	cr_assert_eq(find_golden(&found, ""), ERR_OK);
	cr_assert_eq(found, golden);
	put_snapshot(&all[1], import);
	cr_assert_eq(find_golden(&found, "pools a and b have a golden image root each"),
		ERR_PRECONDITION);
}

static void next_is(const char *after, const char *want)
{
	const struct pool_object *o = prefixed_next(&all[0], "docker-", after);
	cr_assert_eq(o != NULL, want != NULL, "%s", after);
	cr_assert(o == NULL || strcmp(o->key, want) == 0, "%s: %s", after, o->key);
}

/* What cannot be read has no name, and a pod's volume is the pod's. */
Test(index, walks_names_of_one_beginning)
{
	static const char *const names[] = {"a", "docker-", "docker-b", "docker-d", "dog", "z"};
	char long_name[120], other_long[120];
	struct record inlined = volume("docker-c");
	memset(long_name, 'x', sizeof(long_name) - 1);
	memcpy(long_name, "docker-", strlen("docker-"));
	long_name[119] = other_long[119] = '\0';
	memset(other_long, 'y', sizeof(other_long) - 1);
	inlined.owner = "/var/lib/kubelet/pods/1";
	next_is("", NULL);
	put(&all[0], &inlined, 0);
	put_quarantined(&all[0], RECORD_VOLUME, "docker-a", 0);
	next_is("", NULL);
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		put_name(&all[0], names[i]);
	put_name(&all[0], other_long);
	next_is("", "docker-b");
	struct pool_object *hashed = put_name(&all[0], long_name);
	next_is("", hashed->key);
	next_is(hashed->key, "docker-b");
	next_is("docker-b", "docker-d");
	next_is("docker-d", NULL);
	cr_assert_str_eq(prefixed_name_of(hashed, "docker-"), long_name + strlen("docker-"));
}
