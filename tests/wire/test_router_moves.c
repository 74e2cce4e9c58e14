/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes that move between nodes, and deletes of those that have, on real sockets. */
#include "controller/hear.h"
#include "move.pb-c.h"
#include "router_env.h"

#define PATH(name) "/csi.v1.Controller/" name
#define MOVE       "/ringvol.v1.Move/MoveVolume"
#define ID_A       "aaaaaaaa.vol.01234567"
#define GRANT      "0123456789abcdef0123456789abcdef"

static struct asked q, p;
static struct store_node *na, *nb;

static void setup(void)
{
	env_open();
	serve(NULL);
	na = join(&a, "a", 'a', GIB);
	nb = join(&b, "b", 'b', GIB);
	a.why = b.why = c.why = "for a reason";
}

static void teardown(void)
{
	buf_free(&q.got);
	buf_free(&p.got);
	env_close();
}

TestSuite(moves, .init = setup, .fini = teardown, .timeout = 60);
TestSuite(deletes, .init = setup, .fini = teardown, .timeout = 60);

/* ---- what nodes say ---- */

/* The nodes that entries say the volume is published on. */
static const char *users[3];

static void pack_entry(struct buf *out, const char *id)
{
	Csi__V1__ListVolumesResponse__Entry entry = CSI__V1__LIST_VOLUMES_RESPONSE__ENTRY__INIT;
	Csi__V1__ListVolumesResponse__VolumeStatus status =
		CSI__V1__LIST_VOLUMES_RESPONSE__VOLUME_STATUS__INIT;
	Csi__V1__Volume volume = CSI__V1__VOLUME__INIT;
	ProtobufCBinaryData ids[3];
	while (status.n_published_node_ids < 3 && users[status.n_published_node_ids] != NULL) {
		ids[status.n_published_node_ids] = text(users[status.n_published_node_ids]);
		status.n_published_node_ids++;
	}
	status.published_node_ids = ids;
	entry.status = &status;
	volume.volume_id = text(id);
	volume.capacity_bytes = 7;
	entry.volume = &volume;
	pack_into(out, &entry.base);
}

/* As a report of the node's call would. */
static void tells(struct store_node *node, const char *id, const char *pool, uint64_t moves)
{
	struct hear hear = {.store = store, .node = node};
	Ringvol__V1__NodeReport report = RINGVOL__V1__NODE_REPORT__INIT;
	Ringvol__V1__NodeObject object = RINGVOL__V1__NODE_OBJECT__INIT, *objects[] = {&object};
	struct buf entry = {0}, out = {0};
	struct err err = {0};
	bool synced;
	pack_entry(&entry, id);
	object.id = text(id);
	object.entry = (ProtobufCBinaryData){entry.len, entry.data};
	object.pool = text(pool);
	object.moves = moves;
	report.n_objects = 1;
	report.objects = objects;
	cr_assert_eq(hear_report(&hear, &report, &out, &synced, &err), 0, "%s", err.message);
	buf_free(&entry);
	buf_free(&out);
	hear_free(&hear);
}

static void says_gone(struct store_node *node, const char *id)
{
	struct hear hear = {.store = store, .node = node};
	Ringvol__V1__NodeReport report = RINGVOL__V1__NODE_REPORT__INIT;
	ProtobufCBinaryData gone = text(id);
	struct buf out = {0};
	struct err err = {0};
	bool synced;
	report.n_gone = 1;
	report.gone = &gone;
	cr_assert_eq(hear_report(&hear, &report, &out, &synced, &err), 0, "%s", err.message);
	hear_free(&hear);
}

/* to: "" of a node of an earlier version. */
static void grants_to(struct fake *f, const char *to)
{
	Ringvol__V1__GrantCopyResponse response = RINGVOL__V1__GRANT_COPY_RESPONSE__INIT;
	response.grant = text(GRANT);
	response.node_id = text(to);
	pack_into(&f->grant, &response.base);
}

