/* SPDX-License-Identifier: Apache-2.0 */
/* The watch on volumes that nobody asks for: that each is looked at, together with others, and how
 * it goes when such a call does not come back. */
#include "base/log.h"
#include "csi/volume_op.h"
#include "node/checkup.h"
#include "node/health.h"
#include "pool/index.h"
#include "pool/private.h"
#include "sim_time.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	VOLUMES = 40,
	MAJOR = 7,
	MINOR_BASE = 900000, /* no machine has these; their devices read as gone */
	PERIOD_MS = 2 * NODE_CHECKUP_MS + 4 * NODE_ROUND_MS, /* of looks, from the start on */
};

static struct ring_sim sim;
static struct reactor reactor;
static struct pools pools;
static struct pool pool;
static struct csi *csi;
static struct pool_object *volumes[VOLUMES];

/* What the helpers are asked, and what they say. */
static unsigned alone_calls, many_calls, paths_asked;
static bool asked_alone[VOLUMES], asked[VOLUMES];
static int many_res;
static unsigned reads, reads_overstay;

/* Uevents, as the kernel would say them; ENOBUFS: it had more than it could keep. */
static const struct uevent {
	const char *text;
	size_t len;
	int error;
} * uevents;

ssize_t __wrap_recv(int fd, void *to, size_t size, int flags);
const void *__wrap_probes_owner(struct probes *probes, uint32_t major, uint32_t minor);

ssize_t __wrap_recv(int fd, void *to, size_t size, int flags)
{
	(void)fd;
	(void)flags;
	errno = EAGAIN;
	if (uevents == NULL || (uevents->text == NULL && uevents->error == 0))
		return -1;
	const struct uevent *event = uevents++;
	errno = event->error;
	if (event->text == NULL)
		return -1;
	cr_assert_leq(event->len, size);
	memcpy(to, event->text, event->len);
	return (ssize_t)event->len;
}

/* Without BPF nobody keeps them. */
const void *__wrap_probes_owner(struct probes *probes, uint32_t major, uint32_t minor)
{
	(void)probes;
	if (major != MAJOR || minor < MINOR_BASE || minor >= MINOR_BASE + VOLUMES)
		return NULL;
	struct node_volume *nv = node_volume_find(volumes[minor - MINOR_BASE]);
	return nv != NULL ? &nv->probed : NULL;
}

/* What the probes have counted, and whose devices have failed since they were asked last. */
static struct probe_counters counters[VOLUMES];
static bool failed[VOLUMES], inexact, uncounted;

int __wrap_probes_read(
	struct probes *probes, uint32_t major, uint32_t minor, struct probe_counters *ret);
void __wrap_probes_each_failed(
	struct probes *probes, void (*each)(void *arg, const void *owner), void *arg);

int __wrap_probes_read(
	struct probes *probes, uint32_t major, uint32_t minor, struct probe_counters *ret)
{
	(void)probes;
	cr_assert_eq(major, MAJOR);
	cr_assert(minor >= MINOR_BASE && minor < MINOR_BASE + VOLUMES);
	*ret = counters[minor - MINOR_BASE];
	ret->exact = !inexact;
	return uncounted ? -ENOENT : 0;
}

void __wrap_probes_each_failed(
	struct probes *probes, void (*each)(void *arg, const void *owner), void *arg)
{
	static const struct probe_owner anothers = {.other = true};
	(void)probes;
	each(arg, NULL);
	each(arg, &anothers);
	for (unsigned i = 0; i < VOLUMES; i++) {
		const struct node_volume *nv = node_volume_find(volumes[i]);
		if (failed[i])
			each(arg, &nv->probed);
		failed[i] = false;
	}
}

static unsigned answer(const char *path, struct mnt_info *info)
{
	unsigned i;
	cr_assert_eq(sscanf(path, "/m/%u", &i), 1);
	*info = (struct mnt_info){
		.exists = true,
		.is_dir = true,
		.is_mount = true,
		.dev_major = MAJOR,
		.dev_minor = MINOR_BASE + i,
		.shut_down = i == 7,
	};
	paths_asked++;
	asked[i] = true;
	return i;
}

