/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order within a message: pools, objects, what is gone, names released, names claimed, capacities.
 * A node that says what none of ours would say is refused whole, since a part of what it has would
 * be taken for all. A pool that another node has is refused alone, and what is in it is left out.
 */
#include "controller/hear.h"

#include "base/log.h"
#include "base/utf8.h"
#include "controller/entry.h"
#include "controller/scan.h"
#include "csi/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	UUID_DIGITS = 32,
	VERDICT_MAX = 512,   /* bytes: a kind, a key, a node's id */
	REPORT_VERDICTS = 3, /* a field of ControllerReport */
};

typedef Ringvol__V1__NodePool node_pool;
typedef Ringvol__V1__NodeObject node_object;
typedef Ringvol__V1__NameClaim name_claim;
typedef Ringvol__V1__NodeCapacity node_capacity;

/* ---- texts ---- */

/* NULL: it is longer, not UTF-8, or has control characters. */
static const char *text_of(ProtobufCBinaryData field, size_t max)
{
	if (field.len == 0)
		return "";
	if (field.len > max || !utf8_valid(field.data, field.len))
		return NULL;
	for (size_t i = 0; i < field.len; i++)
		if (field.data[i] < 0x20 || field.data[i] == 0x7f)
			return NULL;
	return (const char *)field.data;
}

static int take_text(
	const char *name, ProtobufCBinaryData field, size_t max, const char **ret, struct err *err)
{
	*ret = text_of(field, max);
	if (*ret == NULL)
		return err_set(
			err, ERR_INVALID, "%s: is no text, or longer than %zu bytes", name, max);
	return 0;
}

static int take_given(
	const char *name, ProtobufCBinaryData field, size_t max, const char **ret, struct err *err)
{
	if (field.len == 0)
		return err_set(err, ERR_INVALID, "%s is missing", name);
	return take_text(name, field, max, ret, err);
}

static bool kind_of(Ringvol__V1__NodeObject__Kind told, enum store_kind *ret)
{
	if (told == RINGVOL__V1__NODE_OBJECT__KIND__VOLUME)
		*ret = STORE_VOLUME;
	else if (told == RINGVOL__V1__NODE_OBJECT__KIND__SNAPSHOT)
		*ret = STORE_SNAPSHOT;
	else
		return false; /* of a later version */
	return true;
}

/* ---- hello ---- */

/* HOST:PORT; what exactly is in it is the channel's affair. */
static bool address_ok(const char *address)
{
	const char *colon = strrchr(address, ':');
	if (colon == NULL || colon == address || strchr(address, ' ') != NULL)
		return false;
	size_t digits = strspn(colon + 1, "0123456789");
	unsigned long port = strtoul(colon + 1, NULL, 10);
	return digits > 0 && digits <= 5 && colon[1 + digits] == '\0' && port > 0 && port <= 65535;
}

static int take_topology(const Ringvol__V1__Hello *hello, const char *node_id,
	struct store_segment *ret, struct err *err)
{
	bool own = false;
	if (hello->n_topology > HEAR_SEGMENTS_MAX)
		return err_set(
			err, ERR_INVALID, "topology: more than %d segments", HEAR_SEGMENTS_MAX);
	for (size_t i = 0; i < hello->n_topology; i++) {
		const Ringvol__V1__Segment *segment = hello->topology[i];
		int r = take_given("topology.key", segment->key, HEAR_KEY_MAX, &ret[i].key, err);
		if (r == 0)
			r = take_text("topology.value", segment->value, HEAR_NODE_ID_MAX,
				&ret[i].value, err);
		if (r < 0)
			return r;
		if (strcmp(ret[i].key, CSI_TOPOLOGY_KEY) != 0)
			continue;
		if (own || strcmp(ret[i].value, node_id) != 0)
			return err_set(err, ERR_INVALID,
				"topology: " CSI_TOPOLOGY_KEY " is not the node's own id");
		own = true;
	}
	if (!own)
		return err_set(err, ERR_INVALID, "topology: " CSI_TOPOLOGY_KEY " is missing");
	return 0;
}

