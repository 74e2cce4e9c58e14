/* SPDX-License-Identifier: Apache-2.0 */
/* The list of borrowed volumes, and when what was left of them is swept. The sweep itself is
 * test_attach_calls.c's; here it answers what a test wants. */
#include "attach/borrowed.h"
#include "attach/fabrics.h"
#include "attach/sweep.h"
#include "base/log.h"
#include "blockio/blkdev.h"
#include "sim_time.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct ring_sim sim;
static struct reactor reactor;
static struct borrows *b;

/* ---- what is asked ---- */

static struct attach_sweep_req asked; /* of the last sweep */
static struct attach_sweep_info answer;
static unsigned sweeps;
static int sweep_res, covers_res, check_res;
static uint32_t ended_minor; /* the device of that number has ended */
static struct {
	unsigned count;
	uint32_t major, minor;
	const void *owner;
} tracked, untracked;

int __wrap_attach_each_cover(
	void (*each)(void *arg, const char *tag, const struct attach_info *info), void *arg);
int __wrap_fabrics_check(struct err *err);
int __wrap_blkdev_look(uint32_t major, uint32_t minor, struct blkdev *ret);
int __wrap_probes_track(struct probes *probes, enum probe_kind kind, uint32_t major, uint32_t minor,
	const void *owner);
void __wrap_probes_untrack(
	struct probes *probes, uint32_t major, uint32_t minor, const void *owner);

int __wrap_fabrics_check(struct err *err)
{
	return check_res == 0 ? 0 : err_set(err, ERR_PRECONDITION, "modprobe nvme-tcp");
}

int __wrap_blkdev_look(uint32_t major, uint32_t minor, struct blkdev *ret)
{
	(void)ret;
	cr_expect_eq(major, 253);
	return minor == ended_minor ? -ENOENT : minor == ended_minor + 1 ? -EIO : 0;
}

int __wrap_probes_track(struct probes *probes, enum probe_kind kind, uint32_t major, uint32_t minor,
	const void *owner)
{
	cr_expect_eq(probes, (struct probes *)&sim);
	cr_expect_eq(kind, PROBE_BIOS);
	tracked.count++;
	tracked.major = major;
	tracked.minor = minor;
	tracked.owner = owner;
	return -ENOSPC; /* it is used all the same */
}

void __wrap_probes_untrack(struct probes *probes, uint32_t major, uint32_t minor, const void *owner)
{
	cr_expect_eq(probes, (struct probes *)&sim);
	untracked.count++;
	untracked.major = major;
	untracked.minor = minor;
	untracked.owner = owner;
}

static int fake_sweep(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	cr_assert_eq(req_len, sizeof(asked));
	memcpy(&asked, req, sizeof(asked));
	memcpy(resp, &answer, sizeof(answer));
	*resp_len = sizeof(answer);
	sweeps++;
	return sweep_res;
}

static helper_fn *const calls[ATTACH_CALLS] = {[ATTACH_SWEEP] = fake_sweep};

static void setup(void)
{
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	cr_assert_eq(ring_sim_open(&reactor.ring, &sim), 0);
	cr_assert_eq(helpers_open(&reactor.helpers, reactor.ring, calls, ATTACH_CALLS), 0);
	cr_assert_eq(borrows_open(&b, &reactor), 0);
}

static void teardown(void)
{
	borrows_close(b);
	borrows_close(NULL);
	helpers_close(reactor.helpers);
	ring_close(reactor.ring);
}

TestSuite(borrowed, .init = setup, .fini = teardown);

/* ---- the list ---- */

static struct borrowed *put(const char *tag, uint32_t minor)
{
	struct attach_info info = {.major = 253, .minor = minor, .size_bytes = minor};
	snprintf(info.path, sizeof(info.path), "/dev/dm-%u", minor);
	struct borrowed *one = borrows_put(b, tag, &info);
	cr_assert_not_null(one);
	cr_expect_str_eq(one->tag, tag);
	cr_expect_str_eq(one->path, info.path);
	return one;
}

