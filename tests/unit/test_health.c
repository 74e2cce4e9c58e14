/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of a volume: order, words, times; and when a pool is full. */
#include "csi/health.h"
#include "node/health.h"
#include "node/limit.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/presence.h"
#include "pool/private.h"
#include "pool/raw_thin.h"
#include "sim_time.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1ULL << 20)

static struct ring_sim sim;
static struct reactor reactor;
static struct pools pools;
static struct pool pool;
static struct node *node;
static struct arena *arena;
static struct record record;
static struct pool_object volume;
static struct node_condition found[NODE_CONDITION_KINDS];

static void setup(void)
{
	cr_assert_eq(ring_sim_open(&reactor.ring, &sim), 0);
	cr_assert_eq(helpers_open(&reactor.helpers, reactor.ring, NULL, 0), 0);
	pools.reactor = &reactor;
	pool = (struct pool){.pools = &pools, .name = "default", .path = "/pool"};
	strcpy(pool.uuid8, "01234567");
	sim_pass_ms(reactor.ring, 5);
	pool_enter(&pool, POOL_SERVED, "%s", "");
	cr_assert_eq(node_open(&node, &reactor, &pools), 0);
	record = (struct record){.kind = RECORD_VOLUME, .name = "pvc-1", .size_bytes = 64 * MIB};
	strcpy(record.random, "89abcdef");
	volume = (struct pool_object){.pool = &pool, .rec = &record, .key = "pvc-1"};
	arena = arena_new(0);
}

static void teardown(void)
{
	node_volume_free(volume.node);
	arena_unref(arena);
	node_close(node);
	helpers_close(reactor.helpers);
	ring_close(reactor.ring);
}

TestSuite(condition, .init = setup, .fini = teardown);

static unsigned look(void)
{
	memset(found, 0, sizeof(found));
	return node_volume_conditions(arena, node, &volume, found);
}

Test(condition, a_well_volume_has_none)
{
	cr_assert_eq(look(), 0);
	cr_assert_null(node_volume_abnormal(arena, node, &volume));
	cr_assert_not_null(node_volume_get(&volume));
	cr_assert_eq(look(), 0);
}

Test(condition, all_at_once_are_told_worst_first_and_each_once)
{
	struct node_volume *nv = node_volume_get(&volume);
	struct node_health *h = &nv->health;
	strcpy(nv->dev.path, "/dev/loop7");
	sim_pass_ms(reactor.ring, 1000);
	uint64_t now_ns = ring_now_ns(reactor.ring);
	pool_image_found(&volume, POOL_IMAGE_MISSING);
	h->since_ns[NODE_DEVICE_GONE] = h->since_ns[NODE_HANGING] = h->since_ns[NODE_FS_SHUT_DOWN] =
		h->since_ns[NODE_FS_READ_ONLY] = h->since_ns[NODE_IO_ERRORS] = now_ns;
	h->since_ns[NODE_SLOW] = now_ns;
	h->slow_p99_ns = 1700000000;
	h->slow_ops = 5000;
	h->errors[PROBE_READ] = 3;
	h->errors[PROBE_WRITE] = 14;
	h->last_errno = EIO;
	pool_usage_see(&pool, 1000 * MIB, 1 * MIB);
	unsigned count = look();
	cr_assert_eq(count, 8);
	for (unsigned i = 0; i < count; i++) {
		cr_expect_eq(found[i].since_ns, now_ns);
		cr_expect(i == 0 || found[i - 1].kind < found[i].kind);
		cr_expect_not_null(strchr(found[i].reason, ' '));
		cr_expect_not_null(strstr(found[i].reason, " since 2"), "%s", found[i].reason);
	}
	cr_expect_eq(found[0].kind, NODE_IMAGE_MISSING);
	cr_expect_str_eq(node_volume_abnormal(arena, node, &volume), found[0].reason);
	const char *errors = NULL;
	for (unsigned i = 0; i < count; i++)
		if (found[i].kind == NODE_IO_ERRORS)
			errors = found[i].reason;
	cr_assert_not_null(errors);
	cr_expect_not_null(strstr(errors, "/dev/loop7"));
	cr_expect_not_null(strstr(errors, "3 read, 14 write"));
	cr_expect_not_null(strstr(errors, "Input/output error"));
}