static int fake_stats(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_path_req *path = req;
	(void)req_len;
	alone_calls++;
	*resp_len = sizeof(struct mnt_info);
	asked_alone[answer(path->path, resp)] = true;
	return 0;
}

static int fake_stats_many(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_many_req *many = req;
	struct mnt_many_info *infos = resp;
	const char *path = many->paths;
	(void)req_len;
	many_calls++;
	if (many_res < 0)
		return many_res;
	for (unsigned i = 0; i < many->count; i++, path += strlen(path) + 1)
		(void)answer(path, &infos[i].info);
	*resp_len = many->count * sizeof(infos[0]);
	return 0;
}

static int fake_read(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	return ++reads <= reads_overstay ? -ETIMEDOUT : 0;
}

static helper_fn *const fake_calls[MNT_CALLS] = {
	[MNT_STATS] = fake_stats,
	[MNT_STATS_MANY] = fake_stats_many,
	[MNT_TRY_READ] = fake_read,
};

static void add_volume(unsigned i)
{
	char name[32], path[32];
	snprintf(name, sizeof(name), "pvc-%u", i);
	snprintf(path, sizeof(path), "/m/%u", i);
	struct record rec = {
		.kind = RECORD_VOLUME,
		.name = name,
		.size_bytes = 1 << 20,
		.fs = FSIMG_EXT4,
		.mkfs_options = "",
		.source_id = "",
		.family = "",
		.claim = "",
	};
	snprintf(rec.random, sizeof(rec.random), "%08x", i);
	struct pool_found found = {.rec = record_new(&rec), .kind = RECORD_VOLUME};
	cr_assert_not_null(found.rec);
	strcpy(found.key, found.rec->key);
	volumes[i] = pool_index_insert(&pool, &found);
	cr_assert_not_null(volumes[i]);
	struct node_volume *node = node_volume_get(volumes[i]);
	struct backend_dev dev = {.attached = true, .major = MAJOR, .minor = MINOR_BASE + i};
	snprintf(dev.path, sizeof(dev.path), "/dev/loop%u", dev.minor);
	node_volume_set_dev(csi->node, node, &dev);
	cr_assert_eq(node_volume_add_mount(node, path, false, false), 0);
}

static void setup(void)
{
	struct csi_config csi_config = {.health = CSI_HEALTH_1_13};
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	cr_assert_eq(ring_sim_open(&reactor.ring, &sim), 0);
	cr_assert_eq(helpers_open(&reactor.helpers, reactor.ring, fake_calls, MNT_CALLS), 0);
	backend_remove(&backend_loop); /* there are no devices to ask what they are bound to */
	pools.reactor = &reactor;
	pools.at[0] = &pool;
	pools.count = 1;
	pool = (struct pool){.pools = &pools, .name = "default", .path = "/pool"};
	strcpy(pool.uuid8, "01234567");
	sim_pass_ms(reactor.ring, 5);
	pool_enter(&pool, POOL_SERVED, "%s", "");
	cr_assert_eq(csi_open(&csi, &csi_config, &reactor, &pools), 0);
	for (unsigned i = 0; i < VOLUMES; i++)
		add_volume(i);
	cr_assert_eq(node_watch_open(csi->node), 0);
}

static void teardown(void)
{
	csi->node->probes = NULL;
	csi_close(csi);
	for (unsigned i = 0; i < VOLUMES; i++) {
		pool_index_remove(volumes[i]);
		pool_object_free(volumes[i]);
	}
	free(pool.index[RECORD_VOLUME].at);
	helpers_close(reactor.helpers);
	ring_close(reactor.ring);
}

TestSuite(watch, .init = setup, .fini = teardown);

static struct node_health *health_of(unsigned i)
{
	return &node_volume_find(volumes[i])->health;
}