/* The pools of a node that others know of. */
static int take_roster_node(struct hear *h, const Ringvol__V1__RosterNode *roster, struct err *err)
{
	const char *id, *pools[STORE_NODE_POOLS_MAX];
	int r = take_given("roster.node_id", roster->node_id, HEAR_NODE_ID_MAX, &id, err);
	if (r == 0 && roster->n_pools > STORE_NODE_POOLS_MAX)
		r = err_set(err, ERR_INVALID, "roster: more than %d pools of one node",
			STORE_NODE_POOLS_MAX);
	for (size_t i = 0; r == 0 && i < roster->n_pools; i++) {
		r = take_given("roster.pools", roster->pools[i], STORE_UUID8, &pools[i], err);
		if (r == 0 && !store_uuid8_valid(pools[i]))
			r = err_set(err, ERR_INVALID, "roster: a pool has no uuid's 8 digits");
	}
	if (r < 0)
		return r;
	r = store_roster(h->store, id, pools, roster->n_pools);
	if (r == -ENOSPC && h->noticed++ < HEAR_NOTICES_MAX)
		log_event(LOG_LEVEL_WARN, "a roster has more than can be kept",
			log_fields({"node", h->node->id}, {"first", id}));
	return r == -ENOMEM ? err_set(err, ERR_NO_ROOM, "out of memory") : 0;
}

bool hear_peer_may_be(const struct grpc_peer *peer, const char *node_id)
{
	return peer->role == GRPC_PEER_NODE &&
	       (strcmp(peer->node_id, "*") == 0 || strcmp(peer->node_id, node_id) == 0);
}

static int check_hello(const char *id, const char *driver, const char *address,
	const char *driver_name, const struct grpc_peer *peer, struct err *err)
{
	if (!hear_peer_may_be(peer, id))
		return err_set(err, ERR_INVALID,
			"node_id: the certificate is of node %s, and not of %s", peer->node_id, id);
	if (strcmp(driver, driver_name) != 0)
		return err_set(err, ERR_PRECONDITION,
			"node %s: its driver is %s, this controller's is %s (--driver-name)", id,
			driver, driver_name);
	if (!address_ok(address))
		return err_set(err, ERR_INVALID, "address: is no HOST:PORT (--advertise)");
	return 0;
}

int hear_hello(struct hear *h, const Ringvol__V1__Hello *hello, const char *driver_name,
	const struct grpc_peer *peer, struct err *err)
{
	struct store_segment topology[HEAR_SEGMENTS_MAX];
	const char *id, *driver, *version, *instance, *address;
	int r = take_given("node_id", hello->node_id, HEAR_NODE_ID_MAX, &id, err);
	if (r == 0)
		r = take_text("driver_name", hello->driver_name, HEAR_TEXT_MAX, &driver, err);
	if (r == 0)
		r = take_text("version", hello->version, HEAR_TEXT_MAX, &version, err);
	if (r == 0)
		r = take_given("instance", hello->instance, HEAR_TEXT_MAX, &instance, err);
	if (r == 0)
		r = take_text("address", hello->address, HEAR_TEXT_MAX, &address, err);
	if (r == 0)
		r = check_hello(id, driver, address, driver_name, peer, err);
	if (r == 0)
		r = take_topology(hello, id, topology, err);
	if (r == 0 && hello->n_roster > STORE_NODES_MAX)
		r = err_set(err, ERR_INVALID, "roster: more than %d nodes", STORE_NODES_MAX);
	if (r == 0)
		r = store_join(h->store, id, instance, address, version, topology,
			hello->n_topology, &h->node, err);
	for (size_t i = 0; r == 0 && i < hello->n_roster; i++)
		r = take_roster_node(h, hello->roster[i], err);
	return r;
}

/* ---- pools ---- */

static struct hear_refused *find_refused(const struct hear *h, const char *uuid8)
{
	for (size_t i = 0; i < h->n_refused; i++)
		if (strncmp(h->refused[i].uuid8, uuid8, STORE_UUID8) == 0)
			return &h->refused[i];
	return NULL;
}

static void forget_refused(struct hear *h, const char *uuid8)
{
	struct hear_refused *refused = find_refused(h, uuid8);
	if (refused != NULL)
		*refused = h->refused[--h->n_refused];
}

