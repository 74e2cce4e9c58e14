/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The links to all controllers, and what they share: the log of changes, the claims, who asks for
 * capacity, the roster. While a controller is joined the objects are looked at, some each
 * MEMBER_LOOK_MS, and so are the pools; what an operation has changed is looked at when it ends.
 *
 * A controller that is away costs a dial every MEMBER_REDIAL_MAX_MS, and nothing else. Nothing here
 * fails but the start.
 */
#include "member/member.h"

#include "base/log.h"
#include "base/utf8.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/rpc.h"
#include "csi/topology.h"
#include "member/claim.h"
#include "member/link.h"
#include "member/report.h"
#include "pool/group.h"
#include "pool/index.h"
#include "pool/room.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
	ROSTER_MAX_BYTES = 1 << 20, /* a longer one is not kept */
	HELLO_ROSTER = 7,           /* the field's number */
	INSTANCE_BYTES = 16,
	/* A change of what is available is told at once from so much of it on; a smaller one with
	 * the next heartbeat. */
	AVAILABLE_PART = 64,
};

/* What was told of a pool. */
struct member_pool {
	uint64_t hash; /* of all but what is available; 0: nothing */
	uint64_t available_bytes, told_ns;
};

struct member {
	struct csi *csi;
	struct member_config config;
	char instance[2 * INSTANCE_BYTES + 1];
	struct changes changes;
	struct member_claims claims;
	struct member_asker asker;
	struct ring_timer look; /* while a link tells */
	struct member_pool pools[POOLS_MAX];
	unsigned ready;    /* bits: pools that were ready at the last look */
	struct buf roster; /* fields of a Hello */
	bool draining;
	unsigned n_links;
	struct member_link links[];
};

static struct member *member_of(const struct member_link *l)
{
	return l->arg;
}

#define for_each_link(l, m)                                                                        \
	for (struct member_link *l = (m)->links; l < (m)->links + (m)->n_links; l++)

/* ---- hello ---- */

static int add_topology(const struct member *m, struct arena *arena, Ringvol__V1__Hello *hello)
{
	const Csi__V1__Topology *topology = csi_topology_message(arena, m->csi);
	if (topology == NULL)
		return -ENOMEM;
	size_t n = topology->n_segments;
	hello->topology = arena_alloc(arena, n * sizeof(*hello->topology));
	Ringvol__V1__Segment *segments = arena_alloc(arena, n * sizeof(*segments));
	if (hello->topology == NULL || segments == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		ringvol__v1__segment__init(&segments[i]);
		segments[i].key = topology->segments[i]->key;
		segments[i].value = topology->segments[i]->value;
		hello->topology[i] = &segments[i];
	}
	hello->n_topology = n;
	return 0;
}

