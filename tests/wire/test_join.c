/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cluster.Join, by a client that is several nodes at once on one connection whose certificate is
 * every node's: what is told is known, what must not be told ends the call, and time passes.
 */
#include "peer.h"

#include "cluster.pb-c.h"
#include "controller/classes.h"
#include "controller/hear.h"
#include "controller/join.h"
#include "csi.pb-c.h"
#include "csi/topology.h"

#define JOIN_PATH "/ringvol.v1.Cluster/Join"
#define UUID_A    "aaaaaaaa000000000000000000000001"
#define UUID_B    "bbbbbbbb000000000000000000000002"
#define VOL_A     "aaaaaaaa.pvc-1.00000001"
#define VOL_B     "bbbbbbbb.pvc-1.00000002"
#define SNAP_A    "aaaaaaaa.snap-1.00000003"

static struct peer *p;
static struct store *store;
static struct joins *joins;
static struct store_node *left[8];
static unsigned n_left, n_joined;
static struct kept {
	struct kept *next;
	max_align_t memory[];
} * kept;

static void on_left(void *arg, struct store_node *node)
{
	cr_assert_eq(arg, &n_left);
	left[n_left++ % 8] = node;
}

static void on_joined(void *arg, struct store_node *node)
{
	cr_assert_eq(arg, &n_left);
	cr_assert_eq(node->state, STORE_NODE_PRESENT);
	n_joined++;
}

static const struct grpc_peer any_node = {.role = GRPC_PEER_NODE, .node_id = "*"};

static void setup(void)
{
	p = peer_new();
	p->as = &any_node;
	cr_assert_eq(store_open(&store), 0);
	const struct joins_config config = {.ring = p->ring,
		.store = store,
		.driver_name = "csi.ringvol.dev",
		.version = "9.9",
		.instance = "me",
		.on_joined = on_joined,
		.on_left = on_left,
		.arg = &n_left};
	cr_assert_eq(joins_open(&joins, &config), 0);
	cr_assert_eq(joins_register(joins, p->registry), 0);
	peer_reconnect(p);
}

static void teardown(void)
{
	for (struct kept *k; (k = kept) != NULL;) {
		kept = k->next;
		free(k);
	}
	joins_drain(joins);
	struct joins_stats stats;
	joins_stats(joins, &stats);
	cr_assert_eq(stats.calls, 0);
	peer_free(p);
	joins_close(joins);
	store_close(store);
}

TestSuite(join, .init = setup, .fini = teardown, .timeout = 60);

/* ---- a node ---- */

struct sim_node {
	int32_t id;
	struct buf sent;
	size_t heard; /* bytes of its answer that were looked at */
};

static struct sim_node nodes[16];

static ProtobufCBinaryData bytes(const char *text)
{
	return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

static void tell_bytes(struct sim_node *n, const uint8_t *data, size_t len)
{
	uint8_t *to = buf_reserve(&n->sent, GRPC_PREFIX_BYTES + len);
	grpc_wire_put_prefix(to, (uint32_t)len);
	if (len > 0)
		memcpy(to + GRPC_PREFIX_BYTES, data, len);
	n->sent.len += GRPC_PREFIX_BYTES + len;
	if (n->id == 0)
		n->id = peer_request(p, &(struct request){.path = JOIN_PATH,
						.body = n->sent.data,
						.len = n->sent.len,
						.stay_open = true});
	struct answer *a = answer_at(p, n->id);
	a->body = n->sent.data;
	a->body_len = n->sent.len;
	nghttp2_session_resume_data(p->client, n->id);
	peer_pump(p);
}

static void tell(struct sim_node *n, const Ringvol__V1__NodeReport *report)
{
	size_t len = ringvol__v1__node_report__get_packed_size(report);
	uint8_t *data = malloc(len + 1);
	ringvol__v1__node_report__pack(report, data);
	tell_bytes(n, data, len);
	free(data);
}

#define REPORT(...)                                                                                \
	(&(Ringvol__V1__NodeReport){                                                               \
		.base = PROTOBUF_C_MESSAGE_INIT(&ringvol__v1__node_report__descriptor),            \
		__VA_ARGS__})
#define LIST(type, ...)                                                                            \
	(type *[])                                                                                 \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}

/* Zeroed memory for what is said in a test: it is freed when the test ends. */
static void *keep(size_t size)
{
	struct kept *k = calloc(1, sizeof(*k) + size);
	cr_assert_not_null(k);
	k->next = kept;
	kept = k;
	return k->memory;
}

static Ringvol__V1__Segment *segment(const char *key, const char *value)
{
	Ringvol__V1__Segment *s = keep(sizeof(*s));
	ringvol__v1__segment__init(s);
	s->key = bytes(key);
	s->value = bytes(value);
	return s;
}

static Ringvol__V1__Hello hello_of(const char *id, const char *instance)
{
	Ringvol__V1__Hello hello = RINGVOL__V1__HELLO__INIT;
	hello.node_id = bytes(id);
	hello.driver_name = bytes("csi.ringvol.dev");
	hello.version = bytes("9.8");
	hello.instance = bytes(instance);
	hello.address = bytes("10.0.0.1:9444");
	hello.n_topology = 1;
	hello.topology = keep(2 * sizeof(*hello.topology));
	hello.topology[0] = segment(CSI_TOPOLOGY_KEY, id);
	return hello;
}

static Ringvol__V1__NodePool pool_of(const char *uuid, Ringvol__V1__NodePool__State state)
{
	Ringvol__V1__NodePool pool = RINGVOL__V1__NODE_POOL__INIT;
	pool.name = bytes("default");
	pool.uuid = bytes(uuid);
	pool.state = state;
	pool.available_bytes = 1 << 30;
	return pool;
}

#define READY RINGVOL__V1__NODE_POOL__STATE__READY

static ProtobufCBinaryData packed(const ProtobufCMessage *message)
{
	ProtobufCBinaryData data = {.len = protobuf_c_message_get_packed_size(message)};
	data.data = keep(data.len + 1);
	protobuf_c_message_pack(message, data.data);
	return data;
}

static Ringvol__V1__NodeObject volume_of(const char *id)
{
	Ringvol__V1__NodeObject object = RINGVOL__V1__NODE_OBJECT__INIT;
	Csi__V1__Volume volume = CSI__V1__VOLUME__INIT;
	Csi__V1__ListVolumesResponse__Entry entry = CSI__V1__LIST_VOLUMES_RESPONSE__ENTRY__INIT;
	volume.volume_id = bytes(id);
	volume.capacity_bytes = 1 << 30;
	entry.volume = &volume;
	object.id = bytes(id);
	object.entry = packed(&entry.base);
	return object;
}

static Ringvol__V1__NodeObject snapshot_of(const char *id, const char *source)
{
	Ringvol__V1__NodeObject object = RINGVOL__V1__NODE_OBJECT__INIT;
	Csi__V1__Snapshot snapshot = CSI__V1__SNAPSHOT__INIT;
	Csi__V1__ListSnapshotsResponse__Entry entry = CSI__V1__LIST_SNAPSHOTS_RESPONSE__ENTRY__INIT;
	snapshot.snapshot_id = bytes(id);
	snapshot.source_volume_id = bytes(source);
	entry.snapshot = &snapshot;
	object.kind = RINGVOL__V1__NODE_OBJECT__KIND__SNAPSHOT;
	object.id = bytes(id);
	object.source_id = bytes(source);
	object.entry = packed(&entry.base);
	return object;
}

