/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: dial -> Hello -> the controller's first message -> pools, objects in batches, names
 * that are being made, synced -> changes as they come, a heartbeat where there are none.
 *
 * How it can fail: the controller is not there, refuses, falls silent, says what nobody
 * understands, or reads so slowly that the log has left it behind: then the call is given up and
 * begun anew after a pause, and all is told again. A controller that reads nothing costs what the
 * channel queues, and no more. One batch is made in a turn of the loop.
 */
#include "member/link.h"

#include "base/log.h"
#include "base/utf8.h"
#include "member/member.h"
#include "member/report.h"
#include "pool/index.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
	/* A call that lasted so long was a good one: its end is dialled after the short pause. */
	LINK_GOOD_MS = 5000,
};

#define MS UINT64_C(1000000)

static void to_state(struct member_link *l, enum link_state state)
{
	static const unsigned char follows[LINK_STATES] = {
		[LINK_AWAY] = 1 << LINK_JOINING,
		[LINK_JOINING] = 1 << LINK_TELLING | 1 << LINK_LEAVING | 1 << LINK_AWAY,
		[LINK_TELLING] = 1 << LINK_JOINED | 1 << LINK_LEAVING | 1 << LINK_AWAY,
		[LINK_JOINED] = 1 << LINK_TELLING | 1 << LINK_LEAVING | 1 << LINK_AWAY,
		[LINK_LEAVING] = 1 << LINK_AWAY,
	};
	assert(follows[l->state] & 1 << state);
	bool told = link_tells(l);
	l->state = state;
	if (link_tells(l) != told)
		l->hooks->on_change(l);
}

/* ---- away ---- */

/* The same reason is said once, until the controller was told everything. */
static void log_away(struct member_link *l, bool was_joined)
{
	if (!was_joined && strcmp(l->why, l->logged) == 0)
		return;
	strcpy(l->logged, l->why);
	log_event(LOG_LEVEL_WARN,
		was_joined ? "a controller is away, dialling it again"
			   : "a controller cannot be joined, trying again",
		log_fields({"controller", l->address}, {"why", l->why}));
}

/* A quarter more or less, so that not all nodes come at the same moment. */
static uint64_t pause_ms(struct member_link *l)
{
	l->random = l->random * UINT64_C(6364136223846793005) + 1;
	uint64_t ms = l->redial_ms * (768 + (l->random >> 55)) / 1024;
	l->redial_ms =
		l->redial_ms * 2 > MEMBER_REDIAL_MAX_MS ? MEMBER_REDIAL_MAX_MS : l->redial_ms * 2;
	return ms;
}

static void tell_no_more(struct member_link *l)
{
	ring_timer_cancel(l->ring, &l->pump);
	ring_chore_cancel(&l->later);
}

static void go_away(struct member_link *l)
{
	tell_no_more(l);
	member_classes_clear(&l->classes);
	to_state(l, LINK_AWAY);
	ring_timer_arm(l->ring, &l->timer, pause_ms(l));
}

/* Called while the state says how well it was. */
static void note_end(struct member_link *l, const char *why)
{
	bool was_joined = link_tells(l) && l->synced;
	snprintf(l->why, sizeof(l->why), "%s", why);
	log_away(l, was_joined);
	if (was_joined && ring_now_ns(l->ring) - l->joined_ns >= LINK_GOOD_MS * MS)
		l->redial_ms = MEMBER_REDIAL_MS;
}

static void on_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	struct member_link *l = container_of(call, struct member_link, call);
	char why[256];
	(void)sent;
	if (l->state == LINK_LEAVING)
		return; /* the timer goes on */
	snprintf(why, sizeof(why), "%s",
		message[0] != '\0'  ? message
		: status == GRPC_OK ? "it has ended the call"
				    : "it has ended the call with an error");
	note_end(l, why);
	go_away(l);
}

