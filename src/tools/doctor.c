/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol doctor`: what this node can do, and the remedy for what it cannot.
 *
 * Happy path: each check adds what it found; the findings are printed as a table or as JSON. The
 * exit status is 0 when volumes can be made and mounted here, else 1. It changes nothing: what is
 * tried is tried on unnamed files and on a loop device made for it and removed again.
 */
#include "tools/doctor.h"

#include "base/array.h"
#include "tools/json.h"
#include "tools/text.h"
#include "tools/tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	CHECK_COLUMNS = 16,
	VERDICT_COLUMNS = 9,
	NARROW = 60, /* on fewer columns texts begin on a line of their own */
};

/* ---- options ---- */

static const struct option_row rows[] = {
	TOOL_JSON_ROW("for programs"),
	TOOL_POOL_ROW(""),
	TOOL_ENDPOINT_ROW,
	{"--kubelet-root", "PATH", .fallback = "/var/lib/kubelet",
		.help = "where kubelet keeps its pods", .kind = OPTION_PATH,
		OPTION_IN(struct doctor, kubelet_root)},
	{NULL},
};

static const struct command doctor_command = {
	.name = "doctor",
	.summary = "Says what this node can do and what to do about the rest; changes nothing. "
		   "Status 0:\n"
		   "volumes can be made and mounted here; 1: they cannot. Run it as the driver is "
		   "run: as\n"
		   "root, and in its container where it has one.",
	.options = rows,
};

/* ---- printing ---- */

static const char *const verdicts[] = {
	[DOCTOR_OK] = "ok",
	[DOCTOR_LIMITED] = "limited",
	[DOCTOR_MISSING] = "missing",
	[DOCTOR_UNKNOWN] = "unknown",
};

static bool can_run(const struct doctor *d)
{
	for (size_t i = 0; i < d->count; i++)
		if (d->findings[i].needed && d->findings[i].verdict == DOCTOR_MISSING)
			return false;
	return true;
}

static void print_json(const struct doctor *d)
{
	struct json j = {.out = stdout};
	json_open(&j, '{');
	json_key(&j, "can_run");
	json_bool(&j, can_run(d));
	json_key(&j, "checks");
	json_open(&j, '[');
	for (size_t i = 0; i < d->count; i++) {
		const struct doctor_finding *f = &d->findings[i];
		j.by_line = true;
		json_open(&j, '{');
		j.by_line = false;
		json_key(&j, "check");
		json_string(&j, f->check);
		json_key(&j, "verdict");
		json_string(&j, verdicts[f->verdict]);
		json_key(&j, "needed");
		json_bool(&j, f->needed);
		json_key(&j, "found");
		json_string(&j, f->found);
		json_key(&j, "remedy");
		json_string(&j, f->remedy);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_close(&j, '}');
	fputc('\n', stdout);
}

static void print_finding(
	const struct doctor *d, const struct doctor_finding *f, const struct text_stream *stream)
{
	static const char *const colours[] = {
		[DOCTOR_OK] = "\033[32m",
		[DOCTOR_LIMITED] = "\033[33m",
		[DOCTOR_MISSING] = "\033[31m",
		[DOCTOR_UNKNOWN] = "\033[36m",
	};
	bool narrow = stream->columns != 0 && stream->columns < NARROW;
	unsigned indent = narrow ? 2 : CHECK_COLUMNS + 2 + VERDICT_COLUMNS;
	const char *check =
		narrow ? text_shorten(d->args.arena, f->check,
				 stream->columns > 12 ? stream->columns - 9 : 4, stream->utf8)
		       : f->check;
	check = check != NULL ? check : "";
	int gap = CHECK_COLUMNS - (int)text_columns(check);
	printf("%s%*s%s%s%s", check, narrow ? 1 : (gap > 0 ? gap : 0) + 2, "",
		stream->colour ? colours[f->verdict] : "", verdicts[f->verdict],
		stream->colour ? "\033[0m" : "");
	if (narrow)
		printf("\n%*s", (int)indent, "");
	else
		printf("%*s", VERDICT_COLUMNS - (int)strlen(verdicts[f->verdict]), "");
	text_print_wrapped(f->found, indent, stream->columns);
	if (f->remedy[0] != '\0') {
		printf("%*s", (int)indent, "");
		text_print_wrapped(doctor_text((struct doctor *)d, "-> %s", f->remedy), indent,
			stream->columns);
	}
}

static void print_table(const struct doctor *d)
{
	struct text_stream stream;
	text_stream_of(STDOUT_FILENO, &stream);
	size_t limited = 0, missing = 0, unknown = 0;
	for (size_t i = 0; i < d->count; i++) {
		print_finding(d, &d->findings[i], &stream);
		limited += d->findings[i].verdict == DOCTOR_LIMITED;
		missing += d->findings[i].verdict == DOCTOR_MISSING;
		unknown += d->findings[i].verdict == DOCTOR_UNKNOWN;
	}
	const char *not_seen =
		unknown == 0 ? "" : doctor_text((struct doctor *)d, ", %zu unknown", unknown);
	text_print_wrapped(
		doctor_text((struct doctor *)d, "%s: %zu ok, %zu limited, %zu missing%s",
			can_run(d) ? "Volumes can be made and mounted here"
				   : "No volumes can be made and mounted here",
			d->count - limited - missing - unknown, limited, missing, not_seen),
		0, stream.columns);
}

static int run(struct tool_args *args)
{
	struct doctor *d = container_of(args, struct doctor, args);
	doctor_kernel(d);
	doctor_capabilities(d);
	doctor_io_uring(d);
	doctor_loop(d);
	doctor_pools(d);
	doctor_tools(d);
	doctor_file_systems(d);
	doctor_device_mapper(d);
	doctor_ublk(d);
	doctor_probes(d);
	doctor_limits(d);
	doctor_kubelet(d);
	doctor_node(d);
	doctor_driver(d);
	if (args->json)
		print_json(d);
	else
		print_table(d);
	if (d->failed)
		tool_fail(&doctor_command, "out of memory, something is left out");
	int status = can_run(d) && !d->failed ? 0 : TOOL_FAILED;
	free(d->findings);
	return status;
}

int tools_doctor_main(int argc, char *const *argv)
{
	struct doctor d = {0};
	return tool_main(&doctor_command, argc, argv, &d.args, run);
}
