/* SPDX-License-Identifier: Apache-2.0 */
/* The lists are the loop's; what is done to files fails as the records' file system does. */
#include "pool/thin_templates.h"

#include "base/fd.h"
#include "pool/layout.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANDOM_DIGITS = 8 };

void thin_templates_init(struct thin_templates *templates)
{
	*templates = (struct thin_templates){0};
	list_init(&templates->live);
	list_init(&templates->old);
}

static void free_all(struct list *entries)
{
	for (struct list *l; (l = list_pop(entries)) != NULL;)
		free(container_of(l, struct thin_template_entry, link));
}

void thin_templates_free(struct thin_templates *templates)
{
	free_all(&templates->live);
	free_all(&templates->old);
}

static void make_old(struct thin_templates *templates, struct thin_template_entry *e)
{
	list_remove(&e->link);
	list_push(&templates->old, &e->link);
}

void thin_templates_age(struct thin_templates *templates)
{
	list_for_each_safe (l, &templates->live) {
		struct thin_template_entry *e = container_of(l, struct thin_template_entry, link);
		if (e->id != 0)
			make_old(templates, e);
	}
}

void thin_templates_forget(struct thin_templates *templates, uint32_t id)
{
	list_for_each_safe (l, &templates->live) {
		struct thin_template_entry *e = container_of(l, struct thin_template_entry, link);
		if (e->id == id)
			make_old(templates, e);
	}
}

void thin_templates_take_old(struct thin_templates *templates, struct list *taken)
{
	list_init(taken);
	list_splice(taken, &templates->old);
}

static int to_trash(int templates_fd, int trash_fd, const char *name)
{
	char digits[TRASH_NAME_BYTES];
	pool_random_hex(digits, TRASH_NAME_BYTES - 1);
	int r = renameat2(templates_fd, name, trash_fd, digits, RENAME_NOREPLACE);
	return r < 0 && errno != ENOENT ? -errno : 0;
}

int thin_templates_drop(int templates_fd, int trash_fd, const struct list *taken)
{
	int r = 0;
	list_for_each (l, taken)
		if (r == 0)
			r = to_trash(templates_fd, trash_fd,
				container_of(l, struct thin_template_entry, link)->file);
	return r;
}

bool thin_template_name_is(const char *name)
{
	return strncmp(name, THIN_TEMPLATE_PREFIX, strlen(THIN_TEMPLATE_PREFIX)) == 0;
}

struct sweep {
	int templates_fd, trash_fd;
};

static int sweep_one(void *arg, const char *name)
{
	const struct sweep *s = arg;
	if (!thin_template_name_is(name))
		return 0;
	int r = to_trash(s->templates_fd, s->trash_fd, name);
	return r == -EROFS ? 0 : r;
}

int thin_templates_sweep(int templates_fd, int trash_fd)
{
	struct sweep s = {templates_fd, trash_fd};
	return fd_each_name(templates_fd, sweep_one, &s);
}

void thin_templates_dropped(struct thin_templates *templates, struct list *taken, int res)
{
	if (res < 0) {
		list_splice(&templates->old, taken);
		return;
	}
	for (struct list *l; (l = list_pop(taken)) != NULL;) {
		struct thin_template_entry *e = container_of(l, struct thin_template_entry, link);
		templates->count--;
		templates->bytes -= e->bytes;
		free(e);
	}
}

struct thin_template_entry *thin_templates_find(struct thin_templates *templates, const char *name)
{
	list_for_each (l, &templates->live) {
		struct thin_template_entry *e = container_of(l, struct thin_template_entry, link);
		if (strcmp(e->name, name) == 0) {
			list_remove(&e->link);
			list_push(&templates->live, &e->link);
			return e;
		}
	}
	return NULL;
}

/* The least recently used beyond the limit are old. */
static void limit(struct thin_templates *templates)
{
	unsigned count = 0;
	list_for_each (l, &templates->live)
		count++;
	list_for_each_safe (l, &templates->live) {
		struct thin_template_entry *e = container_of(l, struct thin_template_entry, link);
		if (count <= THIN_TEMPLATES_MAX)
			return;
		if (e->id != 0) {
			make_old(templates, e);
			count--;
		}
	}
}

struct thin_template_entry *thin_templates_add(struct thin_templates *templates, const char *name)
{
	struct thin_template_entry *e = calloc(1, sizeof(*e));
	if (e == NULL)
		return NULL;
	char random[RANDOM_DIGITS + 1];
	pool_random_hex(random, RANDOM_DIGITS);
	strcpy(e->name, name);
	snprintf(e->file, sizeof(e->file), THIN_TEMPLATE_PREFIX "%s-%s", name, random);
	list_init(&e->waiters);
	list_init(&e->link);
	list_push(&templates->live, &e->link);
	templates->count++;
	limit(templates);
	return e;
}

void thin_templates_made(struct thin_templates *templates, struct thin_template_entry *entry,
	uint32_t id, uint64_t bytes)
{
	entry->id = id;
	entry->bytes = bytes;
	templates->bytes += bytes;
}

void thin_templates_cancel(struct thin_templates *templates, struct thin_template_entry *entry)
{
	list_remove(&entry->link);
	templates->count--;
	free(entry);
}
