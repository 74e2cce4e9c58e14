/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call's life: OPEN until its Hello, TELLING until the node has told all, JOINED until either
 * side ends it. What nodes are told is small but for the roster, of which a tick sends so much; a
 * node that reads nothing has what fits its connection's buffer waiting, and no more of its reports
 * is taken until it reads, so that it is silent, too.
 *
 * It ends by the node, by its connection, by silence, by what it says (hear.h), by a newer call of
 * the same process, or because a pool that it did not get can be had now: then all is told again.
 */
#include "controller/join.h"

#include "base/clock.h"
#include "base/log.h"
#include "cluster.pb-c.h"
#include "controller/hear.h"
#include "controller/roster.h"
#include "controller/scan.h"
#include "csi/status.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000)

enum {
	QUIET_PLACES = 256,
	REPORT_CLASSES = 2, /* a field of ControllerReport */
};

enum join_state { JOIN_OPEN, JOIN_TELLING, JOIN_JOINED, JOIN_ENDED };

struct join {
	struct list link;
	struct joins *joins;
	struct grpc_call *call;
	enum join_state state;
	struct hear hear;
	bool waiting; /* for the node to read */
	uint64_t opened_ns, heard_ns, said_ns;
	uint32_t classes_told; /* store_class_round() when it was told */
	uint64_t roster_told;  /* store_roster_version() likewise */
	uint64_t roster_ns;
};

/* What was logged of late. */
struct quiet {
	uint64_t hash, at_ns;
};

struct joins {
	struct joins_config config;
	struct grpc_service service;
	struct list calls; /* those that were told a roster longest ago first */
	struct ring_timer tick, classes;
	uint64_t opened_ns;
	bool settled, draining;
	struct buf roster; /* packed */
	uint64_t roster_version, roster_ns;
	uint64_t seen_version, seen_ns; /* of the store's, and since when it is that */
	struct siphash_key key;
	struct quiet quiet[QUIET_PLACES];
	struct joins_stats stats;
};

static uint64_t now_ns(const struct joins *joins)
{
	return ring_now_ns(joins->config.ring);
}

/* ---- the log ---- */

/* False: the same was logged of late. A node that is refused dials again at once. */
static bool is_news(struct joins *joins, const char *node, const char *why)
{
	char text[512];
	snprintf(text, sizeof(text), "%s %s", node, why);
	uint64_t hash = siphash(&joins->key, text, strlen(text)), now = now_ns(joins);
	struct quiet *quiet = &joins->quiet[hash % QUIET_PLACES];
	bool news = quiet->hash != hash || now - quiet->at_ns >= JOIN_QUIET_MS * MS;
	if (news)
		*quiet = (struct quiet){hash, now};
	return news;
}

static void count(char ret[32], size_t n)
{
	snprintf(ret, 32, "%zu", n);
}

static void say_joined(const struct join *j)
{
	const struct store_node *node = j->hear.node;
	char pools[32], volumes[32], snapshots[32], ms[32];
	size_t counts[STORE_KINDS] = {0};
	list_for_each (l, &node->pools) {
		const struct store_pool *pool = container_of(l, struct store_pool, link);
		for (enum store_kind kind = 0; kind < STORE_KINDS; kind++)
			counts[kind] += pool->count[kind];
	}
	count(pools, node->n_pools);
	count(volumes, counts[STORE_VOLUME]);
	count(snapshots, counts[STORE_SNAPSHOT]);
	count(ms, (size_t)((now_ns(j->joins) - j->opened_ns) / MS));
	log_event(LOG_LEVEL_INFO, "a node has joined",
		log_fields({"node", node->id}, {"version", node->version},
			{"address", node->address}, {"pools", pools}, {"volumes", volumes},
			{"snapshots", snapshots}, {"ms", ms}));
}

/* ---- its end ---- */

static void join_to(struct join *j, enum join_state to)
{
	assert(to > j->state);
	j->state = to;
}

/* The node is away, unless a newer call has it already. */
static void let_go(struct join *j, const char *why)
{
	struct joins *joins = j->joins;
	struct store_node *node = j->hear.node;
	if (node == NULL || node->joined != j)
		return;
	node->joined = NULL;
	if (joins->draining)
		return;
	joins->stats.left++;
	if (is_news(joins, node->id, why))
		log_event(LOG_LEVEL_WARN, "a node has left",
			log_fields({"node", node->id}, {"why", why}));
	store_leave(joins->config.store, node);
	if (joins->config.on_left != NULL)
		joins->config.on_left(joins->config.arg, node);
}

