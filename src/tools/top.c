/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol top`: what attached volumes do, every interval.
 *
 * Happy path: ask the driver for attached volumes with their histograms, wait, ask again, show the
 * difference: on a terminal as a screen with keys, else as lines, or as one JSON object a line.
 * How it can fail: the driver does not answer at first (1); later the screen says so and lines tell
 * standard error, once, and it goes on asking: a driver is restarted now and then.
 */
#include "tools/top.h"

#include "base/when.h"
#include "tools/tools.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	INTERVAL_MIN_MS = 100,
	INTERVAL_MAX_MS = 3600 * 1000,
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
	{"--interval", "SECONDS", .fallback = "1", .help = "from 0.1 to 3600", .set = set_interval},
	TOOL_ENDPOINT_ROW,
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
		return tool_fail(&top_command, top->err.message);
	for (;;) {
		sleep_ms(top->interval_ms);
		int r = top_ask(top);
		if (r < 0 && top->once)
			return tool_fail(&top_command, top->err.message);
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
			return tool_fail(&top_command, "out of memory");
		if (fflush(stdout) != 0 || ferror(stdout))
			return 1; /* nobody reads it any more */
		if (top->once)
			return 0;
	}
}

static int run(struct tool_args *args)
{
	struct top *top = container_of(args, struct top, args);
	bool screen = !args->json && !top->once && isatty(STDOUT_FILENO) == 1;
	int status = screen ? top_screen(top) : run_lines(top);
	grpc_client_close(top->client);
	rates_free(&top->rates);
	return status;
}

int tools_top_main(int argc, char *const *argv)
{
	struct top top = {.command = &top_command};
	return tool_main(&top_command, argc, argv, &top.args, run);
}
