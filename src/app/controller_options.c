/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `ringvol controller`: the table at the end, and setters for what no kind of value
 * fits. */
#include "app/controller_options.h"

#include "app/values.h"
#include "csi/csi.h"

#include <string.h>

static int keep(struct controller_options *o, const char *value, const char **ret, struct err *err)
{
	const char *copy = arena_strdup(o->arena, value);
	if (copy == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	*ret = copy;
	return 0;
}

static int check_unix(const char *value, struct err *err)
{
	if (strncmp(value, "unix:", 5) != 0)
		return err_set(err, ERR_INVALID, "not unix:///PATH");
	return value_endpoint(value, err);
}

static int set_endpoint(void *target, const char *value, struct err *err)
{
	struct controller_options *o = target;
	int r = check_unix(value, err);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < o->endpoint_count; i++)
		if (strcmp(o->endpoints[i], value) == 0)
			return err_set(err, ERR_INVALID, "given twice");
	if (o->endpoint_count == CONTROLLER_ENDPOINTS_MAX)
		return err_set(
			err, ERR_INVALID, "more than %d endpoints", CONTROLLER_ENDPOINTS_MAX);
	r = keep(o, value, &o->endpoints[o->endpoint_count], err);
	o->endpoint_count += r == 0;
	return r;
}

static int set_node(void *target, const char *value, struct err *err)
{
	struct controller_options *o = target;
	int r = check_unix(value, err);
	return r < 0 ? r : keep(o, value, &o->node, err);
}

static int set_listen(void *target, const char *value, struct err *err)
{
	struct controller_options *o = target;
	int r = value_address(value, "as 10.0.0.1:9809, 0.0.0.0:9809 or [::]:9809", err);
	return r < 0 ? r : keep(o, value, &o->listen, err);
}

static int set_http(void *target, const char *value, struct err *err)
{
	struct controller_options *o = target;
	if (strcmp(value, "off") == 0) {
		o->http = NULL;
		return 0;
	}
	int r = value_address(value, "as 127.0.0.1:9808, 0.0.0.0:9808 or [::]:9808; or off", err);
	return r < 0 ? r : keep(o, value, &o->http, err);
}

static int set_forget(void *target, const char *value, struct err *err)
{
	struct controller_options *o = target;
	enum { DIGITS = 8 };
	if (strlen(value) != DIGITS || value[strspn(value, "0123456789abcdef")] != '\0')
		return err_set(err, ERR_INVALID,
			"not the first %d digits of a pool's uuid, as its volumes' ids begin",
			DIGITS);
	for (unsigned i = 0; i < o->forget_count; i++)
		if (strcmp(o->forget[i], value) == 0)
			return 0;
	if (o->forget_count == CONTROLLER_FORGET_MAX)
		return err_set(err, ERR_INVALID, "more than %d pools", CONTROLLER_FORGET_MAX);
	int r = keep(o, value, &o->forget[o->forget_count], err);
	o->forget_count += r == 0;
	return r;
}

static int set_driver_name(void *target, const char *value, struct err *err)
{
	struct controller_options *o = target;
	int r = value_driver_name(value, err);
	return r < 0 ? r : keep(o, value, &o->driver_name, err);
}

