/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol ls`: pools, volumes, snapshots and what is being done.
 *
 * Happy path: ask the driver; print tables, or all of it as JSON. Where no driver answers the pools
 * are read instead, and that is said on standard error. It fails (1) when the driver answers with
 * an error or standard output cannot be written, and when no driver answers and no pool can be
 * read.
 */
#include "tools/tool.h"

#include "base/clock.h"
#include "pool/record.h"
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
	TOOL_CLUSTER_ROW("all nodes, asked of a controller"),
	TOOL_ENDPOINT_CLUSTER_ROW,
	TOOL_POOL_ROW(";\nused when no driver answers"),
	{NULL},
};

/* ---- JSON ---- */

static void json_list(struct json *j, const char *key, const struct inventory_list *list)
{
	json_open(j, key, '[');
	j->by_line = true;
	for (size_t i = 0; i < list->count; i++)
		json_put_message(j, NULL, list->at[i]);
	j->by_line = false;
	json_close(j, ']');
}

static void print_json(const struct inventory *inv)
{
	struct json j = {.out = stdout};
	json_open(&j, NULL, '{');
	if (inv->driver != NULL && inv->nodes.count == 0)
		json_put_message(&j, "driver", &inv->driver->base);
	else
		json_put_null(&j, "driver");
	json_list(&j, "nodes", &inv->nodes);
	json_list(&j, "pools", &inv->pools);
	json_list(&j, "operations", &inv->operations);
	json_list(&j, "volumes", &inv->volumes);
	json_list(&j, "borrowed", &inv->borrowed);
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

/* Fills the row of one message. */
typedef void row_fn(struct table *t, const struct inventory *inv, const ProtobufCMessage *message);

static const struct inventory_list *first_list(const struct inventory *inv)
{
	return inv->nodes.count != 0 ? &inv->nodes : &inv->pools;
}

static int print_list(const struct inventory *inv, const struct text_stream *stream,
	const struct inventory_list *list, const struct table_column *columns, row_fn *row)
{
	struct buf out = {0};
	struct table *t = table_new(columns);
	for (size_t i = 0; t != NULL && i < list->count; i++) {
		table_row(t);
		row(t, inv, list->at[i]);
	}
	int r = t == NULL ? -ENOMEM : table_print(t, stream, 0, -1, &out);
	if (r == 0)
		printf("%s%.*s", list == first_list(inv) ? "" : "\n", (int)out.len,
			(char *)out.data);
	buf_free(&out);
	table_free(t);
	return r;
}

static const struct table_column node_columns[] = {
	{"NODE", .least = 8},
	{"STATE", .needed = 9},
	{"HEARD", .right = true, .needed = 8},
	{"VERSION", .needed = 3},
	{"POOLS", .least = 12, .needed = 7},
	{"VOLUMES", .right = true, .needed = 6},
	{"SNAPSHOTS", .right = true, .needed = 5},
	{"ADDRESS", .least = 9, .needed = 4},
	{"TOPOLOGY", .if_any = true, .least = 12, .needed = 2},
	{NULL},
};

/* Each with what it could still promise; of one that is not ready its state. */
static const char *pools_text(struct arena *arena, const Ringvol__V1__ClusterNode *n)
{
	static const char *const states[] = {
		[RINGVOL__V1__POOL__STATE__LOADING] = "loading",
		[RINGVOL__V1__POOL__STATE__MISSING] = "missing",
		[RINGVOL__V1__POOL__STATE__SICK] = "sick",
	};
	const char *text = "";
	for (size_t i = 0; i < n->n_pools && text != NULL; i++) {
		const Ringvol__V1__ClusterPool *p = n->pools[i];
		bool odd = (size_t)p->state < sizeof(states) / sizeof(states[0]) &&
			   states[p->state] != NULL;
		char room[TEXT_NUMBER_BYTES];
		text_size(p->available_bytes, room);
		const char *name = inventory_str(p->name);
		text = arena_printf(arena, "%s%s%s:%s", text, i == 0 ? "" : " ",
			*name != '\0' ? name : inventory_str(p->uuid8),
			p->forgotten                                            ? "forgotten"
			: n->state != RINGVOL__V1__CLUSTER_NODE__STATE__PRESENT ? "away"
			: odd                                                   ? states[p->state]
										: room);
	}
	return text != NULL ? text : "";
}

static const char *topology_text(struct arena *arena, const Ringvol__V1__ClusterNode *n)
{
	const char *text = "";
	for (size_t i = 0; i < n->n_topology && text != NULL; i++) {
		const char *segment = inventory_str(n->topology[i]);
		/* Its own says what the first column says. */
		if (strstr(segment, "/node=") == NULL)
			text = arena_printf(
				arena, "%s%s%s", text, *text == '\0' ? "" : " ", segment);
	}
	return text != NULL ? text : "";
}

static void node_row(struct table *t, const struct inventory *inv, const ProtobufCMessage *message)
{
	static const struct {
		const char *name;
		enum table_colour colour;
	} states[] = {
		[RINGVOL__V1__CLUSTER_NODE__STATE__UNSEEN] = {"unseen", TABLE_BAD},
		[RINGVOL__V1__CLUSTER_NODE__STATE__JOINING] = {"joining", TABLE_WARN},
		[RINGVOL__V1__CLUSTER_NODE__STATE__PRESENT] = {"present", TABLE_GOOD},
		[RINGVOL__V1__CLUSTER_NODE__STATE__ABSENT] = {"absent", TABLE_BAD},
	};
	const Ringvol__V1__ClusterNode *n = (const void *)message;
	bool known = (size_t)n->state < sizeof(states) / sizeof(states[0]);
	unsigned volumes = 0, snapshots = 0;
	for (size_t i = 0; i < n->n_pools; i++) {
		volumes += n->pools[i]->volumes;
		snapshots += n->pools[i]->snapshots;
	}
	table_cell(t, TABLE_PLAIN, inventory_str(n->id));
	table_cell(t, known ? states[n->state].colour : TABLE_PLAIN,
		known ? states[n->state].name : "?");
	age_cell(t, n->last_heard);
	table_cell(t, TABLE_PLAIN, inventory_str(n->version));
	table_cell(t, TABLE_PLAIN, pools_text(inv->arena, n));
	table_cellf(t, TABLE_PLAIN, "%u", volumes);
	table_cellf(t, TABLE_PLAIN, "%u", snapshots);
	table_cell(t, TABLE_PLAIN, inventory_str(n->address));
	table_cell(t, TABLE_PLAIN, topology_text(inv->arena, n));
}

static const struct table_column pool_columns[] = {
	{"POOL", .least = 8},
	{"NODE", .if_any = true, .least = 8, .needed = 10},
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

static void pool_row(struct table *t, const struct inventory *inv, const ProtobufCMessage *message)
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
	(void)inv;
	const Ringvol__V1__Pool *p = (const void *)message;
	bool known = (size_t)p->state < sizeof(states) / sizeof(states[0]);
	table_cell(t, TABLE_PLAIN, inventory_str(p->name));
	table_cell(t, TABLE_PLAIN, inventory_str(p->node));
	table_cell(t, known ? states[p->state].colour : TABLE_PLAIN,
		known ? states[p->state].name : "?");
	table_cell(t, TABLE_PLAIN, p->features != NULL ? inventory_str(p->features->fs) : "");
	size_cell(t, p->room != NULL ? p->room->capacity_bytes : 0);
	size_cell(t, p->room != NULL ? p->room->free_bytes : 0);
	size_cell(t, p->room != NULL ? p->room->provisioned_bytes : 0);
	table_cellf(t, TABLE_PLAIN, "%u", p->volumes);
	table_cellf(t, TABLE_PLAIN, "%u", p->snapshots);
	table_cell(t, TABLE_PLAIN, inventory_str(p->path));
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

static const struct table_column volume_columns[] = {
	{"VOLUME", .least = 8},
	{"NODE", .if_any = true, .least = 8, .needed = 10},
	{"POOL", .least = 8, .needed = 2},
	{"FS", .needed = 4},
	{"SIZE", .right = true, .needed = 8},
	{"USED", .right = true, .needed = 7},
	{"DEVICE", .needed = 6},
	{"AGE", .right = true, .needed = 1},
	{"CONDITION", .least = 12, .needed = 9},
	{"MOUNTED AT", .least = 16, .needed = 5},
	{"ATTACHED TO", .if_any = true, .least = 8, .needed = 8},
	{"CLAIM", .if_any = true, .least = 12, .needed = 3},
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

/* "node-a, node-b (read-only)" */
static void attachments_cell(
	struct table *t, const struct inventory *inv, const Ringvol__V1__Volume *v)
{
	const char *text = "";
	for (size_t i = 0; i < v->n_attachments && text != NULL; i++)
		text = arena_printf(inv->arena, "%s%s%s%s", text, i > 0 ? ", " : "",
			inventory_str(v->attachments[i]->node_id),
			v->attachments[i]->read_only ? " (read-only)" : "");
	table_cell(t, TABLE_PLAIN, text != NULL ? text : "");
}

static void volume_row(
	struct table *t, const struct inventory *inv, const ProtobufCMessage *message)
{
	const Ringvol__V1__Volume *v = (const void *)message;
	const char *fs = inventory_str(v->fs);
	table_cell(t, TABLE_PLAIN, inventory_str(v->name));
	table_cell(t, TABLE_PLAIN, inventory_str(v->node));
	table_cell(t, TABLE_PLAIN, inventory_str(v->pool));
	table_cell(t, TABLE_PLAIN, fs[0] != '\0' ? fs : "block");
	size_cell(t, v->size_bytes);
	size_cell(t, v->allocated_bytes);
	table_cell(t, TABLE_PLAIN, v->device != NULL ? inventory_str(v->device->path) : "");
	age_cell(t, v->created);
	condition_cell(t, inv, v);
	mounts_cell(t, v);
	attachments_cell(t, inv, v);
	table_cell(t, TABLE_PLAIN, inventory_str(v->claim));
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

static const struct table_column borrowed_columns[] = {
	{"OF ANOTHER NODE", .least = 8},
	{"NODE", .if_any = true, .least = 8, .needed = 10},
	{"OWNER", .least = 8, .needed = 7},
	{"SIZE", .right = true, .needed = 8},
	{"DEVICE", .needed = 6},
	{"CONDITION", .least = 6, .needed = 9},
	{"STAGED AT", .least = 16, .needed = 5},
	{NULL},
};

/* What else is wrong with one is found out when somebody asks (NodeGetVolumeStats). */
static void borrowed_row(
	struct table *t, const struct inventory *inv, const ProtobufCMessage *message)
{
	const Ringvol__V1__Borrowed *b = (const void *)message;
	char key[RECORD_KEY_MAX];
	(void)inv;
	table_cell(t, TABLE_PLAIN, inventory_borrowed_name(b, key));
	table_cell(t, TABLE_PLAIN, inventory_str(b->node));
	table_cell(t, TABLE_PLAIN, inventory_str(b->owner));
	size_cell(t, b->size_bytes);
	table_cell(t, TABLE_PLAIN, b->device != NULL ? inventory_str(b->device->path) : "");
	table_cell(t, b->suspended ? TABLE_WARN : TABLE_PLAIN, b->suspended ? "moving here" : "");
	table_cell(t, TABLE_PLAIN, b->n_mounts == 1 ? inventory_str(b->mounts[0]->path) : "");
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
	{"NODE", .if_any = true, .least = 8, .needed = 5},
	{"POOL", .least = 8, .needed = 2},
	{"SIZE", .right = true, .needed = 8},
	{"USED", .right = true, .needed = 7},
	{"AGE", .right = true, .needed = 3},
	{"OF VOLUME", .least = 8, .needed = 6},
	{"GROUP", .if_any = true, .least = 8, .needed = 4},
	{"CLAIM", .if_any = true, .least = 12, .needed = 2},
	{NULL},
};

/* Of a group's id; an id of another form as it is. */
static const char *group_key(const char *id, char ret_key[RECORD_KEY_MAX])
{
	struct record_id parsed;
	if (record_id_parse(id, &parsed) < 0)
		return id;
	memcpy(ret_key, parsed.key, RECORD_KEY_MAX);
	return ret_key;
}

static void snapshot_row(
	struct table *t, const struct inventory *inv, const ProtobufCMessage *message)
{
	const Ringvol__V1__Snapshot *s = (const void *)message;
	char key[RECORD_KEY_MAX];
	table_cell(t, TABLE_PLAIN, inventory_str(s->name));
	table_cell(t, TABLE_PLAIN, inventory_str(s->node));
	table_cell(t, TABLE_PLAIN, inventory_str(s->pool));
	size_cell(t, s->size_bytes);
	size_cell(t, s->allocated_bytes);
	age_cell(t, s->created);
	table_cell(t, TABLE_PLAIN, volume_name(inv, inventory_str(s->source_volume_id)));
	table_cell(t, TABLE_PLAIN, group_key(inventory_str(s->group), key));
	table_cell(t, TABLE_PLAIN, inventory_str(s->claim));
}

static const struct table_column operation_columns[] = {
	{"OPERATION", .least = 8},
	{"NODE", .if_any = true, .least = 8, .needed = 7},
	{"ON", .least = 8, .needed = 9},
	{"UNDER WAY", .least = 12, .needed = 8},
	{NULL},
};

/* Those of volumes that are listed are shown there; others make what is not there yet. */
static void operation_row(
	struct table *t, const struct inventory *inv, const ProtobufCMessage *message)
{
	const Ringvol__V1__Operation *o = (const void *)message;
	const char *text = operation_text(inv->arena, o), *colon = strchr(text, ':');
	table_cell(t, TABLE_PLAIN, inventory_str(o->method));
	table_cell(t, TABLE_PLAIN, inventory_str(o->node));
	table_cell(t, TABLE_PLAIN, inventory_str(o->subject));
	table_cell(t, TABLE_PLAIN, colon != NULL ? colon + 2 : text);
}

static const struct table_column quarantined_columns[] = {
	{"QUARANTINED", .least = 8},
	{"NODE", .if_any = true, .least = 8, .needed = 5},
	{"POOL", .least = 8, .needed = 2},
	{"KIND", .needed = 3},
	{"WHY", .least = 12, .needed = 9},
	{NULL},
};

static void quarantined_row(
	struct table *t, const struct inventory *inv, const ProtobufCMessage *message)
{
	(void)inv;
	const Ringvol__V1__Quarantined *q = (const void *)message;
	table_cell(t, TABLE_PLAIN, inventory_str(q->key));
	table_cell(t, TABLE_PLAIN, inventory_str(q->node));
	table_cell(t, TABLE_PLAIN, inventory_str(q->pool));
	table_cell(t, TABLE_PLAIN, inventory_str(q->kind));
	table_cell(t, TABLE_BAD, inventory_str(q->why));
}

static void print_why(
	const struct inventory *inv, ProtobufCBinaryData node, ProtobufCBinaryData why)
{
	const char *of = text_clean(inv->arena, inventory_str(node));
	const char *text = text_clean(inv->arena, inventory_str(why));
	if (of != NULL && text != NULL && text[0] != '\0')
		fprintf(stderr, "ringvol ls: %s%s%s%s\n", of[0] != '\0' ? "node " : "", of,
			of[0] != '\0' ? ": " : "", text);
}

/* Pools that are not well need more than a word, and nodes that have not answered. */
static void print_whys(const struct inventory *inv)
{
	for (size_t i = 0; i < inv->nodes.count; i++) {
		const Ringvol__V1__ClusterNode *n = (const void *)inv->nodes.at[i];
		print_why(inv, n->id, n->why);
	}
	for (size_t i = 0; i < inv->pools.count; i++) {
		const Ringvol__V1__Pool *p = (const void *)inv->pools.at[i];
		print_why(inv, p->node, p->why);
	}
}

static int print_tables(const struct inventory *inv)
{
	struct text_stream stream;
	text_stream_of(STDOUT_FILENO, &stream);
	const struct {
		const struct inventory_list *list;
		const struct table_column *columns;
		row_fn *row;
	} tables[] = {
		{&inv->nodes, node_columns, node_row},
		{&inv->pools, pool_columns, pool_row},
		{&inv->volumes, volume_columns, volume_row},
		{&inv->borrowed, borrowed_columns, borrowed_row},
		{&inv->snapshots, snapshot_columns, snapshot_row},
		{&inv->operations, operation_columns, operation_row},
		{&inv->quarantined, quarantined_columns, quarantined_row},
	};
	int r = 0;
	for (unsigned i = 0; r == 0 && i < sizeof(tables) / sizeof(tables[0]); i++) {
		if (tables[i].list == first_list(inv) || tables[i].list->count > 0)
			r = print_list(
				inv, &stream, tables[i].list, tables[i].columns, tables[i].row);
		if (r == 0 && tables[i].row == volume_row)
			print_conditions(inv, &stream);
	}
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
	if (r == 0 && args->cluster && inv->driver != NULL && inv->nodes.count == 0)
		return err_set(err, ERR_INVALID,
			"%s is a node's driver and no controller; without --cluster it is asked for itself",
			args->endpoint);
	if (r == 0 || args->cluster ||
		(err->code != ERR_UNAVAILABLE && err->code != ERR_UNIMPLEMENTED &&
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
		status = tool_fail(args, err.message);
	else if (args->json)
		print_json(&inv);
	else if (print_tables(&inv) < 0)
		status = tool_fail(args, "out of memory");
	if (status == 0 && inv.offline && !any_pool_read(&inv))
		status = TOOL_FAILED;
	inventory_free(&inv);
	return status;
}

const struct tool ls_tool = {
	.command =
		{
			.name = "ls",
			.summary =
				"Lists volumes and snapshots: sizes, devices, where they are mounted, how they "
				"are, and\n"
				"what is being done with them. Asks the driver; without one it reads the pools.\n"
				"With --cluster it asks a controller, and lists nodes as well.",
			.options = rows,
		},
	.size = sizeof(struct tool_args),
	.run = run,
};
