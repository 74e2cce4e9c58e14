/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log and the look. A difference that nobody tells us of (health, mounts that adoption finds, a
 * pool that was read again) is found by the walk; what our own operations change is looked at when
 * they end. Want of memory costs the log, and so whoever reads it is told everything anew.
 */
#include "member/changes.h"

#include "member/report.h"
#include "pool/index.h"

#include <stdlib.h>
#include <string.h>

void changes_open(struct changes *c, struct csi *csi, void (*on_more)(void *arg), void *arg)
{
	*c = (struct changes){.csi = csi, .on_more = on_more, .arg = arg};
	list_init(&c->log);
}

static void drop(struct changes *c, struct change *change)
{
	list_remove(&change->link);
	c->count--;
	free(change);
}

static struct change *change_of(struct list *link)
{
	return container_of(link, struct change, link);
}

static void drop_all(struct changes *c)
{
	while (!list_empty(&c->log))
		drop(c, change_of(c->log.next));
}

void changes_close(struct changes *c)
{
	drop_all(c);
	buf_free(&c->scratch);
}

/* ---- the log ---- */

void changes_add(struct changes *c, enum change_what what, enum record_kind kind, const char *text)
{
	if (!c->wanted)
		return;
	size_t len = strlen(text) + 1;
	struct change *change = c->count < CHANGES_MAX ? malloc(sizeof(*change) + len) : NULL;
	c->last++;
	if (change == NULL) {
		drop_all(c);
	} else {
		*change = (struct change){.number = c->last, .what = what, .kind = kind};
		memcpy(change->text, text, len);
		list_push(&c->log, &change->link);
		c->count++;
	}
	c->on_more(c->arg);
}

uint64_t changes_first(const struct changes *c)
{
	return list_empty(&c->log) ? c->last + 1 : change_of(c->log.next)->number;
}

const struct change *changes_from(const struct changes *c, uint64_t number)
{
	/* Most ask for one of the last. */
	for (struct list *l = c->log.prev; l != &c->log; l = l->prev) {
		if (change_of(l)->number == number)
			return change_of(l);
		if (change_of(l)->number < number)
			break;
	}
	return NULL;
}

const struct change *changes_next(const struct changes *c, const struct change *change)
{
	return change->link.next == &c->log ? NULL : change_of(change->link.next);
}

void changes_trim(struct changes *c, uint64_t number)
{
	while (!list_empty(&c->log) && change_of(c->log.next)->number <= number)
		drop(c, change_of(c->log.next));
}

/* ---- the look ---- */

void changes_look(struct changes *c, struct pool_object *object)
{
	uint64_t hash;
	char id[RECORD_ID_MAX];
	if (!c->wanted || object->rec == NULL || record_is_inline(object->rec))
		return;
	c->scratch.len = 0;
	if (report_object(&c->scratch, c->csi, object, &hash) < 0 || hash == object->told)
		return; /* out of memory: another look finds it */
	object->told = hash;
	pool_object_id(object, id);
	changes_add(c, CHANGE_OBJECT, object->kind, id);
}

void changes_removed(struct changes *c, const struct pool_object *object)
{
	char id[RECORD_ID_MAX];
	if (object->rec == NULL || object->told == 0)
		return;
	pool_object_id(object, id);
	changes_add(c, CHANGE_OBJECT, object->kind, id);
}

/* An inline volume is its pod's: no controller is told of it. */
static bool is_told(const struct pool_object *object)
{
	return object->rec == NULL || !record_is_inline(object->rec);
}

struct pool_object *changes_after(
	const struct csi *csi, enum record_kind *kind, struct pool_walk *at)
{
	struct pool_object *object;
	do {
		object = pools_next(csi->pools, *kind, at);
		if (object == NULL && *kind == RECORD_VOLUME) {
			*kind = RECORD_SNAPSHOT;
			*at = (struct pool_walk){0};
			object = pools_next(csi->pools, *kind, at);
		}
	} while (object != NULL && !is_told(object));
	return object;
}

bool changes_walk(struct changes *c, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct pool_object *object = changes_after(c->csi, &c->kind, &c->at);
		if (object == NULL) {
			c->kind = RECORD_VOLUME;
			c->at = (struct pool_walk){0};
			return true;
		}
		changes_look(c, object);
	}
	return false;
}
