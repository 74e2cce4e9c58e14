/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Templates in the thin pool, in a simulated ring over a dm-thin in memory, with each step, request
 * and job of their making and of the builds over them failed in turn. Whatever fails: each id that
 * dm-thin knows has a file, a template is whole or gone, and the next attempt succeeds.
 */
#include "../unit/sim_time.h"
#include "thin_world.h"

#include "blockio/fsimg.h"
#include "pool/fill.h"
#include "pool/thin_templates.h"

static const uint8_t uuid[16] = {1, 2, 3, 4, 5, 6, 0x87, 8, 0x89};

/* ---- what is there ---- */

static struct thin_templates *templates(struct fixture *f)
{
	return &f->pool->raw->thin.templates;
}

static uint32_t id_of(struct fixture *f, const char *name)
{
	return pool_entry(find(f, name))->thin_id;
}

/* What an id is a snapshot of. */
static uint32_t origin_of(uint32_t id)
{
	for (unsigned i = 0; i < fake_thin_count; i++)
		if (fake_thins[i].id == id)
			return fake_thins[i].origin;
	return 0;
}

/* With so many volumes, and templates that are known. */
static void check_world(struct fixture *f, unsigned volumes, unsigned fds)
{
	unsigned kept = templates(f)->count, now_fds;
	fixture_settle(f);
	now_fds = count_fds(f);
	cr_assert_eq(now_fds, fds, "%s: %u and %u", fault.what, now_fds, fds);
	check_files(f);
	cr_assert_eq(fixture_count(f, "trash"), 0, "%s", fault.what);
	cr_assert_eq(count_ids(f, "templates", true), kept, "%s", fault.what);
	cr_assert_eq(f->pool->raw->thin.files, volumes + kept, "%s: %u", fault.what,
		f->pool->raw->thin.files);
	cr_assert_eq(fake_thin_count, volumes + kept, "%s", fault.what);
	cr_assert_eq(templates(f)->bytes, kept * FAKE_THIN_BYTES, "%s", fault.what);
	cr_assert_eq(f->pool->ops, 0, "%s", fault.what);
	check_devices(0);
}

static void drop_templates(struct fixture *f)
{
	thin_templates_age(templates(f));
	sweep_trash(f);
	cr_assert_eq(templates(f)->count, 0);
}

/* ---- a volume with a file system ---- */

struct formatted {
	struct pool_build b;
	struct pool_format fill;
	struct record rec;
	struct fsimg_spec spec;
};

static struct formatted *formatted_new(struct fixture *f, const char *name, unsigned mib)
{
	struct formatted *v = calloc(1, sizeof(*v));
	v->rec = thin_volume(name, mib);
	v->rec.fs = FSIMG_EXT4;
	v->spec = (struct fsimg_spec){.type = FSIMG_EXT4,
		.size_bytes = v->rec.size_bytes,
		.block_size = 4096,
		.mkfs_options = ""};
	pool_format_init(&v->fill, f->pool, &v->spec, uuid);
	cr_assert_eq(pool_build_init(&v->b, &f->reactor, f->pool, &v->rec), 0);
	pool_build_format(&v->b, &v->fill);
	return v;
}

static void formatted_free(struct formatted *v)
{
	pool_build_free(&v->b);
	free(v);
}

static enum err_code format_volume(struct fixture *f, const char *name, unsigned mib)
{
	struct formatted *v = formatted_new(f, name, mib);
	enum err_code code = fixture_run(f, &v->b.op);
	build_err = v->b.op.err;
	if (code != ERR_OK)
		fprintf(stderr, "%s: %s: %s\n", name, v->b.op.err.step, v->b.op.err.message);
	formatted_free(v);
	return code;
}

/* Its bytes are its origin's, and those are a file system. */
static void check_formatted(struct fixture *f, const char *name)
{
	struct fsimg_probe probe;
	uint32_t origin = origin_of(id_of(f, name));
	cr_assert_neq(origin, 0, "%s", fault.what);
	cr_assert(fake_thin_has(origin));
	cr_assert_eq(fsimg_probe_fd(*bytes(origin), &probe), 0);
	cr_assert_eq(probe.type, FSIMG_EXT4, "%s: %s", fault.what, probe.found);
}

