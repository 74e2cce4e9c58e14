/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grpc.health.v1. A Check is answered at once. A Watch gets the state now and whenever it changes;
 * a watcher that reads slowly is told the newest state when it has room, not each one between.
 * A watch ends with its client, with the drain or with health_free().
 */
#include "rpc/health.h"

#include "base/list.h"
#include "health.pb-c.h"

#include <stdlib.h>
#include <string.h>

typedef Grpc__Health__V1__HealthCheckRequest check_request;
typedef Grpc__Health__V1__HealthCheckResponse check_response;
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;

enum {
	SERVING = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING,
	NOT_SERVING = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING,
	SERVICE_UNKNOWN = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN,
};

struct health {
	struct grpc_service service;
	struct grpc_registry *registry;
	bool serving;
	struct list watchers;
};

/* Lives in its call's arena. */
struct watcher {
	struct list link;
	struct health *health;
	struct grpc_call *call;
	bool known;   /* the service watched exists */
	bool waiting; /* for room */
	int told;     /* the state last sent, -1: none */
};

static bool service_known(const struct health *health, const ProtobufCBinaryData *name)
{
	if (name->len == 0)
		return true;
	const struct grpc_service *s;
	for (unsigned i = 0; (s = grpc_registry_at(health->registry, i)) != NULL; i++) {
		const char *known = s->descriptor->name;
		if (strlen(known) == name->len && memcmp(known, name->data, name->len) == 0)
			return true;
	}
	return false;
}

static int state_now(const struct health *health)
{
	return health->serving ? SERVING : NOT_SERVING;
}

static void health_check(struct grpc_call *call, const ProtobufCMessage *message)
{
	const check_request *request = (const check_request *)message;
	struct health *health = grpc_call_context(call);
	if (!service_known(health, &request->service)) {
		grpc_end(call, GRPC_NOT_FOUND, "unknown service");
		return;
	}
	check_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
	response.status = (serving_status)state_now(health);
	grpc_reply(call, &response.base);
}

static void watcher_tell(struct watcher *w)
{
	int state = w->known ? state_now(w->health) : SERVICE_UNKNOWN;
	if (w->waiting || w->told == state)
		return;
	check_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
	response.status = (serving_status)state;
	w->told = state;
	w->waiting = !grpc_send(w->call, &response.base);
}

static void watcher_on_writable(struct grpc_call *call, void *arg)
{
	(void)call;
	struct watcher *w = arg;
	w->waiting = false;
	watcher_tell(w);
}

static void watcher_end(struct watcher *w, enum grpc_status status, const char *message)
{
	struct grpc_call *call = w->call;
	list_remove(&w->link);
	grpc_end(call, status, message);
}

static void watcher_on_gone(struct grpc_call *call, void *arg)
{
	(void)call;
	watcher_end(arg, GRPC_CANCELLED, NULL);
}

static void health_watch(struct grpc_call *call, const ProtobufCMessage *message)
{
	const check_request *request = (const check_request *)message;
	struct health *health = grpc_call_context(call);
	struct watcher *w = arena_new_of(grpc_call_arena(call), struct watcher);
	if (w == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	w->health = health;
	w->call = call;
	w->known = service_known(health, &request->service);
	w->told = -1;
	list_push(&health->watchers, &w->link);
	grpc_on_writable(call, watcher_on_writable, w);
	grpc_on_gone(call, watcher_on_gone, w);
	watcher_tell(w);
}

static const struct grpc_method health_methods[] = {
	{"Check", health_check},
	{"Watch", health_watch, GRPC_ENDLESS},
	{NULL},
};

struct health *health_new(struct grpc_registry *registry)
{
	struct health *health = calloc(1, sizeof(*health));
	if (health == NULL)
		return NULL;
	health->registry = registry;
	list_init(&health->watchers);
	health->service = (struct grpc_service){
		.descriptor = &grpc__health__v1__health__descriptor,
		.methods = health_methods,
		.context = health,
	};
	if (grpc_registry_add(registry, &health->service, NULL) < 0) {
		free(health);
		return NULL;
	}
	return health;
}

void health_set(struct health *health, bool serving)
{
	if (health->serving == serving)
		return;
	health->serving = serving;
	list_for_each_safe (l, &health->watchers)
		watcher_tell(container_of(l, struct watcher, link));
}

void health_free(struct health *health)
{
	if (health == NULL)
		return;
	while (!list_empty(&health->watchers))
		watcher_end(container_of(health->watchers.next, struct watcher, link),
			GRPC_UNAVAILABLE, "the server shuts down");
	free(health);
}
