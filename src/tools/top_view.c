/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol top`: attached volumes with their histograms are asked of the driver; what was measured
 * is shown as JSON, as the table of both views, and as lines. Showing fails only for want of
 * memory.
 */
#include "tools/top_view.h"

#include "base/clock.h"
#include "tools/json.h"
#include "tools/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the driver ---- */

static void take_driver(struct top *top, const Ringvol__V1__Driver *driver)
{
	if (driver == NULL)
		return;
	snprintf(top->node, sizeof(top->node), "%s", inventory_str(driver->node_id));
	snprintf(top->probes_why, sizeof(top->probes_why), "%s", inventory_str(driver->probes_why));
	top->exact = driver->probes == RINGVOL__V1__DRIVER__PROBES__BPF;
	top->uptime_seconds = driver->uptime_seconds;
}

static int add_missing(struct top *top, const Ringvol__V1__ClusterNode *node)
{
	const char *why = inventory_str(node->why);
	bool here = node->state == RINGVOL__V1__CLUSTER_NODE__STATE__PRESENT ||
		    node->state == RINGVOL__V1__CLUSTER_NODE__STATE__JOINING;
	if (here && *why == '\0')
		return 0;
	if (array_grow(&top->missing, &top->missing_cap, top->n_missing, sizeof(*top->missing)) < 0)
		return -ENOMEM;
	struct top_missing *m = &top->missing[top->n_missing++];
	snprintf(m->id, sizeof(m->id), "%s", inventory_str(node->id));
	snprintf(m->why, sizeof(m->why), "%s", here ? why : "it is away");
	return 0;
}

static int take_nodes(struct top *top, const struct inventory_list *nodes)
{
	int r = 0;
	top->n_missing = 0;
	for (size_t i = 0; r == 0 && i < nodes->count; i++)
		r = add_missing(top, (const void *)nodes->at[i]);
	if (top->args.cluster)
		snprintf(top->node, sizeof(top->node), "%zu of %zu nodes",
			nodes->count - top->n_missing, nodes->count);
	return r;
}

int top_ask(struct top *top)
{
	Ringvol__V1__ListRequest__Kind kinds[] = {RINGVOL__V1__LIST_REQUEST__KIND__DRIVER,
		RINGVOL__V1__LIST_REQUEST__KIND__VOLUMES, RINGVOL__V1__LIST_REQUEST__KIND__NODES};
	Ringvol__V1__ListRequest request = RINGVOL__V1__LIST_REQUEST__INIT;
	struct inventory inv = {0};
	struct err err = {0};
	request.kinds = kinds;
	request.n_kinds = top->args.cluster ? 3 : 2;
	request.attached_only = true;
	request.histograms = true;
	int r = 0;
	if (top->client == NULL)
		r = grpc_client_open(&top->client, top->args.endpoint, &err);
	if (r == 0)
		r = inventory_ask(&inv, top->client, &request, &err);
	if (r == 0) {
		take_driver(top, inv.driver);
		r = take_nodes(top, &inv.nodes);
		if (r == 0)
			r = rates_take(&top->rates, &inv, clock_monotonic_ns());
		if (r < 0)
			err_sys(&err, r, "volumes");
		top->answers++;
	} else {
		grpc_client_close(top->client);
		top->client = NULL;
	}
	inventory_free(&inv);
	top->err = err;
	return r;
}

/* ---- JSON ---- */

static void json_time(struct json *j, const char *key, const struct rates_op *op, uint64_t ns)
{
	if (op->timed)
		json_put_uint(j, key, ns);
	else
		json_put_null(j, key);
}

static void json_op(struct json *j, const struct rates_op *op, double seconds)
{
	json_put_double(j, "iops", (double)op->ops / seconds);
	json_put_double(j, "bytes_per_second", (double)op->bytes / seconds);
	json_time(j, "p50_ns", op, op->p50_ns);
	json_time(j, "p99_ns", op, op->p99_ns);
	json_put_uint(j, "in_flight", op->in_flight);
	json_put_uint(j, "errors", op->errors);
	json_put_uint(j, "errors_total", op->errors_total);
}

static void json_volume(struct json *j, const struct rates_volume *v)
{
	json_open(j, NULL, '{');
	json_put_string(j, "id", v->id);
	json_put_string(j, "name", v->name);
	json_put_string(j, "pool", v->pool);
	json_put_string(j, "node", v->node);
	json_put_string(j, "device", v->device);
	json_put_bool(j, "exact", v->exact);
	json_put_bool(j, "abnormal", v->abnormal);
	json_put_double(j, "seconds", v->seconds);
	json_op(j, &v->all, v->seconds);
	for (unsigned i = 0; i < RATES_OPS; i++) {
		json_open(j, rates_op_names[i], '{');
		json_op(j, &v->op[i], v->seconds);
		json_close(j, '}');
	}
	json_close(j, '}');
}

static void json_missing(struct json *j, const struct top *top)
{
	json_open(j, "nodes_missing", '[');
	for (size_t i = 0; i < top->n_missing; i++) {
		json_open(j, NULL, '{');
		json_put_string(j, "id", top->missing[i].id);
		json_put_string(j, "why", top->missing[i].why);
		json_close(j, '}');
	}
	json_close(j, ']');
}

int top_print_json(const struct top *top)
{
	const struct rates_volume **all = rates_sort(&top->rates, top->key, top->reverse);
	struct json j = {.out = stdout};
	char now[CLOCK_BYTES];
	if (all == NULL && top->rates.count > 0)
		return -ENOMEM;
	clock_print(clock_now_ns(), now);
	json_open(&j, NULL, '{');
	json_put_string(&j, "time", now);
	json_put_string(&j, "node_id", top->args.cluster ? "" : top->node);
	if (top->args.cluster)
		json_missing(&j, top);
	json_open(&j, "volumes", '[');
	for (size_t i = 0; i < top->rates.count; i++)
		if (all[i]->counted)
			json_volume(&j, all[i]);
	json_close(&j, ']');
	json_close(&j, '}');
	fputc('\n', stdout);
	free(all);
	return 0;
}

/* ---- the table ---- */

/* The same columns for both; lines begin with the time. */
static const struct table_column columns[] = {
	{"VOLUME", .least = 8},
	{"NODE", .if_any = true, .least = 8, .needed = 6},
	{"IOPS", .right = true, .needed = 12},
	{"R/S", .right = true, .needed = 7},
	{"W/S", .right = true, .needed = 7},
	{"READ", .right = true, .needed = 8},
	{"WRITE", .right = true, .needed = 9},
	{"P50", .right = true, .needed = 6},
	{"P99", .right = true, .needed = 11},
	{"INFL", .right = true, .needed = 5},
	{"ERR", .right = true, .needed = 10},
	{"DEVICE", .needed = 3},
	{"P99 HISTORY", .raw = true, .needed = 4},
	{NULL},
};
static const int column_of_key[RATES_KEYS] = {
	[RATES_BY_NAME] = 0,
	[RATES_BY_IOPS] = 2,
	[RATES_BY_READ] = 3,
	[RATES_BY_WRITE] = 4,
	[RATES_BY_BYTES] = 6,
	[RATES_BY_P50] = 7,
	[RATES_BY_P99] = 8,
	[RATES_BY_IN_FLIGHT] = 9,
	[RATES_BY_ERRORS] = 10,
};

static void rate_cell(struct table *t, const struct rates_volume *v, uint64_t ops)
{
	char text[TEXT_NUMBER_BYTES];
	if (!v->counted) {
		table_cell(t, TABLE_DIM, "-");
		return;
	}
	text_count((double)ops / v->seconds, text);
	table_cell(t, ops == 0 ? TABLE_DIM : TABLE_PLAIN, text);
}

static void bytes_cell(struct table *t, const struct rates_volume *v, uint64_t bytes)
{
	char text[TEXT_NUMBER_BYTES];
	if (!v->counted) {
		table_cell(t, TABLE_DIM, "-");
		return;
	}
	text_size((uint64_t)((double)bytes / v->seconds), text);
	table_cell(t, bytes == 0 ? TABLE_DIM : TABLE_PLAIN, text);
}

static void latency_cell(struct table *t, const struct rates_op *op, uint64_t ns)
{
	char text[TEXT_NUMBER_BYTES];
	text_duration(op->timed ? ns : 0, text);
	table_cell(t, op->timed ? TABLE_PLAIN : TABLE_DIM, text);
}

static void volume_row(struct table *t, const struct rates_volume *v, bool utf8)
{
	char history[RATES_HISTORY * 3 + 1];
	text_sparkline(v->history, RATES_HISTORY, utf8, history);
	table_row(t);
	table_cell(t, v->abnormal ? TABLE_BAD : TABLE_PLAIN, v->name);
	table_cell(t, TABLE_PLAIN, v->node);
	rate_cell(t, v, v->all.ops);
	rate_cell(t, v, v->op[0].ops);
	rate_cell(t, v, v->op[1].ops);
	bytes_cell(t, v, v->op[0].bytes);
	bytes_cell(t, v, v->op[1].bytes);
	latency_cell(t, &v->all, v->all.p50_ns);
	latency_cell(t, &v->all, v->all.p99_ns);
	table_cellf(t, v->all.in_flight == 0 ? TABLE_DIM : TABLE_PLAIN, "%u", v->all.in_flight);
	if (v->exact)
		table_cellf(t,
			v->all.errors != 0         ? TABLE_BAD
			: v->all.errors_total != 0 ? TABLE_WARN
						   : TABLE_DIM,
			"%" PRIu64, v->all.errors_total);
	else
		table_cell(t, TABLE_DIM, "?");
	table_cell(t, TABLE_PLAIN, v->device);
	table_cell(t, TABLE_PLAIN, history);
}

int top_print_table(
	const struct top *top, const struct text_stream *stream, unsigned rows_max, struct buf *out)
{
	const struct rates_volume **all = rates_sort(&top->rates, top->key, top->reverse);
	struct table *t = table_new(columns);
	int r = t == NULL || (all == NULL && top->rates.count > 0) ? -ENOMEM : 0;
	size_t from = rows_max != 0 ? top->scrolled : 0, end = top->rates.count;
	if (rows_max != 0 && end - from > rows_max)
		end = from + rows_max;
	for (size_t i = from; r == 0 && i < end; i++)
		volume_row(t, all[i], stream->utf8);
	if (r == 0)
		r = table_print(t, stream, 0, column_of_key[top->key], out);
	table_free(t);
	free(all);
	return r;
}

/* ---- lines ---- */

static void print_missing(const struct top_missing *m)
{
	struct arena *arena = arena_new(0);
	const char *id = arena != NULL ? text_clean(arena, m->id) : NULL;
	const char *why = arena != NULL ? text_clean(arena, m->why) : NULL;
	if (id != NULL && why != NULL)
		printf("node %s: %s\n", id, why);
	arena_unref(arena);
}

int top_print_lines(const struct top *top, const struct text_stream *stream)
{
	struct buf out = {0};
	char now[CLOCK_BYTES];
	clock_print(clock_now_ns(), now);
	int r = top_print_table(top, stream, 0, &out);
	if (r == 0)
		printf("%s%.19sZ  %zu attached\n%.*s", top->answers > 2 ? "\n" : "", now,
			top->rates.count, (int)out.len, (char *)out.data);
	for (size_t i = 0; r == 0 && i < top->n_missing; i++)
		print_missing(&top->missing[i]);
	buf_free(&out);
	return r;
}