static Ringvol__V1__NameClaim claim_of(const char *key)
{
	Ringvol__V1__NameClaim claim = RINGVOL__V1__NAME_CLAIM__INIT;
	claim.key = bytes(key);
	return claim;
}

static void say_hello(struct sim_node *n, const char *id, const char *instance)
{
	Ringvol__V1__Hello hello = hello_of(id, instance);
	tell(n, REPORT(.hello = &hello));
}

static void say_pool(struct sim_node *n, const char *uuid, Ringvol__V1__NodePool__State state)
{
	Ringvol__V1__NodePool pool = pool_of(uuid, state);
	tell(n, REPORT(.n_pools = 1, .pools = LIST(Ringvol__V1__NodePool, &pool)));
}

static void say_object(struct sim_node *n, Ringvol__V1__NodeObject object)
{
	tell(n, REPORT(.n_objects = 1, .objects = LIST(Ringvol__V1__NodeObject, &object)));
}

static void say_synced(struct sim_node *n)
{
	tell(n, REPORT(.synced = true));
}

/* With a pool and a volume in it. */
static struct store_node *come(
	struct sim_node *n, const char *id, const char *uuid, const char *vol)
{
	say_hello(n, id, "1");
	say_pool(n, uuid, READY);
	say_object(n, volume_of(vol));
	say_synced(n);
	struct store_node *node = store_node(store, id);
	cr_assert_not_null(node);
	cr_assert_eq(node->state, STORE_NODE_PRESENT);
	return node;
}

/* The next message that it has been told; NULL: none. */
static Ringvol__V1__ControllerReport *hear(struct sim_node *n)
{
	const struct answer *a = answer_at(p, n->id);
	if (a->data.len - n->heard < GRPC_PREFIX_BYTES)
		return NULL;
	size_t len = grpc_wire_get_length(a->data.data + n->heard);
	cr_assert_leq(n->heard + GRPC_PREFIX_BYTES + len, a->data.len);
	Ringvol__V1__ControllerReport *report = ringvol__v1__controller_report__unpack(
		NULL, len, a->data.data + n->heard + GRPC_PREFIX_BYTES);
	cr_assert_not_null(report);
	n->heard += GRPC_PREFIX_BYTES + len;
	return report;
}

static void hear_all(struct sim_node *n)
{
	Ringvol__V1__ControllerReport *report;
	while ((report = hear(n)) != NULL)
		ringvol__v1__controller_report__free_unpacked(report, NULL);
}

/* The last roster among what was told; NULL: none. */
static Ringvol__V1__ControllerReport *hear_roster(struct sim_node *n)
{
	Ringvol__V1__ControllerReport *report, *last = NULL;
	while ((report = hear(n)) != NULL) {
		if (report->roster != NULL) {
			if (last != NULL)
				ringvol__v1__controller_report__free_unpacked(last, NULL);
			last = report;
		} else {
			ringvol__v1__controller_report__free_unpacked(report, NULL);
		}
	}
	return last;
}

static bool is_text(ProtobufCBinaryData data, const char *text)
{
	return data.len == strlen(text) && memcmp(data.data, text, data.len) == 0;
}

#define assert_ended(n, status, text)                                                              \
	do {                                                                                       \
		const struct answer *ended = answer_at(p, (n)->id);                                \
		cr_assert_eq(ended->grpc, status, "status %d: %s", ended->grpc, ended->message);   \
		cr_assert_not_null(strstr(ended->message, text), "%s", ended->message);            \
	} while (0)

#define assert_open(n) cr_assert_eq(answer_at(p, (n)->id)->grpc, -1)

/* Time passes in steps in which nodes say that they are still here. */
static void live(unsigned ms, struct sim_node *a, struct sim_node *b)
{
	for (unsigned done = 0; done < ms; done += 500) {
		peer_advance(p, 500);
		if (a != NULL && answer_at(p, a->id)->grpc == -1)
			tell(a, REPORT());
		if (b != NULL && answer_at(p, b->id)->grpc == -1)
			tell(b, REPORT());
	}
}

/* ---- how it goes ---- */

Test(join, a_node_tells_what_it_has)
{
	struct sim_node *n = &nodes[0];
	say_hello(n, "n1", "1");
	struct store_node *node = store_node(store, "n1");
	cr_assert_eq(node->state, STORE_NODE_JOINING);
	cr_assert_str_eq(node->address, "10.0.0.1:9444");
	cr_assert_str_eq(node->version, "9.8");
	Ringvol__V1__ControllerReport *welcome = hear(n);
	cr_assert(welcome != NULL && welcome->welcome != NULL);
	cr_assert(is_text(welcome->welcome->version, "9.9"));
	cr_assert(is_text(welcome->welcome->instance, "me"));
	ringvol__v1__controller_report__free_unpacked(welcome, NULL);
	say_pool(n, UUID_A, READY);
	say_object(n, volume_of(VOL_A));
	say_object(n, snapshot_of(SNAP_A, VOL_A));
	cr_assert_eq(n_joined, 0);
	say_synced(n);
	cr_assert_eq(n_joined, 1);
	const struct store_object *snapshot = store_object(store, SNAP_A);
	cr_assert_str_eq(object_source(snapshot), VOL_A);
	cr_assert_eq(snapshot->kind, STORE_SNAPSHOT);
	cr_assert_eq(store_pool(store, "aaaaaaaa")->count[STORE_VOLUME], 1);
	cr_assert_gt(node->seen_unix, 0);
	/* What changes. */
	ProtobufCBinaryData gone = bytes(VOL_A);
	tell(n, REPORT(.n_gone = 1, .gone = &gone));
	cr_assert_null(store_object(store, VOL_A));
	assert_open(n);
	/* It ends its side. */
	answer_at(p, n->id)->stay_open = false;
	nghttp2_session_resume_data(p->client, n->id);
	peer_pump(p);
	assert_ended(n, GRPC_OK, "");
	cr_assert_eq(node->state, STORE_NODE_ABSENT);
	cr_assert_eq(n_left, 1);
	cr_assert_not_null(store_object(store, SNAP_A));
}

Test(join, all_may_come_in_one_message)
{
	Ringvol__V1__Hello hello = hello_of("n1", "1");
	Ringvol__V1__NodePool pool = pool_of(UUID_A, READY);
	Ringvol__V1__NodeObject object = volume_of(VOL_A);
	tell(&nodes[0], REPORT(.hello = &hello, .n_pools = 1,
				.pools = LIST(Ringvol__V1__NodePool, &pool), .n_objects = 1,
				.objects = LIST(Ringvol__V1__NodeObject, &object), .synced = true));
	cr_assert_eq(store_node(store, "n1")->state, STORE_NODE_PRESENT);
	cr_assert_not_null(store_object(store, VOL_A));
}

