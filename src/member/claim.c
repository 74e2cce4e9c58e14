/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A claim's life: ASKING, while controllers have to answer -> HELD, while its task runs -> gone,
 * and every controller is told. Equal and unequal calls for a name that is being asked for wait
 * together; csi says then which of them join and which are in the way.
 *
 * How it can fail: a controller refuses (the name is another node's: ABORTED names it), or does not
 * answer in time (it is given up, and the others decide). All answers are waited for, also after a
 * refusal, so that none comes when the name is claimed again.
 */
#include "member/claim.h"

#include "base/log.h"
#include "base/utf8.h"
#include "csi/request.h"
#include "csi/rpc.h"
#include "member/report.h"
#include "pool/golden.h"
#include "pool/index.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum claim_state { CLAIM_ASKING, CLAIM_HELD };

struct claim {
	struct list link;
	struct member_claims *claims;
	enum claim_state state;
	enum record_kind kind;
	bool image; /* a golden one, of which several nodes may have one */
	char key[RECORD_KEY_MAX], name[RECORD_NAME_MAX + 1];
	uint64_t number;   /* of its change in the log; 0: it is in none */
	unsigned pending;  /* links that have not answered */
	char holder[257];  /* the node that has the name; "": nobody said so */
	struct list calls; /* struct claim_call */
	struct ring_timer timer;
};

/* Lies in its call's arena. */
struct claim_call {
	struct list link;
	struct grpc_call *call;
	const ProtobufCMessage *request;
};

static const char *const nouns[] = {[RECORD_VOLUME] = "volume", [RECORD_SNAPSHOT] = "snapshot"};

static struct claim *find(const struct member_claims *c, enum record_kind kind, const char *key)
{
	list_for_each (l, &c->list) {
		struct claim *claim = container_of(l, struct claim, link);
		if (claim->kind == kind && strcmp(claim->key, key) == 0)
			return claim;
	}
	return NULL;
}

static void claim_free(struct claim *claim)
{
	ring_timer_cancel(claim->claims->csi->reactor->ring, &claim->timer);
	list_remove(&claim->link);
	free(claim);
}

static void release(struct claim *claim)
{
	changes_add(claim->claims->changes, CHANGE_RELEASE, claim->kind, claim->key);
	claim_free(claim);
}

/* ---- calls that wait ---- */

static void on_gone(struct grpc_call *call, void *arg)
{
	struct claim_call *waiting = arg;
	list_remove(&waiting->link);
	grpc_end(call, GRPC_CANCELLED, NULL);
}

static void wait_for(struct claim *claim, struct grpc_call *call, const ProtobufCMessage *request)
{
	struct claim_call *waiting = arena_new_of(grpc_call_arena(call), struct claim_call);
	if (waiting == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED,
			"out of memory: the request does not fit its arena");
		return;
	}
	*waiting = (struct claim_call){.call = call, .request = request};
	list_push(&claim->calls, &waiting->link);
	grpc_on_gone(call, on_gone, waiting);
}

static struct claim_call *next_call(struct claim *claim)
{
	struct list *l = list_pop(&claim->calls);
	if (l == NULL)
		return NULL;
	struct claim_call *waiting = container_of(l, struct claim_call, link);
	grpc_on_gone(waiting->call, NULL, NULL);
	return waiting;
}

static void end_calls(struct claim *claim, enum grpc_status status, const char *message)
{
	for (struct claim_call *w; (w = next_call(claim)) != NULL;)
		grpc_end(w->call, status, message);
}

/* ---- the decision ---- */

/* A request may be refused before a task of it runs. */
static void release_unless_made(struct claim *claim)
{
	if (!csi_task_makes(claim->claims->csi, claim->kind, claim->name))
		release(claim);
}

static void decide(struct claim *claim)
{
	char message[768];
	ring_timer_cancel(claim->claims->csi->reactor->ring, &claim->timer);
	if (claim->holder[0] != '\0') {
		snprintf(message, sizeof(message),
			"node %s has a %s of the name %s, or is making it; a name is one %s in the "
			"cluster. Try again: the call is sent there",
			claim->holder, nouns[claim->kind], claim->name, nouns[claim->kind]);
		claim->claims->refused++;
		end_calls(claim, GRPC_ABORTED, message);
		release(claim);
		return;
	}
	claim->state = CLAIM_HELD;
	for (struct claim_call *w; (w = next_call(claim)) != NULL;)
		csi_rpc_go(w->call, w->request);
	release_unless_made(claim);
}

static void on_late(struct ring_timer *timer)
{
	struct claim *claim = container_of(timer, struct claim, timer);
	struct member_claims *c = claim->claims;
	c->give_up(c->arg, claim->pending); /* ends in member_claims_left(), and so in decide() */
}

void member_claims_left(struct member_claims *c, unsigned link)
{
	list_for_each_safe (l, &c->list) {
		struct claim *claim = container_of(l, struct claim, link);
		if (claim->state != CLAIM_ASKING || !(claim->pending & 1u << link))
			continue;
		claim->pending &= ~(1u << link);
		if (claim->pending == 0)
			decide(claim);
	}
}

static void log_twice(const struct claim *claim, const char *holder)
{
	log_event(LOG_LEVEL_WARN, "a name is being made on two nodes",
		log_fields({"name", claim->name}, {"kind", nouns[claim->kind]}, {"other", holder},
			{"remedy", "delete the one that nobody uses"}));
}