/* A reason in full, without when it began. */
static const char *reason_of(enum node_condition_kind kind)
{
	static char reason[1024];
	unsigned count = look();
	for (unsigned i = 0; i < count; i++)
		if (found[i].kind == kind) {
			const char *since = strstr(found[i].reason, " since 2");
			size_t head = since == NULL ? strlen(found[i].reason)
						    : (size_t)(since - found[i].reason);
			snprintf(reason, sizeof(reason), "%.*s%s", (int)head, found[i].reason,
				since == NULL ? "" : since + strlen(" since 2026-01-01T00:00:00Z"));
			return reason;
		}
	return "none";
}

static void says(enum node_condition_kind kind, const char *want)
{
	cr_expect_str_eq(reason_of(kind), want);
}

/* Each reason has what is wrong, with its numbers, and the remedy. */
Test(condition, reasons_in_full)
{
	struct node_volume *nv = node_volume_get(&volume);
	struct node_health *h = &nv->health;
	strcpy(nv->dev.path, "/dev/loop7");
	sim_pass_ms(reactor.ring, 1000);
	for (unsigned kind = 0; kind < NODE_CONDITION_KINDS; kind++)
		says(kind, "none");
	for (unsigned kind = 0; kind < NODE_CONDITION_KINDS; kind++)
		h->since_ns[kind] = ring_now_ns(reactor.ring);
	h->slow_p99_ns = 1999999999;
	h->slow_ops = 5000;
	h->errors[PROBE_WRITE] = 14;
	says(NODE_DEVICE_GONE,
		"its device /dev/loop7 was taken away, and not by the driver: stage the volume anew (restart its pods)");
	h->other_file = true;
	says(NODE_DEVICE_GONE,
		"its device /dev/loop7 serves another file than its image, which the driver did not do: stage the volume anew (restart its pods)");
	says(NODE_HANGING,
		"a call on its file system has been hanging: look for its device and the pool's disk in the kernel log");
	says(NODE_FS_SHUT_DOWN,
		"the file system has shut down and answers nothing but errors: see the kernel log for the cause, then stage the volume anew (restart its pods)");
	says(NODE_FS_READ_ONLY,
		"the file system turned read-only: see the kernel log for the cause, then stage the volume anew (restart its pods), which checks it");
	says(NODE_IO_ERRORS,
		"I/O errors on /dev/loop7: 14 write, the last was not named; look for the pool's disk in the kernel log");
	h->errors[PROBE_READ] = 3;
	h->last_errno = EIO;
	says(NODE_IO_ERRORS,
		"I/O errors on /dev/loop7: 3 read, 14 write, the last was Input/output error; look for the pool's disk in the kernel log");
	says(NODE_SLOW,
		"the backing disk is slow: in the last minute 1% of 5000 reads and writes took 1999 ms or longer; look at the pool's disk");
	pool_image_found(&volume, POOL_IMAGE_MISSING);
	says(NODE_IMAGE_MISSING,
		"the image pvc-1 is not in pool default any more, and not by the driver: put it back, or restore it from a snapshot");
	pool_image_found(&volume, POOL_IMAGE_TRUNCATED);
	says(NODE_IMAGE_TRUNCATED,
		"the image pvc-1 is shorter than its record says, data is missing: restore it from a snapshot");
	pool_usage_see(&pool, 10000 * MIB, 290 * MIB);
	says(NODE_POOL_NEARLY_FULL,
		"pool default is nearly full (290 MiB free of 10000): delete volumes or snapshots, or grow its file system before writes fail");
	pool_usage_see(&pool, 10000 * MIB, 15 * MIB);
	says(NODE_POOL_FULL,
		"pool default is full (15 MiB free of 10000): writes to new blocks fail; delete volumes or snapshots, or grow its file system");
	nv->dev.attached = nv->dev.bare = true;
	says(NODE_LOOP_NODE, "none");
	cr_assert_eq(node_volume_add_mount(nv, "/m", false, false), 0);
	says(NODE_LOOP_NODE,
		"an earlier version published volume pvc-1 as the loop node /dev/loop7, which obeys whoever holds it: delete its pods, so that it is unstaged and staged again");
	nv->dev.bare = false;
	says(NODE_LOOP_NODE, "none");
	pool_enter(&pool, POOL_READ_ONLY, "it is read-only");
	says(NODE_POOL_SICK, "it is read-only (sick)");
	says(NODE_POOL_FULL, "none");
	volume.rec = NULL;
	says(NODE_QUARANTINED, "quarantined, damaged: look at it with ringvol check");
	volume.why = "a record of nothing";
	says(NODE_QUARANTINED, "quarantined, a record of nothing: look at it with ringvol check");
	cr_expect_eq(look(), 3, "its image, its pool and no more");
	volume.rec = &record;
}