Test(join, what_a_later_version_says_is_left_out)
{
	struct sim_node *n = &nodes[0];
	come(n, "n1", UUID_A, VOL_A);
	static const uint8_t unknown[] = {0xfa, 0x01, 3, 'n', 'e', 'w', 0x80, 0x02, 7};
	tell_bytes(n, unknown, sizeof(unknown));
	Ringvol__V1__NodeObject object = volume_of("aaaaaaaa.new-kind.00000001");
	object.kind = (Ringvol__V1__NodeObject__Kind)7;
	say_object(n, object);
	Ringvol__V1__NameClaim claim = claim_of("x");
	claim.kind = (Ringvol__V1__NodeObject__Kind)7;
	tell(n, REPORT(.n_claims = 1, .claims = LIST(Ringvol__V1__NameClaim, &claim)));
	say_pool(n, UUID_A, (Ringvol__V1__NodePool__State)9);
	cr_assert_eq(store_pool(store, "aaaaaaaa")->state, STORE_POOL_SICK);
	assert_open(n);
	cr_assert_eq(store_count(store, STORE_VOLUME), 1);
	/* An entry keeps what this version does not know. */
	object = volume_of("aaaaaaaa.pvc-2.00000001");
	uint8_t *longer = keep(object.entry.len + sizeof(unknown));
	memcpy(longer, object.entry.data, object.entry.len);
	memcpy(longer + object.entry.len, unknown, sizeof(unknown));
	object.entry = (ProtobufCBinaryData){object.entry.len + sizeof(unknown), longer};
	say_object(n, object);
	struct buf entry = {0};
	cr_assert_eq(object_entry(store_object(store, "aaaaaaaa.pvc-2.00000001"), &entry), 0);
	cr_assert_eq(entry.len, object.entry.len);
	cr_assert_eq(memcmp(entry.data, longer, entry.len), 0);
	buf_free(&entry);
}

Test(join, either_side_says_something_in_5_s)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1];
	struct store_node *node = come(a, "n1", UUID_A, VOL_A);
	come(b, "n2", UUID_B, VOL_B);
	live(2000, a, b);
	hear_all(a);
	live(5000, a, b);
	Ringvol__V1__ControllerReport *beat = hear(a);
	cr_assert(beat != NULL && beat->roster == NULL && beat->welcome == NULL);
	ringvol__v1__controller_report__free_unpacked(beat, NULL);
	cr_assert_null(hear(a));
	/* One falls silent. */
	live(14500, b, NULL);
	cr_assert_eq(node->state, STORE_NODE_PRESENT);
	live(1000, b, NULL);
	cr_assert_eq(node->state, STORE_NODE_ABSENT);
	assert_ended(a, GRPC_UNAVAILABLE, "15 s");
	assert_open(b);
	cr_assert_eq(n_left, 1);
	cr_assert_eq(left[0], node);
	cr_assert_not_null(store_object(store, VOL_A));
}

Test(join, a_call_without_a_hello_is_not_waited_for)
{
	tell(&nodes[0], REPORT());
	assert_ended(&nodes[0], GRPC_INVALID_ARGUMENT, "no hello");
	/* Nothing at all. */
	struct sim_node *n = &nodes[1];
	n->id = peer_request(p, &(struct request){.path = JOIN_PATH, .body = "", .len = 0});
	peer_pump(p);
	assert_ended(n, GRPC_OK, "");
	cr_assert_null(store_node_next(store, NULL));
}

Test(join, a_lost_connection_is_a_node_that_left)
{
	struct store_node *node = come(&nodes[0], "n1", UUID_A, VOL_A);
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, nodes[0].id, NGHTTP2_CANCEL);
	peer_pump(p);
	cr_assert_eq(node->state, STORE_NODE_ABSENT);
	come(&nodes[1], "n1", UUID_A, VOL_A);
	peer_reconnect(p);
	cr_assert_eq(node->state, STORE_NODE_ABSENT);
	cr_assert_eq(n_left, 2);
	memset(&nodes[2], 0, sizeof(nodes[2]));
	come(&nodes[2], "n1", UUID_A, VOL_A);
}

Test(join, a_drain_ends_calls_and_forgets_no_node)
{
	struct store_node *node = come(&nodes[0], "n1", UUID_A, VOL_A);
	joins_drain(joins);
	peer_pump(p);
	assert_ended(&nodes[0], GRPC_UNAVAILABLE, "shuts down");
	cr_assert_eq(node->state, STORE_NODE_PRESENT);
	cr_assert_eq(n_left, 0);
	say_hello(&nodes[1], "n2", "1");
	assert_ended(&nodes[1], GRPC_UNAVAILABLE, "shuts down");
}

/* ---- refusals ---- */

static void refuse_hello(Ringvol__V1__Hello *hello, int status, const char *text)
{
	static unsigned at;
	struct sim_node *n = &nodes[at++ % 16];
	buf_free(&n->sent);
	*n = (struct sim_node){0};
	tell(n, REPORT(.hello = hello));
	assert_ended(n, status, text);
	cr_assert_null(store_node_next(store, NULL));
}

Test(join, refuses_a_hello_that_is_none)
{
	static char large[400];
	memset(large, 'x', sizeof(large) - 1);
	Ringvol__V1__Hello hello = hello_of("", "1");
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "node_id is missing");
	hello = hello_of(large, "1");
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "node_id");
	hello = hello_of("a\nb", "1");
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "node_id");
	hello = hello_of("a\xff", "1");
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "node_id");
	hello = hello_of("n1", "1");
	hello.node_id = (ProtobufCBinaryData){3, (uint8_t *)"n\0001"};
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "node_id");
	hello = hello_of("n1", "");
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "instance is missing");
	hello = hello_of("n1", large);
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "instance");
	hello = hello_of("n1", "1");
	hello.version = bytes(large);
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "version");
	hello = hello_of("n1", "1");
	hello.driver_name = bytes("csi.example.com");
	refuse_hello(&hello, GRPC_FAILED_PRECONDITION, "csi.example.com");
	static const char *const addresses[] = {"", "host", ":1", "host:", "host:0", "host:65536",
		"host:x", "host:1x", "a b:1", "host:123456"};
	for (unsigned i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
		hello = hello_of("n1", "1");
		hello.address = bytes(addresses[i]);
		refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "address");
	}
}

Test(join, refuses_a_topology_that_is_none)
{
	Ringvol__V1__Hello hello = hello_of("n1", "1");
	hello.n_topology = 0;
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, CSI_TOPOLOGY_KEY " is missing");
	hello = hello_of("n1", "1");
	hello.topology[0] = segment(CSI_TOPOLOGY_KEY, "n2");
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "not the node's own");
	hello = hello_of("n1", "1");
	hello.topology[1] = hello.topology[0];
	hello.n_topology = 2;
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "not the node's own");
	hello = hello_of("n1", "1");
	hello.topology[1] = segment("", "x");
	hello.n_topology = 2;
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "topology.key");
	hello = hello_of("n1", "1");
	hello.topology[1] = segment("zone", "a\x01");
	hello.n_topology = 2;
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "topology.value");
	hello = hello_of("n1", "1");
	hello.n_topology = HEAR_SEGMENTS_MAX + 1;
	hello.topology = keep(hello.n_topology * sizeof(*hello.topology));
	for (size_t i = 0; i < hello.n_topology; i++)
		hello.topology[i] = segment(CSI_TOPOLOGY_KEY, "n1");
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "segments");
}

