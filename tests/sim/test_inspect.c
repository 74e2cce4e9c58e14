/* SPDX-License-Identifier: Apache-2.0 */
/* Inspect.List: the driver, pools, operations; and the stream: its order, its turns, and clients
 * that read slowly or leave. */
#include "inspect_lines.h"

#include "csi/inspect_items.h"
#include "csi/task.h"
#include "pool/private.h"
#include "reactor/ring_engine.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TAG "ringvol:fedcba98:0badcafe"

/* ---- the driver ---- */

#define DRIVER(rest)                                                                               \
	"driver{version='" RINGVOL_VERSION "' driver_name='csi.ringvol.dev' node_id='node-1' pid " \
	"uptime_seconds" rest "}"

Test(inspect, the_driver)
{
	open_world(WORLD_EXT4, 1, true);
	struct node *node = w->csi->node;
	says(list(KIND(DRIVER)), DRIVER(" adopted=1"));
	node->draining = true;
	says(list(KIND(DRIVER)), DRIVER(" adopted=1 draining=1"));
	node->draining = false;
	node->probes = (struct probes *)&counted;
	counted.state = PROBES_LOADING;
	says(list(KIND(DRIVER)), DRIVER(" probes=1 adopted=1"));
	counted.state = PROBES_BPF;
	says(list(KIND(DRIVER)), DRIVER(" probes=2 adopted=1"));
	counted.state = PROBES_SYSFS;
	says(list(KIND(DRIVER)), DRIVER(" probes=3 probes_why='no BPF here' adopted=1"));
	node->probes = NULL;
	world_close(w);
}

/* It is since the start that it counts, in seconds, and its longest turn in nanoseconds. */
Test(inspect, the_drivers_uptime)
{
	open_world(WORLD_EXT4, 1, true);
	Ringvol__V1__Driver *driver;
	struct arena *arena = arena_new(0);
	w->csi->start_ns = ring_now_ns(w->reactor.ring) - UINT64_C(2500000000);
	w->reactor.ring->stats.longest_turn_ns = 1500;
	driver = inspect_driver(arena, w->csi);
	cr_assert_not_null(driver);
	cr_expect_eq(driver->uptime_seconds, 2.5);
	cr_expect_eq(driver->longest_turn_ns, 1500);
	cr_expect_eq(driver->pid, (uint32_t)getpid());
	arena_unref(arena);
	world_close(w);
}

/* Clients refuse a message with text that is no UTF-8. */
Test(inspect, text_that_is_no_utf8)
{
	static const struct {
		const char *is, *shown;
	} all[] = {
		{"n\xff"
		 "de",
			"n?de"},
		{"\xff\xfe", "??"},
		{"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
		{"cut \xe2\x82", "cut ??"},
		{"\xe2\x82\xac!", "\xe2\x82\xac!"},
		{"", ""},
	};
	open_world(WORLD_EXT4, 1, true);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct arena *arena = arena_new(0);
		w->csi->config.node_id = all[i].is;
		Ringvol__V1__Driver *driver = inspect_driver(arena, w->csi);
		cr_assert_not_null(driver);
		cr_expect_eq(driver->node_id.len, strlen(all[i].shown));
		cr_expect_arr_eq(driver->node_id.data, all[i].shown, strlen(all[i].shown));
		arena_unref(arena);
	}
	world_close(w);
}

/* ---- pools ---- */

static const char *tail_of(const char *line, const char *from)
{
	const char *at = strstr(line, from);
	cr_assert_not_null(at, "%s", line);
	return at;
}