static int refuse_pool(struct hear *h, const char *uuid, const struct err *why, struct err *err)
{
	if (find_refused(h, uuid) != NULL)
		return 0;
	if (array_grow(&h->refused, &h->refused_cap, h->n_refused, sizeof(*h->refused)) < 0)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	struct hear_refused *refused = &h->refused[h->n_refused++];
	*refused = (struct hear_refused){.at_another = why->code == ERR_EXISTS};
	memcpy(refused->uuid8, uuid, STORE_UUID8);
	log_event(LOG_LEVEL_WARN, "a pool of a node is left out",
		log_fields({"node", h->node->id}, {"pool", uuid}, {"why", why->message}));
	return 0;
}

static enum store_pool_state state_of(Ringvol__V1__NodePool__State told)
{
	switch ((int)told) {
	case RINGVOL__V1__NODE_POOL__STATE__LOADING:
		return STORE_POOL_LOADING;
	case RINGVOL__V1__NODE_POOL__STATE__READY:
		return STORE_POOL_READY;
	case RINGVOL__V1__NODE_POOL__STATE__MISSING:
		return STORE_POOL_MISSING;
	default: /* or of a later version: nothing is placed there */
		return STORE_POOL_SICK;
	}
}

static void pool_gone(struct hear *h, const char *uuid8)
{
	struct store_pool *pool = store_pool(h->store, uuid8);
	forget_refused(h, uuid8);
	if (pool != NULL && pool->node == h->node)
		store_pool_gone(h->store, pool);
}

static void say_came(const struct hear *h, const char *uuid, bool forgotten, const char *from)
{
	if (forgotten)
		log_event(LOG_LEVEL_WARN, "a pool that is to be forgotten is here",
			log_fields({"node", h->node->id}, {"pool", uuid},
				{"remedy", "take it out of --forget-pool"}));
	else if (from[0] != '\0')
		log_event(LOG_LEVEL_INFO, "a pool has moved to another node",
			log_fields({"node", h->node->id}, {"pool", uuid}, {"from", from}));
}

static int take_pool(struct hear *h, const node_pool *told, struct err *err)
{
	const char *uuid, *name, *why;
	char uuid8[STORE_UUID8 + 1] = "", from[HEAR_NODE_ID_MAX + 1] = "";
	struct err refusal = {0};
	if (told->uuid.len == 0)
		return 0; /* nobody has read it yet */
	int r = take_text("pools.uuid", told->uuid, UUID_DIGITS, &uuid, err);
	if (r == 0)
		r = take_given("pools.name", told->name, HEAR_TEXT_MAX, &name, err);
	if (r == 0)
		r = take_text("pools.why", told->why, HEAR_WHY_MAX, &why, err);
	if (r == 0 && strspn(uuid, "0123456789abcdef") != UUID_DIGITS)
		r = err_set(err, ERR_INVALID, "pools.uuid: has not 32 digits");
	if (r < 0)
		return r;
	memcpy(uuid8, uuid, STORE_UUID8);
	if (told->gone) {
		pool_gone(h, uuid8);
		return 0;
	}
	enum store_pool_state state = state_of(told->state);
	/* What is in it was left out: it is taken when all is told again (hear_freed_pool()). */
	if (state != STORE_POOL_MISSING && find_refused(h, uuid8) != NULL)
		return 0;
	struct store_pool *pool = store_pool(h->store, uuid8);
	bool forgotten = pool != NULL && pool->forgotten;
	if (pool != NULL && pool->node != NULL && pool->node != h->node)
		snprintf(from, sizeof(from), "%s", pool->node->id);
	r = store_pool_set(
		h->store, h->node, uuid, name, state, why, told->available_bytes, &pool, &refusal);
	if (r == 0) {
		forget_refused(h, uuid8);
		say_came(h, uuid, forgotten, from);
	} else if (refusal.code == ERR_NO_ROOM) {
		*err = refusal;
	} else if (state == STORE_POOL_MISSING) {
		forget_refused(h, uuid8);
		r = 0; /* it is at another node, and this one misses it: as it should be */
	} else {
		r = refuse_pool(h, uuid, &refusal, err);
	}
	return r;
}

const char *hear_freed_pool(const struct hear *h)
{
	for (size_t i = 0; i < h->n_refused; i++) {
		const struct store_pool *pool = store_pool(h->store, h->refused[i].uuid8);
		if (pool == NULL ||
			(h->refused[i].at_another &&
				(!store_pool_here(pool) || pool->state == STORE_POOL_MISSING)))
			return h->refused[i].uuid8;
	}
	return NULL;
}