Test(join, a_certificate_is_one_nodes)
{
	static const struct grpc_peer n7 = {.role = GRPC_PEER_NODE, .node_id = "n7"},
				      controller = {.role = GRPC_PEER_CONTROLLER};
	p->as = &n7;
	peer_reconnect(p);
	Ringvol__V1__Hello hello = hello_of("n1", "1");
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "the certificate is of node n7, and not of n1");
	struct sim_node *n = &nodes[15];
	say_hello(n, "n7", "1");
	assert_open(n);
	p->as = &controller;
	peer_reconnect(p);
	say_hello(&nodes[14], "n8", "1");
	assert_ended(&nodes[14], GRPC_PERMISSION_DENIED, "nodes");
	p->as = NULL;
	peer_reconnect(p);
	say_hello(&nodes[13], "n9", "1");
	assert_ended(&nodes[13], GRPC_UNAUTHENTICATED, "");
}

/* A node that is here says something that ends its call, and only its. */
static void refuse_report(const Ringvol__V1__NodeReport *report, int status, const char *text)
{
	static unsigned at;
	struct sim_node *n = &nodes[1 + at++ % 15];
	buf_free(&n->sent);
	*n = (struct sim_node){0};
	struct store_node *node = come(n, "n1", UUID_A, VOL_A);
	tell(n, report);
	assert_ended(n, status, text);
	cr_assert_eq(node->state, STORE_NODE_ABSENT);
	cr_assert_not_null(store_object(store, VOL_A));
}

Test(join, refuses_reports_that_are_none)
{
	Ringvol__V1__Hello hello = hello_of("n1", "1");
	refuse_report(REPORT(.hello = &hello), GRPC_INVALID_ARGUMENT, "second hello");
	/* pools */
	Ringvol__V1__NodePool pool = pool_of("aaaa", READY);
#define POOL REPORT(.n_pools = 1, .pools = LIST(Ringvol__V1__NodePool, &pool))
	refuse_report(POOL, GRPC_INVALID_ARGUMENT, "32 digits");
	pool = pool_of("AAAAAAAA000000000000000000000001", READY);
	refuse_report(POOL, GRPC_INVALID_ARGUMENT, "32 digits");
	pool = pool_of(UUID_A "00", READY);
	refuse_report(POOL, GRPC_INVALID_ARGUMENT, "pools.uuid");
	pool = pool_of(UUID_A, READY);
	pool.name = bytes("");
	refuse_report(POOL, GRPC_INVALID_ARGUMENT, "pools.name");
	pool = pool_of(UUID_A, READY);
	pool.why = bytes("\x01");
	refuse_report(POOL, GRPC_INVALID_ARGUMENT, "pools.why");
	/* objects */
	Ringvol__V1__NodeObject object = volume_of("nonsense");
#define OBJECT REPORT(.n_objects = 1, .objects = LIST(Ringvol__V1__NodeObject, &object))
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "nonsense");
	object = volume_of("");
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "objects.id");
	object = volume_of(VOL_A);
	object.source_id = bytes("nonsense");
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "source");
	object = volume_of("aaaaaaaa.another.00000001");
	object.id = bytes(VOL_A);
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "another id");
	object = volume_of(VOL_A);
	object.entry = bytes("no message");
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "is no Entry");
	object = volume_of(VOL_A);
	object.entry = bytes("");
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "another id");
	object = volume_of(VOL_A);
	object.kind = RINGVOL__V1__NODE_OBJECT__KIND__SNAPSHOT;
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, VOL_A);
	object = volume_of(VOL_A);
	object.health = bytes("no message");
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "VolumeHealth");
	object = snapshot_of(VOL_A, "");
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "as a volume and as a snapshot");
	/* names of what is gone */
	ProtobufCBinaryData gone = bytes("nonsense");
	refuse_report(REPORT(.n_gone = 1, .gone = &gone), GRPC_INVALID_ARGUMENT, "gone");
	Ringvol__V1__NameClaim claim = claim_of("a/b");
	refuse_report(REPORT(.n_claims = 1, .claims = LIST(Ringvol__V1__NameClaim, &claim)),
		GRPC_INVALID_ARGUMENT, "key");
	refuse_report(REPORT(.n_released = 1, .released = LIST(Ringvol__V1__NameClaim, &claim)),
		GRPC_INVALID_ARGUMENT, "key");
	Ringvol__V1__NodeCapacity capacity = RINGVOL__V1__NODE_CAPACITY__INIT;
	capacity.response = bytes("no message");
	refuse_report(
		REPORT(.n_capacities = 1, .capacities = LIST(Ringvol__V1__NodeCapacity, &capacity)),
		GRPC_INVALID_ARGUMENT, "GetCapacity");
}

/* Texts that a client could not read in a list of all. */
Test(join, refuses_an_entry_that_is_no_text)
{
	Ringvol__V1__NodeObject object = volume_of(VOL_A);
	Csi__V1__VolumeCondition condition = CSI__V1__VOLUME_CONDITION__INIT;
	Csi__V1__ListVolumesResponse__VolumeStatus status =
		CSI__V1__LIST_VOLUMES_RESPONSE__VOLUME_STATUS__INIT;
	Csi__V1__Volume volume = CSI__V1__VOLUME__INIT;
	Csi__V1__ListVolumesResponse__Entry entry = CSI__V1__LIST_VOLUMES_RESPONSE__ENTRY__INIT;
	ProtobufCBinaryData at = bytes("\xc0\xaf");
	volume.volume_id = bytes(VOL_A);
	entry.volume = &volume;
	entry.status = &status;
	for (unsigned i = 0; i < 2; i++) {
		status = (Csi__V1__ListVolumesResponse__VolumeStatus)
			CSI__V1__LIST_VOLUMES_RESPONSE__VOLUME_STATUS__INIT;
		if (i == 0) {
			status.n_published_node_ids = 1;
			status.published_node_ids = &at;
		} else {
			condition.message = bytes("\xed\xa0\x80");
			status.volume_condition = &condition;
		}
		object.entry = packed(&entry.base);
		refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "is no Entry");
	}
}

/* ---- nodes and pools that are there twice ---- */

Test(join, two_nodes_have_one_id)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1], *c = &nodes[2];
	struct store_node *node = come(a, "n1", UUID_A, VOL_A);
	say_hello(b, "n1", "2");
	assert_ended(b, GRPC_ALREADY_EXISTS, "--node-id");
	assert_open(a);
	cr_assert_eq(node->state, STORE_NODE_PRESENT);
	/* The first is absent: it was a restart. */
	live(15500, NULL, NULL);
	assert_ended(a, GRPC_UNAVAILABLE, "silent");
	say_hello(c, "n1", "2");
	assert_open(c);
	cr_assert_eq(node->state, STORE_NODE_JOINING);
}

Test(join, a_newer_call_of_a_process_takes_over)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1];
	struct store_node *node = come(a, "n1", UUID_A, VOL_A);
	say_hello(b, "n1", "1");
	assert_ended(a, GRPC_ABORTED, "newer call");
	assert_open(b);
	cr_assert_eq(node->state, STORE_NODE_JOINING);
	cr_assert_eq(n_left, 0);
	say_pool(b, UUID_A, READY);
	say_synced(b);
	cr_assert_eq(node->state, STORE_NODE_PRESENT);
	cr_assert_null(store_object(store, VOL_A));
}

