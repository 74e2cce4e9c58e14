/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is to tell of each volume of another node that is used here: each family is a walk
 * over them, in the order of their tags. Their own node tells of them as of any volume of its
 * pools.
 */
#include "metrics/io.h"

#include "attach/borrowed.h"

#include <string.h>

_Static_assert(sizeof((struct scrape){0}.last) >= ATTACH_TAG_BYTES, "the cursor");

/* One of a family. True when all were told of. */
static bool render_borrowed(struct scrape *s, const struct family *f, struct text *t)
{
	struct borrows *borrows = s->metrics->csi->borrows;
	const struct borrowed *b = borrows != NULL ? borrows_next(borrows, s->last) : NULL;
	char labels[TEXT_LABELS_MAX];
	if (b == NULL) {
		s->last[0] = '\0';
		return true;
	}
	memcpy(s->last, b->tag, sizeof(b->tag));
	s->work++;
	/* An id is known after the first call; until then the tag is as good a name as any. */
	text_label(labels, false, "volume", b->id[0] != '\0' ? b->id : b->tag);
	if (f->io != NULL)
		io_tell(s, f, t, borrows->probes, b->major, b->minor, labels);
	else
		text_u64(t, f->name, labels, NULL, f->borrowed(b));
	return false;
}

static uint64_t capacity(const struct borrowed *b)
{
	return b->size_bytes;
}

static uint64_t suspended(const struct borrowed *b)
{
	return b->suspended;
}

const struct family borrowed_families[] = {
	{"ringvol_borrowed_capacity_bytes", "gauge",
		"Size of a volume of another node that is used on this one.", render_borrowed,
		.borrowed = capacity},
	{"ringvol_borrowed_suspended", "gauge",
		"1 while the I/O of a volume of another node waits, because it is moving to this one.",
		render_borrowed, .borrowed = suspended},
	{"ringvol_borrowed_io_seconds", "histogram",
		"Time from the issue of a request to a volume of another node to its completion.",
		render_borrowed, .io = io_tell_seconds},
	{"ringvol_borrowed_io_bytes_total", "counter",
		"Bytes read from, written to and discarded on a volume of another node.",
		render_borrowed, .io = io_tell_bytes},
	{"ringvol_borrowed_io_errors_total", "counter",
		"Requests that the device of a volume of another node failed.", render_borrowed,
		.io = io_tell_errors, .exact_alone = true},
	{NULL},
};
