/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes that are in another pool than their ids say: found, walked past, told from others. */
#include "pool_fixture.h"

#include "base/fd.h"
#include "pool/departure_file.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <sys/xattr.h>

enum { MIB = 1 << 20 };

static struct fixture f;
static struct pool *a, *b; /* in the order of their uuids */

static void open_two(void)
{
	static char second[128];
	snprintf(second, sizeof(second), "%s/second", f.top);
	struct pool_config configs[] = {{.name = "one", .path = f.path, .init = true},
		{.name = "two", .path = second, .init = true}};
	fixture_open_configs(&f, configs, 2);
	a = pools_at(f.pools, 0);
	b = pools_at(f.pools, 1);
	if (strcmp(pool_uuid8(a), pool_uuid8(b)) > 0) {
		struct pool *other = a;
		a = b;
		b = other;
	}
}

static void setup(void)
{
	fixture_make(&f, FIXTURE_DIR, false);
	fixture_open_ring(&f, NULL);
	open_two();
}

static void again(void)
{
	fixture_close_pools(&f);
	open_two();
}

/* A volume as a move leaves it; born "": it was made there. */
static void plant(const struct pool *pool, const char *name, const char *random, const char *born,
	unsigned moves)
{
	char text[RECORD_BYTES_MAX], path[256];
	struct record rec = fixture_volume(name, MIB);
	rec.born = born;
	rec.moves = moves;
	strcpy(rec.random, random);
	struct record *made = record_new(&rec);
	int len = record_print(made, text, sizeof(text));
	snprintf(path, sizeof(path), "%s/volumes/%s", pool_path(pool), made->key);
	record_free(made);
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	cr_assert(len > 0 && fd >= 0 && ftruncate(fd, MIB) == 0 &&
		  fsetxattr(fd, RECORD_XATTR, text, (size_t)len, 0) == 0);
	close(fd);
}

static enum err_code find(const char *id, struct pool_object **ret)
{
	struct err err = {0};
	*ret = NULL;
	pools_find_id(f.pools, RECORD_VOLUME, id, ret, &err);
	return err.code;
}

static const char *id_in(const char *uuid8, const char *rest)
{
	static char id[RECORD_ID_MAX];
	snprintf(id, sizeof(id), "%s.%s", uuid8, rest);
	return id;
}

static void check_found(const char *id, const struct pool *pool)
{
	struct pool_object *o;
	char its[RECORD_ID_MAX];
	cr_assert_eq(find(id, &o), ERR_OK, "%s", id);
	cr_assert_eq(o->pool, pool);
	pool_object_id(o, its);
	cr_assert_str_eq(its, id);
	cr_assert(pool_object_has_id(o, id));
	cr_assert_eq(pools_lane_of_id(f.pools, id), pool_lane(pool));
	cr_assert_not(pools_id_elsewhere(f.pools, id));
}

/* A name may be there once in each pool. */
Test(moved, found_by_id)
{
	struct pool_object *o;
	setup();
	plant(b, "v", "00000001", "deadbeef", 1); /* from a pool that is not here */
	plant(a, "w", "00000002", pool_uuid8(b), 1);
	plant(b, "w", "00000003", "", 0); /* a later one of that name */
	plant(a, "x", "00000004", "", 0);
	plant(b, "x", "00000005", pool_uuid8(a), 3);
	plant(a, "back", "00000006", "", 2); /* it has been away */
	again();
	check_found("deadbeef.v.00000001", b);
	check_found(id_in(pool_uuid8(b), "w.00000002"), a);
	check_found(id_in(pool_uuid8(b), "w.00000003"), b);
	check_found(id_in(pool_uuid8(a), "x.00000004"), a);
	check_found(id_in(pool_uuid8(a), "x.00000005"), b);
	check_found(id_in(pool_uuid8(a), "back.00000006"), a);
	/* What is there has not the id of one that was made there. */
	cr_assert_eq(find(id_in(pool_uuid8(b), "v.00000001"), &o), ERR_NOT_FOUND);
	cr_assert_eq(find(id_in(pool_uuid8(a), "w.00000002"), &o), ERR_NOT_FOUND);
	cr_assert_eq(find("deadbeef.v.00000002", &o), ERR_UNAVAILABLE);
	cr_assert_eq(find("deadbeef.x.00000004", &o), ERR_UNAVAILABLE);
	cr_assert_not(pools_id_elsewhere(f.pools, id_in(pool_uuid8(b), "v.00000001")));
	cr_assert(pools_id_elsewhere(f.pools, "deadbeef.v.00000002"));
	fixture_close(&f);
}

