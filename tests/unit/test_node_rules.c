/* SPDX-License-Identifier: Apache-2.0 */
/* What the node decides from memory alone: whose a strange device may be, what may be shared, and
 * which volumes cannot be held still together. */
#include "base/log.h"
#include "node/group_hold.h"
#include "node/limit.h"
#include "node/limits.h"
#include "node/node.h"
#include "node/owner.h"
#include "node/source.h"
#include "node/strange.h"
#include "node/volume.h"
#include "pool/departure.h"
#include "pool/index.h"
#include "pool/private.h"
#include "sim_time.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UUID8_HERE  "01234567"
#define UUID8_OTHER "89abcdef"
#define RANDOM      "0000beef"
#define MIB         (UINT64_C(1) << 20)

static struct ring_sim sim;
static struct reactor reactor;
static struct pools pools;
static struct pool here, other; /* the pool of a tag, and one more */
static struct node *node;

static void open_pool(struct pool *pool, const char *uuid8)
{
	*pool = (struct pool){.pools = &pools, .name = "p", .path = "/p"};
	strcpy(pool->uuid8, uuid8);
	list_init(&pool->departures);
	pools.at[pools.count++] = pool;
	pool_enter(pool, POOL_SERVED, "%s", "");
}

static void setup(void)
{
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	cr_assert_eq(ring_sim_open(&reactor.ring, &sim), 0);
	cr_assert_eq(helpers_open(&reactor.helpers, reactor.ring, NULL, 0), 0);
	pools.reactor = &reactor;
	sim_pass_ms(reactor.ring, 5);
	open_pool(&here, UUID8_HERE);
	open_pool(&other, UUID8_OTHER);
	cr_assert_eq(node_open(&node, &reactor, &pools), 0);
}

static void clear(struct pool *pool)
{
	for (struct pool_object *o; (o = pool_next_object(pool, RECORD_VOLUME, "")) != NULL;) {
		pool_index_remove(o);
		pool_object_free(o);
	}
	free(pool->index[RECORD_VOLUME].at);
	pool->index[RECORD_VOLUME] = (struct pool_index){0};
}

static void teardown(void)
{
	node_close(node);
	clear(&here);
	clear(&other);
	helpers_close(reactor.helpers);
	ring_close(reactor.ring);
}

TestSuite(node_rules, .init = setup, .fini = teardown);

/* born: the pool that it was made in, "": this one. random NULL: its record cannot be read. */
static struct pool_object *add(
	struct pool *pool, const char *name, const char *random, const char *born)
{
	struct record rec = {
		.kind = RECORD_VOLUME,
		.name = name,
		.size_bytes = 8 * MIB,
		.fs = FSIMG_EXT4,
		.mkfs_options = "",
		.source_id = "",
		.family = "",
		.claim = "",
		.born = born,
	};
	struct pool_found found = {.kind = RECORD_VOLUME};
	snprintf(rec.random, sizeof(rec.random), "%s", random != NULL ? random : "");
	snprintf(found.key, sizeof(found.key), "%s", name);
	if (random != NULL)
		found.rec = record_new(&rec);
	cr_assert_eq(found.rec != NULL, random != NULL);
	struct pool_object *object = pool_index_insert(pool, &found);
	cr_assert_not_null(object);
	return object;
}

/* ---- a device with a tag that no volume owns ---- */

static void expect_kept(const char *words)
{
	const char *why = strange_why_keep(&pools, &here, RANDOM);
	cr_assert_not_null(why, "no '%s'", words);
	cr_expect_not_null(strstr(why, words), "'%s' has no '%s'", why, words);
}

static void expect_gone(void)
{
	const char *why = strange_why_keep(&pools, &here, RANDOM);
	cr_expect_null(why, "%s", why);
}

Test(node_rules, the_tag_of_a_volume_that_nobody_has)
{
	expect_gone();
	add(&here, "a", "0000cafe", "");
	add(&other, "b", RANDOM, ""); /* the tag names the pool, too */
	expect_gone();
	add(&here, "c", RANDOM, UUID8_OTHER); /* its tag names the other pool */
	expect_gone();
	add(&here, "d", RANDOM, "");
	expect_kept("it has the tag of a volume, and is not bound to its image");
}

Test(node_rules, the_tag_of_a_volume_that_has_moved)
{
	add(&other, "a", "0000cafe", "");
	add(&other, "b", "0000cafe", UUID8_HERE);
	expect_gone();
	add(&other, "c", RANDOM, UUID8_HERE);
	expect_kept("it has the tag of a volume, and is not bound to its image");
}

