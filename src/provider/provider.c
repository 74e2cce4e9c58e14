/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The provider: a server of its own on its socket, and a row for each method.
 *
 * The happy path: a call is read -> it is answered from memory, or becomes a job (job.h) whose end
 * is the answer. Every few seconds what nobody uses any more is let go.
 * How it can fail: the socket cannot be made, at the start. Later each call fails for itself, with
 * an error of the interface, or with io.systemd.System, the errno and a sentence.
 */
#include "provider/provider.h"

#include "provider/interface.h"
#include "provider/job.h"
#include "provider/list.h"
#include "provider/varlink.h"
#include "rpc/server.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	ARENA_MAX_BYTES = 256 << 10,
	SWEEP_MAX_S = 10, /* between two looks for what nobody uses */
};

struct provider {
	struct provider_jobs jobs;
	struct server *server;
	struct ring_timer sweep;
	char mounts[PATH_MAX];
};

/* A call whose answer is a job's end. */
struct waiter {
	struct varlink_call *call; /* NULL: its client has gone */
};

/* ---- errors ---- */

static void answer_parameter(struct varlink_call *call, const char *name)
{
	varlink_error(
		call, VARLINK_INTERFACE ".InvalidParameter", json_pack("{s:s}", "parameter", name));
}

/* Messages of the kernel's or of tools may be no UTF-8. */
static void answer_failure(struct varlink_call *call, const struct err *err)
{
	struct err nearest = {0};
	int number = err->errnum != 0 ? err->errnum : -err_set(&nearest, err->code, "%s", "");
	const char *name = strerrorname_np(number);
	json_t *why = json_pack("{s:s,s:i,s:s,s:s}", "origin", "linux", "errno", number,
		"errnoName", name != NULL ? name : "EIO", "message", err->message);
	if (why == NULL)
		why = json_pack("{s:s,s:i}", "origin", "linux", "errno", number);
	varlink_error(call, "io.systemd.System", why);
}

/* ---- Acquire ---- */

static json_t *acquired(const struct provider_job *job)
{
	json_t *answer = json_pack("{s:i,s:s,s:b}", "fileDescriptorIndex", 0, "type",
		provider_type_name(job->block ? PROVIDER_BLK : PROVIDER_DIR), "readOnly",
		job->read_only);
	/* Users of the volume are those that it has, of no range of their own. */
	if (answer != NULL && !job->block &&
		(json_object_set_new(answer, "baseUID", json_integer(0)) < 0 ||
			json_object_set_new(answer, "baseGID", json_integer(0)) < 0)) {
		json_decref(answer);
		return NULL;
	}
	return answer;
}

static void on_job_end(struct provider_job *job, void *arg)
{
	struct waiter *waiter = arg;
	struct varlink_call *call = waiter->call;
	free(waiter);
	if (call == NULL)
		return;
	if (op_failed(&job->op) && job->error != NULL) {
		varlink_error(call, job->error, json_pack("{s:s}", "message", job->op.err.message));
	} else if (op_failed(&job->op)) {
		answer_failure(call, &job->op.err);
	} else {
		int fd = job->fd;
		job->fd = -1;
		varlink_reply(call, acquired(job), fd);
	}
}

static void on_gone(void *arg)
{
	((struct waiter *)arg)->call = NULL;
}

static void run_acquire(struct provider *p, struct varlink_call *call, struct arena *arena,
	const struct provider_acquire *request)
{
	struct err err = {0};
	struct waiter *waiter = malloc(sizeof(*waiter));
	int r = waiter == NULL ? -ENOMEM : 0;
	if (r == 0) {
		waiter->call = call;
		r = provider_acquire(&p->jobs, arena, request, on_job_end, waiter);
	}
	if (r < 0) {
		free(waiter);
		err_set(&err, ERR_NO_ROOM,
			r == -EBUSY ? "too many calls are under way" : "out of memory");
		answer_failure(call, &err);
		return;
	}
	varlink_later(call, on_gone, waiter);
}

static void on_acquire(
	struct provider *p, struct varlink_call *call, json_t *parameters, struct arena *arena)
{
	struct provider_acquire request;
	const char *wrong = provider_acquire_parse(parameters, arena, &request);
	if (wrong != NULL)
		answer_parameter(call, wrong);
	else
		run_acquire(p, call, arena, &request);
}

/* ---- the other methods ---- */

static void on_list(struct provider *p, struct varlink_call *call, json_t *parameters,
	struct arena *arena,
	void (*list)(
		struct varlink_call *call, const struct provider_jobs *jobs, const char *pattern))
{
	const char *pattern;
	const char *wrong = provider_list_parse(parameters, arena, &pattern);
	if (wrong != NULL)
		answer_parameter(call, wrong);
	else if (!varlink_wants_more(call))
		varlink_error(call, VARLINK_INTERFACE ".ExpectedMore", NULL);
	else
		list(call, &p->jobs, pattern);
}

static void on_volumes(
	struct provider *p, struct varlink_call *call, json_t *parameters, struct arena *arena)
{
	on_list(p, call, parameters, arena, provider_list_volumes);
}

static void on_templates(
	struct provider *p, struct varlink_call *call, json_t *parameters, struct arena *arena)
{
	on_list(p, call, parameters, arena, provider_list_templates);
}

static void on_info(
	struct provider *p, struct varlink_call *call, json_t *parameters, struct arena *arena)
{
	(void)p;
	(void)parameters;
	(void)arena;
	varlink_reply(call, interface_info(), -1);
}