static void open_formatting(struct fixture *f, struct ring_sim *sim, uint64_t seed)
{
	if (fixture_sh("command -v mkfs.ext4 >/dev/null 2>&1") != 0)
		cr_skip_test("mkfs is not installed");
	open_sim(f, sim, seed);
}

static void close_formatting(struct fixture *f)
{
	fixture_close(f);
	bytes_drop();
}

/* ---- failures ---- */

/* False: nothing met the fault. */
static bool try_format(struct fixture *f, const char *name, bool requests, int n)
{
	unsigned fds = count_fds(f);
	arm(name, requests, n);
	enum err_code code = format_volume(f, "v", 6);
	bool hit = disarm();
	cr_assert(hit || code == ERR_OK, "%s", fault.what);
	check_files(f);
	sweep_trash(f);
	cr_assert_leq(templates(f)->count, 1);
	if (find(f, "v") == NULL) {
		cr_assert_neq(code, ERR_OK);
		check_world(f, 0, fds);
		cr_assert_eq(format_volume(f, "v", 6), ERR_OK, "%s", fault.what);
	}
	check_formatted(f, "v");
	check_world(f, 1, fds);
	cr_assert_eq(format_volume(f, "w", 6), ERR_OK, "%s", fault.what);
	cr_assert_eq(origin_of(id_of(f, "v")), origin_of(id_of(f, "w")), "%s", fault.what);
	cr_assert_eq(templates(f)->count, 1);
	check_world(f, 2, fds);
	remove_named(f, "v");
	remove_named(f, "w");
	drop_templates(f);
	check_world(f, 0, fds);
	return hit;
}

static unsigned sweep(struct fixture *f, const char *name, bool requests)
{
	int n = 0;
	while (try_format(f, name, requests, n))
		n++;
	return (unsigned)n;
}

Test(thin_templates, fail_anywhere, .timeout = 250)
{
	struct fixture f;
	struct ring_sim sim;
	open_formatting(&f, &sim, 5);
	/* The thin pool and the template among the records are there. */
	cr_assert_eq(format_volume(&f, "first", 6), ERR_OK);
	remove_named(&f, "first");
	drop_templates(&f);
	cr_assert_geq(sweep(&f, "thin_template", false), 6);
	cr_assert_geq(sweep(&f, "pool_build", false), 8);
	cr_assert_geq(sweep(&f, "pool_template", false), 2);
	cr_assert_geq(sweep(&f, "pool_build", true), 10);
	close_formatting(&f);
}

/* What dm-thin refuses, and what it knew before. */
Test(thin_templates, dm_thin_refuses, .timeout = 100)
{
	static const struct {
		unsigned long request;
		int error;
		const char *said;
	} all[] = {{DM_TARGET_MSG, -EIO, "a message to the thin pool of pool p: Input/output"},
		{DM_TARGET_MSG, -EOPNOTSUPP, "the thin pool of pool p is read-only"},
		{DM_DEV_CREATE, -ENOMEM, "making the device-mapper device ringvol-thinfill-"},
		{DM_TABLE_LOAD, -ENOMEM, "loading the table of the device-mapper device"},
		{DM_TABLE_STATUS, -EIO, "Input/output error"}};
	struct fixture f;
	struct ring_sim sim;
	open_formatting(&f, &sim, 6);
	cr_assert_eq(format_volume(&f, "first", 6), ERR_OK);
	remove_named(&f, "first");
	drop_templates(&f);
	unsigned fds = count_fds(&f);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		fake_dm_fail_with = all[i].error;
		fake_dm_fail_request = all[i].request;
		cr_assert_neq(format_volume(&f, "v", 6), ERR_OK, "%u", i);
		cr_assert_eq(fake_dm_fail_with, 0, "%u", i);
		says(build_err.message, all[i].said);
		sweep_trash(&f);
		check_world(&f, 0, fds);
	}
	/* An id that no file has is nobody's to delete. */
	uint32_t id = f.pool->raw->thin.next_id + 1;
	fake_thins[fake_thin_count++] = (struct fake_thin){.id = id};
	cr_assert_eq(format_volume(&f, "v", 6), ERR_UNAVAILABLE);
	sweep_trash(&f);
	cr_assert(fake_thin_has(id));
	fake_thin_count--;
	check_world(&f, 0, fds);
	cr_assert_eq(format_volume(&f, "v", 6), ERR_OK);
	/* Somebody has deleted the template. */
	for (unsigned i = 0; i < fake_thin_count; i++)
		if (fake_thins[i].id == origin_of(id_of(&f, "v")))
			fake_thins[i] = fake_thins[--fake_thin_count];
	cr_assert_eq(format_volume(&f, "w", 6), ERR_UNAVAILABLE);
	sweep_trash(&f);
	cr_assert_eq(format_volume(&f, "w", 6), ERR_OK);
	check_formatted(&f, "w");
	check_world(&f, 2, fds);
	close_formatting(&f);
}

