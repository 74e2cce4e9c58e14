/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node and its controllers, on the simulated ring: what it tells and in which order, what it does
 * when they fall silent, refuse, read nothing or talk nonsense, and how names are claimed.
 */
#include "controllers.h"
#include "csi_calls.h"

#include "csi/messages.h"
#include "csi/services.h"
#include "member/changes.h"
#include "member/member.h"
#include "pool/index.h"
#include "pool/pools.h"
#include "pool/presence.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { TURNS_MAX = 2000000 };

#define MS UINT64_C(1000000)

static struct member *member;
static struct grpc_registry *local, *routed;
static const struct grpc_peer controller_peer = {.role = GRPC_PEER_CONTROLLER};
static struct controller_sim *const a = &controllers[0], *const b = &controllers[1];
static bool silent; /* controllers say nothing by themselves */

#define until(condition)                                                                           \
	do {                                                                                       \
		unsigned turns = 0;                                                                \
		while (!(condition)) {                                                             \
			cr_assert_lt(turns++, TURNS_MAX, "%s never comes", #condition);            \
			cr_assert_eq(ring_turn(w->reactor.ring, true), 0);                         \
		}                                                                                  \
	} while (0)

static uint64_t now_ms(void)
{
	return ring_now_ns(w->reactor.ring) / MS;
}

/* Time passes; the controllers live. */
static void pass(uint64_t ms)
{
	uint64_t end = now_ms() + ms, beat = 0;
	while (now_ms() < end) {
		if (!silent && now_ms() >= beat) {
			for (unsigned i = 0; i < CONTROLLERS_MAX; i++)
				if (controllers[i].joined)
					controller_beat(&controllers[i]);
			beat = now_ms() + MEMBER_HEARTBEAT_MS;
		}
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	}
}

static void as_controller(bool is)
{
	w->peer = is ? &controller_peer : NULL;
	w->registry = is ? routed : local;
}

static void open_node(enum world_fs fs)
{
	open_world(fs, 1, false);
	controllers_reset();
	local = w->registry;
	routed = grpc_registry_new();
	cr_assert_eq(csi_register_routed(w->csi, routed), 0);
}

static void join(unsigned n)
{
	static const char *const features[] = {"word", NULL};
	struct member_config config = {.controllers = {"sim:0", "sim:1", "sim:2"},
		.n_controllers = n,
		.address = "10.0.0.1:9810",
		.version = "0.1.0",
		.features = features,
		.registry = routed};
	struct err err = {0};
	cr_assert_eq(member_open(&member, w->csi, &config, &err), 0, "%s", err.message);
	member_start(member);
}

static void joined(unsigned n)
{
	open_node(WORLD_EXT4);
	join(n);
	for (unsigned i = 0; i < n; i++)
		until(controllers[i].synced);
}

static void leave(void)
{
	as_controller(false);
	member_drain(member);
	until(member_idle(member));
	member_close(member);
	grpc_registry_free(routed);
	world_close(w);
	controllers_reset();
}

/* ---- what is told ---- */

static void is_listed(const struct controller_sim *c, enum record_kind kind, const char *id)
{
	const struct told *t = told_find(c, id);
	struct pool_object *object;
	struct err err = {0};
	struct arena *arena = arena_new(0);
	cr_assert_eq(pools_find_id(w->pools, kind, id, &object, &err), 0, "%s", err.message);
	ProtobufCMessage *entry = csi_list_entry(arena, w->csi, object);
	size_t len = protobuf_c_message_get_packed_size(entry);
	uint8_t *packed = arena_alloc(arena, len);
	protobuf_c_message_pack(entry, packed);
	cr_assert_not_null(t, "%s was not told", id);
	cr_expect_eq(t->kind, kind);
	cr_expect(t->entry_len == len && memcmp(t->entry, packed, len) == 0,
		"what was told of %s is not what is listed", id);
	arena_unref(arena);
}

static bool is(ProtobufCBinaryData text, const char *want)
{
	return text.len == strlen(want) && memcmp(text.data, want, text.len) == 0;
}

Test(member, tells_all_when_it_joins)
{
	open_node(WORLD_EXT4);
	w->csi->config.topology[w->csi->config.n_topology++] = (struct csi_segment){"zone", "z1"};
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	join(1);
	until(a->synced);
	const Ringvol__V1__Hello *hello = a->hello->hello;
	cr_expect(is(hello->node_id, "node-1"));
	cr_expect(is(hello->driver_name, "csi.ringvol.dev"));
	cr_expect(is(hello->version, "0.1.0"));
	cr_expect(is(hello->address, "10.0.0.1:9810"));
	cr_expect_eq(hello->instance.len, 32);
	cr_expect_eq(hello->n_topology, 2);
	cr_expect(is(hello->topology[0]->key, "topology.ringvol.dev/node"));
	cr_expect(is(hello->topology[0]->value, "node-1"));
	cr_expect(is(hello->topology[1]->key, "zone"));
	cr_expect(is(hello->topology[1]->value, "z1"));
	cr_expect_eq(hello->n_features, 1);
	cr_expect(is(hello->features[0], "word"));
	cr_expect_eq(hello->n_roster, 0);
	cr_expect_eq(a->pool.state, RINGVOL__V1__NODE_POOL__STATE__READY);
	cr_expect_eq(strlen(a->pool_uuid), 32);
	cr_expect_eq(strspn(a->pool_uuid, "0123456789abcdef"), 32);
	cr_expect_eq(strncmp(a->pool_uuid, pool_uuid8(pools_at(w->pools, 0)), 8), 0);
	cr_expect_gt(a->pool.available_bytes, 0);
	cr_expect_eq(a->count, 3);
	cr_expect_not(a->early, "an object was told before its pool");
	cr_expect_eq(a->unordered, 0);
	is_listed(a, RECORD_VOLUME, volume_id);
	is_listed(a, RECORD_VOLUME, other_id);
	is_listed(a, RECORD_SNAPSHOT, snapshot_id);
	cr_expect_str_eq(told_find(a, snapshot_id)->source_id, volume_id);
	struct member_controller told;
	cr_expect(member_controller_at(member, 0, &told));
	cr_expect(told.joined && told.joins == 1 && told.why[0] == '\0');
	cr_expect_str_eq(told.address, "sim:0");
	cr_expect_not(member_controller_at(member, 1, &told));
	leave();
}

/* Long before the next look. */
static void told_soon(bool (*condition)(void))
{
	uint64_t from = now_ms();
	until(condition());
	cr_expect_lt(now_ms() - from, MEMBER_LOOK_MS / 2);
}

static bool told_volume(void)
{
	return told_find(a, volume_id) != NULL;
}

static uint64_t told_size;

static bool told_changed(void)
{
	const struct told *t = told_find(a, volume_id);
	return t != NULL && t->entry_len != told_size;
}

static bool told_gone(void)
{
	return told_find(a, volume_id) == NULL;
}

Test(member, tells_what_operations_change_at_once)
{
	joined(1);
	unsigned objects = a->objects;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	told_soon(told_volume);
	is_listed(a, RECORD_VOLUME, volume_id);
	cr_expect_eq(a->objects, objects + 1, "once");
	told_size = told_find(a, volume_id)->entry_len;
	cr_assert_eq(expand(300 * MIB), GRPC_OK);
	told_soon(told_changed);
	is_listed(a, RECORD_VOLUME, volume_id);
	told_size = told_find(a, volume_id)->entry_len;
	cr_assert_eq(do_stage(), GRPC_OK);
	told_soon(told_changed);
	is_listed(a, RECORD_VOLUME, volume_id);
	cr_assert_eq(undo_stage(), GRPC_OK);
	until(told_find(a, volume_id)->entry_len == told_size);
	is_listed(a, RECORD_VOLUME, volume_id);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	until(told_gone());
	cr_expect_str_eq(a->gone_id, volume_id);
	cr_expect_eq(a->count, 0);
	cr_expect_eq(a->gone, 1);
	leave();
}

Test(member, health_is_found_by_the_look)
{
	joined(1);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	until(told_volume());
	cr_expect_eq(told_find(a, volume_id)->health_len, 0);
	pool_image_found(pools_find_name(w->pools, RECORD_VOLUME, "base"), POOL_IMAGE_TRUNCATED);
	uint64_t from = now_ms();
	until(told_find(a, volume_id)->health_len != 0);
	cr_expect_leq(now_ms() - from, 2 * MEMBER_LOOK_MS);
	/* The pool looks, too, and finds the image whole. */
	until(told_find(a, volume_id)->health_len == 0);
	is_listed(a, RECORD_VOLUME, volume_id);
	unsigned objects = a->objects;
	pass(10 * MEMBER_LOOK_MS);
	cr_expect_eq(a->objects, objects, "what has not changed is not told again");
	leave();
}

Test(member, a_pool_that_is_away_is_told_and_its_volumes_stay)
{
	joined(1);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	until(told_volume());
	char mark[128], aside[160];
	snprintf(mark, sizeof(mark), "%s/ringvol.pool", w->pool_path);
	snprintf(aside, sizeof(aside), "%s.aside", mark);
	cr_assert_eq(rename(mark, aside), 0);
	pass(2 * POOL_CHECK_MS + MEMBER_LOOK_MS);
	cr_expect_eq(a->pool.state, RINGVOL__V1__NODE_POOL__STATE__MISSING);
	cr_expect_neq(a->pool_why[0], '\0');
	cr_expect_eq(a->gone, 0);
	cr_expect(told_volume());
	cr_assert_eq(rename(aside, mark), 0);
	pass(2 * POOL_CHECK_MS + MEMBER_LOOK_MS);
	cr_expect_eq(a->pool.state, RINGVOL__V1__NODE_POOL__STATE__READY);
	cr_expect_eq(a->gone, 0);
	cr_expect_eq(a->hellos, 1, "on the same call");
	is_listed(a, RECORD_VOLUME, volume_id);
	leave();
}

/* ---- presence ---- */

Test(member, beats_and_dials_again_when_nothing_is_heard)
{
	joined(1);
	pass(21000);
	cr_expect(a->gap_ms >= 4000 && a->gap_ms <= 5100, "%u ms of silence", a->gap_ms);
	cr_expect_eq(a->hellos, 1);
	silent = true;
	char instance[33];
	memcpy(instance, a->hello->hello->instance.data, 32);
	uint64_t from = now_ms();
	until(a->hellos == 2);
	cr_expect(now_ms() - from >= MEMBER_SILENCE_MS - MEMBER_HEARTBEAT_MS);
	cr_expect(now_ms() - from <= MEMBER_SILENCE_MS + MEMBER_REDIAL_MAX_MS + 1000);
	until(a->synced);
	cr_expect_eq(memcmp(instance, a->hello->hello->instance.data, 32), 0);
	leave();
}

/* What was told to nobody meanwhile is told at the next join, and what has gone is not. */
Test(member, tells_all_again_after_a_loss)
{
	joined(1);
	struct member_controller told;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	until(told_volume());
	pass(6000);
	controller_cut(a, "the cable is out");
	a->away = true;
	until(a->dials == 3);
	member_controller_at(member, 0, &told);
	cr_expect_not(told.joined);
	cr_expect_str_eq(told.why, "connection refused");
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	unsigned dials = a->dials;
	pass(20000);
	cr_expect(a->dials - dials >= 8 && a->dials - dials <= 15, "%u", a->dials - dials);
	a->away = false;
	until(a->synced);
	cr_expect_eq(a->gone, 0);
	cr_expect(told_gone());
	is_listed(a, RECORD_VOLUME, other_id);
	member_controller_at(member, 0, &told);
	cr_expect(told.joined && told.joins == 2);
	leave();
}

Test(member, a_refusal_is_not_the_end)
{
	open_node(WORLD_EXT4);
	a->ends = "node node-1 is here already";
	join(2);
	until(b->synced);
	until(a->dials == 4);
	struct member_controller told;
	member_controller_at(member, 0, &told);
	cr_expect_str_eq(told.why, a->ends);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	until(told_find(b, volume_id) != NULL);
	a->ends = NULL;
	until(a->synced);
	is_listed(a, RECORD_VOLUME, volume_id);
	leave();
}

Test(member, leaves_at_once)
{
	joined(2);
	member_drain(member);
	cr_expect(!a->joined && !b->joined);
	unsigned dials = a->dials;
	silent = true;
	pass(10000);
	cr_expect_eq(a->dials, dials);
	leave();
}

Test(member, an_address_that_is_none)
{
	open_node(WORLD_EXT4);
	struct member_config config = {.controllers = {"sim:0", "nowhere"},
		.n_controllers = 2,
		.address = "a:1",
		.version = "1"};
	struct err err = {0};
	cr_expect_lt(member_open(&member, w->csi, &config, &err), 0);
	cr_expect_str_eq(err.message, "not an address");
	cr_expect_null(w->csi->hooks.on_create);
	cr_expect_null(w->pools->on_removed);
	grpc_registry_free(routed);
	world_close(w);
}

/* A controller that says nothing at all was not joined. */
Test(member, waits_for_the_first_message)
{
	open_node(WORLD_EXT4);
	a->mute = silent = true;
	join(1);
	until(a->hellos == 1);
	pass(5000);
	cr_expect_eq(a->reports, 1);
	controller_beat(a);
	until(a->synced);
	leave();
}

/* ---- what a controller may say ---- */

Test(member, nonsense_ends_the_call)
{
	joined(2);
	controller_say_bytes(a, (const uint8_t *)"\xff\xff\xff", 3);
	until(!a->joined);
	until(a->synced);
	Ringvol__V1__ControllerReport report = RINGVOL__V1__CONTROLLER_REPORT__INIT;
	Ringvol__V1__NameVerdict verdict = RINGVOL__V1__NAME_VERDICT__INIT,
				 *verdicts[] = {&verdict};
	static const char *const keys[] = {"../x", "", "a/b",
		"0123456789012345678901234567890123456789012345678901234567890123456789"};
	report.verdicts = verdicts;
	report.n_verdicts = 1;
	for (unsigned i = 0; i < 4; i++) {
		verdict.key = csi_bytes(keys[i]);
		controller_say(a, &report);
		until(!a->joined);
		until(a->synced);
	}
	verdict.key = csi_bytes("base");
	controller_say(a, &report); /* of a name that nobody claims */
	pass(1000);
	cr_expect(a->synced);
	report.n_verdicts = 0;
	Ringvol__V1__Roster roster = RINGVOL__V1__ROSTER__INIT;
	Ringvol__V1__RosterNode node = RINGVOL__V1__ROSTER_NODE__INIT, *nodes[] = {&node};
	node.node_id = csi_bytes("a\xff");
	roster.nodes = nodes;
	roster.n_nodes = 1;
	report.roster = &roster;
	controller_say(a, &report);
	until(!a->joined);
	cr_expect_eq(b->hellos, 1, "the other controller has nothing to do with it");
	leave();
}

Test(member, brings_the_roster_along)
{
	joined(2);
	Ringvol__V1__ControllerReport report = RINGVOL__V1__CONTROLLER_REPORT__INIT;
	Ringvol__V1__Roster roster = RINGVOL__V1__ROSTER__INIT;
	Ringvol__V1__RosterNode nodes[3], *list[] = {&nodes[0], &nodes[1], &nodes[2]};
	ProtobufCBinaryData pool = csi_bytes("01234567");
	char ids[3][8];
	for (unsigned i = 0; i < 3; i++) {
		ringvol__v1__roster_node__init(&nodes[i]);
		snprintf(ids[i], sizeof(ids[i]), "node-%u", i + 1);
		nodes[i].node_id = csi_bytes(ids[i]);
		nodes[i].pools = &pool;
		nodes[i].n_pools = i == 1;
	}
	roster.nodes = list;
	roster.n_nodes = 1;
	report.roster = &roster;
	controller_say(a, &report);
	roster.n_nodes = 3;
	controller_say(b, &report);
	controller_cut(a, "restarts");
	until(a->hellos == 2);
	const Ringvol__V1__Hello *hello = a->hello->hello;
	cr_assert_eq(hello->n_roster, 3, "the last one counts: %zu", hello->n_roster);
	cr_expect(is(hello->roster[1]->node_id, "node-2"));
	cr_assert_eq(hello->roster[1]->n_pools, 1);
	cr_expect(is(hello->roster[1]->pools[0], "01234567"));
	leave();
}

/* ---- capacity ---- */

static void ask_class(struct controller_sim *c, uint32_t number, const char *key, const char *value)
{
	Ringvol__V1__ControllerReport report = RINGVOL__V1__CONTROLLER_REPORT__INIT;
	Ringvol__V1__CapacityClass class = RINGVOL__V1__CAPACITY_CLASS__INIT, *classes[] = {&class};
	Csi__V1__GetCapacityRequest req = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	Csi__V1__StringPair pair = CSI__V1__STRING_PAIR__INIT, *pairs[] = {&pair};
	uint8_t packed[256];
	pair.key = csi_bytes(key);
	pair.value = csi_bytes(value);
	req.parameters = pairs;
	req.n_parameters = 1;
	class.class_ = number;
	class.request.data = packed;
	class.request.len = csi__v1__get_capacity_request__pack(&req, packed);
	report.classes = classes;
	report.n_classes = 1;
	controller_say(c, &report);
}

Test(member, capacity_is_told_when_it_changes)
{
	joined(1);
	ask_class(a, 7, "pool", "default");
	until(a->capacities == 1);
	cr_expect_eq(a->class, 7);
	cr_expect_gt(a->available, 0);
	pass(5000);
	unsigned told = a->capacities; /* the disk is not ours alone */
	int64_t before = a->available;
	create_bytes = 1024 * MIB;
	uint64_t from = now_ms();
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	until(before - a->available > (int64_t)(512 * MIB));
	cr_expect(now_ms() - from <= 2 * MEMBER_LOOK_MS);
	cr_expect(a->capacities - told <= 2);
	ask_class(a, 8, "pool", "none-such");
	until(a->class == 8);
	cr_expect_eq(a->available, 0, "no such pool here: nothing, and no error");
	told = a->capacities;
	ask_class(a, 9, "nonsense", "1");
	pass(3000);
	cr_expect_neq(a->class, 9, "a call tells what is wrong with it");
	controller_cut(a, "restarts");
	until(a->hellos == 2);
	until(a->synced);
	told = a->capacities;
	pass(3000);
	cr_expect_eq(a->capacities, told, "the new one has not asked");
	leave();
}

Test(member, many_classes)
{
	joined(1);
	for (uint32_t i = 0; i < 200; i++) {
		char name[16];
		snprintf(name, sizeof(name), "p%u", i);
		ask_class(a, i, "pool", name);
	}
	until(a->class == 199);
	cr_expect(a->capacities <= 65, "%u", a->capacities);
	leave();
}

/* ---- names ---- */

static struct world_answer answer;

/* CreateVolume by a controller, not waited for. */
static void send_create_to(struct world_answer *to, const char *name, uint64_t bytes)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	range.required_bytes = (int64_t)bytes;
	req.name = csi_bytes(name);
	req.capacity_range = &range;
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	as_controller(true);
	world_send(w, "Controller/CreateVolume", &req.base, to);
	as_controller(false);
}