/* The tags in the order of a walk, each followed by a blank. */
static const char *walk(void)
{
	static char tags[256];
	char at[ATTACH_TAG_BYTES] = "";
	tags[0] = '\0';
	for (const struct borrowed *one; (one = borrows_next(b, at)) != NULL;) {
		strcpy(at, one->tag);
		strcat(strcat(tags, at), " ");
	}
	return tags;
}

Test(borrowed, a_walk_is_in_the_order_of_tags)
{
	cr_expect_null(borrows_next(b, ""));
	put("m", 3);
	put("d", 1);
	struct borrowed *z = put("z", 5), *f = put("f", 2);
	put("p", 4);
	cr_expect_str_eq(walk(), "d f m p z ");
	/* From anywhere, also backwards, and behind one that is not there. */
	cr_expect_str_eq(borrows_next(b, "m")->tag, "p");
	cr_expect_str_eq(borrows_next(b, "a")->tag, "d");
	cr_expect_str_eq(borrows_next(b, "e")->tag, "f");
	cr_expect_str_eq(borrows_next(b, "f")->tag, "m");
	cr_expect_null(borrows_next(b, "z"));
	put("a", 6);
	put("zz", 7);
	cr_expect_str_eq(walk(), "a d f m p z zz ");
	/* One that is in a pool here is passed over, and one that has gone. */
	f->local = true;
	cr_expect_eq(borrows_next(b, "p"), z);
	cr_expect_eq(b->last, z);
	borrows_drop(b, f);
	cr_expect_eq(b->last, z);
	f = put("f", 2);
	f->local = true;
	borrows_drop(b, z);
	cr_expect_null(b->last);
	borrows_drop(b, NULL);
	cr_expect_null(borrows_find(b, "z"));
	cr_expect_str_eq(borrows_next(b, "p")->tag, "zz");
	cr_expect_str_eq(walk(), "a d m p zz ");
	cr_expect_eq(borrows_find(b, "f"), f);
}

Test(borrowed, they_are_found_by_the_number_of_their_device)
{
	struct borrowed *one = put("a", 1), *two = put("b", 2);
	struct attach_info none = {.major = 0, .minor = 7};
	cr_assert_not_null(borrows_put(b, "c", &none));
	cr_expect_eq(borrows_at(b, 253, 1), one);
	cr_expect_eq(borrows_at(b, 253, 2), two);
	cr_expect_null(borrows_at(b, 253, 3));
	cr_expect_null(borrows_at(b, 252, 1));
	cr_expect_null(borrows_at(b, 0, 7), "it has no device");
}

Test(borrowed, what_is_known_is_brought_up_to_date)
{
	struct attach_info info = {.major = 253,
		.minor = 1,
		.size_bytes = 4096,
		.opened = true,
		.read_only = true,
		.suspended = true,
		.path = "/dev/dm-1",
		.ctrl = {.name = "nvme1", .subsystem = "nqn.a"}};
	const struct borrowed *one = borrows_put(b, "a", &info);
	cr_expect(one->opened && one->read_only && one->suspended && !one->local);
	cr_expect(one->probed.other);
	cr_expect_str_eq(one->subsystem, "nqn.a");
	info = (struct attach_info){.major = 253,
		.minor = 1,
		.size_bytes = 8192,
		.local = true,
		.path = "/dev/dm-1",
		.ctrl = {.subsystem = "nqn.b"}};
	cr_expect_eq(borrows_put(b, "a", &info), one);
	cr_expect(!one->opened && !one->read_only && one->local);
	cr_expect(one->suspended, "until somebody knows that it goes on");
	cr_expect_str_eq(one->subsystem, "nqn.a", "there is no connection that says another");
	cr_expect_eq(one->size_bytes, 8192);
}

