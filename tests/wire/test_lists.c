/* SPDX-License-Identifier: Apache-2.0 */
/* What a controller answers from what nodes have told: lists and capacities, on real sockets. */
#include "router_env.h"

#include "controller/capacity.h"
#include "controller/lists.h"
#include "csi/token.h"
#include "csi/topology.h"

#define PATH(name) "/csi.v1.Controller/" name

static struct asked q, p;
static struct store_node *na, *nb;

static void setup(void)
{
	env_open();
	serve(NULL);
	na = join(&a, "a", 'a', GIB);
	nb = join(&b, "b", 'b', GIB);
}

static void teardown(void)
{
	buf_free(&q.got);
	buf_free(&p.got);
	env_close();
}

TestSuite(lists, .init = setup, .fini = teardown, .timeout = 60);
TestSuite(capacity, .init = setup, .fini = teardown, .timeout = 60);

/* ---- what nodes have told ---- */

static void add_volume(struct store_node *node, const char *id, const char *sick)
{
	Csi__V1__ListVolumesResponse__Entry entry = CSI__V1__LIST_VOLUMES_RESPONSE__ENTRY__INIT;
	Csi__V1__Volume volume = CSI__V1__VOLUME__INIT;
	Csi__V1__VolumeHealth health = CSI__V1__VOLUME_HEALTH__INIT;
	struct buf packed = {0}, packed_health = {0};
	struct err err = {0};
	volume.volume_id = health.volume_id = text(id);
	volume.capacity_bytes = 7;
	entry.volume = &volume;
	pack_into(&packed, &entry.base);
	if (sick != NULL)
		pack_into(&packed_health, &health.base);
	cr_assert_eq(store_object_set(store, node, STORE_VOLUME, id, packed.data, packed.len,
			     packed_health.data, packed_health.len, "", &err),
		0, "%s", err.message);
	buf_free(&packed);
	buf_free(&packed_health);
}

static void add_snapshot(struct store_node *node, const char *id, const char *source)
{
	Csi__V1__ListSnapshotsResponse__Entry entry = CSI__V1__LIST_SNAPSHOTS_RESPONSE__ENTRY__INIT;
	Csi__V1__Snapshot snapshot = CSI__V1__SNAPSHOT__INIT;
	struct buf packed = {0};
	struct err err = {0};
	snapshot.snapshot_id = text(id);
	snapshot.source_volume_id = text(source);
	entry.snapshot = &snapshot;
	pack_into(&packed, &entry.base);
	cr_assert_eq(store_object_set(store, node, STORE_SNAPSHOT, id, packed.data, packed.len,
			     NULL, 0, source, &err),
		0, "%s", err.message);
	buf_free(&packed);
}

/* ---- lists ---- */

static char token[256];

/* One page; the ids in it, each with a blank behind it. */
static const char *page(int32_t max_entries, const char *starting)
{
	static char ids[1 << 20];
	Csi__V1__ListVolumesRequest request = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
	char from[sizeof(token)];
	snprintf(from, sizeof(from), "%s", starting); /* it may be the last one */
	request.max_entries = max_entries;
	request.starting_token = text(from);
	ids[0] = token[0] = '\0';
	if (ask(&q, PATH("ListVolumes"), &request.base) != GRPC_OK)
		return NULL;
	Csi__V1__ListVolumesResponse *response =
		csi__v1__list_volumes_response__unpack(NULL, q.got.len, q.got.data);
	cr_assert_not_null(response);
	char *at = ids;
	for (size_t i = 0; i < response->n_entries; i++) {
		const Csi__V1__Volume *volume = response->entries[i]->volume;
		cr_assert_eq(volume->capacity_bytes, 7);
		at += sprintf(at, "%.*s ", (int)volume->volume_id.len, volume->volume_id.data);
	}
	snprintf(token, sizeof(token), "%.*s", (int)response->next_token.len,
		(const char *)response->next_token.data);
	csi__v1__list_volumes_response__free_unpacked(response, NULL);
	return ids;
}

