/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out under calls without a client (local.c), as in test_alloc.c: each gets what
 * it gets with memory, or RESOURCE_EXHAUSTED behind whole messages of it, and its end once.
 */
#include "base/list.h"
#include "heap.h"
#include "rpc/grpc_local.h"
#include "rpc/health.h"
#include "verdict.h"

enum { CALLS = 9 };

struct local_answer {
	struct grpc_local local;
	struct answer answer;
	unsigned ends;
};

static void on_message(struct grpc_local *local, const uint8_t *data, size_t len)
{
	struct local_answer *a = container_of(local, struct local_answer, local);
	bool armed = heap_hold();
	uint8_t prefix[GRPC_PREFIX_BYTES];
	grpc_wire_put_prefix(prefix, (uint32_t)len);
	cr_assert_eq(a->ends, 0, "a message after the end");
	cr_assert_eq(buf_append(&a->answer.data, prefix, sizeof(prefix)), 0);
	cr_assert_eq(buf_append(&a->answer.data, data, len), 0);
	heap_release(armed);
}

static void on_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	struct local_answer *a = container_of(local, struct local_answer, local);
	a->ends++;
	a->answer.grpc = (int)status;
	a->answer.closed = a->answer.end_stream = true;
	snprintf(a->answer.message, sizeof(a->answer.message), "%s", message);
}

static void dispatch(struct grpc_registry *registry, const char *path, const void *request,
	size_t len, struct local_answer *a)
{
	*a = (struct local_answer){.local = {on_message, on_end}};
	heap.inside++;
	grpc_dispatch_local(registry, path, request, len, &a->local);
	heap.inside--;
}

/* One of each kind. The watch lasts until the end of the health service. */
static void call_all(struct grpc_registry *registry, struct health *health, struct local_answer *a)
{
	static const char text[] = "\x0A\6memory", garbage[] = "\xFF";
	size_t len = sizeof(text) - 1;
	health_set(health, false);
	dispatch(registry, "/test.v1.Test/Echo", text, len, a++);
	dispatch(registry, "/test.v1.Test/Fail", text, len, a++);
	world.flood_left = 20;
	world.flood_bytes = 100;
	dispatch(registry, "/test.v1.Test/Flood", text, len, a++);
	world.flood_left = 0;
	dispatch(registry, "/test.v1.Test/Chat", text, len, a++);
	dispatch(registry, "/test.v1.Test/Nothing", text, len, a++);
	dispatch(registry, "/test.v1.Test/Echo", garbage, 1, a++);
	dispatch(registry, "/grpc.health.v1.Health/Check", text, len, a++);
	dispatch(registry, "/grpc.health.v1.Health/Watch", text, len, a++);
	dispatch(registry, "/test.v1.Test/Hold", text, len, a++);
	heap.inside++;
	health_set(health, true);
	if (world.held != NULL)
		grpc_end(world.held, GRPC_ABORTED, "ended");
	heap.inside--;
	world.held = NULL;
}

static void check(
	const struct local_answer *a, const struct local_answer *right, bool met, unsigned long n)
{
	for (unsigned i = 0; i < CALLS; i++) {
		const char *wrong = verdict(&a[i].answer, &right[i].answer, false);
		if (!met && !verdict_same(&a[i].answer, &right[i].answer))
			wrong = "is answered otherwise than before";
		cr_assert(wrong == NULL, "allocation %lu: call %u %s: %d, \"%s\"", n, i, wrong,
			a[i].answer.grpc, a[i].answer.message);
		cr_assert_eq(
			a[i].ends, 1, "allocation %lu: call %u ended %u times", n, i, a[i].ends);
	}
}

static void forget(struct local_answer *a)
{
	for (unsigned i = 0; i < CALLS; i++)
		buf_free(&a[i].answer.data);
}

static struct grpc_registry *world_open(struct health **ret_health)
{
	struct grpc_registry *registry = test_registry();
	*ret_health = health_new(registry);
	cr_assert_not_null(*ret_health);
	return registry;
}

static void world_close(struct grpc_registry *registry, struct health *health)
{
	health_free(health);
	cr_assert_eq(grpc_registry_in_flight(registry), 0);
	grpc_registry_free(registry);
}

/* False when it met no failure. */
static bool pass(unsigned long n, bool lasting, const struct local_answer *right)
{
	static struct local_answer first[CALLS], next[CALLS];
	struct health *health;
	long live = heap.live;
	struct grpc_registry *registry = world_open(&health);
	heap_arm(n, lasting);
	call_all(registry, health, first);
	bool met = heap_disarm();
	call_all(registry, health, next);
	world_close(registry, health);
	check(first, right, met, n);
	check(next, right, false, n);
	forget(first);
	forget(next);
	cr_assert_eq(heap.live, live, "allocation %lu: %ld left", n, heap.live - live);
	return met;
}

Test(alloc, local)
{
	static struct local_answer right[CALLS];
	struct health *health;
	struct grpc_registry *registry = world_open(&health);
	call_all(registry, health, right);
	world_close(registry, health);
	for (unsigned lasting = 0; lasting < 2; lasting++) {
		unsigned long n = 1;
		while (pass(n, lasting != 0, right))
			n++;
		fprintf(stderr, "%lu allocations\n", n - 1);
		cr_assert_gt(n, 40);
	}
	forget(right);
}