static void send_create(const char *name)
{
	send_create_to(&answer, name, 16 * MIB);
}

static void ends(struct world_answer *of, enum grpc_status status)
{
	until(of->ended);
	cr_expect_eq(of->status, status, "%d: %s", of->status, of->message);
	world_answer_free(of);
}

static bool exists(const char *name)
{
	return pools_find_name(w->pools, RECORD_VOLUME, name) != NULL;
}

Test(member, names_are_asked_of_every_controller)
{
	joined(2);
	send_create("base");
	ends(&answer, GRPC_OK);
	cr_expect_eq(a->claims, 1);
	cr_expect_eq(b->claims, 1);
	cr_expect_str_eq(b->claimed, "base");
	until(a->released == 1 && b->released == 1);
	cr_expect_str_eq(b->released_key, "base");
	cr_expect_eq(b->count, 1, "told before it is released");
	send_create("base");
	ends(&answer, GRPC_OK);
	cr_expect_eq(a->claims, 1, "a finished name of our own needs no claim");
	leave();
}

Test(member, one_controller_is_told_and_not_asked)
{
	joined(1);
	cr_expect(a->registry == routed, "what its calls hold is counted");
	a->no_verdict = true;
	send_create("base");
	ends(&answer, GRPC_OK);
	until(a->released == 1);
	cr_expect_eq(a->claims, 1);
	cr_expect_str_eq(a->claimed, "base");
	leave();
}

