/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thin pool is given, over a dm-thin in memory: how much at first and when more, what
 * becomes of it when that fails, and what a check of its metadata says before it is active.
 */
#include "thin_world.h"

#include "pool/thin_steps.h"

/* ---- what is made durable ---- */

static ino_t synced[8]; /* the last ones, the latest first */

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	struct stat st;
	memmove(synced + 1, synced, sizeof(synced) - sizeof(synced[0]));
	synced[0] = fstat(fd, &st) == 0 ? st.st_ino : 0;
	return __real_fsync(fd);
}

/* ---- room ---- */

static bool table_fails(void)
{
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		if (fake_dm_devices[i].there && strstr(fake_dm_devices[i].now.targets[0].params,
							"error_if_no_space") != NULL)
			return true;
	return false;
}

static void say(char *buf, size_t cap, unsigned used_mib, unsigned total_mib)
{
	snprintf(buf, cap, "0 10/4096 %u/%u - rw no_discard_passdown %s - 1024", used_mib * 16,
		total_mib * 16, table_fails() ? "error_if_no_space" : "queue_if_no_space");
	fake_thin_pool_words = buf;
}

/* It grows ahead of who writes, says so when it cannot, and goes on when it can. */
Test(thin_growth, room, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_sim(&f, &sim, 3);
	struct pool_thin_state state;
	struct record rec = thin_volume("v", 40);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	unsigned total = data_mib(&f), before = total;
	cr_assert_eq(total, thin_headroom_bytes((uint64_t)AREA_MIB * RAW_MIB) / RAW_MIB);
	/* Each look finds all of it used. */
	for (unsigned i = 0; i < 40 && raw_free_mib(&f) > 0; i++) {
		say(words, sizeof(words), total, total);
		thin_keep_kick(f.pool);
		fixture_settle(&f);
		cr_assert_gt(data_mib(&f), total, "%u", i);
		total = data_mib(&f);
	}
	cr_assert_eq(total + 16, AREA_MIB);
	cr_assert_gt(total, before);
	say(words, sizeof(words), total - 1, total);
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	pool_thin_state(f.pool, &state);
	cr_assert(state.low && !state.wrong && state.unused_bytes == RAW_MIB);
	cr_assert(f.pool->raw->thin.fails_when_full);
	cr_assert(table_fails());
	struct pool_room room = fixture_room(&f);
	cr_assert_eq(room.thin_used_bytes, (uint64_t)(total - 1) * RAW_MIB);
	cr_assert_eq(room.available_thick_bytes, 0);
	/* A volume that asks for more than there is has no room, also without any of its own. */
	struct record more = thin_volume("more", 64);
	cr_assert_eq(build(&f, &more, NULL), ERR_NO_ROOM);
	/* Blocks are given back. */
	say(words, sizeof(words), 2, total);
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	pool_thin_state(f.pool, &state);
	cr_assert_not(state.low);
	cr_assert_not(f.pool->raw->thin.fails_when_full);
	cr_assert_eq(f.pool->measured_ns, 0, "what was measured before is not true any more");
	room = fixture_room(&f);
	cr_assert_eq(room.thin_used_bytes, 2 * RAW_MIB);
	fake_thin_pool_words = NULL;
	fixture_close(&f);
	bytes_drop();
}

/* Its first bytes are none that thick volumes were promised. */
Test(thin_growth, begins_with_what_nobody_was_promised, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 60);
	struct record rec = thin_volume("v", 4);
	unsigned metadata = (unsigned)(thin_metadata_bytes((uint64_t)AREA_MIB * RAW_MIB) / RAW_MIB);
	uint64_t promised = (uint64_t)(AREA_MIB - metadata - 10) * RAW_MIB;
	f.pool->reserved_bytes = promised;
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK, "%s", build_err.message);
	cr_assert_eq(data_mib(&f), 10);
	cr_assert_eq(f.pool->reserved_bytes, promised);
	cr_assert_eq(raw_free_mib(&f) * RAW_MIB, promised);
	f.pool->reserved_bytes = 0;
	close_thin(&f);
}

