/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thin volumes where the kernel refuses something: the device mapper or a device cannot be opened,
 * a name cannot be made durable, somebody keeps a device. Whoever asked is told what it was, what
 * was taken is given back, and the next attempt succeeds.
 */
#include "../unit/sim_time.h"
#include "thin_world.h"

#include "pool/thin_steps.h"

/* ---- calls that fail ---- */

/* The next sync of that inode does. */
static struct {
	ino_t ino;
	int with;
} sync_fails;
/* So many attributes of that name are set, and the next one cannot be. */
static int attribute_fails, attribute_after;
static const char *failing_attribute = THIN_ACTIVE_XATTR;

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	struct stat st;
	if (sync_fails.with == 0 || fstat(fd, &st) < 0 || st.st_ino != sync_fails.ino)
		return __real_fsync(fd);
	errno = sync_fails.with;
	sync_fails.with = 0;
	return -1;
}

int __real_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
	if (attribute_fails == 0 || strcmp(name, failing_attribute) != 0 || attribute_after-- > 0)
		return __real_fsetxattr(fd, name, value, size, flags);
	errno = attribute_fails;
	attribute_fails = 0;
	return -1;
}

static unsigned refuse_after;

static void refuse_it(struct fixture *f)
{
	(void)f;
	refuse_dm(refuse_after);
}

/* ---- the device mapper cannot be opened ---- */

struct tried {
	const char *name, *source;
	enum record_kind kind;
};

/* False: so often it is not opened. */
static bool try_build(struct fixture *f, const struct tried *what, unsigned after)
{
	char id[RECORD_ID_MAX];
	struct pool_object *source = what->source != NULL ? find(f, what->source) : NULL;
	struct record rec = thin_copy(what->name, what->kind, 6, source, id);
	unsigned fds = count_fds(f), files = f->pool->raw->thin.files;
	refuse_dm(after);
	enum err_code code = build(f, &rec, source);
	bool hit = dm_was_refused();
	check_files(f);
	sweep_trash(f);
	if (find(f, what->name) == NULL) {
		cr_assert(hit && code == ERR_INTERNAL, "%u: %s", after, build_err.message);
		says(build_err.message, "Too many open files");
		check_rest(f, files, fds);
		cr_assert_eq(build(f, &rec, source), ERR_OK, "%u", after);
	}
	check_rest(f, files + 1, fds);
	refuse_dm(after);
	remove_named(f, what->name);
	hit |= dm_was_refused();
	sweep_trash(f);
	check_rest(f, files, fds);
	return hit;
}

Test(thin_refused, the_device_mapper_at_a_build, .timeout = 100)
{
	static const struct tried all[] = {{"empty", NULL, RECORD_VOLUME},
		{"snapshot", "origin", RECORD_SNAPSHOT}, {"clone", "origin", RECORD_VOLUME},
		{"back", "still", RECORD_VOLUME}};
	struct fixture f;
	struct ring_sim sim;
	char id[RECORD_ID_MAX];
	open_sim(&f, &sim, 61);
	struct record rec = thin_volume("origin", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	rec = thin_copy("still", RECORD_SNAPSHOT, 6, find(&f, "origin"), id);
	cr_assert_eq(build(&f, &rec, find(&f, "origin")), ERR_OK);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		unsigned after = 0;
		while (try_build(&f, &all[i], after))
			after++;
		cr_assert_geq(after, 2, "%s", all[i].name);
	}
	close_thin(&f);
}

/* A device was made, and goes. */
Test(thin_refused, the_device_of_a_copy, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char id[RECORD_ID_MAX];
	open_sim(&f, &sim, 62);
	raw_make_volume(&f, "thick", 4);
	struct pool_object *thick = find(&f, "thick");
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	unsigned fds = count_fds(&f);
	rec = thin_copy("copied", RECORD_VOLUME, 6, thick, id);
	node_open_fails = -ENXIO;
	cr_assert_eq(build(&f, &rec, thick), ERR_INTERNAL);
	says(build_err.message, "opening the device /dev/dm-");
	sweep_trash(&f);
	check_rest(&f, 1, fds);
	refuse_dm(1); /* the first opening is of the message */
	cr_assert_eq(build(&f, &rec, thick), ERR_INTERNAL);
	says(build_err.message, "thin volumes of pools on raw disks need the device mapper: ");
	sweep_trash(&f);
	check_rest(&f, 1, fds);
	fake_dm_fail_with = -ENOMEM;
	fake_dm_fail_request = DM_DEV_CREATE;
	cr_assert_neq(build(&f, &rec, thick), ERR_OK);
	says(build_err.message, "ringvol-thinfill-");
	sweep_trash(&f);
	check_rest(&f, 1, fds);
	cr_assert_eq(build(&f, &rec, thick), ERR_OK);
	sweep_trash(&f);
	check_rest(&f, 2, fds);
	close_thin(&f);
}