/* The release of one that failed is not the last that is said of the next one. */
Test(member, one_controller_hears_of_a_retry)
{
	joined(1);
	send_create_to(&answer, "base", UINT64_C(1) << 60);
	ends(&answer, GRPC_OUT_OF_RANGE);
	send_create("base");
	ends(&answer, GRPC_OK);
	until(a->released == 2);
	cr_expect_eq(a->claims, 2);
	cr_expect(a->held == 0 && !a->unheld);
	leave();
}

Test(member, a_name_that_another_node_has)
{
	joined(2);
	b->holder = "node-7";
	send_create("base");
	ends(&answer, GRPC_ABORTED);
	cr_expect_not_null(strstr(answer.message, "node node-7 has a volume of the name base"),
		"%s", answer.message);
	cr_expect_not(exists("base"));
	until(a->released == 1 && b->released == 1);
	cr_expect_eq(member_claims_refused(member), 1);
	b->holder = "node-1";
	send_create("base");
	ends(&answer, GRPC_OK); /* it is this node that has it, by an earlier call */
	leave();
}

Test(member, a_controller_that_does_not_answer_is_taken_as_left)
{
	joined(2);
	b->no_verdict = true;
	send_create("base");
	uint64_t from = now_ms();
	ends(&answer, GRPC_OK);
	cr_expect(now_ms() - from >= 2000 && now_ms() - from < 3000);
	cr_expect(exists("base"));
	until(b->hellos == 2);
	b->no_verdict = false;
	until(b->synced);
	is_listed(b, RECORD_VOLUME,
		(pool_object_id(pools_find_name(w->pools, RECORD_VOLUME, "base"), volume_id),
			volume_id));
	leave();
}

