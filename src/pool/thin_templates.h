/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Templates in the thin pool: an empty file system under an id of its own, of which a new thin
 * volume with the same file system is a snapshot. So a create is one message, and writes nothing.
 * Here is which there are, and how they end; thin_template.h makes them.
 *
 * Nobody writes to one once it is whole. Its file lies beside the templates among the records,
 * under a name that begins with THIN_TEMPLATE_PREFIX. It lasts as long as the run of the driver
 * that made it: the next load makes trash of it, whatever has become of its bytes meanwhile.
 */
#ifndef RINGVOL_POOL_THIN_TEMPLATES_H
#define RINGVOL_POOL_THIN_TEMPLATES_H

#include "base/list.h"
#include "pool/record.h"

#include <stdbool.h>
#include <stdint.h>

#define THIN_TEMPLATE_PREFIX "thin-"
/* Whether a file among the templates is one of these. */
bool thin_template_name_is(const char *name);
/* Those of an earlier run are deleted images from now on. Blocking; 0 or -errno. */
int thin_templates_sweep(int templates_fd, int trash_fd);

enum {
	THIN_TEMPLATES_MAX = 8, /* of a pool; the least recently used goes */
	THIN_TEMPLATE_FILE_BYTES = RECORD_KEY_MAX + 16,
};

struct thin_template_entry {
	struct list link;          /* on live or old */
	char name[RECORD_KEY_MAX]; /* of what it is a copy of */
	char file[THIN_TEMPLATE_FILE_BYTES];
	uint32_t id; /* 0: it is being made */
	uint64_t bytes;
	struct list waiters; /* thin_template.c's: for its end */
};

/* pool->raw->thin.templates; the loop's. */
struct thin_templates {
	struct list live; /* the most recently used last; some are being made */
	struct list old;  /* not used any more, until thin_steps.c deletes them */
	unsigned count;   /* on both */
	uint64_t bytes;   /* of those that are whole: what they have of the thin pool */
};
void thin_templates_init(struct thin_templates *templates);
/* Forgets them; the files stay, for the next load. */
void thin_templates_free(struct thin_templates *templates);

/* One that is there or being made, and now the most recently used; NULL: there is none. */
struct thin_template_entry *thin_templates_find(struct thin_templates *templates, const char *name);
/* A new one, to be made. NULL: no memory. */
struct thin_template_entry *thin_templates_add(struct thin_templates *templates, const char *name);
/* It is whole from now on. */
void thin_templates_made(struct thin_templates *templates, struct thin_template_entry *entry,
	uint32_t id, uint64_t bytes);
/* It could not be made. */
void thin_templates_cancel(struct thin_templates *templates, struct thin_template_entry *entry);

/* dm-thin does not know it. */
void thin_templates_forget(struct thin_templates *templates, uint32_t id);
/* All that are not being made are old from now on. */
void thin_templates_age(struct thin_templates *templates);
/* Deleted images from now on, on a thread: what is old, in `taken`. The first that fails ends it.
 */
void thin_templates_take_old(struct thin_templates *templates, struct list *taken);
int thin_templates_drop(int templates_fd, int trash_fd, const struct list *taken);
/* res: its result. With a failure they are old as before. */
void thin_templates_dropped(struct thin_templates *templates, struct list *taken, int res);

#endif
