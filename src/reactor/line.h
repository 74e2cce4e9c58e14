/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of operations: those of one name run one after the other, in the order they came, and
 * those of different names side by side.
 */
#ifndef RINGVOL_REACTOR_LINE_H
#define RINGVOL_REACTOR_LINE_H

#include "base/list.h"
#include "reactor/op.h"

struct line {
	struct list places; /* line_place.link, in the order they came */
	unsigned count;
};

/* Embed it beside the op. */
struct line_place {
	struct list link;
	struct op *op;
	const char *name; /* the caller's, until line_leave() */
	bool started;
};

void line_init(struct line *line);
/* Starts the operation now, or when those of its name that came before have left. */
void line_join(struct line *line, struct line_place *place, struct op *op, const char *name);
/* In its on_end. It starts those that waited for this one. */
void line_leave(struct line *line, struct line_place *place);
/* Whether one of that name is in the line. */
bool line_has(const struct line *line, const char *name);

#endif