Test(member, a_controller_that_leaves_meanwhile_has_no_say)
{
	joined(2);
	b->no_verdict = true;
	send_create("base");
	until(b->claims == 1);
	controller_cut(b, "gone");
	uint64_t from = now_ms();
	ends(&answer, GRPC_OK);
	cr_expect_lt(now_ms() - from, 1000);
	leave();
}

Test(member, calls_wait_for_a_name_together)
{
	joined(2);
	struct world_answer equal, other;
	b->no_verdict = true;
	send_create("base");
	send_create_to(&equal, "base", 16 * MIB);
	send_create_to(&other, "base", 32 * MIB);
	until(b->claims == 1);
	pass(500);
	cr_expect_not(answer.ended || equal.ended || other.ended);
	controller_cut(b, "gone");
	ends(&answer, GRPC_OK);
	ends(&equal, GRPC_OK);
	ends(&other, GRPC_ABORTED);
	cr_expect_eq(a->claims, 1);
	leave();
}

/* A request that is refused before its operation begins leaves no claim. */
Test(member, a_refused_request_is_released)
{
	joined(2);
	send_create_to(&answer, "base", UINT64_C(1) << 60);
	ends(&answer, GRPC_OUT_OF_RANGE);
	until(a->released == 1 && b->released == 1);
	cr_expect_eq(a->claims, 1);
	/* Of a local client's, claim and release are logged in one turn. */
	create_bytes = UINT64_C(1) << 60;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OUT_OF_RANGE);
	until(a->released == 2 && b->released == 2);
	cr_expect_eq(a->claims, 2);
	cr_expect(a->held == 0 && b->held == 0 && !a->unheld && !b->unheld);
	leave();
}

