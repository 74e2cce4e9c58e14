/* SPDX-License-Identifier: Apache-2.0 */
/* Services are for some callers, and a call knows who calls. */
#include "peer.h"

#include "rpc/grpc_local.h"

static struct peer *p;
static struct grpc_peer seen;
static struct grpc_call *held;
static unsigned runs;

static void tell(struct grpc_call *call, const ProtobufCMessage *request)
{
	runs++;
	seen = *grpc_call_peer(call);
	grpc_reply(call, request);
}

static void hold(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	held = call;
}

static const ProtobufCMethodDescriptor descriptors[] = {
	{"Tell", TEXT_TYPE, TEXT_TYPE},
	{"Hold", TEXT_TYPE, TEXT_TYPE},
};
static const struct grpc_method methods[] = {{"Tell", tell}, {"Hold", hold}, {NULL}};

enum { SERVICES = 8 };
static const char *const names[SERVICES] = {"test.v1.P0", "test.v1.P1", "test.v1.P2", "test.v1.P3",
	"test.v1.P4", "test.v1.P5", "test.v1.P6", "test.v1.P7"};
static ProtobufCServiceDescriptor service_descriptors[SERVICES];
static struct grpc_service services[SERVICES]; /* by the bits of who may call */

static void setup(void)
{
	p = peer_new();
	for (unsigned i = 0; i < SERVICES; i++) {
		service_descriptors[i] = (ProtobufCServiceDescriptor){
			.magic = PROTOBUF_C__SERVICE_DESCRIPTOR_MAGIC,
			.name = names[i],
			.n_methods = 2,
			.methods = descriptors,
		};
		services[i] = (struct grpc_service){
			.descriptor = &service_descriptors[i], .methods = methods, .peers = i};
		cr_assert_eq(grpc_registry_add(p->registry, &services[i], test_check), 0);
	}
}

static void teardown(void)
{
	cr_assert_eq(grpc_registry_in_flight(p->registry), 0);
	peer_free(p);
}

TestSuite(peers, .init = setup, .fini = teardown);

static int32_t ask(unsigned service)
{
	char path[64];
	snprintf(path, sizeof(path), "/%s/Tell", names[service]);
	return peer_call(p, path, "who", NULL);
}

static void come_as(const struct grpc_peer *as)
{
	p->as = as;
	peer_reconnect(p);
}

Test(peers, each_role_is_admitted_where_it_belongs)
{
	static const struct grpc_peer roles[] = {
		[GRPC_PEER_LOCAL] = {.role = GRPC_PEER_LOCAL},
		[GRPC_PEER_CONTROLLER] = {.role = GRPC_PEER_CONTROLLER},
		[GRPC_PEER_NODE] = {.role = GRPC_PEER_NODE, .node_id = "node-7"},
	};
	for (unsigned role = 0; role < 3; role++) {
		come_as(&roles[role]);
		for (unsigned i = 0; i < SERVICES; i++) {
			unsigned before = runs;
			bool may = ((i == 0 ? 1u : i) >> role & 1) != 0;
			int32_t id = ask(i);
			if (may)
				assert_text(p, id, "who", 3);
			else
				assert_answer(p, id,
					role == GRPC_PEER_LOCAL ? GRPC_UNAUTHENTICATED
								: GRPC_PERMISSION_DENIED);
			cr_assert_eq(runs, before + may);
			if (may)
				cr_assert_eq(seen.role, roles[role].role);
			if (may)
				cr_assert_str_eq(seen.node_id, roles[role].node_id);
		}
	}
}

Test(peers, a_refusal_says_who_may)
{
	int32_t id = ask(6);
	cr_assert_str_eq(answer_at(p, id)->message,
		"test.v1.P6 is for controllers and nodes, and this connection has no certificate of "
		"one");
	come_as(&(struct grpc_peer){.role = GRPC_PEER_NODE, .node_id = "a"});
	id = ask(3);
	cr_assert_str_eq(answer_at(p, id)->message,
		"test.v1.P3 is for processes of its own host and controllers, and the caller's "
		"certificate is a node's");
}

/* The request is not waited for. */
Test(peers, a_refusal_comes_before_the_request)
{
	int32_t id = peer_request(
		p, &(struct request){.path = "/test.v1.P2/Tell", .stay_open = true, .body = ""});
	peer_pump(p);
	assert_answer(p, id, GRPC_UNAUTHENTICATED);
	cr_assert_eq(world.checks, 0);
}

Test(peers, who_called_is_known_after_the_connection_is_gone)
{
	come_as(&(struct grpc_peer){.role = GRPC_PEER_NODE, .node_id = "node-9"});
	peer_call(p, "/test.v1.P4/Hold", "x", NULL);
	cr_assert_not_null(held);
	come_as(NULL);
	cr_assert(grpc_call_gone(held));
	cr_assert_eq(grpc_call_peer(held)->role, GRPC_PEER_NODE);
	cr_assert_str_eq(grpc_call_peer(held)->node_id, "node-9");
	grpc_end(held, GRPC_OK, NULL);
}

static enum grpc_status local_status;

static void on_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	(void)local;
	(void)message;
	local_status = status;
}

Test(peers, calls_without_a_connection_are_local)
{
	struct grpc_local local = {.on_end = on_end};
	grpc_dispatch_local(p->registry, "/test.v1.P1/Tell", NULL, 0, &local);
	cr_assert_eq(local_status, GRPC_OK);
	cr_assert_eq(seen.role, GRPC_PEER_LOCAL);
	grpc_dispatch_local(p->registry, "/test.v1.P2/Tell", NULL, 0, &local);
	cr_assert_eq(local_status, GRPC_UNAUTHENTICATED);
}