/* As an event about its device leaves it. */
static void be_urgent(unsigned i)
{
	struct node_volume *node = node_volume_find(volumes[i]);
	list_remove(&node->attached);
	list_push_front(&csi->node->attached, &node->attached);
	node->health.checked_ns = 0;
	node->health.device_due = true;
}

static unsigned looked_at(void)
{
	unsigned count = 0;
	for (unsigned i = 0; i < VOLUMES; i++)
		count += health_of(i)->looked_ns != 0;
	return count;
}

Test(watch, who_is_due_is_looked_at_together)
{
	sim_pass_ms(reactor.ring, PERIOD_MS);
	cr_assert_eq(looked_at(), VOLUMES);
	/* The simulated ring delays at will, so that not all of them meet. */
	cr_expect_lt(many_calls + alone_calls, VOLUMES / 2);
	cr_expect_eq(paths_asked, VOLUMES);
	for (unsigned i = 0; i < VOLUMES; i++)
		cr_expect_eq(health_of(i)->since_ns[NODE_FS_SHUT_DOWN] != 0, i == 7);
	/* And again, each once. */
	sim_pass_ms(reactor.ring, PERIOD_MS);
	cr_expect_eq(paths_asked, 2 * VOLUMES);
	cr_expect(node_watch_idle(csi->node->watch));
	health_of(3)->looked_ns = 0;
	be_urgent(3);
	while (node_watch_idle(csi->node->watch))
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	cr_expect_eq(paths_asked, 2 * VOLUMES, "it is under way");
}

Test(watch, who_has_been_looked_at_is_left_alone)
{
	sim_pass_ms(reactor.ring, NODE_CHECKUP_MS);
	for (unsigned i = 0; i < VOLUMES; i++)
		health_of(i)->looked_ns = ring_now_ns(reactor.ring);
	sim_pass_ms(reactor.ring, NODE_CHECKUP_MS);
	cr_assert_eq(paths_asked, 0);
}

Test(watch, who_may_hang_is_asked_alone)
{
	health_of(3)->since_ns[NODE_HANGING] = 1;
	sim_pass_ms(reactor.ring, PERIOD_MS);
	cr_assert_eq(looked_at(), VOLUMES);
	cr_expect(asked_alone[3]);
	cr_expect_lt(alone_calls, VOLUMES / 2);
	cr_expect_eq(paths_asked, VOLUMES);
}

/* Who unmounts can wait for a call on the volume alone. */
Test(watch, who_is_being_unmounted_is_asked_alone)
{
	node_volume_find(volumes[3])->alone_until_ns = UINT64_MAX;
	node_volume_find(volumes[4])->alone_until_ns = 1;
	sim_pass_ms(reactor.ring, PERIOD_MS);
	cr_assert_eq(looked_at(), VOLUMES);
	cr_expect(asked_alone[3]);
	cr_expect_lt(alone_calls, VOLUMES / 2);
}

Test(watch, a_call_that_does_not_come_back_is_made_for_each_alone)
{
	many_res = -EPIPE;
	sim_pass_ms(reactor.ring, PERIOD_MS);
	cr_assert_eq(looked_at(), VOLUMES);
	cr_expect_eq(alone_calls, VOLUMES);
	cr_expect_gt(many_calls, 0);
	cr_expect_eq(health_of(0)->since_ns[NODE_HANGING], 0);
	cr_expect_neq(health_of(7)->since_ns[NODE_FS_SHUT_DOWN], 0);
}

/* Nobody is to wait for a look that begins when all ends. */
Test(watch, a_node_that_drains_is_not_looked_at)
{
	csi->node->draining = true;
	sim_pass_ms(reactor.ring, PERIOD_MS);
	cr_expect_eq(paths_asked, 0);
	cr_expect(node_watch_idle(csi->node->watch));
}