/* message NULL: the node cannot hear it. why: for the log. */
static void join_end(struct join *j, enum grpc_status status, const char *message, const char *why)
{
	struct grpc_call *call = j->call;
	join_to(j, JOIN_ENDED);
	let_go(j, why);
	list_remove(&j->link);
	j->joins->stats.calls--;
	hear_free(&j->hear);
	free(j);
	grpc_call_set_user(call, NULL);
	grpc_on_gone(call, NULL, NULL);
	grpc_on_writable(call, NULL, NULL);
	grpc_end(call, status, message);
}

static void refuse(struct join *j, const struct err *err)
{
	const char *peer = grpc_call_peer(j->call)->node_id;
	const char *node = j->hear.node != NULL ? j->hear.node->id : peer;
	char why[sizeof(err->message)];
	snprintf(why, sizeof(why), "%s", err->message);
	j->joins->stats.refused++;
	if (is_news(j->joins, node, why))
		log_event(LOG_LEVEL_WARN, "a node is refused",
			log_fields(
				{"node", node}, {"code", err_code_name(err->code)}, {"why", why}));
	join_end(j, csi_status(err->code), why, why);
}

static void on_gone(struct grpc_call *call, void *arg)
{
	(void)call;
	join_end(arg, GRPC_CANCELLED, NULL, "its connection is lost");
}

/* ---- what it is told ---- */

static void say(struct join *j, const uint8_t *data, size_t len)
{
	static const uint8_t nothing[1];
	j->said_ns = now_ns(j->joins);
	j->waiting = !grpc_send_bytes(j->call, len > 0 ? data : nothing, len);
}

/* Appends the classes that it has not been told. 0 or -ENOMEM. */
static int add_classes(const struct join *j, struct buf *out)
{
	struct store *store = j->joins->config.store;
	int r = 0;
	for (unsigned i = 0; r == 0 && i < STORE_CLASSES_MAX; i++) {
		Ringvol__V1__CapacityClass class = RINGVOL__V1__CAPACITY_CLASS__INIT;
		const uint8_t *request;
		struct buf one = {0};
		if (!store_class_at(store, i, &class.class_, &request, &class.request.len) ||
			store_class_round(class.class_) <= j->classes_told)
			continue;
		class.request.data = (uint8_t *)(uintptr_t)request;
		uint8_t *at =
			buf_reserve(&one, ringvol__v1__capacity_class__get_packed_size(&class));
		if (at == NULL)
			return -ENOMEM;
		one.len = ringvol__v1__capacity_class__pack(&class, at);
		r = scan_append(out, REPORT_CLASSES, one.data, one.len);
		buf_free(&one);
	}
	return r;
}

/* Without the memory for it they are told with a later tick. */
static void tell_classes(struct join *j)
{
	uint32_t round = store_class_rounds(j->joins->config.store);
	struct buf out = {0};
	if (j->waiting || j->state == JOIN_OPEN || j->classes_told == round)
		return;
	if (add_classes(j, &out) == 0) {
		j->classes_told = round;
		if (out.len > 0)
			say(j, out.data, out.len);
	}
	buf_free(&out);
}

static void on_writable(struct grpc_call *call, void *arg)
{
	struct join *j = arg;
	j->waiting = false;
	if (!grpc_call_gone(call))
		tell_classes(j);
}

static void welcome(struct join *j)
{
	const struct joins_config *config = &j->joins->config;
	Ringvol__V1__Welcome message = RINGVOL__V1__WELCOME__INIT;
	Ringvol__V1__ControllerReport report = RINGVOL__V1__CONTROLLER_REPORT__INIT;
	message.version = (ProtobufCBinaryData){
		strlen(config->version), (uint8_t *)(uintptr_t)config->version};
	message.instance = (ProtobufCBinaryData){
		strlen(config->instance), (uint8_t *)(uintptr_t)config->instance};
	report.welcome = &message;
	j->said_ns = now_ns(j->joins);
	j->waiting = !grpc_send(j->call, &report.base);
	tell_classes(j);
}

/* ---- what it says ---- */

/* A newer call of the same process takes over: the connection of the older one may be lost and
 * nobody know yet. */
static void replace_older(struct join *j, const struct store_node *node)
{
	struct join *older = node->joined;
	if (older == NULL || older == j)
		return;
	older->hear.node = NULL;
	join_end(older, GRPC_ABORTED, "this node has joined again by a newer call", "");
}