/* Its report of the pool comes before the controller has looked. */
Test(join, a_pool_that_was_refused_is_told_with_all_that_is_in_it)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1];
	struct store_node *first = come(a, "n1", UUID_A, VOL_A);
	come(b, "n2", UUID_B, VOL_B);
	say_pool(b, UUID_A, READY);
	say_object(b, volume_of("aaaaaaaa.other.00000001"));
	say_pool(a, UUID_A, RINGVOL__V1__NODE_POOL__STATE__MISSING);
	say_pool(b, UUID_A, READY);
	say_synced(b);
	assert_open(b);
	cr_assert_eq(store_pool(store, "aaaaaaaa")->node, first);
	cr_assert_not_null(store_object(store, VOL_A));
	live(500, a, b);
	assert_ended(b, GRPC_UNAVAILABLE, "join again");
	come(&nodes[2], "n2", UUID_A, "aaaaaaaa.other.00000001");
	cr_assert_str_eq(store_pool(store, "aaaaaaaa")->node->id, "n2");
	cr_assert_not_null(store_object(store, "aaaaaaaa.other.00000001"));
}

Test(join, a_pool_at_two_nodes_is_the_first_ones)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1];
	struct store_node *first = come(a, "n1", UUID_A, VOL_A);
	struct joins_stats stats;
	come(b, "n2", UUID_B, VOL_B);
	say_pool(b, UUID_A, READY);
	say_object(b, volume_of("aaaaaaaa.other.00000001"));
	ProtobufCBinaryData gone = bytes(VOL_A);
	tell(b, REPORT(.n_gone = 1, .gone = &gone));
	assert_open(b);
	cr_assert_null(store_object(store, "aaaaaaaa.other.00000001"));
	cr_assert_not_null(store_object(store, VOL_A));
	cr_assert_eq(store_pool(store, "aaaaaaaa")->node, first);
	joins_stats(joins, &stats);
	cr_assert_eq(stats.at_two, 1);
	live(1000, a, b);
	assert_open(b);
	/* The first one lets go: the other tells it all again. */
	say_pool(a, UUID_A, RINGVOL__V1__NODE_POOL__STATE__MISSING);
	live(500, a, b);
	assert_ended(b, GRPC_UNAVAILABLE, "join again");
	assert_open(a);
	struct sim_node *again = &nodes[2];
	struct store_node *second = come(again, "n2", UUID_A, VOL_A);
	cr_assert_eq(store_pool(store, "aaaaaaaa")->node, second);
	/* And the first may go on missing it. */
	say_pool(a, UUID_A, RINGVOL__V1__NODE_POOL__STATE__MISSING);
	joins_stats(joins, &stats);
	cr_assert_eq(stats.at_two, 0);
	live(1000, a, again);
	assert_open(a);
}

Test(join, a_refused_pool_that_goes_is_not_waited_for)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1];
	come(a, "n1", UUID_A, VOL_A);
	come(b, "n2", UUID_B, VOL_B);
	say_pool(b, UUID_A, READY);
	Ringvol__V1__NodePool pool = pool_of(UUID_A, READY);
	pool.gone = true;
	tell(b, REPORT(.n_pools = 1, .pools = LIST(Ringvol__V1__NodePool, &pool)));
	cr_assert_not_null(store_object(store, VOL_A));
	say_pool(a, UUID_A, RINGVOL__V1__NODE_POOL__STATE__MISSING);
	live(1000, a, b);
	assert_open(b);
	/* One with the same 8 digits is never had, and nobody waits for it. */
	say_pool(b, "aaaaaaaa00000000000000000000000f", READY);
	live(1000, a, b);
	assert_open(b);
	/* A pool that nobody could read has no uuid. */
	say_pool(b, "", RINGVOL__V1__NODE_POOL__STATE__MISSING);
	assert_open(b);
}

Test(join, a_forgotten_pool_that_comes_is_not_forgotten)
{
	cr_assert_eq(store_forget(store, "aaaaaaaa"), 0);
	come(&nodes[0], "n1", UUID_A, VOL_A);
	cr_assert_not(store_pool(store, "aaaaaaaa")->forgotten);
}

/* ---- names ---- */

static const Ringvol__V1__NameVerdict *verdict(
	struct sim_node *n, const char *key, Ringvol__V1__ControllerReport **ret)
{
	Ringvol__V1__NameClaim claim = claim_of(key);
	hear_all(n);
	tell(n, REPORT(.n_claims = 1, .claims = LIST(Ringvol__V1__NameClaim, &claim)));
	*ret = hear(n);
	cr_assert(*ret != NULL && (*ret)->n_verdicts == 1);
	cr_assert(is_text((*ret)->verdicts[0]->key, key));
	return (*ret)->verdicts[0];
}

Test(join, names_are_claimed_and_released)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1];
	Ringvol__V1__ControllerReport *report;
	struct store_node *node = come(a, "n1", UUID_A, VOL_A);
	come(b, "n2", UUID_B, "bbbbbbbb.pvc-9.00000001");
	cr_assert(verdict(a, "pvc-5", &report)->granted);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-5"), node);
	const Ringvol__V1__NameVerdict *no = verdict(b, "pvc-5", &report);
	cr_assert_not(no->granted);
	cr_assert(is_text(no->node_id, "n1"));
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	/* It is not the other's to release. */
	Ringvol__V1__NameClaim claim = claim_of("pvc-5");
	tell(b, REPORT(.n_released = 1, .released = LIST(Ringvol__V1__NameClaim, &claim)));
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-5"), node);
	tell(a, REPORT(.n_released = 1, .released = LIST(Ringvol__V1__NameClaim, &claim)));
	cr_assert_null(store_name(store, STORE_VOLUME, "pvc-5"));
	/* Released and claimed again in one message: it is being made. */
	tell(a, REPORT(.n_released = 1, .released = LIST(Ringvol__V1__NameClaim, &claim),
			.n_claims = 1, .claims = LIST(Ringvol__V1__NameClaim, &claim)));
	cr_assert_eq(store_name(store, STORE_VOLUME, "pvc-5"), node);
	/* What is made is told. */
	say_object(a, volume_of("aaaaaaaa.pvc-5.00000001"));
	cr_assert_null(store_name_maker(store, STORE_VOLUME, "pvc-5"));
	no = verdict(b, "pvc-5", &report);
	cr_assert_not(no->granted);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	cr_assert(verdict(a, "pvc-5", &report)->granted);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
}

Test(join, a_name_on_two_nodes_is_kept)
{
	come(&nodes[0], "n1", UUID_A, VOL_A);
	come(&nodes[1], "n2", UUID_B, VOL_B);
	cr_assert_eq(store_duplicates(store), 1);
	assert_open(&nodes[0]);
	assert_open(&nodes[1]);
}