/* A device that is being let go is no reason for a look at its file system. */
Test(watch, what_is_being_detached_is_not_urgent)
{
	sim_pass_ms(reactor.ring, PERIOD_MS);
	unsigned asked_before = paths_asked;
	for (unsigned i = 5; i < 7; i++) {
		be_urgent(i);
		health_of(i)->looked_ns = ring_now_ns(reactor.ring);
		node_volume_find(volumes[i])->detaching = i == 5;
	}
	sim_pass_ms(reactor.ring, NODE_WATCH_MS + NODE_STATS_BATCH_MS + 100);
	cr_expect_eq(paths_asked, asked_before + 1);
	cr_expect_not(node_volume_find(volumes[5])->health.device_due);
	node_volume_find(volumes[5])->detaching = false;
}

/* Something was bound or unbound: that does not wait for the others. */
Test(watch, what_is_urgent_is_checked_in_the_next_tick)
{
	sim_pass_ms(reactor.ring, PERIOD_MS);
	struct node_health *health = health_of(5);
	health->since_ns[NODE_DEVICE_GONE] = 0;
	be_urgent(5);
	sim_pass_ms(reactor.ring, NODE_WATCH_MS + 1);
	cr_assert_neq(health->since_ns[NODE_DEVICE_GONE], 0);
}

/* ---- uevents ---- */

#define UEVENT(numbers)                                                                            \
	{                                                                                          \
		"change@/devices/virtual/block/loop7\0ACTION=change\0" numbers "SEQNUM=1",         \
			sizeof("change@/devices/virtual/block/loop7\0ACTION=change\0" numbers      \
			       "SEQNUM=1"),                                                        \
			0                                                                          \
	}

/* All have been looked at; then these events come. Returns how many are looked at for them. */
static unsigned looks_after(const struct uevent *events)
{
	sim_pass_ms(reactor.ring, PERIOD_MS);
	unsigned before = paths_asked;
	memset(asked, 0, sizeof(asked));
	uevents = events;
	sim_pass_ms(reactor.ring, 2 * NODE_WATCH_MS + NODE_STATS_BATCH_MS + 100);
	return paths_asked - before;
}

Test(watch, who_an_event_tells_of_is_looked_at)
{
	static const struct uevent events[] = {UEVENT("MAJOR=7\0MINOR=900011\0"),
		UEVENT("MAJOR=7\0MINOR=17\0"), UEVENT("MAJOR=8\0MINOR=900012\0"),
		UEVENT("MAJOR=7\0"), UEVENT("MINOR=900013\0"), UEVENT("MAJOR=7\0MINOR=900014\0"),
		{0}};
	cr_expect_eq(looks_after(events), 2);
	cr_expect(asked[11] && asked[14]);
}

/* Nobody knows whose they were. */
Test(watch, lost_events_may_have_been_anybody_s)
{
	static const struct uevent events[] = {
		{.error = ENOBUFS}, UEVENT("MAJOR=7\0MINOR=900011\0"), {0}};
	cr_expect_eq(looks_after(events), VOLUMES);
	for (unsigned i = 0; i < VOLUMES; i++)
		cr_expect(asked[i], "%u", i);
}

/* ---- hanging ---- */

static bool hangs(unsigned i)
{
	struct node_condition found[NODE_CONDITION_KINDS];
	struct arena *arena = arena_new(0);
	unsigned count = node_volume_conditions(arena, csi->node, volumes[i], found);
	bool hanging = false;
	for (unsigned c = 0; c < count; c++)
		hanging |= found[c].kind == NODE_HANGING;
	arena_unref(arena);
	return hanging;
}

/* As an operation does that gave up a call of its own. */
static void overstay(unsigned i)
{
	static const struct op_step none[] = {{NULL}};
	struct volume_op n = {.task = {.csi = csi, .id = "overstayed"}, .volume = volumes[i]};
	op_init(&n.task.op, &reactor, "test", none, NULL);
	cr_assert_lt(volume_op_fail(&n.task.op, -ETIMEDOUT, "mount", "/m"), 0);
	cr_assert(hangs(i));
}