/* How each of its lives is told, and why it is not served. */
Test(inspect, a_pools_state)
{
	open_world(WORLD_EXT4, 1, true);
	struct pool *pool = pools_at(w->pools, 0);
	char head[200];
	int n = snprintf(head, sizeof(head), "pool{name='default' path='%s' uuid8='%s' ",
		w->pool_path, pool_uuid8(pool));
	static const struct {
		enum pool_life life;
		const char *why, *shown;
	} all[] = {
		{POOL_NEW, "it is being read", "why='it is being read' room{"},
		{POOL_SERVED, "", "state=1 room{"},
		{POOL_AWAY, "it is gone", "state=2 why='it is gone' room{"},
		{POOL_READ_ONLY, "it cannot be written",
			"state=3 why='it cannot be written' room{"},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct arena *arena = arena_new(0);
		pool->life = all[i].life;
		snprintf(pool->why, sizeof(pool->why), "%s", all[i].why);
		Ringvol__V1__ListResponse item = RINGVOL__V1__LIST_RESPONSE__INIT;
		uint8_t packed[1024];
		item.item_case = RINGVOL__V1__LIST_RESPONSE__ITEM_POOL;
		item.pool = inspect_pool(arena, w->csi, pool);
		size_t len = protobuf_c_message_pack(&item.base, packed);
		const char *line = line_of(item.base.descriptor, packed, len);
		cr_expect_eq(strncmp(line, head, (size_t)n), 0, "%s", line);
		cr_expect_eq(strncmp(line + n, all[i].shown, strlen(all[i].shown)), 0, "%s", line);
		arena_unref(arena);
	}
	pool->life = POOL_SERVED;
	world_close(w);
}

Test(inspect, a_pools_features_and_what_it_erases)
{
	open_world(WORLD_EXT4, 1, true);
	struct fs_features *f = &pools_at(w->pools, 0)->features;
	*f = (struct fs_features){
		.fs_type = 0x1234abcd, .reflink = true, .direct_io = true, .dio_align = 512};
	says(tail_of(list(KIND(POOLS)), "features"),
		"features{fs='0x1234abcd' reflink=1 direct_io=1 direct_io_align_bytes=512}}");
	*f = (struct fs_features){.fs_type = 0x58465342, .fallocate = true};
	says(tail_of(list(KIND(POOLS)), "features"), "features{fs='xfs' thick=1}}");
	f->nocow_lies = true;
	erasing_total = 9;
	says(tail_of(list(KIND(POOLS)), "features"),
		"features{fs='xfs'} erasing{done_bytes=5 total_bytes=9}}");
	erasing_total = 0;
	world_close(w);
}

/* ---- operations ---- */

static struct world_answer answers[4];

static void sends_create(unsigned i, const char *name)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	req.name = csi_bytes(name);
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	world_send(w, "Controller/CreateVolume", &req.base, &answers[i]);
}

static bool half(const void *arg, uint64_t *ret_done, uint64_t *ret_total)
{
	(void)arg;
	*ret_done = 8;
	*ret_total = 16;
	return true;
}

static struct csi_task *nth_task(unsigned n)
{
	struct list *link = w->csi->tasks.next;
	while (n-- > 0)
		link = link->next;
	return container_of(link, struct csi_task, link);
}

/* Nothing turns meanwhile: all of them hang in their first step. Each is told once, in the order
 * in which they began. */
Test(inspect, operations)
{
	open_world(WORLD_EXT4, 1, true);
	says(list(KIND(OPERATIONS)), "%s", "");
	sends_create(0, "a");
	sends_create(1, "b");
	sends_create(2, "b");
	sends_create(3, "c");
	nth_task(1)->copy = (struct csi_task_copy){.progress = half};
	for (unsigned i = 0; i < 3; i++)
		nth_task(i)->number = 7 + i;
	char want[900], step[160];
	size_t n = 0;
	for (unsigned i = 0; i < 3; i++) {
		const struct csi_task *task = nth_task(i);
		op_print_step(&task->op, step, sizeof(step));
		cr_assert_neq(step[0], '\0');
		n += (size_t)snprintf(want + n, sizeof(want) - n,
			"%soperation{number=%u method='CreateVolume' subject='%c' step='%s' started%s waiters=%u%s}",
			i > 0 ? "\n" : "", 7 + i, 'a' + (int)i, step,
			ring_now_ns(w->reactor.ring) != task->start_ns ? " seconds" : "",
			i == 1 ? 2 : 1, i == 1 ? " progress{done_bytes=8 total_bytes=16}" : "");
	}
	says(list(KIND(OPERATIONS)), "%s", want);
	nth_task(1)->copy = (struct csi_task_copy){0};
	nth_task(0)->start_ns = ring_now_ns(w->reactor.ring) - UINT64_C(1500000000);
	struct arena *arena = arena_new(0);
	const Ringvol__V1__Operation *operation = inspect_operation(arena, nth_task(0));
	cr_expect_eq(operation->seconds, 1.5);
	arena_unref(arena);
	for (unsigned i = 0; i < 4; i++) {
		world_wait(w, &answers[i]);
		cr_assert_eq(answers[i].status, GRPC_OK);
		world_answer_free(&answers[i]);
	}
	says(list(KIND(OPERATIONS)), "%s", "");
	world_close(w);
}
/* ---- the stream ---- */