Test(borrowed, its_device_is_counted_while_it_has_it)
{
	struct attach_info none = {.major = 0};
	b->probes = (struct probes *)&sim;
	struct borrowed *one = put("a", 1);
	cr_expect_eq(tracked.count, 1);
	cr_expect_eq(tracked.major, 253);
	cr_expect_eq(tracked.minor, 1);
	cr_expect_eq(tracked.owner, &one->probed);
	put("a", 1);
	cr_expect_eq(tracked.count, 1);
	cr_expect_eq(untracked.count, 0);
	put("a", 2);
	cr_expect_eq(tracked.minor, 2);
	cr_expect_eq(untracked.minor, 1);
	cr_expect_eq(untracked.major, 253);
	cr_expect_eq(untracked.owner, &one->probed);
	borrows_drop(b, one);
	cr_expect_eq(tracked.count, 2);
	cr_expect_eq(untracked.count, 2);
	cr_expect_eq(untracked.minor, 2);
	borrows_drop(b, borrows_put(b, "b", &none));
	cr_expect_eq(tracked.count, 2);
	cr_expect_eq(untracked.count, 2);
}

Test(borrowed, a_path_is_kept_and_forgotten)
{
	char *path = NULL;
	cr_expect_eq(borrowed_set_path(&path, NULL), 0);
	cr_expect_null(path);
	cr_expect_eq(borrowed_set_path(&path, "/a"), 0);
	cr_expect_eq(borrowed_set_path(&path, "/b"), 0);
	cr_expect_str_eq(path, "/b");
	cr_expect_eq(borrowed_set_path(&path, NULL), 0);
	cr_expect_null(path);
}

int __wrap_attach_each_cover(
	void (*each)(void *arg, const char *tag, const struct attach_info *info), void *arg)
{
	const struct attach_info info = {.major = 253, .minor = 9};
	each(arg, "a", &info);
	return covers_res;
}

Test(borrowed, a_start_finds_those_of_earlier_runs)
{
	cr_expect_eq(borrows_adopt(b), 0);
	cr_expect(!b->blind);
	cr_expect_eq(borrows_find(b, "a"), borrows_at(b, 253, 9));
	covers_res = -EIO;
	cr_expect_eq(borrows_adopt(b), -EIO);
	cr_expect(b->blind);
	cr_expect_not_null(borrows_find(b, "a"));
}

/* ---- the sweep ---- */

/* How many sweeps there are just before and just after so many ms from now. */
static void expect_sweep_after(uint64_t ms)
{
	unsigned before = sweeps;
	sim_pass_ms(reactor.ring, ms - 1000);
	cr_expect_eq(sweeps, before, "before %u ms", (unsigned)ms);
	sim_pass_ms(reactor.ring, 2000);
	cr_expect_eq(sweeps, before + 1, "after %u ms", (unsigned)ms);
}

static void expect_no_sweep(void)
{
	unsigned before = sweeps;
	sim_pass_ms(reactor.ring, 10 * BORROWED_SWEEP_MS);
	cr_expect_eq(sweeps, before);
	cr_expect(!ring_timer_armed(&b->timer));
}

Test(borrowed, what_is_left_is_ended_at_the_second_look)
{
	cr_expect_eq(b->waits.loss_s, BORROWED_LOSS_S);
	cr_expect_eq(b->waits.fail_s, BORROWED_FAIL_S);
	borrows_sweep(b);
	cr_expect(b->unsure);
	answer.count = 2;
	strcpy(answer.left[0].name, "nvme1");
	strcpy(answer.left[1].name, "nvme2");
	expect_sweep_after(BORROWED_FIRST_SWEEP_MS);
	cr_expect_eq(asked.count, 0);
	cr_expect_eq(b->op.lane, b->lane, "the owner of one may hang");
	answer = (struct attach_sweep_info){.ended = 2};
	expect_sweep_after(2 * BORROWED_FIRST_SWEEP_MS - 1000);
	cr_expect_eq(asked.count, 2);
	cr_expect_str_eq(asked.left[0].name, "nvme1");
	cr_expect_str_eq(asked.left[1].name, "nvme2");
	/* Two looks that find nothing, then it is sure. */
	answer = (struct attach_sweep_info){0};
	expect_sweep_after(2 * BORROWED_FIRST_SWEEP_MS - 1000);
	cr_expect_eq(asked.count, 0);
	cr_expect(b->unsure);
	expect_sweep_after(BORROWED_SWEEP_MS - 1000);
	cr_expect(!b->unsure);
	expect_no_sweep();
	/* Until a call fails half way. */
	borrows_doubt(b);
	cr_expect(b->unsure);
	expect_sweep_after(BORROWED_SWEEP_MS);
	cr_expect(b->unsure);
	borrows_doubt(b); /* which begins anew, and does not put off what is due */
	expect_sweep_after(BORROWED_SWEEP_MS - 1000);
	cr_expect(b->unsure);
	expect_sweep_after(BORROWED_SWEEP_MS - 1000);
	cr_expect(!b->unsure);
	expect_no_sweep();
}