#define A1 "aaaaaaaa.v1.00000001"
#define A2 "aaaaaaaa.v2.00000001"
#define A3 "aaaaaaaa.v3.00000001"
#define B1 "bbbbbbbb.v1.00000002"

Test(lists, pages_go_over_all_nodes_in_order)
{
	add_volume(nb, B1, NULL);
	add_volume(na, A3, NULL);
	add_volume(na, A1, NULL);
	add_volume(na, A2, NULL);
	cr_assert_str_eq(page(0, ""), A1 " " A2 " " A3 " " B1 " ");
	cr_assert_str_eq(token, "");
	cr_assert_str_eq(page(4, ""), A1 " " A2 " " A3 " " B1 " ");
	cr_assert_str_eq(token, "");
	cr_assert_str_eq(page(2, ""), A1 " " A2 " ");
	/* The one that the token is of goes, another comes before it, and a node leaves. */
	store_object_gone(store, na, A2);
	add_volume(na, "aaaaaaaa.v0.00000001", NULL);
	leave(na);
	cr_assert_str_eq(page(1, token), A3 " ");
	cr_assert_str_eq(page(1, token), B1 " ");
	cr_assert_str_eq(token, "");
}

Test(lists, refuse_what_they_cannot_answer)
{
	cr_assert_null(page(-1, ""));
	cr_assert_eq(q.status, GRPC_INVALID_ARGUMENT);
	cr_assert_null(page(0, "v:00000000:" A1));
	cr_assert_eq(q.status, GRPC_ABORTED);
	cr_assert_null(page(0, "x"));
	cr_assert_eq(q.status, GRPC_ABORTED);
	char other[CSI_TOKEN_BYTES];
	csi_token_print(RECORD_SNAPSHOT, A1, other);
	cr_assert_null(page(0, other));
	cr_assert_eq(q.status, GRPC_ABORTED);
	start_bytes(&q, PATH("ListVolumes"), (const uint8_t *)"\xff", 1, 0);
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_INVALID_ARGUMENT);
	static const char *const paths[] = {
		PATH("ListSnapshots"), PATH("ControllerListVolumeHealth"), PATH("GetCapacity")};
	for (unsigned i = 0; i < 3; i++) {
		start_bytes(&q, paths[i], (const uint8_t *)"\xff", 1, 0);
		turn_until(q.ends == 1);
		cr_assert_eq(q.status, GRPC_INVALID_ARGUMENT);
	}
	/* Somebody is missing. */
	cr_assert_eq(store_roster(store, "n9", (const char *[]){"99999999"}, 1), 0);
	cr_assert_null(page(0, ""));
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
	assert_said(q.why, "n9");
	assert_said(q.why, "99999999");
}

Test(lists, a_page_fits_a_message)
{
	char id[64];
	Csi__V1__ListVolumesResponse__Entry entry = CSI__V1__LIST_VOLUMES_RESPONSE__ENTRY__INIT;
	Csi__V1__Volume volume = CSI__V1__VOLUME__INIT;
	Csi__V1__ListVolumesResponse__VolumeStatus status =
		CSI__V1__LIST_VOLUMES_RESPONSE__VOLUME_STATUS__INIT;
	Csi__V1__VolumeCondition condition = CSI__V1__VOLUME_CONDITION__INIT;
	static char large[8000];
	struct err err = {0};
	struct buf packed = {0};
	memset(large, 'x', sizeof(large) - 1);
	volume.capacity_bytes = 7;
	condition.message = text(large);
	status.volume_condition = &condition;
	entry.volume = &volume;
	entry.status = &status;
	for (unsigned i = 0; i < 1000; i++) {
		snprintf(id, sizeof(id), "aaaaaaaa.v%u.00000001", i);
		volume.volume_id = text(id);
		pack_into(&packed, &entry.base);
		cr_assert_eq(store_object_set(store, na, STORE_VOLUME, id, packed.data, packed.len,
				     NULL, 0, "", &err),
			0);
	}
	buf_free(&packed);
	unsigned pages = 0, count = 0;
	const char *ids = page(0, "");
	for (;; ids = page(0, token)) {
		cr_assert_not_null(ids, "%s", q.why);
		for (const char *s = ids; *s != '\0'; s++)
			count += *s == ' ';
		pages++;
		if (token[0] == '\0')
			break;
	}
	cr_assert_eq(count, 1000);
	cr_assert_eq(pages, 3);
}