/* What a pool on raw disks says of its thin pool. */
static bool is_raw;
static struct pool_thin_state thin_state;

bool __wrap_pool_is_raw(const struct pool *asked);
void __wrap_pool_thin_state(const struct pool *asked, struct pool_thin_state *ret);

bool __wrap_pool_is_raw(const struct pool *asked)
{
	cr_expect_eq(asked, &pool);
	return is_raw;
}

void __wrap_pool_thin_state(const struct pool *asked, struct pool_thin_state *ret)
{
	cr_expect_eq(asked, &pool);
	*ret = thin_state;
}

Test(condition, a_thin_pool_is_its_thin_volumes_affair)
{
	sim_pass_ms(reactor.ring, 1000);
	thin_state = (struct pool_thin_state){.wrong = true,
		.low = true,
		.unused_bytes = 5 * MIB + 4096,
		.why = "add a disk",
		.wrong_since_ns = ring_now_ns(reactor.ring),
		.low_since_ns = ring_now_ns(reactor.ring) - 1};
	says(NODE_THIN_POOL, "none");
	says(NODE_THIN_POOL_LOW, "none");
	is_raw = true;
	cr_expect_eq(look(), 2);
	cr_expect_eq(found[0].kind, NODE_THIN_POOL);
	cr_expect_eq(found[0].since_ns, thin_state.wrong_since_ns);
	cr_expect_eq(found[1].kind, NODE_THIN_POOL_LOW);
	cr_expect_eq(found[1].since_ns, thin_state.low_since_ns);
	says(NODE_THIN_POOL, "the thin pool of pool default cannot be used: add a disk");
	says(NODE_THIN_POOL_LOW,
		"the thin pool of pool default has 5 MiB unused and cannot be grown; when they are used up, writes to new blocks fail: delete volumes or snapshots, or add a disk with 'ringvol pool grow'");
	record.thick = true;
	cr_expect_eq(look(), 0);
	cr_expect_eq(node_pool_conditions(arena, node, &pool, found), 2);
	cr_expect_eq(found[0].kind, NODE_THIN_POOL);
	cr_expect_eq(found[1].kind, NODE_THIN_POOL_LOW);
	record.thick = false;
	thin_state.wrong = false;
	cr_expect_eq(look(), 1);
	thin_state = (struct pool_thin_state){.wrong = true};
	cr_expect_eq(look(), 1);
	cr_expect_eq(found[0].kind, NODE_THIN_POOL);
	cr_expect_null(strstr(found[0].reason, "since"), "%s", found[0].reason);
	thin_state.low = true;
	pool_enter(&pool, POOL_MUTE, "it hangs");
	cr_expect_eq(look(), 1, "what it was is not known any more");
	cr_expect_eq(found[0].kind, NODE_POOL_SICK);
	cr_expect_eq(node_pool_conditions(arena, node, &pool, found), 1);
}