/* The volume has the last number, and its template none. */
Test(thin_templates, no_number_is_left, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_formatting(&f, &sim, 14);
	cr_assert_eq(format_volume(&f, "first", 6), ERR_OK);
	remove_named(&f, "first");
	drop_templates(&f);
	unsigned fds = count_fds(&f);
	f.pool->raw->thin.ids_left = 1;
	cr_assert_eq(format_volume(&f, "v", 6), ERR_NO_ROOM);
	sweep_trash(&f);
	check_world(&f, 0, fds);
	f.pool->raw->thin.ids_left = 100;
	cr_assert_eq(format_volume(&f, "v", 6), ERR_OK);
	check_formatted(&f, "v");
	check_world(&f, 1, fds);
	close_formatting(&f);
}

/* So many syncs of the trash go well, and the next one does not. */
static struct {
	ino_t trash;
	int left;
} sync_fails = {.left = -1};

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	struct stat st;
	if (sync_fails.left < 0 || fstat(fd, &st) < 0 || st.st_ino != sync_fails.trash ||
		sync_fails.left-- > 0)
		return __real_fsync(fd);
	errno = EIO;
	return -1;
}

/* Of a template, or of its volume: dm-thin is not told of an id before its file is durable. */
Test(thin_templates, names_that_are_not_durable, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_formatting(&f, &sim, 15);
	cr_assert_eq(format_volume(&f, "first", 6), ERR_OK);
	remove_named(&f, "first");
	drop_templates(&f);
	unsigned fds = count_fds(&f), failed = 0;
	sync_fails.trash = inode_of(&f, "trash");
	for (int nth = 0;; nth++) {
		unsigned messages = fake_thin_messages;
		sync_fails.left = nth;
		enum err_code code = format_volume(&f, "v", 6);
		bool hit = sync_fails.left < 0;
		sync_fails.left = -1;
		if (nth == 0)
			cr_assert_eq(fake_thin_messages, messages);
		failed += code != ERR_OK;
		cr_assert_eq(code, hit ? ERR_INTERNAL : ERR_OK);
		check_files(&f);
		sweep_trash(&f);
		check_world(&f, !hit, fds);
		if (!hit)
			break;
		drop_templates(&f);
	}
	cr_assert_eq(failed, 2);
	close_formatting(&f);
}

/* They are not forgotten: the next look tries again. */
Test(thin_templates, stay_where_the_records_have_no_room, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_formatting(&f, &sim, 16);
	cr_assert_eq(format_volume(&f, "v", 6), ERR_OK);
	templates_stay = true;
	thin_templates_age(templates(&f));
	look(&f);
	says(f.pool->raw->thin.why, "deleting a template in the thin pool of pool p: No space");
	cr_assert_eq(fake_thin_count, 2);
	cr_assert_eq(templates(&f)->bytes, FAKE_THIN_BYTES);
	templates_stay = false;
	sweep_trash(&f);
	cr_assert_str_eq(f.pool->raw->thin.why, "");
	check_world(&f, 1, count_fds(&f));
	cr_assert_eq(fake_thin_count, 1);
	close_formatting(&f);
}