Test(lists, health_has_those_that_are_not_well)
{
	Csi__V1__ControllerListVolumeHealthRequest request =
		CSI__V1__CONTROLLER_LIST_VOLUME_HEALTH_REQUEST__INIT;
	add_volume(na, A1, NULL);
	add_volume(na, A2, "sick");
	add_volume(nb, B1, "sick");
	request.max_entries = 1;
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(ask(&q, PATH("ControllerListVolumeHealth"), &request.base), GRPC_OK);
		Csi__V1__ControllerListVolumeHealthResponse *response =
			csi__v1__controller_list_volume_health_response__unpack(
				NULL, q.got.len, q.got.data);
		cr_assert_eq(response->n_entries, 1);
		cr_assert_eq(
			memcmp(response->entries[0]->volume_id.data, i == 0 ? A2 : B1, strlen(A2)),
			0);
		cr_assert_eq(response->next_token.len == 0, i == 1);
		snprintf(token, sizeof(token), "%.*s", (int)response->next_token.len,
			(const char *)response->next_token.data);
		csi__v1__controller_list_volume_health_response__free_unpacked(response, NULL);
		request.starting_token = text(token);
	}
}

/* A page ends where the loop has looked at many, whether they are wanted or not. */
Test(lists, a_page_looks_at_so_many)
{
	Csi__V1__ControllerListVolumeHealthRequest request =
		CSI__V1__CONTROLLER_LIST_VOLUME_HEALTH_REQUEST__INIT;
	char id[64];
	for (unsigned i = 0; i < LISTS_SCAN_MAX + 5; i++) {
		snprintf(id, sizeof(id), "aaaaaaaa.v%06u.00000001", i);
		add_volume(na, id, i == LISTS_SCAN_MAX + 3 ? "sick" : NULL);
	}
	cr_assert_eq(ask(&q, PATH("ControllerListVolumeHealth"), &request.base), GRPC_OK);
	Csi__V1__ControllerListVolumeHealthResponse *response =
		csi__v1__controller_list_volume_health_response__unpack(
			NULL, q.got.len, q.got.data);
	cr_assert_eq(response->n_entries, 0);
	cr_assert_gt(response->next_token.len, 0);
	snprintf(token, sizeof(token), "%.*s", (int)response->next_token.len,
		(const char *)response->next_token.data);
	csi__v1__controller_list_volume_health_response__free_unpacked(response, NULL);
	request.starting_token = text(token);
	cr_assert_eq(ask(&q, PATH("ControllerListVolumeHealth"), &request.base), GRPC_OK);
	response = csi__v1__controller_list_volume_health_response__unpack(
		NULL, q.got.len, q.got.data);
	cr_assert_eq(response->n_entries, 1);
	cr_assert_eq(response->next_token.len, 0);
	csi__v1__controller_list_volume_health_response__free_unpacked(response, NULL);
}

/* ---- snapshots ---- */

static Csi__V1__ListSnapshotsRequest wanted;

/* How many, -1: an error. The first one's id is in `token`. */
static int snapshots(const char *id, const char *source)
{
	csi__v1__list_snapshots_request__init(&wanted);
	wanted.snapshot_id = text(id);
	wanted.source_volume_id = text(source);
	token[0] = '\0';
	if (ask(&q, PATH("ListSnapshots"), &wanted.base) != GRPC_OK)
		return -1;
	Csi__V1__ListSnapshotsResponse *response =
		csi__v1__list_snapshots_response__unpack(NULL, q.got.len, q.got.data);
	cr_assert_not_null(response);
	int n = (int)response->n_entries;
	if (n > 0)
		snprintf(token, sizeof(token), "%.*s",
			(int)response->entries[0]->snapshot->snapshot_id.len,
			(const char *)response->entries[0]->snapshot->snapshot_id.data);
	csi__v1__list_snapshots_response__free_unpacked(response, NULL);
	return n;
}