/* 0-terminated, or false: longer than cap, or no text. */
static bool text(ProtobufCBinaryData from, char *to, size_t cap)
{
	if (from.len >= cap || !utf8_valid(from.data, from.len) ||
		(from.len != 0 && memchr(from.data, '\0', from.len) != NULL))
		return false;
	if (from.len != 0)
		memcpy(to, from.data, from.len);
	to[from.len] = '\0';
	return true;
}

bool member_claims_verdict(
	struct member_claims *c, unsigned link, const Ringvol__V1__NameVerdict *verdict)
{
	char key[RECORD_KEY_MAX], holder[257];
	enum record_kind kind = verdict->kind == RINGVOL__V1__NODE_OBJECT__KIND__SNAPSHOT
					? RECORD_SNAPSHOT
					: RECORD_VOLUME;
	if (!text(verdict->key, key, sizeof(key)) || !record_key_valid(key) ||
		!text(verdict->node_id, holder, sizeof(holder)))
		return false;
	struct claim *claim = find(c, kind, key);
	bool refused = !verdict->granted && strcmp(holder, c->csi->config.node_id) != 0;
	if (claim == NULL)
		return true;
	if (claim->state == CLAIM_HELD) {
		if (refused && !claim->image)
			log_twice(claim, holder);
		return true;
	}
	if (!(claim->pending & 1u << link))
		return true;
	claim->pending &= ~(1u << link);
	if (refused)
		strcpy(claim->holder, holder[0] != '\0' ? holder : "(not said)");
	if (claim->pending == 0)
		decide(claim);
	return true;
}

/* ---- a create ---- */

static bool is_image(const ProtobufCMessage *request, const char *key)
{
	const Csi__V1__CreateSnapshotRequest *snapshot = (const void *)request;
	return request->descriptor == &csi__v1__create_snapshot_request__descriptor &&
	       golden_is(key, csi_str(snapshot->source_volume_id));
}

static struct claim *claim_new(
	struct member_claims *c, enum record_kind kind, const char *name, const char *key)
{
	struct claim *claim = calloc(1, sizeof(*claim));
	if (claim == NULL)
		return NULL;
	claim->claims = c;
	claim->kind = kind;
	strcpy(claim->key, key);
	snprintf(claim->name, sizeof(claim->name), "%s", name);
	list_init(&claim->calls);
	claim->timer.fn = on_late;
	list_push(&c->list, &claim->link);
	return claim;
}

bool member_claims_on_create(struct member_claims *c, struct grpc_call *call,
	const ProtobufCMessage *request, enum record_kind kind, const char *name)
{
	char key[RECORD_KEY_MAX];
	record_key(name, key);
	struct claim *claim = find(c, kind, key);
	bool routed = grpc_call_peer(call)->role == GRPC_PEER_CONTROLLER;
	if (c->draining)
		return false;
	if (claim != NULL && claim->state == CLAIM_ASKING) {
		wait_for(claim, call, request);
		return true;
	}
	if (claim != NULL || pools_find_name(c->csi->pools, kind, name) != NULL)
		return false;
	claim = claim_new(c, kind, name, key);
	if (claim == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return true;
	}
	claim->image = is_image(request, key);
	/* Who asks has claimed the name itself, and is told all the same: it may be about to hear
	 * that an earlier claim of the name is released. */
	if (routed && !c->one_controller)
		claim->pending = c->who(c->arg);
	if (c->changes->wanted) {
		changes_add(c->changes, CHANGE_CLAIM, kind, key);
		claim->number = c->changes->last;
	}
	claim->state = claim->pending != 0 ? CLAIM_ASKING : CLAIM_HELD;
	if (claim->state == CLAIM_ASKING) {
		ring_timer_arm(c->csi->reactor->ring, &claim->timer, CLAIM_WAIT_MS);
		c->tell(c->arg);
		wait_for(claim, call, request);
	} else {
		csi_rpc_go(call, request);
		release_unless_made(claim);
	}
	return true;
}

void member_claims_on_task_end(struct member_claims *c, enum record_kind kind, const char *name)
{
	char key[RECORD_KEY_MAX];
	record_key(name, key);
	struct claim *claim = find(c, kind, key);
	if (claim != NULL && claim->state == CLAIM_HELD)
		release(claim);
}

/* ---- all of them ---- */

int member_claims_report(const struct member_claims *c, uint64_t next, struct buf *b)
{
	int r = 0;
	list_for_each (l, &c->list) {
		const struct claim *claim = container_of(l, struct claim, link);
		if (r == 0 && claim->number < next)
			r = report_name(b, REPORT_CLAIMS, claim->kind, claim->key);
	}
	return r;
}

void member_claims_open(struct member_claims *c, struct csi *csi, struct changes *changes)
{
	*c = (struct member_claims){.csi = csi, .changes = changes};
	list_init(&c->list);
}

void member_claims_drain(struct member_claims *c)
{
	c->draining = true;
	list_for_each_safe (l, &c->list) {
		struct claim *claim = container_of(l, struct claim, link);
		if (claim->state != CLAIM_ASKING)
			continue;
		end_calls(claim, GRPC_UNAVAILABLE, "the driver is shutting down");
		release(claim);
	}
}

void member_claims_close(struct member_claims *c)
{
	member_claims_drain(c);
	while (!list_empty(&c->list))
		claim_free(container_of(c->list.next, struct claim, link));
}