/* ---- objects ---- */

/* The pool is told by this call, as this node's. */
static bool is_mine(const struct hear *h, const struct store_pool *pool)
{
	return pool != NULL && pool->node == h->node && store_pool_here(pool);
}

static void say_skipped(struct hear *h, const char *id)
{
	if (h->skipped++ == 0)
		log_event(LOG_LEVEL_WARN, "volumes of a pool that is not the node's are left out",
			log_fields({"node", h->node->id}, {"first", id}));
}

static void say_left_out(struct hear *h, const struct err *why)
{
	if (h->left_out++ == 0)
		log_event(LOG_LEVEL_WARN, "volumes of a node are left out",
			log_fields({"node", h->node->id}, {"why", why->message}));
}

static void say_twice(struct hear *h, enum store_kind kind, const char *id, const char *key)
{
	const struct store_object *other = store_object_by_key(h->store, kind, key);
	if (h->noticed++ >= HEAR_NOTICES_MAX || other == NULL)
		return;
	log_event(LOG_LEVEL_WARN, "a name is on two nodes",
		log_fields({"id", id}, {"node", h->node->id},
			{"other", strcmp(other->id, id) != 0 ? other->id : NULL},
			{"remedy", "delete the one that nobody uses"}));
}

static int take_object(struct hear *h, const node_object *told, struct err *err)
{
	enum store_kind kind;
	struct record_id parsed;
	const char *id, *source, *pool = "";
	if (!kind_of(told->kind, &kind))
		return 0;
	int r = take_given("objects.id", told->id, RECORD_ID_MAX - 1, &id, err);
	if (r == 0)
		r = take_text("objects.pool", told->pool, STORE_UUID8, &pool, err);
	if (r == 0 && *pool != '\0' && !store_uuid8_valid(pool))
		r = err_set(err, ERR_INVALID, "objects.pool: are no uuid's 8 digits");
	if (r == 0)
		r = take_text(
			"objects.source_id", told->source_id, RECORD_ID_MAX - 1, &source, err);
	if (r == 0 && record_id_parse(id, &parsed) < 0)
		r = err_set(err, ERR_INVALID, "objects.id: %s is no id", id);
	if (r < 0)
		return r;
	if (!is_mine(h, store_pool(h->store, *pool != '\0' ? pool : parsed.pool))) {
		say_skipped(h, id);
		return 0;
	}
	r = entry_check(kind, id, told->entry.data, told->entry.len, err);
	if (r == 0 && told->health.len != 0)
		r = entry_check_health(id, told->health.data, told->health.len, err);
	if (r < 0)
		return r;
	size_t twice = store_duplicates(h->store);
	struct err why = {0};
	const struct object_text text = {.kind = kind,
		.id = id,
		.source_id = source,
		.entry = told->entry.data,
		.entry_len = told->entry.len,
		.health = told->health.data,
		.health_len = told->health.len,
		.pool = pool,
		.moves = told->moves};
	r = store_object_tell(h->store, h->node, &text, &why);
	if (why.code == ERR_NO_ROOM && store_node_partial(h->node)) {
		say_left_out(h, &why);
		return 0;
	}
	if (r < 0)
		*err = why;
	if (store_duplicates(h->store) > twice)
		say_twice(h, kind, id, parsed.key);
	return r;
}

static int take_gone(struct hear *h, ProtobufCBinaryData told, struct err *err)
{
	struct record_id parsed;
	const char *id;
	int r = take_given("gone", told, RECORD_ID_MAX - 1, &id, err);
	if (r == 0 && record_id_parse(id, &parsed) < 0)
		r = err_set(err, ERR_INVALID, "gone: %s is no id", id);
	const struct store_object *object = r == 0 ? store_object(h->store, id) : NULL;
	if (r == 0 && (object == NULL || is_mine(h, object->pool)))
		store_object_gone(h->store, h->node, id);
	return r;
}

/* ---- names ---- */

static int take_key(const name_claim *told, enum store_kind *ret_kind, const char **ret_key,
	bool *ret_known, struct err *err)
{
	*ret_known = kind_of(told->kind, ret_kind);
	int r = take_given("key", told->key, RECORD_KEY_MAX - 1, ret_key, err);
	if (r == 0 && !record_key_valid(*ret_key))
		r = err_set(err, ERR_INVALID, "key: %s is none", *ret_key);
	return r;
}

