/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thin volumes of a raw pool in a simulated ring, over a dm-thin in memory, with each step, then
 * each request and job failed in turn. Whatever fails: each id that dm-thin knows has a file, when
 * the trash is empty as many files have an id as before, no device is left, none is suspended, and
 * the next attempt succeeds.
 */
#include "thin_world.h"

#include "disk/mapped.h"
#include "disk/thin_pool.h"
#include "pool/build_thin.h"
#include "pool/grow.h"
#include "pool/renew.h"

enum { SEEDS = 2 };

/* ---- builds ---- */

struct tried {
	const char *name, *source;
	enum record_kind kind;
	unsigned mib;
};

/* False: nothing met the fault. */
static bool try_build(
	struct fixture *f, const struct tried *what, const char *name, bool requests, int n)
{
	struct pool_object *source = what->source != NULL ? find(f, what->source) : NULL;
	char id[RECORD_ID_MAX];
	struct record rec = thin_copy(what->name, what->kind, what->mib, source, id);
	unsigned fds = count_fds(f), files = f->pool->raw->thin.files;
	arm(name, requests, n);
	enum err_code code = build(f, &rec, source);
	bool hit = disarm();
	cr_assert(hit || code == ERR_OK, "%s", fault.what);
	check_files(f);
	sweep_trash(f);
	/* It may have failed after the commit. */
	if (find(f, what->name) == NULL) {
		cr_assert_neq(code, ERR_OK);
		check_rest(f, files, fds);
		cr_assert_eq(build(f, &rec, source), ERR_OK, "%s", fault.what);
	}
	check_rest(f, files + 1, fds);
	remove_named(f, what->name);
	check_rest(f, files, fds);
	return hit;
}

static unsigned sweep(struct fixture *f, const struct tried *what, const char *name, bool requests)
{
	int n = 0;
	while (try_build(f, what, name, requests, n))
		n++;
	return (unsigned)n;
}

Test(thin_sim, builds, .timeout = 250)
{
	static const struct tried all[] = {
		{"empty", NULL, RECORD_VOLUME, 6},
		{"snapshot", "origin", RECORD_SNAPSHOT, 6},
		{"clone", "origin", RECORD_VOLUME, 8},
		{"copied", "thick", RECORD_VOLUME, 6},
	};
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct fixture f;
		struct ring_sim sim;
		open_sim(&f, &sim, seed);
		raw_make_volume(&f, "thick", 4);
		struct record origin = thin_volume("origin", 6);
		cr_assert_eq(build(&f, &origin, NULL), ERR_OK);
		for (unsigned i = 0; i < 4; i++) {
			cr_assert_geq(sweep(&f, &all[i], "pool_build", false), 8, "%u", i);
			cr_assert_geq(sweep(&f, &all[i], "pool_build", true), 5, "%u", i);
		}
		fixture_close(&f);
	}
	bytes_drop();
}