/* Nobody asks for it; the watch's own look is what tells. */
Test(watch, what_an_operation_found_hanging_is_looked_at_until_it_is_well)
{
	sim_pass_ms(reactor.ring, PERIOD_MS);
	unsigned asked_before = paths_asked;
	overstay(3);
	sim_pass_ms(reactor.ring, NODE_HUNG_CHECKUP_MS + 2 * NODE_WATCH_MS);
	cr_expect_not(hangs(3));
	cr_expect(asked_alone[3]);
	cr_expect_eq(paths_asked, asked_before + 1);
	cr_expect(list_empty(&csi->node->troubled));
}

/* There is no file system to ask: it hangs until a read comes back. */
Test(watch, a_block_volume_that_hangs_is_read_from)
{
	volumes[3]->rec->fs = FSIMG_NONE;
	reads_overstay = 2;
	sim_pass_ms(reactor.ring, PERIOD_MS);
	cr_expect_eq(reads, 0);
	overstay(3);
	sim_pass_ms(reactor.ring, 2 * NODE_WATCH_MS);
	cr_expect_eq(reads, 1);
	cr_expect(hangs(3));
	sim_pass_ms(reactor.ring, 2 * NODE_HUNG_CHECKUP_MS + 4 * NODE_WATCH_MS);
	cr_expect_eq(reads, 3);
	cr_expect_not(hangs(3));
	cr_expect(list_empty(&csi->node->troubled));
}

/* ---- I/O errors ---- */

static void count(void)
{
	csi->node->probes = (struct probes *)(uintptr_t)&counters;
}

/* Errors of that kind come, among so many operations that are good; a tick sees them. */
static void errors_come(unsigned i, enum probe_op op, uint64_t errors, uint64_t good, int32_t why)
{
	struct probe_op_counters *c = &counters[i].op[op];
	c->ops += errors + good;
	c->errors += errors;
	c->last_errno = why;
	c->last_error_ns = ring_now_ns(reactor.ring);
	failed[i] = true;
	sim_pass_ms(reactor.ring, 2 * NODE_WATCH_MS);
}

/* What a client is told of a condition; NULL: there is none of that kind. */
static const char *reason_of(unsigned i, enum node_condition_kind kind)
{
	static char reason[1024];
	struct node_condition found[NODE_CONDITION_KINDS];
	struct arena *arena = arena_new(0);
	unsigned known = node_volume_conditions(arena, csi->node, volumes[i], found);
	reason[0] = '\0';
	for (unsigned c = 0; c < known; c++)
		if (found[c].kind == kind)
			snprintf(reason, sizeof(reason), "%s", found[c].reason);
	arena_unref(arena);
	return reason[0] != '\0' ? reason : NULL;
}

static void expect_reason(unsigned i, enum node_condition_kind kind, const char *words)
{
	const char *reason = reason_of(i, kind);
	cr_assert_not_null(reason, "no '%s'", words);
	cr_expect_not_null(strstr(reason, words), "'%s' has no '%s'", reason, words);
}