/* Not at once: this may run inside a callback of the channel. */
void link_leave(struct member_link *l, const char *why)
{
	if (l->state == LINK_AWAY || l->state == LINK_LEAVING)
		return;
	note_end(l, why);
	to_state(l, LINK_LEAVING);
	tell_no_more(l);
	ring_timer_arm(l->ring, &l->timer, 0);
}

/* ---- telling ---- */

/* Arms the timer for the next heartbeat, or the end of patience. */
static void watch(struct member_link *l)
{
	uint64_t now_ns = ring_now_ns(l->ring), next_ns = l->heard_ns + MEMBER_SILENCE_MS * MS;
	uint64_t beat_ns = l->sent_ns + MEMBER_HEARTBEAT_MS * MS;
	if (link_tells(l) && !l->blocked && beat_ns < next_ns)
		next_ns = beat_ns;
	ring_timer_arm(l->ring, &l->timer, next_ns > now_ns ? (next_ns - now_ns) / MS + 1 : 0);
}

void link_kick(struct member_link *l)
{
	if (link_tells(l) && !l->blocked && !ring_timer_armed(&l->pump))
		ring_timer_arm(l->ring, &l->pump, 0);
}

void link_kick_later(struct member_link *l)
{
	if (link_tells(l) && !l->blocked && !ring_timer_armed(&l->pump))
		ring_chore_want(l->ring, &l->later);
}

void link_tell_again(struct member_link *l)
{
	if (!link_tells(l))
		return;
	if (l->state == LINK_JOINED)
		to_state(l, LINK_TELLING);
	l->kind = RECORD_VOLUME;
	l->at = (struct pool_walk){0};
	link_kick(l);
}

/* What exists is only known once every pool was read. */
static bool pools_read(const struct csi *csi)
{
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++)
		if (pool_state(pool) == POOL_LOADING)
			return false;
	return true;
}

/* One that was never read has no uuid to be told by. */
static int tell_pools(struct member_link *l, struct buf *b)
{
	const struct pool *pool;
	int r = 0;
	for (unsigned i = 0; r == 0 && (pool = pools_at(l->csi->pools, i)) != NULL; i++)
		if (l->pools_due & 1u << i && pool_uuid(pool)[0] != '\0')
			r = report_pool(b, pool);
	l->pools_due = 0;
	return r;
}

/* A batch of all. *ret_all: that was the last. */
static int tell_objects(struct member_link *l, struct buf *b, bool *ret_all)
{
	char id[RECORD_ID_MAX];
	while (b->len < MEMBER_BATCH_BYTES) {
		struct pool_object *object = changes_after(l->csi, &l->kind, &l->at);
		*ret_all = object == NULL;
		if (object == NULL)
			return 0;
		uint64_t hash, told = object->told;
		int r = report_object(b, l->csi, object, &hash);
		if (r < 0)
			return r;
		object->told = hash;
		/* Another controller was told something else, or nothing. */
		if (told == hash || (told == 0 && !l->hooks->is_behind(l)))
			continue;
		pool_object_id(object, id);
		changes_add(l->changes, CHANGE_OBJECT, object->kind, id);
	}
	return 0;
}

static void note_joined(struct member_link *l)
{
	l->synced = true;
	l->joins++;
	l->why[0] = l->logged[0] = '\0';
	l->joined_ns = ring_now_ns(l->ring);
	log_event(LOG_LEVEL_INFO, "joined a controller",
		log_fields({"controller", l->address},
			{"version", l->version[0] != '\0' ? l->version : NULL}));
}

static int tell_all(struct member_link *l, struct buf *b)
{
	bool all = false;
	int r = tell_pools(l, b);
	if (r == 0)
		r = tell_objects(l, b, &all);
	if (r < 0 || !all)
		return r;
	r = l->hooks->claims(l, b);
	if (r == 0)
		r = report_true(b, REPORT_SYNCED);
	if (r < 0)
		return r;
	if (!l->synced)
		note_joined(l);
	to_state(l, LINK_JOINED);
	return 0;
}

