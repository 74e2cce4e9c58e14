/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has changed of what controllers were told. No copy of that is kept: of each object a hash of
 * its last report (pool_object.told), and a log of ids that changed, which ends where every
 * controller has been told. A controller that the log has left behind is told everything anew.
 */
#ifndef RINGVOL_MEMBER_CHANGES_H
#define RINGVOL_MEMBER_CHANGES_H

#include "base/buf.h"
#include "base/list.h"
#include "csi/csi.h"
#include "pool/index.h"

#include <stdbool.h>
#include <stdint.h>

enum { CHANGES_MAX = 4096 };

enum change_what {
	CHANGE_OBJECT,  /* an id: new, other than before, or gone; what it is now is told */
	CHANGE_CLAIM,   /* the key of a name */
	CHANGE_RELEASE, /* likewise */
};

struct change {
	struct list link;
	uint64_t number; /* they count up from 1 without a gap */
	enum change_what what;
	enum record_kind kind;
	char text[];
};

struct changes {
	struct csi *csi;
	struct list log;
	unsigned count;
	uint64_t last; /* the number of the last one, in the log or not any more */
	bool wanted;   /* somebody is told; else nothing is logged */
	/* Something was logged. */
	void (*on_more)(void *arg);
	void *arg;
	/* where the walk is */
	enum record_kind kind;
	struct pool_walk at;
	struct buf scratch;
};

void changes_open(struct changes *c, struct csi *csi, void (*on_more)(void *arg), void *arg);
void changes_close(struct changes *c);

/* Logs. Out of memory, or with CHANGES_MAX logged, the log begins anew behind this change:
 * everybody who was not told all of it is left behind. */
void changes_add(struct changes *c, enum change_what what, enum record_kind kind, const char *text);
/* The number of the oldest in the log; last + 1: it is empty. */
uint64_t changes_first(const struct changes *c);
/* NULL: there is none that late. */
const struct change *changes_from(const struct changes *c, uint64_t number);
const struct change *changes_next(const struct changes *c, const struct change *change);
/* All up to this number have been told to everybody. */
void changes_trim(struct changes *c, uint64_t number);

/* Compares an object with what was told of it, and logs a difference. */
void changes_look(struct changes *c, struct pool_object *object);
/* An object leaves its pool. */
void changes_removed(struct changes *c, const struct pool_object *object);
/* Looks at the next so many objects. True: that was the last of them, the next walk begins anew. */
bool changes_walk(struct changes *c, unsigned count);
/* The next object of either kind, in the order in which all are told; kind and at move on to it.
 * NULL: that was the last. */
struct pool_object *changes_after(
	const struct csi *csi, enum record_kind *kind, struct pool_walk *at);

#endif
