/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin: a server of its own on docker's socket, and a route for each of its requests.
 *
 * The happy path: a request is read -> it is answered from memory (Get, List, Path), or becomes a
 * job (job.h) whose end is the answer.
 * How it can fail: the socket cannot be made, at the start. Later each request fails for itself,
 * with a status of 400 where it is malformed, else 500, and the reason in "Err", as docker expects.
 */
#include "docker/plugin.h"

#include "docker/answer.h"
#include "docker/job.h"
#include "docker/names.h"
#include "pool/index.h"
#include "rpc/http1.h"
#include "rpc/server.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ARENA_MAX_BYTES = 256 << 10 };

struct route_of {
	struct docker *docker;
	enum docker_verb verb;
};

struct docker {
	struct docker_jobs jobs;
	struct server *server;
	struct route_of of[DOCKER_VERBS];
	struct http1_route routes[DOCKER_VERBS + 1];
	char mounts[PATH_MAX];
};

/* A call whose answer is a job's end. */
struct waiter {
	struct http1_call *call; /* NULL: docker has hung up */
};

/* ---- answers ---- */

/* Takes the text. */
static void answer(struct http1_call *call, unsigned status, char *text)
{
	if (text == NULL)
		http1_reply(call, 503, "out of memory");
	else
		http1_reply_data(call, status, "application/json", text, strlen(text));
	free(text);
}

static void refuse(struct http1_call *call, unsigned status, const struct err *err)
{
	answer(call, status, docker_answer_error(err->message));
}

static void answer_volume(struct docker *d, struct http1_call *call,
	const struct docker_request *req, struct arena *arena)
{
	const struct pool_object *volume = docker_find(d->jobs.csi->pools, arena, req->name);
	struct err err = {0};
	if (volume == NULL)
		err_set(&err, ERR_NOT_FOUND, "there is no volume %s", req->name);
	else if (docker_name_of(volume) == NULL)
		err_set(&err, ERR_DATA_LOSS, "volume %s is quarantined in pool %s: %s", req->name,
			pool_name(volume->pool), volume->why);
	if (err.code != ERR_OK) {
		refuse(call, 500, &err);
		return;
	}
	const char *at = docker_mounted_at(volume, d->mounts, req->name);
	answer(call, 200,
		req->verb == DOCKER_GET ? docker_answer_volume(volume, d->mounts)
					: docker_answer_mountpoint(at != NULL ? at : ""));
}

/* ---- jobs ---- */

static void on_job_end(struct docker_job *job, void *arg)
{
	struct waiter *waiter = arg;
	struct http1_call *call = waiter->call;
	free(waiter);
	if (call == NULL)
		return;
	if (op_failed(&job->op))
		refuse(call, job->op.err.code == ERR_INVALID ? 400 : 500, &job->op.err);
	else if (job->request.verb == DOCKER_MOUNT)
		answer(call, 200, docker_answer_mountpoint(job->mount_path));
	else
		answer(call, 200, docker_answer_error(""));
}

static void on_hung_up(void *arg)
{
	((struct waiter *)arg)->call = NULL;
}

static void run_job(struct docker *d, struct http1_call *call, const struct docker_request *req,
	struct arena *arena)
{
	struct err err = {0};
	struct docker_job *job;
	struct waiter *waiter = malloc(sizeof(*waiter));
	int r = waiter == NULL ? -ENOMEM : 0;
	if (r == 0) {
		waiter->call = call;
		r = docker_job_new(&job, &d->jobs, arena, req, on_job_end, waiter);
	}
	if (r < 0) {
		free(waiter);
		err_set(&err, ERR_NO_ROOM,
			r == -EBUSY ? "too many requests are under way" : "out of memory");
		refuse(call, 500, &err);
		return;
	}
	http1_later(call, on_hung_up, waiter);
}

/* ---- requests ---- */

static void on_request(struct http1_call *call, void *arg)
{
	const struct route_of *of = arg;
	struct docker *d = of->docker;
	struct docker_request req;
	struct err err = {0};
	size_t len;
	const uint8_t *body = http1_body(call, &len);
	struct arena *arena = arena_new(ARENA_MAX_BYTES);
	if (arena == NULL) {
		http1_reply(call, 503, "out of memory");
		return;
	}
	if (docker_request_parse(of->verb, body, len, arena, &req, &err) < 0) {
		refuse(call, 400, &err);
		arena_unref(arena);
		return;
	}
	switch (of->verb) {
	case DOCKER_ACTIVATE:
		answer(call, 200, docker_answer_activate());
		break;
	case DOCKER_CAPABILITIES:
		answer(call, 200, docker_answer_capabilities());
		break;
	case DOCKER_LIST:
		answer(call, 200, docker_answer_list(d->jobs.csi->pools, d->mounts));
		break;
	case DOCKER_GET:
	case DOCKER_PATH:
		answer_volume(d, call, &req, arena);
		break;
	default:
		run_job(d, call, &req, arena);
	}
	arena_unref(arena);
}

/* ---- life ---- */

/* The path as the kernel names it, which is how mounts of earlier runs are known. */
static int make_mounts(struct docker *d, const char *path, struct err *err)
{
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return err_sys(
			err, -errno, "cannot make the directory of docker's volumes, %s", path);
	if (realpath(path, d->mounts) == NULL)
		return err_sys(err, -errno, "cannot tell where %s is", path);
	return 0;
}

static int serve_on_socket(struct docker *d, const struct docker_config *config, struct err *err)
{
	char endpoint[PATH_MAX];
	struct server_config server = {.ring = config->csi->reactor->ring,
		.registry = config->registry,
		.http_routes = d->routes,
		.http_limits = server_http_limits_default};
	int r = server_open(&d->server, &server);
	if (r < 0)
		return err_sys(err, r, "the server for docker cannot be opened");
	snprintf(endpoint, sizeof(endpoint), "unix://%s", config->socket);
	return server_listen_http_unix(d->server, endpoint, err);
}

int docker_open(struct docker **ret, const struct docker_config *config, struct err *err)
{
	struct docker *d = calloc(1, sizeof(*d));
	if (d == NULL)
		return err_sys(err, -ENOMEM, "docker cannot be served");
	docker_jobs_init(&d->jobs, config->csi, config->registry, d->mounts);
	for (unsigned i = 0; i < DOCKER_VERBS; i++) {
		d->of[i] = (struct route_of){d, i};
		d->routes[i] = (struct http1_route){
			docker_verb_path(i), on_request, &d->of[i], .body_max = DOCKER_BODY_MAX};
	}
	int r = make_mounts(d, config->mounts, err);
	if (r == 0)
		r = serve_on_socket(d, config, err);
	if (r < 0) {
		docker_close(d);
		return r;
	}
	*ret = d;
	return 0;
}

void docker_drain(
	struct docker *docker, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg)
{
	docker->jobs.draining = true;
	server_drain(docker->server, timeout_ms, on_drained, arg);
}

bool docker_idle(const struct docker *docker)
{
	return docker == NULL || docker->jobs.line.count == 0;
}

void docker_close(struct docker *docker)
{
	if (docker == NULL)
		return;
	server_close(docker->server);
	free(docker);
}
