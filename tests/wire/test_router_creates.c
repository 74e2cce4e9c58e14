/* SPDX-License-Identifier: Apache-2.0 */
/* Creates: names, places, content of other nodes; and what all nodes know, on real sockets. */
#include "controller/forward.h"
#include "controller/hear.h"
#include "router_env.h"

#include <sys/socket.h>
#include <sys/un.h>

#define PATH(name) "/csi.v1.Controller/" name
#define LIST       "/ringvol.v1.Inspect/List"
#define ID_A       "aaaaaaaa.vol.01234567"
#define ID_B       "bbbbbbbb.vol.01234567"
#define SNAP_A     "aaaaaaaa.snap.01234567"

static struct asked q, p;

static void setup(void)
{
	env_open();
	serve(NULL);
}

static void teardown(void)
{
	buf_free(&q.got);
	buf_free(&p.got);
	env_close();
}

TestSuite(creates, .init = setup, .fini = teardown, .timeout = 60);
TestSuite(inspect, .init = setup, .fini = teardown, .timeout = 60);

static void start_create(
	struct asked *asked, const char *name, const char *snapshot_id, uint64_t ms)
{
	Csi__V1__CreateVolumeRequest request = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__VolumeContentSource source = CSI__V1__VOLUME_CONTENT_SOURCE__INIT;
	Csi__V1__VolumeContentSource__SnapshotSource snapshot =
		CSI__V1__VOLUME_CONTENT_SOURCE__SNAPSHOT_SOURCE__INIT;
	struct buf packed = {0};
	request.name = text(name);
	if (snapshot_id != NULL) {
		snapshot.snapshot_id = text(snapshot_id);
		source.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_SNAPSHOT;
		source.snapshot = &snapshot;
		request.volume_content_source = &source;
	}
	pack_into(&packed, &request.base);
	buf_append(&packed, "\xc2\x3e\x03new", 6);
	start_bytes(asked, PATH("CreateVolume"), packed.data, packed.len, ms);
	buf_free(&packed);
}

static enum grpc_status create(const char *name, const char *snapshot_id)
{
	start_create(&q, name, snapshot_id, 0);
	turn_until(q.ends == 1);
	return q.status;
}

static const char *maker(const char *key)
{
	const struct store_node *node = store_name_maker(store, STORE_VOLUME, key);
	return node != NULL ? node->id : "";
}

/* ---- names ---- */

Test(creates, a_new_name_goes_where_there_is_room)
{
	join(&a, "a", 'a', GIB);
	join(&b, "b", 'b', 3 * GIB);
	answers_volume(&b, ID_B, 1 << 30);
	cr_assert_eq(create("vol", NULL), GRPC_OK, "%s", q.why);
	cr_assert(a.calls == 0 && b.calls == 1);
	cr_assert_eq(memcmp(b.request.data + b.request.len - 6, "\xc2\x3e\x03new", 6), 0);
	cr_assert(q.got.len == b.answer.len && memcmp(q.got.data, b.answer.data, q.got.len) == 0);
}

Test(creates, a_retry_goes_home_whatever_has_changed)
{
	join(&a, "a", 'a', 3 * GIB);
	join(&b, "b", 'b', GIB);
	a.hold = true;
	start_create(&q, "vol", NULL, 0);
	turn_until(a.held != NULL);
	cr_assert_str_eq(maker("vol"), "a");
	/* More room elsewhere, and the answer is lost. */
	join(&b, "b", 'b', 30 * GIB);
	channel_cancel(&q.call);
	turn_until(a.gone == 1);
	cr_assert_str_eq(maker("vol"), "a");
	a.hold = false;
	answers_volume(&a, ID_A, 1 << 30);
	cr_assert_eq(create("vol", NULL), GRPC_OK);
	cr_assert(a.calls == 2 && b.calls == 0);
	/* Finished: still there, and another name is not. */
	cr_assert_eq(create("vol", NULL), GRPC_OK);
	cr_assert(a.calls == 3 && b.calls == 0);
	answers_volume(&b, "bbbbbbbb.other.01234567", 1);
	cr_assert_eq(create("other", NULL), GRPC_OK);
	cr_assert(a.calls == 3 && b.calls == 1);
}