/* ---- many ---- */

enum { CROWD = 6 };
static unsigned ended;

static void count_end(struct op *op)
{
	(void)op;
	ended++;
}

/* Who comes while one is made waits for it, and shares its fate. */
static unsigned crowd(struct fixture *f)
{
	struct formatted *all[CROWD];
	unsigned failed = 0;
	ended = 0;
	for (unsigned i = 0; i < CROWD; i++) {
		char name[8];
		snprintf(name, sizeof(name), "c%u", i);
		all[i] = formatted_new(f, name, 6);
		all[i]->b.op.on_end = count_end;
		op_start(&all[i]->b.op);
	}
	while (ended < CROWD)
		fixture_turn(f);
	for (unsigned i = 0; i < CROWD; i++) {
		failed += op_failed(&all[i]->b.op);
		formatted_free(all[i]);
	}
	sweep_trash(f);
	return failed;
}

Test(thin_templates, many_at_once, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_formatting(&f, &sim, 8);
	cr_assert_eq(format_volume(&f, "first", 6), ERR_OK);
	drop_templates(&f);
	unsigned fds = count_fds(&f);
	arm("thin_template", false, CROWD + 3); /* all have come, and it is copied */
	cr_assert_eq(crowd(&f), CROWD);
	disarm();
	check_files(&f);
	for (unsigned i = 0; i < CROWD; i++) {
		char name[8];
		snprintf(name, sizeof(name), "c%u", i);
		if (find(&f, name) != NULL)
			remove_named(&f, name);
	}
	cr_assert_eq(crowd(&f), 0);
	cr_assert_eq(templates(&f)->count, 1);
	for (unsigned i = 1; i < CROWD; i++) {
		char name[8];
		snprintf(name, sizeof(name), "c%u", i);
		cr_assert_eq(origin_of(id_of(&f, name)), origin_of(id_of(&f, "c0")));
	}
	check_world(&f, 1 + CROWD, fds);
	close_formatting(&f);
}

/* Of many sizes the least recently used goes; its volumes stay. */
Test(thin_templates, limit, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_formatting(&f, &sim, 9);
	for (unsigned mib = 4; mib < 4 + THIN_TEMPLATES_MAX + 2; mib++) {
		cr_assert_eq(format_volume(&f, "v", mib), ERR_OK, "%u", mib);
		remove_named(&f, "v");
	}
	sweep_trash(&f);
	cr_assert_eq(templates(&f)->count, THIN_TEMPLATES_MAX);
	check_world(&f, 0, count_fds(&f));
	uint32_t next = f.pool->raw->thin.next_id;
	cr_assert_eq(format_volume(&f, "known", 13), ERR_OK);
	cr_assert_eq(f.pool->raw->thin.next_id, next + 1);
	cr_assert_eq(format_volume(&f, "anew", 4), ERR_OK);
	cr_assert_eq(f.pool->raw->thin.next_id, next + 3);
	sweep_trash(&f);
	check_world(&f, 2, count_fds(&f));
	close_formatting(&f);
}

/* ---- their end ---- */

/* A load knows no template any more, whatever the last run had. */
Test(thin_templates, next_run, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_formatting(&f, &sim, 10);
	cr_assert_eq(format_volume(&f, "v", 6), ERR_OK);
	uint32_t origin = origin_of(id_of(&f, "v"));
	for (unsigned i = 0; i < 2; i++) { /* after a stop, and after a reboot */
		if (i == 1)
			fake_dm_reboot(true);
		raw_reopen_pools(&f);
		fixture_settle(&f);
		sweep_trash(&f);
		cr_assert_not(fake_thin_has(origin));
		cr_assert_eq(templates(&f)->count, 0);
		check_world(&f, 1, count_fds(&f));
		cr_assert_eq(format_volume(&f, "w", 6), ERR_OK);
		origin = origin_of(id_of(&f, "w"));
		cr_assert_neq(origin, 0);
		remove_named(&f, "w");
	}
	close_formatting(&f);
}

