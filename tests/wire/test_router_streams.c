/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of a node that a controller passes on: whole, no faster than the client reads, and ended
 * with either end. */
#include "router_env.h"

#define ALLOCATED "/csi.v1.SnapshotMetadata/GetMetadataAllocated"
#define DELTA     "/csi.v1.SnapshotMetadata/GetMetadataDelta"
#define ID_A      "aaaaaaaa.one.00000001"
#define ID_A2     "aaaaaaaa.two.00000002"
#define ID_B      "bbbbbbbb.one.00000001"
#define NONE      "cccccccc.one.00000001"

static struct asked q;

static void open_all(void)
{
	env_open();
	serve(NULL);
}

static void close_all(void)
{
	buf_free(&q.got);
	env_close();
}

TestSuite(router_streams, .init = open_all, .fini = close_all, .timeout = 60);

static enum grpc_status ask_delta(const char *base, const char *target)
{
	Csi__V1__GetMetadataDeltaRequest request = CSI__V1__GET_METADATA_DELTA_REQUEST__INIT;
	request.base_snapshot_id = text(base);
	request.target_snapshot_id = text(target);
	return ask(&q, DELTA, &request.base);
}

static void start_allocated(const char *id, uint64_t ms)
{
	char request[64];
	int len = snprintf(request, sizeof(request), "\x0a%c%s", (int)strlen(id), id);
	start_bytes(&q, ALLOCATED, (const uint8_t *)request, (size_t)len, ms);
}

/* A client that takes no message until it is told to. */
static bool reads;

static bool reads_slowly(struct channel_call *call, const uint8_t *data, size_t len)
{
	(void)asked_message(call, data, len);
	return reads;
}

static void turn_for_a_while(void)
{
	for (unsigned i = 0; i < 400; i++) {
		cr_assert_eq(ring_turn(ring, false), 0);
		usleep(50);
	}
}

Test(router_streams, every_message_in_order)
{
	join(&a, "a", 'a', GIB);
	join(&b, "b", 'b', GIB);
	a.to_stream = 3000;
	cr_assert_eq(ask_delta(ID_A, ID_A2), GRPC_OK, "%s", q.why);
	cr_assert_eq(q.messages, 3000);
	cr_assert_eq(q.got.len, 3000 * 1024);
	cr_assert(a.calls == 1 && b.calls == 0);
	/* None at all is an answer, too. */
	b.to_stream = 0;
	start_allocated(ID_B, 0);
	turn_until(q.ends == 1);
	cr_assert(q.status == GRPC_OK && q.messages == 0);
}

/* What is on two nodes shares nothing; who is away is not asked. */
Test(router_streams, both_are_on_one_node)
{
	join(&a, "a", 'a', GIB);
	struct store_node *node = join(&b, "b", 'b', GIB);
	cr_assert_eq(ask_delta(ID_A, ID_B), GRPC_FAILED_PRECONDITION);
	assert_said(q.why, ID_A " is on node a");
	assert_said(q.why, ID_B " on node b");
	cr_assert_eq(ask_delta(ID_A, NONE), GRPC_UNAVAILABLE);
	cr_assert_eq(ask_delta(NONE, ID_A), GRPC_UNAVAILABLE);
	leave(node);
	cr_assert_eq(ask_delta(ID_A, ID_B), GRPC_UNAVAILABLE);
	cr_assert(a.calls == 0 && b.calls == 0);
	/* The node says what is wrong with one that is none of ours, or missing. */
	a.status = GRPC_NOT_FOUND;
	a.why = "there is no such snapshot";
	cr_assert_eq(ask_delta("nonsense", ID_A), GRPC_NOT_FOUND);
	cr_assert_eq(ask_delta(ID_A, ""), GRPC_NOT_FOUND);
	cr_assert_eq(a.calls, 2);
}

Test(router_streams, a_client_that_does_not_read_holds_up_the_node)
{
	join(&a, "a", 'a', GIB);
	a.to_stream = 20000;
	reads = false;
	start_allocated(ID_A, 0);
	q.call.on_message = reads_slowly;
	turn_until(q.messages == 1);
	turn_for_a_while();
	cr_assert_eq(q.messages, 1);
	cr_assert_lt(a.streamed, 4000, "%u KiB are on their way to a client that does not read",
		a.streamed);
	unsigned streamed = a.streamed;
	turn_for_a_while();
	cr_assert_eq(a.streamed, streamed);
	reads = true;
	channel_read(&q.call);
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_OK);
	cr_assert_eq(q.messages, 20000);
}

Test(router_streams, a_client_that_goes_takes_its_stream_along)
{
	join(&a, "a", 'a', GIB);
	a.to_stream = 20000;
	reads = false;
	start_allocated(ID_A, 0);
	q.call.on_message = reads_slowly;
	turn_until(q.messages == 1);
	channel_cancel(&q.call);
	turn_until(a.gone == 1 && list_empty(&controller->forwards));
	cr_assert_eq(q.ends, 0);
}

Test(router_streams, a_deadline_is_the_nodes_too)
{
	join(&a, "a", 'a', GIB);
	a.to_stream = 5;
	a.hold = true;
	start_allocated(ID_A, 300);
	turn_until(q.messages == 5);
	cr_assert_lt(a.deadline_ns, ring_now_ns(ring) + 300000000);
	turn_until(q.ends == 1 && a.gone == 1);
	cr_assert_eq(q.status, GRPC_DEADLINE_EXCEEDED);
	turn_until(list_empty(&controller->forwards));
}

/* The client has what came before, and is told that it is not all. */
Test(router_streams, an_end_in_the_middle)
{
	join(&a, "a", 'a', GIB);
	a.to_stream = 5;
	a.status = GRPC_UNAVAILABLE;
	a.why = "its btrfs moves data about";
	cr_assert_eq(ask_delta(ID_A, ID_A2), GRPC_UNAVAILABLE);
	cr_assert_str_eq(q.why, "node a: its btrfs moves data about");
	cr_assert_eq(q.messages, 5);
	a.hold = true;
	start_allocated(ID_A, 0);
	turn_until(q.messages == 5);
	fake_shut(&a); /* the process is killed */
	turn_until(q.ends == 1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
}

Test(router_streams, a_controller_that_ends_ends_them)
{
	join(&a, "a", 'a', GIB);
	a.to_stream = 5;
	a.hold = true;
	start_allocated(ID_A, 0);
	turn_until(q.messages == 5);
	controller_drain(controller);
	turn_until(q.ends == 1 && a.gone == 1);
	cr_assert_eq(q.status, GRPC_UNAVAILABLE);
	assert_said(q.why, "starting_offset");
	cr_assert(list_empty(&controller->forwards));
}
