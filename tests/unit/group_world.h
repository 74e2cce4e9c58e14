/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of volumes, and groups of snapshots of all of them. For one test program each. */
#ifndef RINGVOL_TESTS_GROUP_WORLD_H
#define RINGVOL_TESTS_GROUP_WORLD_H

#include "pool_fixture.h"

#include "pool/group_make.h"
#include "pool/group_remove.h"
#include "pool/group_sync.h"
#include "pool/index.h"

enum { MIB = 1 << 20, VOLUMES = 3 };

static struct fixture f;
static struct pool_object *volumes[VOLUMES];
static char ids[VOLUMES][RECORD_ID_MAX];

static inline void write_byte(const char *sub, const char *key, char c)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s/%s", f.path, sub, key);
	_cleanup_fd_ int fd = open(path, O_RDWR | O_CLOEXEC);
	cr_assert_eq(pwrite(fd, &c, 1, 4096), 1);
}

static inline char read_byte(const char *sub, const char *key)
{
	char path[256], c = '?';
	snprintf(path, sizeof(path), "%s/%s/%s", f.path, sub, key);
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(pread(fd, &c, 1, 4096), 1);
	return c;
}

static inline void find_volumes(void)
{
	for (unsigned i = 0; i < VOLUMES; i++) {
		char name[8];
		snprintf(name, sizeof(name), "v%u", i);
		volumes[i] = pools_find_name(f.pools, RECORD_VOLUME, name);
		cr_assert_not_null(volumes[i]);
		pool_object_id(volumes[i], ids[i]);
	}
}

/* sim: NULL: the kernel's ring. */
static inline void open_pool_in(enum fixture_fs fs, struct ring_sim *sim)
{
	fixture_open_in(&f, fs, sim);
	for (unsigned i = 0; i < VOLUMES; i++) {
		char name[8];
		snprintf(name, sizeof(name), "v%u", i);
		fixture_make_volume(&f, name, MIB);
		write_byte("volumes", name, (char)('a' + i));
	}
	find_volumes();
}

static inline void open_pool(enum fixture_fs fs)
{
	open_pool_in(fs, NULL);
}

/* Of what was made or deleted last. */
static struct err failure;
static struct pool_group_make *making;

static inline enum err_code make_parts(
	const char *name, const struct pool_group_part parts[VOLUMES], struct pool_group **ret)
{
	struct pool_group_make m;
	cr_assert_eq(pool_group_make_init(&m, &f.reactor, f.pool, name, "ns/g", parts, VOLUMES), 0);
	making = &m;
	enum err_code code = fixture_run(&f, &m.op);
	making = NULL;
	if (ret != NULL)
		*ret = m.ret_group;
	failure = m.op.err;
	if (code != ERR_OK)
		fprintf(stderr, "make: %s: %s\n", m.op.err.step, m.op.err.message);
	pool_group_make_free(&m);
	return code;
}

static inline enum err_code make(const char *name, struct pool_group **ret)
{
	struct pool_group_part parts[VOLUMES];
	for (unsigned i = 0; i < VOLUMES; i++)
		parts[i] = (struct pool_group_part){
			.source = volumes[i], .share = pool_features(f.pool)->reflink};
	return make_parts(name, parts, ret);
}

static inline enum err_code drop(struct pool_group *group)
{
	struct pool_group_remove r;
	pool_group_remove_init(&r, &f.reactor, group);
	enum err_code code = fixture_run(&f, &r.op);
	failure = r.op.err;
	if (code != ERR_OK)
		fprintf(stderr, "remove: %s: %s\n", r.op.err.step, r.op.err.message);
	pool_group_remove_free(&r);
	return code;
}

static inline void is_whole(const char *id)
{
	struct pool_group *g = NULL;
	struct err err = {0};
	const char *why;
	cr_assert_eq(pools_find_group(f.pools, id, &g, &err), 0, "%s", err.message);
	cr_assert_eq(pool_group_check(g, &err), 0, "%s", err.message);
	cr_assert_eq(g->count, VOLUMES);
	for (unsigned i = 0; i < VOLUMES; i++) {
		struct pool_object *o = pool_group_member(g, i, &why);
		cr_assert_str_eq(o->rec->group, id);
		cr_assert_str_eq(o->rec->source_id, ids[i]);
		cr_assert_str_eq(o->rec->claim, "ns/g");
		cr_assert_eq(o->rec->created_ns, g->created_ns);
		cr_assert_eq(read_byte("snapshots", o->key), 'a' + (char)i);
	}
}

static inline void sh_in_pool(const char *fmt, const char *what)
{
	char command[160];
	snprintf(command, sizeof(command), fmt, what);
	cr_assert_eq(fixture_sh("cd %s && %s", f.path, command), 0, "%s", command);
}

static inline void make_one(char ret_id[RECORD_ID_MAX], char ret_key[RECORD_KEY_MAX])
{
	struct pool_group *g = NULL;
	const char *why;
	cr_assert_eq(make("g", &g), ERR_OK);
	pool_group_id(g, ret_id);
	strcpy(ret_key, pool_group_member(g, 1, &why)->key);
}

#endif
