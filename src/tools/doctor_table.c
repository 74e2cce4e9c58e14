/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of kinds of devices. docs/devices.md has it too, with the measurements that the
 * words for speed stand for.
 */
#include "tools/doctor_table.h"

#include "tools/table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NEEDS_MAX = 3 };

static const struct kind {
	const char *name;         /* "disk": what `ringvol ls` says */
	const char *pool;         /* where its volumes are */
	const char *provisioning; /* that a class may ask for */
	const char *snapshots, *growth, *speed, *kernel;
	const char *needs[NEEDS_MAX]; /* checks that must not find anything missing */
} kinds[] = {
	{"loop", "directory", "thin, thick", "yes", "in use", "fair", "6.1", {"loop devices"}},
	{"ublk", "directory", "thin, thick", "yes", "in use from 6.16", "fair, good when deep",
		"6.8, ublk_drv", {"ublk"}},
	{"disk", "raw", "thick", "no", "in use", "the disk's", "6.1, dm_mod", {"device mapper"}},
	{"disk, thin", "raw", "thin", "yes", "in use", "good", "6.1, dm_thin_pool",
		{"device mapper", "dm-thin"}},
	{"loop + luks2", "directory", "thin, thick", "yes", "in use", "the cipher's, at most fair",
		"6.1, dm_crypt", {"loop devices", "device mapper", "encryption"}},
	{"ublk + luks2", "directory", "thin, thick", "yes", "in use from 6.16",
		"the cipher's, at most fair", "6.8, ublk_drv, dm_crypt",
		{"ublk", "device mapper", "encryption"}},
	{"disk + luks2", "raw", "thick", "no", "in use", "the cipher's", "6.1, dm_mod, dm_crypt",
		{"device mapper", "encryption"}},
	{"disk, thin + luks2", "raw", "thin", "yes", "in use", "the cipher's, at most good",
		"6.1, dm_thin_pool, dm_crypt", {"device mapper", "dm-thin", "encryption"}},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static const struct doctor_finding *finding_of(const struct doctor *d, const char *check)
{
	for (size_t i = 0; i < d->count; i++)
		if (strcmp(d->findings[i].check, check) == 0)
			return &d->findings[i];
	return NULL;
}

/* The first check that is in the way of a kind; NULL: none. All but loop devices is limited where
 * it cannot be had as things are: its module is not loaded. */
static const struct doctor_finding *in_the_way(const struct doctor *d, const struct kind *kind)
{
	for (unsigned i = 0; i < NEEDS_MAX && kind->needs[i] != NULL; i++) {
		const struct doctor_finding *f = finding_of(d, kind->needs[i]);
		bool loop = strcmp(kind->needs[i], "loop devices") == 0;
		if (f != NULL && (loop ? f->verdict == DOCTOR_MISSING : f->verdict != DOCTOR_OK))
			return f;
	}
	return NULL;
}

static const char *here(const struct doctor_finding *f)
{
	return f == NULL ? "yes" : f->verdict == DOCTOR_UNKNOWN ? "unknown" : "no";
}

static const struct table_column columns[] = {
	{"KIND", .needed = 9},
	{"POOL", .needed = 5},
	{"PROVISIONING", .needed = 4},
	{"SNAPSHOTS", .needed = 6},
	{"GROWS", .needed = 3},
	{"SPEED", .least = 4, .needed = 2},
	{"KERNEL", .least = 3, .needed = 1},
	{"HERE", .needed = 8},
	{NULL},
};

int doctor_table_print(const struct doctor *d, const struct text_stream *stream)
{
	struct buf out = {0};
	struct table *t = table_new(columns);
	for (const struct kind *k = kinds; t != NULL && k < kinds + KINDS; k++) {
		const struct doctor_finding *f = in_the_way(d, k);
		const char *const cells[] = {k->name, k->pool, k->provisioning, k->snapshots,
			k->growth, k->speed, k->kernel};
		table_row(t);
		for (unsigned i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
			table_cell(t, TABLE_PLAIN, cells[i]);
		table_cell(t, f == NULL ? TABLE_GOOD : TABLE_WARN, here(f));
	}
	int r = t == NULL ? -ENOMEM : table_print(t, stream, 0, -1, &out);
	if (r == 0)
		printf("\n%.*s", (int)out.len, (char *)out.data);
	buf_free(&out);
	table_free(t);
	return r;
}

void doctor_table_json(const struct doctor *d, struct json *j)
{
	json_open(j, "kinds", '[');
	for (const struct kind *k = kinds; k < kinds + KINDS; k++) {
		const struct doctor_finding *f = in_the_way(d, k);
		j->by_line = true;
		json_open(j, NULL, '{');
		j->by_line = false;
		json_put_string(j, "kind", k->name);
		json_put_string(j, "pool", k->pool);
		json_put_string(j, "provisioning", k->provisioning);
		json_put_string(j, "snapshots", k->snapshots);
		json_put_string(j, "grows", k->growth);
		json_put_string(j, "speed", k->speed);
		json_put_string(j, "kernel", k->kernel);
		json_put_string(j, "here", here(f));
		json_put_string(j, "in_the_way", f != NULL ? f->check : "");
		json_close(j, '}');
	}
	json_close(j, ']');
}