Test(node_rules, the_tag_may_be_of_a_record_that_cannot_be_read)
{
	add(&other, "a", NULL, "");
	expect_gone(); /* nothing has ever moved there */
	add(&other, "b", "0000cafe", UUID8_HERE);
	expect_kept("one of the pool's volumes whose records cannot be read");
	clear(&other);
	expect_gone();
	add(&here, "a", NULL, "");
	expect_kept("one of the pool's volumes whose records cannot be read");
}

Test(node_rules, the_tag_may_be_of_a_pool_that_is_away)
{
	static const char away[] = "moved to a pool which is not here now";
	pool_enter(&other, POOL_MUTE, "%s", "it hangs");
	expect_gone(); /* what it has is known */
	add(&other, "a", "0000cafe", UUID8_HERE);
	expect_kept(away);
	clear(&other);
	other.uuid8[0] = '\0'; /* nobody has read it */
	expect_kept(away);
	pool_enter(&other, POOL_SERVED, "%s", "");
	expect_gone();
	pool_enter(&here, POOL_MUTE, "%s", "it hangs");
	expect_kept(away);
}

Test(node_rules, the_tag_of_a_volume_that_has_left)
{
	struct pool_departure left = {.id = UUID8_HERE ".a.0000cafe"};
	pool_departure_enter(&here, &left);
	expect_gone();
	strcpy(left.id, UUID8_HERE ".a." RANDOM);
	expect_kept("its volume has moved to another pool");
	left.why = "damaged";
	strcpy(left.id, "");
	expect_kept("its volume has moved to another pool");
	list_remove(&left.link);
	expect_gone();
}

/* ---- whose a device is, by its tag ---- */

Test(node_rules, whose_a_tag_may_be)
{
	static const struct {
		const char *tag, *id;
		bool may_be;
	} tags[] = {
		{"ringvol:01234567:0000beef", "01234567.pvc-1.0000beef", true},
		{"ringvol:01234567:0000beef", "01234567.pvc-2.0000beef", true},
		{"ringvol:01234567:0000beef", "01234568.pvc-1.0000beef", false},
		{"ringvol:01234567:0000beef", "01234567.pvc-1.0000beee", false},
		{"ringvol:01234567:0000beef", "no id", true}, /* it cannot be told */
		{"ringvol:odd", "01234567.pvc-1.0000beef", true},
		{"another:odd", "01234567.pvc-1.0000beef", false},
		{"ringvol", "01234567.pvc-1.0000beef", false},
		{"", "01234567.pvc-1.0000beef", false},
		{"", "no id", false},
	};
	for (unsigned i = 0; i < sizeof(tags) / sizeof(tags[0]); i++) {
		struct backend_dev dev = {.attached = true};
		snprintf(dev.tag, sizeof(dev.tag), "%s", tags[i].tag);
		cr_expect_eq(node_dev_may_be(&dev, tags[i].id), tags[i].may_be, "%u", i);
	}
}

Test(node_rules, whether_a_mount_is_of_the_device)
{
	const struct backend_dev dev = {.attached = true, .major = 7, .minor = 3};
	const struct mnt_info is = {.is_mount = true, .dev_major = 7, .dev_minor = 3};
	struct backend_dev away = dev;
	struct mnt_info info = is;
	struct mnt_on_req on;
	cr_expect(node_info_is_dev(&info, &dev));
	info.dev_major = 8;
	cr_expect(!node_info_is_dev(&info, &dev));
	info = is;
	info.dev_minor = 4;
	cr_expect(!node_info_is_dev(&info, &dev));
	info = is;
	info.is_mount = false;
	cr_expect(!node_info_is_dev(&info, &dev));
	away.attached = false;
	cr_expect(!node_info_is_dev(&is, &away));
	node_on(&on, "/a/b", &dev);
	cr_expect_str_eq(on.at.path, "/a/b");
	cr_expect_eq(on.dev_major, 7);
	cr_expect_eq(on.dev_minor, 3);
}

/* ---- what is shared ---- */