/* What each line is of, in the order of the stages; of all kinds, or of those that are named. */
Test(inspect, the_order_of_the_kinds)
{
	static const Ringvol__V1__ListRequest__Kind two[] = {KIND(SNAPSHOTS), KIND(DRIVER)},
						    last[] = {KIND(QUARANTINED), KIND(ALL)};
	static const struct {
		const Ringvol__V1__ListRequest__Kind *kinds;
		size_t count;
		const char *order; /* the lines' first letters */
	} all[] = {{NULL, 0, "dpovbsq"}, {two, 2, "ds"}, {last, 2, "dpovbsq"}, {last, 1, "q"}};
	open_world(WORLD_EXT4, 1, true);
	struct pool_object *objects[] = {insert(RECORD_VOLUME, "v"), insert(RECORD_SNAPSHOT, "s"),
		insert_damaged(0, RECORD_VOLUME, "x", "no record")};
	const struct attach_info info = {.there = true};
	struct borrowed *one = borrows_put(w->csi->borrows, TAG, &info);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		Ringvol__V1__ListRequest req = RINGVOL__V1__LIST_REQUEST__INIT;
		char order[16] = "";
		size_t n = 0;
		req.n_kinds = all[i].count;
		req.kinds = (Ringvol__V1__ListRequest__Kind *)all[i].kinds;
		struct csi_task task = {.csi = w->csi, .number = 1, .method = "m", .subject = ""};
		static const struct op_step none[] = {{"none"}, {NULL}};
		op_init(&task.op, &w->reactor, "none", none, NULL);
		list_push(&w->csi->tasks, &task.link);
		begin_list(&req, false);
		for (unsigned k = 0; k < 100000 && got.ends == 0; k++)
			turn();
		list_remove(&task.link);
		cr_assert_eq(got.ends, 1);
		for (const char *at = got.lines; at != NULL && *at != '\0' && n < 15;) {
			order[n++] = *at;
			at = strchr(at, '\n');
			at += at != NULL;
		}
		cr_expect_str_eq(order, all[i].order, "%s: %s", order, got.lines);
	}
	borrows_drop(w->csi->borrows, one);
	for (unsigned i = 0; i < 3; i++)
		take_out(objects[i]);
	world_close(w);
}

Test(inspect, kinds_that_are_none)
{
	static const int kinds[] = {KIND(QUARANTINED) + 1, 99, -1};
	open_world(WORLD_EXT4, 1, true);
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		Ringvol__V1__ListRequest req = RINGVOL__V1__LIST_REQUEST__INIT;
		Ringvol__V1__ListRequest__Kind kind = (Ringvol__V1__ListRequest__Kind)kinds[i];
		req.n_kinds = 1;
		req.kinds = &kind;
		begin_list(&req, false);
		cr_expect_eq(got.ends, 1, "%d", kinds[i]);
		cr_expect_eq(got.status, GRPC_INVALID_ARGUMENT, "%d", kinds[i]);
		cr_expect_eq(got.messages, 0);
	}
	world_close(w);
}

enum { MANY = 60, TURN_LOOKS = 48 };

static struct pool_object *many[MANY];

static void open_many(void)
{
	open_world(WORLD_EXT4, 1, true);
	for (unsigned i = 0; i < MANY; i++) {
		char name[16];
		snprintf(name, sizeof(name), "v-%02u", i);
		many[i] = insert(RECORD_SNAPSHOT, name);
	}
}

static void close_many(void)
{
	cr_expect_eq(grpc_registry_in_flight(w->registry), 0);
	for (unsigned i = 0; i < MANY; i++)
		take_out(many[i]);
	world_close(w);
}

static const Ringvol__V1__ListRequest *of_snapshots(void)
{
	static Ringvol__V1__ListRequest req;
	static Ringvol__V1__ListRequest__Kind kind = KIND(SNAPSHOTS);
	ringvol__v1__list_request__init(&req);
	req.n_kinds = 1;
	req.kinds = &kind;
	req.attached_only = true; /* so that nothing is measured before */
	return &req;
}

