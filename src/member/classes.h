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
	CLASSES_MAX = 64, /* of one controller; the one given longest ago goes first */
	CLASS_REQUEST_MAX = 16 << 10,
	CLASS_PAUSE_MS = 1000,
};

struct class_asked;

/* Finds out the answers, one after the other, for all controllers. */
struct class_asker {
	struct csi *csi;
	struct list sets; /* struct classes */
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
struct classes {
	struct list link, list;
	unsigned count;
	struct class_asker *asker;
	void (*on_answer)(void *arg); /* there is something to report */
	void *arg;
};

void class_asker_open(struct class_asker *asker, struct csi *csi);
/* Begins nothing any more; class_asker_idle() says when nothing is under way. */
void class_asker_drain(struct class_asker *asker);
bool class_asker_idle(const struct class_asker *asker);
/* The pools may have changed: looks whether they have. */
void class_asker_look(struct class_asker *asker);

void classes_open(
	struct classes *set, struct class_asker *asker, void (*on_answer)(void *arg), void *arg);
/* Forgets them all: the controller has left. */
void classes_clear(struct classes *set);
void classes_close(struct classes *set);
/* A number that is known gets the new request. A request that is none is left alone, and -EINVAL.
 */
int classes_add(struct classes *set, const Ringvol__V1__CapacityClass *given);
/* Appends the answers that were not reported yet. 0 or -ENOMEM. */
int classes_report(struct classes *set, struct buf *b);

#endif