Test(node_rules, what_may_be_shared_and_what_room_that_takes)
{
	struct pool_object *object = add(&here, "a", RANDOM, "");
	struct record *rec = (struct record *)(uintptr_t)object->rec;
	cr_expect(!node_can_share(object, false), "the file system cannot");
	here.features.reflink = true;
	cr_expect(node_can_share(object, false));
	cr_expect(!node_can_share(object, true), "a thick one has all blocks of its own");
	rec->erase = RECORD_ERASE_ZERO;
	cr_expect(!node_can_share(object, false), "its bytes are to go with it");
	rec->erase = RECORD_ERASE_NONE;
	rec->unformatted = true;
	cr_expect(!node_can_share(object, false), "it has none");
	rec->unformatted = false;

	/* What is shared is owed again as soon as either is written to, once. */
	object->allocated_bytes = 3 * MIB;
	cr_expect_eq(node_share_room(object), 3 * MIB);
	object->allocated_bytes = 9 * MIB; /* with what the file system needs to find it */
	cr_expect_eq(node_share_room(object), 8 * MIB);
	struct node_source source = {.object = object, .share = true};
	cr_expect_eq(node_source_shared_room(&source), 8 * MIB);
	source.share = false;
	cr_expect_eq(node_source_shared_room(&source), 0);
	object->shared = true;
	cr_expect_eq(node_share_room(object), 0);
	object->shared = false;
	object->kind = RECORD_SNAPSHOT;
	cr_expect_eq(node_share_room(object), 0);
	object->kind = RECORD_VOLUME;
}

Test(node_rules, how_far_a_copy_has_come)
{
	struct node_source source = {0};
	uint64_t done = 0, total = 0;
	cr_expect(!node_source_progress(&source, &done, &total), "it has not begun");
	source.clone.copy.size = 10;
	source.clone.copy.looked_bytes = 4;
	cr_expect(node_source_progress(&source, &done, &total));
	cr_expect_eq(done, 4);
	cr_expect_eq(total, 10);
	node_source_stop(&source);
	cr_expect(source.stopped && source.clone.copy.stop);
}

/* ---- groups ---- */

static void use(struct pool_object *object, enum fsimg_type fs, uint32_t minor)
{
	struct node_volume *nv = node_volume_get(object);
	struct backend_dev dev = {.attached = true, .major = 7, .minor = minor};
	((struct record *)(uintptr_t)object->rec)->fs = fs;
	cr_assert_not_null(nv);
	node_volume_set_dev(node, nv, &dev);
	cr_assert_eq(node_volume_add_mount(nv, "/m", false, false), 0);
}

static bool ended;
static void on_end(struct op *op)
{
	(void)op;
	ended = true;
}

Test(node_rules, two_block_volumes_in_use_cannot_be_held_together)
{
	static const char *const names[] = {"free", "mounted", "block-1", "loose", "block-2"};
	struct node_group_member members[5] = {0};
	struct node_group_hold hold;
	for (unsigned i = 0; i < 5; i++)
		members[i] = (struct node_group_member){
			.volume = add(&here, names[i], RANDOM, ""), .share = true};
	use(members[1].volume, FSIMG_EXT4, 900001);
	use(members[2].volume, FSIMG_NONE, 900002);
	use(members[4].volume, FSIMG_NONE, 900004);
	node_group_ready_init(&hold, node, members, 5);
	hold.op.on_end = on_end;
	op_start(&hold.op);
	while (!ended)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	cr_expect_eq(hold.op.err.code, ERR_PRECONDITION);
	cr_expect_not_null(
		strstr(hold.op.err.message, "block volumes block-1 and block-2 are both"), "%s",
		hold.op.err.message);
	for (unsigned i = 1; i < 5; i++) {
		struct node_volume *nv = node_volume_find(members[i].volume);
		if (nv != NULL) {
			node_volume_remove_mount(nv, "/m");
			node_volume_clear_dev(node, nv);
		}
	}
}

/* ---- limits ---- */

static struct {
	unsigned calls;
	uint64_t iops; /* that are to be in force */
	enum err_code code;
	int res;
	struct op *waits; /* for its answer */
} limiter;

static int fake_limit(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	limiter.calls++;
	limiter.iops = req->limits.read_iops;
	req->dev.limits = req->limits;
	if (limiter.code != ERR_OK)
		err_set(&req->err, limiter.code, "no such luck");
	limiter.waits = op;
	return op_wait(op);
}