/* The loop has others to serve: the stages before cost looks, too. */
Test(inspect, a_turn_looks_at_so_many)
{
	open_many();
	begin_list(of_snapshots(), false);
	cr_expect_eq(got.messages, TURN_LOOKS - 5);
	cr_expect_eq(got.ends, 0);
	for (unsigned i = 0; i < 1000 && got.ends == 0; i++)
		turn();
	cr_expect_eq(got.messages, MANY);
	cr_expect_eq(got.status, GRPC_OK);
	cr_expect_not_null(strstr(got.lines, "name='v-00'"));
	cr_expect_not_null(strstr(got.lines, "name='v-59'"));
	close_many();
}

/* Whose lines have sizes in them, if these are older than a quarter of a second. */
Test(inspect, what_waits_for_a_measure)
{
	static const struct {
		Ringvol__V1__ListRequest__Kind kind;
		bool attached_only;
		unsigned age_ms;
		bool waits;
	} all[] = {
		{KIND(DRIVER), false, 1000, false},
		{KIND(OPERATIONS), false, 1000, false},
		{KIND(QUARANTINED), false, 1000, false},
		{KIND(VOLUMES), true, 1000, false},
		{KIND(VOLUMES), false, 1000, true},
		{KIND(POOLS), false, 1000, true},
		{KIND(SNAPSHOTS), false, 1000, true},
		{KIND(SNAPSHOTS), false, 250, true},
		{KIND(SNAPSHOTS), false, 249, false},
	};
	open_world(WORLD_EXT4, 1, true);
	struct pool *pool = pools_at(w->pools, 0);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		Ringvol__V1__ListRequest req = *of_snapshots();
		Ringvol__V1__ListRequest__Kind kind = all[i].kind;
		req.kinds = &kind;
		req.attached_only = all[i].attached_only;
		uint64_t now_ns = ring_now_ns(w->reactor.ring);
		pool->measured_ns = now_ns - all[i].age_ms * UINT64_C(1000000);
		begin_list(&req, false);
		cr_expect_eq(got.ends == 0, all[i].waits, "%u", i);
		for (unsigned k = 0; k < 1000 && got.ends == 0; k++)
			turn();
		cr_expect_eq(got.ends, 1);
		cr_expect_eq(pool->measured_ns >= now_ns, all[i].waits, "%u", i);
	}
	world_close(w);
}

/* One that reads one message at a time gets one at a time, and each once. */
Test(inspect, a_client_that_reads_slowly)
{
	open_many();
	begin_list(of_snapshots(), true);
	for (unsigned i = 1; i <= MANY; i++) {
		char name[16];
		for (unsigned k = 0; k < 20; k++)
			ring_turn(w->reactor.ring, false);
		cr_assert_eq(got.messages, i);
		cr_assert_eq(got.ends, 0);
		snprintf(name, sizeof(name), "name='v-%02u'", i - 1);
		cr_assert_not_null(strstr(got.lines, name), "%s", got.lines);
		grpc_local_read(&got.local, false);
	}
	for (unsigned k = 0; k < 20; k++)
		ring_turn(w->reactor.ring, false);
	cr_expect_eq(got.ends, 1);
	close_many();
}

/* It leaves while the pools are measured, between two turns, and while it reads: nothing is sent to
 * it any more, and nothing is left of the call. */
Test(inspect, a_client_that_leaves)
{
	open_many();
	static const struct {
		bool measures, slowly;
		unsigned messages;
	} all[] = {{true, false, 0}, {false, false, TURN_LOOKS - 5}, {false, true, 1}};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		Ringvol__V1__ListRequest req = *of_snapshots();
		req.attached_only = !all[i].measures;
		pools_at(w->pools, 0)->measured_ns = 0;
		begin_list(&req, all[i].slowly);
		cr_expect_eq(got.messages, all[i].messages, "%u: %u", i, got.messages);
		cr_expect_eq(grpc_registry_in_flight(w->registry), 1);
		grpc_local_leave(&got.local);
		cr_expect_eq(grpc_registry_in_flight(w->registry), 0);
		ring_sim_settle(w->reactor.ring, 1000);
		cr_expect_eq(got.messages, all[i].messages, "%u: %u", i, got.messages);
		cr_expect_eq(got.ends, 0);
	}
	close_many();
}