static void grants(struct fake *f)
{
	grants_to(f, "");
}

static void takes(struct fake *f, const char *id, const char *pool, uint64_t moves)
{
	Ringvol__V1__TakeVolumeResponse response = RINGVOL__V1__TAKE_VOLUME_RESPONSE__INIT;
	struct buf entry = {0};
	pack_entry(&entry, id);
	response.entry = (ProtobufCBinaryData){entry.len, entry.data};
	response.pool = text(pool);
	response.pool_name = text("default");
	response.moves = moves;
	pack_into(&f->taken, &response.base);
	buf_free(&entry);
}

static void has_departed(struct fake *f, const char *pool, const char *node_id)
{
	Ringvol__V1__GetDepartureResponse response = RINGVOL__V1__GET_DEPARTURE_RESPONSE__INIT;
	response.pool = text(pool);
	response.node_id = text(node_id);
	pack_into(&f->departed, &response.base);
}

static void is_arriving(struct fake *f)
{
	Ringvol__V1__GetDepartureResponse response = RINGVOL__V1__GET_DEPARTURE_RESPONSE__INIT;
	response.arriving = true;
	pack_into(&f->departed, &response.base);
}

static const char *node_of(const char *id)
{
	const struct store_object *object = store_object(store, id);
	return object != NULL && object->pool->node != NULL ? object->pool->node->id : "";
}

/* ---- the client ---- */

static void start_move(struct asked *asked, const char *volume, const char *node, const char *pool)
{
	Ringvol__V1__MoveVolumeRequest request = RINGVOL__V1__MOVE_VOLUME_REQUEST__INIT;
	request.volume = text(volume);
	request.node_id = text(node);
	request.pool = text(pool);
	start(asked, MOVE, &request.base);
}

static enum grpc_status move(const char *volume, const char *node, const char *pool)
{
	start_move(&q, volume, node, pool);
	turn_until(q.ends == 1);
	return q.status;
}

/* What was answered: "NODE/POOL", and " there". */
static const char *answered(void)
{
	static char is[256];
	Ringvol__V1__MoveVolumeResponse *response =
		ringvol__v1__move_volume_response__unpack(NULL, q.got.len, q.got.data);
	cr_assert_not_null(response);
	cr_assert(response->volume_id.len == strlen(ID_A) &&
		  memcmp(response->volume_id.data, ID_A, strlen(ID_A)) == 0);
	snprintf(is, sizeof(is), "%.*s/%.*s%s", (int)response->node_id.len, response->node_id.data,
		(int)response->pool.len, response->pool.data, response->was_there ? " there" : "");
	ringvol__v1__move_volume_response__free_unpacked(response, NULL);
	return is;
}

static void ready_to_move(void)
{
	tells(na, ID_A, "", 0);
	grants(&a);
	takes(&b, ID_A, "bbbbbbbb", 1);
}

/* ---- how it goes ---- */

