/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol check`: reads pools and says everything that is wrong, at once; with --repair mends what
 * a start of the driver would.
 *
 * Happy path: each pool is locked (a driver's lock means: only read), read, mended if asked,
 * printed. Status 0: nothing is wrong (notes aside); 4: something was, all of it is mended; 1:
 * something is left, or a pool could not be read; 2: the command line.
 */
#include "tools/tool.h"

#include "tools/check_findings.h"
#include "tools/json.h"
#include "tools/text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	STATUS_CLEAN = 0,
	STATUS_FINDINGS = TOOL_FAILED,
	STATUS_REPAIRED = 4,
};

struct check_options {
	struct tool_args args;
	bool repair;
};

static const struct option_row rows[] = {
	TOOL_POOL_ROW(""),
	{"--repair",
		.help = "mend what a crash left, as the driver's start does; not beside a driver",
		.kind = OPTION_FLAG, OPTION_IN(struct check_options, repair)},
	TOOL_JSON_ROW("for programs"),
	{NULL},
};

/* ---- printing ---- */

static const char *const severities[] = {
	[CHECK_PROBLEM] = "problem",
	[CHECK_LEFTOVER] = "leftover",
	[CHECK_NOTE] = "note",
};

static void json_finding(struct json *j, const struct check_finding *f)
{
	j->by_line = true;
	json_open(j, NULL, '{');
	j->by_line = false;
	json_put_string(j, "severity", severities[f->severity]);
	json_put_string(j, "kind", f->kind);
	json_put_string(j, "path", f->path);
	json_put_string(j, "message", f->message);
	json_put_string(j, "remedy", f->remedy);
	json_put_bool(j, "repairable", f->repair != NULL);
	json_put_bool(j, "repaired", f->repaired);
	json_close(j, '}');
}

static void json_pool(struct json *j, const struct check *c)
{
	json_open(j, NULL, '{');
	json_put_string(j, "name", c->name);
	json_put_string(j, "path", c->survey.path);
	json_put_string(j, "uuid", c->survey.uuid);
	json_put_bool(j, "served", c->survey.served);
	json_put_uint(j, "volumes", c->counts[RECORD_VOLUME]);
	json_put_uint(j, "snapshots", c->counts[RECORD_SNAPSHOT]);
	json_put_uint(j, "departed", c->departed);
	json_open(j, "findings", '[');
	for (size_t i = 0; i < c->count; i++)
		json_finding(j, &c->findings[i]);
	json_close(j, ']');
	json_close(j, '}');
}

/* Clean text in the arena. */
static const char *shown(const struct check *c, const char *text)
{
	const char *clean = text_clean(c->args->arena, text);
	return clean != NULL ? clean : "";
}

static void print_finding(
	const struct check *c, const struct check_finding *f, const struct text_stream *stream)
{
	static const char *const colours[] = {
		[CHECK_PROBLEM] = "\033[31m",
		[CHECK_LEFTOVER] = "\033[33m",
		[CHECK_NOTE] = "\033[2m",
	};
	bool colour = stream->colour;
	printf("  %s%s%s %s%s", colour ? colours[f->severity] : "",
		f->repaired ? "repaired" : severities[f->severity], colour ? "\033[0m" : "",
		f->kind, f->path[0] != '\0' ? " " : "");
	text_print_wrapped(shown(c, f->path), 4, stream->columns);
	fputs("    ", stdout);
	text_print_wrapped(shown(c, f->message), 4, stream->columns);
	if (f->remedy[0] != '\0' && !f->repaired) {
		fputs("    ", stdout);
		text_print_wrapped(
			shown(c, tool_text(c->args, "-> %s", f->remedy)), 4, stream->columns);
	}
}

static void print_pool(const struct check *c, const struct text_stream *stream)
{
	size_t left[3] = {0}, repaired = 0;
	for (size_t i = 0; i < c->count; i++) {
		if (c->findings[i].repaired)
			repaired++;
		else
			left[c->findings[i].severity]++;
	}
	text_print_wrapped(
		shown(c,
			tool_text(c->args, "pool %s at %s, read %s; volumes: %zu, snapshots: %zu%s",
				c->name, c->survey.path,
				c->survey.served ? "beside its driver" : "without a driver",
				c->counts[RECORD_VOLUME], c->counts[RECORD_SNAPSHOT],
				c->departed == 0
					? ""
					: tool_text(c->args, ", moved away: %zu", c->departed))),
		2, stream->columns);
	for (size_t i = 0; i < c->count; i++)
		print_finding(c, &c->findings[i], stream);
	fputs("  ", stdout);
	text_print_wrapped(
		tool_text(c->args, "problems: %zu, leftovers: %zu, repaired: %zu, notes: %zu",
			left[CHECK_PROBLEM], left[CHECK_LEFTOVER], repaired, left[CHECK_NOTE]),
		2, stream->columns);
}

/* ---- running ---- */

static int status_of(const struct check *c)
{
	int status = STATUS_CLEAN;
	for (size_t i = 0; i < c->count; i++) {
		if (c->findings[i].repaired)
			status = status == STATUS_CLEAN ? STATUS_REPAIRED : status;
		else if (c->findings[i].severity != CHECK_NOTE)
			status = STATUS_FINDINGS;
	}
	return c->args->failed ? STATUS_FINDINGS : status;
}

/* The worse of two. */
static int worse(int a, int b)
{
	if (a == STATUS_FINDINGS || b == STATUS_FINDINGS)
		return STATUS_FINDINGS;
	return a == STATUS_REPAIRED || b == STATUS_REPAIRED ? STATUS_REPAIRED : STATUS_CLEAN;
}

static int run_pool(struct check_options *o, const struct inventory_pool *pool,
	const struct text_stream *stream, struct json *j)
{
	struct check c = {.args = &o->args};
	check_pool(&c, pool->name, pool->path, o->repair);
	bool refused = o->repair && c.survey.served;
	if (refused)
		fprintf(stderr,
			"ringvol check: a driver serves pool %s: it is only read; stop the driver "
			"to repair it, or start it again, which does the same\n",
			shown(&c, pool->name));
	else if (o->repair)
		check_repair(&c);
	if (o->args.json)
		json_pool(j, &c);
	else
		print_pool(&c, stream);
	int status = refused ? STATUS_FINDINGS : status_of(&c);
	check_close(&c);
	return status;
}

static int run(struct tool_args *args)
{
	struct check_options *o = container_of(args, struct check_options, args);
	struct text_stream stream;
	struct json j = {.out = stdout};
	int status = STATUS_CLEAN;
	text_stream_of(STDOUT_FILENO, &stream);
	if (args->json) {
		json_open(&j, NULL, '{');
		json_open(&j, "pools", '[');
	}
	for (unsigned i = 0; i < args->pool_count; i++)
		status = worse(status, run_pool(o, &args->pools[i], &stream, &j));
	if (args->json) {
		json_close(&j, ']');
		json_close(&j, '}');
		fputc('\n', stdout);
	}
	return status;
}

const struct tool check_tool = {
	.command =
		{
			.name = "check",
			.summary =
				"Reads pools, beside a driver or without one, and says everything that is wrong.\n"
				"Nothing that holds a tenant's data is ever removed. Exit status: 0 nothing is wrong,\n"
				"1 something is, 4 something was and all of it is repaired, 2 the command line.",
			.options = rows,
		},
	.size = sizeof(struct check_options),
	.run = run,
};
