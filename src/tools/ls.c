/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol ls`: pools, volumes, snapshots and what is being done.
 *
 * Happy path: ask the driver; print tables, or all of it as JSON. Where no driver answers the pools
 * are read instead, and that is said on standard error. It fails (1) when the driver answers with
 * an error or standard output cannot be written, and when no driver answers and no pool can be
 * read.
 */
#include "tools/tools.h"

#include "base/when.h"
#include "tools/args.h"
#include "tools/inventory.h"
#include "tools/json.h"
#include "tools/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct option_row rows[] = {
	TOOL_JSON_ROW("all that is known, for programs"),
	TOOL_ENDPOINT_ROW,
	TOOL_POOL_ROW(";\nused when no driver answers"),
	{NULL},
};

static const struct command ls_command = {
	.name = "ls",
	.summary = "Lists volumes and snapshots: sizes, devices, where they are mounted, how they "
		   "are, and\n"
		   "what is being done with them. Asks the driver; without one it reads the pools.",
	.options = rows,
};

/* ---- JSON ---- */

static void json_list(struct json *j, const char *key, const struct inventory_list *list)
{
	json_key(j, key);
	json_open(j, '[');
	j->by_line = true;
	for (size_t i = 0; i < list->count; i++)
		json_message(j, list->at[i]);
	j->by_line = false;
	json_close(j, ']');
}

static void print_json(const struct inventory *inv)
{
	struct json j = {.out = stdout};
	json_open(&j, '{');
	json_key(&j, "driver");
	if (inv->driver != NULL)
		json_message(&j, &inv->driver->base);
	else
		json_null(&j);
	json_list(&j, "pools", &inv->pools);
	json_list(&j, "operations", &inv->operations);
	json_list(&j, "volumes", &inv->volumes);
	json_list(&j, "snapshots", &inv->snapshots);
	json_list(&j, "quarantined", &inv->quarantined);
	json_close(&j, '}');
	fputc('\n', stdout);
}

/* ---- tables ---- */

static void size_cell(struct table *t, uint64_t bytes)
{
	char text[TEXT_NUMBER_BYTES];
	text_size(bytes, text);
	table_cell(t, TABLE_PLAIN, text);
}

/* Of a time as the messages have it. */
static void age_cell(struct table *t, ProtobufCBinaryData created)
{
	struct tm tm = {0};
	char text[TEXT_NUMBER_BYTES] = "";
	if (strptime(inventory_str(created), "%Y-%m-%dT%H:%M:%S", &tm) != NULL) {
		time_t then = timegm(&tm), now = time(NULL);
		text_age(now > then ? (uint64_t)(now - then) : 0, text);
	}
	table_cell(t, TABLE_PLAIN, text);
}

static int print_table(struct table *t, const struct text_stream *stream, const char *title)
{
	struct buf out = {0};
	int r = t == NULL ? -ENOMEM : table_print(t, stream, 0, -1, &out);
	if (r == 0)
		printf("%s%.*s", title, (int)out.len, (char *)out.data);
	buf_free(&out);
	table_free(t);
	return r;
}

static const struct table_column pool_columns[] = {
	{"POOL", .least = 8},
	{"STATE", .needed = 9},
	{"FS", .needed = 3},
	{"SIZE", .right = true, .needed = 6},
	{"FREE", .right = true, .needed = 8},
	{"PROMISED", .right = true, .needed = 5},
	{"VOLUMES", .right = true, .needed = 4},
	{"SNAPSHOTS", .right = true, .needed = 2},
	{"PATH", .least = 12, .needed = 1},
	{NULL},
};

static int print_pools(const struct inventory *inv, const struct text_stream *stream)
{
	static const struct {
		const char *name;
		enum table_colour colour;
	} states[] = {
		[RINGVOL__V1__POOL__STATE__LOADING] = {"loading", TABLE_WARN},
		[RINGVOL__V1__POOL__STATE__READY] = {"ready", TABLE_GOOD},
		[RINGVOL__V1__POOL__STATE__MISSING] = {"missing", TABLE_BAD},
		[RINGVOL__V1__POOL__STATE__SICK] = {"sick", TABLE_BAD},
	};
	struct table *t = table_new(pool_columns);
	for (size_t i = 0; t != NULL && i < inv->pools.count; i++) {
		const Ringvol__V1__Pool *p = (const void *)inv->pools.at[i];
		bool known = (size_t)p->state < sizeof(states) / sizeof(states[0]);
		table_row(t);
		table_cell(t, TABLE_PLAIN, inventory_str(p->name));
		table_cell(t, known ? states[p->state].colour : TABLE_PLAIN,
			known ? states[p->state].name : "?");
		table_cell(
			t, TABLE_PLAIN, p->features != NULL ? inventory_str(p->features->fs) : "");
		size_cell(t, p->room != NULL ? p->room->capacity_bytes : 0);
		size_cell(t, p->room != NULL ? p->room->free_bytes : 0);
		size_cell(t, p->room != NULL ? p->room->provisioned_bytes : 0);
		table_cellf(t, TABLE_PLAIN, "%u", p->volumes);
		table_cellf(t, TABLE_PLAIN, "%u", p->snapshots);
		table_cell(t, TABLE_PLAIN, inventory_str(p->path));
	}
	return print_table(t, stream, "");
}

/* Of the operation on a volume, if there is one. Volumes are named by their name or id. */
static const Ringvol__V1__Operation *operation_of(
	const struct inventory *inv, const char *name, const char *id)
{
	for (size_t i = 0; i < inv->operations.count; i++) {
		const Ringvol__V1__Operation *o = (const void *)inv->operations.at[i];
		const char *subject = inventory_str(o->subject);
		if (strcmp(subject, name) == 0 || strcmp(subject, id) == 0)
			return o;
	}
	return NULL;
}

/* "CreateVolume build/fill, 34%, 12s" */
static const char *operation_text(struct arena *arena, const Ringvol__V1__Operation *o)
{
	char done[16] = "", age[TEXT_NUMBER_BYTES];
	text_age((uint64_t)o->seconds, age);
	if (o->progress != NULL && o->progress->total_bytes != 0)
		snprintf(done, sizeof(done), ", %u%%",
			(unsigned)(100.0 * (double)o->progress->done_bytes /
				   (double)o->progress->total_bytes));
	const char *text = arena_printf(
		arena, "%s: %s%s, %s", inventory_str(o->method), inventory_str(o->step), done, age);
	return text != NULL ? text : "";
}

static void condition_cell(
	struct table *t, const struct inventory *inv, const Ringvol__V1__Volume *v)
{
	const Ringvol__V1__Operation *o =
		operation_of(inv, inventory_str(v->name), inventory_str(v->id));
	if (v->n_conditions > 1)
		table_cellf(t, TABLE_BAD, "%s +%zu", inventory_str(v->conditions[0]->kind),
			v->n_conditions - 1);
	else if (v->n_conditions == 1)
		table_cell(t, TABLE_BAD, inventory_str(v->conditions[0]->kind));
	else if (o != NULL)
		table_cell(t, TABLE_WARN, operation_text(inv->arena, o));
	else
		table_cell(t, TABLE_GOOD, "ok");
}

/* The last column, which is shown where anything is in it. */
#define CLAIM_COLUMN(order)                                                                        \
	{                                                                                          \
		"CLAIM", .least = 12, .needed = (order)                                            \
	}

static const struct table_column volume_columns[] = {
	{"VOLUME", .least = 8},
	{"POOL", .least = 8, .needed = 2},
	{"FS", .needed = 4},
	{"SIZE", .right = true, .needed = 8},
	{"USED", .right = true, .needed = 7},
	{"DEVICE", .needed = 6},
	{"AGE", .right = true, .needed = 1},
	{"CONDITION", .least = 12, .needed = 9},
	{"MOUNTED AT", .least = 16, .needed = 5},
	CLAIM_COLUMN(3),
	{NULL},
};

static void mounts_cell(struct table *t, const Ringvol__V1__Volume *v)
{
	if (v->n_mounts > 1)
		table_cellf(t, TABLE_PLAIN, "%s (and %zu more)", inventory_str(v->mounts[0]->path),
			v->n_mounts - 1);
	else
		table_cell(
			t, TABLE_PLAIN, v->n_mounts == 1 ? inventory_str(v->mounts[0]->path) : "");
}

static int print_volumes(const struct inventory *inv, const struct text_stream *stream)
{
	if (inv->volumes.count == 0)
		return 0;
	enum { LAST = sizeof(volume_columns) / sizeof(volume_columns[0]) - 2 };
	struct table_column columns[LAST + 2];
	memcpy(columns, volume_columns, sizeof(volume_columns));
	bool claims = false;
	for (size_t i = 0; i < inv->volumes.count; i++) {
		const Ringvol__V1__Volume *v = (const void *)inv->volumes.at[i];
		claims |= v->claim.len > 0;
	}
	if (!claims)
		columns[LAST].title = NULL;
	struct table *t = table_new(columns);
	for (size_t i = 0; t != NULL && i < inv->volumes.count; i++) {
		const Ringvol__V1__Volume *v = (const void *)inv->volumes.at[i];
		const char *fs = inventory_str(v->fs);
		table_row(t);
		table_cell(t, TABLE_PLAIN, inventory_str(v->name));
		table_cell(t, TABLE_PLAIN, inventory_str(v->pool));
		table_cell(t, TABLE_PLAIN, fs[0] != '\0' ? fs : "block");
		size_cell(t, v->size_bytes);
		size_cell(t, v->allocated_bytes);
		table_cell(t, TABLE_PLAIN, v->device != NULL ? inventory_str(v->device->path) : "");
		age_cell(t, v->created);
		condition_cell(t, inv, v);
		mounts_cell(t, v);
		if (claims)
			table_cell(t, TABLE_PLAIN, inventory_str(v->claim));
	}
	return print_table(t, stream, "\n");
}

/* What the column has no room for: one sentence for each, whole. */
static void print_conditions(const struct inventory *inv, const struct text_stream *stream)
{
	bool any = false;
	for (size_t i = 0; i < inv->volumes.count; i++) {
		const Ringvol__V1__Volume *v = (const void *)inv->volumes.at[i];
		for (size_t k = 0; k < v->n_conditions; k++) {
			const Ringvol__V1__Condition *condition = v->conditions[k];
			const char *text = arena_printf(inv->arena, "%s: %s: %s",
				inventory_str(v->name), inventory_str(condition->kind),
				inventory_str(condition->message));
			const char *clean = text != NULL ? text_clean(inv->arena, text) : NULL;
			if (clean == NULL)
				continue;
			fputs(any ? "" : "\n", stdout);
			any = true;
			text_print_wrapped(clean, 2, stream->columns);
		}
	}
}

/* Names are what people know; the id where the volume is gone. */
static const char *volume_name(const struct inventory *inv, const char *id)
{
	for (size_t i = 0; i < inv->volumes.count; i++) {
		const Ringvol__V1__Volume *v = (const void *)inv->volumes.at[i];
		if (strcmp(inventory_str(v->id), id) == 0)
			return inventory_str(v->name);
	}
	return id;
}

static const struct table_column snapshot_columns[] = {
	{"SNAPSHOT", .least = 8},
	{"POOL", .least = 8, .needed = 2},
	{"SIZE", .right = true, .needed = 8},
	{"USED", .right = true, .needed = 7},
	{"AGE", .right = true, .needed = 3},
	{"OF VOLUME", .least = 8, .needed = 6},
	CLAIM_COLUMN(2),
	{NULL},
};

static int print_snapshots(const struct inventory *inv, const struct text_stream *stream)
{
	if (inv->snapshots.count == 0)
		return 0;
	enum { LAST = sizeof(snapshot_columns) / sizeof(snapshot_columns[0]) - 2 };
	struct table_column columns[LAST + 2];
	memcpy(columns, snapshot_columns, sizeof(snapshot_columns));
	bool claims = false;
	for (size_t i = 0; i < inv->snapshots.count; i++) {
		const Ringvol__V1__Snapshot *s = (const void *)inv->snapshots.at[i];
		claims |= s->claim.len > 0;
	}
	if (!claims)
		columns[LAST].title = NULL;
	struct table *t = table_new(columns);
	for (size_t i = 0; t != NULL && i < inv->snapshots.count; i++) {
		const Ringvol__V1__Snapshot *s = (const void *)inv->snapshots.at[i];
		table_row(t);
		table_cell(t, TABLE_PLAIN, inventory_str(s->name));
		table_cell(t, TABLE_PLAIN, inventory_str(s->pool));
		size_cell(t, s->size_bytes);
		size_cell(t, s->allocated_bytes);
		age_cell(t, s->created);
		table_cell(t, TABLE_PLAIN, volume_name(inv, inventory_str(s->source_volume_id)));
		if (claims)
			table_cell(t, TABLE_PLAIN, inventory_str(s->claim));
	}
	return print_table(t, stream, "\n");
}

static const struct table_column operation_columns[] = {
	{"OPERATION", .least = 8},
	{"ON", .least = 8, .needed = 9},
	{"UNDER WAY", .least = 12, .needed = 8},
	{NULL},
};

/* Those of volumes that are listed are shown there; others make what is not there yet. */
static int print_operations(const struct inventory *inv, const struct text_stream *stream)
{
	if (inv->operations.count == 0)
		return 0;
	struct table *t = table_new(operation_columns);
	for (size_t i = 0; t != NULL && i < inv->operations.count; i++) {
		const Ringvol__V1__Operation *o = (const void *)inv->operations.at[i];
		const char *text = operation_text(inv->arena, o), *colon = strchr(text, ':');
		table_row(t);
		table_cell(t, TABLE_PLAIN, inventory_str(o->method));
		table_cell(t, TABLE_PLAIN, inventory_str(o->subject));
		table_cell(t, TABLE_PLAIN, colon != NULL ? colon + 2 : text);
	}
	return print_table(t, stream, "\n");
}

static const struct table_column quarantined_columns[] = {
	{"QUARANTINED", .least = 8},
	{"POOL", .least = 8, .needed = 2},
	{"KIND", .needed = 3},
	{"WHY", .least = 12, .needed = 9},
	{NULL},
};

static int print_quarantined(const struct inventory *inv, const struct text_stream *stream)
{
	if (inv->quarantined.count == 0)
		return 0;
	struct table *t = table_new(quarantined_columns);
	for (size_t i = 0; t != NULL && i < inv->quarantined.count; i++) {
		const Ringvol__V1__Quarantined *q = (const void *)inv->quarantined.at[i];
		table_row(t);
		table_cell(t, TABLE_PLAIN, inventory_str(q->key));
		table_cell(t, TABLE_PLAIN, inventory_str(q->pool));
		table_cell(t, TABLE_PLAIN, inventory_str(q->kind));
		table_cell(t, TABLE_BAD, inventory_str(q->why));
	}
	return print_table(t, stream, "\n");
}

/* Pools that are not well need more than a word. */
static void print_whys(const struct inventory *inv)
{
	for (size_t i = 0; i < inv->pools.count; i++) {
		const Ringvol__V1__Pool *p = (const void *)inv->pools.at[i];
		const char *why = text_clean(inv->arena, inventory_str(p->why));
		if (why != NULL && why[0] != '\0')
			fprintf(stderr, "ringvol ls: %s\n", why);
	}
}

static int print_tables(const struct inventory *inv)
{
	struct text_stream stream;
	text_stream_of(STDOUT_FILENO, &stream);
	int r = print_pools(inv, &stream);
	if (r == 0)
		r = print_volumes(inv, &stream);
	if (r == 0)
		print_conditions(inv, &stream);
	if (r == 0)
		r = print_snapshots(inv, &stream);
	if (r == 0)
		r = print_operations(inv, &stream);
	if (r == 0)
		r = print_quarantined(inv, &stream);
	fflush(stdout);
	print_whys(inv);
	return r;
}

/* ---- asking ---- */

static bool any_pool_read(const struct inventory *inv)
{
	for (size_t i = 0; i < inv->pools.count; i++)
		if (((const Ringvol__V1__Pool *)(const void *)inv->pools.at[i])->uuid8.len != 0)
			return true;
	return false;
}

static int gather(const struct tool_args *args, struct inventory *inv, struct err *err)
{
	struct grpc_client *client = NULL;
	int r = grpc_client_open(&client, args->endpoint, err);
	if (r == 0)
		r = inventory_ask(inv, client, NULL, err);
	grpc_client_close(client);
	if (r == 0 || (err->code != ERR_UNAVAILABLE && err->code != ERR_UNIMPLEMENTED &&
			      err->code != ERR_TIMEOUT))
		return r;
	fprintf(stderr,
		"ringvol ls: %s; this is read from the pools: operations, I/O and health are not "
		"known\n",
		err->message);
	err_clear(err);
	inventory_free(inv);
	r = inventory_read(inv, args->pools, args->pool_count);
	return r < 0 ? err_sys(err, r, "reading the pools") : 0;
}

static int run(struct tool_args *args)
{
	struct inventory inv = {0};
	struct err err = {0};
	int status = 0;
	if (gather(args, &inv, &err) < 0)
		status = tool_fail(&ls_command, err.message);
	else if (args->json)
		print_json(&inv);
	else if (print_tables(&inv) < 0)
		status = tool_fail(&ls_command, "out of memory");
	if (status == 0 && inv.offline && !any_pool_read(&inv))
		status = TOOL_FAILED;
	inventory_free(&inv);
	return status;
}

int tools_ls_main(int argc, char *const *argv)
{
	struct tool_args args = {0};
	return tool_main(&ls_command, argc, argv, &args, run);
}