/* Half grown is worse than not grown: who writes waits for room that the driver takes for there. */
Test(thin_growth, a_growth_that_failed_is_made_up_for, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128], data[256], away[256];
	open_sim(&f, &sim, 23);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	/* The images have grown, and the devices have not. */
	say(words, sizeof(words), data_mib(&f), data_mib(&f));
	fake_dm_fail_with = -ENOMEM;
	fake_dm_fail_request = DM_TABLE_LOAD;
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	cr_assert_eq(fake_dm_fail_with, 0);
	say(words, sizeof(words), 1, data_mib(&f));
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	check_grown(&f);
	/* Of the two images one has grown, and the other has not. */
	snprintf(data, sizeof(data), "%s/thin/data", f.path);
	snprintf(away, sizeof(away), "%s/away", f.path);
	cr_assert_eq(rename(data, away), 0);
	snprintf(words, sizeof(words),
		"0 4000/4096 %u/%u - rw no_discard_passdown queue_if_no_space - 1024",
		data_mib(&f) * 16, data_mib(&f) * 16);
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	cr_assert_eq(rename(away, data), 0);
	say(words, sizeof(words), 1, data_mib(&f));
	thin_keep_kick(f.pool);
	fixture_settle(&f);
	check_grown(&f);
	fake_thin_pool_words = NULL;
	raw_reopen_pools(&f);
	fixture_settle(&f);
	check_grown(&f);
	fixture_close(&f);
	bytes_drop();
}

static unsigned metadata_mib(const struct fixture *f)
{
	return (unsigned)(image_map_bytes(&f->pool->raw->thin.metadata) / RAW_MIB);
}

/* Its metadata are used so, in blocks, and 1 MiB of its data. */
static void say_metadata(char *buf, size_t cap, unsigned used, unsigned total, unsigned mib)
{
	snprintf(buf, cap, "0 %u/%u 16/%u - rw no_discard_passdown queue_if_no_space - 1024", used,
		total, mib * 16);
	fake_thin_pool_words = buf;
}

/* A thin pool with one volume. */
static void open_one(struct fixture *f, struct ring_sim *sim, uint64_t seed)
{
	struct record rec = thin_volume("v", 6);
	open_sim(f, sim, seed);
	cr_assert_eq(build(f, &rec, NULL), ERR_OK);
}

/* As much again, when more than three quarters are in use and nobody was promised that room. */
Test(thin_growth, metadata_get_as_much_again, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_one(&f, &sim, 51);
	unsigned first = metadata_mib(&f), data = data_mib(&f);
	say_metadata(words, sizeof(words), 3000, 4000, data);
	look(&f);
	cr_assert_eq(metadata_mib(&f), first);
	say_metadata(words, sizeof(words), 3001, 4000, data);
	f.pool->reserved_bytes = (raw_free_mib(&f) - first + 1) * RAW_MIB;
	look(&f);
	cr_assert_eq(metadata_mib(&f), first, "that room is promised");
	/* Nor what the data take first. */
	f.pool->reserved_bytes -= 2 * RAW_MIB;
	snprintf(words, sizeof(words),
		"0 3001/4000 %u/%u - rw no_discard_passdown queue_if_no_space - 1024",
		(data - 5) * 16, data * 16);
	look(&f);
	cr_assert_eq(metadata_mib(&f), first, "the data have that room");
	cr_assert_eq(data_mib(&f), data + 7);
	data = data_mib(&f);
	say_metadata(words, sizeof(words), 3001, 4000, data);
	f.pool->reserved_bytes = (raw_free_mib(&f) - first) * RAW_MIB;
	uint64_t free_mib = raw_free_mib(&f);
	look(&f);
	f.pool->reserved_bytes = 0;
	cr_assert_eq(metadata_mib(&f), 2 * first);
	cr_assert_eq(raw_free_mib(&f), free_mib - first);
	cr_assert_eq(data_mib(&f), data);
	check_grown(&f);
	close_thin(&f);
}