static int add_verdict(struct buf *out, const Ringvol__V1__NameVerdict *verdict, struct err *err)
{
	uint8_t packed[VERDICT_MAX];
	size_t len = ringvol__v1__name_verdict__get_packed_size(verdict);
	if (len > sizeof(packed))
		return err_set(err, ERR_INTERNAL, "a verdict of %zu bytes", len);
	ringvol__v1__name_verdict__pack(verdict, packed);
	return scan_append(out, REPORT_VERDICTS, packed, len) < 0
		       ? err_set(err, ERR_NO_ROOM, "out of memory")
		       : 0;
}

static int take_claim(struct hear *h, const name_claim *told, struct buf *out, struct err *err)
{
	enum store_kind kind;
	const char *key;
	bool known;
	struct store_node *other = NULL;
	struct err why = {0};
	int r = take_key(told, &kind, &key, &known, err);
	if (r < 0 || !known)
		return r;
	r = store_name_claim(h->store, kind, key, h->node, &other, &why);
	if (r < 0 && why.code != ERR_EXISTS && why.code != ERR_NO_ROOM) {
		*err = why;
		return r;
	}
	Ringvol__V1__NameVerdict verdict = RINGVOL__V1__NAME_VERDICT__INIT;
	verdict.kind = told->kind;
	verdict.key = told->key;
	verdict.granted = r == 0;
	/* At a limit it is refused, and nobody has it. */
	if (r < 0 && other != NULL)
		verdict.node_id =
			(ProtobufCBinaryData){strlen(other->id), (uint8_t *)(uintptr_t)other->id};
	return add_verdict(out, &verdict, err);
}

static int take_released(struct hear *h, const name_claim *told, struct err *err)
{
	enum store_kind kind;
	const char *key;
	bool known;
	int r = take_key(told, &kind, &key, &known, err);
	if (r < 0 || !known || store_name_maker(h->store, kind, key) != h->node)
		return r;
	/* This may be of an earlier create, and the next one on its way to the node. */
	if (h->is_passed_on != NULL && h->is_passed_on(h->arg, kind, key))
		store_name_over(h->store, kind, key);
	else
		store_name_release(h->store, kind, key);
	return 0;
}

/* ---- capacities ---- */

static int take_capacity(struct hear *h, const node_capacity *told, struct err *err)
{
	int r = entry_check_capacity(told->response.data, told->response.len, err);
	if (r < 0)
		return r;
	r = store_capacity_set(
		h->store, h->node, told->class_, told->response.data, told->response.len);
	if (r == -EMSGSIZE)
		return err_set(err, ERR_INVALID, "capacities: an answer has more than %d bytes",
			CLASS_ANSWER_MAX);
	return r < 0 ? err_set(err, ERR_NO_ROOM, "out of memory") : 0;
}

/* ---- a report ---- */

int hear_report(struct hear *h, const Ringvol__V1__NodeReport *report, struct buf *out,
	bool *ret_synced, struct err *err)
{
	int r = 0;
	if (report->n_claims > STORE_NODE_CLAIMS_MAX)
		return err_set(
			err, ERR_INVALID, "claims: more than %d at once", STORE_NODE_CLAIMS_MAX);
	for (size_t i = 0; r == 0 && i < report->n_pools; i++)
		r = take_pool(h, report->pools[i], err);
	for (size_t i = 0; r == 0 && i < report->n_objects; i++)
		r = take_object(h, report->objects[i], err);
	for (size_t i = 0; r == 0 && i < report->n_gone; i++)
		r = take_gone(h, report->gone[i], err);
	for (size_t i = 0; r == 0 && i < report->n_released; i++)
		r = take_released(h, report->released[i], err);
	for (size_t i = 0; r == 0 && i < report->n_claims; i++)
		r = take_claim(h, report->claims[i], out, err);
	for (size_t i = 0; r == 0 && i < report->n_capacities; i++)
		r = take_capacity(h, report->capacities[i], err);
	if (r < 0)
		return r;
	*ret_synced = report->synced;
	if (report->synced)
		store_synced(h->store, h->node);
	return 0;
}

void hear_free(struct hear *h)
{
	free(h->refused);
	h->refused = NULL;
	h->n_refused = h->refused_cap = 0;
}