/* Where nobody uses the thin pool it goes, and its templates before it. */
Test(thin_templates, idle, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_formatting(&f, &sim, 11);
	cr_assert_eq(format_volume(&f, "v", 6), ERR_OK);
	remove_named(&f, "v");
	check_world(&f, 0, count_fds(&f));
	cr_assert_eq(templates(&f)->count, 1);
	for (unsigned i = 0; i < 40 && f.pool->raw->thin.life != THIN_NONE; i++) {
		sim_pass_ms(f.reactor.ring, 5000);
		fixture_settle(&f);
	}
	cr_assert_eq(f.pool->raw->thin.life, THIN_NONE);
	cr_assert_eq(fake_thin_count, 0);
	cr_assert_eq(templates(&f)->count, 0);
	cr_assert_eq(format_volume(&f, "v", 6), ERR_OK);
	check_formatted(&f, "v");
	close_formatting(&f);
}

/* Where room is short they go before writers fail, and volumes have bytes of their own. */
Test(thin_templates, short_of_room, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_formatting(&f, &sim, 12);
	cr_assert_eq(format_volume(&f, "v", 6), ERR_OK);
	cr_assert_eq(templates(&f)->count, 1);
	for (unsigned i = 0; i < 40 && !f.pool->raw->thin.short_of_room; i++) {
		unsigned blocks =
			(unsigned)(image_map_bytes(&f.pool->raw->thin.data) / RAW_MIB) * 16;
		snprintf(words, sizeof(words),
			"0 10/4096 %u/%u - rw no_discard_passdown queue_if_no_space - 1024", blocks,
			blocks);
		fake_thin_pool_words = words;
		thin_keep_kick(f.pool);
		fixture_settle(&f);
	}
	cr_assert(f.pool->raw->thin.short_of_room);
	cr_assert_not(f.pool->raw->thin.fails_when_full);
	cr_assert_eq(templates(&f)->count, 0);
	check_files(&f);
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	cr_assert(f.pool->raw->thin.fails_when_full);
	cr_assert_eq(fake_thin_count, 1);
	fake_thin_pool_words = NULL;
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	f.pool->raw->thin.short_of_room = true;
	struct formatted *v = formatted_new(&f, "w", 6);
	enum err_code code = fixture_run(&f, &v->b.op);
	cr_assert_eq(code, ERR_OK, "%s", v->b.op.err.message);
	formatted_free(v);
	cr_assert_eq(origin_of(id_of(&f, "w")), 0);
	close_formatting(&f);
}

/* What volumes have of a template counts once. */
Test(thin_templates, room, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_formatting(&f, &sim, 13);
	cr_assert_eq(format_volume(&f, "v", 6), ERR_OK);
	cr_assert_eq(format_volume(&f, "w", 6), ERR_OK);
	/* In use are 1 MiB, and what the template has. */
	unsigned total = (unsigned)(image_map_bytes(&f.pool->raw->thin.data) / RAW_MIB) * 16;
	snprintf(words, sizeof(words),
		"0 10/4096 17/%u - rw no_discard_passdown queue_if_no_space - 1024", total);
	fake_thin_pool_words = words;
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	pool_object_measured(find(&f, "v"), RAW_MIB);
	struct pool_room before = fixture_room(&f);
	pool_object_measured(find(&f, "w"), RAW_MIB);
	struct pool_room after = fixture_room(&f);
	/* Both say that they have it. */
	cr_assert_eq(after.allocated_bytes, 2 * RAW_MIB);
	cr_assert_eq(after.available_bytes, before.available_bytes);
	fake_thin_pool_words = NULL;
	close_formatting(&f);
}