Test(creates, a_name_stays_with_a_node_that_may_be_making_it)
{
	static const enum grpc_status unsure[] = {GRPC_CANCELLED, GRPC_UNKNOWN,
		GRPC_DEADLINE_EXCEEDED, GRPC_ABORTED, GRPC_UNAVAILABLE};
	struct store_node *node = join(&a, "a", 'a', 3 * GIB);
	join(&b, "b", 'b', GIB);
	a.why = "perhaps";
	for (unsigned i = 0; i < sizeof(unsure) / sizeof(unsure[0]); i++) {
		a.status = unsure[i];
		cr_assert_eq(create("vol", NULL), unsure[i]);
		cr_assert_str_eq(maker("vol"), "a");
		/* What comes later of a retry does not say that the first one is over. */
		a.status = GRPC_RESOURCE_EXHAUSTED;
		cr_assert_eq(create("vol", NULL), GRPC_RESOURCE_EXHAUSTED);
		cr_assert_str_eq(maker("vol"), "a");
		/* Its report does. */
		store_name_release(store, STORE_VOLUME, "vol");
	}
	a.status = GRPC_UNAVAILABLE;
	cr_assert_eq(create("vol", NULL), GRPC_UNAVAILABLE);
	leave(node);
	cr_assert_eq(create("vol", NULL), GRPC_UNAVAILABLE);
	assert_said(q.why, "volume vol is on node a, which was last heard of at");
	cr_assert_eq(b.calls, 0);
}

Test(creates, a_name_that_was_not_begun_is_free)
{
	struct store_node *node = join(&a, "a", 'a', 3 * GIB);
	join(&b, "b", 'b', GIB);
	a.status = GRPC_RESOURCE_EXHAUSTED;
	a.why = "pool default is full";
	cr_assert_eq(create("vol", NULL), GRPC_RESOURCE_EXHAUSTED);
	cr_assert_str_eq(q.why, "node a: pool default is full");
	cr_assert_str_eq(maker("vol"), "");
	/* Another one that is under way for it keeps it. */
	a.hold = true;
	start_create(&p, "vol", NULL, 0);
	turn_until(a.held != NULL);
	a.hold = false;
	cr_assert_eq(create("vol", NULL), GRPC_RESOURCE_EXHAUSTED);
	cr_assert_str_eq(maker("vol"), "a");
	struct grpc_call *held = a.held;
	grpc_on_gone(held, NULL, NULL);
	grpc_end(held, GRPC_FAILED_PRECONDITION, "no");
	turn_until(p.ends == 1);
	cr_assert_str_eq(maker("vol"), "");
	/* Nobody listens there: the node has not seen it. */
	fake_shut(&a);
	reach_close(node);
	cr_assert_eq(create("vol", NULL), GRPC_UNAVAILABLE);
	assert_said(q.why, "node a: ");
	cr_assert_str_eq(maker("vol"), "");
}

/* What a node tells of a name, as its call of Join would. */
static void tells_name(struct store_node *node, const char *key, bool released)
{
	struct hear hear = {.store = store,
		.node = node,
		.is_passed_on = forward_is_under_way,
		.arg = controller};
	Ringvol__V1__NodeReport report = RINGVOL__V1__NODE_REPORT__INIT;
	Ringvol__V1__NameClaim name = RINGVOL__V1__NAME_CLAIM__INIT, *names[] = {&name};
	struct buf verdicts = {0};
	struct err err = {0};
	bool synced;
	name.kind = RINGVOL__V1__NODE_OBJECT__KIND__VOLUME;
	name.key = text(key);
	report.n_released = released;
	report.n_claims = !released;
	report.released = report.claims = names;
	cr_assert_eq(hear_report(&hear, &report, &verdicts, &synced, &err), 0, "%s", err.message);
	if (!released) {
		Ringvol__V1__ControllerReport *answer =
			ringvol__v1__controller_report__unpack(NULL, verdicts.len, verdicts.data);
		cr_assert(answer != NULL && answer->n_verdicts == 1);
		cr_assert(answer->verdicts[0]->granted);
		ringvol__v1__controller_report__free_unpacked(answer, NULL);
	}
	buf_free(&verdicts);
	hear_free(&hear);
}

static void ends_held(struct fake *f, struct asked *asked, enum grpc_status status)
{
	grpc_on_gone(f->held, NULL, NULL);
	grpc_end(f->held, status, "no");
	turn_until(asked->ends == 1);
	cr_assert_eq(asked->status, status);
	f->held = NULL;
}