static const struct option_row rows[] = {
	{"--endpoint", "unix:///PATH", {"CSI_ENDPOINT"},
		.fallback = "unix:///run/ringvol/controller.sock",
		.help = "where CSI is served, for the sidecars; repeatable", .set = set_endpoint},
	{"--listen", "ADDR:PORT", {"RINGVOL_LISTEN"}, .fallback_help = "needed",
		.help = "where nodes join, with certificates", .set = set_listen},
	TLS_OPTION_ROWS(struct controller_options, tls),
	{"--node", "unix:///PATH", {"RINGVOL_NODE"}, .fallback_help = "a cluster",
		.help = "no cluster: the endpoint of the one 'ringvol serve' that all calls of the\n"
			"controller service are passed to; without --listen and certificates",
		.set = set_node},
	{"--http", "ADDR:PORT|off", {"RINGVOL_HTTP"}, .fallback = "127.0.0.1:9808",
		.help = "where /healthz, /readyz and /metrics are served; an address in use is "
			"waited for",
		.set = set_http},
	{"--forget-pool", "UUID8", {"RINGVOL_FORGET_POOLS"}, .separator = ',',
		.fallback_help = "none",
		.help = "a pool that is gone for good, by the first 8 digits of its uuid; "
			"repeatable\n"
			"Its volumes and snapshots count as deleted; a node that brings it ends this",
		.set = set_forget},
	{"--driver-name", "NAME", {"RINGVOL_DRIVER_NAME"}, .fallback = "csi.ringvol.dev",
		.help = "the name storage classes call it by, the same on every node",
		.set = set_driver_name},
	{"--controller-expand", "on|node", {"RINGVOL_CONTROLLER_EXPAND"}, .fallback = "on",
		.help = "who grows a volume: the controller service, or NodeExpandVolume alone",
		.kind = OPTION_CHOICE, OPTION_IN(struct controller_options, controller_expand),
		.numbers = {true, false}},
	{"--attach", NULL, {"RINGVOL_ATTACH"}, .fallback_help = "off",
		.help = "serve ControllerPublishVolume and ControllerUnpublishVolume: for nodes "
			"whose\n"
			"drivers have --attach",
		.kind = OPTION_FLAG, OPTION_IN(struct controller_options, attach)},
	{"--csi-version", "both|1.12|1.13", {"RINGVOL_CSI_VERSION"}, .fallback = "both",
		.help = "whose health capabilities are advertised; the calls of both are served",
		.kind = OPTION_CHOICE, OPTION_IN(struct controller_options, health),
		.numbers = {CSI_HEALTH_1_12 | CSI_HEALTH_1_13, CSI_HEALTH_1_12, CSI_HEALTH_1_13}},
	{"--log-level", "error|warn|info|debug", {"RINGVOL_LOG_LEVEL"}, .fallback = "info",
		.help = "what is logged, on standard error", .kind = OPTION_CHOICE,
		OPTION_IN(struct controller_options, log_level)},
	{"--log-format", "logfmt|json", {"RINGVOL_LOG_FORMAT"}, .fallback = "logfmt",
		.help = "how a line looks", .kind = OPTION_CHOICE,
		OPTION_IN(struct controller_options, log_format)},
	{NULL},
};

const struct command controller_command = {
	.name = "controller",
	.summary =
		"Serves CSI's controller service for all nodes of a cluster until SIGTERM, "
		"which lets\n"
		"running calls end (10 seconds at most; a second SIGTERM ends at once). It keeps "
		"nothing:\n"
		"what it knows, nodes that join tell it. It needs no privileges. A flag overrides "
		"its\n"
		"environment variable.",
	.options = rows,
};

static int check(const struct controller_options *o, struct err *err)
{
	if (o->node == NULL && o->listen == NULL)
		return err_set(err, ERR_INVALID,
			"--listen is needed, where nodes join; or --node, for one node without a cluster");
	if (o->node == NULL)
		return tls_options_check(&o->tls, "--listen", err);
	if (o->listen != NULL || o->tls.cert != NULL || o->tls.key != NULL || o->tls.ca != NULL ||
		o->forget_count != 0)
		return err_set(err, ERR_INVALID,
			"--node is for one node without a cluster: --listen, --tls-cert, --tls-key, "
			"--tls-ca and --forget-pool do not go with it");
	for (unsigned i = 0; i < o->endpoint_count; i++)
		if (strcmp(o->endpoints[i], o->node) == 0)
			return err_set(err, ERR_INVALID,
				"--node %s is our own --endpoint: calls would go in a circle",
				o->node);
	return 0;
}

int controller_options_parse(struct controller_options *ret, struct options_result *ret_result,
	int argc, char *const *argv, struct err *err)
{
	ret->arena = arena_new(0);
	if (ret->arena == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	int r = options_parse(&controller_command, argc, argv, ret, ret_result, err);
	return r < 0 || ret_result->help ? r : check(ret, err);
}

void controller_options_free(struct controller_options *options)
{
	arena_unref(options->arena);
	options->arena = NULL;
}