/* At each start, as after a reboot; the next look makes up for it. */
Test(thin_refused, the_device_mapper_at_activation, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	bool asked = false, activated = false, looked = false, hit = true;
	open_sim(&f, &sim, 63);
	const char *why;
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	for (unsigned after = 0; hit; after++) {
		fixture_close_pools(&f);
		fake_dm_reboot(true);
		refuse_after = after;
		act_before(&f, "ask", refuse_it);
		raw_open_pools(&f);
		fixture_settle(&f);
		hit = dm_was_refused();
		why = f.pool->raw->thin.why;
		bool is_up = f.pool->raw->thin.life == THIN_UP;
		asked |= strstr(why, "looking at the thin pool of pool p: Too m") && !is_up;
		activated |= strstr(why, "need the device mapper: opening") != NULL && !is_up;
		looked |= strstr(why, "looking at the thin pool of pool p: Too m") && is_up;
		cr_assert_eq(f.pool->ops, 0);
		look(&f);
		why = f.pool->raw->thin.why;
		cr_assert_str_eq(why, "");
		check_grown(&f);
		check_files(&f);
	}
	cr_assert(asked && activated && looked);
	close_thin(&f);
}

/* Where this node has none, nothing can be active. */
Test(thin_refused, no_device_mapper, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 64);
	struct record rec = thin_volume("v", 6);
	dm_open_after = 0;
	dm_open_fails = -ENOENT;
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	cr_assert(dm_was_refused());
	check_grown(&f);
	close_thin(&f);
}

/* ---- its images ---- */

static void find_nothing_taken(struct fixture *f)
{
	cr_assert_eq(f->pool->raw->thin.life, THIN_NONE);
	cr_assert_eq(fixture_count(f, "thin"), 0);
	cr_assert_eq(raw_free_mib(f), AREA_MIB);
	cr_assert_eq(f->pool->ops, 0);
}

Test(thin_refused, names_that_are_not_durable_go, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 65);
	struct record rec = thin_volume("v", 6);
	sync_fails.ino = inode_of(&f, "thin");
	sync_fails.with = EIO;
	build_fails(&f, &rec, ERR_INTERNAL, "making the images of the thin pool of pool p");
	find_nothing_taken(&f);
	sync_fails.with = ENOSPC;
	build_fails(&f, &rec, ERR_NO_ROOM, "the records of pool p are full");
	find_nothing_taken(&f);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	check_grown(&f);
	close_thin(&f);
}

/* The first or the second: what was taken for both is free again. */
Test(thin_refused, images_without_a_map_have_no_name, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 71);
	struct record rec = thin_volume("v", 6);
	failing_attribute = IMAGE_MAP_XATTR;
	for (int nth = 0; nth < 2; nth++) {
		attribute_after = nth;
		attribute_fails = EIO;
		build_fails(&f, &rec, ERR_INTERNAL,
			"making the images of the thin pool of pool p: Input/output error");
		find_nothing_taken(&f);
	}
	failing_attribute = THIN_ACTIVE_XATTR;
	attribute_after = 0;
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	check_grown(&f);
	close_thin(&f);
}

/* A file that came between is somebody's: it stays, and nobody is given what ours may have. */
Test(thin_refused, a_name_that_is_taken_stays, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 66);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(fixture_sh("echo mine >%s/thin/data", f.path), 0);
	build_fails(&f, &rec, ERR_INTERNAL, "making the images of the thin pool of pool p");
	cr_assert_eq(fixture_sh("grep -q mine %s/thin/data", f.path), 0);
	cr_assert_eq(fixture_count(&f, "thin"), 2);
	cr_assert_lt(raw_free_mib(&f), AREA_MIB);
	cr_assert_eq(fixture_sh("rm %s/thin/data", f.path), 0);
	raw_reopen_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(raw_free_mib(&f), AREA_MIB);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	check_grown(&f);
	close_thin(&f);
}

/* What was deleted just now is overwritten first. */
Test(thin_refused, images_wait_for_zeros, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 67);
	struct pool_object *all = raw_make_volume(&f, "all", AREA_MIB);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(fixture_remove(&f, all), ERR_OK);
	cr_assert_eq(raw_dirty_mib(&f), AREA_MIB);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	check_grown(&f);
	fixture_settle(&f);
	struct image_map metadata = raw_map(&f, "thin/metadata");
	cr_assert_eq(
		raw_free_mib(&f) + data_mib(&f) + image_map_bytes(&metadata) / RAW_MIB, AREA_MIB);
	close_thin(&f);
}

static void move_metadata(struct fixture *f)
{
	cr_assert_eq(fixture_sh("mv %s/thin/metadata %s/away", f->path, f->path), 0);
}