Test(creates, a_release_of_an_earlier_one)
{
	struct store_node *node = join(&a, "a", 'a', 3 * GIB);
	join(&b, "b", 'b', GIB);
	a.hold = true;
	start_create(&q, "vol", NULL, 0);
	turn_until(a.held != NULL);
	tells_name(node, "other", true);
	tells_name(node, "vol", true);
	cr_assert_str_eq(maker("vol"), "a");
	/* The client goes, and there is more room elsewhere. */
	channel_cancel(&q.call);
	turn_until(a.gone == 1 && list_empty(&controller->forwards));
	cr_assert_str_eq(maker("vol"), "a");
	join(&b, "b", 'b', 30 * GIB);
	start_create(&q, "vol", NULL, 0);
	turn_until(a.held != NULL);
	cr_assert(a.calls == 2 && b.calls == 0);
	/* Its own claim, which it has already, and its end. */
	tells_name(node, "vol", false);
	cr_assert_str_eq(maker("vol"), "a");
	ends_held(&a, &q, GRPC_UNAVAILABLE);
	cr_assert_str_eq(maker("vol"), "a");
	tells_name(node, "vol", true);
	cr_assert_str_eq(maker("vol"), "");
}

/* The end is told before the answer is here, of a retry that has not given the name. */
Test(creates, a_release_before_the_answer)
{
	struct store_node *node = join(&a, "a", 'a', 3 * GIB);
	a.status = GRPC_UNAVAILABLE;
	a.why = "perhaps";
	cr_assert_eq(create("vol", NULL), GRPC_UNAVAILABLE);
	a.hold = true;
	for (unsigned claimed = 0; claimed < 2; claimed++) {
		start_create(&q, "vol", NULL, 0);
		turn_until(a.held != NULL);
		tells_name(node, "vol", true);
		if (claimed == 0)
			tells_name(node, "vol", false);
		ends_held(&a, &q, GRPC_RESOURCE_EXHAUSTED);
		cr_assert_str_eq(maker("vol"), claimed == 0 ? "a" : "");
	}
}

/* Another controller refuses the name: the node says that it is over, and answers ABORTED. */
Test(creates, a_refusal_of_another_controller_frees_the_name)
{
	struct store_node *node = join(&a, "a", 'a', 3 * GIB);
	for (unsigned before = 0; before < 2; before++) {
		a.hold = true;
		start_create(&q, "vol", NULL, 0);
		turn_until(a.held != NULL);
		tells_name(node, "vol", false);
		if (before != 0)
			tells_name(node, "vol", true);
		ends_held(&a, &q, GRPC_ABORTED);
		cr_assert_str_eq(maker("vol"), before != 0 ? "" : "a");
		tells_name(node, "vol", true);
		cr_assert_str_eq(maker("vol"), "");
	}
}

Test(creates, a_name_that_somebody_may_have)
{
	const char *pools[] = {"bbbbbbbb"};
	cr_assert_eq(create("vol", NULL), GRPC_UNAVAILABLE);
	join(&a, "a", 'a', GIB);
	answers_volume(&a, ID_A, 1);
	cr_assert_eq(store_roster(store, "b", pools, 1), 0);
	cr_assert_eq(create("vol", NULL), GRPC_UNAVAILABLE);
	assert_said(q.why, "b");
	cr_assert_eq(a.calls, 0);
	/* Its pool is said to be gone for good. */
	cr_assert_eq(store_forget(store, "bbbbbbbb"), 0);
	cr_assert_eq(create("vol", NULL), GRPC_OK, "%s", q.why);
}

/* The node would make it anew, in another of its pools. */
Test(creates, a_name_in_a_pool_that_is_away)
{
	struct store_node *node = join(&a, "a", 'a', GIB);
	join(&b, "b", 'b', GIB);
	answers_volume(&a, ID_A, 1);
	store_pool(store, "bbbbbbbb")->available_bytes = 0;
	cr_assert_eq(create("vol", NULL), GRPC_OK, "%s", q.why);
	store_pool_gone(store, store_pool(store, "aaaaaaaa"));
	cr_assert_eq(create("vol", NULL), GRPC_UNAVAILABLE);
	assert_said(q.why, "volume vol was on node a, which is here without it");
	assert_said(q.why, "--forget-pool aaaaaaaa");
	cr_assert(a.calls == 1 && b.calls == 0);
	/* It is back. */
	leave(node);
	join(&a, "a", 'a', GIB);
	cr_assert_eq(create("vol", NULL), GRPC_OK, "%s", q.why);
	cr_assert(a.calls == 2 && b.calls == 0);
}