Test(member, a_drain_ends_those_that_wait)
{
	joined(2);
	b->no_verdict = true;
	send_create("base");
	until(b->claims == 1);
	member_drain(member);
	ends(&answer, GRPC_UNAVAILABLE);
	cr_expect_not(exists("base"));
	leave();
}

/* A create of this node's own clients waits for nobody, and is told all the same. */
Test(member, creates_of_local_clients_are_told)
{
	joined(2);
	a->no_verdict = b->no_verdict = true;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	until(a->released == 1 && b->released == 1);
	cr_expect(a->claims == 1 && b->claims == 1);
	leave();
}

Test(member, what_is_being_made_is_told_to_one_that_joins)
{
	open_node(WORLD_EXT4);
	b->away = true;
	join(2);
	until(a->synced && b->dials == 1);
	a->no_verdict = true;
	b->away = false;
	send_create("base");
	until(b->synced);
	cr_expect_not(answer.ended);
	cr_expect_eq(b->claims, 1);
	cr_expect_str_eq(b->claimed, "base");
	ends(&answer, GRPC_OK);
	until(b->released == 1);
	leave();
}

/* ---- many, and slow ones ---- */

static void many(unsigned count)
{
	struct pool *pool = pools_at(w->pools, 0);
	for (unsigned i = 0; i < count; i++) {
		char name[48];
		snprintf(name, sizeof(name), "pvc-00000000-0000-4000-8000-%012u", i);
		struct pool_found found = {
			.rec = plain_record(RECORD_VOLUME, name, "0123abcd", 4096),
			.kind = RECORD_VOLUME};
		found.rec->fs = FSIMG_EXT4;
		strcpy(found.key, found.rec->key);
		cr_assert_not_null(pool_index_insert(pool, &found));
	}
}

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