/* An origin with devices is held still, and goes on whatever fails. */
Test(thin_sim, an_origin_in_use, .timeout = 100)
{
	static const struct tried snapshot = {"snapshot", "origin", RECORD_SNAPSHOT, 6};
	struct fixture f;
	struct ring_sim sim;
	struct mapped mapped;
	struct err err = {0};
	struct dm dm = {.fd = -1, .call = fake_dm_call};
	open_sim(&f, &sim, 1);
	struct record rec = thin_volume("origin", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	struct pool_object *o = find(&f, "origin");
	struct image_map map = raw_map(&f, "volumes/origin");
	char tag[64];
	snprintf(tag, sizeof(tag), "ringvol:%.8s:%s", RAW_POOL_UUID, o->rec->random);
	const struct mapped_spec spec = {.tag = tag,
		.image_ino = o->image_ino,
		.disk = f.pool->raw->disk,
		.map = &map,
		.size_bytes = 6 * RAW_MIB};
	cr_assert_eq(mapped_make(&dm, &spec, &mapped, &err), 0, "%s", err.message);
	unsigned resumes = fake_dm_resumes;
	struct record snap = thin_volume(snapshot.name, 6);
	snap.kind = RECORD_SNAPSHOT;
	cr_assert_eq(build(&f, &snap, o), ERR_OK);
	cr_assert_gt(fake_dm_resumes, resumes);
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		cr_assert_not(fake_dm_devices[i].suspended);
	static const int errors[] = {-EBUSY, -EOPNOTSUPP, -EEXIST, -EIO};
	for (unsigned i = 0; i < 4; i++) {
		snap = thin_volume("another", 6);
		snap.kind = RECORD_SNAPSHOT;
		fake_dm_fail_with = errors[i];
		fake_dm_fail_request = i == 0 ? DM_DEV_SUSPEND : DM_TARGET_MSG;
		cr_assert_neq(build(&f, &snap, o), ERR_OK, "%u", i);
		for (unsigned d = 0; d < FAKE_DM_DEVICES; d++)
			cr_assert_not(fake_dm_devices[d].suspended, "%u", i);
		sweep_trash(&f);
		check_files(&f);
		cr_assert_eq(fixture_count(&f, "trash"), 0, "%u", i);
	}
	cr_assert_eq(fake_thin_torn, 0);
	bool waits;
	cr_assert_eq(mapped_remove(&dm, tag, o->image_ino, &waits, &err), 0);
	fixture_close(&f);
	bytes_drop();
}

/* ---- keeping ---- */

/* The thin pool's own making, activation after a reboot, and growing, failed at each step. */
Test(thin_sim, keeping, .timeout = 200)
{
	for (unsigned requests = 0; requests < 2; requests++) {
		struct fixture f;
		struct ring_sim sim;
		open_sim(&f, &sim, 7);
		uint64_t free_mib = raw_free_mib(&f);
		struct record rec = thin_volume("first", 6);
		unsigned failed = 0;
		for (int n = 0;; n++) {
			arm("thin_keep", requests == 1, n);
			enum err_code code = build(&f, &rec, NULL);
			bool hit = disarm();
			sweep_trash(&f);
			check_files(&f);
			cr_assert_eq(f.pool->ops, 0, "%s", fault.what);
			failed += code != ERR_OK;
			if (find(&f, "first") != NULL)
				remove_named(&f, "first");
			/* As after a reboot: what has names is found. */
			fake_dm_reboot(true);
			raw_reopen_pools(&f);
			fixture_settle(&f);
			check_files(&f);
			cr_assert_eq(fixture_count(&f, "trash"), 0, "%s", fault.what);
			if (!hit)
				break;
		}
		cr_assert_geq(failed, requests == 1 ? 3 : 4);
		cr_assert_eq(f.pool->raw->thin.life, THIN_UP);
		struct image_map metadata = raw_map(&f, "thin/metadata"),
				 data = raw_map(&f, "thin/data");
		cr_assert_eq(
			raw_free_mib(&f) +
				(image_map_bytes(&metadata) + image_map_bytes(&data)) / RAW_MIB,
			free_mib);
		fixture_close(&f);
	}
	bytes_drop();
}

/* What dm-thin says of itself, and what becomes of it. */
Test(thin_sim, conditions, .timeout = 100)
{
	static const char *const words[] = {"Fail",
		"0 1/2 1/128 - ro no_discard_passdown queue_if_no_space needs_check 64",
		"0 1/2 1/128 - rw no_discard_passdown queue_if_no_space needs_check 64"};
	struct fixture f;
	struct ring_sim sim;
	struct pool_thin_state state;
	open_sim(&f, &sim, 5);
	struct record rec = thin_volume("v", 6), thick = raw_volume("thick", 4);
	fake_thin_absent = true;
	cr_assert_eq(build(&f, &rec, NULL), ERR_PRECONDITION);
	fake_thin_absent = false;
	sweep_trash(&f);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	for (unsigned i = 0; i < 3; i++) {
		fake_thin_pool_words = words[i];
		thin_keep_kick(f.pool);
		fixture_settle(&f);
		pool_thin_state(f.pool, &state);
		cr_assert(state.wrong, "%u", i);
		cr_assert_gt(strlen(state.why), 20);
		cr_assert_neq(state.wrong_since_ns, 0);
		rec = thin_volume("w", 6);
		cr_assert_eq(build(&f, &rec, NULL), ERR_UNAVAILABLE, "%u", i);
		/* Thick ones are served all the same. */
		cr_assert_eq(build(&f, &thick, NULL), ERR_OK);
		remove_named(&f, "thick");
	}
	fake_thin_pool_words = NULL;
	forget_activity(&f);
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	pool_thin_state(f.pool, &state);
	cr_assert_not(state.wrong, "%s", state.why);
	/* While a volume is in use its devices are not taken away. */
	set_open(1);
	fake_thin_pool_words = words[2];
	for (unsigned i = 0; i < 2; i++) {
		thin_keep_kick(f.pool);
		fixture_settle(&f);
		pool_thin_state(f.pool, &state);
		cr_assert(state.wrong, "%u", i);
		cr_assert_eq(f.pool->raw->thin.life, THIN_UP, "%u", i);
	}
	/* What it said of itself goes with them. */
	set_open(0);
	fake_dm_fail_with = -ENOMEM;
	fake_dm_fail_request = DM_TABLE_LOAD;
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	cr_assert_eq(fake_dm_fail_with, 0);
	cr_assert_eq(f.pool->raw->thin.life, THIN_DOWN);
	cr_assert_not(thin_is_wrong(&f.pool->raw->thin));
	fake_thin_pool_words = NULL;
	forget_activity(&f);
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	cr_assert_eq(f.pool->raw->thin.life, THIN_UP);
	fixture_close(&f);
	bytes_drop();
}

/* ---- crashes ---- */

/* Ids of files in the trash are told to go, of any other file none. */
Test(thin_sim, after_a_crash, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char from[256], to[256];
	open_sim(&f, &sim, 11);
	struct record rec = thin_volume("stays", 6), other = thin_volume("goes", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	cr_assert_eq(build(&f, &other, NULL), ERR_OK);
	uint32_t goes = raw_map(&f, "volumes/goes").thin_id;
	fixture_close_pools(&f);
	snprintf(from, sizeof(from), "%s/volumes/goes", f.path);
	snprintf(to, sizeof(to), "%s/trash/new-0123456789abcdef", f.path);
	cr_assert_eq(rename(from, to), 0);
	/* A file that was parked, and dm-thin never heard of it. */
	int fd = openat(AT_FDCWD, f.path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	struct image_map map = {.thin_id = 4711};
	snprintf(to, sizeof(to), "%s/trash/new-00000000000000aa", f.path);
	cr_assert(image_map_write(fd, &map) == 0 && fd_link(fd, AT_FDCWD, to) == 0);
	close(fd);
	/* Left of a repair. */
	snprintf(to, sizeof(to), "%s/thin/metadata.old", f.path);
	close(open(to, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
	raw_open_pools(&f);
	sweep_trash(&f);
	cr_assert_not(fake_thin_has(goes));
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(fixture_count(&f, "thin"), 2);
	cr_assert_eq(fake_thin_count, 1);
	cr_assert_not_null(find(&f, "stays")->rec);
	cr_assert_gt(f.pool->raw->thin.next_id, 4711);
	fixture_close(&f);
	bytes_drop();
}

static void lose(const struct fixture *f, const char *name)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", f->path, name);
	cr_assert_eq(unlink(path), 0);
}

/* A file that somebody has taken away: its id is no file's any more, and one without an id had
 * none. */
Test(thin_sim, what_is_gone_already_is_counted_out, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 41);
	struct record rec = thin_volume("a", 6), other = thin_volume("b", 6);
	raw_make_volume(&f, "thick", 4);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	cr_assert_eq(build(&f, &other, NULL), ERR_OK);
	cr_assert_eq(raw_map(&f, "volumes/a").thin_id, 1);
	cr_assert_eq(f.pool->raw->thin.files, 2);
	lose(&f, "volumes/thick");
	remove_named(&f, "thick");
	cr_assert_eq(f.pool->raw->thin.files, 2);
	lose(&f, "volumes/a");
	remove_named(&f, "a");
	cr_assert_eq(f.pool->raw->thin.files, 1);
	lose(&f, "volumes/b");
	remove_named(&f, "b");
	cr_assert_eq(f.pool->raw->thin.files, 0);
	fixture_close(&f);
	bytes_drop();
}

Test(thin_sim, damage_is_met_with_doubt, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char path[256];
	open_sim(&f, &sim, 13);
	struct record rec = thin_volume("a", 6), other = thin_volume("b", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	cr_assert_eq(build(&f, &other, NULL), ERR_OK);
	/* Two files with one id. */
	struct image_map map = raw_map(&f, "volumes/a"), was = raw_map(&f, "volumes/b");
	fixture_close_pools(&f);
	snprintf(path, sizeof(path), "%s/volumes/b", f.path);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	cr_assert_eq(image_map_write(fd, &map), 0);
	raw_open_pools(&f);
	cr_assert(find(&f, "a") == NULL || find(&f, "a")->rec == NULL);
	cr_assert(f.pool->raw->overlaps);
	fixture_close_pools(&f);
	cr_assert_eq(image_map_write(fd, &was), 0);
	/* A thin volume that has no id. */
	struct image_map none = {0};
	cr_assert_eq(image_map_write(fd, &none), 0);
	raw_open_pools(&f);
	cr_assert_not_null(find(&f, "a")->rec);
	cr_assert(pools_find_name(f.pools, RECORD_VOLUME, "b") == NULL ||
		  pools_find_name(f.pools, RECORD_VOLUME, "b")->rec == NULL);
	fixture_close_pools(&f);
	cr_assert_eq(image_map_write(fd, &was), 0);
	close(fd);
	/* Where its images are nobody can read. */
	snprintf(path, sizeof(path), "%s/thin/metadata", f.path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	was = raw_map(&f, "thin/metadata");
	cr_assert_eq(image_map_write(fd, &map), 0);
	raw_open_pools(&f);
	cr_assert_str_eq(f.pool->raw->unread, "thin/metadata");
	struct record thick = raw_volume("d", 6);
	cr_assert_eq(build(&f, &thick, NULL), ERR_DATA_LOSS);
	fixture_close_pools(&f);
	cr_assert_eq(image_map_write(fd, &was), 0);
	close(fd);
	/* Without its images nothing is given out, and nothing is made in their place. */
	lose(&f, "thin/data");
	raw_open_pools(&f);
	cr_assert_str_eq(f.pool->raw->unread, "thin/data");
	rec = thin_volume("c", 6);
	cr_assert_neq(build(&f, &rec, NULL), ERR_OK);
	cr_assert_eq(build(&f, &thick, NULL), ERR_DATA_LOSS);
	fixture_close(&f);
	bytes_drop();
}

static void open_volume(struct fixture *f, enum err_code want)
{
	struct record rec = thin_volume("c", 6);
	enum err_code code = build(f, &rec, NULL);
	cr_assert_eq(code, want, "%d: %s", code, f->pool->raw->thin.why);
}

/* Metadata that read as zeros, where images have their bytes in the thin pool, are not made anew.
 */
Test(thin_sim, blank_metadata_are_not_formatted, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 29);
	struct record rec = thin_volume("a", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	struct image_map map = raw_map(&f, "thin/metadata");
	fixture_close_pools(&f);
	fake_dm_reboot(true);
	raw_bytes(&map, true, 0);
	raw_open_pools(&f);
	open_volume(&f, ERR_DATA_LOSS);
	cr_assert_not_null(strstr(f.pool->raw->thin.why, "check --repair"));
	cr_assert(raw_bytes(&map, false, 0), "nothing was written to them");
	fixture_close(&f);
	bytes_drop();
}

/* A repair has put other metadata in the place of those that a check had a device over. */
Test(thin_sim, devices_left_without_a_thin_pool_go, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	struct mapped mapped;
	struct err err = {0};
	struct dm dm = {.fd = -1, .call = fake_dm_call};
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	open_sim(&f, &sim, 31);
	struct record rec = thin_volume("a", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	struct image_map elsewhere = {.count = 1, .pieces = {{64 * RAW_MIB, 16 * RAW_MIB}}};
	const struct mapped_spec spec = {
		.disk = f.pool->raw->disk, .map = &elsewhere, .size_bytes = 16 * RAW_MIB};
	thin_names(THIN_METADATA, RAW_POOL_UUID, name, uuid);
	struct disk *disk = disk_ref(f.pool->raw->disk);
	fixture_close_pools(&f);
	fake_dm_reboot(true);
	cr_assert_eq(mapped_make_named(&dm, name, uuid, &spec, &mapped, &err), 0);
	disk_unref(disk);
	raw_open_pools(&f);
	open_volume(&f, ERR_OK);
	check_grown(&f);
	fixture_close(&f);
	bytes_drop();
}

/* ---- growing, first stage, and the end ---- */

Test(thin_sim, grows_and_is_formatted, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	struct pool_grow g;
	struct pool_renew *n = malloc(sizeof(*n));
	open_sim(&f, &sim, 17);
	struct record rec = thin_volume("v", 6), secret = thin_volume("secret", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	pool_grow_init(&g, &f.reactor, find(&f, "v"), 9 * RAW_MIB);
	cr_assert_eq(fixture_run(&f, &g.op), ERR_OK, "%s", g.op.err.message);
	cr_assert_eq(find(&f, "v")->rec->size_bytes, 9 * RAW_MIB);
	cr_assert_eq(f.pool->sum_thin_size, 9 * RAW_MIB);
	secret.encryption = RECORD_LUKS2;
	secret.unformatted = true;
	cr_assert_eq(build(&f, &secret, NULL), ERR_OK);
	cr_assert_eq(fake_thin_count, 1);
	unsigned fds = count_fds(&f);
	for (int step = 0;; step++) {
		arm("pool_renew", true, step);
		pool_renew_make_init(n, &f.reactor, find(&f, "secret"));
		enum err_code code = fixture_run(&f, &n->op);
		bool hit = disarm();
		if (code == ERR_OK && hit) {
			pool_renew_drop_init(n, &f.reactor);
			cr_assert_eq(fixture_run(&f, &n->op), ERR_OK);
		}
		if (!hit)
			break;
		pool_renew_free(n);
		sweep_trash(&f);
		check_rest(&f, 1, fds);
	}
	pool_renew_commit_init(n, &f.reactor);
	cr_assert_eq(fixture_run(&f, &n->op), ERR_OK, "%s", n->op.err.message);
	pool_renew_free(n);
	sweep_trash(&f);
	check_rest(&f, 2, fds);
	cr_assert_neq(raw_map(&f, "volumes/secret").thin_id, 0);
	raw_reopen_pools(&f);
	cr_assert_not(find(&f, "secret")->rec->unformatted);
	free(n);
	fixture_close(&f);
	bytes_drop();
}

/* With the last of its volumes the thin pool goes, some time later; its bytes are overwritten. */
Test(thin_sim, goes_with_its_last_volume, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 19);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	remove_named(&f, "v");
	cr_assert_lt(raw_free_mib(&f), AREA_MIB);
	for (unsigned i = 0; i < 100000 && f.pool->raw->thin.life != THIN_NONE; i++)
		fixture_turn(&f);
	cr_assert_eq(f.pool->raw->thin.life, THIN_NONE);
	for (unsigned i = 0; i < 100000 && raw_free_mib(&f) < AREA_MIB; i++)
		fixture_turn(&f);
	cr_assert_eq(raw_free_mib(&f), AREA_MIB);
	cr_assert_eq(fixture_count(&f, "thin"), 0);
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		cr_assert_not(fake_dm_devices[i].there);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	fixture_close(&f);
	bytes_drop();
}

/* Data that are in the trash are not used again, whatever became of the metadata. */
Test(thin_sim, is_taken_away_in_part, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 37);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	remove_named(&f, "v");
	metadata_stay = true;
	for (unsigned i = 0; i < 100000 && fixture_count(&f, "thin") == 2; i++)
		fixture_turn(&f);
	cr_assert_eq(fixture_count(&f, "thin"), 1);
	forget_activity(&f);
	cr_assert_neq(build(&f, &rec, NULL), ERR_OK);
	cr_assert_eq(device_mib("thinpool"), 0);
	metadata_stay = false;
	raw_reopen_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	fixture_close(&f);
	bytes_drop();
}

/* ---- who wants it ---- */

Test(thin_sim, no_numbers_are_left, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 76);
	struct record rec = thin_volume("v", 6), other = thin_volume("w", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	unsigned fds = count_fds(&f);
	f.pool->raw->thin.ids_left = 1;
	cr_assert_eq(build(&f, &other, NULL), ERR_OK);
	remove_named(&f, "w");
	build_fails(&f, &other, ERR_NO_ROOM, "has used up the numbers it has for volumes");
	check_rest(&f, 1, fds);
	raw_reopen_pools(&f);
	cr_assert_eq(build(&f, &other, NULL), ERR_OK);
	close_thin(&f);
}

/* Its devices were taken away a moment ago: the next look makes them again. */
Test(thin_sim, a_message_that_nobody_hears, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 77);
	struct record rec = thin_volume("v", 6), other = thin_volume("w", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	unsigned fds = count_fds(&f);
	fake_dm_reboot(true);
	forget_activity(&f);
	build_fails(&f, &other, ERR_UNAVAILABLE, "w: the thin pool of pool p is not active now");
	look(&f);
	sweep_trash(&f);
	check_rest(&f, 1, fds);
	cr_assert_eq(build(&f, &other, NULL), ERR_OK);
	close_thin(&f);
}

Test(thin_sim, more_than_can_be_promised, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 78);
	struct record rec = thin_volume("v", AREA_MIB);
	unsigned fds = count_fds(&f);
	build_fails(
		&f, &rec, ERR_NO_ROOM, " MiB left to promise to thin volumes, 96 MiB are needed");
	check_rest(&f, 0, fds);
	cr_assert_eq(f.pool->raw->thin.life, THIN_NONE);
	rec = thin_volume("v", 40);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	close_thin(&f);
}

Test(thin_sim, ids_are_chosen_where_most_are_free)
{
	struct pool_thin thin = {0};
	uint32_t none[1] = {0}, few[] = {7, 3, 1}, last[] = {IMAGE_MAP_THIN_MAX, 5},
		 twice[] = {4, 4};
	cr_assert_eq(thin_choose_ids(&thin, none, 0), 0);
	cr_assert(thin.next_id == 1 && thin.ids_left == IMAGE_MAP_THIN_MAX);
	cr_assert_eq(thin_choose_ids(&thin, few, 3), 0);
	cr_assert(thin.next_id == 8 && thin.ids_left == IMAGE_MAP_THIN_MAX - 7);
	cr_assert_eq(thin_choose_ids(&thin, last, 2), 0);
	cr_assert(thin.next_id == 6 && thin.ids_left == IMAGE_MAP_THIN_MAX - 6);
	cr_assert_eq(thin_choose_ids(&thin, twice, 2), -EEXIST);
}