#define SA "aaaaaaaa.s1.0000000a"
#define SB "bbbbbbbb.s2.0000000b"

Test(lists, snapshots_by_id_and_by_source)
{
	add_snapshot(na, SA, A1);
	add_snapshot(nb, SB, B1);
	add_snapshot(nb, "bbbbbbbb.s3.0000000b", "bbbbbbbb.other.00000001");
	add_volume(na, A2, NULL);
	cr_assert_eq(snapshots("", ""), 3);
	cr_assert_eq(snapshots(SB, ""), 1);
	cr_assert_str_eq(token, SB);
	cr_assert_eq(snapshots("", A1), 1); /* its source is gone */
	cr_assert_str_eq(token, SA);
	cr_assert_eq(snapshots("", B1), 1);
	cr_assert_str_eq(token, SB);
	cr_assert_eq(snapshots("", A2), 0);
	cr_assert_eq(snapshots(SA, A1), 1);
	cr_assert_eq(snapshots(SA, B1), 0);
	cr_assert_eq(snapshots("aaaaaaaa.none.00000001", ""), 0);
	cr_assert_eq(snapshots("nonsense", ""), 0);
	cr_assert_eq(snapshots("", "nonsense"), 0);
	cr_assert_eq(snapshots(A2, ""), 0); /* a volume */
}

/* Of the pool of node a. */
static void set_state(enum store_pool_state state)
{
	struct store_pool *pool;
	struct err err = {0};
	char uuid[33] = "";
	memset(uuid, 'a', 32);
	cr_assert_eq(store_pool_set(store, store_node(store, "a"), uuid, "default", state, "", GIB,
			     &pool, &err),
		0, "%s", err.message);
}