static void hello(struct join *j, const Ringvol__V1__NodeReport *report)
{
	struct joins *joins = j->joins;
	struct err err = {0};
	if (report->hello == NULL) {
		err_set(&err, ERR_INVALID, "the first message of Join has no hello");
		refuse(j, &err);
		return;
	}
	int r = hear_hello(
		&j->hear, report->hello, joins->config.driver_name, grpc_call_peer(j->call), &err);
	struct store_node *node = j->hear.node;
	if (node != NULL) {
		replace_older(j, node);
		node->joined = j;
	}
	if (r < 0) {
		refuse(j, &err);
		return;
	}
	assert(node != NULL);
	node->seen_unix = (int64_t)(clock_now_ns() / 1000000000);
	join_to(j, JOIN_TELLING);
	welcome(j);
}

static void report(struct join *j, const Ringvol__V1__NodeReport *message)
{
	struct joins *joins = j->joins;
	struct err err = {0};
	struct buf out = {0};
	bool synced = false;
	int r = hear_report(&j->hear, message, &out, &synced, &err);
	j->hear.node->seen_unix = (int64_t)(clock_now_ns() / 1000000000);
	if (r == 0 && out.len > 0)
		say(j, out.data, out.len);
	buf_free(&out);
	if (r < 0) {
		refuse(j, &err);
		return;
	}
	if (!synced || j->state == JOIN_JOINED)
		return;
	join_to(j, JOIN_JOINED);
	joins->stats.joined++;
	say_joined(j);
	if (joins->config.on_joined != NULL)
		joins->config.on_joined(joins->config.arg, j->hear.node);
}

static struct join *join_new(struct joins *joins, struct grpc_call *call)
{
	struct join *j = calloc(1, sizeof(*j));
	if (j == NULL)
		return NULL;
	j->joins = joins;
	j->call = call;
	j->hear.store = joins->config.store;
	j->hear.is_passed_on = joins->config.is_passed_on;
	j->hear.arg = joins->config.arg;
	j->opened_ns = j->heard_ns = j->said_ns = now_ns(joins);
	list_push_front(&joins->calls, &j->link);
	joins->stats.calls++;
	grpc_call_set_user(call, j);
	grpc_on_gone(call, on_gone, j);
	grpc_on_writable(call, on_writable, j);
	return j;
}

/* message NULL: the node has said its last. */
static void join(struct grpc_call *call, const ProtobufCMessage *message)
{
	struct joins *joins = grpc_call_context(call);
	struct join *j = grpc_call_user(call);
	const Ringvol__V1__NodeReport *told = (const void *)message;
	struct err err = {0};
	if (joins->draining) {
		grpc_end(call, GRPC_UNAVAILABLE, "the controller shuts down");
		return;
	}
	if (j == NULL && (message == NULL || (j = join_new(joins, call)) == NULL)) {
		grpc_end(call, message == NULL ? GRPC_OK : GRPC_RESOURCE_EXHAUSTED,
			message == NULL ? NULL : "out of memory");
		return;
	}
	j->heard_ns = now_ns(joins);
	if (message == NULL) {
		join_end(j, GRPC_OK, NULL, "it has said that it leaves");
	} else if (j->state == JOIN_OPEN) {
		hello(j, told);
		if (grpc_call_user(call) != NULL)
			report(j, told);
	} else if (told->hello != NULL) {
		err_set(&err, ERR_INVALID, "a second hello in one Join");
		refuse(j, &err);
	} else {
		report(j, told);
	}
}

/* ---- as time goes by ---- */

static void cut_off(struct join *j)
{
	bool deaf = j->waiting;
	const char *why =
		deaf ? "it has not read what it was told for 15 s" : "it has been silent for 15 s";
	j->joins->stats.silent++;
	join_end(j, GRPC_UNAVAILABLE,
		deaf ? "this node has not read what it was told for 15 s; join again"
		     : "this node has been silent for 15 s; join again",
		why);
}

/* False: the call has ended. */
static bool look_at(struct join *j)
{
	uint64_t now = now_ns(j->joins);
	if (now - j->heard_ns >= JOIN_SILENCE_MS * MS) {
		cut_off(j);
		return false;
	}
	const char *freed = hear_freed_pool(&j->hear);
	if (freed != NULL) {
		char why[128];
		snprintf(why, sizeof(why), "pool %s is at no other node any more; join again",
			freed);
		join_end(j, GRPC_UNAVAILABLE, why, why);
		return false;
	}
	tell_classes(j);
	if (!j->waiting && now - j->said_ns >= (JOIN_HEARTBEAT_MS - JOIN_TICK_MS) * MS)
		say(j, NULL, 0);
	return true;
}