/* They come to what they were given before, ahead of more. */
Test(thin_growth, half_grown_gets_no_more_metadata, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_one(&f, &sim, 52);
	unsigned first = metadata_mib(&f);
	say_metadata(words, sizeof(words), 3001, 4000, data_mib(&f));
	fake_dm_fail_with = -ENOMEM;
	fake_dm_fail_request = DM_TABLE_LOAD;
	look(&f);
	cr_assert(f.pool->raw->thin.half_grown);
	cr_assert_eq(metadata_mib(&f), 2 * first);
	look(&f);
	cr_assert_not(f.pool->raw->thin.half_grown);
	cr_assert_eq(metadata_mib(&f), 2 * first);
	check_grown(&f);
	close_thin(&f);
}

/* With each step failed in turn: what no map has is free again. */
Test(thin_growth, what_was_taken_in_vain_is_given_back, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_one(&f, &sim, 53);
	unsigned data = data_mib(&f), metadata = metadata_mib(&f);
	uint64_t free_mib = raw_free_mib(&f);
	bool hit = true;
	for (int n = 0; hit; n++) {
		snprintf(words, sizeof(words),
			"0 3001/4000 %u/%u - rw no_discard_passdown queue_if_no_space - 1024",
			data_mib(&f) * 16, data_mib(&f) * 16);
		fake_thin_pool_words = words;
		arm("thin_keep", false, n);
		look(&f);
		hit = disarm();
		cr_assert_eq(raw_free_mib(&f) + data_mib(&f) + metadata_mib(&f),
			free_mib + data + metadata, "%s", fault.what);
		if (data_mib(&f) == data)
			cr_assert(hit && metadata_mib(&f) == metadata, "%s", fault.what);
		else
			break;
	}
	check_grown(&f);
	close_thin(&f);
}

/* Who writes waits while there is something that will be free, and fails where nothing is. */
Test(thin_growth, fails_where_nothing_comes_to_be_free, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_one(&f, &sim, 54);
	struct pool_raw *raw = f.pool->raw;
	unsigned data = data_mib(&f);
	f.pool->reserved_bytes = raw_free_mib(&f) * RAW_MIB;
	say(words, sizeof(words), data, data);
	raw->dirty_bytes = RAW_MIB;
	thin_keep_kick(f.pool);
	while (thin_keep_busy(f.pool))
		fixture_turn(&f);
	cr_assert(raw->thin.short_of_room && !raw->thin.fails_when_full && !table_fails());
	raw->dirty_bytes = 0;
	raw->thin.templates.count = 1;
	look(&f);
	cr_assert(raw->thin.short_of_room && !raw->thin.fails_when_full && !table_fails());
	raw->thin.templates.count = 0;
	look(&f);
	cr_assert(raw->thin.fails_when_full && table_fails());
	cr_assert_eq(data_mib(&f), data);
	/* Half of the headroom is no shortage, and less is. */
	say(words, sizeof(words), data - 6, data);
	look(&f);
	cr_assert(!raw->thin.short_of_room && !table_fails());
	say(words, sizeof(words), data - 5, data);
	look(&f);
	cr_assert(raw->thin.short_of_room && table_fails());
	f.pool->reserved_bytes -= RAW_MIB;
	look(&f);
	cr_assert_eq(data_mib(&f), data + 1);
	cr_assert(!raw->thin.short_of_room && !table_fails());
	f.pool->reserved_bytes = 0;
	say(words, sizeof(words), data - 5, data + 1);
	look(&f);
	cr_assert_eq(data_mib(&f), data + 1, "half of the headroom is enough");
	say(words, sizeof(words), data - 4, data + 1);
	look(&f);
	cr_assert_eq(data_mib(&f), data + 8);
	close_thin(&f);
}