/* What a look finds wrong; "": nothing. */
static const char *look_at_limits(struct pool_object *volume, bool lift)
{
	struct node_limits_look look;
	node_limits_look_init(&look, node, volume);
	look.lift = lift;
	look.op.on_end = on_end;
	ended = false;
	op_start(&look.op);
	while (!ended) {
		struct op *waits = limiter.waits;
		limiter.waits = NULL;
		if (waits != NULL)
			op_complete(waits, limiter.res);
		else
			cr_assert_eq(ring_turn(reactor.ring, true), 0);
	}
	cr_expect_eq(look.op.err.code, ERR_OK, "it ends well: %s", look.op.err.message);
	const struct node_volume *nv = node_volume_find(volume);
	const char *why = nv->limit != NULL ? nv->limit->why : "";
	cr_expect_eq(nv->health.since_ns[NODE_LIMIT_NOT_ENFORCED] != 0, why[0] != '\0');
	return why;
}

Test(node_rules, limits_that_the_data_process_keeps)
{
	const struct backend *was = backend_get(BACKEND_LOOP);
	struct backend fake = {
		.type = BACKEND_LOOP, .name = "loop", .devices_max = 9, .limit = fake_limit};
	struct pool_object *volume = add(&here, "a", RANDOM, "");
	struct record *rec = (struct record *)(uintptr_t)volume->rec;
	if (was != NULL)
		backend_remove(was);
	backend_add(&fake);
	cr_assert_eq(node_limits_open(node, NULL), 0);
	use(volume, FSIMG_EXT4, 900001);
	struct node_volume *nv = node_volume_find(volume);
	cr_expect(!node_limits_matter(nv));
	rec->limits.read_iops = 500;
	cr_expect(node_limits_matter(nv));
	cr_expect_str_empty(look_at_limits(volume, false));
	cr_expect_eq(limiter.calls, 1);
	cr_expect_eq(limiter.iops, 500);
	cr_expect_eq(nv->dev.limits.read_iops, 500);
	static const struct {
		enum err_code code;
		const char *why;
	} refusals[] = {
		{ERR_UNIMPLEMENTED, "the data process is of an older version, which has no limits"},
		{ERR_INTERNAL, "no such luck"},
		{ERR_UNAVAILABLE, ""}, /* which is a condition by itself */
	};
	limiter.res = -EIO;
	for (unsigned i = 0; i < 3; i++) {
		limiter.code = refusals[i].code;
		const char *why = look_at_limits(volume, false);
		cr_expect_eq(strncmp(why, refusals[i].why, strlen(refusals[i].why)), 0, "%s", why);
		cr_expect_eq(why[0] != '\0', refusals[i].why[0] != '\0', "%s", why);
	}
	cr_expect_eq(nv->dev.limits.read_iops, 500, "as they were");
	/* None is wanted any more: an old process has none. */
	rec->limits.read_iops = 0;
	limiter.code = ERR_UNIMPLEMENTED;
	cr_expect_str_empty(look_at_limits(volume, false));
	cr_expect_null(nv->limit);
	cr_expect(node_limits_matter(nv), "they are in force still");
	/* They are taken back before the record has none. */
	rec->limits.read_iops = 500;
	limiter.code = ERR_OK;
	limiter.res = 0;
	cr_expect_str_empty(look_at_limits(volume, true));
	cr_expect_eq(limiter.iops, 0);
	cr_expect_eq(nv->dev.limits.read_iops, 0);
	/* A device that is let go is left alone. */
	unsigned before = limiter.calls;
	nv->detaching = true;
	(void)look_at_limits(volume, false);
	cr_expect_eq(limiter.calls, before);
	nv->detaching = false;
	rec->limits.read_iops = 0;
	cr_expect_str_empty(look_at_limits(volume, false));
	cr_expect_null(nv->limit, "it is over");
	node_volume_remove_mount(nv, "/m");
	node_volume_clear_dev(node, nv);
	node_limits_close(node);
	backend_remove(&fake);
	if (was != NULL)
		backend_add(was);
}

Test(node_rules, limits_where_cgroups_are_not_used)
{
	struct pool_object *volume = add(&here, "a", RANDOM, "");
	struct record *rec = (struct record *)(uintptr_t)volume->rec;
	cr_assert_eq(node_limits_open(node, NULL), 0);
	use(volume, FSIMG_EXT4, 900001);
	struct node_volume *nv = node_volume_find(volume);
	rec->limits.write_bandwidth = 1000;
	cr_expect_str_eq(
		look_at_limits(volume, false), "cgroups are not used here (--cgroup-root off)");
	cr_expect_str_empty(look_at_limits(volume, true), "none is to be in force");
	rec->limits.write_bandwidth = 0;
	cr_expect_str_empty(look_at_limits(volume, false));
	cr_expect_null(nv->limit);
	node_volume_remove_mount(nv, "/m");
	node_volume_clear_dev(node, nv);
	node_limits_close(node);
}