Test(watch, errors_are_told_by_kind_until_io_has_succeeded_for_a_while)
{
	count();
	sim_pass_ms(reactor.ring, PERIOD_MS);
	counters[5].op[PROBE_READ].ops = 100;
	memset(asked, 0, sizeof(asked));
	errors_come(5, PROBE_WRITE, 2, 8, EIO);
	expect_reason(5, NODE_IO_ERRORS, "I/O errors on /dev/loop900005 since ");
	expect_reason(5, NODE_IO_ERRORS, ": 2 write, the last was Input/output error; look for");
	cr_expect_eq(health_of(5)->quiet_ns, NODE_ERRORS_QUIET_MS * UINT64_C(1000000));
	cr_expect_eq(health_of(5)->good_ops, 108);
	cr_expect(!list_empty(&csi->node->troubled));
	cr_expect(asked[5], "a look may find out why");
	cr_expect_null(reason_of(4, NODE_IO_ERRORS));
	errors_come(5, PROBE_READ, 1, 0, 0);
	expect_reason(5, NODE_IO_ERRORS, ": 1 read, 2 write, the last was not named; look for");
	errors_come(5, PROBE_WRITE, 3, 0, ENOSPC);
	expect_reason(5, NODE_IO_ERRORS, ": 1 read, 5 write, the last was No space left");

	/* It is quiet, and nobody uses it: the driver tries, again and again. */
	sim_pass_ms(reactor.ring, NODE_ERRORS_QUIET_MS - 3 * NODE_WATCH_MS);
	cr_expect_eq(reads, 0, "not yet");
	sim_pass_ms(reactor.ring, 6 * NODE_WATCH_MS);
	cr_expect_gt(reads, 1);
	cr_expect_not_null(reason_of(5, NODE_IO_ERRORS));
	counters[5].op[PROBE_READ].ops++;
	health_of(5)->try_read = true; /* which is not necessary any more */
	sim_pass_ms(reactor.ring, 2 * NODE_WATCH_MS);
	cr_expect_null(reason_of(5, NODE_IO_ERRORS));
	cr_expect_gt(health_of(5)->well_ns, 0);
	cr_expect(!health_of(5)->try_read);
	cr_expect(list_empty(&csi->node->troubled));
	unsigned reads_before = reads;
	sim_pass_ms(reactor.ring, NODE_ERRORS_QUIET_MS);
	cr_expect_eq(reads, reads_before);
}

/* A flush that has failed does not count as good. */
Test(watch, what_is_good_is_what_has_not_failed)
{
	count();
	errors_come(5, PROBE_WRITE, 1, 1, EIO);
	counters[5].op[PROBE_FLUSH].errors = 7; /* one whose completion is not counted yet */
	errors_come(5, PROBE_WRITE, 1, 0, EIO);
	cr_expect_eq(health_of(5)->good_ops, 1);
}

static void become_well(unsigned i)
{
	sim_pass_ms(reactor.ring, health_of(i)->quiet_ns / 1000000 + 2 * NODE_WATCH_MS);
	counters[i].op[PROBE_READ].ops++;
	sim_pass_ms(reactor.ring, 2 * NODE_WATCH_MS);
	cr_assert_null(reason_of(i, NODE_IO_ERRORS));
}

Test(watch, with_each_relapse_it_has_to_be_quiet_for_longer)
{
	const uint64_t first_ns = NODE_ERRORS_QUIET_MS * UINT64_C(1000000);
	const uint64_t most_ns = NODE_ERRORS_QUIET_MAX_MS * UINT64_C(1000000);
	count();
	for (uint64_t want_ns = first_ns; want_ns < 128 * first_ns; want_ns *= 2) {
		errors_come(5, PROBE_WRITE, 1, 0, EIO);
		expect_reason(5, NODE_IO_ERRORS, ": 1 write, ");
		cr_expect_eq(health_of(5)->quiet_ns, want_ns < most_ns ? want_ns : most_ns);
		become_well(5);
	}
	health_of(5)->well_ns = ring_now_ns(reactor.ring);
	sim_pass_ms(reactor.ring, NODE_ERRORS_RELAPSE_MS);
	errors_come(5, PROBE_WRITE, 1, 0, EIO);
	cr_expect_eq(health_of(5)->quiet_ns, first_ns, "it was well for long");
}

Test(watch, errors_that_are_counted_anew_or_not_known)
{
	count();
	errors_come(5, PROBE_WRITE, 3, 0, EIO);
	memset(&counters[5], 0, sizeof(counters[5]));
	errors_come(5, PROBE_WRITE, 2, 0, EIO);
	expect_reason(5, NODE_IO_ERRORS, ": 5 write, ");
	inexact = true;
	errors_come(5, PROBE_WRITE, 2, 0, EIO);
	errors_come(6, PROBE_WRITE, 2, 0, EIO);
	expect_reason(5, NODE_IO_ERRORS, ": 5 write, ");
	cr_expect_null(reason_of(6, NODE_IO_ERRORS));
	inexact = false;
	uncounted = true;
	errors_come(6, PROBE_WRITE, 2, 0, EIO);
	cr_expect_null(reason_of(6, NODE_IO_ERRORS));
	uncounted = false;
	/* Nothing is new: whoever says so. */
	counters[7].op[PROBE_WRITE].last_error_ns = ring_now_ns(reactor.ring);
	failed[7] = true;
	sim_pass_ms(reactor.ring, 2 * NODE_WATCH_MS);
	cr_expect_null(reason_of(7, NODE_IO_ERRORS));
}