/* What it has made by the name, if anything, stays its own. */
Test(creates, an_answer_that_cannot_be)
{
	static const struct {
		const char *id, *why;
		enum grpc_status status;
	} rows[] = {
		{ID_B, "of a pool of node b", GRPC_INTERNAL},
		{"aaaaaaaa.other.01234567", "of another name", GRPC_INTERNAL},
		{"", "without an id", GRPC_INTERNAL},
		{"vol", "without an id", GRPC_INTERNAL},
		{"cccccccc.vol.01234567", "has not told of yet", GRPC_UNAVAILABLE},
	};
	join(&a, "a", 'a', 3 * GIB);
	join(&b, "b", 'b', GIB);
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		answers_volume(&a, rows[i].id, 1);
		cr_assert_eq(create("vol", NULL), rows[i].status, "%s", rows[i].id);
		assert_said(q.why, "node a: ");
		assert_said(q.why, rows[i].why);
		cr_assert_str_eq(maker("vol"), "a");
		cr_assert_null(store_object(store, rows[i].id));
	}
	answers_volume(&a, ID_A, 1);
	cr_assert_eq(create("vol", NULL), GRPC_OK);
	cr_assert_eq(b.calls, 0);
}

Test(creates, what_no_request_can_be)
{
	join(&a, "a", 'a', GIB);
	cr_assert_eq(create("", NULL), GRPC_INVALID_ARGUMENT);
	assert_said(q.why, "name is missing");
	cr_assert_eq(create("a\x01\xff", NULL), GRPC_INVALID_ARGUMENT);
	assert_said(q.why, "name: is not valid UTF-8");
	start_bytes(&q, PATH("CreateVolume"), (const uint8_t *)"\x0a\x7f", 2, 0);
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_INVALID_ARGUMENT);
	cr_assert_eq(a.calls, 0);
}

/* ---- content ---- */

static void grants(struct fake *f, const char *grant)
{
	Ringvol__V1__GrantCopyResponse response = RINGVOL__V1__GRANT_COPY_RESPONSE__INIT;
	response.grant = text(grant);
	pack_into(&f->grant, &response.base);
}

#define GRANT "0123456789abcdef0123456789abcdef"

#define assert_text(field, want)                                                                   \
	cr_assert((field).len == strlen(want) && memcmp((field).data, want, (field).len) == 0)

/* A has the snapshot; b alone has room. */
static void elsewhere(void)
{
	join(&a, "a", 'a', 0);
	join(&b, "b", 'b', 5 * GIB);
	grants(&a, GRANT);
	answers_volume(&b, ID_B, 1);
}

