/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol doctor`: what this node can do, and the remedy for what it cannot.
 *
 * Happy path: each check adds what it found; the findings are printed as a table or as JSON. The
 * exit status is 0 when volumes can be made and mounted here, else 1. It changes nothing: what is
 * tried is tried on unnamed files and on a loop device made for it and removed again.
 */
#include "tools/tool.h"

#include "tools/doctor_findings.h"
#include "tools/doctor_table.h"
#include "tools/grpc_client.h"
#include "tools/json.h"
#include "tools/text.h"

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

static int keep(struct doctor *d, const char *value, const char **ret, struct err *err)
{
	*ret = arena_strdup(d->args.arena, value);
	return *ret == NULL ? err_set(err, ERR_NO_ROOM, "out of memory") : 0;
}

static int set_controller(void *target, const char *value, struct err *err)
{
	struct doctor *d = target;
	if (d->n_controllers == DOCTOR_CONTROLLERS_MAX)
		return err_set(
			err, ERR_INVALID, "more than %d controllers", DOCTOR_CONTROLLERS_MAX);
	return keep(d, value, &d->controllers[d->n_controllers++], err);
}

static int set_advertise(void *target, const char *value, struct err *err)
{
	struct doctor *d = target;
	return keep(d, value, &d->advertise, err);
}

static int set_node_id(void *target, const char *value, struct err *err)
{
	struct doctor *d = target;
	return keep(d, value, &d->node_id, err);
}

static const struct option_row rows[] = {
	TOOL_JSON_ROW("for programs"),
	TOOL_POOL_ROW(""),
	TOOL_ENDPOINT_ROW,
	{"--kubelet-root", "PATH", .fallback = "/var/lib/kubelet",
		.help = "where kubelet keeps its pods", .kind = OPTION_PATH,
		OPTION_IN(struct doctor, kubelet_root)},
	{"--tls-cert", "FILE", {"RINGVOL_TLS_CERT"}, .fallback_help = "in no cluster",
		.help = "these as the driver or the controller has them: whether they go together",
		.kind = OPTION_PATH, OPTION_IN(struct doctor, tls.cert)},
	{"--tls-key", "FILE", {"RINGVOL_TLS_KEY"}, .help = "the certificate's key",
		.kind = OPTION_PATH, OPTION_IN(struct doctor, tls.key)},
	{"--tls-ca", "FILE", {"RINGVOL_TLS_CA"}, .help = "whom it trusts", .kind = OPTION_PATH,
		OPTION_IN(struct doctor, tls.ca)},
	{"--controller", "HOST:PORT", {"RINGVOL_CONTROLLERS"}, .separator = ';',
		.help = "a controller to be reached; repeatable", .set = set_controller},
	{"--advertise", "HOST:PORT", {"RINGVOL_ADVERTISE"},
		.help = "the node's own address, to be reached likewise", .set = set_advertise},
	{"--node-id", "ID", {"NODE_ID", "KUBE_NODE_NAME"}, .help = "whose certificate it has to be",
		.set = set_node_id},
	{NULL},
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
	json_open(&j, NULL, '{');
	json_put_bool(&j, "can_run", can_run(d));
	json_open(&j, "checks", '[');
	for (size_t i = 0; i < d->count; i++) {
		const struct doctor_finding *f = &d->findings[i];
		j.by_line = true;
		json_open(&j, NULL, '{');
		j.by_line = false;
		json_put_string(&j, "check", f->check);
		json_put_string(&j, "verdict", verdicts[f->verdict]);
		json_put_bool(&j, "needed", f->needed);
		json_put_string(&j, "found", f->found);
		json_put_string(&j, "remedy", f->remedy);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	doctor_table_json(d, &j);
	json_close(&j, '}');
	fputc('\n', stdout);
}

static void print_finding(
	struct doctor *d, const struct doctor_finding *f, const struct text_stream *stream)
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
		text_print_wrapped(
			tool_text(&d->args, "-> %s", f->remedy), indent, stream->columns);
	}
}

static void print_table(struct doctor *d)
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
	const char *not_seen = unknown == 0 ? "" : tool_text(&d->args, ", %zu unknown", unknown);
	text_print_wrapped(
		tool_text(&d->args, "%s: %zu ok, %zu limited, %zu missing%s",
			can_run(d) ? "Volumes can be made and mounted here"
				   : "No volumes can be made and mounted here",
			d->count - limited - missing - unknown, limited, missing, not_seen),
		0, stream.columns);
	if (doctor_table_print(d, &stream) < 0)
		d->args.failed = true;
}

/* ---- the driver ---- */

static void add_driver(struct doctor *d, const struct inventory *inv)
{
	char up[TEXT_NUMBER_BYTES];
	unsigned unwell = 0;
	for (size_t i = 0; i < inv->pools.count; i++)
		unwell += ((const Ringvol__V1__Pool *)(const void *)inv->pools.at[i])->state !=
			  RINGVOL__V1__POOL__STATE__READY;
	text_age(inv->driver != NULL ? (uint64_t)inv->driver->uptime_seconds : 0, up);
	doctor_add(d, unwell != 0 ? DOCTOR_LIMITED : DOCTOR_OK,
		tool_text(&d->args, "version %s answers, up %s; pools: %zu ready, %u not",
			inv->driver != NULL ? inventory_str(inv->driver->version) : "?", up,
			inv->pools.count - unwell, unwell),
		unwell != 0 ? "ringvol ls says why" : "");
}

static void look_at_driver(struct doctor *d)
{
	Ringvol__V1__ListRequest__Kind kinds[] = {
		RINGVOL__V1__LIST_REQUEST__KIND__DRIVER, RINGVOL__V1__LIST_REQUEST__KIND__POOLS};
	Ringvol__V1__ListRequest request = RINGVOL__V1__LIST_REQUEST__INIT;
	struct grpc_client *client = NULL;
	struct inventory inv = {0};
	struct err err = {0};
	request.kinds = kinds;
	request.n_kinds = 2;
	int r = grpc_client_open(&client, d->args.endpoint, &err);
	if (r == 0)
		r = inventory_ask(&inv, client, &request, &err);
	if (r == 0)
		add_driver(d, &inv);
	else if (client == NULL && err.code == ERR_UNAVAILABLE)
		doctor_add(d, DOCTOR_MISSING, err.message,
			"ringvol serve, or systemctl start ringvol; --endpoint, if it is elsewhere");
	else
		doctor_add(d, DOCTOR_LIMITED, err.message,
			"see its log; --endpoint, if it is another");
	grpc_client_close(client);
	inventory_free(&inv);
}

/* ---- all of it ---- */

static const struct doctor_check driver_checks[] = {
	{"driver", false, look_at_driver},
	{NULL},
};

static const struct doctor_check *const checks[] = {doctor_kernel_checks, doctor_pools_checks,
	doctor_kinds_checks, doctor_remote_checks, doctor_process_checks, doctor_node_checks,
	doctor_cluster_checks, driver_checks};

static int run(struct tool_args *args)
{
	struct doctor *d = container_of(args, struct doctor, args);
	for (unsigned i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		for (const struct doctor_check *check = checks[i]; check->look != NULL; check++) {
			doctor_begin(d, check->name, check->needed);
			check->look(d);
		}
	if (args->json)
		print_json(d);
	else
		print_table(d);
	int status = can_run(d) ? 0 : TOOL_FAILED;
	free(d->findings);
	return status;
}

const struct tool doctor_tool = {
	.command =
		{
			.name = "doctor",
			.summary =
				"Says what this node can do and what to do about the rest; changes nothing. "
				"Status 0:\n"
				"volumes can be made and mounted here; 1: they cannot. Run it as the driver is "
				"run: as\n"
				"root, and in its container where it has one.",
			.options = rows,
		},
	.size = sizeof(struct doctor),
	.run = run,
};