/* One that has left may still be there: the move that counts is the last. */
Test(moved, the_one_that_moved_more_often_is_it)
{
	setup();
	plant(a, "v", "00000001", "", 2);
	plant(b, "v", "00000001", pool_uuid8(a), 3);
	plant(a, "w", "00000002", pool_uuid8(b), 5);
	plant(b, "w", "00000002", "", 4);
	again();
	check_found(id_in(pool_uuid8(a), "v.00000001"), b);
	check_found(id_in(pool_uuid8(b), "w.00000002"), a);
	fixture_close(&f);
}

/* It left one pool of the node, and is back in the other: the note of the first says nothing. */
Test(moved, back_in_another_pool)
{
	char text[DEPARTURE_TEXT_MAX], path[256];
	struct pool_departure note = {.moves = 1, .to = "deadbeef", .node_id = "node-b"};
	memset(note.grant, 'a', sizeof(note.grant) - 1);
	setup();
	plant(b, "v", "00000001", pool_uuid8(a), 2);
	for (unsigned i = 0; i < 2; i++) {
		snprintf(note.id, sizeof(note.id), "%s.%c.00000001", pool_uuid8(a), "vw"[i]);
		snprintf(path, sizeof(path), "%s/departed/%c", pool_path(a), "vw"[i]);
		int len = departure_print(&note, text, sizeof(text));
		_cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		cr_assert(len > 0 && write(fd, text, (size_t)len) == len);
	}
	again();
	check_found(id_in(pool_uuid8(a), "v.00000001"), b);
	cr_assert_not_null(pools_departure(f.pools, id_in(pool_uuid8(a), "v.00000001")));
	cr_assert_null(pools_departed(f.pools, id_in(pool_uuid8(a), "v.00000001")));
	cr_assert_not_null(pools_departed(f.pools, id_in(pool_uuid8(a), "w.00000001")));
	fixture_close(&f);
}

Test(moved, quarantined)
{
	struct pool_object *o;
	setup();
	plant(b, "v", "00000001", "deadbeef", 1);
	plant(b, "w", "00000002", pool_uuid8(a), 1);
	fixture_sh("for v in v w; do setfattr -n trusted.ringvol -v damaged %s/volumes/$v; done",
		pool_path(b));
	again();
	/* Nobody knows whose it is. */
	cr_assert_eq(find(id_in(pool_uuid8(b), "v.00000001"), &o), ERR_DATA_LOSS);
	cr_assert_eq(find("deadbeef.v.00000001", &o), ERR_UNAVAILABLE);
	cr_assert_not(pools_id_elsewhere(f.pools, "deadbeef.v.00000001"));
	cr_assert_eq(find(id_in(pool_uuid8(b), "w.00000002"), &o), ERR_DATA_LOSS);
	fixture_close(&f);
}

/* An id is no other node's while a pool that had its volume, or may have, is away. */
Test(moved, elsewhere_while_a_pool_is_away)
{
	struct pool_object *o;
	static char second[128];
	setup();
	plant(b, "v", "00000001", "deadbeef", 1);
	again();
	char path[128];
	snprintf(path, sizeof(path), "%s", pool_path(b));
	fixture_sh("mv %s %s.away", path, path);
	while (pool_state(b) == POOL_READY)
		fixture_turn(&f);
	cr_assert_eq(find("deadbeef.v.00000001", &o), ERR_UNAVAILABLE);
	cr_assert_not(pools_id_elsewhere(f.pools, "deadbeef.v.00000001"));
	cr_assert(pools_id_elsewhere(f.pools, "deadbeef.other.00000001"));
	cr_assert_eq(pools_lane_of_id(f.pools, "deadbeef.v.00000001"), pool_lane(b));
	/* Of one that was never read nobody knows. */
	fixture_close_pools(&f);
	snprintf(second, sizeof(second), "%s/second", f.top);
	struct pool_config configs[] = {
		{.name = "one", .path = f.path}, {.name = "two", .path = second}};
	fixture_open_configs(&f, configs, 2);
	cr_assert_eq(find("deadbeef.v.00000001", &o), ERR_UNAVAILABLE);
	cr_assert_not(pools_id_elsewhere(f.pools, "deadbeef.other.00000001"));
	fixture_sh("mv %s.away %s", path, path);
	fixture_close(&f);
}