Test(creates, content_of_another_node)
{
	elsewhere();
	cr_assert_eq(create("vol", SNAP_A), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(a.methods, "GrantCopy ");
	cr_assert_str_eq(b.methods, "OfferCopy CreateVolume ");
	assert_text(a.granted->source_id, SNAP_A);
	assert_text(a.granted->node_id, "b");
	assert_text(a.granted->volume_name, "vol");
	assert_text(b.offered->source_id, SNAP_A);
	assert_text(b.offered->volume_name, "vol");
	assert_text(b.offered->grant, GRANT);
	assert_text(b.offered->node_id, "a");
	assert_text(b.offered->address, a.address);
	cr_assert_not_null(store_object(store, ID_B));
	/* Finished, it needs its source no longer. */
	leave(store_node(store, "a"));
	cr_assert_eq(create("vol", SNAP_A), GRPC_OK);
	cr_assert_str_eq(b.methods, "OfferCopy CreateVolume CreateVolume ");
}

Test(creates, content_where_it_is_made)
{
	join(&a, "a", 'a', 5 * GIB);
	join(&b, "b", 'b', 50 * GIB);
	answers_volume(&a, ID_A, 1);
	cr_assert_eq(create("vol", SNAP_A), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(a.methods, "CreateVolume ");
	/* An id that is none of ours is the node's to refuse. */
	b.status = GRPC_NOT_FOUND;
	b.why = "snapshot x does not exist";
	cr_assert_eq(create("other", "x"), GRPC_NOT_FOUND);
	cr_assert_str_eq(b.methods, "CreateVolume ");
}

Test(creates, a_retry_of_a_copy_is_offered_again)
{
	elsewhere();
	b.hold = true;
	start_create(&q, "vol", SNAP_A, 0);
	turn_until(b.held != NULL);
	channel_cancel(&q.call);
	turn_until(b.gone == 1);
	b.hold = false;
	cr_assert_eq(create("vol", SNAP_A), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(a.methods, "GrantCopy GrantCopy ");
	cr_assert_str_eq(b.methods, "OfferCopy CreateVolume OfferCopy CreateVolume ");
}

Test(creates, content_that_cannot_be_had)
{
	elsewhere();
	cr_assert_eq(create("vol", "cccccccc.snap.01234567"), GRPC_UNAVAILABLE);
	assert_said(q.why, "cccccccc");
	cr_assert_eq(store_forget(store, "cccccccc"), 0);
	cr_assert_eq(create("vol", "cccccccc.snap.01234567"), GRPC_NOT_FOUND);
	/* The source says no. */
	a.status = GRPC_NOT_FOUND;
	a.why = "snapshot does not exist";
	cr_assert_eq(create("vol", SNAP_A), GRPC_NOT_FOUND);
	cr_assert_str_eq(q.why, a.why);
	cr_assert_str_eq(maker("vol"), "");
	a.status = GRPC_OK;
	grants(&a, "0123");
	cr_assert_eq(create("vol", SNAP_A), GRPC_INTERNAL);
	assert_said(q.why, "node a: its grant");
	cr_assert_str_eq(maker("vol"), "");
	leave(store_node(store, "a"));
	cr_assert_eq(create("vol", SNAP_A), GRPC_UNAVAILABLE);
	assert_said(q.why, "pool aaaaaaaa is on node a");
	cr_assert_str_eq(b.methods, "");
}

/* Nothing was begun where it was to be made. */
Test(creates, a_client_that_goes_before_it_is_passed_on)
{
	elsewhere();
	a.hold_grant = true;
	start_create(&q, "vol", SNAP_A, 0);
	turn_until(a.held != NULL);
	cr_assert_str_eq(maker("vol"), "b");
	channel_cancel(&q.call);
	turn_until(a.gone == 1 && list_empty(&controller->forwards));
	cr_assert_str_eq(maker("vol"), "");
	cr_assert_eq(b.calls, 0);
}

/* It waits for a connection to somebody who says nothing. */
Test(creates, a_client_that_goes_before_it_is_sent)
{
	struct store_node *node = join(&a, "a", 'a', GIB);
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	fake_shut(&a);
	reach_close(node);
	snprintf(at.sun_path, sizeof(at.sun_path), "%s/a", dir);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	cr_assert_eq(listen(fd, 8), 0);
	start_create(&q, "vol", NULL, 0);
	turn_until(maker("vol")[0] != '\0');
	channel_cancel(&q.call);
	turn_until(list_empty(&controller->forwards));
	cr_assert_str_eq(maker("vol"), "");
	close(fd);
	unlink(at.sun_path);
}

/* A node that joins again while it is asked for a name has it still. */
Test(creates, a_name_that_is_asked_for_outlives_a_join)
{
	join(&a, "a", 'a', GIB);
	a.hold = true;
	start_create(&q, "vol", NULL, 0);
	turn_until(a.held != NULL);
	join(&a, "a", 'a', GIB);
	cr_assert_str_eq(maker("vol"), "a");
	channel_cancel(&q.call);
	turn_until(a.gone == 1 && list_empty(&controller->forwards));
	cr_assert_str_eq(maker("vol"), "a");
	join(&a, "a", 'a', GIB);
	cr_assert_str_eq(maker("vol"), "");
}

/* The target's new process knows nothing of what the old one was to make. */
static void restarts(struct fake *f, const char *id)
{
	const struct store_segment segment = {"topology.ringvol.dev/node", id};
	struct store_node *node = store_node(store, id);
	struct err err = {0};
	leave(node);
	cr_assert_eq(store_join(store, id, "anew", f->address, "1.0", &segment, 1, &node, &err), 0);
	store_synced(store, node);
}

static void grants_now(void)
{
	struct grpc_call *held = a.held;
	grpc_on_gone(held, NULL, NULL);
	a.held = NULL;
	grpc_reply_bytes(held, a.grant.data, a.grant.len);
}

Test(creates, a_target_that_restarts_while_the_source_grants)
{
	elsewhere();
	a.hold_grant = b.hold = true;
	start_create(&q, "vol", SNAP_A, 0);
	turn_until(a.held != NULL);
	restarts(&b, "b");
	cr_assert_str_eq(maker("vol"), "");
	grants_now();
	turn_until(b.held != NULL);
	cr_assert_str_eq(maker("vol"), "b");
	ends_held(&b, &q, GRPC_RESOURCE_EXHAUSTED);
	cr_assert_str_eq(maker("vol"), "");
}

Test(creates, a_name_that_goes_to_another_while_the_source_grants)
{
	elsewhere();
	struct store_node *other = join(&c, "c", 'c', 0);
	a.hold_grant = true;
	start_create(&q, "vol", SNAP_A, 0);
	turn_until(a.held != NULL);
	restarts(&b, "b");
	tells_name(other, "vol", false);
	grants_now();
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_ABORTED);
	assert_said(q.why, "node c has the name vol by now");
	cr_assert_str_eq(maker("vol"), "c");
	cr_assert_eq(b.calls, 0);
}

Test(creates, nodes_of_before_copies)
{
	a.no_member = true;
	elsewhere();
	cr_assert_eq(create("vol", SNAP_A), GRPC_RESOURCE_EXHAUSTED);
	assert_said(q.why,
		"node a cannot copy between nodes; upgrade it, or make the volume on node a");
	cr_assert_str_eq(maker("vol"), "");
}

/* ---- snapshots ---- */

static enum grpc_status snapshot(const char *name, const char *volume_id)
{
	Csi__V1__CreateSnapshotRequest request = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	request.name = text(name);
	request.source_volume_id = text(volume_id);
	return ask(&q, PATH("CreateSnapshot"), &request.base);
}

Test(creates, a_snapshot_is_where_its_volume_is)
{
	Csi__V1__CreateSnapshotResponse response = CSI__V1__CREATE_SNAPSHOT_RESPONSE__INIT;
	Csi__V1__Snapshot made = CSI__V1__SNAPSHOT__INIT;
	join(&a, "a", 'a', GIB);
	join(&b, "b", 'b', 9 * GIB);
	made.snapshot_id = text(SNAP_A);
	made.source_volume_id = text(ID_A);
	response.snapshot = &made;
	pack_into(&a.answer, &response.base);
	cr_assert_eq(snapshot("snap", ID_A), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(a.methods, "CreateSnapshot ");
	const struct store_object *object = store_object(store, SNAP_A);
	cr_assert_not_null(object);
	cr_assert_eq(object->kind, STORE_SNAPSHOT);
	cr_assert_str_eq(object_source(object), ID_A);
	/* Of another volume: who has the name says so. */
	a.status = GRPC_ALREADY_EXISTS;
	a.why = "of another volume";
	cr_assert_eq(snapshot("snap", ID_B), GRPC_ALREADY_EXISTS);
	cr_assert_eq(b.calls, 0);
	cr_assert_eq(snapshot("", ID_A), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(snapshot("other", ""), GRPC_INVALID_ARGUMENT);
	assert_said(q.why, "source_volume_id is missing");
	cr_assert_eq(snapshot("other", "vol"), GRPC_NOT_FOUND);
	cr_assert_eq(snapshot("other", "cccccccc.vol.01234567"), GRPC_UNAVAILABLE);
	cr_assert_eq(a.calls, 2);
}

/* Others who are away have nothing to say about a volume that is here. */
Test(creates, snapshots_while_somebody_is_unseen)
{
	const char *pools[] = {"cccccccc"};
	join(&a, "a", 'a', GIB);
	cr_assert_eq(store_roster(store, "c", pools, 1), 0);
	answers_volume(&a, SNAP_A, 1); /* its id is in the field of a snapshot's, too */
	cr_assert_eq(snapshot("snap", ID_A), GRPC_OK, "%s", q.why);
	cr_assert_eq(a.calls, 1);
}

/* ---- what all nodes know ---- */

static Ringvol__V1__ListResponse *items[16];
static size_t n_items;

static bool item_message(struct channel_call *call, const uint8_t *data, size_t len)
{
	(void)call;
	items[n_items] = ringvol__v1__list_response__unpack(NULL, len, data);
	cr_assert_not_null(items[n_items]);
	n_items++;
	return true;
}

static enum grpc_status list(const Ringvol__V1__ListRequest *request)
{
	while (n_items > 0)
		ringvol__v1__list_response__free_unpacked(items[--n_items], NULL);
	if (request != NULL) {
		q.ends = 0;
		start(&q, LIST, &request->base);
		q.call.on_message = item_message;
		turn_until(q.ends == 1);
	}
	return q.status;
}

static void has_volume(struct fake *f, const char *id, const char *node)
{
	Ringvol__V1__ListResponse response = RINGVOL__V1__LIST_RESPONSE__INIT;
	Ringvol__V1__Volume volume = RINGVOL__V1__VOLUME__INIT;
	volume.id = text(id);
	volume.node = text(node);
	response.item_case = RINGVOL__V1__LIST_RESPONSE__ITEM_VOLUME;
	response.volume = &volume;
	pack_into(&f->answer, &response.base);
}

#define assert_node(item, want, its_state, words)                                                  \
	do {                                                                                       \
		const Ringvol__V1__ListResponse *i_ = item;                                        \
		cr_assert_eq(i_->item_case, RINGVOL__V1__LIST_RESPONSE__ITEM_CLUSTER_NODE);        \
		assert_text(i_->cluster_node->id, want);                                           \
		cr_assert_eq(                                                                      \
			i_->cluster_node->state, RINGVOL__V1__CLUSTER_NODE__STATE__##its_state);   \
		cr_assert_not_null(memmem(i_->cluster_node->why.data != NULL                       \
						  ? (const char *)i_->cluster_node->why.data       \
						  : "",                                            \
			i_->cluster_node->why.len, words, strlen(words)));                         \
		cr_assert((words)[0] != '\0' || i_->cluster_node->why.len == 0);                   \
	} while (0)

Test(inspect, every_node_in_turn)
{
	const char *pools[] = {"dddddddd"};
	Ringvol__V1__ListRequest all = RINGVOL__V1__LIST_REQUEST__INIT;
	cr_assert_eq(list(&all), GRPC_OK);
	cr_assert_eq(n_items, 0);
	join(&b, "b", 'b', 5 * GIB);
	join(&a, "a", 'a', GIB);
	leave(join(&c, "c", 'c', GIB));
	cr_assert_eq(store_roster(store, "d", pools, 1), 0);
	has_volume(&a, ID_A, "somebody else's");
	has_volume(&b, ID_B, "");
	cr_assert_eq(list(&all), GRPC_OK, "%s", q.why);
	cr_assert_eq(n_items, 6);
	cr_assert_eq(items[0]->item_case, RINGVOL__V1__LIST_RESPONSE__ITEM_VOLUME);
	assert_text(items[0]->volume->id, ID_A);
	assert_text(items[0]->volume->node, "a");
	assert_node(items[1], "a", PRESENT, "");
	assert_text(items[2]->volume->node, "b");
	assert_node(items[3], "b", PRESENT, "");
	cr_assert_eq(items[3]->cluster_node->n_pools, 1);
	assert_text(items[3]->cluster_node->pools[0]->uuid8, "bbbbbbbb");
	cr_assert_eq(items[3]->cluster_node->pools[0]->available_bytes, 5 * GIB);
	assert_text(items[3]->cluster_node->topology[0], "topology.ringvol.dev/node=b");
	assert_node(items[4], "c", ABSENT, "");
	assert_node(items[5], "d", UNSEEN, "");
	list(NULL);
}

Test(inspect, kinds_are_the_nodes_but_for_nodes)
{
	Ringvol__V1__ListRequest__Kind kinds[] = {
		RINGVOL__V1__LIST_REQUEST__KIND__NODES, RINGVOL__V1__LIST_REQUEST__KIND__VOLUMES};
	Ringvol__V1__ListRequest request = RINGVOL__V1__LIST_REQUEST__INIT;
	join(&a, "a", 'a', GIB);
	has_volume(&a, ID_A, "");
	request.kinds = kinds;
	request.n_kinds = 1;
	cr_assert_eq(list(&request), GRPC_OK);
	cr_assert(n_items == 1 && a.calls == 0);
	assert_node(items[0], "a", PRESENT, "");
	request.n_kinds = 2;
	request.attached_only = true;
	cr_assert_eq(list(&request), GRPC_OK);
	cr_assert(n_items == 2 && a.calls == 1);
	Ringvol__V1__ListRequest *asked =
		ringvol__v1__list_request__unpack(NULL, a.request.len, a.request.data);
	cr_assert(asked->n_kinds == 1 && asked->kinds[0] == kinds[1] && asked->attached_only);
	ringvol__v1__list_request__free_unpacked(asked, NULL);
	kinds[0] = kinds[1];
	request.n_kinds = 1;
	cr_assert_eq(list(&request), GRPC_OK);
	cr_assert_eq(n_items, 1);
	list(NULL);
}

Test(inspect, a_node_that_does_not_answer_is_a_line)
{
	Ringvol__V1__ListRequest all = RINGVOL__V1__LIST_REQUEST__INIT;
	join(&a, "a", 'a', GIB);
	join(&b, "b", 'b', GIB);
	join(&c, "c", 'c', GIB);
	a.hold = true;
	b.status = GRPC_INTERNAL;
	b.why = "its reasons";
	cr_assert_eq(list(&all), GRPC_OK);
	cr_assert_eq(n_items, 3);
	assert_node(items[0], "a", PRESENT, "does not answer");
	assert_node(items[1], "b", PRESENT, "its reasons");
	assert_node(items[2], "c", PRESENT, "");
	turn_until(a.gone == 1);
	/* Nobody at its address. */
	fake_shut(&a);
	cr_assert_eq(list(&all), GRPC_OK);
	cr_assert_eq(n_items, 3);
	cr_assert_neq(items[0]->cluster_node->why.len, 0);
	list(NULL);
}

/* A node says nothing of others, and what is no message ends nothing. */
Test(inspect, what_a_node_may_not_say)
{
	Ringvol__V1__ListRequest all = RINGVOL__V1__LIST_REQUEST__INIT;
	join(&a, "a", 'a', GIB);
	buf_append(&a.answer, "\x3a\x03\x0a\x01z", 5); /* cluster_node "z" */
	cr_assert_eq(list(&all), GRPC_OK);
	cr_assert_eq(n_items, 1);
	assert_node(items[0], "a", PRESENT, "");
	a.answer.len = 0;
	buf_append(&a.answer, "\x22\x7f", 2);
	cr_assert_eq(list(&all), GRPC_OK);
	cr_assert_eq(n_items, 1);
	a.answer.len = 0;
	buf_append(&a.answer, "\x20\x01", 2); /* a volume that is a number */
	cr_assert_eq(list(&all), GRPC_OK);
	cr_assert_eq(n_items, 1);
	/* A later version's item goes through. */
	a.answer.len = 0;
	buf_append(&a.answer, "\xc2\x3e\x02zz", 5);
	cr_assert_eq(list(&all), GRPC_OK);
	cr_assert_eq(n_items, 2);
	list(NULL);
}

Test(inspect, a_client_that_goes)
{
	Ringvol__V1__ListRequest all = RINGVOL__V1__LIST_REQUEST__INIT;
	join(&a, "a", 'a', GIB);
	a.hold = true;
	start(&q, LIST, &all.base);
	turn_until(a.held != NULL);
	channel_cancel(&q.call);
	turn_until(a.gone == 1);
}

/* A client that takes no message until it is told to. */
static bool reads;

static bool item_unread(struct channel_call *call, const uint8_t *data, size_t len)
{
	(void)item_message(call, data, len);
	return reads;
}

/* Nodes are asked as fast as it reads: what they say, and the lines about them, wait. */
Test(inspect, a_client_that_does_not_read)
{
	enum { NODES = 3, BYTES = 3 << 20 };
	struct fake *fakes[NODES] = {&a, &b, &c};
	static const char *const ids[NODES] = {"a", "b", "c"};
	Ringvol__V1__ListRequest all = RINGVOL__V1__LIST_REQUEST__INIT;
	char *why = calloc(1, BYTES + 1);
	memset(why, 'x', BYTES);
	for (unsigned i = 0; i < NODES; i++) {
		join(fakes[i], ids[i], ids[i][0], GIB);
		has_volume(fakes[i], ID_A, why);
		fakes[i]->again = 1;
	}
	reads = false;
	q.ends = 0;
	start(&q, LIST, &all.base);
	q.call.on_message = item_unread;
	turn_until(n_items == 1);
	for (unsigned i = 0; i < 400; i++) {
		cr_assert_eq(ring_turn(ring, false), 0);
		usleep(50);
	}
	cr_assert_eq(n_items, 1);
	cr_assert_eq(q.ends, 0);
	cr_expect_eq(c.calls, 0, "it is not its turn");
	reads = true;
	channel_read(&q.call);
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_OK, "%s", q.why);
	cr_assert_eq(n_items, 3 * NODES);
	for (unsigned i = 0; i < NODES; i++) {
		cr_expect_eq(fakes[i]->calls, 1);
		assert_text(items[3 * i]->volume->node, ids[i]);
		assert_text(items[3 * i + 1]->volume->node, ids[i]);
		assert_node(items[3 * i + 2], ids[i], PRESENT, "");
	}
	free(why);
	list(NULL);
}

Test(inspect, health)
{
	Ringvol__V1__HealthRequest request = RINGVOL__V1__HEALTH_REQUEST__INIT;
	const char *pools[] = {"bbbbbbbb"};
	join(&a, "a", 'a', GIB);
	cr_assert_eq(ask(&q, "/ringvol.v1.Inspect/Health", &request.base), GRPC_OK);
	cr_assert_eq(memcmp(q.got.data, "\x08\x01\x10\x01", 4), 0);
	cr_assert_eq(store_roster(store, "b", pools, 1), 0);
	cr_assert_eq(ask(&q, "/ringvol.v1.Inspect/Health", &request.base), GRPC_OK);
	Ringvol__V1__HealthResponse *health =
		ringvol__v1__health_response__unpack(NULL, q.got.len, q.got.data);
	cr_assert(health->live && !health->ready && health->ready_why.len != 0);
	ringvol__v1__health_response__free_unpacked(health, NULL);
}
