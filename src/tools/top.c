/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol top`: what attached volumes do, every interval.
 *
 * Happy path: ask the driver for attached volumes with their histograms, wait, ask again, show the
 * difference: on a terminal as a screen with keys, else as lines, or as one JSON object a line.
 * How it can fail: the driver does not answer at first (1); later the screen says so and lines tell
 * standard error, once, and it goes on asking: a driver is restarted now and then. Want of memory
 * ends a screen, with the terminal as it was.
 */
#include "tools/top_view.h"

#include "base/clock.h"
#include "tools/screen.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	INTERVAL_MIN_MS = 100,
	INTERVAL_MAX_MS = 3600 * 1000,
	FIRST_MS = 500, /* a screen does not stay empty for a long interval */
	SCROLL_PAGE = 10,
	MISSING_LINES = 3, /* nodes of a cluster that do not answer, on the screen */
};

/* ---- options ---- */

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

static const struct option_row rows[] = {
	TOOL_JSON_ROW("one object a line for each interval"),
	{"--once", .help = "one interval, then the end", .kind = OPTION_FLAG,
		OPTION_IN(struct top, once)},
	{"--sort", "KEY", .fallback = "iops",
		.help = "name, iops, read, write, bytes, p50, p99, inflight or errors",
		.kind = OPTION_CHOICE, OPTION_IN(struct top, key),
		.choices = "name|iops|read|write|bytes|p50|p99|inflight|errors"},
	TOOL_CLUSTER_ROW("the volumes of all nodes, asked of a controller"),
	{"--interval", "SECONDS", .fallback = "1", .help = "from 0.1 to 3600", .set = set_interval},
	TOOL_ENDPOINT_CLUSTER_ROW,
	{NULL},
};

/* ---- lines ---- */

static void sleep_ms(uint64_t ms)
{
	struct timespec left = {
		.tv_sec = (time_t)(ms / 1000),
		.tv_nsec = (long)(ms % 1000) * 1000000,
	};
	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

static int run_lines(struct top *top)
{
	struct text_stream stream;
	text_stream_of(STDOUT_FILENO, &stream);
	bool told = false;
	if (top_ask(top) < 0)
		return tool_fail(&top->args, top->err.message);
	for (;;) {
		sleep_ms(top->interval_ms);
		int r = top_ask(top);
		if (r < 0 && top->once)
			return tool_fail(&top->args, top->err.message);
		if (r < 0) {
			if (!told)
				fprintf(stderr, "ringvol top: %s; asking again\n",
					top->err.message);
			told = true;
			continue;
		}
		told = false;
		r = top->args.json ? top_print_json(top) : top_print_lines(top, &stream);
		if (r < 0)
			return tool_fail(&top->args, "out of memory");
		if (fflush(stdout) != 0 || ferror(stdout))
			return 1; /* nobody reads it any more */
		if (top->once)
			return 0;
	}
}

/* ---- a screen: a head, the table, a foot with the keys, drawn anew after each key ---- */

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
		"ringvol top  %s%s%s  %zu attached  %s IOPS  %s read  %s written  %" PRIu64
		" error%s",
		top->node, top->args.cluster ? "" : "  up ", top->args.cluster ? "" : up,
		top->rates.count, iops, reads, writes, errors, errors == 1 ? "" : "s");
	int r = add_line(stream, out, "\033[1m", text);
	if (r == 0 && top->err.code != ERR_OK) {
		snprintf(text, sizeof(text), "%s; asking again", top->err.message);
		r = add_line(stream, out, "\033[31m", text);
	} else if (r == 0 && !top->exact && !top->args.cluster) {
		snprintf(text, sizeof(text), "latency and errors are not known: %s",
			top->probes_why[0] != '\0' ? top->probes_why : "probes are being loaded");
		r = add_line(stream, out, "\033[33m", text);
	}
	for (size_t i = 0; r == 0 && i < top->n_missing; i++) {
		if (i == MISSING_LINES) {
			snprintf(text, sizeof(text), "and %zu more nodes", top->n_missing - i);
			return add_line(stream, out, "\033[31m", text);
		}
		snprintf(text, sizeof(text), "node %.200s: %.250s", top->missing[i].id,
			top->missing[i].why);
		r = add_line(stream, out, "\033[31m", text);
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
		r = top_print_table(top, &stream, room, &out);
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

/* Until 'q'; the exit status. */
static int run_screen(struct top *top)
{
	if (top_ask(top) < 0)
		return tool_fail(
			&top->args, top->err.message); /* the words stay when the screen would go */
	int r = screen_open();
	uint64_t wait_ms = top->interval_ms < FIRST_MS ? top->interval_ms : FIRST_MS;
	while (r == 0 && !top->quit) {
		uint64_t due_ns = clock_monotonic_ns() + wait_ms * 1000000;
		r = draw(top);
		while (r == 0 && !top->quit) {
			uint64_t now_ns = clock_monotonic_ns();
			int key = now_ns >= due_ns
					  ? SCREEN_NONE
					  : screen_key((due_ns - now_ns + 999999) / 1000000);
			if (key == SCREEN_NONE)
				break;
			on_key(top, key);
			r = draw(top);
		}
		if (!top->quit)
			(void)top_ask(top); /* what went wrong is on the screen */
		wait_ms = top->interval_ms;
	}
	screen_close();
	if (r < 0)
		return tool_fail(&top->args, "out of memory");
	return 0;
}

static int run(struct tool_args *args)
{
	struct top *top = container_of(args, struct top, args);
	bool screen = !args->json && !top->once && isatty(STDOUT_FILENO) == 1;
	int status = screen ? run_screen(top) : run_lines(top);
	grpc_client_close(top->client);
	rates_free(&top->rates);
	free(top->missing);
	return status;
}

const struct tool top_tool = {
	.command =
		{
			.name = "top",
			.summary =
				"Shows what attached volumes do: operations, bandwidth, latency, errors. A screen "
				"on a\n"
				"terminal (q ends it), lines in a pipe. NO_COLOR is respected.",
			.options = rows,
		},
	.size = sizeof(struct top),
	.run = run,
};