/* What the trash could not give back before may be free to go now. */
Test(thin_growth, a_shortage_looks_into_the_trash, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_one(&f, &sim, 59);
	unsigned data = data_mib(&f);
	f.pool->reserved_bytes = raw_free_mib(&f) * RAW_MIB;
	cr_assert_eq(fixture_sh("touch %s/trash/0123456789abcdef", f.path), 0);
	say(words, sizeof(words), data - 6, data);
	look(&f);
	cr_assert_not(f.pool->raw->thin.short_of_room);
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	say(words, sizeof(words), data - 5, data);
	look(&f);
	cr_assert(f.pool->raw->thin.short_of_room);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	f.pool->reserved_bytes = 0;
	close_thin(&f);
}

/* Nor is anything taken where nobody knows what is free, or for one that takes no writes. */
Test(thin_growth, takes_nothing_in_doubt, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	char words[128];
	open_one(&f, &sim, 55);
	unsigned data = data_mib(&f);
	say(words, sizeof(words), data, data);
	strcpy(f.pool->raw->unread, "volumes/x");
	look(&f);
	cr_assert(f.pool->raw->thin.short_of_room);
	cr_assert_eq(data_mib(&f), data);
	f.pool->raw->unread[0] = '\0';
	snprintf(words, sizeof(words),
		"0 10/4096 %u/%u - out_of_data_space no_discard_passdown queue_if_no_space - 1024",
		data * 16, data * 16);
	look(&f);
	cr_assert_gt(data_mib(&f), data);
	data = data_mib(&f);
	snprintf(words, sizeof(words),
		"0 10/4096 %u/%u - ro no_discard_passdown queue_if_no_space - 1024", data * 16,
		data * 16);
	look(&f);
	cr_assert_eq(data_mib(&f), data);
	check_grown(&f);
	close_thin(&f);
}

/* ---- activation ---- */

static void fails(struct fixture *f, enum err_code code, const char *why)
{
	const struct pool_thin *thin = &f->pool->raw->thin;
	cr_assert_eq(thin->life, THIN_DOWN, "%s", why);
	cr_assert_eq(thin->why_code, code, "%d: %s", thin->why_code, thin->why);
	cr_assert_not_null(strstr(thin->why, why), "%s", thin->why);
}

static void is_active(struct fixture *f)
{
	cr_assert_eq(f->pool->raw->thin.life, THIN_UP, "%s", f->pool->raw->thin.why);
	cr_assert_str_eq(f->pool->raw->thin.why, "");
	check_grown(f);
}

/* Somebody has taken its devices away: they are made again, of what is there then. */
Test(thin_growth, is_made_anew_of_what_is_there, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	uint8_t super[META_BLOCK];
	open_one(&f, &sim, 56);
	fake_dm_reboot(true);
	look(&f);
	fails(&f, ERR_INTERNAL, "looking at the thin pool");
	forget_activity(&f);
	cr_assert_eq(fixture_sh("mv %s/thin/data %s/away", f.path, f.path), 0);
	look(&f);
	fails(&f, ERR_UNAVAILABLE, "is not there any more");
	cr_assert_eq(fixture_sh("mv %s/away %s/thin/data", f.path, f.path), 0);
	memset(super, 0x55, sizeof(super));
	write_metadata(&f, 0, super);
	look(&f);
	fails(&f, ERR_DATA_LOSS, "are damaged: stop the driver");
	meta_write_super(super, &new_super);
	write_metadata(&f, 0, super);
	look(&f);
	is_active(&f);
	close_thin(&f);
}

/* ---- thin_check ---- */