Test(condition, limits_that_are_not_enforced)
{
	struct node_volume *nv = node_volume_get(&volume);
	struct node_limit limit = {.nv = nv};
	sim_pass_ms(reactor.ring, 1000);
	nv->limit = &limit;
	nv->health.since_ns[NODE_LIMIT_NOT_ENFORCED] = ring_now_ns(reactor.ring);
	says(NODE_LIMIT_NOT_ENFORCED, "none");
	strcpy(limit.why, "no cgroups");
	says(NODE_LIMIT_NOT_ENFORCED, "its I/O limits are not enforced: no cgroups");
	cr_expect_eq(found[0].since_ns, nv->health.since_ns[NODE_LIMIT_NOT_ENFORCED]);
	nv->limit = NULL;
}

Test(condition, out_of_memory_keeps_the_condition)
{
	struct arena *small = arena_new(8);
	pool_image_found(&volume, POOL_IMAGE_TRUNCATED);
	cr_assert_eq(node_volume_conditions(small, node, &volume, found), 1);
	cr_assert_str_eq(found[0].reason, node_condition_names[NODE_IMAGE_TRUNCATED]);
	arena_unref(small);
}

Test(condition, what_has_its_room_needs_none)
{
	pool_usage_see(&pool, 1000 * MIB, 1 * MIB);
	cr_assert_eq(look(), 1);
	cr_assert_eq(found[0].kind, NODE_POOL_FULL);
	record.thick = true;
	cr_assert_eq(look(), 0);
	volume.shared = true;
	cr_assert_eq(look(), 1);
}

Test(condition, a_pool_that_is_away_hides_how_full_it_was)
{
	pool_usage_see(&pool, 1000 * MIB, 1 * MIB);
	sim_pass_ms(reactor.ring, 70);
	pool_enter(&pool, POOL_AWAY, "pool default has gone from /pool");
	cr_assert_eq(look(), 1);
	cr_assert_eq(found[0].kind, NODE_POOL_MISSING);
	cr_assert_eq(found[0].since_ns, ring_now_ns(reactor.ring));
	cr_assert_eq(node_pool_conditions(arena, node, &pool, found), 1);
	cr_assert_not_null(strstr(found[0].reason, "has gone from /pool"));
}

static uint64_t away_ns;

static uint64_t away(const struct backend *backend)
{
	(void)backend;
	return away_ns;
}

Test(condition, who_serves_the_device_is_away)
{
	static const struct backend served = {
		.type = BACKEND_UBLK, .name = "made up", .away_since_ns = away};
	struct node_volume *nv = node_volume_get(&volume);
	backend_add(&served);
	record.device = BACKEND_UBLK;
	away_ns = 0;
	nv->dev.attached = true;
	cr_assert_eq(look(), 0);
	away_ns = ring_now_ns(reactor.ring);
	cr_assert_eq(look(), 1);
	cr_assert_eq(found[0].kind, NODE_DEVICE_UNSERVED);
	cr_assert_eq(found[0].since_ns, away_ns);
	nv->dev.attached = false;
	cr_assert_eq(look(), 0);
	backend_remove(&served);
}

/* The same moment has the same name, until the clock jumps; what was kept of it stays. */
Test(condition, the_clock_jumps)
{
	struct node_volume *nv = node_volume_get(&volume);
	sim_pass_ms(reactor.ring, 60000);
	nv->health.since_ns[NODE_FS_READ_ONLY] = ring_now_ns(reactor.ring);
	sim_pass_ms(reactor.ring, 30000);
	/* The ring's clock is virtual: to the wall's it goes too fast, which is a jump. */
	node_follow_clock(node);
	cr_assert_eq(look(), 1);
	struct node_condition first = found[0];
	int64_t age_s = (int64_t)time(NULL) - first.since_unix;
	cr_assert(age_s >= 29 && age_s <= 32, "%lld", (long long)age_s);
	node->clock_zero_unix += 1; /* a second off is no jump */
	node_follow_clock(node);
	cr_assert_eq(look(), 1);
	cr_assert_eq(found[0].since_unix, first.since_unix + 1);
	node->clock_zero_unix -= 86400; /* as if the clock had been set a day ahead meanwhile */
	node_follow_clock(node);
	cr_assert_eq(look(), 1);
	cr_assert_eq(found[0].since_ns, first.since_ns);
	age_s = (int64_t)time(NULL) - found[0].since_unix;
	cr_assert(age_s >= 29 && age_s <= 32, "%lld", (long long)age_s);
}