static int add_features(const struct member *m, struct arena *arena, Ringvol__V1__Hello *hello)
{
	size_t n = 0;
	while (m->config.features != NULL && m->config.features[n] != NULL)
		n++;
	hello->features = arena_alloc(arena, n * sizeof(*hello->features));
	if (hello->features == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		hello->features[i] = csi_bytes(m->config.features[i]);
	hello->n_features = n;
	return 0;
}

static int pack_hello(const struct member *m, struct arena *arena, struct buf *b)
{
	Ringvol__V1__Hello hello = RINGVOL__V1__HELLO__INIT;
	struct buf body = {0};
	hello.node_id = csi_bytes(m->csi->config.node_id);
	hello.driver_name = csi_bytes(m->csi->config.driver_name);
	hello.version = csi_bytes(m->config.version);
	hello.instance = csi_bytes(m->instance);
	hello.address = csi_bytes(m->config.address);
	int r = add_topology(m, arena, &hello);
	if (r == 0)
		r = add_features(m, arena, &hello);
	uint8_t *to =
		r < 0 ? NULL : buf_reserve(&body, ringvol__v1__hello__get_packed_size(&hello));
	if (to == NULL)
		return -ENOMEM;
	body.len = ringvol__v1__hello__pack(&hello, to);
	if (m->roster.len != 0)
		r = buf_append(&body, m->roster.data, m->roster.len);
	if (r == 0)
		r = report_bytes(b, REPORT_HELLO, body.data, body.len);
	buf_free(&body);
	return r;
}

static int on_hello(void *arg, struct buf *b)
{
	struct arena *arena = arena_new(0);
	int r = arena == NULL ? -ENOMEM : pack_hello(arg, arena, b);
	arena_unref(arena);
	return r;
}

/* ---- pools ---- */

/* Whether the pool has to be told, and then notes that it is. */
static bool pool_due(struct member *m, unsigned i, const struct pool *pool)
{
	struct member_pool *told = &m->pools[i];
	struct pool_room room = {0};
	const int state = pool_state(pool);
	uint64_t now_ns = ring_now_ns(m->csi->reactor->ring);
	uint64_t hash = report_hash(REPORT_HASH_START, &state, sizeof(state));
	hash = report_hash(hash, pool_why(pool), strlen(pool_why(pool)));
	hash = report_hash(hash, pool_uuid(pool), strlen(pool_uuid(pool)));
	if (state == POOL_READY)
		pool_room(pool, &room);
	uint64_t was = told->available_bytes, is = room.available_bytes;
	uint64_t by = was < is ? is - was : was - is;
	bool due = hash != told->hash || by > was / AVAILABLE_PART ||
		   (by != 0 && now_ns - told->told_ns >= MEMBER_HEARTBEAT_MS * UINT64_C(1000000));
	if (due)
		*told = (struct member_pool){hash, is, now_ns};
	return due;
}

static unsigned ready_pools(const struct member *m)
{
	const struct pool *pool;
	unsigned ready = 0;
	for (unsigned i = 0; (pool = pools_at(m->csi->pools, i)) != NULL; i++)
		ready |= (unsigned)(pool_state(pool) == POOL_READY) << i;
	return ready;
}

static void look_at_pools(struct member *m)
{
	const struct pool *pool;
	unsigned due = 0, ready = ready_pools(m);
	for (unsigned i = 0; (pool = pools_at(m->csi->pools, i)) != NULL; i++)
		due |= (unsigned)pool_due(m, i, pool) << i;
	/* What was read of one that has come may be anything. */
	bool came = (ready & ~m->ready) != 0;
	m->ready = ready;
	for_each_link (l, m) {
		l->pools_due |= due;
		if (came)
			link_tell_again(l);
		if (due != 0)
			link_kick(l);
	}
}

/* ---- the look ---- */

/* The oldest changes that every link has told go. */
static void trim(struct member *m)
{
	uint64_t next = m->changes.last + 1;
	for_each_link (l, m)
		if (link_tells(l) && l->next < next)
			next = l->next;
	changes_trim(&m->changes, next - 1);
}

static void on_look(struct ring_timer *timer)
{
	struct member *m = container_of(timer, struct member, look);
	look_at_pools(m);
	trim(m);
	(void)changes_walk(&m->changes, MEMBER_LOOK_OBJECTS);
	member_asker_look(&m->asker);
	ring_timer_arm(m->csi->reactor->ring, timer, MEMBER_LOOK_MS);
}

static void on_more(void *arg)
{
	struct member *m = arg;
	trim(m);
	for_each_link (l, m)
		link_kick_later(l);
}

void member_pool_changed(struct member *m)
{
	if (m == NULL || m->draining)
		return;
	look_at_pools(m);
	member_asker_look(&m->asker);
	for_each_link (l, m) /* one may have waited for the pools to be read */
		link_kick(l);
}

/* ---- the links' hooks ---- */

static int on_claims(const struct member_link *l, struct buf *b)
{
	return member_claims_report(&member_of(l)->claims, l->next, b);
}

static bool on_is_behind(const struct member_link *l)
{
	for_each_link (other, member_of(l))
		if (other != l && link_is_behind(l, other))
			return true;
	return false;
}

static void on_link_change(struct member_link *l)
{
	struct member *m = member_of(l);
	bool wanted = false;
	for_each_link (other, m)
		wanted = wanted || link_tells(other);
	m->changes.wanted = wanted;
	if (!link_tells(l))
		member_claims_left(&m->claims, l->index);
	trim(m);
	if (!wanted)
		ring_timer_cancel(m->csi->reactor->ring, &m->look);
	else if (!ring_timer_armed(&m->look))
		ring_timer_arm(m->csi->reactor->ring, &m->look, MEMBER_LOOK_MS);
}

static bool is_id(ProtobufCBinaryData id, size_t max)
{
	return id.len != 0 && id.len <= max && memchr(id.data, '\0', id.len) == NULL &&
	       utf8_valid(id.data, id.len);
}

/* The last one counts, whoever told it. */
static bool keep_roster(struct member *m, const Ringvol__V1__Roster *roster)
{
	struct buf fresh = {0};
	int r = 0;
	for (size_t i = 0; r == 0 && i < roster->n_nodes; i++) {
		const Ringvol__V1__RosterNode *node = roster->nodes[i];
		bool good = is_id(node->node_id, 256) && node->n_pools <= POOLS_MAX;
		for (size_t p = 0; good && p < node->n_pools; p++)
			good = is_id(node->pools[p], 8);
		if (!good) {
			buf_free(&fresh);
			return false;
		}
		r = report_message(&fresh, HELLO_ROSTER, &node->base);
		if (fresh.len > ROSTER_MAX_BYTES)
			r = -E2BIG;
	}
	if (r < 0) {
		buf_free(&fresh); /* the one before is better than half of this one */
		return true;
	}
	buf_free(&m->roster);
	m->roster = fresh;
	return true;
}

static bool on_report(struct member_link *l, const Ringvol__V1__ControllerReport *report)
{
	struct member *m = member_of(l);
	if (report->roster != NULL && !keep_roster(m, report->roster))
		return false;
	for (size_t i = 0; i < report->n_classes; i++)
		(void)member_classes_add(
			&l->classes, report->classes[i]); /* else a call tells why */
	for (size_t i = 0; i < report->n_verdicts; i++)
		if (!member_claims_verdict(&m->claims, l->index, report->verdicts[i]))
			return false;
	return true;
}

static const struct link_hooks link_hooks = {
	.hello = on_hello,
	.claims = on_claims,
	.on_report = on_report,
	.on_change = on_link_change,
	.is_behind = on_is_behind,
};

/* ---- the claims' ---- */

static unsigned on_who(void *arg)
{
	struct member *m = arg;
	unsigned links = 0;
	for_each_link (l, m)
		links |= (unsigned)link_tells(l) << l->index;
	return links;
}

static void on_tell(void *arg)
{
	struct member *m = arg;
	for_each_link (l, m)
		link_kick(l);
}

static void on_give_up(void *arg, unsigned links)
{
	struct member *m = arg;
	for_each_link (l, m)
		if (links & 1u << l->index)
			link_leave(l, "it has not said within 2 s whether a name may be made");
}

/* ---- csi's ---- */

static bool on_create(void *arg, struct grpc_call *call, const ProtobufCMessage *request,
	enum record_kind kind, const char *name)
{
	struct member *m = arg;
	return member_claims_on_create(&m->claims, call, request, kind, name);
}

static void on_task_end(void *arg, const struct csi_task *task)
{
	struct member *m = arg;
	struct pool_object *object = NULL;
	struct err ignored = {0};
	if (task->rpc->poll)
		return;
	if (task->rpc->name != NULL)
		object = pools_find_name(
			m->csi->pools, task->rpc->kind, csi_field(task->request, task->rpc->name));
	else if (task->rpc->id != NULL)
		(void)pools_find_id(m->csi->pools, task->rpc->kind, task->id, &object, &ignored);
	if (object != NULL)
		changes_look(&m->changes, object);
	for (unsigned i = 0; task->group != NULL && i < task->group->count; i++) {
		const char *why;
		object = pool_group_member(task->group, i, &why);
		if (object != NULL)
			changes_look(&m->changes, object);
	}
	if (task->rpc->name != NULL)
		member_claims_on_task_end(
			&m->claims, task->rpc->kind, csi_field(task->request, task->rpc->name));
	if (m->changes.wanted)
		member_asker_look(&m->asker);
}

static void on_removed(void *arg, const struct pool_object *object)
{
	struct member *m = arg;
	changes_removed(&m->changes, object);
}

/* ---- life ---- */

static int draw_instance(struct member *m, uint64_t *ret_random)
{
	uint8_t bytes[INSTANCE_BYTES];
	if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
		return -errno;
	for (unsigned i = 0; i < sizeof(bytes); i++)
		snprintf(m->instance + 2 * (size_t)i, 3, "%02x", bytes[i]);
	return getrandom(ret_random, sizeof(*ret_random), 0) == sizeof(*ret_random) ? 0 : -errno;
}

static int open_links(struct member *m, uint64_t random, struct err *err)
{
	struct lane *lane;
	int r = ring_lane_open(&lane, m->csi->reactor->ring);
	if (r < 0)
		return err_sys(err, r, "the cluster cannot be joined");
	for (unsigned i = 0; r == 0 && i < m->config.n_controllers; i++) {
		struct member_link *l = &m->links[i];
		l->index = i;
		l->address = m->config.controllers[i];
		l->csi = m->csi;
		l->changes = &m->changes;
		l->hooks = &link_hooks;
		l->arg = m;
		l->lane = lane;
		l->registry = m->config.registry;
		r = link_open(l, &m->asker, m->config.tls, random + i, err);
		if (r == 0)
			m->n_links++;
		else
			err_sys(err, r, "controller %s", l->address);
	}
	return r;
}

int member_open(
	struct member **ret, struct csi *csi, const struct member_config *config, struct err *err)
{
	uint64_t random;
	struct member *m = calloc(1, sizeof(*m) + config->n_controllers * sizeof(m->links[0]));
	int r = m == NULL ? -ENOMEM : draw_instance(m, &random);
	if (r < 0) {
		free(m);
		return err_sys(err, r, "the cluster cannot be joined");
	}
	m->csi = csi;
	m->config = *config;
	m->look.fn = on_look;
	m->ready = ready_pools(m);
	changes_open(&m->changes, csi, on_more, m);
	member_claims_open(&m->claims, csi, &m->changes);
	m->claims.one_controller = config->n_controllers == 1;
	m->claims.who = on_who;
	m->claims.give_up = on_give_up;
	m->claims.tell = on_tell;
	m->claims.arg = m;
	member_asker_open(&m->asker, csi);
	csi->hooks = (struct csi_hooks){on_create, on_task_end, m};
	pools_on_removed(csi->pools, on_removed, m);
	r = open_links(m, random, err);
	if (r < 0) {
		member_close(m);
		return r;
	}
	*ret = m;
	return 0;
}

void member_start(struct member *m)
{
	for_each_link (l, m)
		link_start(l);
}

void member_drain(struct member *m)
{
	if (m == NULL || m->draining)
		return;
	m->draining = true;
	member_asker_drain(&m->asker);
	/* Before the links: what nobody has refused is not granted by that. */
	member_claims_drain(&m->claims);
	for_each_link (l, m)
		link_close(l);
}

bool member_idle(const struct member *m)
{
	return m == NULL || member_asker_idle(&m->asker);
}

void member_close(struct member *m)
{
	if (m == NULL)
		return;
	member_drain(m);
	m->csi->hooks = (struct csi_hooks){0};
	pools_on_removed(m->csi->pools, NULL, NULL);
	member_claims_close(&m->claims);
	changes_close(&m->changes);
	buf_free(&m->roster);
	free(m);
}

bool member_controller_at(const struct member *m, unsigned i, struct member_controller *ret)
{
	if (m == NULL || i >= m->n_links)
		return false;
	const struct member_link *l = &m->links[i];
	*ret = (struct member_controller){l->address, l->state == LINK_JOINED,
		l->state == LINK_JOINED ? "" : l->why, l->joins};
	return true;
}

uint64_t member_claims_refused(const struct member *m)
{
	return m->claims.refused;
}