Test(lists, a_snapshot_that_is_away_is_not_gone)
{
	add_snapshot(na, SA, A1);
	cr_assert_eq(snapshots("cccccccc.s.00000001", ""), -1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
	assert_said(q.why, "cccccccc");
	cr_assert_eq(snapshots("", "cccccccc.s.00000001"), -1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
	leave(na);
	cr_assert_eq(snapshots(SA, ""), 1); /* as it was told last */
	cr_assert_eq(snapshots("", A1), 1);
	cr_assert_eq(snapshots("aaaaaaaa.s9.0000000a", ""), -1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
	assert_said(q.why, "node a");
	/* Its node is back, and has not told all. */
	struct err err = {0};
	cr_assert_eq(store_join(store, "a", "a", a.address, "1", NULL, 0, &na, &err), 0);
	cr_assert_eq(snapshots("aaaaaaaa.s9.0000000a", ""), -1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
	join(&a, "a", 'a', GIB);
	cr_assert_eq(snapshots("aaaaaaaa.s9.0000000a", ""), 0);
	/* Its pool is told as something else, and what is in it then. */
	static const enum store_pool_state telling[] = {STORE_POOL_LOADING, STORE_POOL_MISSING};
	for (unsigned i = 0; i < 2; i++) {
		set_state(telling[i]);
		cr_expect_eq(snapshots("aaaaaaaa.s9.0000000a", ""), -1);
		cr_expect_eq(q.status, GRPC_UNAVAILABLE);
		assert_said(q.why,
			"aaaaaaaa.s9.0000000a: node a has not told all that pool aaaaaaaa has");
	}
	set_state(STORE_POOL_SICK);
	cr_expect_eq(snapshots("aaaaaaaa.s9.0000000a", ""), 0);
	/* Gone for good. */
	cr_assert_eq(store_forget(store, "dddddddd"), 0);
	cr_assert_eq(snapshots("dddddddd.s.00000001", ""), 0);
	cr_assert_eq(snapshots("", "dddddddd.s.00000001"), 0);
}

/* ---- what moves ---- */

/* The volume of that id is in the node's pool from now on. */
static void moves_to(struct store_node *node, const char *id, const char *pool, uint64_t moves)
{
	struct buf packed = {0};
	struct err err = {0};
	const struct store_object *object = store_object(store, id);
	cr_assert_not_null(object);
	cr_assert_eq(object_entry(object, &packed), 0);
	const struct object_text told = {.kind = STORE_VOLUME,
		.id = id,
		.source_id = "",
		.entry = packed.data,
		.entry_len = packed.len,
		.pool = pool,
		.moves = moves};
	cr_assert_eq(store_object_tell(store, node, &told, &err), 0, "%s", err.message);
	buf_free(&packed);
}

Test(lists, what_has_moved_is_among_those_of_its_pool)
{
	add_volume(na, A1, NULL);
	add_volume(na, A2, NULL);
	add_volume(na, A3, NULL);
	add_volume(nb, B1, NULL);
	moves_to(nb, A2, "bbbbbbbb", 1);
	cr_assert_str_eq(page(0, ""), A1 " " A3 " " B1 " " A2 " ");
	const char *const all[] = {A1 " ", A3 " ", B1 " ", A2 " "};
	char from[sizeof(token)] = "";
	for (unsigned i = 0; i < 4; i++) {
		cr_assert_str_eq(page(1, from), all[i], "%u", i);
		snprintf(from, sizeof(from), "%s", token);
	}
	cr_assert_str_eq(from, "");
}

/* The others are there once each, whatever moves between two pages. */
Test(lists, what_moves_between_two_pages)
{
	add_volume(na, A1, NULL);
	add_volume(na, A2, NULL);
	add_volume(na, A3, NULL);
	add_volume(nb, B1, NULL);
	/* The one that the token is of, to a place behind it. */
	cr_assert_str_eq(page(2, ""), A1 " " A2 " ");
	moves_to(nb, A2, "bbbbbbbb", 1);
	cr_assert_str_eq(page(2, token), A3 " " B1 " ");
	cr_assert_str_eq(page(2, token), A2 " ");
	/* One that is still to come, to a place before it. */
	cr_assert_str_eq(page(2, ""), A1 " " A3 " ");
	moves_to(na, A2, "aaaaaaaa", 2);
	cr_assert_str_eq(page(2, token), B1 " ");
	cr_assert_str_eq(token, "");
	cr_assert_str_eq(page(0, ""), A1 " " A2 " " A3 " " B1 " ");
}

Test(lists, snapshots_of_a_volume_that_has_moved)
{
	struct store_node *nc = join(&c, "c", 'c', GIB);
	add_volume(na, A1, NULL);
	add_snapshot(na, SA, A1);
	add_snapshot(nb, SB, B1);
	moves_to(nc, A1, "cccccccc", 1);
	add_snapshot(nc, "cccccccc.s4.0000000c", A1);
	add_snapshot(nc, "cccccccc.s5.0000000c", "cccccccc.other.00000001");
	cr_assert_eq(snapshots("", A1), 2);
	cr_assert_str_eq(token, SA);
	cr_assert_eq(snapshots("", B1), 1);
	cr_assert_eq(snapshots("cccccccc.s4.0000000c", ""), 1);
	cr_assert_eq(snapshots("cccccccc.s4.0000000c", A1), 1);
	cr_assert_eq(snapshots("", "cccccccc.other.00000001"), 1);
	/* Page by page. */
	csi__v1__list_snapshots_request__init(&wanted);
	wanted.source_volume_id = text(A1);
	wanted.max_entries = 1;
	unsigned found = 0;
	char from[sizeof(token)] = "";
	do {
		wanted.starting_token = text(from);
		cr_assert_eq(ask(&q, PATH("ListSnapshots"), &wanted.base), GRPC_OK, "%s", q.why);
		Csi__V1__ListSnapshotsResponse *response =
			csi__v1__list_snapshots_response__unpack(NULL, q.got.len, q.got.data);
		cr_assert_not_null(response);
		found += (unsigned)response->n_entries;
		snprintf(token, sizeof(token), "%.*s", (int)response->next_token.len,
			(const char *)response->next_token.data);
		memcpy(from, token, sizeof(from));
		csi__v1__list_snapshots_response__free_unpacked(response, NULL);
	} while (from[0] != '\0');
	cr_assert_eq(found, 2);
	/* Its first pool is lost for good, and the volume is not. */
	store_object_gone(store, na, SA);
	store_pool_gone(store, store_pool(store, "aaaaaaaa"));
	cr_assert_eq(store_forget(store, "aaaaaaaa"), 0);
	cr_assert_eq(snapshots("", A1), 1);
	cr_assert_str_eq(token, "cccccccc.s4.0000000c");
}

/* ---- capacity ---- */

static void answers_capacity(struct buf *out, int64_t available, int64_t max, int64_t min)
{
	Csi__V1__GetCapacityResponse response = CSI__V1__GET_CAPACITY_RESPONSE__INIT;
	Csi__V1__Int64Value maximum = CSI__V1__INT64_VALUE__INIT, minimum = maximum;
	response.available_capacity = available;
	maximum.value = max;
	minimum.value = min;
	response.maximum_volume_size = max >= 0 ? &maximum : NULL;
	response.minimum_volume_size = min >= 0 ? &minimum : NULL;
	pack_into(out, &response.base);
}

static void say_capacity(struct store_node *node, int64_t available, int64_t max, int64_t min)
{
	struct buf packed = {0};
	uint32_t class;
	const uint8_t *request;
	size_t len;
	answers_capacity(&packed, available, max, min);
	for (unsigned i = 0; i < STORE_CLASSES_MAX; i++)
		if (store_class_at(store, i, &class, &request, &len))
			cr_assert_eq(
				store_capacity_set(store, node, class, packed.data, packed.len), 0);
	buf_free(&packed);
}

static const char *segments[2][2]; /* of the topology that is asked for; NULL: none */
static const char *parameter = "default";

static void start_capacity(struct asked *to)
{
	Csi__V1__GetCapacityRequest request = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	Csi__V1__Topology topology = CSI__V1__TOPOLOGY__INIT;
	Csi__V1__StringPair pairs[2], *list[2] = {&pairs[0], &pairs[1]};
	Csi__V1__StringPair pool = CSI__V1__STRING_PAIR__INIT, *parameters = &pool;
	for (unsigned i = 0; i < 2 && segments[i][0] != NULL; i++) {
		csi__v1__string_pair__init(&pairs[i]);
		pairs[i].key = text(segments[i][0]);
		pairs[i].value = text(segments[i][1]);
		topology.n_segments = i + 1;
	}
	topology.segments = list;
	pool.key = text("pool");
	pool.value = text(parameter);
	request.parameters = &parameters;
	request.n_parameters = 1;
	if (topology.n_segments > 0)
		request.accessible_topology = &topology;
	start(to, PATH("GetCapacity"), &request.base);
}

static int64_t available(const struct asked *asked, int64_t *max, int64_t *min)
{
	cr_assert_eq(asked->status, GRPC_OK, "%s", asked->why);
	Csi__V1__GetCapacityResponse *response =
		csi__v1__get_capacity_response__unpack(NULL, asked->got.len, asked->got.data);
	cr_assert_not_null(response);
	int64_t is = response->available_capacity;
	*max = response->maximum_volume_size != NULL ? response->maximum_volume_size->value : -1;
	*min = response->minimum_volume_size != NULL ? response->minimum_volume_size->value : -1;
	csi__v1__get_capacity_response__free_unpacked(response, NULL);
	return is;
}

static int64_t max, min;

static int64_t capacity_of(const char *key, const char *value)
{
	segments[0][0] = key;
	segments[0][1] = value;
	start_capacity(&q);
	turn_until(q.ends == 1);
	return q.status == GRPC_OK ? available(&q, &max, &min) : -1;
}

Test(capacity, one_node_is_asked_once_and_tells_from_then_on)
{
	answers_capacity(&a.answer, 100, 90, 16);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "a"), 100);
	cr_assert_eq(a.calls, 1);
	cr_assert_str_eq(a.methods, "GetCapacity ");
	Csi__V1__GetCapacityRequest *asked =
		csi__v1__get_capacity_request__unpack(NULL, a.request.len, a.request.data);
	cr_assert(asked != NULL && asked->n_parameters == 1 && asked->accessible_topology == NULL);
	csi__v1__get_capacity_request__free_unpacked(asked, NULL);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "a"), 100);
	cr_assert_eq(a.calls, 1);
	say_capacity(na, 50, 40, 16);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "a"), 50);
	cr_assert(max == 40 && min == 16);
	cr_assert_eq(a.calls, 1);
	cr_assert_eq(b.calls, 0);
}