Test(condition, a_pool_fills_and_empties_without_flapping)
{
	static const struct {
		uint64_t free_mib;
		enum pool_usage_level level;
	} steps[] = {{1000, POOL_ROOMY}, {310, POOL_ROOMY}, {290, POOL_NEARLY_FULL},
		{350, POOL_NEARLY_FULL}, {410, POOL_ROOMY}, {290, POOL_NEARLY_FULL},
		{15, POOL_FULL}, {17, POOL_FULL}, {31, POOL_FULL}, {33, POOL_NEARLY_FULL},
		{0, POOL_FULL}, {5000, POOL_ROOMY}};
	uint64_t since_ns = 0;
	enum pool_usage_level was = POOL_ROOMY;
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		sim_pass_ms(reactor.ring, 1000);
		pool_usage_see(&pool, 10000 * MIB, steps[i].free_mib * MIB);
		if (steps[i].level != was)
			since_ns = ring_now_ns(reactor.ring);
		was = steps[i].level;
		cr_assert_eq(pool_usage(&pool)->level, was, "step %u", i);
		cr_assert_eq(pool_usage(&pool)->since_ns, since_ns, "step %u", i);
	}
	/* A small one: 16 MiB would be a quarter of it. */
	pool_usage_see(&pool, 64 * MIB, 3 * MIB);
	cr_assert_eq(pool_usage(&pool)->level, POOL_ROOMY);
	pool_usage_see(&pool, 64 * MIB, MIB / 8);
	cr_assert_eq(pool_usage(&pool)->level, POOL_FULL);
}

/* ---- as CSI 1.13 has it ---- */

#define STATUS(name) CSI__V1__VOLUME_HEALTH_ERROR_TYPE__##name

/* One after the other, each with its name, its sentence, and how bad it is for who uses it. */
Test(condition, status_of_each_kind)
{
	static const struct {
		enum node_condition_kind last; /* of those in a row that are alike */
		Csi__V1__VolumeHealthErrorType status;
	} all[] = {{NODE_IMAGE_TRUNCATED, STATUS(DATA_LOSS)},
		{NODE_FS_SHUT_DOWN, STATUS(INACCESSIBLE)},
		{NODE_LIMIT_NOT_ENFORCED, STATUS(DEGRADED)},
		{NODE_CONDITION_KINDS, STATUS(UNKNOWN_VOLUME_HEALTH_TYPE)}};
	struct node_condition conditions[NODE_CONDITION_KINDS];
	char reasons[NODE_CONDITION_KINDS][16];
	for (unsigned kind = 0; kind < NODE_CONDITION_KINDS; kind++) {
		snprintf(reasons[kind], sizeof(reasons[kind]), "reason %u", kind);
		conditions[kind] = (struct node_condition){
			.kind = (enum node_condition_kind)kind, .reason = reasons[kind]};
	}
	Csi__V1__VolumeHealth *health =
		csi_health_of(arena, "an id", conditions, NODE_CONDITION_KINDS);
	cr_assert_not_null(health);
	cr_expect_eq(health->volume_id.len, 5);
	cr_expect_arr_eq(health->volume_id.data, "an id", 5);
	cr_assert_eq(health->n_health_statuses, NODE_CONDITION_KINDS);
	for (unsigned kind = 0, i = 0; kind < NODE_CONDITION_KINDS; kind++) {
		const Csi__V1__VolumeHealth__VolumeHealthEntry *entry =
			health->health_statuses[kind];
		i += kind > (unsigned)all[i].last;
		cr_expect_eq(entry->status, all[i].status, "%s", node_condition_names[kind]);
		cr_expect_str_eq((const char *)entry->reason.data, node_condition_names[kind]);
		cr_expect_str_eq((const char *)entry->message.data, reasons[kind]);
	}
	health = csi_health_of(arena, "", conditions, 0);
	cr_assert_not_null(health);
	cr_expect_eq(health->n_health_statuses, 0);
}