Test(join, so_many_claims_fit_a_report)
{
	size_t n = STORE_NODE_CLAIMS_MAX + 1;
	Ringvol__V1__NameClaim *claims = calloc(n, sizeof(*claims)), **list = calloc(n, 8);
	char(*keys)[16] = calloc(n, sizeof(*keys));
	for (size_t i = 0; i < n; i++) {
		snprintf(keys[i], sizeof(keys[i]), "k%zu", i);
		claims[i] = claim_of(keys[i]);
		list[i] = &claims[i];
	}
	struct sim_node *a = &nodes[0];
	come(a, "n1", UUID_A, VOL_A);
	hear_all(a);
	tell(a, REPORT(.n_claims = n - 1, .claims = list));
	Ringvol__V1__ControllerReport *report = hear(a);
	cr_assert_eq(report->n_verdicts, n - 1);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	/* One more is refused, and is nobody's. */
	tell(a, REPORT(.n_claims = 1, .claims = list + n - 1));
	report = hear(a);
	cr_assert(report != NULL && report->n_verdicts == 1 && !report->verdicts[0]->granted);
	cr_assert_eq(report->verdicts[0]->node_id.len, 0);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	assert_open(a);
	struct sim_node *b = &nodes[1];
	come(b, "n2", UUID_B, VOL_B);
	tell(b, REPORT(.n_claims = n, .claims = list));
	assert_ended(b, GRPC_INVALID_ARGUMENT, "claims");
	free(claims);
	free(list);
	free(keys);
}

/* ---- what nodes are told ---- */

static uint32_t make_class(uint8_t request)
{
	uint32_t class;
	bool is_new;
	cr_assert_eq(store_class(store, &request, 1, &class, &is_new), 0);
	cr_assert(is_new);
	joins_tell_classes(joins);
	return class;
}

Test(join, classes_are_told_at_once_and_when_they_are_new)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1];
	uint32_t first = make_class(1);
	say_hello(a, "n1", "1");
	Ringvol__V1__ControllerReport *report = hear(a);
	cr_assert_not_null(report->welcome);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	report = hear(a);
	cr_assert(report != NULL && report->n_classes == 1);
	cr_assert_eq(report->classes[0]->class_, first);
	cr_assert(report->classes[0]->request.len == 1 && report->classes[0]->request.data[0] == 1);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	say_hello(b, "n2", "1");
	hear_all(b);
	/* Two new ones together, and not the old one again. */
	make_class(2);
	make_class(3);
	peer_advance(p, 2 * JOIN_CLASSES_MS);
	for (unsigned i = 0; i < 2; i++) {
		report = hear(&nodes[i]);
		cr_assert(report != NULL && report->n_classes == 2);
		ringvol__v1__controller_report__free_unpacked(report, NULL);
	}
	/* What it answers. */
	Csi__V1__GetCapacityResponse response = CSI__V1__GET_CAPACITY_RESPONSE__INIT;
	Ringvol__V1__NodeCapacity capacity = RINGVOL__V1__NODE_CAPACITY__INIT;
	uint8_t answer[64];
	size_t len;
	response.available_capacity = 42;
	capacity.class_ = first;
	capacity.response.len = csi__v1__get_capacity_response__pack(&response, answer);
	capacity.response.data = answer;
	tell(a, REPORT(.n_capacities = 1,
			.capacities = LIST(Ringvol__V1__NodeCapacity, &capacity)));
	const uint8_t *said = store_capacity(store, store_node(store, "n1"), first, &len);
	cr_assert(len == capacity.response.len && memcmp(said, answer, len) == 0);
	cr_assert_null(store_capacity(store, store_node(store, "n2"), first, &len));
}

Test(join, rosters_tell_who_has_something)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1];
	come(a, "n1", UUID_A, VOL_A);
	say_hello(b, "n2", "1");
	say_pool(b, UUID_B, READY); /* empty */
	live(500, a, b);
	Ringvol__V1__ControllerReport *report = hear_roster(b);
	cr_assert(report != NULL && report->roster->n_nodes == 1);
	cr_assert(is_text(report->roster->nodes[0]->node_id, "n1"));
	cr_assert_eq(report->roster->nodes[0]->n_pools, 1);
	cr_assert(is_text(report->roster->nodes[0]->pools[0], "aaaaaaaa"));
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	/* It is told again when it is another one, and not each time something changes. */
	say_object(a, volume_of("aaaaaaaa.more.00000001"));
	live(2000, a, b);
	cr_assert_null(hear_roster(b));
	say_object(b, volume_of(VOL_B));
	live(500, a, b);
	live(1000, a, b);
	report = hear_roster(b);
	cr_assert(report != NULL && report->roster->n_nodes == 2);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	/* One that comes later, and changes nothing. */
	say_hello(&nodes[2], "n3", "1");
	live(500, a, b);
	report = hear_roster(&nodes[2]);
	cr_assert(report != NULL && report->roster->n_nodes == 2);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
}

/* While many come, a roster would be another one at each tick. */
Test(join, a_large_roster_is_told_when_it_has_settled)
{
	static struct sim_node many[JOIN_ROSTER_FEW + 8];
	char id[16], uuid[33], volume[64];
	unsigned told = 0;
	for (unsigned i = 0; i < JOIN_ROSTER_FEW + 8; i++) {
		snprintf(id, sizeof(id), "n%u", i);
		snprintf(uuid, sizeof(uuid), "%08x%024x", i, 0);
		snprintf(volume, sizeof(volume), "%08x.v.00000001", i);
		come(&many[i], id, uuid, volume);
		if (i % 8 == 0)
			peer_advance(p, JOIN_TICK_MS);
	}
	Ringvol__V1__ControllerReport *report = hear_roster(&many[JOIN_ROSTER_FEW + 7]);
	cr_assert_null(report);
	for (unsigned i = 0; i < 8; i++)
		peer_advance(p, JOIN_TICK_MS);
	for (unsigned i = 0; i < JOIN_ROSTER_FEW + 8; i++) {
		report = hear_roster(&many[i]);
		cr_assert_not_null(report);
		told += report->roster->n_nodes == JOIN_ROSTER_FEW + 8;
		ringvol__v1__controller_report__free_unpacked(report, NULL);
	}
	cr_assert_eq(told, JOIN_ROSTER_FEW + 8);
}

Test(join, a_controller_that_has_just_started_learns_who_is_missing)
{
	struct err err = {0};
	Ringvol__V1__RosterNode missing = RINGVOL__V1__ROSTER_NODE__INIT;
	ProtobufCBinaryData pools[] = {bytes("bbbbbbbb")};
	missing.node_id = bytes("n2");
	missing.n_pools = 1;
	missing.pools = pools;
	Ringvol__V1__Hello hello = hello_of("n1", "1");
	hello.n_roster = 1;
	hello.roster = LIST(Ringvol__V1__RosterNode, &missing);
	tell(&nodes[0], REPORT(.hello = &hello));
	say_synced(&nodes[0]);
	cr_assert_eq(store_whole(store, &err), -EAGAIN, "%s", err.message);
	cr_assert_not_null(strstr(err.message, "n2"));
	/* It goes on being told, so that the next one that starts knows it, too. */
	live(500, &nodes[0], NULL);
	Ringvol__V1__ControllerReport *report = hear_roster(&nodes[0]);
	cr_assert(report != NULL && report->roster->n_nodes == 1);
	ringvol__v1__controller_report__free_unpacked(report, NULL);
	come(&nodes[1], "n2", UUID_B, VOL_B);
	/* Others may come that it has not heard of. */
	err_clear(&err);
	cr_assert_eq(store_whole(store, &err), -EAGAIN);
	cr_assert_not_null(strstr(err.message, "just started"));
	live(JOIN_SETTLE_MS, &nodes[0], &nodes[1]);
	err_clear(&err);
	cr_assert_eq(store_whole(store, &err), 0, "%s", err.message);
}