Test(capacity, an_absent_node_has_none)
{
	answers_capacity(&a.answer, 100, 90, 16);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "a"), 100);
	leave(na);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "a"), 0);
	cr_assert_eq(max, 0);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "nobody"), 0);
	/* It may be one that has not joined yet. */
	cr_assert_eq(store_roster(store, "n9", (const char *[]){"99999999"}, 1), 0);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "n9"), -1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
	assert_said(q.why, "n9");
}

Test(capacity, a_nodes_refusal_is_the_clients)
{
	a.status = GRPC_INVALID_ARGUMENT;
	a.why = "parameters: pol is unknown";
	for (unsigned i = 1; i <= 2; i++) {
		cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "a"), -1);
		cr_assert_eq(q.status, GRPC_INVALID_ARGUMENT);
		assert_said(q.why, "pol is unknown");
		cr_assert_eq(a.calls, i);
	}
	fake_shut(&a);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "a"), -1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
}

Test(capacity, several_nodes_are_added_up)
{
	segments[0][0] = NULL;
	start_capacity(&q);
	while (!store_class_at(store, 0, &(uint32_t){0}, &(const uint8_t *){NULL}, &(size_t){0}))
		cr_assert_eq(ring_turn(ring, false), 0);
	say_capacity(na, 100, 90, 32);
	for (unsigned i = 0; i < 100; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
	cr_assert_eq(q.ends, 0); /* the other one has not said */
	say_capacity(nb, 10, 9, 16);
	turn_until(q.ends == 1);
	cr_assert_eq(available(&q, &max, &min), 110);
	cr_assert(max == 90 && min == 16);
	cr_assert_eq(capacity_of(NULL, NULL), 110);
	leave(na);
	cr_assert_eq(capacity_of(NULL, NULL), 10);
	leave(nb);
	cr_assert_eq(capacity_of(NULL, NULL), 0);
	cr_assert_eq(a.calls + b.calls, 0);
	/* Too much for a number. */
	na = join(&a, "a", 'a', GIB);
	nb = join(&b, "b", 'b', GIB);
	say_capacity(na, INT64_MAX, -1, -1);
	say_capacity(nb, INT64_MAX, -1, -1);
	cr_assert_eq(capacity_of(NULL, NULL), INT64_MAX);
	cr_assert_eq(min, -1);
}

/* Who does not say in time is not waited for; if nobody says, one is asked for the reason. */
Test(capacity, several_that_say_nothing)
{
	answers_capacity(&b.answer, 7, 7, 7);
	a.status = b.status = GRPC_INVALID_ARGUMENT;
	a.why = b.why = "nonsense";
	cr_assert_eq(capacity_of(NULL, NULL), -1);
	cr_assert_eq(q.status, GRPC_INVALID_ARGUMENT);
	cr_assert_eq(a.calls + b.calls, 1);
	say_capacity(na, 5, 5, 5);
	cr_assert_eq(capacity_of(NULL, NULL), 5);
	cr_assert_eq(a.calls + b.calls, 1);
}

Test(capacity, a_zone_is_its_nodes)
{
	struct err err = {0};
	struct store_node *nc;
	const struct store_segment zones[3][2] = {
		{{CSI_TOPOLOGY_KEY, "a"}, {"zone", "1"}},
		{{CSI_TOPOLOGY_KEY, "b"}, {"zone", "1"}},
		{{CSI_TOPOLOGY_KEY, "c"}, {"zone", "2"}},
	};
	fake_open(&c, "c");
	cr_assert_eq(store_join(store, "a", "a", a.address, "1", zones[0], 2, &na, &err), 0);
	cr_assert_eq(store_join(store, "b", "b", b.address, "1", zones[1], 2, &nb, &err), 0);
	cr_assert_eq(store_join(store, "c", "c", c.address, "1", zones[2], 2, &nc, &err), 0);
	store_synced(store, nc);
	uint32_t class;
	answers_capacity(&c.answer, 1000, 1000, 1);
	cr_assert_eq(capacity_of("zone", "2"), 1000);
	cr_assert(store_class_at(store, 0, &class, &(const uint8_t *){NULL}, &(size_t){0}));
	say_capacity(na, 1, 1, 1);
	say_capacity(nb, 2, 2, 1);
	cr_assert_eq(capacity_of("zone", "1"), 3);
	cr_assert_eq(max, 2);
	cr_assert_eq(capacity_of(NULL, NULL), 1003);
	cr_assert_eq(capacity_of("zone", "3"), 0);
	cr_assert_eq(capacity_of("rack", "1"), 0);
	/* Two segments: both have to match. */
	segments[1][0] = "zone";
	segments[1][1] = "1";
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "b"), 2);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "c"), 0);
	segments[1][0] = NULL;
	/* Requests that differ in their topology alone are one class. */
	struct store_stats stats;
	store_stats(store, &stats);
	cr_assert_eq(stats.classes, 1);
	parameter = "other";
	answers_capacity(&c.answer, 44, 1, 1);
	cr_assert_eq(capacity_of(CSI_TOPOLOGY_KEY, "c"), 44);
	store_stats(store, &stats);
	cr_assert_eq(stats.classes, 2);
}