Test(moves, a_volume_goes_to_the_node_that_is_named)
{
	ready_to_move();
	cr_assert_eq(move(ID_A, "b", ""), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(answered(), "b/default");
	cr_assert_str_eq(a.methods, "GrantCopy ");
	cr_assert_str_eq(b.methods, "OfferCopy TakeVolume ");
	cr_assert(a.granted->move);
	cr_assert_eq(memcmp(a.granted->node_id.data, "b", 1), 0);
	cr_assert_eq(memcmp(a.granted->volume_name.data, "vol", 3), 0);
	cr_assert_eq(memcmp(b.offered->grant.data, GRANT, 32), 0);
	cr_assert_eq(memcmp(b.offered->node_id.data, "a", 1), 0);
	Ringvol__V1__TakeVolumeRequest *take =
		ringvol__v1__take_volume_request__unpack(NULL, b.request.len, b.request.data);
	cr_assert(take != NULL && take->pool.len == 7 && take->volume_name.len == 3);
	cr_assert_eq(memcmp(take->volume_id.data, ID_A, strlen(ID_A)), 0);
	ringvol__v1__take_volume_request__free_unpacked(take, NULL);
	/* Calls for it go there at once, whatever the other one reports. */
	cr_assert_str_eq(node_of(ID_A), "b");
	tells(na, ID_A, "", 0);
	says_gone(na, ID_A);
	cr_assert_str_eq(node_of(ID_A), "b");
	cr_assert_eq(object_moves(store_object(store, ID_A)), 1);
}

Test(moves, by_name_to_the_node_with_most_room)
{
	ready_to_move();
	struct store_node *nc = join(&c, "c", 'c', 2 * GIB);
	takes(&c, ID_A, "cccccccc", 1);
	cr_assert_eq(move("vol", "", ""), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(answered(), "c/default");
	/* It is there. */
	cr_assert_eq(move("vol", "c", ""), GRPC_OK);
	cr_assert_str_eq(answered(), "c/default there");
	cr_assert_eq(move("vol", "c", "default"), GRPC_OK);
	cr_assert_str_eq(answered(), "c/default there");
	cr_assert_eq(move("vol", "c", "fast"), GRPC_FAILED_PRECONDITION);
	assert_said(q.why, "between pools of one node nothing moves");
	cr_assert_eq(c.calls, 2);
	/* And back, to where it was born. */
	grants(&c);
	takes(&a, ID_A, "aaaaaaaa", 2);
	cr_assert_eq(move("vol", "a", ""), GRPC_OK, "%s", q.why);
	says_gone(nc, ID_A);
	cr_assert_str_eq(node_of(ID_A), "a");
	cr_assert_str_eq(c.methods, "OfferCopy TakeVolume GrantCopy ");
}

/* Where it is used it can move in use, however little room is there. */
Test(moves, to_the_node_that_uses_it)
{
	users[0] = "b";
	ready_to_move();
	join(&c, "c", 'c', 2 * GIB);
	takes(&c, ID_A, "cccccccc", 1);
	cr_assert_eq(move(ID_A, "", ""), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(answered(), "b/default");
	users[0] = NULL;
}

/* One of many, or one that cannot have it, is no reason. */
Test(moves, not_to_every_node_that_uses_it)
{
	static const char *const some[][3] = {
		{"b", "c"}, {"a"}, {"nobody"}, {"b"}, {"a-name-that-is-long-and-nobodys"}};
	for (unsigned i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		memcpy(users, some[i], sizeof(users));
		ready_to_move();
		if (i == 0)
			join(&c, "c", 'c', 2 * GIB);
		if (i == 3)
			store_pool(store, "bbbbbbbb")->state = STORE_POOL_SICK;
		takes(&c, ID_A, "cccccccc", 1);
		cr_assert_eq(move(ID_A, "", ""), GRPC_OK, "%u: %s", i, q.why);
		cr_assert_str_eq(answered(), "c/default");
		grants(&c);
		takes(&a, ID_A, "aaaaaaaa", 2 + i);
		store_object_gone(store, store_node(store, "c"), ID_A);
	}
	memset(users, 0, sizeof(users));
}

/* An earlier call has chosen another node. */
Test(moves, it_goes_on_to_the_node_that_was_chosen_before)
{
	ready_to_move();
	join(&c, "c", 'c', 2 * GIB);
	takes(&c, ID_A, "cccccccc", 1);
	grants_to(&a, "b");
	b.take_status = GRPC_UNAVAILABLE;
	cr_assert_eq(move(ID_A, "", ""), GRPC_UNAVAILABLE);
	cr_assert(a.granted->any_node);
	cr_assert_eq(memcmp(a.granted->node_id.data, "c", 1), 0);
	cr_assert_str_eq(a.methods, "GrantCopy ");
	cr_assert_str_eq(b.methods, "OfferCopy TakeVolume ");
	cr_assert_eq(c.calls, 0);
	/* Not where another one is named, whatever the node answers. */
	grants_to(&a, "c");
	cr_assert_eq(move(ID_A, "b", ""), GRPC_UNAVAILABLE);
	cr_assert(!a.granted->any_node);
	cr_assert_eq(c.calls, 0);
	/* It is away, or its pool is not well: the node with most room. */
	grants_to(&a, "b");
	store_pool(store, "bbbbbbbb")->state = STORE_POOL_SICK;
	a.methods[0] = b.methods[0] = '\0';
	cr_assert_eq(move(ID_A, "", ""), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(answered(), "c/default");
	cr_assert_str_eq(a.methods, "GrantCopy GrantCopy ");
	cr_assert(!a.granted->any_node);
	cr_assert_eq(memcmp(a.granted->node_id.data, "c", 1), 0);
	cr_assert_str_eq(b.methods, "");
}

Test(moves, what_cannot_move)
{
	ready_to_move();
	cr_assert_eq(move("", "b", ""), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(move("nothing", "b", ""), GRPC_NOT_FOUND);
	assert_said(q.why, "say its id");
	cr_assert_eq(move(ID_A, "z", ""), GRPC_NOT_FOUND);
	assert_said(q.why, "no node z has ever joined");
	cr_assert_eq(move(ID_A, "b", "fast"), GRPC_FAILED_PRECONDITION);
	assert_said(q.why, "node b has no pool fast");
	cr_assert_eq(move(ID_A, "", "fast"), GRPC_FAILED_PRECONDITION);
	assert_said(q.why, "no other node is here with a pool fast");
	cr_assert_eq(move("aaaaaaaa.=" GRANT "01234567.01234567", "b", ""), GRPC_INVALID_ARGUMENT);
	cr_assert(a.calls == 0 && b.calls == 0);
	/* Of two by one name the id says which. */
	tells(nb, "bbbbbbbb.vol.01234567", "", 0);
	cr_assert_eq(move("vol", "b", ""), GRPC_FAILED_PRECONDITION);
	assert_said(q.why, "say its id");
	store_object_gone(store, nb, "bbbbbbbb.vol.01234567");
	/* Its pool is not ready. */
	store_pool(store, "bbbbbbbb")->state = STORE_POOL_SICK;
	cr_assert_eq(move(ID_A, "b", ""), GRPC_UNAVAILABLE, "%d: %s", q.status, q.why);
	assert_said(q.why, "pool default of node b is not ready");
}

Test(moves, a_node_that_is_away)
{
	ready_to_move();
	leave(nb);
	cr_assert_eq(move(ID_A, "b", ""), GRPC_UNAVAILABLE);
	assert_said(q.why, "node b");
	cr_assert_eq(move(ID_A, "", ""), GRPC_FAILED_PRECONDITION);
	nb = join(&b, "b", 'b', GIB);
	leave(na);
	cr_assert_eq(move(ID_A, "b", ""), GRPC_UNAVAILABLE);
	assert_said(q.why, "node a, which was last heard of");
	cr_assert(a.calls == 0 && b.calls == 0);
}

/* Each call's failure is the client's, and nothing is taken note of. */
Test(moves, a_call_that_fails)
{
	static const enum grpc_status statuses[] = {
		GRPC_UNAVAILABLE, GRPC_FAILED_PRECONDITION, GRPC_ABORTED, GRPC_DEADLINE_EXCEEDED};
	ready_to_move();
	for (unsigned i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
		a.status = statuses[i];
		cr_assert_eq(move(ID_A, "b", ""), statuses[i]);
		assert_said(q.why, "for a reason");
		cr_assert_eq(b.calls, 0);
	}
	a.status = GRPC_OK;
	for (unsigned i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
		b.take_status = statuses[i];
		cr_assert_eq(move(ID_A, "b", ""), statuses[i]);
		assert_said(q.why, "for a reason");
		cr_assert_str_eq(node_of(ID_A), "a");
	}
	/* A grant that is none. */
	a.grant.len = 4;
	cr_assert_eq(move(ID_A, "b", ""), GRPC_INTERNAL);
	assert_said(q.why, "node a: its grant of a copy is none");
	grants(&a);
	/* An answer that is none: it has moved all the same, and its report will say so. */
	b.take_status = GRPC_OK;
	takes(&b, "bbbbbbbb.other.01234567", "bbbbbbbb", 1);
	cr_assert_eq(move(ID_A, "b", ""), GRPC_OK);
	cr_assert_str_eq(answered(), "b/default");
	cr_assert_str_eq(node_of(ID_A), "a");
	takes(&b, ID_A, "none", 1);
	cr_assert_eq(move(ID_A, "b", ""), GRPC_OK);
	b.taken.len = 3;
	cr_assert_eq(move(ID_A, "b", ""), GRPC_OK);
	cr_assert_str_eq(node_of(ID_A), "a");
	tells(nb, ID_A, "bbbbbbbb", 1);
	cr_assert_str_eq(node_of(ID_A), "b");
}

Test(moves, a_node_of_an_earlier_version)
{
	ready_to_move();
	c.no_moves = true;
	join(&c, "c", 'c', GIB);
	cr_assert_eq(move(ID_A, "c", ""), GRPC_FAILED_PRECONDITION);
	assert_said(q.why, "node c cannot move volumes between nodes: upgrade it");
}

Test(moves, two_at_once_to_different_nodes)
{
	ready_to_move();
	join(&c, "c", 'c', GIB);
	b.hold_take = true;
	start_move(&p, ID_A, "b", "");
	turn_until(b.held != NULL);
	cr_assert_eq(move(ID_A, "c", ""), GRPC_ABORTED);
	assert_said(q.why, "is being moved to node b");
	cr_assert_eq(c.calls, 0);
	/* The client goes, and so does what runs for it. */
	channel_cancel(&p.call);
	turn_until(b.gone == 1 && list_empty(&controller->forwards));
	takes(&c, ID_A, "cccccccc", 1);
	cr_assert_eq(move(ID_A, "c", ""), GRPC_OK, "%s", q.why);
}

/* ---- between two nodes ---- */

/* That its first node does not say where it is makes it no volume that does not exist. */
Test(moves, a_node_that_does_not_say)
{
	static const enum grpc_status statuses[] = {
		GRPC_ABORTED, GRPC_UNAVAILABLE, GRPC_DEADLINE_EXCEEDED};
	ready_to_move();
	says_gone(na, ID_A);
	for (unsigned i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
		a.departed_status = statuses[i];
		cr_assert_eq(move(ID_A, "b", ""), GRPC_UNAVAILABLE);
		assert_said(q.why, "node a does not say where it is");
	}
	a.departed_status = GRPC_OK;
	is_arriving(&a);
	cr_assert_eq(move(ID_A, "b", ""), GRPC_UNAVAILABLE);
	a.departed.len = 0;
	cr_assert_eq(move(ID_A, "b", ""), GRPC_NOT_FOUND);
	cr_assert_eq(b.calls, 0);
}

Test(moves, what_has_left_and_is_not_there_yet)
{
	ready_to_move();
	says_gone(na, ID_A);
	has_departed(&a, "bbbbbbbb", "b");
	join(&c, "c", 'c', GIB);
	cr_assert_eq(move("vol", "b", ""), GRPC_NOT_FOUND);
	cr_assert_eq(move(ID_A, "c", ""), GRPC_FAILED_PRECONDITION);
	assert_said(q.why, "is on its way to node b: move it there first");
	a.methods[0] = b.methods[0] = '\0';
	cr_assert_eq(move(ID_A, "", ""), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(answered(), "b/default");
	cr_assert_str_eq(a.methods, "GetDeparture GrantCopy ");
	cr_assert_str_eq(b.methods, "GetDeparture OfferCopy TakeVolume ");
	cr_assert_str_eq(node_of(ID_A), "b");
}

/* Between b and c, having been born in a. */
Test(moves, notes_are_followed)
{
	join(&c, "c", 'c', GIB);
	has_departed(&a, "bbbbbbbb", "b");
	has_departed(&b, "cccccccc", "c");
	grants(&b);
	takes(&c, ID_A, "cccccccc", 2);
	cr_assert_eq(move(ID_A, "c", ""), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(a.methods, "GetDeparture ");
	cr_assert_str_eq(b.methods, "GetDeparture GrantCopy ");
	cr_assert_str_eq(c.methods, "GetDeparture OfferCopy TakeVolume ");
}

/* Back from b to a, where a note of the first move still is. */
Test(moves, notes_that_lead_back)
{
	has_departed(&a, "bbbbbbbb", "b");
	has_departed(&b, "aaaaaaaa", "a");
	grants(&b);
	takes(&a, ID_A, "aaaaaaaa", 2);
	cr_assert_eq(move(ID_A, "a", ""), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(a.methods, "GetDeparture OfferCopy TakeVolume ");
	cr_assert_str_eq(b.methods, "GetDeparture GrantCopy ");
}

Test(moves, what_nobody_has)
{
	cr_assert_eq(move(ID_A, "b", ""), GRPC_NOT_FOUND);
	assert_said(q.why, ID_A " does not exist");
	struct err err = {0};
	struct store_segment segment = {"topology.ringvol.dev/node", "a"};
	struct store_pool *pool;
	cr_assert_eq(store_join(store, "a", "a", a.address, "1.0", &segment, 1, &na, &err), 0);
	cr_assert_eq(store_pool_set(store, na, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "default",
			     STORE_POOL_READY, "", GIB, &pool, &err),
		0);
	cr_assert_eq(move(ID_A, "b", ""), GRPC_UNAVAILABLE);
	assert_said(q.why, "node a has not told all");
	cr_assert_eq(move("cccccccc.vol.01234567", "b", ""), GRPC_UNAVAILABLE);
}

/* ---- deletes ---- */

static enum grpc_status delete_volume_of(const char *id)
{
	Csi__V1__DeleteVolumeRequest request = CSI__V1__DELETE_VOLUME_REQUEST__INIT;
	request.volume_id = text(id);
	a.methods[0] = b.methods[0] = c.methods[0] = '\0';
	return ask(&q, PATH("DeleteVolume"), &request.base);
}

Test(deletes, of_a_volume_that_never_moved)
{
	tells(na, ID_A, "", 0);
	cr_assert_eq(delete_volume_of(ID_A), GRPC_OK);
	cr_assert_str_eq(a.methods, "DeleteVolume ");
	cr_assert_str_eq(b.methods, "");
	cr_assert_null(store_object(store, ID_A));
	/* A node that cannot say where anything has gone. */
	a.status = GRPC_UNAVAILABLE;
	cr_assert_eq(delete_volume_of(ID_A), GRPC_UNAVAILABLE);
	cr_assert_str_eq(q.why, "node a: for a reason");
	cr_assert_str_eq(a.methods, "DeleteVolume GetDeparture ");
	a.status = GRPC_FAILED_PRECONDITION;
	cr_assert_eq(delete_volume_of(ID_A), GRPC_FAILED_PRECONDITION);
	cr_assert_str_eq(a.methods, "DeleteVolume ");
}

Test(deletes, of_a_volume_that_has_moved_once)
{
	join(&c, "c", 'c', GIB);
	tells(nb, ID_A, "bbbbbbbb", 1);
	has_departed(&a, "bbbbbbbb", "b");
	b.status = GRPC_FAILED_PRECONDITION;
	cr_assert_eq(delete_volume_of(ID_A), GRPC_FAILED_PRECONDITION);
	cr_assert_str_eq(node_of(ID_A), "b");
	cr_assert_str_eq(a.methods, "");
	b.status = GRPC_OK;
	cr_assert_eq(delete_volume_of(ID_A), GRPC_OK);
	cr_assert(q.messages == 1 && q.got.len == 0);
	cr_assert_str_eq(b.methods, "DeleteVolume ");
	cr_assert_str_eq(a.methods, "DropDeparture ");
	cr_assert_str_eq(c.methods, "");
	cr_assert_null(store_object(store, ID_A));
	/* Once more: nothing is left of it. */
	cr_assert_eq(delete_volume_of(ID_A), GRPC_OK);
	cr_assert_str_eq(a.methods, "DeleteVolume ");
	cr_assert_str_eq(b.methods, "");
}

/* The notes may be anywhere; that of its id's pool goes last, for it is where a retry begins. */
Test(deletes, of_a_volume_that_has_moved_often)
{
	struct store_node *nc = join(&c, "c", 'c', GIB);
	tells(nc, ID_A, "cccccccc", 2);
	has_departed(&a, "bbbbbbbb", "b");
	has_departed(&b, "cccccccc", "c");
	cr_assert_eq(delete_volume_of(ID_A), GRPC_OK);
	cr_assert_str_eq(a.methods, "DropDeparture ");
	cr_assert_str_eq(b.methods, "DropDeparture ");
	cr_assert(a.departed.len == 0 && b.departed.len == 0);
}

Test(deletes, while_the_node_that_it_left_is_away)
{
	tells(nb, ID_A, "bbbbbbbb", 1);
	has_departed(&a, "bbbbbbbb", "b");
	leave(na);
	cr_assert_eq(delete_volume_of(ID_A), GRPC_OK);
	cr_assert_str_eq(a.methods, "");
	/* A retry waits for that node, whose note says where to ask. */
	cr_assert_eq(delete_volume_of(ID_A), GRPC_UNAVAILABLE);
	na = join(&a, "a", 'a', GIB);
	a.status = GRPC_UNAVAILABLE;
	cr_assert_eq(delete_volume_of(ID_A), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(a.methods, "DeleteVolume GetDeparture DropDeparture ");
	cr_assert_str_eq(b.methods, "DeleteVolume DropDeparture ");
}

Test(deletes, what_has_left_for_a_node_that_has_not_told)
{
	has_departed(&a, "bbbbbbbb", "b");
	a.status = GRPC_UNAVAILABLE;
	leave(nb);
	cr_assert_eq(delete_volume_of(ID_A), GRPC_UNAVAILABLE);
	assert_said(q.why, "has moved to pool bbbbbbbb of node b, which has not told");
	nb = join(&b, "b", 'b', GIB);
	store_pool(store, "bbbbbbbb")->state = STORE_POOL_LOADING;
	cr_assert_eq(delete_volume_of(ID_A), GRPC_UNAVAILABLE);
	cr_assert(b.calls == 0 && a.departed.len != 0);
	store_pool(store, "bbbbbbbb")->state = STORE_POOL_READY;
	/* It is still being taken there. */
	b.status = GRPC_ABORTED;
	cr_assert_eq(delete_volume_of(ID_A), GRPC_ABORTED);
	cr_assert_neq(a.departed.len, 0);
	/* It is there, and no volume yet. */
	b.status = GRPC_UNAVAILABLE;
	is_arriving(&b);
	cr_assert_eq(delete_volume_of(ID_A), GRPC_UNAVAILABLE);
	cr_assert_neq(a.departed.len, 0);
	b.departed.len = 0;
	/* Notes that lead round. */
	b.status = GRPC_UNAVAILABLE;
	has_departed(&b, "aaaaaaaa", "a");
	cr_assert_eq(delete_volume_of(ID_A), GRPC_UNAVAILABLE);
	assert_said(q.why, "is on its way to node a");
	/* The node that has it by now is told of meanwhile. */
	b.status = GRPC_OK;
	b.departed.len = 0;
	tells(nb, ID_A, "bbbbbbbb", 1);
	cr_assert_eq(delete_volume_of(ID_A), GRPC_OK);
	cr_assert_str_eq(a.methods, "DropDeparture ");
	cr_assert_str_eq(b.methods, "DeleteVolume ");
}
