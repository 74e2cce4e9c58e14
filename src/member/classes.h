/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classes of GetCapacity that controllers have asked for: each is answered as this node would
 * answer the call, at once, and when the answer has changed, at most once in CLASS_PAUSE_MS. It is
 * not asked again while what memory knows of the pools is as it was.
 */
#ifndef RINGVOL_MEMBER_CLASSES_H
#define RINGVOL_MEMBER_CLASSES_H

#include "base/buf.h"
#include "cluster.pb-c.h"
#include "csi/get_capacity.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	CLASSES_MAX = 64, /* of one controller; a number's place is what it is modulo that */
	CLASS_REQUEST_MAX = 16 << 10,
	CLASS_PAUSE_MS = 1000,
};

struct class_asked;

/* Finds out the answers, one after the other, for all controllers. */
struct member_asker {
	struct csi *csi;
	struct list sets; /* struct member_classes */
	struct ring_timer timer;
	bool draining;
	/* The one under way. */
	bool running;
	struct class_asked *of; /* NULL: nobody wants it any more */
	struct arena *arena, *request_arena;
	Csi__V1__GetCapacityResponse *response;
	struct csi_capacity capacity;
};

/* Those of one controller. */
struct member_classes {
	struct list link, list;
	unsigned count;
	struct member_asker *asker;
	void (*on_answer)(void *arg); /* there is something to report */
	void *arg;
};

void member_asker_open(struct member_asker *asker, struct csi *csi);
/* Begins nothing any more; member_asker_idle() says when nothing is under way. */
void member_asker_drain(struct member_asker *asker);
bool member_asker_idle(const struct member_asker *asker);
/* The pools may have changed: looks whether they have. */
void member_asker_look(struct member_asker *asker);

void member_classes_open(struct member_classes *set, struct member_asker *asker,
	void (*on_answer)(void *arg), void *arg);
/* Forgets them all: the controller has left. */
void member_classes_clear(struct member_classes *set);
void member_classes_close(struct member_classes *set);
/* Takes the place of the one that was there. A request that is none is left alone, and -EINVAL.
 */
int member_classes_add(struct member_classes *set, const Ringvol__V1__CapacityClass *given);
/* Appends the answers that were not reported yet. 0 or -ENOMEM. */
int member_classes_report(struct member_classes *set, struct buf *b);

#endif