static int tell_object(struct member_link *l, struct buf *b, const struct change *change)
{
	struct pool_object *object;
	struct err ignored = {0};
	struct record_id id;
	if (pools_find_id(l->csi->pools, change->kind, change->text, &object, &ignored) == 0)
		return report_object(b, l->csi, object, NULL);
	/* A pool that is away keeps what it has. */
	if (ignored.code != ERR_NOT_FOUND || record_id_parse(change->text, &id) < 0)
		return 0;
	return report_bytes(b, REPORT_GONE, change->text, strlen(change->text));
}

static int tell_change(struct member_link *l, struct buf *b, const struct change *change)
{
	switch (change->what) {
	case CHANGE_OBJECT:
		break;
	case CHANGE_CLAIM:
		return report_name(b, REPORT_CLAIMS, change->kind, change->text);
	case CHANGE_RELEASE:
		return report_name(b, REPORT_RELEASED, change->kind, change->text);
	}
	return tell_object(l, b, change);
}

static int tell_changes(struct member_link *l, struct buf *b)
{
	int r = tell_pools(l, b);
	bool claims = false;
	const struct change *change = changes_from(l->changes, l->next);
	while (r == 0 && change != NULL && b->len < MEMBER_BATCH_BYTES) {
		/* Within a report releases come before claims: what was claimed and is released
		 * again takes two. */
		if (claims && change->what == CHANGE_RELEASE)
			break;
		claims = claims || change->what == CHANGE_CLAIM;
		r = tell_change(l, b, change);
		l->next = change->number + 1;
		change = changes_next(l->changes, change);
	}
	return r < 0 ? r : member_classes_report(&l->classes, b);
}

static void put(struct member_link *l, const struct buf *b)
{
	l->sent_ns = ring_now_ns(l->ring);
	static const uint8_t nothing[1];
	l->blocked = !channel_send(&l->call, b->len != 0 ? b->data : nothing, b->len);
}

static bool more_to_tell(const struct member_link *l)
{
	return (l->state == LINK_TELLING && pools_read(l->csi)) ||
	       (l->state == LINK_JOINED && l->next <= l->changes->last);
}

static void tell(struct member_link *l)
{
	struct buf b = {0};
	if (!link_tells(l) || l->blocked)
		return;
	if (l->next < changes_first(l->changes)) {
		link_leave(l, "it reads too slowly: all has to be told anew");
		return;
	}
	int r = 0;
	if (l->state == LINK_JOINED)
		r = tell_changes(l, &b);
	else if (pools_read(l->csi))
		r = tell_all(l, &b);
	if (r < 0)
		link_leave(l, "out of memory");
	else if (b.len != 0)
		put(l, &b);
	buf_free(&b);
	if (more_to_tell(l))
		link_kick(l);
}

static void on_pump(struct ring_timer *timer)
{
	tell(container_of(timer, struct member_link, pump));
}

static void on_later(struct ring_chore *chore)
{
	tell(container_of(chore, struct member_link, later));
}

static void on_writable(struct channel_call *call)
{
	struct member_link *l = container_of(call, struct member_link, call);
	l->blocked = false;
	watch(l);
	link_kick(l);
}

/* ---- hearing ---- */

static void begin(struct member_link *l, const Ringvol__V1__ControllerReport *report)
{
	const Ringvol__V1__Welcome *welcome = report->welcome;
	l->version[0] = '\0';
	if (welcome != NULL && utf8_valid(welcome->version.data, welcome->version.len))
		snprintf(l->version, sizeof(l->version), "%.*s", (int)welcome->version.len,
			(const char *)welcome->version.data);
	l->kind = RECORD_VOLUME;
	l->at = (struct pool_walk){0};
	l->synced = l->blocked = false;
	l->pools_due = UINT_MAX;
	l->next = l->changes->last + 1;
	to_state(l, LINK_TELLING);
	watch(l);
	link_kick(l);
}

