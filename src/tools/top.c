/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol top`: what attached volumes do, every interval.
 *
 * Happy path: ask the driver for attached volumes with their histograms, wait, ask again, show the
 * difference: on a terminal as a screen with keys, else as lines, or as one JSON object a line.
 * How it can fail: the driver does not answer at first (1); later the screen says so and lines tell
 * standard error, once, and it goes on asking: a driver is restarted now and then.
 */
#include "tools/tools.h"

#include "base/when.h"
#include "options.h"
#include "tools/inventory.h"
#include "tools/json.h"
#include "tools/rates.h"
#include "tools/screen.h"
#include "tools/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	FIRST_MS = 500, /* a screen does not stay empty for a long interval */
	INTERVAL_MIN_MS = 100,
	INTERVAL_MAX_MS = 3600 * 1000,
	SCROLL_PAGE = 10,
};

struct top {
	/* options */
	bool json, once;
	enum rates_key key;
	bool reverse;
	uint64_t interval_ms;
	const char *endpoint;
	struct arena *arena;
	/* the driver */
	struct grpc_client *client;
	struct rates rates;
	unsigned answers;
	struct err err; /* why it does not answer; OK when it does */
	char node[64], probes_why[256];
	bool exact;
	double uptime_seconds;
	/* the screen */
	size_t scrolled;
	bool quit;
};

/* ---- options ---- */

static int set_json(void *target, const char *value, struct err *err)
{
	(void)value;
	(void)err;
	((struct top *)target)->json = true;
	return 0;
}

static int set_once(void *target, const char *value, struct err *err)
{
	(void)value;
	(void)err;
	((struct top *)target)->once = true;
	return 0;
}

static int set_sort(void *target, const char *value, struct err *err)
{
	struct top *top = target;
	for (unsigned i = 0; i < RATES_KEYS; i++) {
		if (strcmp(value, rates_key_names[i]) == 0) {
			top->key = (enum rates_key)i;
			return 0;
		}
	}
	const char *near = options_nearest(value, rates_key_names);
	return err_set(err, ERR_INVALID,
		"not one of name, iops, read, write, bytes, p50, p99, inflight, errors%s%s%s",
		near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
		near != NULL ? "'?" : "");
}

static int set_interval(void *target, const char *value, struct err *err)
{
	char *end;
	errno = 0;
	double seconds = strtod(value, &end);
	/* strtod() takes more than digits: "inf", "0x1", blanks. */
	if (value[strspn(value, "0123456789.")] != '\0' || end == value || *end != '\0' ||
		errno != 0 || seconds * 1000 < INTERVAL_MIN_MS || seconds * 1000 > INTERVAL_MAX_MS)
		return err_set(err, ERR_INVALID, "not seconds from 0.1 to 3600");
	((struct top *)target)->interval_ms = (uint64_t)(seconds * 1000 + 0.5);
	return 0;
}

static int set_endpoint(void *target, const char *value, struct err *err)
{
	struct top *top = target;
	char *copy = arena_strdup(top->arena, value);
	if (copy == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	copy[strcspn(copy, ",;")] = '\0';
	top->endpoint = copy;
	return 0;
}

static const struct option_row rows[] = {
	{"--json", .help = "one object a line for each interval", .set = set_json},
	{"--once", .help = "one interval, then the end", .set = set_once},
	{"--sort", "KEY", .fallback = "iops",
		.help = "name, iops, read, write, bytes, p50, p99, inflight or errors",
		.set = set_sort},
	{"--interval", "SECONDS", .fallback = "1", .help = "from 0.1 to 3600", .set = set_interval},
	{"--endpoint", "unix:///PATH", {"CSI_ENDPOINT"}, .fallback = "unix:///run/ringvol/csi.sock",
		.help = "where the driver serves CSI", .set = set_endpoint},
	{NULL},
};

static const struct command top_command = {
	.name = "top",
	.summary =
		"Shows what attached volumes do: operations, bandwidth, latency, errors. A screen "
		"on a\n"
		"terminal (q ends it), lines in a pipe. NO_COLOR is respected.",
	.options = rows,
};

/* ---- asking ---- */

static void take_driver(struct top *top, const Ringvol__V1__Driver *driver)
{
	if (driver == NULL)
		return;
	snprintf(top->node, sizeof(top->node), "%s", inventory_str(driver->node_id));
	snprintf(top->probes_why, sizeof(top->probes_why), "%s", inventory_str(driver->probes_why));
	top->exact = driver->probes == RINGVOL__V1__DRIVER__PROBES__BPF;
	top->uptime_seconds = driver->uptime_seconds;
}

static int ask(struct top *top)
{
	Ringvol__V1__ListRequest__Kind kinds[] = {
		RINGVOL__V1__LIST_REQUEST__KIND__DRIVER, RINGVOL__V1__LIST_REQUEST__KIND__VOLUMES};
	Ringvol__V1__ListRequest request = RINGVOL__V1__LIST_REQUEST__INIT;
	struct inventory inv = {0};
	struct err err = {0};
	request.kinds = kinds;
	request.n_kinds = 2;
	request.attached_only = true;
	request.histograms = true;
	int r = 0;
	if (top->client == NULL)
		r = grpc_client_open(&top->client, top->endpoint, &err);
	if (r == 0)
		r = inventory_ask(&inv, top->client, &request, &err);
	if (r == 0) {
		take_driver(top, inv.driver);
		r = rates_take(&top->rates, &inv, when_monotonic_ns());
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

static void json_op(struct json *j, const struct rates_op *op, double seconds)
{
	json_key(j, "iops");
	json_double(j, (double)op->ops / seconds);
	json_key(j, "bytes_per_second");
	json_double(j, (double)op->bytes / seconds);
	json_key(j, "p50_ns");
	op->timed ? json_uint(j, op->p50_ns) : json_null(j);
	json_key(j, "p99_ns");
	op->timed ? json_uint(j, op->p99_ns) : json_null(j);
	json_key(j, "in_flight");
	json_uint(j, op->in_flight);
	json_key(j, "errors");
	json_uint(j, op->errors);
	json_key(j, "errors_total");
	json_uint(j, op->errors_total);
}

static void json_volume(struct json *j, const struct rates_volume *v)
{
	json_open(j, '{');
	json_key(j, "id");
	json_string(j, v->id);
	json_key(j, "name");
	json_string(j, v->name);
	json_key(j, "pool");
	json_string(j, v->pool);
	json_key(j, "device");
	json_string(j, v->device);
	json_key(j, "exact");
	json_bool(j, v->exact);
	json_key(j, "abnormal");
	json_bool(j, v->abnormal);
	json_key(j, "seconds");
	json_double(j, v->seconds);
	json_op(j, &v->all, v->seconds);
	for (unsigned i = 0; i < RATES_OPS; i++) {
		json_key(j, rates_op_names[i]);
		json_open(j, '{');
		json_op(j, &v->op[i], v->seconds);
		json_close(j, '}');
	}
	json_close(j, '}');
}

/* Volumes that were attached within the interval come with the next. */
static int print_json(const struct top *top)
{
	const struct rates_volume **all = rates_sort(&top->rates, top->key, top->reverse);
	struct json j = {.out = stdout};
	char now[WHEN_BYTES];
	if (all == NULL && top->rates.count > 0)
		return -ENOMEM;
	when_print(when_now_ns(), now);
	json_open(&j, '{');
	json_key(&j, "time");
	json_string(&j, now);
	json_key(&j, "node_id");
	json_string(&j, top->node);
	json_key(&j, "volumes");
	json_open(&j, '[');
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
	[RATES_BY_IOPS] = 1,
	[RATES_BY_READ] = 2,
	[RATES_BY_WRITE] = 3,
	[RATES_BY_BYTES] = 5,
	[RATES_BY_P50] = 6,
	[RATES_BY_P99] = 7,
	[RATES_BY_IN_FLIGHT] = 8,
	[RATES_BY_ERRORS] = 9,
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

/* rows: at most so many, from the scrolled one on; 0: all. */
static int print_table(
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

static int print_lines(const struct top *top, const struct text_stream *stream)
{
	struct buf out = {0};
	char now[WHEN_BYTES];
	when_print(when_now_ns(), now);
	int r = print_table(top, stream, 0, &out);
	if (r == 0)
		printf("%s%.19sZ  %zu attached\n%.*s", top->answers > 2 ? "\n" : "", now,
			top->rates.count, (int)out.len, (char *)out.data);
	buf_free(&out);
	return r;
}

static void sleep_ms(uint64_t ms)
{
	struct timespec left = {
		.tv_sec = (time_t)(ms / 1000),
		.tv_nsec = (long)(ms % 1000) * 1000000,
	};
	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

static int fail(const struct err *err)
{
	fprintf(stderr, "ringvol top: %s\n", err->message);
	return 1;
}

static int run_lines(struct top *top)
{
	struct text_stream stream;
	text_stream_of(STDOUT_FILENO, &stream);
	bool told = false;
	if (ask(top) < 0)
		return fail(&top->err);
	for (;;) {
		sleep_ms(top->interval_ms);
		int r = ask(top);
		if (r < 0 && top->once)
			return fail(&top->err);
		if (r < 0) {
			if (!told)
				fprintf(stderr, "ringvol top: %s; asking again\n",
					top->err.message);
			told = true;
			continue;
		}
		told = false;
		r = top->json ? print_json(top) : print_lines(top, &stream);
		if (r < 0)
			return fail(&(struct err){.message = "out of memory"});
		if (fflush(stdout) != 0 || ferror(stdout))
			return 1; /* nobody reads it any more */
		if (top->once)
			return 0;
	}
}

/* ---- the screen ---- */

static int add_line(
	const struct text_stream *stream, struct buf *out, const char *colour, const char *text)
{
	struct arena *arena = arena_new(0);
	const char *clean = arena != NULL ? text_clean(arena, text) : NULL;
	size_t len = clean != NULL ? text_fit(clean, stream->columns) : 0;
	int r = clean == NULL ? -ENOMEM
			      : buf_printf(out, "%s%.*s%s\n", stream->colour ? colour : "",
					(int)len, clean, stream->colour ? "\033[0m" : "");
	arena_unref(arena);
	return r;
}

static int draw_head(struct top *top, const struct text_stream *stream, struct buf *out)
{
	uint64_t ops = 0, read = 0, written = 0, errors = 0;
	char text[512], iops[TEXT_NUMBER_BYTES], reads[TEXT_NUMBER_BYTES],
		writes[TEXT_NUMBER_BYTES], up[TEXT_NUMBER_BYTES];
	double seconds = 1;
	for (size_t i = 0; i < top->rates.count; i++) {
		const struct rates_volume *v = &top->rates.at[i];
		ops += v->all.ops;
		read += v->op[0].bytes;
		written += v->op[1].bytes;
		errors += v->all.errors_total;
		if (v->seconds > 0)
			seconds = v->seconds;
	}
	text_count((double)ops / seconds, iops);
	text_size((uint64_t)((double)read / seconds), reads);
	text_size((uint64_t)((double)written / seconds), writes);
	text_age((uint64_t)top->uptime_seconds, up);
	snprintf(text, sizeof(text),
		"ringvol top  %s  up %s  %zu attached  %s IOPS  %s read  %s written  %" PRIu64
		" error%s",
		top->node, up, top->rates.count, iops, reads, writes, errors,
		errors == 1 ? "" : "s");
	int r = add_line(stream, out, "\033[1m", text);
	if (r == 0 && top->err.code != ERR_OK) {
		snprintf(text, sizeof(text), "%s; asking again", top->err.message);
		r = add_line(stream, out, "\033[31m", text);
	} else if (r == 0 && !top->exact) {
		snprintf(text, sizeof(text), "latency and errors are not known: %s",
			top->probes_why[0] != '\0' ? top->probes_why : "probes are being loaded");
		r = add_line(stream, out, "\033[33m", text);
	}
	return r;
}

static unsigned count_lines(const struct buf *text)
{
	unsigned lines = 0;
	for (size_t i = 0; i < text->len; i++)
		lines += text->data[i] == '\n';
	return lines;
}

static int draw(struct top *top)
{
	struct text_stream stream;
	struct buf out = {0};
	text_stream_of(STDOUT_FILENO, &stream);
	int r = draw_head(top, &stream, &out);
	unsigned head = count_lines(&out) + 1; /* the table's titles */
	bool foot = stream.lines > head + 2;
	unsigned room = stream.lines > head + foot ? stream.lines - head - foot : 1;
	if (top->scrolled + room > top->rates.count)
		top->scrolled = top->rates.count > room ? top->rates.count - room : 0;
	if (r == 0)
		r = print_table(top, &stream, room, &out);
	while (r == 0 && foot && count_lines(&out) + 1 < stream.lines)
		r = buf_append(&out, "\n", 1);
	if (r == 0 && foot)
		r = add_line(&stream, &out, "\033[2m",
			"q quit   < > sort by   r reverse   arrows scroll");
	if (r == 0)
		r = screen_draw(&out, stream.lines);
	buf_free(&out);
	return r;
}

static void on_key(struct top *top, int key)
{
	switch (key) {
	case 'q':
	case 'Q':
		top->quit = true;
		return;
	case '>':
	case SCREEN_RIGHT:
		top->key = (enum rates_key)((top->key + 1) % RATES_KEYS);
		return;
	case '<':
	case SCREEN_LEFT:
		top->key = (enum rates_key)((top->key + RATES_KEYS - 1) % RATES_KEYS);
		return;
	case 'r':
		top->reverse = !top->reverse;
		return;
	case SCREEN_DOWN:
	case 'j':
		top->scrolled++;
		return;
	case SCREEN_UP:
	case 'k':
		top->scrolled -= top->scrolled > 0;
		return;
	case SCREEN_PAGE_DOWN:
	case ' ':
		top->scrolled += SCROLL_PAGE;
		return;
	case SCREEN_PAGE_UP:
		top->scrolled -= top->scrolled < SCROLL_PAGE ? top->scrolled : SCROLL_PAGE;
		return;
	case SCREEN_HOME:
		top->scrolled = 0;
		return;
	}
}

static int run_screen(struct top *top)
{
	if (ask(top) < 0)
		return fail(&top->err); /* the words stay when the screen would go */
	int r = screen_open();
	uint64_t wait_ms = top->interval_ms < FIRST_MS ? top->interval_ms : FIRST_MS;
	while (r == 0 && !top->quit) {
		uint64_t due_ns = when_monotonic_ns() + wait_ms * 1000000;
		r = draw(top);
		while (r == 0 && !top->quit) {
			uint64_t now_ns = when_monotonic_ns();
			int key = now_ns >= due_ns
					  ? SCREEN_NONE
					  : screen_key((due_ns - now_ns + 999999) / 1000000);
			if (key == SCREEN_NONE)
				break;
			on_key(top, key);
			r = draw(top);
		}
		if (!top->quit)
			(void)ask(top); /* what went wrong is on the screen */
		wait_ms = top->interval_ms;
	}
	screen_close();
	if (r < 0)
		return fail(&(struct err){.message = "out of memory"});
	return 0;
}

int tools_top_main(int argc, char *const *argv)
{
	struct top top = {.arena = arena_new(0)};
	struct options_result result = {0};
	struct err err = {0};
	int status;
	if (top.arena == NULL) {
		fprintf(stderr, "ringvol top: out of memory\n");
		return 1;
	}
	if (options_parse(&top_command, argc, argv, &top, &result, &err) < 0) {
		fprintf(stderr, "ringvol top: %s\n", err.message);
		status = 2;
	} else if (result.help) {
		options_print_help(&top_command, stdout);
		status = 0;
	} else if (top.json || top.once || isatty(STDOUT_FILENO) != 1) {
		status = run_lines(&top);
	} else {
		status = run_screen(&top);
	}
	grpc_client_close(top.client);
	rates_free(&top.rates);
	arena_unref(top.arena);
	return status;
}
