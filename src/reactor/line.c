/* SPDX-License-Identifier: Apache-2.0 */
/* The line: a list in the order of coming. It cannot fail. */
#include "reactor/line.h"

#include <string.h>

void line_init(struct line *line)
{
	*line = (struct line){0};
	list_init(&line->places);
}

/* Whether one of the same name runs, or came before. */
static bool must_wait(const struct line *line, const struct line_place *place)
{
	list_for_each (link, &line->places) {
		const struct line_place *other = container_of(link, struct line_place, link);
		if (other == place)
			return false;
		if (strcmp(other->name, place->name) == 0)
			return true;
	}
	return false;
}

static void start(struct line_place *place)
{
	place->started = true;
	op_start(place->op);
}

void line_join(struct line *line, struct line_place *place, struct op *op, const char *name)
{
	*place = (struct line_place){.op = op, .name = name};
	list_push(&line->places, &place->link);
	line->count++;
	if (!must_wait(line, place))
		start(place);
}

void line_leave(struct line *line, struct line_place *place)
{
	list_remove(&place->link);
	line->count--;
	list_for_each_safe (link, &line->places) {
		struct line_place *next = container_of(link, struct line_place, link);
		if (!next->started && !must_wait(line, next))
			start(next);
	}
}

bool line_has(const struct line *line, const char *name)
{
	list_for_each (link, &line->places)
		if (strcmp(container_of(link, struct line_place, link)->name, name) == 0)
			return true;
	return false;
}