/* ---- latencies ---- */

enum { MINUTE_MS = NODE_CHECKUP_MS + 2 * NODE_ROUND_MS }; /* each is judged once */

static void take(unsigned i, enum probe_op op, uint64_t ms, uint64_t ops)
{
	counters[i].op[op].latency.count[hist_bucket(ms * 1000000)] += ops;
}

Test(watch, a_minute_of_slow_reads_and_writes)
{
	count();
	/* Of each volume, which it is enough for; and how many are too slow. */
	take(1, PROBE_READ, 2000, 2);
	take(1, PROBE_WRITE, 1, NODE_SLOW_OPS_MIN - 2);
	take(2, PROBE_WRITE, 2000, NODE_SLOW_OPS_MIN - 1); /* too few */
	take(3, PROBE_FLUSH, 2000, NODE_SLOW_OPS_MIN);     /* slow by nature */
	take(4, PROBE_WRITE, 2000, NODE_SLOW_OPS_MIN);
	take(5, PROBE_READ, 500, NODE_SLOW_OPS_MIN);
	take(6, PROBE_READ, 2000, 1);
	take(6, PROBE_READ, 1, 2 * NODE_SLOW_OPS_MIN);
	take(8, PROBE_READ, 2000, NODE_SLOW_OPS_MIN);
	take(9, PROBE_READ, 60000, NODE_SLOW_OPS_MIN);         /* the last bucket */
	take(10, PROBE_READ, NODE_SLOW_MS, NODE_SLOW_OPS_MIN); /* the first one that is slow */
	node_volume_find(volumes[8])->dev.limits.read_iops = 1;
	sim_pass_ms(reactor.ring, MINUTE_MS);
	static const unsigned slow[] = {1, 4, 9, 10};
	for (unsigned i = 0, s = 0; i <= 10; i++) {
		bool is = s < 4 && slow[s] == i;
		s += is;
		cr_expect_eq(reason_of(i, NODE_SLOW) != NULL, is, "%u", i);
	}
	expect_reason(4, NODE_SLOW, "1% of 100 reads and writes took 2");
	cr_expect_eq(health_of(2)->slow_ops, NODE_SLOW_OPS_MIN - 1);
	cr_expect_geq(health_of(4)->slow_p99_ns, UINT64_C(1900000000));

	/* Who is looked at for another reason is not judged before the minute is over. */
	be_urgent(4);
	sim_pass_ms(reactor.ring, 4 * NODE_WATCH_MS);
	cr_expect(!health_of(4)->device_due);
	cr_expect_not_null(reason_of(4, NODE_SLOW));
	/* The next minute counts by itself. */
	take(4, PROBE_WRITE, 1, 150);
	take(5, PROBE_WRITE, 2000, NODE_SLOW_OPS_MIN);
	sim_pass_ms(reactor.ring, MINUTE_MS);
	cr_expect_null(reason_of(4, NODE_SLOW));
	cr_expect_eq(health_of(4)->slow_ops, 150);
	expect_reason(5, NODE_SLOW, " of 100 reads");
	/* Counting began anew. */
	memset(&counters[5], 0, sizeof(counters[5]));
	take(5, PROBE_READ, 2000, NODE_SLOW_OPS_MIN);
	take(5, PROBE_READ, 1, 20);
	sim_pass_ms(reactor.ring, MINUTE_MS);
	cr_expect_eq(health_of(5)->slow_ops, 20);
}