Test(member, ten_thousand_volumes, .timeout = 120)
{
	open_node(WORLD_EXT4);
	many(10000);
	join(2);
	uint64_t cpu = cpu_ns();
	until(a->synced && b->synced);
	cpu = cpu_ns() - cpu;
	cr_expect_eq(a->count, 10000);
	cr_expect_eq(b->count, 10000);
	cr_expect_eq(a->unordered, 0);
	cr_expect(a->largest <= (64 << 10) + 1024, "%u bytes", a->largest);
	cr_log_info("10,000 volumes told to two controllers: %.1f ms of CPU, theirs included",
		(double)cpu / 1e6);
	cr_expect_eq(a->objects, 10000, "each once: %u", a->objects);
	struct changes changes;
	changes_open(&changes, w->csi, NULL, NULL);
	changes.wanted = true;
	cpu = cpu_ns();
	for (unsigned i = 0; i < 40; i++)
		(void)changes_walk(&changes, MEMBER_LOOK_OBJECTS);
	cr_log_info("a look at %d of them: %.0f us", MEMBER_LOOK_OBJECTS,
		(double)(cpu_ns() - cpu) / 40e3);
	changes_close(&changes);
	leave();
}

Test(member, one_that_reads_nothing_costs_what_the_channel_queues, .timeout = 120)
{
	open_node(WORLD_EXT4);
	many(10000);
	b->deaf = true;
	join(2);
	until(a->synced);
	cr_expect(b->queued <= (256 + 64 + 1) << 10, "%zu bytes", b->queued);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	until(told_volume());
	size_t queued = b->queued;
	pass(60000);
	cr_expect_eq(b->queued, queued);
	controller_read(b);
	until(b->synced);
	cr_expect_eq(b->hellos, 1);
	until(told_find(b, volume_id) != NULL);
	leave();
}

/* Longer than the log. */
Test(member, one_that_is_left_behind_is_told_all_anew, .timeout = 120)
{
	open_node(WORLD_EXT4);
	many(10000);
	b->deaf = true;
	join(2);
	until(a->synced);
	struct pool_walk walk = {0};
	for (unsigned i = 0; i <= CHANGES_MAX; i++) /* as if they had changed */
		pools_next(w->pools, RECORD_VOLUME, &walk)->told ^= 1;
	until(a->objects > 10000 + CHANGES_MAX || b->hellos == 2);
	pass(60000);
	controller_read(b);
	until(b->hellos == 2);
	until(b->synced);
	cr_expect_eq(b->count, 10000);
	leave();
}