/* What says that it was in use must be there before it is. */
Test(thin_refused, the_mark_of_an_active_one, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 68);
	struct record rec = thin_volume("v", 6);
	attribute_fails = ENOSPC;
	build_fails(&f, &rec, ERR_NO_ROOM,
		"activating the thin pool of pool p: the records of pool p are full");
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	fixture_close_pools(&f);
	fake_dm_reboot(true);
	act_before(&f, "activate", move_metadata);
	raw_open_pools(&f);
	fixture_settle(&f);
	cr_assert_null(ahead.step);
	cr_assert_eq(f.pool->raw->thin.life, THIN_DOWN);
	says(f.pool->raw->thin.why, "activating the thin pool of pool p: No such file");
	cr_assert_eq(device_mib("thinpool"), 0);
	cr_assert_eq(fixture_sh("mv %s/away %s/thin/metadata", f.path, f.path), 0);
	look(&f);
	cr_assert_eq(f.pool->raw->thin.life, THIN_UP);
	forget_activity(&f); /* it was set */
	close_thin(&f);
}

/* ---- what a killed driver leaves ---- */

/* Its devices are left, and the mark. */
static void kill_driver(struct fixture *f)
{
	fixture_settle(f);
	refuse_dm(0);
	fixture_close_pools(f);
	cr_assert(dm_was_refused());
	cr_assert_neq(device_mib("thinpool"), 0);
}

static struct fake_device *device(const char *what)
{
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		if (fake_dm_devices[i].there && strstr(fake_dm_devices[i].name, what) != NULL)
			return &fake_dm_devices[i];
	return NULL;
}

static void restart(struct fixture *f)
{
	raw_open_pools(f);
	fixture_settle(f);
	cr_assert_eq(f->pool->raw->thin.life, THIN_UP, "%s", f->pool->raw->thin.why);
	check_grown(f);
}

/* Metadata that are in use are not checked: here that would fail. */
Test(thin_refused, an_active_one_is_taken_over, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 69);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	kill_driver(&f);
	restart(&f);
	close_thin(&f);
}

/* Its devices lead elsewhere than its images say: they are made anew, as after any unclean stop,
 * when nobody has them open. */
Test(thin_refused, an_active_one_that_is_not_right_is_made_anew, .timeout = 100)
{
	for (unsigned open = 0; open < 2; open++) {
		struct fixture f;
		struct ring_sim sim;
		open_sim(&f, &sim, 70);
		struct record rec = thin_volume("v", 6);
		cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
		kill_driver(&f);
		struct dm_target right = device("thinmeta")->now.targets[0];
		snprintf(device("thinmeta")->now.targets[0].params, DM_PARAMS_BYTES, "7:0 4711");
		set_open(open);
		raw_open_pools(&f);
		fixture_settle(&f);
		if (open) {
			cr_assert_eq(f.pool->raw->thin.life, THIN_DOWN);
			says(f.pool->raw->thin.why, "leads to other places of the disks");
			set_open(0);
			look(&f);
		}
		cr_assert_eq(f.pool->raw->thin.life, THIN_DOWN);
		says(f.pool->raw->thin.why, "to check them: No such device or address");
		forget_activity(&f);
		look(&f);
		cr_assert_eq(f.pool->raw->thin.life, THIN_UP, "%s", f.pool->raw->thin.why);
		cr_assert_str_eq(device("thinmeta")->now.targets[0].params, right.params);
		check_grown(&f);
		close_thin(&f);
	}
}

static void leave(unsigned at, const char *name, const char *uuid)
{
	fake_dm_devices[at].there = true;
	snprintf(fake_dm_devices[at].name, DM_NAME_LEN, "ringvol-thinfill-%s", name);
	snprintf(fake_dm_devices[at].uuid, DM_UUID_LEN, "%s", uuid);
}

/* A copy that a kill has cut short. */
Test(thin_refused, devices_of_copies_are_swept, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 71);
	struct record rec = thin_volume("v", 6);
	leave(8, "5f1e0000-00000001", DM_OUR_UUID "thinfill-5f1e0000-00000001");
	leave(9, "5f1e0000-00000002", DM_OUR_UUID "thinfill-5f1e0000-00000002");
	leave(12, "5f1e0000-00000004", DM_OUR_UUID "thinfill-5f1e0000-00000004");
	leave(10, "5f1e0000-00000003", "CRYPT-somebody");
	leave(11, "5f1e0001-00000001", DM_OUR_UUID "thinfill-5f1e0001-00000001");
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	cr_assert_not(fake_dm_devices[8].there);
	cr_assert_not(fake_dm_devices[9].there);
	cr_assert_not(fake_dm_devices[12].there);
	cr_assert(fake_dm_devices[10].there, "it is somebody else's");
	cr_assert(fake_dm_devices[11].there, "it is another pool's");
	fake_dm_devices[10].there = fake_dm_devices[11].there = false;
	close_thin(&f);
}

