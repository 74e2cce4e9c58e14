/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who wants a thin pool, and who uses what is in one: what they are told while there is none, while
 * the driver shuts down, and when it went away just now. And what images have in it.
 */
#include "thin_world.h"

#include "pool/raw_measure.h"
#include "pool/thin_steps.h"

/* ---- wishes ---- */

/* Of a new volume, or of one that is there. */
struct wish {
	struct op op;
	struct pool *pool;
	struct thin_wait wait;
	bool uses, ended;
};

static struct wish *wish_of(struct op *op)
{
	return container_of(op, struct wish, op);
}

static int wish_run(struct op *op)
{
	return thin_want(op, wish_of(op)->pool, &wish_of(op)->wait);
}

static int wish_end(struct op *op, int res)
{
	struct wish *w = wish_of(op);
	return w->uses ? thin_use_end(op, w->pool, &w->wait, res)
		       : thin_want_end(op, w->pool, &w->wait, res);
}

static const struct op_step wish_steps[] = {
	{"wish", .run = wish_run, .end = wish_end},
	{NULL},
};

static void on_wish_end(struct op *op)
{
	wish_of(op)->ended = true;
}

static void start(struct fixture *f, struct wish *w, bool uses)
{
	*w = (struct wish){.pool = f->pool, .uses = uses};
	op_init(&w->op, &f->reactor, "wish", wish_steps, on_wish_end);
	op_start(&w->op);
}

static void ends(struct fixture *f, struct wish *w, enum err_code code, const char *part)
{
	while (!w->ended)
		fixture_turn(f);
	cr_assert_eq(w->op.err.code, code, "%d: %s", w->op.err.code, w->op.err.message);
	says(w->op.err.message, part);
}

static void wish(struct fixture *f, bool uses, enum err_code code, const char *part)
{
	struct wish w;
	start(f, &w, uses);
	ends(f, &w, code, part);
}

static unsigned waiting(const struct fixture *f)
{
	unsigned count = 0;
	if (f->pool->thin_keep != NULL)
		list_for_each (l, &f->pool->thin_keep->waiting)
			count++;
	return count;
}

/* Who waits ends with the driver, and who comes then does not wait. */
Test(thin_wanted, while_the_driver_shuts_down, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	struct wish both[2];
	open_sim(&f, &sim, 81);
	start(&f, &both[0], false);
	start(&f, &both[1], true);
	while (waiting(&f) < 2)
		fixture_turn(&f);
	pools_drain(f.pools);
	cr_assert_eq(waiting(&f), 0);
	ends(&f, &both[0], ERR_UNAVAILABLE, "the driver shuts down; try again");
	ends(&f, &both[1], ERR_UNAVAILABLE, "the driver shuts down; try again");
	wish(&f, false, ERR_UNAVAILABLE, "the driver shuts down; try again");
	close_thin(&f);
}

/* A volume can be used in one that takes no new ones. */
Test(thin_wanted, one_that_has_failed, .timeout = 100)
{
	static const char *const words[] = {
		"Fail", "0 1/2 1/128 - ro no_discard_passdown queue_if_no_space - 64"};
	static const char *const told[] = {"has failed: see", "is read-only, its metadata"};
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 82);
	wish(&f, false, ERR_OK, "");
	wish(&f, true, ERR_OK, "");
	for (unsigned i = 0; i < 2; i++) {
		fake_thin_pool_words = words[i];
		set_open(1);
		look(&f);
		wish(&f, false, ERR_UNAVAILABLE, told[i]);
		wish(&f, true, ERR_OK, "");
	}
	fake_thin_pool_words = NULL;
	set_open(0);
	forget_activity(&f);
	wish(&f, false, ERR_OK, "");
	close_thin(&f);
}

/* With the reason why not, and its code. */
Test(thin_wanted, one_that_cannot_be_made, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 83);
	for (unsigned uses = 0; uses < 2; uses++) {
		fake_thin_absent = true;
		wish(&f, uses, ERR_PRECONDITION, "thin");
		cr_assert_eq(waiting(&f), 0);
		fake_thin_absent = false;
		forget_activity(&f);
		wish(&f, uses, ERR_OK, "");
		fixture_close_pools(&f);
		fake_dm_reboot(true);
		fake_thin_absent = true;
		raw_open_pools(&f);
		fixture_settle(&f);
		cr_assert_eq(f.pool->raw->thin.life, THIN_DOWN);
		forget_activity(&f);
	}
	fake_thin_absent = false;
	close_thin(&f);
}

static void lose_pool(struct fixture *f)
{
	f->pool->life = POOL_AWAY;
	strcpy(f->pool->why, "pool p is away");
}

/* Before they come, and while they wait. */
Test(thin_wanted, of_a_pool_that_is_lost, .timeout = 100)
{
	for (unsigned uses = 0; uses < 2; uses++) {
		struct fixture f;
		struct ring_sim sim;
		open_sim(&f, &sim, 84);
		lose_pool(&f);
		wish(&f, uses, ERR_UNAVAILABLE, "pool p is away");
		f.pool->life = POOL_SERVED;
		act_before(&f, "look", lose_pool);
		wish(&f, uses, ERR_UNAVAILABLE, "pool p is away");
		f.pool->life = POOL_SERVED;
		fixture_settle(&f);
		wish(&f, uses, ERR_OK, "");
		close_thin(&f);
	}
}

static struct wish late;

static void come_late(struct fixture *f)
{
	start(f, &late, false);
}

/* It is made again at once. */
Test(thin_wanted, one_that_goes_just_now, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 85);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	remove_named(&f, "v");
	act_before(&f, "retire", come_late);
	for (unsigned i = 0; i < 100000 && ahead.step != NULL; i++)
		fixture_turn(&f);
	cr_assert_null(ahead.step);
	ends(&f, &late, ERR_OK, "");
	cr_assert_eq(f.pool->raw->thin.life, THIN_UP);
	check_grown(&f);
	close_thin(&f);
}

/* ---- what an image has ---- */

static void measured(struct fixture *f, int want, uint64_t want_bytes)
{
	struct raw_measures all;
	struct raw_measure one;
	uint64_t bytes = 0;
	raw_measures_init(&all, f->pool);
	raw_measure_put(&one, find(f, "v"));
	cr_assert_eq(raw_measures_ask(&all, &one, &bytes), want);
	cr_assert_eq(bytes, want_bytes);
	raw_measures_free(&all);
}

/* Where no device says it the metadata do, unless they are damaged. */
Test(thin_wanted, what_an_image_has, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	struct raw_measure one;
	uint8_t node[META_BLOCK];
	open_sim(&f, &sim, 86);
	struct record rec = thin_volume("v", 6);
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	measured(&f, -ENXIO, 0);
	const uint64_t five[][2] = {{raw_map(&f, "volumes/v").thin_id, 5}};
	meta_write_node(node, 1, true, META_DETAILS, five, 1);
	write_metadata(&f, 1, node);
	measured(&f, 0, (uint64_t)5 * new_super.block_bytes);
	(void)fixture_room(&f);
	cr_assert_eq(find(&f, "v")->allocated_bytes, (uint64_t)5 * new_super.block_bytes);
	memset(node, 0x55, sizeof(node));
	write_metadata(&f, 1, node);
	measured(&f, -EBADMSG, 0);
	refuse_dm(0);
	measured(&f, -EMFILE, 0);
	cr_assert(dm_was_refused());
	raw_measure_put(&one, raw_make_volume(&f, "thick", 4));
	cr_assert(one.id == 0 && one.uuid[0] == '\0');
	close_thin(&f);
}