Test(join, time_has_to_pass)
{
	struct err err = {0};
	come(&nodes[0], "n1", UUID_A, VOL_A);
	cr_assert_lt(store_whole(store, &err), 0);
	live(JOIN_SETTLE_MS + 500, &nodes[0], NULL);
	err_clear(&err);
	cr_assert_eq(store_whole(store, &err), 0);
}

Test(join, refuses_a_roster_that_is_none)
{
	Ringvol__V1__RosterNode node = RINGVOL__V1__ROSTER_NODE__INIT;
	ProtobufCBinaryData pools[STORE_NODE_POOLS_MAX + 1];
	Ringvol__V1__Hello hello = hello_of("n1", "1");
	hello.n_roster = 1;
	hello.roster = LIST(Ringvol__V1__RosterNode, &node);
	for (unsigned i = 0; i <= STORE_NODE_POOLS_MAX; i++)
		pools[i] = bytes("bbbbbbbb");
	node.pools = pools;
	node.node_id = bytes("n2");
	static const struct {
		const char *id, *pool;
		size_t n;
	} bad[] = {{"", "bbbbbbbb", 1}, {"n2", "bbbbbbb", 1}, {"n2", "bbbbbbbbb", 1},
		{"n2", "BBBBBBBB", 1}, {"n2", "bbbbbbbb", STORE_NODE_POOLS_MAX + 1}};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct sim_node *n = &nodes[i];
		node.node_id = bytes(bad[i].id);
		pools[0] = bytes(bad[i].pool);
		node.n_pools = bad[i].n;
		tell(n, REPORT(.hello = &hello));
		assert_ended(n, GRPC_INVALID_ARGUMENT, "roster");
		cr_assert_eq(store_node(store, "n1")->state, STORE_NODE_ABSENT);
	}
}

/* A node that reads nothing: no more of it is taken than what fits, and then it is cut off. */
Test(join, a_node_that_never_reads_is_cut_off)
{
	struct sim_node *a = &nodes[0];
	struct store_node *node = come(a, "n1", UUID_A, VOL_A);
	size_t n = 1000;
	Ringvol__V1__NameClaim claim = claim_of("pvc-5"), **list = keep(n * 8);
	for (size_t i = 0; i < n; i++)
		list[i] = &claim;
	p->deaf = true;
	for (unsigned i = 0; i < 400; i++)
		tell(a, REPORT(.n_claims = n, .claims = list));
	cr_assert_lt(grpc_registry_memory(p->registry), 4 << 20);
	live(16000, NULL, NULL);
	cr_assert_eq(node->state, STORE_NODE_ABSENT);
	struct joins_stats stats;
	joins_stats(joins, &stats);
	cr_assert_eq(stats.silent, 1);
	p->deaf = false;
	peer_pump(p);
	assert_ended(a, GRPC_UNAVAILABLE, "has not read");
}

/* ---- at the limits of what is taken ---- */

/* So many x, and an end of its own. */
static const char *text_of(size_t len, const char *end)
{
	char *made = keep(len + 1);
	memset(made, 'x', len);
	memcpy(made + len - strlen(end), end, strlen(end));
	return made;
}

Test(join, takes_what_is_just_within_the_limits)
{
	const char *id = text_of(HEAR_NODE_ID_MAX, " ~\xc3\xa4");
	const char *address = text_of(HEAR_TEXT_MAX, ":65535");
	struct sim_node *n = &nodes[0];
	Ringvol__V1__Hello hello = hello_of(id, text_of(HEAR_TEXT_MAX, ""));
	hello.version = bytes(text_of(HEAR_TEXT_MAX, ""));
	hello.address = bytes(address);
	hello.n_topology = HEAR_SEGMENTS_MAX;
	hello.topology = keep(HEAR_SEGMENTS_MAX * sizeof(*hello.topology));
	hello.topology[0] = segment(CSI_TOPOLOGY_KEY, id);
	for (unsigned i = 1; i < HEAR_SEGMENTS_MAX; i++)
		hello.topology[i] = segment(text_of(HEAR_KEY_MAX, ""), "");
	Ringvol__V1__RosterNode roster = RINGVOL__V1__ROSTER_NODE__INIT;
	ProtobufCBinaryData pools[STORE_NODE_POOLS_MAX];
	char uuid8s[STORE_NODE_POOLS_MAX][STORE_UUID8 + 1];
	for (unsigned i = 0; i < STORE_NODE_POOLS_MAX; i++) {
		snprintf(uuid8s[i], sizeof(uuid8s[i]), "%08x", 0x1000 + i);
		pools[i] = bytes(uuid8s[i]);
	}
	roster.node_id = bytes(text_of(HEAR_NODE_ID_MAX, "y"));
	roster.pools = pools;
	roster.n_pools = STORE_NODE_POOLS_MAX;
	hello.n_roster = 1;
	hello.roster = LIST(Ringvol__V1__RosterNode, &roster);
	tell(n, REPORT(.hello = &hello));
	assert_open(n);
	const struct store_node *node = store_node(store, id);
	cr_assert_not_null(node);
	cr_expect_str_eq(node->address, address);
	cr_expect_eq(node->n_topology, HEAR_SEGMENTS_MAX);
	node = store_node(store, text_of(HEAR_NODE_ID_MAX, "y"));
	cr_assert_not_null(node);
	cr_expect_eq(node->n_pools, STORE_NODE_POOLS_MAX);
	Ringvol__V1__NodePool pool = pool_of(UUID_A, READY);
	pool.name = bytes(text_of(HEAR_TEXT_MAX, ""));
	pool.why = bytes(text_of(HEAR_WHY_MAX, ""));
	tell(n, REPORT(.n_pools = 1, .pools = LIST(Ringvol__V1__NodePool, &pool)));
	assert_open(n);
	cr_expect_str_eq(store_pool(store, "aaaaaaaa")->why, text_of(HEAR_WHY_MAX, ""));
}