/* ---- anew, more, and the end ---- */

/* It has failed, and its devices stay until they can be taken away. */
Test(thin_refused, the_device_mapper_where_it_is_made_anew_or_grows, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_sim(&f, &sim, 72);
	struct pool_thin *thin = &f.pool->raw->thin;
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	fake_thin_pool_words = "Fail";
	look(&f);
	refuse_dm(0);
	look(&f);
	cr_assert(dm_was_refused());
	says(thin->why, "taking away the devices of the thin pool of pool p: Too many open files");
	cr_assert(thin->life == THIN_UP && thin_is_wrong(thin));
	fake_thin_pool_words = NULL;
	forget_activity(&f);
	look(&f);
	cr_assert(thin->life == THIN_UP && !thin_is_wrong(thin));
	cr_assert_str_eq(thin->why, "");
	/* The first opening is of the look. */
	unsigned data = data_mib(&f);
	uint64_t free_mib = raw_free_mib(&f);
	snprintf(words, sizeof(words),
		"0 10/4096 %u/%u - rw no_discard_passdown queue_if_no_space - 1024", data * 16,
		data * 16);
	fake_thin_pool_words = words;
	refuse_dm(1);
	look(&f);
	cr_assert(dm_was_refused());
	says(thin->why, "thin volumes of pools on raw disks need the device mapper: opening");
	cr_assert_eq(data_mib(&f), data);
	cr_assert_eq(raw_free_mib(&f), free_mib);
	look(&f);
	cr_assert_gt(data_mib(&f), data);
	check_grown(&f);
	close_thin(&f);
}

/* Nobody has used it for as long as it takes. */
static void be_idle(struct fixture *f)
{
	remove_named(f, "v");
	sim_pass_ms(f->reactor.ring, 80000);
}

static void do_nothing(struct fixture *f)
{
	(void)f;
}

Test(thin_refused, what_no_file_has_is_not_destroyed, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	uint8_t node[META_BLOCK];
	const uint64_t one[][2] = {{4711, 0}};
	open_sim(&f, &sim, 73);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	meta_write_node(node, 1, true, META_DETAILS, one, 1);
	write_metadata(&f, 1, node);
	be_idle(&f);
	fixture_settle(&f);
	cr_assert_eq(f.pool->raw->thin.life, THIN_UP);
	cr_assert_eq(fixture_count(&f, "thin"), 2);
	check_grown(&f);
	cr_assert_str_eq(f.pool->raw->thin.why, "");
	/* It is tried again after as long a time, and not at each look. */
	act_before(&f, "retire", do_nothing);
	sim_pass_ms(f.reactor.ring, 30000);
	cr_assert_not_null(ahead.step);
	sim_pass_ms(f.reactor.ring, 60000);
	cr_assert_null(ahead.step);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	close_thin(&f);
}

static void until_it_is_gone(struct fixture *f)
{
	for (unsigned i = 0; i < 100000 && f->pool->raw->thin.life != THIN_NONE; i++)
		fixture_turn(f);
	/* All that it had is free as soon as it is overwritten. */
	cr_assert_eq(raw_free_mib(f) + raw_dirty_mib(f), AREA_MIB);
	fixture_settle(f);
	cr_assert_eq(fixture_count(f, "thin"), 0);
	cr_assert_eq(device_mib("thinpool"), 0);
	cr_assert_eq(raw_free_mib(f), AREA_MIB);
}

Test(thin_refused, somebody_keeps_its_device, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 74);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	set_open(1);
	be_idle(&f);
	cr_assert_neq(f.pool->raw->thin.life, THIN_NONE);
	cr_assert_eq(fixture_count(&f, "thin"), 2);
	cr_assert_neq(device_mib("thinpool"), 0);
	cr_assert_str_eq(f.pool->raw->thin.why, "");
	set_open(0);
	forget_activity(&f);
	until_it_is_gone(&f);
	close_thin(&f);
}

Test(thin_refused, the_device_mapper_at_the_end, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 75);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	remove_named(&f, "v");
	act_before(&f, "retire", refuse_it);
	for (unsigned i = 0; i < 100000 && f.pool->raw->thin.why[0] == '\0'; i++)
		fixture_turn(&f);
	says(f.pool->raw->thin.why, "taking away the thin pool of pool p: Too many open files");
	cr_assert_eq(fixture_count(&f, "thin"), 2);
	until_it_is_gone(&f);
	cr_assert_str_eq(f.pool->raw->thin.why, "");
	close_thin(&f);
}