Test(borrowed, a_look_that_fails_says_nothing)
{
	borrows_sweep(b);
	answer.count = 1;
	answer.err.code = ERR_INTERNAL;
	expect_sweep_after(BORROWED_FIRST_SWEEP_MS);
	answer.err.code = ERR_OK;
	sweep_res = -EIO;
	for (unsigned i = 0; i < 4; i++) {
		expect_sweep_after(2 * BORROWED_FIRST_SWEEP_MS - 1000);
		cr_expect_eq(asked.count, 0);
	}
	cr_expect(b->unsure);
	answer.count = 0;
	answer.err.code = ERR_INTERNAL;
	sweep_res = 0;
	expect_sweep_after(2 * BORROWED_FIRST_SWEEP_MS - 1000);
	expect_sweep_after(2 * BORROWED_FIRST_SWEEP_MS - 1000);
	cr_expect(b->unsure);
}

Test(borrowed, where_nothing_connects_nothing_is_left)
{
	check_res = -ENOENT;
	borrows_sweep(b);
	cr_expect(!b->unsure);
	expect_no_sweep();
	cr_expect_eq(sweeps, 0);
}

Test(borrowed, nothing_is_swept_while_a_call_connects)
{
	borrows_sweep(b);
	b->busy = 1;
	sim_pass_ms(reactor.ring, 4 * BORROWED_FIRST_SWEEP_MS + 1000);
	cr_expect_eq(sweeps, 0);
	b->busy = 0;
	sim_pass_ms(reactor.ring, BORROWED_FIRST_SWEEP_MS);
	cr_expect_eq(sweeps, 1);
}

/* As long as there is any: its device may end. */
Test(borrowed, those_whose_device_has_ended_are_forgotten)
{
	put("a", 1);
	put("b", 2);
	put("c", 3);
	ended_minor = 1;
	borrows_sweep(b);
	for (unsigned i = 0; i < 6; i++)
		sim_pass_ms(reactor.ring, BORROWED_SWEEP_MS);
	cr_expect(!b->unsure);
	cr_expect_gt(sweeps, 4, "and on");
	cr_expect_not_null(borrows_find(b, "a"), "nobody has looked");
	answer.ended_covers = 1;
	sim_pass_ms(reactor.ring, BORROWED_SWEEP_MS + 1000);
	cr_expect_null(borrows_find(b, "a"));
	cr_expect_not_null(borrows_find(b, "b"), "how that is nobody knows");
	cr_expect_not_null(borrows_find(b, "c"));
}

static unsigned quiets;
static void on_quiet(void *arg)
{
	cr_expect_eq(arg, &quiets);
	cr_expect(borrows_quiet(b));
	quiets++;
}

Test(borrowed, who_drains_waits_for_a_sweep_that_is_under_way)
{
	cr_expect(borrows_quiet(NULL));
	cr_expect(borrows_quiet(b));
	borrows_sweep(b);
	while (borrows_quiet(b))
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	borrows_drain(b, on_quiet, &quiets);
	cr_expect_eq(quiets, 0);
	sim_pass_ms(reactor.ring, BORROWED_FIRST_SWEEP_MS);
	cr_expect_eq(quiets, 1);
	cr_expect_eq(sweeps, 1);
	borrows_doubt(b);
	expect_no_sweep();
	cr_expect_eq(quiets, 1);
}

Test(borrowed, no_sweep_begins_while_all_ends)
{
	borrows_sweep(b);
	borrows_drain(b, on_quiet, &quiets);
	expect_no_sweep();
	cr_expect_eq(sweeps, 0);
	cr_expect_eq(quiets, 0);
}