Test(join, refuses_what_is_just_beyond_the_limits)
{
	Ringvol__V1__Hello hello = hello_of(text_of(HEAR_NODE_ID_MAX + 1, ""), "1");
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "node_id: is no text, or longer than 255");
	hello = hello_of("n1", text_of(HEAR_TEXT_MAX + 1, ""));
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "instance: is no text, or longer than 255");
	hello = hello_of("n1", "1");
	hello.version = bytes(text_of(HEAR_TEXT_MAX + 1, ""));
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "version: is no text, or longer than 255");
	hello = hello_of("n1", "1");
	hello.driver_name = bytes(text_of(HEAR_TEXT_MAX + 1, ""));
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "driver_name: is no text");
	hello = hello_of("n1", "1");
	hello.address = bytes(text_of(HEAR_TEXT_MAX + 1, ":1"));
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "address: is no text, or longer than 255");
	static const char *const ends[] = {"\x1f", "\x7f"};
	for (unsigned i = 0; i < 2; i++) {
		hello = hello_of("n1", text_of(8, ends[i]));
		refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "instance: is no text");
	}
	hello = hello_of("n1", "1");
	hello.topology[1] = segment(text_of(HEAR_KEY_MAX + 1, ""), "x");
	hello.n_topology = 2;
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "topology.key: is no text, or longer than 317");
	hello = hello_of("n1", "1");
	hello.topology[1] = segment("zone", text_of(HEAR_NODE_ID_MAX + 1, ""));
	hello.n_topology = 2;
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "topology.value: is no text");
	hello = hello_of("n1", "1");
	Ringvol__V1__RosterNode roster = RINGVOL__V1__ROSTER_NODE__INIT;
	hello.n_roster = STORE_NODES_MAX + 1;
	hello.roster = keep(hello.n_roster * sizeof(*hello.roster));
	for (size_t i = 0; i < hello.n_roster; i++)
		hello.roster[i] = &roster;
	refuse_hello(&hello, GRPC_INVALID_ARGUMENT, "roster: more than 5000 nodes");
}

Test(join, refuses_reports_just_beyond_the_limits)
{
	Ringvol__V1__NodePool pool = pool_of(UUID_A, READY);
	pool.name = bytes(text_of(HEAR_TEXT_MAX + 1, ""));
	refuse_report(POOL, GRPC_INVALID_ARGUMENT, "pools.name: is no text, or longer than 255");
	pool = pool_of(UUID_A, READY);
	pool.why = bytes(text_of(HEAR_WHY_MAX + 1, ""));
	refuse_report(POOL, GRPC_INVALID_ARGUMENT, "pools.why: is no text, or longer than 1024");
	static const char *const uuid8s[] = {"aaaaaaa", "aaaaaaag", "AAAAAAAA"};
	for (unsigned i = 0; i < 3; i++) {
		Ringvol__V1__NodeObject object = volume_of(VOL_A);
		object.pool = bytes(uuid8s[i]);
		refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "objects.pool: are no uuid's 8");
	}
	Ringvol__V1__NodeObject object = volume_of(VOL_A);
	object.pool = bytes("aaaaaaaaa");
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "objects.pool: is no text, or longer than 8");
	object = volume_of(VOL_A);
	object.source_id = bytes(text_of(RECORD_ID_MAX, ""));
	refuse_report(OBJECT, GRPC_INVALID_ARGUMENT, "objects.source_id: is no text, or longer");
	ProtobufCBinaryData gone = bytes("");
	refuse_report(REPORT(.n_gone = 1, .gone = &gone), GRPC_INVALID_ARGUMENT, "gone is missing");
}

/* A later version's kinds are left out, and what is another node's stays that one's. */
Test(join, what_a_node_says_of_others_or_of_later_kinds_changes_nothing)
{
	struct sim_node *a = &nodes[0], *b = &nodes[1];
	come(a, "n1", UUID_A, VOL_A);
	come(b, "n2", UUID_B, "bbbbbbbb.other.00000001");
	hear_all(a);
	Ringvol__V1__NodeObject object = volume_of("aaaaaaaa.later.00000009");
	object.kind = (Ringvol__V1__NodeObject__Kind)99;
	say_object(a, object);
	cr_expect_null(store_object(store, "aaaaaaaa.later.00000009"));
	Ringvol__V1__NameClaim claim = claim_of("pvc");
	claim.kind = (Ringvol__V1__NodeObject__Kind)99;
	tell(a, REPORT(.n_claims = 1, .claims = LIST(Ringvol__V1__NameClaim, &claim)));
	tell(a, REPORT(.n_released = 1, .released = LIST(Ringvol__V1__NameClaim, &claim)));
	cr_expect_null(hear(a), "there is no verdict on it");
	/* What the other node has. */
	say_object(a, volume_of("bbbbbbbb.mine.00000002"));
	cr_expect_null(store_object(store, "bbbbbbbb.mine.00000002"));
	ProtobufCBinaryData gone = bytes("bbbbbbbb.other.00000001");
	tell(a, REPORT(.n_gone = 1, .gone = &gone));
	cr_expect_not_null(store_object(store, "bbbbbbbb.other.00000001"));
	Ringvol__V1__NodePool pool = pool_of(UUID_B, READY);
	pool.gone = true;
	tell(a, REPORT(.n_pools = 1, .pools = LIST(Ringvol__V1__NodePool, &pool)));
	cr_expect_not_null(store_object(store, "bbbbbbbb.other.00000001"));
	cr_expect(store_pool_here(store_pool(store, "bbbbbbbb")));
	assert_open(a);
	/* Its own. */
	pool = pool_of(UUID_A, READY);
	pool.gone = true;
	tell(a, REPORT(.n_pools = 1, .pools = LIST(Ringvol__V1__NodePool, &pool)));
	cr_expect(!store_pool_here(store_pool(store, "aaaaaaaa")));
	assert_open(a);
}

Test(join, states_of_a_pool_and_those_of_later_versions)
{
	static const struct {
		int told;
		enum store_pool_state state;
	} states[] = {
		{RINGVOL__V1__NODE_POOL__STATE__LOADING, STORE_POOL_LOADING},
		{RINGVOL__V1__NODE_POOL__STATE__MISSING, STORE_POOL_MISSING},
		{RINGVOL__V1__NODE_POOL__STATE__SICK, STORE_POOL_SICK},
		{99, STORE_POOL_SICK},
		{RINGVOL__V1__NODE_POOL__STATE__READY, STORE_POOL_READY},
	};
	come(&nodes[0], "n1", UUID_A, VOL_A);
	for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
		say_pool(&nodes[0], UUID_A, (Ringvol__V1__NodePool__State)states[i].told);
		cr_expect_eq(store_pool(store, "aaaaaaaa")->state, states[i].state, "%u", i);
	}
}

Test(join, an_answer_of_a_capacity_has_its_size)
{
	uint8_t answer[2 + 1 + CLASS_ANSWER_MAX] = {0x08, 42, 0x7a}; /* and a field of later */
	Ringvol__V1__NodeCapacity capacity = RINGVOL__V1__NODE_CAPACITY__INIT;
	size_t len;
	capacity.class_ = make_class(1);
	capacity.response.data = answer;
	for (unsigned more = 0; more < 2; more++) {
		size_t rest = CLASS_ANSWER_MAX + more - 5;
		answer[3] = (uint8_t)(rest & 0x7f) | 0x80;
		answer[4] = (uint8_t)(rest >> 7);
		capacity.response.len = CLASS_ANSWER_MAX + more;
		struct sim_node *n = &nodes[more];
		come(n, more == 0 ? "n1" : "n2", more == 0 ? UUID_A : UUID_B,
			more == 0 ? VOL_A : VOL_B);
		tell(n, REPORT(.n_capacities = 1,
				.capacities = LIST(Ringvol__V1__NodeCapacity, &capacity)));
	}
	assert_open(&nodes[0]);
	cr_expect_not_null(store_capacity(store, store_node(store, "n1"), capacity.class_, &len));
	assert_ended(&nodes[1], GRPC_INVALID_ARGUMENT, "an answer has more than 512 bytes");
}
