/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller's life: owns the reactor, the controller and its two servers, and wires them.
 *
 * The happy path: options, log, signals; the ring and work threads (for names and certificates);
 * sockets, READY=1, and turns of the ring until SIGTERM. It serves at once, and says UNAVAILABLE of
 * what nodes have not told yet. The drain: health says not serving, nothing new is begun,
 * connections end; what has not ended after DRAIN_MS, or at a second SIGTERM, is cut off. Nothing
 * can be lost by that: what was begun at a node goes on there.
 *
 * It fails to start for want of io_uring, memory or an address. Nodes and certificates do not
 * matter: they are waited for.
 */
#include "app/controller.h"

#include "app/controller_options.h"
#include "app/serve_address.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/process.h"
#include "controller/controller.h"
#include "controller/ready.h"
#include "descriptor_set.h"
#include "metrics/metrics.h"
#include "reactor/op.h"
#include "reactor/ring_uring.h"
#include "rpc/health.h"
#include "rpc/reflection.h"
#include "rpc/server.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
	DRAIN_MS = 9000,    /* the contract allows 10 s */
	DRAIN_TICK_MS = 10, /* how often a drain looks whether all is idle */
	HEALTH_MS = 250,    /* how often it is looked whether everybody is here */
};

/* A process only moves downwards here. */
enum life { LIFE_STARTING, LIFE_SERVING, LIFE_DRAINING, LIFE_CUT_OFF };

struct app {
	enum life life;
	struct controller_options options;
	uint64_t start_ns; /* CLOCK_MONOTONIC */
	struct reactor reactor;
	struct tls_keys keys;
	struct controller *controller;
	struct grpc_registry *clients, *nodes;
	struct health *health;
	struct reflection *reflection;
	struct metrics *metrics;
	struct endpoints endpoints;
	struct server *server;      /* for clients, and HTTP */
	struct server *node_server; /* NULL with --node */
	struct serve_address http, listen;

	int signal_fd;
	struct ring_req signal_req;
	struct ring_timer timer; /* serving: the next look at health; drain: whether all is idle */
	uint64_t drain_end_ns;
	unsigned undrained; /* servers */
};

static void to_life(struct app *a, enum life life)
{
	assert(life > a->life);
	a->life = life;
}

/* ---- health ---- */

static void on_health_tick(struct ring_timer *timer)
{
	struct app *a = container_of(timer, struct app, timer);
	struct err why = {0};
	health_set(a->health, ready_check(a->controller, &why) == 0);
	ring_timer_arm(a->reactor.ring, timer, HEALTH_MS);
}

/* ---- drain ---- */

static void cut_off(struct app *a, const char *why)
{
	if (a->life == LIFE_CUT_OFF)
		return;
	char calls[16];
	snprintf(calls, sizeof(calls), "%u",
		a->clients != NULL ? grpc_registry_in_flight(a->clients) : 0);
	log_event(LOG_LEVEL_WARN, "stopped before all was idle",
		log_fields({"why", why}, {"calls", calls}));
	to_life(a, LIFE_CUT_OFF);
	ring_stop(a->reactor.ring);
}

static void on_server_drained(void *arg)
{
	((struct app *)arg)->undrained--;
}

static unsigned in_flight(const struct app *a)
{
	return (a->clients != NULL ? grpc_registry_in_flight(a->clients) : 0) +
	       (a->nodes != NULL ? grpc_registry_in_flight(a->nodes) : 0);
}

static void on_drain_tick(struct ring_timer *timer)
{
	struct app *a = container_of(timer, struct app, timer);
	if (a->undrained == 0 && in_flight(a) == 0)
		ring_stop(a->reactor.ring);
	else if (ring_now_ns(a->reactor.ring) >= a->drain_end_ns)
		cut_off(a, "the time for draining is over");
	else
		ring_timer_arm(a->reactor.ring, timer, DRAIN_TICK_MS);
}

static void drain_server(struct app *a, struct server *server)
{
	if (server == NULL)
		return;
	a->undrained++;
	server_drain(server, DRAIN_MS, on_server_drained, a);
}