/* By the pools that they are in, whatever their ids say. */
Test(moved, walked)
{
	static const struct {
		unsigned pool;
		const char *name;
		const char *born;
	} all[] = {{0, "a", "ffffffff"}, {0, "m", "00000000"}, {0, "z", ""}, {1, "a", ""},
		{1, "m", "ffffffff"}, {1, "z", "00000000"}};
	enum { COUNT = sizeof(all) / sizeof(all[0]) };
	setup();
	for (unsigned i = 0; i < COUNT; i++)
		plant(all[i].pool == 0 ? a : b, all[i].name, "00000001", all[i].born,
			all[i].born[0] != '\0');
	again();
	struct pool_walk walk = {0}, last = {0};
	for (unsigned i = 0; i < COUNT; i++) {
		struct pool_object *o = pools_next(f.pools, RECORD_VOLUME, &walk);
		cr_assert_not_null(o);
		cr_assert_eq(o->pool, all[i].pool == 0 ? a : b);
		cr_assert_str_eq(o->key, all[i].name);
		cr_assert_str_eq(walk.pool, pool_uuid8(o->pool));
		cr_assert_str_eq(walk.key, o->key);
		cr_assert_lt(pool_walk_compare(&last, &walk), 0);
		cr_assert_gt(pool_walk_compare(&walk, &last), 0);
		cr_assert_eq(pool_walk_compare(&walk, &walk), 0);
		last = walk;
		cr_assert_eq(fixture_remove(&f, o), ERR_OK); /* the place stays */
	}
	cr_assert_null(pools_next(f.pools, RECORD_VOLUME, &walk));
	cr_assert_eq(pool_walk_compare(&walk, &last), 0);
	fixture_close(&f);
}

/* Behind the place of a pool that is not here come those of later ones. */
Test(moved, walked_from_a_pool_that_is_gone)
{
	setup();
	plant(b, "v", "00000001", "", 0);
	again();
	struct pool_walk walk = {.key = "z"};
	strcpy(walk.pool, pool_uuid8(a));
	walk.pool[7] = walk.pool[7] == 'f' ? 'g' : (char)(walk.pool[7] + 1);
	cr_assert_str_eq(pools_next(f.pools, RECORD_VOLUME, &walk)->key, "v");
	strcpy(walk.pool, "ffffffff");
	strcpy(walk.key, "a");
	cr_assert_null(pools_next(f.pools, RECORD_VOLUME, &walk));
	fixture_close(&f);
}

/* A clone's family is named by the id that its source was born with. */
Test(moved, founds_a_family)
{
	fixture_make(&f, FIXTURE_XFS, false);
	fixture_open_ring(&f, NULL);
	fixture_open_pools(&f);
	plant(f.pool, "v", "00000001", "deadbeef", 1);
	fixture_reopen_pools(&f);
	struct pool_object *v = pools_find_name(f.pools, RECORD_VOLUME, "v"), *clone;
	struct record rec = fixture_volume("clone", MIB);
	rec.source = RECORD_SOURCE_VOLUME;
	rec.source_id = "deadbeef.v.00000001";
	cr_assert_eq(fixture_build(&f, &rec, v, &clone), ERR_OK);
	cr_assert(clone->rec->shares_extents);
	cr_assert(v->shared && clone->shared);
	fixture_reopen_pools(&f);
	v = pools_find_name(f.pools, RECORD_VOLUME, "v");
	clone = pools_find_name(f.pools, RECORD_VOLUME, "clone");
	cr_assert(v->shared && clone->shared);
	cr_assert_eq(fixture_remove(&f, v), ERR_OK);
	cr_assert_not(clone->shared);
	fixture_close(&f);
}
