/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol doctor`: what this node can do, and the remedy for what it cannot.
 *
 * Happy path: each check adds what it found; the findings are printed as a table or as JSON. The
 * exit status is 0 when volumes can be made and mounted here, else 1. It changes nothing: what is
 * tried is tried on unnamed files and on a loop device made for it and removed again.
 */
#include "tools/doctor.h"

#include "base/buf.h"
#include "options.h"
#include "tools/json.h"
#include "tools/text.h"
#include "tools/tools.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	CHECK_COLUMNS = 16,
	VERDICT_COLUMNS = 9,
	NARROW = 60, /* on fewer columns texts begin on a line of their own */
};

void doctor_add(struct doctor *d, const char *check, enum doctor_verdict verdict, bool needed,
	const char *found, const char *remedy)
{
	if (d->count == d->cap) {
		unsigned cap = d->cap == 0 ? 32 : d->cap * 2;
		struct doctor_finding *findings = reallocarray(d->findings, cap, sizeof(*findings));
		if (findings == NULL) {
			d->failed = true;
			return;
		}
		d->findings = findings;
		d->cap = cap;
	}
	struct doctor_finding f = {text_clean(d->arena, check), verdict, needed,
		text_clean(d->arena, found), text_clean(d->arena, remedy)};
	if (f.check == NULL || f.found == NULL || f.remedy == NULL)
		d->failed = true;
	else
		d->findings[d->count++] = f;
}

const char *doctor_text(struct doctor *d, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	va_start(ap, fmt);
	int len = vasprintf(&text, fmt, ap);
	va_end(ap);
	const char *copy = len < 0 ? NULL : arena_strdup(d->arena, text);
	if (len >= 0)
		free(text);
	if (copy == NULL)
		d->failed = true;
	return copy != NULL ? copy : "";
}

/* ---- options ---- */

struct doctor_options {
	struct doctor doctor;
	bool json;
};

static int set_json(void *target, const char *value, struct err *err)
{
	(void)value;
	(void)err;
	((struct doctor_options *)target)->json = true;
	return 0;
}

static int keep(void *target, const char *value, const char **ret, struct err *err)
{
	struct doctor_options *o = target;
	char *copy = arena_strdup(o->doctor.arena, value);
	if (copy == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	*ret = copy;
	return 0;
}

static int set_endpoint(void *target, const char *value, struct err *err)
{
	struct doctor_options *o = target;
	int r = keep(target, value, &o->doctor.endpoint, err);
	if (r == 0)
		((char *)o->doctor.endpoint)[strcspn(value, ",;")] = '\0';
	return r;
}

static int set_kubelet_root(void *target, const char *value, struct err *err)
{
	if (value[0] != '/')
		return err_set(err, ERR_INVALID, "the path must be absolute");
	return keep(target, value, &((struct doctor_options *)target)->doctor.kubelet_root, err);
}

static int set_pool(void *target, const char *value, struct err *err)
{
	return pool_args_add(&((struct doctor_options *)target)->doctor.pools, value, err);
}

static const struct option_row rows[] = {
	{"--json", .help = "for programs", .set = set_json},
	{"--pool", "NAME=PATH", {"RINGVOL_POOLS"}, .separator = ';',
		.fallback = "default=/var/lib/ringvol", .help = POOL_ARGS_HELP, .set = set_pool},
	{"--endpoint", "unix:///PATH", {"CSI_ENDPOINT"}, .fallback = "unix:///run/ringvol/csi.sock",
		.help = "where the driver serves CSI", .set = set_endpoint},
	{"--kubelet-root", "PATH", .fallback = "/var/lib/kubelet",
		.help = "where kubelet keeps its pods", .set = set_kubelet_root},
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
};

static bool can_run(const struct doctor *d)
{
	for (unsigned i = 0; i < d->count; i++)
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
	for (unsigned i = 0; i < d->count; i++) {
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
	};
	bool narrow = stream->columns != 0 && stream->columns < NARROW;
	unsigned indent = narrow ? 2 : CHECK_COLUMNS + 2 + VERDICT_COLUMNS;
	const char *check =
		narrow ? text_shorten(d->arena, f->check,
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
	unsigned limited = 0, missing = 0;
	for (unsigned i = 0; i < d->count; i++) {
		print_finding(d, &d->findings[i], &stream);
		limited += d->findings[i].verdict == DOCTOR_LIMITED;
		missing += d->findings[i].verdict == DOCTOR_MISSING;
	}
	text_print_wrapped(doctor_text((struct doctor *)d, "%s: %u ok, %u limited, %u missing",
				   can_run(d) ? "Volumes can be made and mounted here"
					      : "No volumes can be made and mounted here",
				   d->count - limited - missing, limited, missing),
		0, stream.columns);
}

static void look(struct doctor *d)
{
	doctor_kernel(d);
	doctor_capabilities(d);
	doctor_io_uring(d);
	doctor_loop(d);
	doctor_pools(d);
	doctor_tools(d);
	doctor_file_systems(d);
	doctor_ublk(d);
	doctor_probes(d);
	doctor_limits(d);
	doctor_kubelet(d);
	doctor_driver(d);
}

int tools_doctor_main(int argc, char *const *argv)
{
	struct arena *arena = arena_new(0);
	struct doctor_options o = {.doctor = {.arena = arena, .pools = {.arena = arena}}};
	struct options_result result = {0};
	struct err err = {0};
	int status = 1;
	if (arena == NULL) {
		fprintf(stderr, "ringvol doctor: out of memory\n");
		return 1;
	}
	if (options_parse(&doctor_command, argc, argv, &o, &result, &err) < 0) {
		fprintf(stderr, "ringvol doctor: %s\n", err.message);
		status = 2;
	} else if (result.help) {
		options_print_help(&doctor_command, stdout);
		status = 0;
	} else {
		look(&o.doctor);
		if (o.json)
			print_json(&o.doctor);
		else
			print_table(&o.doctor);
		status = can_run(&o.doctor) && !o.doctor.failed ? 0 : 1;
		if (o.doctor.failed)
			fprintf(stderr, "ringvol doctor: out of memory, something is left out\n");
	}
	free(o.doctor.findings);
	arena_unref(arena);
	return status;
}