static bool on_message(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct member_link *l = container_of(call, struct member_link, call);
	if (l->state == LINK_LEAVING)
		return true;
	l->heard_ns = ring_now_ns(l->ring);
	struct arena *arena = arena_new(GRPC_ARENA_MAX_BYTES);
	Ringvol__V1__ControllerReport *report = NULL;
	if (arena != NULL)
		report = report_unpack(
			arena, &ringvol__v1__controller_report__descriptor, data, len);
	if (report != NULL && l->state == LINK_JOINING)
		begin(l, report);
	if (report == NULL || !l->hooks->on_report(l, report))
		link_leave(l, "it has said what this node does not understand");
	arena_unref(arena);
	return true;
}

/* ---- order ---- */

/* That of changes_after(). */
static int compare_places(const struct member_link *a, const struct member_link *b)
{
	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	return pool_walk_compare(&a->at, &b->at);
}

bool link_is_behind(const struct member_link *l, const struct member_link *other)
{
	return other->state == LINK_JOINED ||
	       (other->state == LINK_TELLING && compare_places(l, other) <= 0);
}

/* ---- time ---- */

static void dial(struct member_link *l)
{
	struct buf hello = {0};
	if (l->hooks->hello(l->arg, &hello) < 0) {
		buf_free(&hello);
		ring_timer_arm(l->ring, &l->timer, pause_ms(l));
		return;
	}
	l->call = (struct channel_call){
		.path = "/ringvol.v1.Cluster/Join",
		.deadline_ns = UINT64_MAX,
		.on_message = on_message,
		.on_end = on_end,
		.on_writable = on_writable,
	};
	l->heard_ns = l->sent_ns = ring_now_ns(l->ring);
	to_state(l, LINK_JOINING);
	channel_start(l->channel, &l->call, hello.data, hello.len, false);
	buf_free(&hello);
	watch(l);
}

static void on_timer(struct ring_timer *timer)
{
	struct member_link *l = container_of(timer, struct member_link, timer);
	uint64_t now_ns = ring_now_ns(l->ring);
	switch (l->state) {
	case LINK_AWAY:
		dial(l);
		return;
	case LINK_LEAVING:
		channel_cancel(&l->call);
		go_away(l);
		return;
	case LINK_JOINING:
	case LINK_TELLING:
	case LINK_JOINED:
	case LINK_STATES:
		break;
	}
	if (now_ns - l->heard_ns >= MEMBER_SILENCE_MS * MS) {
		link_leave(l, "it has been silent for 15 s");
		return;
	}
	if (link_tells(l) && !l->blocked && now_ns - l->sent_ns >= MEMBER_HEARTBEAT_MS * MS)
		put(l, &(struct buf){0});
	watch(l);
}

/* ---- life ---- */

static void on_answer(void *arg)
{
	link_kick(arg);
}

int link_open(struct member_link *l, struct member_asker *asker, struct tls *tls, uint64_t random,
	struct err *err)
{
	const struct channel_config config = {
		.ring = l->ring = l->csi->reactor->ring,
		.address = l->address,
		.work = l->csi->reactor->work,
		.lane = l->lane,
		.tls = tls,
		.peer = "ringvol://controller",
		.registry = l->registry,
	};
	int r = channel_open(&l->channel, &config, err);
	if (r < 0)
		return r;
	l->redial_ms = MEMBER_REDIAL_MS;
	l->random = random;
	l->timer.fn = on_timer;
	l->pump.fn = on_pump;
	l->later.fn = on_later;
	snprintf(l->why, sizeof(l->why), "it was not dialled yet");
	member_classes_open(&l->classes, asker, on_answer, l);
	return 0;
}

void link_start(struct member_link *l)
{
	ring_timer_arm(l->ring, &l->timer, 0);
}

void link_close(struct member_link *l)
{
	if (l->channel == NULL)
		return;
	ring_timer_cancel(l->ring, &l->timer);
	tell_no_more(l);
	if (l->state != LINK_AWAY) {
		channel_cancel(&l->call);
		to_state(l, LINK_AWAY);
	}
	member_classes_close(&l->classes);
	channel_close(l->channel);
	l->channel = NULL;
	snprintf(l->why, sizeof(l->why), "this node is shutting down");
}