Test(capacity, a_client_that_goes_does_not_wait)
{
	segments[0][0] = NULL;
	start_capacity(&q);
	for (unsigned i = 0; i < 100; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
	channel_cancel(&q.call);
	turn_until(grpc_registry_in_flight(clients) == 0);
	/* A drain ends those that wait. */
	start_capacity(&p);
	turn_until(grpc_registry_in_flight(clients) == 1);
	controller_drain(controller);
	turn_until(p.ends == 1);
	cr_assert_eq(p.status, GRPC_UNAVAILABLE);
}

Test(capacity, a_request_that_is_too_large)
{
	static char value[4000];
	Csi__V1__GetCapacityRequest request = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	Csi__V1__VolumeCapability capability = CSI__V1__VOLUME_CAPABILITY__INIT;
	Csi__V1__VolumeCapability__MountVolume mount =
		CSI__V1__VOLUME_CAPABILITY__MOUNT_VOLUME__INIT;
	Csi__V1__VolumeCapability *list[6];
	ProtobufCBinaryData flag;
	memset(value, 'x', sizeof(value) - 1);
	flag = text(value);
	mount.n_mount_flags = 1;
	mount.mount_flags = &flag;
	capability.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT;
	capability.mount = &mount;
	for (unsigned i = 0; i < 6; i++)
		list[i] = &capability;
	request.n_volume_capabilities = 6;
	request.volume_capabilities = list;
	cr_assert_eq(ask(&q, PATH("GetCapacity"), &request.base), GRPC_INVALID_ARGUMENT);
	assert_said(q.why, "16384");
}