/* Also during the start, when some of it is not there yet. */
static void drain(struct app *a, const char *why)
{
	to_life(a, LIFE_DRAINING);
	log_event(LOG_LEVEL_INFO, "draining", log_fields({"why", why}));
	(void)process_notify("STOPPING=1");
	a->drain_end_ns = ring_now_ns(a->reactor.ring) + DRAIN_MS * UINT64_C(1000000);
	if (a->health != NULL)
		health_set(a->health, false);
	if (a->controller != NULL)
		controller_drain(a->controller);
	serve_address_stop(&a->http);
	serve_address_stop(&a->listen);
	drain_server(a, a->server);
	drain_server(a, a->node_server);
	a->timer.fn = on_drain_tick;
	ring_timer_arm(a->reactor.ring, &a->timer, 0);
}

static void watch_signals(struct app *a);

static void on_signal(struct ring_req *req, int res, uint32_t flags)
{
	struct app *a = container_of(req, struct app, signal_req);
	struct signalfd_siginfo info;
	(void)res; /* a failed poll finds nothing to read below */
	(void)flags;
	while (read(a->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		if (a->life < LIFE_DRAINING)
			drain(a, info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
		else
			cut_off(a, "a second signal");
	}
	watch_signals(a);
}

static void watch_signals(struct app *a)
{
	a->signal_req.fn = on_signal;
	io_uring_prep_poll_add(&a->signal_req.sqe, a->signal_fd, POLLIN);
	ring_submit(a->reactor.ring, &a->signal_req);
}

/* ---- start ---- */

static int open_reactor(struct app *a, struct err *err)
{
	int r = ring_open(&a->reactor.ring, &(struct ring_config){0});
	if (r < 0)
		return ring_open_why(r, err);
	watch_signals(a);
	r = work_open(&a->reactor.work, a->reactor.ring, WORK_THREADS);
	return r < 0 ? err_sys(err, r, "work threads cannot be started") : 0;
}

static int open_controller(struct app *a, struct err *err)
{
	const struct controller_options *o = &a->options;
	int r = o->node == NULL
			? tls_keys_open(&a->keys, &o->tls, NULL, a->reactor.ring, a->reactor.work)
			: 0;
	if (r < 0)
		return err_sys(err, r, "certificates cannot be watched");
	const struct controller_config config = {
		.driver_name = o->driver_name,
		.version = RINGVOL_VERSION,
		.tls = a->keys.tls,
		.work = a->reactor.work,
		.health = o->health,
		.controller_expand = o->controller_expand,
		.attach = o->attach,
		.node = o->node,
	};
	r = controller_open(&a->controller, a->reactor.ring, &config, err);
	for (unsigned i = 0; r == 0 && i < o->forget_count; i++)
		r = store_forget(a->controller->store, o->forget[i]);
	return r < 0 ? err_sys(err, r, "the controller cannot be opened") : 0;
}

static int open_registries(struct app *a, struct err *err)
{
	a->clients = grpc_registry_new();
	if (a->options.node == NULL)
		a->nodes = grpc_registry_new();
	int r = a->clients == NULL || (a->options.node == NULL && a->nodes == NULL) ? -ENOMEM : 0;
	if (r == 0)
		r = controller_register(a->controller, a->clients, a->nodes);
	if (r < 0)
		return err_sys(err, r, "the services cannot be registered");
	a->health = health_new(a->clients);
	a->reflection = reflection_new(a->clients, proto_descriptor_set, proto_descriptor_set_len);
	if (a->health == NULL || a->reflection == NULL)
		return err_sys(err, -ENOMEM, "the health and reflection services cannot be opened");
	r = metrics_open(&a->metrics, &a->reactor, NULL, a->controller, a->clients);
	if (r < 0)
		return err_sys(err, r, "metrics cannot be kept");
	metrics_tls(a->metrics, a->keys.tls);
	return 0;
}

static int open_server(struct app *a, struct err *err)
{
	const struct server_config config = {
		.ring = a->reactor.ring,
		.registry = a->clients,
		.limits = server_limits_default,
		.http_routes = a->endpoints.routes,
		.http_limits = server_http_limits_default,
	};
	endpoints_init(&a->endpoints, NULL, a->controller, a->metrics);
	int r = server_open(&a->server, &config);
	if (r < 0)
		return err_sys(err, r, "the server cannot be opened");
	for (unsigned i = 0; i < a->options.endpoint_count; i++) {
		r = server_listen(a->server, a->options.endpoints[i], err);
		if (r < 0)
			return err_sys(err, r, "cannot listen on %s", a->options.endpoints[i]);
	}
	if (a->options.http == NULL)
		return 0;
	a->http = (struct serve_address){.ring = a->reactor.ring,
		.server = a->server,
		.flag = "--http",
		.address = a->options.http};
	return serve_address_start(&a->http, err);
}

static int open_node_server(struct app *a, struct err *err)
{
	if (a->options.listen == NULL)
		return 0;
	const struct server_config config = {
		.ring = a->reactor.ring,
		.registry = a->nodes,
		.limits = server_limits_default,
		.tls_limits = server_tls_limits_default,
	};
	int r = server_open(&a->node_server, &config);
	if (r < 0)
		return err_sys(err, r, "the server for nodes cannot be opened");
	a->listen = (struct serve_address){.ring = a->reactor.ring,
		.server = a->node_server,
		.flag = "--listen",
		.address = a->options.listen,
		.tls = a->keys.tls};
	return serve_address_start(&a->listen, err);
}

static void say_serving(const struct app *a)
{
	struct buf endpoints = {0};
	char startup_ms[32];
	for (unsigned i = 0; i < a->options.endpoint_count; i++)
		buf_printf(&endpoints, "%s%s", i == 0 ? "" : ",", a->options.endpoints[i]);
	snprintf(startup_ms, sizeof(startup_ms), "%.1f",
		(double)(clock_monotonic_ns() - a->start_ns) / 1e6);
	log_event(LOG_LEVEL_INFO, "serving",
		log_fields({"version", RINGVOL_VERSION}, {"driver", a->options.driver_name},
			{"endpoints", (char *)endpoints.data}, {"listen", a->options.listen},
			{"node", a->options.node},
			{"http", a->http.listening ? a->http.address : NULL},
			{"startup_ms", startup_ms}));
	buf_free(&endpoints);
}

static int start(struct app *a, struct err *err)
{
	process_claim_resources();
	process_hide_memory();
	int r = process_take_signals(&a->signal_fd);
	if (r < 0)
		return err_sys(err, r, "signals cannot be taken");
	r = open_reactor(a, err);
	if (r >= 0)
		r = open_controller(a, err);
	if (r >= 0)
		r = open_registries(a, err);
	if (r >= 0)
		r = open_server(a, err);
	if (r >= 0)
		r = open_node_server(a, err);
	if (r < 0)
		return r;
	to_life(a, LIFE_SERVING);
	a->timer.fn = on_health_tick;
	ring_timer_arm(a->reactor.ring, &a->timer, 0);
	say_serving(a);
	r = process_notify("READY=1");
	if (r < 0)
		log_event(LOG_LEVEL_WARN, "the service manager cannot be told READY=1",
			log_fields({"error", strerrordesc_np(-r)}));
	return 0;
}

/* Top down; half of it may be missing. */
static void stop(struct app *a)
{
	serve_address_stop(&a->http);
	serve_address_stop(&a->listen);
	if (a->reactor.ring != NULL)
		ring_timer_cancel(a->reactor.ring, &a->timer);
	server_close(a->server);
	server_close(a->node_server);
	metrics_close(a->metrics);
	reflection_free(a->reflection);
	health_free(a->health);
	controller_close(a->controller);
	grpc_registry_free(a->clients);
	grpc_registry_free(a->nodes);
	tls_keys_close(&a->keys);
	work_close(a->reactor.work);
	ring_close(a->reactor.ring);
	fd_close(&a->signal_fd);
	controller_options_free(&a->options);
}

int controller_main(int argc, char *const *argv)
{
	struct app a = {.signal_fd = -1, .start_ns = clock_monotonic_ns()};
	struct options_result result = {0};
	struct err err = {0};
	if (controller_options_parse(&a.options, &result, argc, argv, &err) < 0) {
		fprintf(stderr, "ringvol controller: %s\n", err.message);
		controller_options_free(&a.options);
		return 2;
	}
	if (result.help) {
		options_print_help(&controller_command, stdout);
		controller_options_free(&a.options);
		return 0;
	}
	log_open(a.options.log_level, a.options.log_format);
	int r = start(&a, &err);
	if (r >= 0) {
		r = ring_run(a.reactor.ring);
		if (r < 0)
			err_sys(&err, r, "the ring is broken");
	}
	if (r < 0)
		log_event(LOG_LEVEL_ERROR, "cannot serve", log_fields({"error", err.message}));
	if (a.life == LIFE_CUT_OFF) {
		server_close(a.server);
		server_close(a.node_server);
		_exit(r < 0 ? 1 : 0);
	}
	stop(&a);
	if (r >= 0)
		log_event(LOG_LEVEL_INFO, "stopped", NULL);
	return r < 0 ? 1 : 0;
}