static void on_description(
	struct provider *p, struct varlink_call *call, json_t *parameters, struct arena *arena)
{
	(void)p;
	(void)arena;
	const char *name = json_string_value(json_object_get(parameters, "interface"));
	const char *text = name != NULL ? interface_description(name) : NULL;
	if (name == NULL)
		answer_parameter(call, "interface");
	else if (text == NULL)
		varlink_error(call, VARLINK_INTERFACE ".InterfaceNotFound",
			json_pack("{s:s}", "interface", name));
	else
		varlink_reply(call, json_pack("{s:s}", "description", text), -1);
}

static const struct method {
	const char *name;
	void (*fn)(struct provider *p, struct varlink_call *call, json_t *parameters,
		struct arena *arena);
} methods[] = {
	{PROVIDER_INTERFACE ".Acquire", on_acquire},
	{PROVIDER_INTERFACE ".ListVolumes", on_volumes},
	{PROVIDER_INTERFACE ".ListTemplates", on_templates},
	{VARLINK_INTERFACE ".GetInfo", on_info},
	{VARLINK_INTERFACE ".GetInterfaceDescription", on_description},
	{NULL},
};

/* Of an interface that is not there, or only the method. */
static void answer_unknown(struct varlink_call *call, const char *name)
{
	const char *dot = strrchr(name, '.');
	char interface[128];
	snprintf(interface, sizeof(interface), "%.*s", dot != NULL ? (int)(dot - name) : 0, name);
	if (dot != NULL && interface_description(interface) != NULL)
		varlink_error(call, VARLINK_INTERFACE ".MethodNotFound",
			json_pack("{s:s}", "method", name));
	else
		varlink_error(call, VARLINK_INTERFACE ".InterfaceNotFound",
			json_pack("{s:s}", "interface", interface));
}

static void on_call(struct varlink_call *call, const char *name, json_t *parameters, void *arg)
{
	struct provider *p = arg;
	const struct method *method = methods;
	while (method->name != NULL && strcmp(method->name, name) != 0)
		method++;
	if (method->name == NULL) {
		answer_unknown(call, name);
		return;
	}
	struct arena *arena = arena_new(ARENA_MAX_BYTES);
	if (arena == NULL)
		varlink_reply(call, NULL, -1);
	else
		method->fn(p, call, parameters, arena);
	arena_unref(arena);
}

/* ---- life ---- */

static unsigned sweep_ms(const struct provider *p)
{
	unsigned s = p->jobs.idle_s < SWEEP_MAX_S ? p->jobs.idle_s : SWEEP_MAX_S;
	return s * 1000;
}

static void on_sweep(struct ring_timer *timer)
{
	struct provider *p = container_of(timer, struct provider, sweep);
	provider_release_unused(&p->jobs);
	ring_timer_arm(p->jobs.csi->reactor->ring, timer, sweep_ms(p));
}

static int open_session(
	void *arg, void (*on_wake)(void *wake_arg), void *wake_arg, struct session **ret)
{
	return varlink_session_new(on_call, arg, on_wake, wake_arg, ret);
}

/* The path as the kernel names it, which is how mounts of earlier runs are known. */
static int make_mounts(struct provider *p, const char *path, struct err *err)
{
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return err_sys(err, -errno,
			"cannot make the directory of the provider's volumes, %s", path);
	if (realpath(path, p->mounts) == NULL)
		return err_sys(err, -errno, "cannot tell where %s is", path);
	return 0;
}

static int serve_on_socket(
	struct provider *p, const struct provider_config *config, struct err *err)
{
	char endpoint[PATH_MAX];
	struct server_config server = {.ring = config->csi->reactor->ring,
		.registry = config->registry,
		.http_limits = server_http_limits_default,
		.open_other = open_session,
		.open_other_arg = p};
	int r = server_open(&p->server, &server);
	if (r < 0)
		return err_sys(err, r, "the server for systemd cannot be opened");
	snprintf(endpoint, sizeof(endpoint), "unix://%s", config->socket);
	return server_listen_other_unix(p->server, endpoint, err);
}

int provider_open(struct provider **ret, const struct provider_config *config, struct err *err)
{
	struct provider *p = calloc(1, sizeof(*p));
	if (p == NULL)
		return err_sys(err, -ENOMEM, "systemd cannot be served");
	provider_jobs_init(&p->jobs, config->csi, config->registry, p->mounts, config->idle_s);
	p->sweep.fn = on_sweep;
	int r = make_mounts(p, config->mounts, err);
	if (r == 0)
		r = serve_on_socket(p, config, err);
	if (r < 0) {
		provider_close(p);
		return r;
	}
	ring_timer_arm(config->csi->reactor->ring, &p->sweep, sweep_ms(p));
	*ret = p;
	return 0;
}

void provider_drain(
	struct provider *provider, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg)
{
	provider->jobs.draining = true;
	ring_timer_cancel(provider->jobs.csi->reactor->ring, &provider->sweep);
	server_drain(provider->server, timeout_ms, on_drained, arg);
}

bool provider_idle(const struct provider *provider)
{
	return provider == NULL || provider->jobs.line.count == 0;
}

void provider_close(struct provider *provider)
{
	if (provider == NULL)
		return;
	ring_timer_cancel(provider->jobs.csi->reactor->ring, &provider->sweep);
	server_close(provider->server);
	free(provider);
}