/* What it does, and how it was called; NULL: it is not installed. */
static void install(struct fixture *f, const char *does)
{
	char path[160], at[128];
	snprintf(at, sizeof(at), "%s/bin", f->top);
	(void)mkdir(at, 0700);
	snprintf(path, sizeof(path), "%s:/usr/bin:/bin", at);
	setenv("PATH", path, 1);
	snprintf(at, sizeof(at), "%s/bin/thin_check", f->top);
	(void)unlink(at);
	if (does == NULL)
		return;
	int fd = open(at, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
	cr_assert_geq(fd, 0);
	dprintf(fd,
		"#!/bin/sh\nfor of; do :; done\n"
		"echo \"$@\" $(readlink $of) >>%s/called\n%s\n",
		f->top, does);
	close(fd);
}

static bool was_called(struct fixture *f, const char *options)
{
	char path[96], want[256], got[256] = "";
	snprintf(path, sizeof(path), "%s/called", f->top);
	snprintf(want, sizeof(want), "%s" PROC_FILE_PATH " %s\n", options, raw_root.disk);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	cr_assert_geq(read(fd, got, sizeof(got) - 1), 0);
	close(fd);
	cr_assert_str_eq(got, want);
	cr_assert_eq(unlink(path), 0);
	return true;
}

/* The next load finds it so. */
static void stop(struct fixture *f, bool unclean, bool needs_check)
{
	uint8_t block[META_BLOCK];
	char path[128];
	struct meta_super super = new_super;
	super.needs_check = needs_check;
	snprintf(path, sizeof(path), "%s/thin/metadata", f->path);
	fixture_close_pools(f);
	fake_dm_reboot(true);
	meta_write_super(block, &super);
	write_metadata(f, 0, block);
	if (unclean)
		cr_assert_eq(setxattr(path, THIN_ACTIVE_XATTR, "", 0, 0), 0);
	else if (removexattr(path, THIN_ACTIVE_XATTR) < 0)
		cr_assert_eq(errno, ENODATA);
}

static void start_after(struct fixture *f, bool unclean, bool needs_check, const char *does)
{
	stop(f, unclean, needs_check);
	install(f, does);
	raw_open_pools(f);
	fixture_settle(f);
}

static void open_checks(struct fixture *f, struct ring_sim *sim)
{
	struct record rec = thin_volume("v", 6);
	if (sim != NULL) {
		open_sim(f, sim, 57);
	} else {
		make_world(f);
		fixture_open_ring(f, NULL);
		raw_open_pools(f);
	}
	metadata_device = true;
	cr_assert_eq(build(f, &rec, NULL), ERR_OK);
}

static void close_checks(struct fixture *f)
{
	metadata_device = false;
	setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
	close_thin(f);
}

/* Which it is after an unclean stop, or where dm-thin asks for it. Also where the kernel says at
 * once that there is no such program. */
Test(thin_growth, metadata_are_checked_before_they_are_used, .timeout = 100)
{
	for (unsigned real = 0; real < 2; real++) {
		struct fixture f;
		struct ring_sim sim;
		struct record rec = thin_volume("w", 6);
		open_checks(&f, real ? NULL : &sim);
		unsigned fds = count_fds(&f);
		start_after(&f, false, false, "exit 1");
		is_active(&f);
		cr_assert_not(was_called(&f, ""));
		start_after(&f, true, false, "exit 0");
		is_active(&f);
		cr_assert(was_called(&f, "-q "));
		start_after(&f, false, true, "exit 0");
		is_active(&f);
		cr_assert(was_called(&f, "-q --clear-needs-check-flag "));
		start_after(&f, true, false, NULL);
		is_active(&f);
		start_after(&f, true, true, NULL);
		fails(&f, ERR_PRECONDITION, "thin_check is not installed");
		start_after(&f, true, false, "echo bad tree; exit 1");
		fails(&f, ERR_DATA_LOSS, "damaged (bad tree");
		cr_assert(was_called(&f, "-q "));
		cr_assert_eq(build(&f, &rec, NULL), ERR_DATA_LOSS);
		cr_assert(was_called(&f, "-q "));
		start_after(&f, true, false, "kill -9 $$");
		fails(&f, ERR_DATA_LOSS, "stop the driver and run 'ringvol check --repair'");
		cr_assert(was_called(&f, "-q "));
		cr_assert_eq(count_fds(&f), fds);
		close_checks(&f);
	}
}

/* Who has their device is not known, or there can be none. */
Test(thin_growth, metadata_that_cannot_be_opened, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_checks(&f, &sim);
	unsigned fds = count_fds(&f);
	metadata_device = false;
	start_after(&f, true, false, "exit 0");
	fails(&f, ERR_UNAVAILABLE, "to check them: No such device or address");
	metadata_device = true;
	fake_dm_fail_with = -EPERM;
	fake_dm_fail_request = DM_DEV_CREATE;
	start_after(&f, true, false, "exit 0");
	cr_assert_eq(fake_dm_fail_with, 0);
	fails(&f, ERR_INTERNAL, "to check them: ");
	cr_assert_not(was_called(&f, ""));
	/* What is open goes with each step that fails. */
	bool hit = true;
	for (int n = 0; hit; n++) {
		stop(&f, true, false);
		install(&f, "exit 0");
		arm("thin_keep", false, n);
		raw_open_pools(&f);
		fixture_settle(&f);
		hit = disarm();
		cr_assert_eq(count_fds(&f), fds, "%s", fault.what);
		cr_assert_eq(f.pool->ops, 0, "%s", fault.what);
		cr_assert_eq(fixture_sh("rm -f %s/called", f.top), 0);
	}
	is_active(&f);
	close_checks(&f);
}

/* Until the check runs. */
static struct thin_keep *checking(struct fixture *f)
{
	while (f->pool->thin_keep == NULL || !f->pool->thin_keep->checks)
		fixture_turn(f);
	return f->pool->thin_keep;
}

/* It may take minutes: who waits for it is told after a while, and who comes later at once. */
Test(thin_growth, a_check_that_takes_long, .timeout = 100)
{
	struct fixture f;
	struct record rec = thin_volume("w", 6);
	struct pool_build b;
	struct pool_thin_state state;
	open_checks(&f, NULL);
	stop(&f, true, false);
	install(&f, "exec sleep 1000");
	raw_open_pools(&f);
	struct thin_keep *k = checking(&f);
	cr_assert(ring_timer_armed(&k->timer));
	cr_assert_eq(pool_build_init(&b, &f.reactor, f.pool, &rec), 0);
	fixture_ended = false;
	b.op.on_end = fixture_on_end;
	op_start(&b.op);
	while (list_empty(&k->waiting))
		fixture_turn(&f);
	cr_assert_not(f.pool->raw->thin.checking);
	ring_timer_arm(f.reactor.ring, &k->timer, 0); /* so much time has passed */
	while (!fixture_ended)
		fixture_turn(&f);
	cr_assert_eq(b.op.err.code, ERR_UNAVAILABLE);
	cr_assert_not_null(strstr(b.op.err.message, "are being checked"), "%s", b.op.err.message);
	pool_thin_state(f.pool, &state);
	says(state.wrong ? state.why : "", "being checked after an unclean stop; wait");
	pool_build_free(&b);
	cr_assert_eq(build(&f, &rec, NULL), ERR_UNAVAILABLE);
	/* In the end it has taken too long. */
	ring_timer_arm(f.reactor.ring, &k->proc.timer, 0);
	fixture_settle(&f);
	fails(&f, ERR_TIMEOUT, "took longer than 600 s");
	install(&f, "exit 0");
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	/* Nor is it taken for running when it has ended. */
	ring_timer_arm(f.reactor.ring, &k->timer, 0);
	while (ring_timer_armed(&k->timer) && !thin_keep_busy(f.pool))
		fixture_turn(&f);
	fixture_settle(&f);
	cr_assert_not(f.pool->raw->thin.checking);
	close_checks(&f);
}

/* ---- the end ---- */

static void on_retired(void *arg, const char *op_name, const char *step_name, uint64_t ns)
{
	(void)ns;
	if (strcmp(op_name, "thin_keep") == 0 && strcmp(step_name, "retire") == 0)
		memcpy(arg, synced, sizeof(synced));
}

/* Its images have a name in the trash before they have none of their own. */
Test(thin_growth, is_in_the_trash_durably, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	ino_t then[8] = {0};
	open_one(&f, &sim, 58);
	remove_named(&f, "v");
	f.observer.after = on_retired;
	f.observer.arg = then;
	for (unsigned i = 0; i < 100000 && then[0] == 0; i++)
		fixture_turn(&f);
	cr_assert_eq(then[0], inode_of(&f, "thin"));
	cr_assert_eq(then[1], inode_of(&f, "trash"));
	close_thin(&f);
}
