/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notes of volumes that have moved to other pools. What can be wrong with them: a note that
 * cannot be read, and a volume that has left and whose image is still there. The pool's volumes
 * have been read. Beside a driver a volume may be leaving just now.
 */
#include "pool/departure_file.h"
#include "tools/check_findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pool_found *volume_of(const struct check *c, const struct pool_departure *d)
{
	char uuid8[RECORD_POOL_DIGITS + 1], id[RECORD_ID_MAX];
	snprintf(uuid8, sizeof(uuid8), "%.8s", c->survey.uuid);
	for (size_t i = 0; i < c->counts[RECORD_VOLUME]; i++) {
		const struct pool_found *o = &c->objects[RECORD_VOLUME][i];
		if (o->rec == NULL || strcmp(o->key, d->key) != 0)
			continue;
		record_id_print(uuid8, o->rec, id);
		return strcmp(id, d->id) == 0 ? o : NULL;
	}
	return NULL;
}

static void look_at_volume(struct check *c, const char *path, const struct pool_departure *d)
{
	const struct pool_found *o = volume_of(c, d);
	if (o == NULL || c->survey.served)
		return;
	bool back = o->rec->moves >= d->moves;
	check_add(c, .severity = CHECK_LEFTOVER, .kind = "DepartureLeft", .path = path,
		.message = tool_text(c->args,
			back ? "volume %s is back, and the note of where it went is still there"
			     : "volume %s has moved to another pool, and its image is still here",
			o->rec->name),
		.remedy = back ? "the driver removes the note at its start"
			       : "the driver moves the image to the trash at its start");
}

static int look_at_note(void *arg, const char *name)
{
	struct check *c = arg;
	struct pool_departure *d;
	const char *path = tool_text(c->args, "%s/%s", survey_dir_names[SURVEY_DEPARTED], name);
	if (!record_key_valid(name) || departure_read(c->survey.fds[SURVEY_DEPARTED], name, &d) < 0)
		return 0;
	c->departed++;
	c->departed_unknown |= d->why != NULL;
	if (d->why != NULL)
		check_add(c, .kind = "DepartureDamaged", .path = path,
			.message = tool_text(
				c->args, "the note of where a volume has moved to: %s", d->why),
			.remedy =
				"restore the file from a backup; no volume of its name is made here until then");
	else
		look_at_volume(c, path, d);
	free(d);
	return 0;
}

void check_departed(struct check *c)
{
	int r = survey_each(&c->survey, SURVEY_DEPARTED, look_at_note, c);
	if (r < 0)
		check_add(c, .kind = "DirectoryUnreadable",
			.path = survey_dir_names[SURVEY_DEPARTED], .message = strerrordesc_np(-r),
			.remedy = "see the kernel log");
}

struct asked {
	const struct check *c;
	const char *random;
};

static int is_it(void *arg, const char *name)
{
	const struct asked *asked = arg;
	struct pool_departure *d;
	struct record_id id;
	if (!record_key_valid(name) ||
		departure_read(asked->c->survey.fds[SURVEY_DEPARTED], name, &d) < 0)
		return 0;
	bool its = d->why == NULL && record_id_parse(d->id, &id) == 0 &&
		   strcmp(id.random, asked->random) == 0;
	free(d);
	return its;
}

bool check_has_departed(const struct check *c, const char *random)
{
	struct asked asked = {c, random};
	return survey_each(&c->survey, SURVEY_DEPARTED, is_it, &asked) > 0;
}