/* While many nodes come, each changes it: a large one is told when it has settled. */
static bool roster_is_due(const struct joins *joins, uint64_t now)
{
	uint64_t since = now - joins->roster_ns;
	if (joins->roster_ns == 0)
		return true;
	if (joins->seen_version == joins->roster_version || since < JOIN_ROSTER_MS * MS)
		return false;
	return joins->stats.calls <= JOIN_ROSTER_FEW || since >= JOIN_ROSTER_LATE_MS * MS ||
	       now - joins->seen_ns >= JOIN_ROSTER_MS * MS;
}

static void pack_roster(struct joins *joins)
{
	uint64_t version = store_roster_version(joins->config.store), now = now_ns(joins);
	if (version != joins->seen_version) {
		joins->seen_version = version;
		joins->seen_ns = now;
	}
	if (!roster_is_due(joins, now) || roster_pack(joins->config.store, &joins->roster) < 0)
		return;
	joins->roster_version = version;
	joins->roster_ns = now;
}

/* Those that wait longest come first; some wait for the next tick. */
static void tell_rosters(struct joins *joins)
{
	size_t sent = 0;
	uint64_t now = now_ns(joins);
	list_for_each_safe (l, &joins->calls) {
		struct join *j = container_of(l, struct join, link);
		bool told = j->roster_ns != 0 && (j->roster_told == joins->roster_version ||
							 now - j->roster_ns < JOIN_ROSTER_MS * MS);
		if (sent > JOIN_ROSTER_TICK_BYTES)
			return;
		/* One that is not the newest may lack what the node has brought. */
		bool lacks = joins->roster_version != joins->seen_version &&
			     joins->roster_ns < j->opened_ns;
		if (told || lacks || j->state == JOIN_OPEN || j->waiting)
			continue;
		j->roster_told = joins->roster_version;
		j->roster_ns = now;
		list_remove(&j->link);
		list_push(&joins->calls, &j->link);
		say(j, joins->roster.data, joins->roster.len);
		sent += joins->roster.len;
	}
}

static void on_tick(struct ring_timer *timer)
{
	struct joins *joins = container_of(timer, struct joins, tick);
	if (!joins->settled && now_ns(joins) - joins->opened_ns >= JOIN_SETTLE_MS * MS) {
		joins->settled = true;
		store_settle(joins->config.store);
	}
	list_for_each_safe (l, &joins->calls)
		look_at(container_of(l, struct join, link));
	if (!list_empty(&joins->calls)) {
		pack_roster(joins);
		tell_rosters(joins);
	}
	ring_timer_arm(joins->config.ring, &joins->tick, JOIN_TICK_MS);
}

static void on_classes(struct ring_timer *timer)
{
	struct joins *joins = container_of(timer, struct joins, classes);
	list_for_each (l, &joins->calls)
		tell_classes(container_of(l, struct join, link));
}

void joins_tell_classes(struct joins *joins)
{
	if (!joins->draining && !ring_timer_armed(&joins->classes))
		ring_timer_arm(joins->config.ring, &joins->classes, JOIN_CLASSES_MS);
}

/* ---- life ---- */

static const struct grpc_method methods[] = {
	{"Join", join, GRPC_STREAM_IN},
	{NULL},
};

int joins_open(struct joins **ret, const struct joins_config *config)
{
	struct joins *joins = calloc(1, sizeof(*joins));
	if (joins == NULL)
		return -ENOMEM;
	joins->config = *config;
	joins->service = (struct grpc_service){
		.descriptor = &ringvol__v1__cluster__descriptor,
		.methods = methods,
		.context = joins,
		.peers = 1 << GRPC_PEER_NODE,
	};
	list_init(&joins->calls);
	siphash_key_new(&joins->key);
	joins->tick.fn = on_tick;
	joins->classes.fn = on_classes;
	joins->opened_ns = now_ns(joins);
	ring_timer_arm(config->ring, &joins->tick, JOIN_TICK_MS);
	*ret = joins;
	return 0;
}

int joins_register(struct joins *joins, struct grpc_registry *nodes)
{
	return grpc_registry_add(nodes, &joins->service, NULL);
}

void joins_drain(struct joins *joins)
{
	joins->draining = true;
	ring_timer_cancel(joins->config.ring, &joins->tick);
	ring_timer_cancel(joins->config.ring, &joins->classes);
	while (!list_empty(&joins->calls))
		join_end(container_of(joins->calls.next, struct join, link), GRPC_UNAVAILABLE,
			"the controller shuts down", "");
}

void joins_close(struct joins *joins)
{
	if (joins == NULL)
		return;
	joins_drain(joins);
	buf_free(&joins->roster);
	free(joins);
}

void joins_stats(const struct joins *joins, struct joins_stats *ret)
{
	*ret = joins->stats;
	list_for_each (l, &joins->calls)
		ret->at_two += (unsigned)container_of(l, struct join, link)->hear.n_refused;
}
